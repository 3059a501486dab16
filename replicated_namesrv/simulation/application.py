"""Applications of the simulated cluster: the process on each machine, the clients, and the checks of their histories.

The simulator uses applications only through ``Application``. ``RegisterApplication`` is for the Raft core: a few registers,
and clients that write, delete and read them linearizably on every node, by read index or lease.
"""

import zlib
from collections.abc import Callable, Iterator
from random import Random
from typing import Protocol

from replicated_namesrv.raft.interfaces import Committed, Indeterminate, Outcome, ReadOutcome, ReadReady, Rejected, Restoration
from replicated_namesrv.simulation.invariants import Invariants
from replicated_namesrv.simulation.machine import Machine, ProcessLife
from replicated_namesrv.simulation.process_views import Process, RaftView
from replicated_namesrv.simulation.world import MS, SECOND, World, exponential
from replicated_namesrv.verify import Operation, Verdict, check_history
from replicated_namesrv.verify import Outcome as Known


class Application(Protocol):
    """An application. The simulator runs it on the machines and calls these methods."""

    catch_up_ns: int
    """Time limit for every node to catch up, counted from the last heal."""
    drain_ns: int
    """Time within which every request must have ended after the clients stopped."""
    disturbs: bool
    """Whether a follower is isolated at the very end, and then returns."""
    counts: dict[str, int]
    """Numbers of events for the report."""

    def start_process(self, machine: Machine) -> tuple[Process, RaftView]:
        """Boot ``machine``. If this raises, the machine stays down."""

    def start_clients(self) -> None:
        """Begin the load."""

    def stop_clients(self) -> None:
        """Send no more requests."""

    def quiet(self, duration_ns: int) -> None:
        """Pause the clients for a while."""

    def provoke(self, machine: Machine, duration_ns: int) -> None:
        """Read on ``machine`` and write on all machines as fast as possible. ``machine`` may be a deposed leader: this provokes
        stale answers, and entries that only this machine has."""

    def burst(self, machine: Machine) -> None:
        """Propose many commands at once on ``machine``. Their number and length suffice to reach the bounds of this run."""

    def write_steadily(self, duration_ns: int) -> None:
        """Write on all machines for a while, about every 5 ms."""

    def read_finally(self) -> None:
        """Begin the final reads on every node, which show whether every acknowledged write is there."""

    def check(self) -> None:
        """Everything has ended: check the histories and report violations to ``Invariants``."""


class Ledger:
    """The record of all requests to the nodes. It checks that each request ends exactly once."""

    def __init__(self, invariants: Invariants) -> None:
        self._invariants = invariants
        self._pending: dict[int, tuple[str, ProcessLife]] = {}
        self._number = 0
        self.outcomes: dict[str, int] = {}

    def begin(self, what: str, machine: Machine, limit_ns: int) -> Callable[[object], bool]:
        """Record that a request begins. Returns a function to call with the outcome, which returns False if the request had
        already ended.

        The request must end within ``limit_ns``, unless the process is paused in that time.
        """
        assert machine.life is not None
        self._number += 1
        number, began_ns = self._number, machine.world.now_ns
        self._pending[number] = (f"{what} on {machine.name}", machine.life)

        def end(outcome: object) -> bool:
            if self._pending.pop(number, None) is None:
                self._invariants.violated("exactly once", f"{what} on {machine.name} ended again, as {type(outcome).__name__}")
                return False
            took_ns = machine.world.now_ns - began_ns
            if took_ns > limit_ns and machine.ran_since_ns <= began_ns:
                self._invariants.violated("ends in time", f"{what} on {machine.name} ended only after {took_ns / SECOND:.2f} s")
            kind = f"{what.split()[0]} {type(outcome).__name__}"
            self.outcomes[kind] = self.outcomes.get(kind, 0) + 1
            return True

        return end

    def check(self) -> None:
        """Check that every request has ended, except those to a process that was stopped."""
        for what, life in self._pending.values():
            if not life.over:
                self._invariants.violated("every proposal ends", f"{what} has never ended")


class RegisterCommand:
    """One write or delete, encoded for the log."""

    @staticmethod
    def encode(identity: str, key: str, value: str | None, padding: int = 0) -> bytes:
        """``value`` None: a delete. ``padding``: number of bytes that only make the command longer."""
        return "\0".join((identity, key, "" if value is None else value, *(["." * padding] if padding else []))).encode()

    @staticmethod
    def decode(command: bytes) -> tuple[str, str, str | None]:
        """(identity, key, value)."""
        identity, key, value = command.decode().split("\0")[:3]
        return identity, key, value or None


