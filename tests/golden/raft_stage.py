"""Scripts of the Raft core: ``RaftNode`` as it ships, on the simulator's clock, disk and network, with a list as its state."""

import re
from collections.abc import Collection
from dataclasses import fields
from typing import Any, cast

from replicated_namesrv.raft.interfaces import Committed, Indeterminate, Outcome, ReadOutcome, ReadReady, Work
from replicated_namesrv.raft.member_changes import MemberChange
from replicated_namesrv.raft.raft_config import Defences, RaftConfig
from replicated_namesrv.raft.raft_messages import Message
from replicated_namesrv.raft.raft_node import RaftNode
from replicated_namesrv.simulation.machine import Machine
from replicated_namesrv.simulation.process_views import Process, RaftView
from tests.golden.describe import payload_text, voters_text
from tests.golden.stage import ALL, MESSAGES, Account, Actor, Stage
from tests.golden.transcript import ScriptError, command
from tests.support.raft_world import Machine as CommandList

_TOLD = ("role", "term", "leader", "state", "voters", "first_index", "last_index", "durable_index", "commit_index",
         "snapshot_index", "snapshot_problem", "command_version_of_all", "problem")  # fmt: skip  # items grouped by line
"""Keys of ``RaftNode.status`` whose changes are written after each turn of a node."""
_AGE = re.compile(r"\b\d+ ms(?= ago)")
_QUIET_COUNTERS = frozenset({"elections_won", "pre_votes"})
"""Counters of events that are written in another form."""


class Commands(CommandList):
    """The replicated state: a list of the commands applied."""

    commands_per_chunk = 1

    def __init__(self, stage: "RaftStage", machine: Machine) -> None:
        super().__init__()
        self._stage, self._machine = stage, machine

    def apply(self, command: bytes) -> object:
        if self._machine.take_memory_error():
            raise MemoryError
        self._stage.tell(self._machine, f"applies {payload_word(command)}")
        return super().apply(command)


def payload_word(command: bytes) -> str:
    """A command as scripts give it."""
    return command.decode(errors="backslashreplace")


class Told:
    """A process that writes its arrivals and status changes to the transcript."""

    def __init__(self, stage: "RaftStage", machine: Machine, node: RaftNode) -> None:
        self._stage, self._machine, self.node = stage, machine, node
        self.status: dict[str, object] = {}
        """The status at the end of the last turn."""
        self._notes: set[str] = set()
        """Notes that were written already, because each is written once."""
        self._counters: dict[str, int] = {}
        self._peers: dict[str, object] = {}
        self._followers: dict[str, object] = {}

    def on_connected(self, peer: str) -> None:
        self.node.on_connected(peer)

    def on_disconnected(self, peer: str) -> None:
        self.node.on_disconnected(peer)

    def on_message(self, peer: str, message: Message) -> Work:
        """Returns TICK always, so that changes are written after each message."""
        self._stage.tell_message(self._machine.name, "<-", (peer, self._machine.speaks_as), message)
        self.node.on_message(peer, message)
        return Work.TICK

    def on_synced(self, token: int) -> None:
        self._stage.tell(self._machine, "sync done", ALL)
        self.node.on_synced(token)

    def on_sync_failed(self, token: int, error: BaseException) -> None:
        self._stage.tell(self._machine, f"sync failed: {error}")
        self.node.on_sync_failed(token, error)

    def tick(self) -> None:
        self.node.tick()
        self.tell_changes()

    def tick_reads(self) -> None:
        self.tick()

    def next_wakeup(self) -> float:
        return self.node.next_wakeup()

    next_read_wakeup = next_wakeup

    def stop(self) -> None:
        self.node.stop()

    def tell_changes(self) -> None:
        """Write the changes since the last turn."""
        stage, machine, node = self._stage, self._machine, self.node
        stage.incarnations.note(node.node_id, node.incarnation)
        status = node.status()
        status["voters"] = voters_text(cast("dict[str, int]", status["voters"]), stage.incarnations) or None
        self.status.setdefault("role", "follower")
        self.status["role"] = stage.roles.pop(machine.name, self.status["role"])
        status["problem"] = _AGE.sub("some ms", str(status["problem"] or "")) or None
        changes = [f"{key.removesuffix('_index')}={status[key]}" for key in _TOLD if status[key] != self.status.get(key)]
        if changes:
            stage.changed()
            stage.tell(machine, "is now " + " ".join(changes))
        self.status = status
        self._tell_table("peers", "standing", self._peers, "peer {} is {}")
        self._tell_table("followers", "state", self._followers, "follower {} in state {}")
        for name, count in node.counters.items():
            if count != self._counters.get(name) and name not in _QUIET_COUNTERS:
                stage.tell(machine, f"counts {name} {count}", MESSAGES)
        self._counters = dict(node.counters)
        self._tell_notes()

    def _tell_table(self, table: str, field: str, before: dict[str, object], text: str) -> None:
        rows = cast("dict[str, dict[str, object]]", self.status[table])
        for peer, row in rows.items():
            if row[field] != before.get(peer, "pending"):
                self._stage.changed()
                self._stage.tell(self._machine, text.format(peer, row[field]))
                before[peer] = row[field]
        for peer in [peer for peer in before if peer not in rows]:
            del before[peer]

    def _tell_notes(self) -> None:
        for note in self.node.notes:
            if note not in self._notes:
                self._notes.add(note)
                self._stage.changed()
                self._stage.tell(self._machine, f"notes: {note}")


