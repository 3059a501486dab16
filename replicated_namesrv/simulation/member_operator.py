"""MemberOperator: requests membership changes during faults: additions, removals, promotions and changes of addresses.

Most requests go to the leader; some go to another node. A machine that is added as a member starts with its former disk or with
an empty one. Exception: a node that is the only founder keeps its disk, because it would found another cluster on an empty one.
Some faults are safe only while all other nodes are up and connected (``Nemesis.is_sheltered``). During such a fault, the operator
requests no change.
"""

from collections.abc import Callable

from replicated_namesrv.raft.interfaces import Outcome
from replicated_namesrv.raft.member_changes import MemberChange
from replicated_namesrv.raft.members import VOTERS_MAX, Kind, Members
from replicated_namesrv.raft.raft_node import RaftNode
from replicated_namesrv.simulation.application import Ledger
from replicated_namesrv.simulation.faults import Nemesis
from replicated_namesrv.simulation.invariants import Invariants
from replicated_namesrv.simulation.machine import Machine
from replicated_namesrv.simulation.process_views import Process
from replicated_namesrv.simulation.world import MS, SECOND, World, exponential

_VOTERS_MIN = 1
_LIMIT_NS = 20 * SECOND
"""Time limit of a request. It ends when its entry is applied, or when the leader steps down. A leader with a hung disk steps down
only after some seconds."""


class MemberOperator:
    """Requests random changes of the members until it is stopped."""

    def __init__(self, world: World, machines: list[Machine], invariants: Invariants, ledger: Ledger, nemesis: Nemesis) -> None:
        self._world, self._rng = world, world.random("operator")
        self._machines = {machine.name: machine for machine in machines}
        self._invariants, self._ledger, self._nemesis = invariants, ledger, nemesis
        self._gap_ms = self._rng.choice((150, 500, 1_500))
        self._stopped = False

    def start(self) -> None:
        """Request the first change after a second. By then, the cluster has usually been formed."""
        self._world.after(SECOND, self._step)

    def stop(self) -> None:
        """Request no more changes."""
        self._stopped = True

    def _step(self) -> None:
        if self._stopped:
            return
        self._world.after(int(exponential(self._rng) * self._gap_ms * MS) + MS, self._step)
        asked = self._nemesis.leader() if self._rng.random() < 0.9 else self._rng.choice(list(self._machines.values()))
        node = None if asked is None else asked.raft
        if asked is None or not isinstance(node, RaftNode) or self._nemesis.is_sheltered() or asked.is_copy:
            return
        change = self._draw(node.configuration.members)
        if change is not None:
            self._request(asked, change)

    def _draw(self, members: Members) -> MemberChange | None:
        """A change that the leader may accept, or None."""
        rng, names = self._rng, sorted(members)
        strangers = [name for name in self._machines if name not in members and name not in self._invariants.member_names()]
        voting = [name for name, member in members.items() if member.kind is not Kind.OBSERVER]
        choices: list[Callable[[], MemberChange]] = []
        if strangers:
            observer = len(voting) >= VOTERS_MAX or rng.random() < 0.3
            choices += [lambda: self._add(rng.choice(strangers), observer)] * 3
        if observers := [name for name in names if members[name].kind is Kind.OBSERVER]:
            choices += [lambda: MemberChange("promote", rng.choice(observers))] * 2
        voters = sum(member.votes for member in members.values())
        removable = names if voters > _VOTERS_MIN else [name for name in names if not members[name].votes]
        if removable:
            weight = 3 if voters > 3 else 1
            choices += [lambda: MemberChange("remove", rng.choice(removable))] * weight
        if names:
            choices.append(lambda: self._move_or_describe(rng.choice(names), rng.randrange(1_000_000)))
        return rng.choice(choices)() if choices else None

    @staticmethod
    def _move_or_describe(name: str, number: int) -> MemberChange:
        """Neither changes who may connect here: links go by name."""
        if number % 2:
            return MemberChange("describe", name, details=f"of {number}")
        return MemberChange("move", name, (f"moved-{number}", 1))

    def _add(self, name: str, observer: bool) -> MemberChange:
        machine = self._machines[name]
        if not self._nemesis.copies and self._rng.random() < 0.5 and self._invariants.founders != {name}:
            self._world.note(f"  {name} gets an empty disk")
            machine.crash(power_loss=True)
            machine.disk.wipe()
        machine.start()
        return MemberChange("add", name, (f"host-{name}-{self._rng.randrange(1_000_000)}", 1), observer=observer)

    def _request(self, machine: Machine, change: MemberChange) -> None:
        def ask(process: Process) -> None:
            assert isinstance(process, RaftNode)
            self._world.note(f"OPERATOR asks {machine.name}: {change.action} {change.name}")
            end = self._ledger.begin(f"{change.action} {change.name}", machine, _LIMIT_NS)

            def done(outcome: Outcome) -> None:
                self._world.note(f"  {change.action} {change.name}: {outcome}")
                end(outcome)

            process.change_member(change, done)

        machine.enqueue(ask)