class RegisterHistory:
    """The record of the commands that the nodes have applied. It checks that no command is applied twice and that all nodes apply
    the same sequence."""

    def __init__(self, invariants: Invariants) -> None:
        self._invariants = invariants
        self.positions: dict[str, int] = {}
        self._digests: dict[int, int] = {}

    def applied(self, node: str, identity: str, position: int, digest: int) -> None:
        """Record that ``node`` applied the command as its ``position``-th; ``digest`` covers all commands applied so far."""
        if self.positions.setdefault(identity, position) != position:
            self._invariants.violated("at most once", f"{node} applies command {identity} a second time")
        if self._digests.setdefault(position, digest) != digest:
            self._invariants.violated(
                "state-machine safety", f"{node} has applied a different sequence of {position} commands than other nodes"
            )


class RegisterStateMachine:
    """A map of registers (``StateMachine``). ``ballast`` makes its snapshots larger."""

    def __init__(self, node: str, history: RegisterHistory, ballast: int, slice_bytes: int) -> None:
        self._node, self._history, self._ballast, self._slice_bytes = node, history, ballast, slice_bytes
        self.registers: dict[str, str] = {}
        self.position = 0
        self._digest = 0
        self.take_memory_error: Callable[[], bool] = lambda: False
        """Whether applying the next command fails for lack of memory."""

    def apply(self, command: bytes) -> object:
        if self.take_memory_error():
            raise MemoryError
        identity, key, value = RegisterCommand.decode(command)
        self.position += 1
        self._digest = zlib.crc32(command, self._digest)
        self._history.applied(self._node, identity, self.position, self._digest)
        if value is None:
            self.registers.pop(key, None)
        else:
            self.registers[key] = value
        return self.position

    def snapshot(self) -> Iterator[bytes]:
        lines = [f"{self.position} {self._digest}", *(f"{key} {value}" for key, value in sorted(self.registers.items()))]
        raw = "\n".join(lines).encode() + b"\n" + b"." * self._ballast
        return iter([raw[at : at + self._slice_bytes] for at in range(0, len(raw), self._slice_bytes)])

    def restore(self) -> Restoration:
        return _RegisterRestoration(self)

    def replace(self, raw: bytes) -> None:
        """Replace the state by ``raw``, a whole snapshot."""
        text, _, ballast = raw.decode().rpartition("\n")
        assert len(ballast) == self._ballast, "a snapshot arrived in part"
        head, *lines = text.split("\n")
        position, digest = head.split()
        self.position, self._digest = int(position), int(digest)
        self.registers = dict(line.split(" ") for line in lines)

    def digest(self) -> bytes:
        return self._digest.to_bytes(4, "big") + self.position.to_bytes(8, "big")


class _RegisterRestoration:
    def __init__(self, target: RegisterStateMachine) -> None:
        self._target, self._chunks = target, list[bytes]()

    def feed(self, chunk: bytes) -> None:
        self._chunks.append(chunk)

    def finish(self) -> None:
        self._target.replace(b"".join(self._chunks))


class Submitter(Protocol):
    """The calls of ``RaftNode`` that clients use."""

    def propose(self, command: bytes, done: Callable[[Outcome], None], timeout_ms: int | None = None) -> None: ...

    def read_index(self, done: Callable[[ReadOutcome], None]) -> None: ...

    def lease_read(self, done: Callable[[ReadOutcome], None]) -> None: ...