class RaftStage(Stage):
    """The commands of ``raft/*.txt``."""

    def __init__(self) -> None:
        super().__init__()
        self._config = RaftConfig()
        self._of_node: dict[str, RaftConfig] = {}
        self._joining: list[str] = []
        self._states: dict[str, Commands] = {}
        self._copies: dict[str, Actor] = {}

    def start_process(self, machine: Machine) -> tuple[Process, RaftView]:
        assert machine.life is not None
        state = self._states[machine.name] = Commands(self, machine)
        account = Account(self, machine, machine.observer)
        config = self._of_node.get(machine.speaks_as, self._config)
        joins = machine.speaks_as in self._joining
        known = {name: address_of(name) for name in self.names if name not in self._joining or name == machine.speaks_as}
        node = RaftNode(machine.speaks_as, known, "golden", machine.life, machine.disk, state, config, account, joins)
        self.incarnations.note(node.node_id, node.incarnation)
        told = Told(self, machine, node)
        self.tell(machine, f"opened its disk as {node.incarnation}, boot {node.boot}")
        return told, node

    def _node(self, machine: Machine) -> RaftNode:
        if not isinstance(machine.process, Told):
            raise ScriptError(f"{machine.name} is down")
        return machine.process.node

    def _enqueue(self, machine: Machine, ask: Any) -> None:
        node = self._node(machine)
        machine.enqueue(lambda process: ask(node))
        self.run(0.1)

    # Cluster

    @command
    def nodes(self, count: int, *, joining: int = 0, **settings: str) -> None:
        """Make machines n1 …, with settings of ``RaftConfig``. None runs yet. n1 has the shortest election time-out. The last
        ``joining`` of them join the cluster of the others."""
        self.build(count)
        self._config = config_of(settings)
        if joining:
            self._joining = self.names[count - joining :]
            self.invariants.founders = frozenset(self.names[: count - joining])
            self.invariants.voters_of = self._voters_of

    @command
    def configure(self, node: Machine, **settings: str) -> None:
        """Settings of ``RaftConfig`` for the next process of this node. ``without=NAME`` switches a defence off."""
        self._of_node[node.name] = config_of(settings)

    @command
    def copy(self, node: Machine, *, disk: str = "copy") -> None:
        """Start a second process under the node's name. Its directory is a copy of the node's, an ``empty`` one, or an image."""
        copy = node.copied()
        assert isinstance(copy, Actor)
        copy.name, copy.stage = f"{node.name}'", self
        if disk == "empty":
            copy.disk.wipe()
        elif disk != "copy":
            copy.disk.restore(self.image_of(disk))
        self._copies[node.name] = copy
        self.tell(copy, "starts")
        copy.start()
        self.wires.add_copy(node.name, copy)

    @command
    def kill_copy(self, node: Machine) -> None:
        """End the second process."""
        self.tell(self._copies[node.name], "is killed")
        self._copies.pop(node.name).crash(power_loss=False)
        self.wires.copies.pop(node.name)

    def _voters_of(self, name: str) -> tuple[Collection[str], int] | None:
        context = self._node(self.machines[name]).context
        return context.voters, context.quorum

    # Requests

    @command
    def member(self, node: Machine, action: str, name: str, *, kind: str = "", at: str = "") -> None:
        """Request a change of the members: ``add``, ``remove``, ``promote`` or ``move``. ``kind=observer``: the new member never
        votes. ``at``: the address of a node, instead of the member's own."""
        address = address_of(at or name) if action in ("add", "move") else None
        change = MemberChange(action, name, address, kind == "observer")
        self._enqueue(node, lambda raft: raft.change_member(change, self._ending(node, f"{action} {name}")))

    @command
    def campaign(self, node: Machine) -> None:
        """The node's election timer fires: its clock jumps ahead by the greatest election time."""
        self.clock(node, self._config.election_max_ms)

    @command
    def propose(self, node: Machine, text: str, *, version: int = 0) -> None:
        """Propose a command; ``version``: the newest version of commands that every member has to know."""
        self._enqueue(node, lambda raft: raft.propose(text.encode(), self._ending(node, f"proposal {text}"), version=version))

    @command
    def read(self, node: Machine) -> None:
        """A linearizable read by read index."""
        self._enqueue(node, lambda raft: raft.read_index(self._ending(node, "read")))

    @command
    def lease_read(self, node: Machine) -> None:
        """A read from the lease, or by read index if there is none."""
        self._enqueue(node, lambda raft: raft.lease_read(self._ending(node, "lease read")))

    @command
    def lease(self, node: Machine) -> None:
        """Write whether the node's lease is valid."""
        self.tell(node, f"lease {'holds' if self._node(node).lease_valid() else 'does not hold'}")

    @command
    def transfer(self, node: Machine, target: str = "") -> None:
        """Transfer leadership to the named node; without a name, to the node with the longest log."""

        def done(handed_over: bool) -> None:
            self.changed()
            self.tell(node, f"transfer {'succeeded' if handed_over else 'failed'}")

        self._enqueue(node, lambda raft: raft.transfer_leadership(target or None, done))

    def _ending(self, machine: Machine, what: str) -> Any:
        def done(outcome: Outcome | ReadOutcome) -> None:
            self.changed()
            self.tell(machine, f"{what}: {outcome_text(outcome)}")

        return done

    # State

    @command
    def corrupt(self, node: Machine) -> None:
        """The last command in the node's state becomes another one."""
        self._states[node.name].commands[-1] = b"corrupt"

    @command
    def fail_apply(self, node: Machine) -> None:
        """Applying the next command on the node fails for lack of memory."""
        node.out_of_memory = True

    @command
    def show(self, *nodes: Machine) -> None:
        """Role, term, log and applied commands of the named nodes; without names, of all nodes."""
        for machine in nodes or self.machines.values():
            if not isinstance(machine.process, Told):
                self.tell(machine, "down")
                continue
            node = machine.process.node
            voters = voters_text(dict(node.voters), self.incarnations)
            entries = [
                f"{index}@{node.term_at(index)} {payload_text(node.entry_at(index) or b'')}"
                for index in range(max(node.first_index, node.last_index - 9), node.last_index + 1)
            ]
            self.tell(machine, f"{node.role} term={node.term} leader={node.leader_id} commit={node.commit_index} voters={voters}")
            self.tell(machine, f"log [{'; '.join(entries)}]")
            self.tell(machine, f"state [{' '.join(payload_word(c) for c in self._states[machine.name].commands)}]")

    @command
    def until(self, node: Machine, key: str, value: str) -> None:
        """Let time pass until a key of the node's status has this value, or its voters are these incarnations."""
        if isinstance(node.process, Told) and key not in node.process.node.status():
            raise ScriptError(f"the status has no {key!r}; there are: {', '.join(node.process.node.status())}")
        self.reach(lambda: isinstance(node.process, Told) and str(node.process.status.get(key)) == value)


