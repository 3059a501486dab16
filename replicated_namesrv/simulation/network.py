"""The network: one connection for each ordered pair of machines, as in the shipped transport, and its faults.

Messages of a connection arrive in order or are lost. A link (an ordered pair) can be cut: then messages are lost or held until
it is mended, and no new connection is established. It can be slow or lossy, or repeat messages. A repeated message arrives a
second time at any later time, even after the connection has ended and its sender or receiver has been restarted. When a
connection is reset, its messages in flight are lost or arrive late, after messages of the next connection. An echoing link
delivers old messages again, rare kinds as often as common ones, including votes of earlier terms.

The pauses between attempts to connect are those of the shipped transport (``raft/transport.py``). After a power loss, the peers
refuse the new process for a time, as in row H8 there.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable

from replicated_namesrv.raft.raft_messages import Vote, VoteReply
from replicated_namesrv.raft.transport import DIAL_PAUSE_MAX_SECONDS, DIAL_PAUSE_MIN_SECONDS, EAGER_SECONDS, LIVE_SECONDS
from replicated_namesrv.simulation.world import MS, SECOND, World

_REMEMBERED = 6
"""Number of messages of each kind and link from which an echo may choose."""
_VOTES_ECHOED = 6
"""Number of old votes that arrive after each vote on a link with echoed votes."""
Link = tuple[str, str]
"""(sender, receiver)."""
FLOOD_NS = 100 * MS
FLOOD_MESSAGES = 5_000
"""Maximum number of messages of one kind that a node may send to another one within ``FLOOD_NS``. More are a defect: for example,
two nodes that answer each other's answers. The most that was seen in hundreds of runs is 1,594."""
CONNECT_NS = int((LIVE_SECONDS + 1.5 * DIAL_PAUSE_MAX_SECONDS) * SECOND)
"""Two processes connect within this time if their links are whole. It includes a refusal after a power loss, and the longest
pause."""


class Endpoint:
    """The part of a machine that the network uses."""

    name: str

    def is_up(self) -> bool:
        """Whether a process runs there (it may be paused)."""
        raise NotImplementedError

    def connected(self, peer: str) -> None:
        """The connection of this machine to ``peer`` was established."""
        raise NotImplementedError

    def disconnected(self, peer: str) -> None:
        """The connection to ``peer`` has ended."""
        raise NotImplementedError

    def receive(self, peer: str, message: object) -> None:
        """A message from ``peer`` arrived."""
        raise NotImplementedError


class _SimulatedConnection:
    __slots__ = ("closed", "disturbed", "held", "last_arrival_ns", "late")

    def __init__(self) -> None:
        self.closed = False
        self.late = False
        """True if the connection is closed but messages in flight still arrive."""
        self.last_arrival_ns = 0
        self.disturbed = 0
        """Number of cuts since the connection was established."""
        self.held: list[object] = []