class RegisterApplication:
    """Registers on the given machines. ``boot`` creates the process around a state machine."""

    disturbs = True

    def __init__(
        self,
        world: World,
        invariants: Invariants,
        ledger: Ledger,
        boot: "Callable[[Machine, RegisterStateMachine], tuple[Submitter, Process, RaftView]]",
        *,
        clients: int,
        catch_up_ns: int,
        drain_ns: int,
        proposal_limit_ns: int,
        read_limit_ns: int,
        lease_share: float,
        ballast: int,
        slice_bytes: int,
    ) -> None:
        self.world, self.invariants, self.ledger, self._boot = world, invariants, ledger, boot
        self.catch_up_ns, self.drain_ns, self.lease_share = catch_up_ns, drain_ns, lease_share
        self.proposal_limit_ns, self.read_limit_ns = proposal_limit_ns, read_limit_ns
        self._ballast, self._slice_bytes = ballast, slice_bytes
        self.machines: list[Machine] = []
        self.members: Callable[[], list[Machine]] = lambda: self.machines
        """The machines that must be equal and readable at the end."""
        self.counts: dict[str, int] = {}
        self.must_read: Callable[[Machine], bool] = lambda machine: True
        """Whether a machine must be readable at the end."""
        self.operations: list[Operation] = []
        self.history = RegisterHistory(invariants)
        self.states: dict[str, RegisterStateMachine] = {}
        self.submitters: dict[str, Submitter] = {}
        self.rejected: list[str] = []
        self.acknowledged: list[tuple[str, Committed]] = []
        self.burst_commands, self.burst_bytes = 30, 0
        """Number of commands of a burst, and the padding of each."""
        self.keys = [f"k{number}" for number in range(world.random("keys").choice((1, 2, 4)))]
        self._probes = 0
        self.quiet_until_ns = 0
        self._clients = [RegisterClient(self, f"c{number}") for number in range(clients)]

    def start_process(self, machine: Machine) -> tuple[Process, RaftView]:
        state = RegisterStateMachine(machine.name, self.history, self._ballast, self._slice_bytes)
        state.take_memory_error = machine.take_memory_error
        submitter, process, raft = self._boot(machine, state)
        self.states[machine.name], self.submitters[machine.name] = state, submitter
        return process, raft

    def start_clients(self) -> None:
        for client in self._clients:
            client.start()

    def stop_clients(self) -> None:
        for client in self._clients:
            client.stopped = True

    def quiet(self, duration_ns: int) -> None:
        self.quiet_until_ns = self.world.now_ns + duration_ns

    def provoke(self, machine: Machine, duration_ns: int) -> None:
        self._probes += 1
        until_ns = self.world.now_ns + duration_ns
        RegisterProbe(self, f"p{self._probes}-reads", machine, True, until_ns).start()
        for target in self.machines:
            RegisterProbe(self, f"p{self._probes}-{target.name}", target, False, until_ns).start()

    def write_steadily(self, duration_ns: int) -> None:
        self._probes += 1
        for target in self.machines:
            RegisterProbe(self, f"p{self._probes}-{target.name}", target, False, self.world.now_ns + duration_ns, 10).start()

    def burst(self, machine: Machine) -> None:
        for _ in range(self.burst_commands):
            self._probes += 1
            RegisterClient(self, f"b{self._probes}").write(machine, self.keys[0], self.burst_bytes)

    def read_finally(self) -> None:
        for machine in self.members():
            reader = RegisterClient(self, f"final-{machine.name}")
            for key in self.keys:
                reader.read(machine, key)

    def check(self) -> None:
        self.ledger.check()
        for identity in self.rejected:
            if identity in self.history.positions:
                self.invariants.violated("rejected commands are not applied", f"command {identity} was rejected and yet applied")
        for identity, committed in self.acknowledged:
            entry = self.invariants.committed.get(committed.log_index)
            if (
                entry is None
                or entry.term != committed.term
                or f"{identity}\0".encode() not in entry.payload
                or committed.result != self.history.positions.get(identity)
            ):
                self.invariants.violated(
                    "acknowledged commands are committed",
                    f"command {identity} was acknowledged at {committed.log_index} of term {committed.term}, "
                    "but its own entry is not what was committed there",
                )
        self._check_equal()
        if self.invariants.violation is None:
            verdict = check_history(self.operations)
            if verdict.verdict is not Verdict.VALID:
                ends = [max(o.end_ns or 0 for o in key.witness) for key in verdict.keys if key.witness]
                self.invariants.violated("linearizability", verdict.describe(), min(ends, default=None))

    def _check_equal(self) -> None:
        digests = {machine.name: self.states[machine.name].digest().hex() for machine in self.members()}
        if len(set(digests.values())) > 1:
            self.invariants.violated("all nodes equal", f"digests differ at the end: {digests}")
        read = self._final_reads()
        missing = [
            f"{m.name}/{key}" for m in self.members() if self.must_read(m) for key in self.keys if (m.name, key) not in read
        ]
        if missing:
            self.invariants.violated("readable at the end", f"no linearizable read at the end: {', '.join(missing)}")

    def _final_reads(self) -> set[tuple[str, str]]:
        return {
            (operation.client.removeprefix("final-"), operation.key)
            for operation in self.operations
            if operation.outcome is Known.OK and operation.client.startswith("final-")
        }


