"""One simulated machine: a disk, a clock that drifts, and the process that runs on it.

The process sees what the production driver would show it. Messages that arrive while it is busy or paused are handled as one
batch, followed by the work that they left (``Work``). The process is also woken at the time that it requested. A crash ends the
process and keeps the page cache. After a power loss ``SimulatedDisk`` decides what survives.
"""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from replicated_namesrv.raft.interfaces import Observer, Work
from replicated_namesrv.raft.raft_errors import AcknowledgedLossError, RolledBackError
from replicated_namesrv.raft.raft_messages import Message
from replicated_namesrv.simulation.disk import SimulatedDisk, SyncRequest
from replicated_namesrv.simulation.invariants import Invariants
from replicated_namesrv.simulation.network import Endpoint, Network
from replicated_namesrv.simulation.process_views import Process, RaftView
from replicated_namesrv.simulation.world import MS, SECOND, World

_WAKE_MAX_NS = 10 * SECOND
_IDLE_TURNS_MAX, _IDLE_NS = 5_000, 10 * SECOND
"""Maximum number of turns in a row without an event within ``_IDLE_NS``. Long work in small steps, for example a snapshot, needs
many turns. A process that needs more is reported as ``spinning``. Timers alone wake it less often, even if it is cut off for
minutes."""


class ProcessLife:
    """``Environment`` of one process, from start to crash. After the crash its pending requests are dropped."""

    def __init__(self, machine: "Machine", rng: Random) -> None:
        self._machine = machine
        self.now = machine.local_now
        self.rng = self.jitter = rng
        self.over = False
        self._hanging: list[tuple[int, SyncRequest]] = []
        """Syncs that have not completed because the disk is hung."""

    def resume_syncs(self) -> None:
        """The disk works again."""
        hanging, self._hanging = self._hanging, []
        for token, request in hanging:
            self._synced(token, request)

    def send(self, peer: str, message: Message) -> None:
        """Pass a message to the network."""
        if not self.over:
            self._machine.network.send(self._machine.speaks_as, peer, message)

    def request_sync(self, token: int, names: Sequence[str], directory: bool) -> None:
        """Sync later. Requests of one process may complete in any order."""
        disk, world = self._machine.disk, self._machine.world
        if not self.over:
            world.after(disk.sync_delay_ns(), self._synced, token, disk.begin_sync(names, directory))

    def _synced(self, token: int, request: SyncRequest) -> None:
        if self.over:
            return
        if self._machine.disk.hung:
            self._machine.disk.affected["hung"] += 1
            self._hanging.append((token, request))
            return
        try:
            self._machine.disk.end_sync(request)
        except OSError as error:
            self._machine.enqueue(partial(_sync_failed, token, error))
            return
        self._machine.enqueue(lambda process: process.on_synced(token))


def _sync_failed(token: int, error: OSError, process: Process) -> None:
    process.on_sync_failed(token, error)


