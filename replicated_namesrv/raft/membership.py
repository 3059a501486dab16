"""Membership: which incarnations may vote, and how blank nodes form a cluster.

The members are in the log (``members.py``), or fixed by the settings. A data directory draws an incarnation number when it is
created. ``Configuration`` says which incarnation of each node votes, or that its place is vacant. Votes and acknowledgements of
any other incarnation are not counted, so a node that lost its disk, and with it its memory of votes and acknowledgements, is a
learner until it is promoted.

Peers exchange greetings (the node and its data directory) and then introductions (the process, and what its disk must contain;
standing.py). Before both sides have accepted each other's process, only greetings, hints of members and introductions are sent to
or accepted from a peer. A process that has just started sends no votes and no acknowledgements to any peer until all peers have
accepted it, or a time limit has passed (``is_silent``). The reason: one peer may remember more of this process's disk than the
other peers do.
"""

from collections import deque
from collections.abc import Callable

from replicated_namesrv.raft.configuration import Configuration
from replicated_namesrv.raft.entry_log import Log
from replicated_namesrv.raft.followers import Followers
from replicated_namesrv.raft.formation import judge_member, next_step
from replicated_namesrv.raft.identity import BLANK, MEMBER, PROMISED, Identity
from replicated_namesrv.raft.interfaces import FOREVER, NEVER
from replicated_namesrv.raft.members import VACANT, pack_members
from replicated_namesrv.raft.message_bounds import NUMBER_MAX
from replicated_namesrv.raft.node_context import NodeContext
from replicated_namesrv.raft.raft_messages import (
    PROTOCOL,
    SINCE,
    AppendReply,
    ApplicationData,
    Greeting,
    Introduction,
    MemberHint,
    Message,
    ReadAck,
    SnapshotAck,
    Vote,
    VoteReply,
)
from replicated_namesrv.raft.snapshots import VERSION as SNAPSHOT_VERSION
from replicated_namesrv.raft.standing import NOTHING, PROCESSES_MAX, Memory, PeerMemories, Standing

INTRODUCTION_HEARTBEATS = 4
"""Number of heartbeats between two introductions to a peer."""
EARLY_HEARTBEATS = LATE_HEARTBEATS = 0.5
"""An introduction may be this much early, to be sent in one packet with a heartbeat or its answer. If there is none, it is sent
alone when it is this late. So a peer's memory of a disk is at most INTRODUCTION_HEARTBEATS + LATE_HEARTBEATS old."""
ANSWERS_MAX = 8
"""Maximum number of introductions that are answered at once in the time between two regular introductions. Two processes that
accept each other need at most three. If two processes use one name, each answer changes what the other one knows; without a
maximum they would answer each other for ever."""
CONTEST_TIMES = 2
"""A report that contests this process counts for this many times the contest time. Connected peers repeat such a report before
that time ends."""
CONTACT_SECONDS = 2.2
"""Maximum time for which a process makes no promises after its start, because a peer with contact has not accepted it yet. It is
longer than an attempt of the peer to connect, and longer than ``transport.LIVE_SECONDS``."""
NUMBERS_REMEMBERED = 1_024
"""Number of introductions to a peer whose numbers are remembered until the peer echoes one of them or a later one. If there are
more, the oldest are forgotten. While the peer does not answer, they cover at least the last 50 s (default heartbeat)."""
FOREIGN_REMEMBERED = 64
"""Number of data directories of other clusters that are remembered, as many as a cluster has members."""
REJOIN_STEP = 1 << 40
"""A process that rejoins skips this many numbers. It may have been reset, and its peers may have received greater ones. If the
image is some hours old, they exceed this step, too; then it continues above the number that a peer echoes (``_was_reset``)."""
_STEP_FACTOR, _STEP_BITS = 0x9E37_79B9_7F4A_7C15, 24
"""Introductions are at most 2^24 numbers apart, so numbers up to ``NUMBER_MAX`` suffice for decades."""
_STANDINGS = frozenset(Standing)
_NONE_RECEIVED = {0: 0}
_PROMISES = frozenset((Vote, VoteReply, AppendReply, SnapshotAck, ReadAck))
"""Messages that other nodes count as a vote, an acknowledgement or a renewal of the lease. Every AppendReply is one of them: even
the answer to a conflicting append renews the lease."""


