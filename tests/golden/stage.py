"""Common parts of both kinds of scripts: time, machines, disks, the network, and the transcript."""

from collections.abc import Callable, Iterable
from typing import NewType, cast

from replicated_namesrv.raft.interfaces import Observer
from replicated_namesrv.raft.raft_messages import Message
from replicated_namesrv.simulation.invariants import Invariants
from replicated_namesrv.simulation.machine import Machine, ProcessLife
from replicated_namesrv.simulation.network import Endpoint, Link, Network
from replicated_namesrv.simulation.process_views import Process, RaftView
from replicated_namesrv.simulation.world import MS
from tests.golden.describe import Names, describe, is_routine
from tests.golden.steady import SteadyWorld
from tests.golden.transcript import ScriptError, command

QUIET_MS, QUIET_LIMIT_MS = 60, 5_000
"""``settle`` ends after a little more than a heartbeat interval without a new event, or fails after the limit."""
UNTIL_LIMIT_MS = 10_000
STEP_NS = MS // 10
LEVELS = ("none", "changes", "messages", "all")
CHANGES, MESSAGES, ALL = 1, 2, 3

Links = NewType("Links", tuple[Link, ...])
"""``n1>n2`` in scripts; ``*`` stands for every node, ``n1-n2`` for both directions."""
Kind = NewType("Kind", str)
"""Name of a kind of message, or ``*``."""
Groups = NewType("Groups", tuple[frozenset[str], ...])
"""``n1,n2|n3`` in scripts."""
Held = NewType("Held", int)
"""``#1`` in scripts."""
Level = NewType("Level", int)


class Wires(Network):
    """The simulator's network. A script can drop messages, and hold them and deliver them later, once or several times."""

    def __init__(self, stage: "Stage", endpoints: Iterable[Endpoint]) -> None:
        super().__init__(stage.world, endpoints, str)
        self._stage = stage
        self.dropped: set[tuple[Link, str]] = set()
        self.holding: set[tuple[Link, str]] = set()
        self.held: dict[int, tuple[Link, Message]] = {}
        self.sent_last: dict[tuple[Link, str], Message] = {}
        self.cut_now: set[Link] = set()
        self._held_count = 0

    def send(self, source: str, target: str, message: object) -> None:
        sent = cast("Message", message)
        link, kind = (source, target), type(sent).__name__
        self.sent_last[link, kind] = sent
        fate = ""
        if self._matches(self.holding, link, kind):
            self._held_count += 1
            self.held[self._held_count] = link, sent
            fate = f"held as #{self._held_count}"
        elif self._matches(self.dropped, link, kind) or link in self.cut_now:
            fate = "lost"
        self._stage.tell_message(self._stage.acting, "->", link, sent, fate)
        if not fate:
            super().send(source, target, message)

    @staticmethod
    def _matches(rules: set[tuple[Link, str]], link: Link, kind: str) -> bool:
        return (link, kind) in rules or (link, "*") in rules

    def cut(self, links: Iterable[Link], hold: bool) -> None:
        chosen = [link for link in links if link not in self.cut_now]
        self.cut_now.update(chosen)
        super().cut(chosen, hold)

    def mend(self, links: Iterable[Link]) -> None:
        chosen = list(links)
        self.cut_now.difference_update(chosen)
        super().mend(chosen)


class Actor(Machine):
    """A machine that writes when its connections begin and end."""

    stage: "Stage"
    opening_ms = (0,)

    def _turn(self, life: ProcessLife) -> None:
        self.stage.acting = self.name
        super()._turn(life)

    def connected(self, peer: str) -> None:
        self.stage.forget_routine((self.name, peer))
        self.stage.tell(self, f"connected to {peer}", ALL)
        super().connected(peer)

    def disconnected(self, peer: str) -> None:
        self.stage.tell(self, f"disconnected from {peer}", ALL)
        super().disconnected(peer)