class Network:
    """All links between the machines."""

    def __init__(self, world: World, endpoints: Iterable[Endpoint], describe: Callable[[object], str]) -> None:
        self._world, self._rng, self._describe = world, world.random("network"), describe
        self._endpoints = {endpoint.name: endpoint for endpoint in endpoints}
        names = list(self._endpoints)
        self.links: list[Link] = [(source, target) for source in names for target in names if source != target]
        self.copies: dict[str, Endpoint] = {}
        """By name: a second process that uses the name and the connections of this endpoint, and receives all its messages."""
        self._connections: dict[Link, _SimulatedConnection] = {}
        self._dialling: dict[Link, tuple[int, int]] = {}
        """The links on which an attempt to connect is due: number and time of the attempt."""
        self._attempts = 0
        self._pauses: dict[Link, float] = {}
        """Seconds before the next attempt to connect, on average: the actual pause is between half and one and a half of this. It
        grows with each failure, as in the transport."""
        self._eager_until_ns: dict[str, int] = {}
        """For each machine: until when the pauses of its process do not grow."""
        self._refused_until_ns: dict[Link, int] = {}
        self._cuts: dict[Link, int] = dict.fromkeys(self.links, 0)
        self._holds: set[Link] = set()
        self.slow_ms: dict[Link, int] = {}
        """Greatest random delay of each message."""
        self.late_ms: dict[Link, int] = {}
        """Constant delay of each message."""
        self.loss: dict[Link, float] = {}
        self.repeats: dict[Link, float] = {}
        self.echoes: dict[Link, float] = {}
        """Share of arrivals after which an old message of the same link arrives again."""
        self.lost_votes: set[Link] = set()
        """Links on which every ``Vote`` is lost."""
        self.echoed_votes: set[Link] = set()
        """Links on which, after each ``VoteReply``, some of the last ones arrive again, often of earlier terms."""
        self._remembered: dict[Link, dict[str, deque[object]]] = {link: {} for link in self.links}
        self.affected: Counter[tuple[str, Link]] = Counter()
        """Messages and attempts to connect that a fault affected, by link and kind of the fault: ``cut``, ``loss``, ``repeats``,
        ``echoes``, ``slow``, ``late``, ``votes``."""
        self.last_repeat_ns = 0
        """Time at which the last scheduled message arrives that is late or repeated and may delay an election."""
        self.may_delay_election: Callable[[str, object], bool] = lambda target, message: True
        """Whether a late message to a node may delay an election; set by the simulation."""
        self.sent = 0
        self._counted_until_ns = 0
        self._counts: Counter[tuple[str, str, str]] = Counter()
        """Messages since the last multiple of ``FLOOD_NS``, by sender, receiver and kind."""
        self.flood: str | None = None
        """The first link with more than ``FLOOD_MESSAGES``, in words."""

    # Faults

    def cut(self, links: Iterable[Link], hold: bool) -> None:
        """Cut ``links``; cuts add up. ``hold``: messages wait until the link is mended instead of being lost."""
        for link in links:
            self._cuts[link] += 1
            if link in self._connections:
                self._connections[link].disturbed += 1
            if hold:
                self._holds.add(link)

    def mend(self, links: Iterable[Link]) -> None:
        """Undo one ``cut`` of ``links``."""
        for link in links:
            self._cuts[link] = max(0, self._cuts[link] - 1)
            if self._cuts[link]:
                continue
            self._holds.discard(link)
            connection = self._connections.get(link)
            if connection is not None and connection.held:
                held, connection.held = connection.held, []
                for message in held:
                    self._schedule(link, connection, message)

    def heal(self) -> None:
        """Undo every fault."""
        for link in self.links:
            self._cuts[link] = min(self._cuts[link], 1)
        self.mend(self.links)
        self.slow_ms.clear()
        self.late_ms.clear()
        self.loss.clear()
        self.repeats.clear()
        self.echoes.clear()
        self.lost_votes.clear()
        self.echoed_votes.clear()

    @property
    def is_whole(self) -> bool:
        """True while no link is cut."""
        return not any(self._cuts.values())

    @property
    def is_connected(self) -> bool:
        """Whether every process that is up is connected to every other one."""
        up = {name for name, endpoint in self._endpoints.items() if endpoint.is_up()}
        return all(link in self._connections for link in self.links if up.issuperset(link))

    def is_cut(self, link: Link) -> bool:
        """Whether messages of ``link`` are lost or held; False from an endpoint to itself."""
        return self._cuts.get(link, 0) > 0

    def undisturbed(self, link: Link) -> object | None:
        """None if messages on ``link`` are lost, held or late now. Otherwise an object that changes with each cut and with
        each new connection. If two calls return equal objects, there was neither in between."""
        connection = self._connections.get(link)
        if connection is None or self._cuts[link] or link in self.slow_ms or link in self.late_ms or link in self.loss:
            return None
        if link in self.lost_votes:
            return None
        # this message is late, and so are all later ones on the connection
        if connection.last_arrival_ns > self._world.now_ns + MS:
            return None
        return connection, connection.disturbed

    def reset(self, link: Link) -> bool:
        """Break the connection. Returns whether there was one."""
        connection = self._connections.pop(link, None)
        if connection is None:
            return False
        connection.closed = True
        connection.late = self._rng.random() < 0.5
        source = self._endpoints[link[0]]
        if link[0] in self.copies:
            self.copies[link[0]].disconnected(link[1])
        if source.is_up():
            source.disconnected(link[1])
            self.dial(link, int((0.02 + 0.1 * self._rng.random()) * SECOND))
        return True

    # Connections

    def dial_all(self, name: str) -> None:
        """A process has started on ``name``: dial all others from there."""
        self._eager_until_ns[name] = self._world.now_ns + int(EAGER_SECONDS * SECOND)
        for link in self.links:
            if link[0] == name:
                self._pauses.pop(link, None)
                self.dial(link, int((0.5 + 2.5 * self._rng.random()) * MS))

    def add_copy(self, name: str, copy: Endpoint) -> None:
        """From now on ``copy`` also sends and receives under ``name``."""
        self.copies[name] = copy
        for link in list(self._connections):
            if link[0] == name:
                copy.connected(link[1])

    def dial(self, link: Link, delay_ns: int) -> None:
        """Try to connect after ``delay_ns``, and again until it succeeds."""
        if link not in self._dialling:
            self._dial_after(delay_ns, link)

    def _dial_after(self, delay_ns: int, link: Link) -> None:
        """Try to connect after ``delay_ns``, instead of at the time that was set before."""
        self._attempts += 1
        self._dialling[link] = self._attempts, self._world.now_ns + delay_ns
        self._world.after(delay_ns, self._dial, link, self._attempts)

    def _dial(self, link: Link, attempt: int) -> None:
        if self._dialling.get(link, (0, 0))[0] != attempt:
            return
        del self._dialling[link]
        source, target = self._endpoints[link[0]], self._endpoints[link[1]]
        if not source.is_up() or link in self._connections:
            return
        if self._cuts[link]:
            self.affected["cut", link] += 1
        if self._cuts[link] or not target.is_up() or self._refused_until_ns.get(link, 0) > self._world.now_ns:
            pause = self._pauses.get(link, DIAL_PAUSE_MIN_SECONDS)
            self.dial(link, int(pause * (0.5 + self._rng.random()) * SECOND))
            if self._world.now_ns >= self._eager_until_ns.get(link[0], 0):
                self._pauses[link] = min(2 * pause, DIAL_PAUSE_MAX_SECONDS)
            return
        self._pauses.pop(link, None)
        self._connections[link] = _SimulatedConnection()
        back, soon_ns = (link[1], link[0]), int(DIAL_PAUSE_MIN_SECONDS * SECOND)
        if self._dialling.get(back, (0, 0))[1] > self._world.now_ns + soon_ns:  # a peer that connects is dialled soon
            self._dial_after(soon_ns, back)
        source.connected(link[1])
        if link[0] in self.copies:
            self.copies[link[0]].connected(link[1])

    def drop_all(self, name: str, power_loss: bool) -> None:
        """The process on ``name`` has ended: drop its connections in both directions. ``power_loss``: the receivers do
        not learn that the connections have ended. They refuse a new process as long as they consider the old connection alive
        (row H8 of the transport)."""
        for link in self.links:
            if name in link:
                connection = self._connections.get(link)
                if power_loss and link[0] == name and connection is not None:
                    self._refused_until_ns[link] = connection.last_arrival_ns + int(LIVE_SECONDS * SECOND)
                self.reset(link)

    # Messages

    def send(self, source: str, target: str, message: object) -> None:
        """Pass a message to the connection from ``source`` to ``target``. If there is no connection, the message is lost."""
        link = (source, target)
        connection = self._connections.get(link)
        if connection is None:
            return
        self.sent += 1
        self._count(source, target, type(message).__name__)
        repeats = self.repeats.get(link)
        if repeats is not None and self._rng.random() < repeats:
            self.affected["repeats", link] += 1
            longest = self._rng.choice((2 * MS, 200 * MS, 3 * SECOND))
            self._repeat_after(int(self._rng.random() * longest), link, message)
        if link in self.lost_votes and isinstance(message, Vote):
            self.affected["votes", link] += 1
            return
        loss = self.loss.get(link)
        if loss is not None and self._rng.random() < loss:
            self.affected["loss", link] += 1
            return
        self._schedule(link, connection, message)

    def _count(self, source: str, target: str, kind: str) -> None:
        now_ns = self._world.now_ns
        if now_ns >= self._counted_until_ns:
            self._counted_until_ns = now_ns - now_ns % FLOOD_NS + FLOOD_NS
            self._counts.clear()
        self._counts[source, target, kind] += 1
        if self._counts[source, target, kind] > FLOOD_MESSAGES and self.flood is None:
            self.flood = f"{source} sent {FLOOD_MESSAGES + 1} messages {kind} to {target} within {FLOOD_NS // MS} ms"

    def _schedule(self, link: Link, connection: _SimulatedConnection, message: object) -> None:
        delay = int((0.05 + 0.4 * self._rng.random()) * MS)
        slow_ms = self.slow_ms.get(link)
        if slow_ms is not None:
            self.affected["slow", link] += 1
            delay += int(self._rng.random() * slow_ms * MS)
        if link in self.late_ms:
            self.affected["late", link] += 1
            delay += self.late_ms[link] * MS
        arrival = max(connection.last_arrival_ns, self._world.now_ns + delay)
        connection.last_arrival_ns = arrival
        self._world.after(arrival - self._world.now_ns, self._arrive, link, connection, message)

    def _arrive(self, link: Link, connection: _SimulatedConnection, message: object) -> None:
        if connection.closed:
            if connection.late:
                self._repeat_after(int(self._rng.random() * 2 * SECOND), link, message)
            return
        if self._cuts[link]:
            self.affected["cut", link] += 1
            if link in self._holds:
                connection.held.append(message)
            return
        self._deliver(link, message)
        remembered = self._remembered[link]
        kind = type(message).__name__
        if kind not in remembered:
            remembered[kind] = deque(maxlen=_REMEMBERED)
        remembered[kind].append(message)
        if link in self.echoed_votes and isinstance(message, VoteReply):
            for _ in range(_VOTES_ECHOED):
                self._repeat_after(int(self._rng.random() * 200 * MS), link, self._rng.choice(remembered[kind]))
        share = self.echoes.get(link)
        if share is not None and self._rng.random() < share:
            self.affected["echoes", link] += 1
            for _ in range(self._rng.randint(1, 3)):
                old = self._rng.choice(remembered[self._rng.choice(sorted(remembered))])
                self._repeat_after(int(self._rng.random() * 20 * MS), link, old)

    def _repeat_after(self, delay_ns: int, link: Link, message: object) -> None:
        if self.may_delay_election(link[1], message):
            self.last_repeat_ns = max(self.last_repeat_ns, self._world.now_ns + delay_ns)
        self._world.after(delay_ns, self._arrive_again, link, message)

    def _arrive_again(self, link: Link, message: object) -> None:
        if not self._cuts[link]:
            self._deliver(link, message)

    def _deliver(self, link: Link, message: object) -> None:
        target = self._endpoints[link[1]]
        if link[1] in self.copies:
            self.copies[link[1]].receive(link[0], message)
        if not target.is_up():
            return
        if self._world.trace.readable:
            self._world.note(f"{link[0]} > {link[1]}  {self._describe(message)}")
        target.receive(link[0], message)