def address_of(name: str) -> tuple[str, int]:
    """Address of a node."""
    return f"host-{name}", 1


def config_of(settings: dict[str, str]) -> RaftConfig:
    """``RaftConfig`` with these fields."""
    kinds = {field.name: type(field.default) for field in fields(RaftConfig)}
    values: dict[str, Any] = {}
    for name, text in settings.items():
        if name == "without":
            values["defences"] = defences_without(text)
            continue
        kind = kinds.get(name)
        if kind not in (int, float, bool):
            raise ScriptError(f"no setting {name!r} of RaftConfig")
        values[name] = text == "true" if kind is bool else kind(text)
    try:
        return RaftConfig(**values)
    except ValueError as error:
        raise ScriptError(str(error)) from None


def defences_without(name: str) -> Defences:
    """All defences but one."""
    try:
        return Defences.without(name)
    except ValueError as error:
        raise ScriptError(str(error)) from None


def outcome_text(outcome: Outcome | ReadOutcome) -> str:
    """The outcome of a proposal or a read, as text."""
    if isinstance(outcome, Committed):
        return f"committed at {outcome.log_index}@{outcome.term}, result {outcome.result}"
    if isinstance(outcome, ReadReady):
        return f"ready at entry {outcome.log_index} in term {outcome.term}"
    if isinstance(outcome, Indeterminate):
        return f"unknown: {outcome.reason}"
    return f"rejected: {outcome.reason}"