class Membership:
    """Founders, configuration, and the accepted process of each peer."""

    def __init__(
        self,
        context: NodeContext,
        identity: Identity,
        configuration: Configuration,
        log: Log,
        followers: Followers,
        memories: PeerMemories,
        formed_changed: Callable[[], None],
        regressed: Callable[[str], None],
        term: Callable[[], int],
        applied_index: Callable[[], int],
        joins: bool = False,
    ) -> None:
        """``formed_changed``: called when founding has progressed. ``regressed``: called with the reason when a peer remembers
        more of this disk than is on it. ``term``: the current term. ``joins``: a blank node joins a cluster and never founds
        one."""
        self._applied_index, self._joins = applied_index, joins
        self._context, self._config, self._defences = context, context.config, context.defences
        self._environment, self._now = context.environment, context.now
        self.identity, self.configuration = identity, configuration
        self._log, self._followers, self._memories = log, followers, memories
        self._formed_changed, self._regressed, self._term = formed_changed, regressed, term
        self.process = self._context.rng.getrandbits(63) | 1
        """Nonce of this process, never 0."""
        self._is_new = self._defences.introduced_first
        """Whether this process makes no promises yet, because a peer may remember more of its disk."""
        self._began_at: float | None = None
        """Time of the first tick. Peers can connect after this tick. None: there was no tick yet."""
        self._reported = NOTHING
        """What peers remember of this disk, according to their introductions to this process. If peers are authenticated, their
        introductions to earlier processes of this disk count, too."""
        self.opened = Memory(0, 0, 0)
        """The disk's content when it was opened. The field ``acknowledged`` is the index of the last entry on the disk."""
        self.known: dict[str, int] = {}
        """For each peer: the incarnation whose process this node has accepted."""
        self.own_standings: dict[str, Standing] = {}
        """The standing of this process at each peer that has introduced itself to it."""
        self._contested_until: dict[str, float] = {}
        """For each peer: the time until which its last report that contests this process counts."""
        self._judged: dict[str, tuple[int, int, Standing]] = {}
        """For each peer: incarnation, process and standing of the process that introduced itself last."""
        self._confirmed_from: dict[str, int] = {}
        """For each peer: the number of the first introduction over the present connection to it. The peer accepts this process
        again by an introduction that echoes this number or a later one."""
        self.problem: str | None = None
        """Why this node, or a peer, cannot take part, for the status; None: there is no problem."""
        self._greetings: dict[str, Greeting] = {}
        """The last greeting of each peer since this process started."""
        self._greeted_at: dict[str, float] = {}
        """When each peer greeted last."""
        self._introductions: dict[str, Introduction] = {}
        """The last accepted introduction of each peer."""
        self.is_settled = False
        """Whether the last introduction changed nothing: both processes had accepted each other before it, and do after it."""
        self._received: dict[str, dict[int, int]] = {}
        """For each peer: process -> greatest sequence number of its introductions. The process that introduced itself last is the
        last key. This node echoes its number. The number of a process never decreases, even if late copies of other processes, or
        of an earlier incarnation of the same process, arrive in between: a lower echo would look like a reset (S7)."""
        self._sequence = 0
        self._sent: dict[str, deque[int]] = {}
        """For each peer: the numbers of the introductions sent to it, beginning with the last one that it has echoed."""
        self._foreign: set[str] = set()
        """Peers that belong to another cluster of the same name."""
        self._foreign_incarnations: deque[int] = deque(maxlen=FOREIGN_REMEMBERED)
        """Incarnations of nodes of other clusters. A peer that was added because of a hint from such a node is dropped, and must
        not be added again."""
        self._greet_at: dict[str, float] = {}
        self._introduce_at: dict[str, float] = {}
        self._due_at: float | None = None
        """When the next greeting or introduction is due. None: find it again, because something that determines it changed."""
        self._answers: dict[str, tuple[float, int]] = {}
        """For each peer: the start of the present interval, and the number of introductions that were answered at once in it."""
        self._contest_seconds = self._config.election_max_ms / 1000
        self._introduction_seconds = INTRODUCTION_HEARTBEATS * self._context.heartbeat_seconds
        self._early_seconds = EARLY_HEARTBEATS * self._context.heartbeat_seconds
        self._late_seconds = LATE_HEARTBEATS * self._context.heartbeat_seconds

    @property
    def incarnation(self) -> int:
        return self.identity.incarnation

    @property
    def formed(self) -> bool:
        return self.identity.state == MEMBER

    @property
    def voters(self) -> dict[str, int]:
        """Voter -> incarnation, as applied."""
        return self.configuration.applied_voters

    @property
    def is_voter(self) -> bool:
        identity = self.identity
        votes = self.configuration.latest.get(identity.node) == identity.incarnation
        return votes or (not self._defences.incarnations and self.formed and identity.node in self.configuration.latest)

    @property
    def may_propose(self) -> bool:
        """Whether proposals of this node are applied: the members name its incarnation."""
        return self.is_voter or self.configuration.applied.get(self.identity.node) == self.identity.incarnation

    def counts(self, peer: str, incarnation: int) -> bool:
        if not self._defences.incarnations:
            return peer in self.configuration.latest
        return incarnation != VACANT and self.configuration.latest.get(peer) == incarnation

    def counts_now(self, peer: str) -> bool:
        return self.counts(peer, self.known.get(peer, VACANT))

    def has_place(self, peer: str) -> bool:
        """Whether ``peer`` has a place and is not known to run as another incarnation than that of the place."""
        place = self.configuration.latest.get(peer, VACANT)
        return place != VACANT and self.known.get(peer, place) == place

    def command_version(self, member: str) -> int:
        """The newest version of commands that ``member`` is known to apply; 0 if it has not greeted since our start."""
        if member == self.identity.node:
            return self._config.command_version
        greeting = self._greetings.get(member)
        return greeting.command_version if greeting else 0

    def protocol(self, peer: str) -> int:
        """The newest protocol that ``peer`` speaks; 0 if it has not greeted since our start."""
        return self.greeted_protocol(peer) or 0

    def greeted_protocol(self, peer: str) -> int | None:
        """The newest protocol that ``peer`` speaks; None if it has not greeted since our start."""
        greeting = self._greetings.get(peer)
        return greeting.protocol if greeting else None

    def snapshot_version(self, peer: str) -> int:
        """The newest format of snapshot files that ``peer`` reads; 1, the first format, if the peer reports none."""
        introduction = self._introductions.get(peer)
        return introduction.snapshot_version if introduction else 1

    def digest_version(self, peer: str) -> int:
        """The version of the digests of ``peer``; 1, the first version, if the peer reports none."""
        introduction = self._introductions.get(peer)
        return introduction.digest_version if introduction else 1

    def boot_of(self, peer: str, incarnation: int) -> int | None:
        """The boot number (how often its data directory was opened) of the process of this incarnation that was accepted last.
        None for a peer of protocol 0."""
        return self._memories.record(peer, incarnation).boot if self.protocol(peer) else None

    def standing(self, peer: str, incarnation: int) -> Standing:
        """The standing of the process that last introduced itself as this incarnation of ``peer``."""
        judged = self._judged.get(peer)
        return judged[2] if judged is not None and judged[0] == incarnation else Standing.PENDING

    def standing_now(self, peer: str) -> Standing:
        """The standing of the incarnation that introduced itself last. Peers of protocol 0 are accepted when they greet."""
        if self.protocol(peer) == 0:
            return Standing.ACCEPTED if peer in self.known else Standing.PENDING
        return self._judged[peer][2] if peer in self._judged else Standing.PENDING

    @property
    def is_contested(self) -> bool:
        """Whether a peer has contact with two processes of this node. Then neither process may vote or acknowledge, not even to a
        peer that knows only one of the two. This process may lack data that such a peer remembers."""
        now = self._now()
        return any(now < until for until in self._contested_until.values())

    @property
    def is_silent(self) -> bool:
        """Whether this process still makes no promises after its start, because a peer may remember more of its disk than the
        disk has. A peer that has accepted this process remembers no more than the disk has. The process waits until all peers
        have accepted it. The limit of this wait depends on the peers that have not accepted it yet:

        - It has contact with none of them: ``election_min_ms``, because these peers are probably down.
        - It has contact with one of them: CONTACT_SECONDS. This peer may have to connect first, and over TCP it refuses this
          process while the connection of an earlier process still counts as live (H8 in ``transport.py``)."""
        if self._is_new:
            waiting = [peer for peer in self._context.peers if not self._accepted_by(peer)]
            if not waiting:
                self._is_new = False
            elif self._began_at is not None:
                age = self._now() - self._began_at
                limit = CONTACT_SECONDS if any(map(self._may_introduce, waiting)) else self._config.election_min_ms / 1000
                self._is_new = age < limit
        return self._is_new

    def _may_introduce(self, peer: str) -> bool:
        """Whether ``peer`` has contact with this node and may still introduce itself. Peers of protocol 0 never do. A peer that
        has not accepted this process greets it in each heartbeat."""
        if peer in self._foreign or self.greeted_protocol(peer) == 0:
            return False
        progress = self._followers.progress.get(peer)
        is_greeting = self._now() - self._greeted_at.get(peer, NEVER) < self._config.election_min_ms / 1000
        return is_greeting or (progress is not None and progress.connected)

    def may_send(self, peer: str, kind: type[Message]) -> bool:
        if self._contested_until and self.is_contested:
            return False
        if self._is_new and kind in _PROMISES and self.is_silent:
            return False
        is_accepted, since = self.own_standings.get(peer) is Standing.ACCEPTED, SINCE.get(kind, 0)
        if is_accepted and not since:  # the usual case: every protocol has this kind
            return True
        protocol = self.protocol(peer)
        return since <= protocol and (protocol == 0 or is_accepted)

    def _accepted_by(self, peer: str) -> bool:
        return self.own_standings.get(peer) is Standing.ACCEPTED

    def start(self) -> None:
        """A group of one founds itself."""
        if self.identity.state != MEMBER and not self._context.peers and not self._joins:
            self._become(MEMBER, {self.identity.node: self.identity.incarnation})

    @property
    def _promises_needed(self) -> int:
        return len(self._context.configured) if self._defences.blank_formation else self._context.quorum

    def _become(self, state: int, founders: dict[str, int]) -> None:
        self.identity.state, self.identity.founders = state, founders
        self.identity.save()
        if state == MEMBER:
            self.configuration.replace(founders)
        for peer in self._context.peers:
            self.greet(peer)
        self._formed_changed()

    # Greetings: the node and its data directory

    def greet(self, peer: str) -> None:
        identity = self.identity
        founders = tuple(sorted(identity.founders.items()))
        self._greet_at[peer], self._due_at = self._now() + self._context.heartbeat_seconds, None
        greeting = self._greetings.get(peer)
        echo, versions = greeting.source if greeting else 0, PROTOCOL << 16 | self._config.command_version
        self._environment.send(peer, Greeting(identity.incarnation, identity.state, founders, echo, versions))
        self.hint(peer, self._applied_index())
        self._introduce(peer)

    def hint(self, peer: str, log_index: int) -> None:
        """Tell ``peer`` the members as of ``log_index``, if they are in the log. A peer that has not greeted may not know this
        node, and then it never greets. So it gets the hint, too, though its version may be an old one."""
        protocol = self.greeted_protocol(peer)
        if not self.configuration.is_static and (protocol is None or protocol >= SINCE[MemberHint]):
            members, known = pack_members(self.configuration.applied_members), self.known.get(peer, VACANT)
            self._environment.send(peer, MemberHint(self.identity.incarnation, known, log_index, members))

    def correct(self, peer: str) -> None:
        """``peer`` does not know this incarnation, because a greeting was lost. Greet it, at most once per heartbeat."""
        if self._greet_at.get(peer, 0.0) <= self._now():
            self.greet(peer)

    def connected(self, peer: str) -> None:
        """This node has a new connection to ``peer``. The machine of either node may have been reset, memory included, so both
        sides have to accept each other again before other messages are sent."""
        if self._defences.confirmed_connections:
            self._confirmed_from[peer] = self._sequence + 1
            self.own_standings.pop(peer, None)
            judged = self._judged.get(peer)
            if judged is not None and judged[2] is Standing.ACCEPTED:  # the peer answers a judgement of PENDING at once
                self._judged[peer] = *judged[:2], Standing.PENDING
        self.greet(peer)

    def disconnected(self) -> None:
        """A peer disconnected, so a greeting to it may no longer be due: find the next time again."""
        self._due_at = None

    def _needs_greeting(self, peer: str) -> bool:
        """Whether we and ``peer`` have not accepted each other yet, or the cluster is being founded."""
        return not self.formed or peer not in self.known or (not self._accepted_by(peer) and self.protocol(peer) > 0)

    def tick(self, now: float) -> None:
        """Greet peers that are not accepted yet, and all peers while the cluster is being founded. Repeat introductions."""
        if self._began_at is None:
            self._began_at = now
        if now < self.next_wakeup():
            return
        for peer in self._followers.connected_peers:
            if self._needs_greeting(peer) and self._greet_at.get(peer, 0.0) <= now:
                self.greet(peer)
            elif self._introduce_at.get(peer, NEVER) + self._late_seconds <= now and self.protocol(peer) > 0:
                self._introduce(peer)
        self._due_at = None

    def accompany(self, now: float) -> None:
        """A heartbeat, or an answer to an append, is being sent: send the introductions that are due soon in the same packets."""
        if now + self._early_seconds + self._late_seconds < self.next_wakeup():
            return
        for peer in self._followers.connected_peers:
            if self._introduce_at.get(peer, NEVER) - self._early_seconds <= now:
                self._introduce(peer)

    def next_wakeup(self) -> float:
        if self._due_at is None:
            self._due_at = self._find_due_at()
        return self._due_at

    def _find_due_at(self) -> float:
        due = FOREVER
        for peer in self._followers.connected_peers:
            greet_at, introduce_at = self._greet_at.get(peer, 0.0), self._introduce_at.get(peer, NEVER) + self._late_seconds
            if greet_at < due and self._needs_greeting(peer):
                due = greet_at
            if introduce_at < due and self.protocol(peer) > 0:
                due = introduce_at
        return due

    def on_greeting(self, peer: str, greeting: Greeting) -> None:
        before = self._greetings.get(peer)
        self._greetings[peer], self._greeted_at[peer], self._due_at = greeting, self._now(), None
        if greeting.protocol == 0:
            self._introductions.pop(peer, None)  # these facts may be from a newer version that the peer ran before
            if self.known.get(peer) != greeting.source:
                self._accept(peer, greeting.source)
        if greeting.echo != self.identity.incarnation:
            if greeting == before:  # thousands may arrive at once, after a link has held them
                self.correct(peer)
            else:
                self.greet(peer)
        elif greeting.protocol > 0 and (before is None or before.source != greeting.source):
            self._introduce(peer)
        if self.identity.state == BLANK:
            self._form()
        if self.identity.state == PROMISED:
            self._form()
        elif self.identity.state == MEMBER and greeting.state == MEMBER:
            self._judge_member(peer, greeting)

    def _accept(self, peer: str, incarnation: int) -> None:
        self.known[peer] = incarnation
        self._followers.new_incarnation(peer, incarnation)

    # Introductions: the process that uses a name

    def _introduce(self, peer: str) -> None:
        """Introduce this process to ``peer`` after its greeting, if it understands introductions."""
        greeting = self._greetings.get(peer)
        if greeting is None or greeting.protocol == 0:
            return
        self._introduce_at[peer], self._due_at = self._now() + self._introduction_seconds, None
        received = next(reversed(self._received.get(peer, _NONE_RECEIVED).items()))
        # The step depends on what the peer sent last. If this process is reset, it receives other introductions than before, so
        # it does not repeat the numbers that it has sent before.
        self._sequence += 1 + ((received[0] ^ received[1]) * _STEP_FACTOR >> (64 - _STEP_BITS)) % (1 << _STEP_BITS)
        self._sent.setdefault(peer, deque(maxlen=NUMBERS_REMEMBERED)).append(self._sequence)
        self._environment.send(
            peer,
            Introduction(
                self.identity.incarnation,
                greeting.source,
                self.process,
                self.identity.boot,
                self._sequence,
                *received,
                *self.opened,
                self._log.durable_number,
                SNAPSHOT_VERSION,
                self._config.digest_version,
                self.standing(peer, greeting.source),
                *self._memories.memory(peer, greeting.source),
            ),
        )

    def on_introduction(self, peer: str, said: Introduction) -> None:
        """``peer`` reports its process, and its judgement of ours (``Standing``)."""
        self.is_settled = False
        if peer in self._foreign or peer not in self._greetings:
            return  # without its greeting, ``peer`` would count as one of protocol 0; it is greeted, and introduces itself again
        self._due_at = None
        record = self._memories.record(peer, said.source)
        record.note(self._followers.memory_of(peer, said.source))
        now, defences = self._now(), self._defences
        standing = record.judge(
            said, self.process, self._sequence + 1, now, self._contest_seconds,
            regressions=defences.regressions, single_process=defences.single_process,
        )  # fmt: skip  # items grouped by line
        if standing is None:
            return
        self._note_received(peer, said)
        other = self.known.get(peer)
        if standing is Standing.ACCEPTED:
            standing = self._memories.judge_beside(
                peer, said.source, other or 0, now, self._contest_seconds, single_process=defences.single_process
            )
        before = self._judged.get(peer)
        self._judged[peer] = said.source, said.process, standing
        if standing is Standing.ACCEPTED:
            self._introductions[peer] = said
            if other != said.source:
                self._accept(peer, said.source)
        elif standing is not Standing.PENDING and other == said.source:
            del self.known[peer]
            self._followers.forget(peer)
        if standing is not record.standing:
            record.standing = standing
            self._report(peer, said, standing)
        is_same = self._judged[peer] == before and said.standing != Standing.PENDING
        if not is_same:
            self._answer(peer, now)
        own_before = self.own_standings.get(peer)
        is_fine = self._on_own_standing(peer, said)
        is_known = is_same and other == said.source
        self.is_settled = is_known and is_fine and standing is own_before is self.own_standings.get(peer) is Standing.ACCEPTED

    def _note_received(self, peer: str, said: Introduction) -> None:
        received = self._received.setdefault(peer, {})
        received[said.process] = max(received.pop(said.process, 0), said.sequence)
        if len(received) > PROCESSES_MAX:
            del received[next(iter(received))]

    def _answer(self, peer: str, now: float) -> None:
        """``peer`` waits for an introduction: send it at once, or with the next regular one if there were too many."""
        since, count = self._answers.get(peer, (now, 0))
        if now - since >= self._introduction_seconds:
            since, count = now, 0
        self._answers[peer] = since, count + 1
        if count < ANSWERS_MAX:
            self._introduce(peer)

    def _report(self, peer: str, said: Introduction, standing: Standing) -> None:
        """Add a note for the operator if a standing is not the normal one."""
        if standing in (Standing.PENDING, Standing.ACCEPTED):
            return
        self._context.counters[f"peers_{standing.name.lower()}"] += 1
        if standing is Standing.CONTESTED and self.known.get(peer, said.source) != said.source:
            self._context.note(
                f"two processes use the name {peer}, with two data directories: the directory accepted so far counts; messages "
                f"of the other one (boot {said.boot}) are ignored; stop one of the two processes"
            )
        elif standing is Standing.CONTESTED:
            self._context.note(
                f"two processes use the name {peer} (one of boot {said.boot}): its data directory was copied, or two directories "
                "are in use; it does not count until one of them is stopped"
            )
        elif self._memories.record(peer, said.source).current == said.process:
            self._context.note(
                f"{peer} went back to an earlier state while it ran, memory included: its virtual machine was reset. It rejoins "
                "without a vote"
            )
        else:
            memory = self._memories.memory(peer, said.source)
            self._context.note(
                f"the disk of {peer} was rolled back: it opened with {said.opened_number} records, term {said.opened_term}, "
                f"entry {said.opened_index}; it had {memory.number} records, and entry {memory.acknowledged} in term "
                f"{memory.term}. It rejoins without a vote"
            )

    def _on_own_standing(self, peer: str, said: Introduction) -> bool:
        """Process the standing that ``peer`` gives to a process of this node. Only a report about this very process counts.
        Returns False if the disk or the machine of this process was reset."""
        about_us = said.echo_process == self.process and said.destination == self.identity.incarnation
        standing = Standing(said.standing) if about_us and said.standing in _STANDINGS else Standing.PENDING
        if standing is Standing.ACCEPTED and said.echo_sequence < self._confirmed_from.get(peer, 0):
            standing = Standing.PENDING  # sent before the peer received an introduction over the present connection
        before, self.own_standings[peer] = self.own_standings.get(peer), standing
        if standing is Standing.CONTESTED and self._defences.contested_silence:
            self._contested_until[peer] = self._now() + CONTEST_TIMES * self._contest_seconds
        elif about_us and standing is Standing.ACCEPTED:  # PENDING withdraws nothing: a new connection begins with it
            self._contested_until.pop(peer, None)
        if standing is Standing.CONTESTED and standing is not before:
            self._context.counters["contested"] += 1
            self._context.note(
                f"{peer} has contact with another process under the name {self.identity.node}: a copy of this data directory, "
                "or another one, is in use; stop one of the two processes"
            )
        if about_us and self._was_reset(peer, said.echo_sequence):
            self._regressed(f"{peer} has received an introduction that this process did not send: its machine was reset")
            return False
        if about_us or (self._defences.earlier_reports and self._config.authenticated_peers):
            self._reported = self._reported.merged(Memory(said.remembered_number, said.remembered_term, said.remembered_index))
        if standing is Standing.REGRESSED or (about_us and self._lacks_data()):
            self._regressed(
                f"peers remember {self._reported.number} records, and entry {self._reported.acknowledged} in term "
                f"{self._reported.term}, of this data directory; it was opened with {self.opened.number} records, term "
                f"{self.opened.term}, entry {self.opened.acknowledged}, and has {self._log.durable_number} records now"
            )
            return False
        return True

    def _was_reset(self, peer: str, echoed: int) -> bool:
        """Whether ``peer`` echoes a number that this process has not sent to it. Then this node's machine was reset, memory
        included."""
        sent = self._sent.get(peer)
        if not sent or echoed <= sent[0] or not self._defences.regressions:
            return False
        if echoed not in sent:
            # The peer never echoes a lower number, so this process, as its next incarnation, has to continue above this one.
            self._sequence = max(self._sequence, min(echoed, NUMBER_MAX // 2))
            return True
        while sent[0] < echoed:
            sent.popleft()
        return False

    def _lacks_data(self) -> bool:
        """Whether peers remember more of this disk than is on it. Peers judge this, too (REGRESSED), but their judgement may not
        arrive: a peer that contests this process, or has no contact with it yet, may fail first. A machine may also be reset
        together with the memory of this process. The compared values never decrease within a process."""
        if not (self._defences.regressions and self._defences.remembered_data):
            return False
        return self._reported.missing_in(Memory(self._log.durable_number, self._term(), self._log.last_index))

    def drop(self, peer: str) -> None:
        """``peer`` is not a member any more."""
        for known in (
            self.known, self.own_standings, self._judged, self._greetings, self._greeted_at, self._introductions,
            self._received, self._greet_at, self._introduce_at, self._answers, self._contested_until, self._confirmed_from,
            self._sent,
        ):  # fmt: skip  # items grouped by line
            known.pop(peer, None)
        self._foreign.discard(peer)
        self._due_at = None

    def rejoined(self) -> None:
        """This node continues as another incarnation, so every peer has to accept it again."""
        self.own_standings.clear()
        self._reported = NOTHING
        self._sent.clear()
        self._sequence += REJOIN_STEP
        for peer in self._context.peers:
            self.greet(peer)

    # Formation

    def _form(self) -> None:
        """Take the next step towards membership (``formation.py``)."""
        step = next_step(self.identity, self._context.configured, self._greetings, self._promises_needed, self._joins)
        self.problem = step.problem
        if step.state is not None and step.founders is not None:
            self._become(step.state, step.founders)

    def _judge_member(self, peer: str, greeting: Greeting) -> None:
        problem = judge_member(self.identity, peer, greeting).problem
        if problem is None or not self._defences.blank_formation:
            self._foreign.discard(peer)
        else:
            self.problem = problem
            self.known.pop(peer, None)
            self._foreign.add(peer)
            if greeting.source not in self._foreign_incarnations:
                self._foreign_incarnations.append(greeting.source)

    def is_foreign(self, incarnation: int) -> bool:
        """Whether this data directory is known to belong to another cluster of the same name."""
        return incarnation in self._foreign_incarnations

    # For operators

    def status_of(self, peer: str) -> dict[str, object]:
        """Facts about ``peer``, JSON-able."""
        return {
            "protocol": self.protocol(peer),
            "standing": self.standing_now(peer).name.lower(),
            "accepts_us": self.may_send(peer, ApplicationData),
        }