class Machine(Endpoint):
    """A machine with a name. The application provides ``start_process``."""

    network: Network
    opening_ms: Sequence[int] = (0, 20, 200, 1_000)
    """Longest times that a process may need to open its disk. One of them is drawn for each start but the first."""

    def __init__(
        self, world: World, name: str, invariants: Invariants, start_process: "Callable[[Machine], tuple[Process, RaftView]]"
    ) -> None:
        self.world, self.name, self.invariants, self._start_process = world, name, invariants, start_process
        self.speaks_as = name
        """Name in the cluster and on the network. A process on a copy of a machine's directory uses that machine's name."""
        self._rng, self._opening_rng = world.random(f"machine/{name}"), world.random(f"opening/{name}")
        self.disk = SimulatedDisk(world.random(f"disk/{name}"))
        self.process: Process | None = None
        self.raft: RaftView | None = None
        self.life: ProcessLife | None = None
        self.observer: Observer = Observer()
        self.boots = 0
        self.pauses = 0
        self.ran_since_ns = 0
        """Time since which the process has run without a pause."""
        self.disk_faulted = False
        """True if a disk fault was active in this life of the process, so that it may stop by itself."""
        self.out_of_memory = False
        """While True, applying the next command fails for lack of memory."""
        self.memory_faulted = False
        """True if memory ran out in this life of the process, so that it may stop by itself."""
        self.memory_errors = 0
        """Number of commands whose application has failed for lack of memory."""
        self.kept_down = False
        """While True, the machine stays down."""
        self.restored = False
        """True if the disk was rolled back to an older image. A process that detects this may stop."""
        self.has_new_disk = False
        """True if the first disk was lost."""
        self._is_opening = False
        """Whether the process is still opening its disk. It does not tick yet, and nobody can connect."""
        self._inbox: list[Callable[[Process], Work | None]] = []
        self._is_due = False
        """Whether the time has come at which the process wanted to be woken."""
        self._turn_at = -1
        self._wake_at = -1
        self._idle_turns = self._idle_since_ns = 0
        self._clock_rate = 1.0
        self._clock_base = 1_000.0 * (1 + self._rng.random())
        self._clock_since_ns = 0

    # Clock

    def local_now(self) -> float:
        """Seconds of this machine's clock."""
        return self._clock_base + (self.world.now_ns - self._clock_since_ns) * self._clock_rate / SECOND

    def set_clock_rate(self, rate: float) -> None:
        """Run the clock ``rate`` times as fast as the world's from now on."""
        self._clock_base, self._clock_since_ns = self.local_now(), self.world.now_ns
        self._clock_rate = rate

    # Start and stop

    def is_up(self) -> bool:
        return self.process is not None and not self._is_opening

    def start(self) -> None:
        """Boot the process. If it cannot use the disk, the machine stays down until it is started again."""
        if self.process is not None or self.kept_down:
            return
        self.boots += 1
        self.life = ProcessLife(self, self.world.random(f"{self.name}/{self.boots}"))
        self.disk_faulted = self.disk.full or self.disk.failing
        self.out_of_memory = self.memory_faulted = False
        self.observer = self.invariants.observer(self)
        self._inbox.clear()
        self._turn_at = self._wake_at = -1
        self._is_due = True
        self.world.note(f"{self.name} starts (boot {self.boots})")
        self.disk.drop_pages()
        try:
            self.process, self.raft = self._start_process(self)
        except Exception as error:
            self.life.over = True
            self.world.trace.event(self.world.now_ns, self.name, "boot failed", type(error).__name__)
            self.world.note(f"{self.name} cannot start: {error!r}")
            if not self.disk_faulted:
                self.invariants.violated("start", f"{self.name} cannot start: {error!r}")
            return
        self.invariants.started(self)
        self._is_opening = True
        # a cluster is founded before the first fault: founding needs all nodes
        longest_ms = self._opening_rng.choice(self.opening_ms) if self.boots > 1 else 0
        if longest_ms:
            self.world.after(int(self._opening_rng.random() * longest_ms * MS), self._opened, self.life)
        else:
            self._opened(self.life)

    def _opened(self, life: ProcessLife) -> None:
        """The disk is open: the process listens and begins to tick."""
        if self.life is not life or self.process is None:
            return
        self._is_opening = False
        if not self.is_copy:
            self.network.dial_all(self.name)
        self._turn_soon()

    @property
    def is_copy(self) -> bool:
        """Whether this machine runs on a copy of another machine's directory and uses that machine's name."""
        return self.speaks_as != self.name

    def copied(self) -> "Machine":
        """A machine with a copy of this one's directory. The caller starts it and crashes it in the end."""
        copy = type(self)(self.world, f"{self.name}-copy-{self.world.now_ns}", self.invariants, self._start_process)
        copy.network, copy.speaks_as, copy.disk.mean_ms, copy.restored = self.network, self.name, self.disk.mean_ms, True
        copy.disk.restore(self.disk.image())
        return copy

    def crash(self, power_loss: bool) -> None:
        """Kill the process. With a power loss the disk loses data, too."""
        if self.process is not None:
            self.world.note(f"{self.name} {'loses power' if power_loss else 'is killed'}")
            self._end(power_loss)
        if power_loss:
            self.disk.lose_power()

    def _end(self, power_loss: bool = False) -> None:
        assert self.life is not None
        self.life.over = True
        self.process = self.raft = None
        if not self.is_copy:
            self.network.drop_all(self.name, power_loss)
        self.invariants.ended(self)

    def take_memory_error(self) -> bool:
        """Whether memory runs out now. Each time that ``out_of_memory`` is set, one call returns True."""
        found, self.out_of_memory = self.out_of_memory, False
        self.memory_faulted |= found
        self.memory_errors += found
        return found

    def resume_disk(self) -> None:
        """The disk completes the syncs that hung."""
        self.disk.hung = False
        if self.life is not None:
            self.life.resume_syncs()

    def pause(self) -> None:
        """Pause the process as SIGSTOP does; time continues. Pauses add up."""
        self.pauses += 1

    def resume(self) -> None:
        """Undo one ``pause``."""
        self.pauses = max(0, self.pauses - 1)
        if self.pauses == 0 and self.process is not None:
            self.ran_since_ns = self.world.now_ns
            self._turn_soon()

    # Events

    def connected(self, peer: str) -> None:
        self.enqueue(lambda process: process.on_connected(peer))

    def disconnected(self, peer: str) -> None:
        self.enqueue(lambda process: process.on_disconnected(peer))

    def receive(self, peer: str, message: object) -> None:
        self.world.trace.event(self.world.now_ns, peer, self.name, type(message).__name__)
        self.enqueue(lambda process: process.on_message(peer, message))  # type: ignore[arg-type]  # the network carries Raft messages only

    def enqueue(self, event: Callable[[Process], Work | None]) -> None:
        """Pass an event to the process at its next turn. It is lost if there is no process. If ``event`` returns None, the
        process has to tick after it."""
        if self.process is not None:
            self._inbox.append(event)
            self._turn_soon()

    def _turn_soon(self) -> None:
        if self._turn_at < 0:
            self._turn_at = self.world.now_ns + int((0.01 + 0.1 * self._rng.random()) * MS)
            self.world.after(self._turn_at - self.world.now_ns, self._turn, self.life)

    def _wake(self, life: ProcessLife, wake_at: int) -> None:
        if self.life is life and wake_at == self._wake_at:
            self._wake_at, self._is_due = -1, True
            self._turn_soon()

    def _turn(self, life: ProcessLife) -> None:
        if self.life is not life or self.process is None:
            return
        self._turn_at = -1
        if self.pauses or self._is_opening:
            return
        process, inbox = self.process, self._inbox
        self._inbox = []
        if inbox or self.world.now_ns - self._idle_since_ns > _IDLE_NS:
            self._idle_turns, self._idle_since_ns = 0, self.world.now_ns
        self._idle_turns += not inbox
        if self._idle_turns > _IDLE_TURNS_MAX:
            self.invariants.violated(
                "spinning", f"{self.name} was woken {self._idle_turns} times within {_IDLE_NS // SECOND} s without an event"
            )
        try:
            work = Work.SEND if inbox and not self._is_due else Work.TICK
            self._is_due = False
            for event in inbox:
                left = event(process)
                work = max(work, Work.TICK if left is None else left)
                if self.life is not life:
                    return
            if work is Work.TICK:
                process.tick()
            elif work is Work.READS:
                process.tick_reads()
        except Exception as error:
            self.world.note(f"{self.name} raises {error!r}")
            self.invariants.violated("exception", f"{self.name} raised {type(error).__name__}: {error}")
            return
        self.invariants.check(self)
        if self.raft is not None and self.raft.stopped:
            self._stopped()
        elif work is not Work.SEND:
            self._schedule_wakeup(process.next_wakeup() if work is Work.TICK else process.next_read_wakeup(), life)

    def _schedule_wakeup(self, due_at: float, life: ProcessLife) -> None:
        seconds = due_at - self.local_now()
        delay = int(min(max(0.0, seconds / self._clock_rate * SECOND), _WAKE_MAX_NS)) + 1
        wake_at = self.world.now_ns + delay
        if self._wake_at < 0 or wake_at < self._wake_at:
            self._wake_at = wake_at
            self.world.after(delay, self._wake, life, wake_at)

    def _stopped(self) -> None:
        """The process has stopped by itself, which is a violation unless a fault permits it."""
        assert self.raft is not None
        self.world.note(f"{self.name} stops by itself: {self.raft.failed!r}")
        self.disk_faulted |= self.disk.full or self.disk.failing
        failed = self.raft.failed
        excused = (
            (self.disk_faulted and isinstance(failed, OSError))
            or (self.memory_faulted and isinstance(failed, MemoryError))
            or (self.restored and isinstance(failed, RolledBackError))
            # a message to the original process also reaches the copy, so the copy can fail in this way
            or (self.is_copy and isinstance(failed, AcknowledgedLossError))
        )
        if not excused:
            self.invariants.violated("fail-stop", f"{self.name} stopped by itself: {self.raft.failed}")
        elif isinstance(failed, RolledBackError) and not self.is_copy:
            self.world.after(100 * MS, self.start)
        self._end()