class RegisterClient:
    """One client with one operation at a time, mostly on one node."""

    def __init__(self, application: RegisterApplication, name: str) -> None:
        self._application, self._name = application, name
        self._world = application.world
        self._rng: Random = self._world.random(f"client/{name}")
        self._number = 0
        self._home = self._rng.random()
        self._pause_ms = self._rng.choice((20, 100, 300))
        self.stopped = False

    def start(self) -> None:
        """Begin to send requests."""
        self._world.after(int(self._rng.random() * SECOND), self._step)

    def _again(self) -> None:
        self._world.after(int(exponential(self._rng) * self._pause_ms * MS) + 1, self._step)

    def _step(self) -> None:
        if self.stopped:
            return
        if self._world.now_ns < self._application.quiet_until_ns:
            self._again()
            return
        rng, application = self._rng, self._application
        place = self._home if rng.random() < 0.7 else rng.random()
        machine = application.machines[int(place * len(application.machines))]
        key = rng.choice(application.keys)
        if rng.random() < 0.5:
            self.read(machine, key, self._again)
        else:
            self._number += 1
            self._write(machine, key, None if rng.random() < 0.1 else f"{self._name}.{self._number}")

    def read(self, machine: Machine, key: str, then: Callable[[], None] | None = None) -> None:
        """Read ``key`` on ``machine``."""
        application = self._application
        by_lease = self._rng.random() < application.lease_share
        call = _Call(self, machine, "read", key, None, then)

        def ask(process: Process) -> None:
            end = application.ledger.begin("read", machine, application.read_limit_ns)

            def done(outcome: ReadOutcome) -> None:
                if end(outcome):
                    ready = isinstance(outcome, ReadReady)
                    value = application.states[machine.name].registers.get(key) if ready else None
                    if ready:
                        how = "by lease" if by_lease else "by read index"
                        application.world.note(f"{machine.name}: {self._name} reads {key}={value} {how}")
                    call.finish(Known.OK if ready else Known.FAIL, value)

            submitter = application.submitters[machine.name]
            (submitter.lease_read if by_lease else submitter.read_index)(done)

        call.make(ask)

    def write(self, machine: Machine, key: str, padding: int) -> None:
        """Write once to ``key`` on ``machine``, and then send nothing more."""
        self._number += 1
        self._write(machine, key, f"{self._name}.{self._number}", padding, is_last=True)

    def _write(self, machine: Machine, key: str, value: str | None, padding: int = 0, is_last: bool = False) -> None:
        application = self._application
        identity = f"{self._name}.{self._number}"
        op = "delete" if value is None else "write"
        call = _Call(self, machine, op, key, value, None if is_last else self._again)

        def ask(process: Process) -> None:
            end = application.ledger.begin(f"proposal {identity}", machine, application.proposal_limit_ns)
            application.submitters[machine.name].propose(RegisterCommand.encode(identity, key, value, padding), done=ended(end))

        def ended(end: Callable[[object], bool]) -> Callable[[Outcome], None]:
            def done(outcome: Outcome) -> None:
                if end(outcome):
                    application.world.note(f"{machine.name}: {identity} {key}={value} ends: {outcome}")
                    call.finish(self._known(identity, outcome), value)

            return done

        call.make(ask)

    def _known(self, identity: str, outcome: Outcome) -> Known:
        match outcome:
            case Committed():
                self._application.acknowledged.append((identity, outcome))
                return Known.OK
            case Rejected():
                self._application.rejected.append(identity)
                return Known.FAIL
            case Indeterminate():
                return Known.INDETERMINATE

    def timeout_ns(self) -> int:
        """Time-out of this client's requests."""
        return int((0.5 + 2 * self._rng.random()) * SECOND)


class RegisterProbe(RegisterClient):
    """A client that only reads, or only writes, one key on one machine at a high rate until a given time."""

    def __init__(
        self, application: RegisterApplication, name: str, machine: Machine, reads: bool, until_ns: int, pause_ms: int = 2
    ) -> None:
        super().__init__(application, name)
        self._machine, self._reads, self._until_ns = machine, reads, until_ns
        self._pause_ms = pause_ms

    def start(self) -> None:
        self._world.after(1, self._step)

    def _step(self) -> None:
        key = self._application.keys[0]
        if self._world.now_ns >= self._until_ns:
            return
        if self._reads:
            self.read(self._machine, key, self._again)
        else:
            self._number += 1
            self._write(self._machine, key, f"{self._name}.{self._number}")

    def timeout_ns(self) -> int:
        return 60 * MS


class _Call:
    """One operation of a client on a machine, until its outcome is known or the client gives up."""

    def __init__(
        self, client: RegisterClient, machine: Machine, op: str, key: str, value: str | None, then: Callable[[], None] | None
    ) -> None:
        self._machine, self._then = machine, then
        self._application, self._world = client._application, client._world
        now = self._world.now_ns
        self._operation: Operation | None = Operation(client._name, op, key, value, now, None, Known.INDETERMINATE)
        self._timeout_ns = client.timeout_ns() if then is not None else 10 * SECOND

    def make(self, ask: Callable[[Process], None]) -> None:
        """Send the operation to the machine. If the machine is down, the operation has certainly failed."""
        if not self._machine.is_up():
            self.finish(Known.FAIL, None)
            return
        self._world.after(self._timeout_ns, self.finish, Known.INDETERMINATE, None)
        self._machine.enqueue(ask)

    def finish(self, known: Known, value: str | None) -> None:
        """Record the outcome. Only the first call counts: a client that gave up ignores late answers."""
        if self._operation is None:
            return
        operation, self._operation = self._operation, None
        if operation.op == "read":
            operation = operation._replace(value=value if known is Known.OK else None)
        self._application.operations.append(operation._replace(end_ns=self._world.now_ns, outcome=known))
        if self._then is not None:
            self._then()