class Stage:
    """A cluster that a script controls. Subclasses boot their processes and add commands."""

    def __init__(self) -> None:
        self.world = SteadyWorld()
        self.names: list[str] = []
        self.machines: dict[str, Actor] = {}
        self.invariants = self.make_invariants()
        # A process that stops by itself belongs to the story and is written.
        self.invariants.tolerated.update({"fail-stop": 0, "start": 0})
        self.wires: Wires
        self.incarnations = Names()
        self.roles: dict[str, str] = {}
        """Roles written since the last turn of a node."""
        self._images: dict[str, dict[str, bytes]] = {}
        self._lines: list[str] = []
        self.level = MESSAGES
        self.acting = ""
        """The machine that has its turn: two may speak under one name."""
        self._header: tuple[str, str] = ("", "")
        self._routine: dict[tuple[str, str, Link, str], str] = {}
        self._hidden = 0
        self._told_ns = 0
        self._changed_ns = 0

    def make_invariants(self) -> Invariants:
        """The checks after every event."""
        return Invariants(self.world)

    def start_process(self, machine: Machine) -> tuple[Process, RaftView]:
        """Boot ``machine``."""
        raise NotImplementedError

    def build(self, count: int) -> None:
        """Machines ``n1`` … that are not started."""
        if self.machines:
            raise ScriptError("there are nodes already")
        if not 1 <= count <= 9:
            raise ScriptError(f"{count} nodes: 1 to 9 are possible")
        self.names = [f"n{number}" for number in range(1, count + 1)]
        for position, name in enumerate(self.names):
            self.world.shares[name] = position / count
            actor = Actor(self.world, name, self.invariants, self.start_process)
            actor.stage = self
            self.machines[name] = actor
        self.wires = Wires(self, self.machines.values())
        for machine in self.machines.values():
            machine.network = self.wires
        self.invariants.quorum = count // 2 + 1 if count > 1 else 0
        self.invariants.single_node = count == 1

    # Account

    def tell(self, who: Machine | str, text: str, level: int = CHANGES) -> None:
        """A line of output, below a header with time and name."""
        if level > self.level:
            return
        self._told_ns = self.world.now_ns
        name = who if isinstance(who, str) else who.name
        header = f"{self.world.now_ns / MS:.1f}", name
        if header != self._header:
            self._lines.append(f"> {header[0]} {name}")
            self._header = header
        self._lines.append("  " + self.incarnations.replaced(text).replace("\n", " ").rstrip())

    def tell_message(self, name: str, arrow: str, link: Link, message: Message, fate: str = "") -> None:
        """A message was sent or received; one that repeats the last of its kind on its link is only counted."""
        kind, text = type(message).__name__, describe(message, self.incarnations, link)
        if self.level < ALL and is_routine(message) and not fate.startswith("held"):
            if self._routine.get((name, arrow, link, kind)) == text:
                self._hidden += self.level >= MESSAGES
                return
            self._routine[name, arrow, link, kind] = text
        peer = link[1] if arrow == "->" else link[0]
        self.tell(name, f"{arrow} {peer} {text}" + (f" ({fate})" if fate else ""), MESSAGES)

    def forget_routine(self, link: Link) -> None:
        """There is a new connection: the first messages over it are not repetitions."""
        for key in [key for key in self._routine if key[2] == link]:
            del self._routine[key]

    def take_output(self) -> list[str]:
        lines, self._lines, self._header = self._lines, [], ("", "")
        if self._hidden:
            lines.append(f"({self._hidden} repeated messages left out)")
            self._hidden = 0
        return lines

    def problem(self) -> str | None:
        violation = self.invariants.violation
        return None if violation is None else f"{violation.name}: {violation.text}"

    # Arguments

    def convert(self, kind: object, word: str) -> object:
        if kind is Machine:
            if word not in self.machines:
                raise ValueError(f"no node {word!r}; there are: {', '.join(self.names) or 'none, begin with the command nodes'}")
            return self.machines[word]
        if kind is Links:
            return Links(tuple(self._links(word)))
        if kind is Groups:
            groups = tuple(frozenset(part.split(",")) for part in word.split("|"))
            if sorted(name for group in groups for name in group) != sorted(self.names):
                raise ValueError(f"{word!r} does not name every node once")
            return Groups(groups)
        if kind is Held:
            if not (word.startswith("#") and word[1:].isdigit() and int(word[1:]) in self.wires.held):
                raise ValueError(f"no held message {word}; there are: {' '.join(f'#{n}' for n in self.wires.held) or 'none'}")
            return Held(int(word[1:]))
        if kind is Level:
            if word not in LEVELS:
                raise ValueError(f"{word!r} is none of {', '.join(LEVELS)}")
            return Level(LEVELS.index(word))
        if kind is Kind:
            if word != "*" and word not in {kind.__name__ for kind in Message.__args__}:
                raise ValueError(f"no kind of message {word!r}")
            return Kind(word)
        if kind in (int, float):
            try:
                return cast("Callable[[str], object]", kind)(word)
            except ValueError:
                raise ValueError(f"{word!r} is not a number") from None
        return word

    def _links(self, word: str) -> list[Link]:
        both = "-" in word
        source, found, target = word.partition("-" if both else ">")
        if not found or not {source, target} <= {*self.names, "*"}:
            raise ValueError(f"{word!r} is not a link like n1>n2, n1>*, *>n1 or n1-n2")
        pairs = [(source, target)] + ([(target, source)] if both else [])
        return [link for link in self.wires.links if any(a in ("*", link[0]) and b in ("*", link[1]) for a, b in pairs)]

    # Time

    @command
    def log(self, level: Level) -> None:
        """Set what is written: ``none``, ``changes`` of state, also ``messages`` (without repetitions), or ``all``."""
        self.level = level

    @command
    def run(self, ms: float) -> None:
        """Let time pass."""
        self.world.run_until(self.world.now_ns + int(ms * MS))

    @command
    def settle(self) -> None:
        """Let time pass until no new event has happened for longer than a heartbeat."""
        level, began_ns = self.level, self.world.now_ns
        self._changed_ns = began_ns
        while self.world.now_ns - self._changed_ns < QUIET_MS * MS:
            self.world.run_until(self.world.now_ns + STEP_NS)
            if self.world.now_ns - began_ns > QUIET_LIMIT_MS * MS:
                raise ScriptError(f"not settled within {QUIET_LIMIT_MS} ms")
        self.level = level

    def changed(self) -> None:
        """Note that an event has happened, written or not."""
        self._changed_ns = self.world.now_ns

    def reach(self, condition: Callable[[], bool]) -> None:
        """Let time pass until ``condition`` is true."""
        if not condition():
            self.world.run_until(self.world.now_ns + UNTIL_LIMIT_MS * MS, condition)
        if not condition():
            raise ScriptError(f"not reached within {UNTIL_LIMIT_MS} ms")

    @command
    def clock(self, node: Machine, ms: float) -> None:
        """The node's clock jumps ahead."""
        ran = False

        def turn(process: Process) -> None:
            nonlocal ran
            ran = True

        if not node.is_up():
            raise ScriptError(f"{node.name} is down")
        node.set_clock_rate(ms / 0.06)  # a turn begins 0.06 ms after the event
        node.enqueue(turn)
        while not ran:
            self.world.run_until(self.world.now_ns + 60_001)
        node.set_clock_rate(1.0)

    @command
    def rate(self, node: Machine, share: float) -> None:
        """The node's clock runs that many times as fast as the world's."""
        node.set_clock_rate(share)

    @command
    def timeout(self, node: Machine, share: float) -> None:
        """From the next draw on, this share of the range between least and greatest is added to the least election time."""
        self.world.shares[node.name] = share

    # Processes

    @command
    def start(self, *nodes: Machine) -> None:
        """Boot the nodes; without names all that are down."""
        for machine in nodes or [m for m in self.machines.values() if not m.is_up()]:
            if machine.is_up():
                raise ScriptError(f"{machine.name} runs already")
            self.tell(machine, "starts")
            machine.start()

    @command
    def kill(self, *nodes: Machine) -> None:
        """End the processes. Written data stays."""
        for machine in self._running(nodes):
            self.tell(machine, "is killed")
            machine.crash(power_loss=False)

    @command
    def power_loss(self, *nodes: Machine) -> None:
        """End the processes. Data that was not synced is lost."""
        for machine in self._running(nodes):
            self.tell(machine, "loses power")
            machine.crash(power_loss=True)

    @command
    def restart(self, *nodes: Machine) -> None:
        """Kill and start."""
        self.kill(*nodes)
        self.start(*nodes)

    @command
    def pause(self, *nodes: Machine) -> None:
        """Pause as SIGSTOP does: the process does not run, and time continues."""
        for machine in self._running(nodes):
            machine.pause()

    @command
    def resume(self, *nodes: Machine) -> None:
        """Undo ``pause``."""
        for machine in nodes:
            machine.resume()

    def _running(self, nodes: Iterable[Machine]) -> list[Machine]:
        for machine in nodes:
            if not machine.is_up():
                raise ScriptError(f"{machine.name} is down")
        return list(nodes)

    # Disks

    @command
    def lose_disk(self, node: Machine) -> None:
        """The node gets an empty disk. It must be down."""
        self._down(node).disk.wipe()

    @command
    def image(self, node: Machine, name: str) -> None:
        """Take an image of the node's disk."""
        self._images[name] = node.disk.image()

    @command
    def put_back(self, node: Machine, name: str) -> None:
        """Replace the content of the node's disk by an image. The node must be down."""
        self._down(node).disk.restore(self.image_of(name))
        node.restored = True

    def image_of(self, name: str) -> dict[str, bytes]:
        """An image by its name."""
        if name not in self._images:
            raise ScriptError(f"no image {name!r}")
        return self._images[name]

    @command
    def hang_disk(self, node: Machine) -> None:
        """No sync ends until ``release-disk``."""
        node.disk.hung = True

    @command
    def release_disk(self, node: Machine) -> None:
        """Undo ``hang-disk``: the waiting syncs complete."""
        node.resume_disk()

    @command
    def fail_disk(self, node: Machine) -> None:
        """Every sync fails from now on."""
        node.disk.failing = True

    @staticmethod
    def _down(node: Machine) -> Machine:
        if node.is_up():
            raise ScriptError(f"{node.name} runs; kill it first")
        return node

    # Network

    @command
    def cut(self, links: Links) -> None:
        """Drop all messages and refuse connections until ``heal``."""
        self.wires.cut(links, hold=False)

    @command
    def isolate(self, *nodes: Machine) -> None:
        """Cut the nodes off from all others."""
        names = {machine.name for machine in nodes}
        self.wires.cut([link for link in self.wires.links if names & set(link)], hold=False)

    @command
    def partition(self, groups: Groups) -> None:
        """Only nodes of one group can talk: ``partition n1,n2|n3``."""
        apart = [link for link in self.wires.links if not any(set(link) <= group for group in groups)]
        self.wires.cut(apart, hold=False)

    @command
    def heal(self) -> None:
        """Undo cuts, partitions, delays, ``drop`` and ``hold``; held messages stay held."""
        self.wires.heal()
        self.wires.mend(self.wires.links)
        self.wires.dropped.clear()
        self.wires.holding.clear()

    @command
    def delay(self, links: Links, ms: int) -> None:
        """Messages take this much longer."""
        for link in links:
            self.wires.late_ms[link] = ms

    @command
    def drop(self, links: Links, kind: Kind) -> None:
        """Messages of this kind are lost from now on."""
        self.wires.dropped.update((link, kind) for link in links)

    @command
    def hold(self, links: Links, kind: Kind) -> None:
        """Messages of this kind are kept from now on; ``deliver`` lets one arrive."""
        self.wires.holding.update((link, kind) for link in links)

    @command
    def pass_(self, links: Links, kind: Kind) -> None:
        """Undo ``drop`` and ``hold`` for messages to come."""
        for link in links:
            self.wires.dropped.discard((link, kind))
            self.wires.holding.discard((link, kind))

    @command
    def deliver(self, *numbers: Held) -> None:
        """Held messages arrive now, in this order; they stay held, so they can arrive again."""
        for number in numbers:
            self._arrive(*self.wires.held[number])

    @command
    def repeat(self, links: Links, kind: Kind) -> None:
        """The last message of this kind arrives once more."""
        for link in links:
            sent = self.wires.sent_last.get((link, kind))
            if sent is None:
                raise ScriptError(f"no {kind} was sent from {link[0]} to {link[1]}")
            self._arrive(link, sent)

    def _arrive(self, link: Link, message: Message) -> None:
        target = self.machines[link[1]]
        if not target.is_up():
            raise ScriptError(f"{target.name} is down")
        self.arrive(target, link, message)
        self.world.run_until(self.world.now_ns + MS // 5)

    def arrive(self, target: Machine, link: Link, message: Message) -> None:
        """``target`` receives the message."""
        target.receive(link[0], message)


class Account(Observer):
    """Writes the core's reports and passes them on."""

    def __init__(self, stage: Stage, machine: Machine, beyond: Observer) -> None:
        self._stage, self._machine, self._next = stage, machine, beyond
        self._voted = ("", 0)

    def _tell(self, text: str) -> None:
        self._stage.changed()
        self._stage.tell(self._machine, text)

    def role_changed(self, role: str, term: int) -> None:
        self._stage.roles[self._machine.name] = role
        self._tell(f"becomes {role}")
        self._next.role_changed(role, term)

    def voted(self, candidate: str, term: int) -> None:
        if self._voted != (candidate, term):
            self._voted = candidate, term
            self._tell(f"votes for {candidate} in term {term}")
        self._next.voted(candidate, term)

    def leader_changed(self, leader: str | None, term: int) -> None:
        self._next.leader_changed(leader, term)

    def truncated(self, index: int, commit_index: int) -> None:
        self._tell(f"cuts its log from entry {index} on")
        self._next.truncated(index, commit_index)

    def forgot(self, index: int) -> None:
        self._tell(f"cuts its log from entry {index} on")
        self._next.forgot(index)

    def restored(self, index: int) -> None:
        self._tell(f"restores a snapshot up to entry {index}")
        self._next.restored(index)

    def failed(self, error: BaseException) -> None:
        self._tell(f"stops: {type(error).__name__}: {error}")
        self._next.failed(error)
