"""Who may vote: incarnations, and how blank nodes form a cluster.

The members are fixed by configuration; what changes is the disk behind a name. A data directory draws an incarnation number
when it is created. The configuration says which incarnation of each node votes, or that its place is vacant. Votes and
acknowledgements of any other incarnation are not counted, so a node that lost its disk, and with it its memory of votes and
acknowledgements, is a learner until it is promoted.

A promotion takes two entries, a vacancy and a join, one after the other (``Configuration``). Each is in force on a node from
the moment it is in that node's log, as in single-server membership changes (dissertation, 4.1): quorums of before and after
either change share a voter that is the same incarnation in both. A join that replaced one incarnation by another at once would
not have this property.

Peers exchange greetings (who is there) and then introductions (which process speaks, what its disk must hold; standing.py).
Nothing but greetings and introductions is sent to a peer, or taken from it, before both have accepted each other's process.

Founding: a blank node that hears that every configured peer is blank promises, durably, to found with exactly these
incarnations, and founds once every one of them has promised the same. A node promises once, so two different sets of founders
that share a data directory cannot both be complete, and a cluster is never founded beside one that exists: members answer that
they are members, and the blank node joins those as a learner. If a disk is lost while founding, nothing was committed yet and
nodes wait for the operator to remove the data directories; the status says so.
"""

import json
from typing import TYPE_CHECKING
from zlib import crc32

from replicated_namesrv.raft.errors import CorruptionError, IdentityError
from replicated_namesrv.raft.interfaces import Storage
from replicated_namesrv.raft.log import Entry
from replicated_namesrv.raft.messages import PROTOCOL, SINCE, Greeting, Introduction
from replicated_namesrv.raft.payloads import JOIN, pack_join, unpack_join
from replicated_namesrv.raft.snapshots import VERSION as SNAPSHOT_VERSION
from replicated_namesrv.raft.standing import Memory, Records, Standing

if TYPE_CHECKING:
    from replicated_namesrv.raft.node import RaftNode

BLANK, PROMISED, MEMBER = 0, 1, 2
STATES = ("blank", "promised", "member")
IDENTITY = "identity"
VERSION = 1
INTRODUCTION_HEARTBEATS = 4
"""Heartbeats between two introductions to a peer. What a peer remembers of a disk is at most this old."""
ANSWERS_MAX = 8
"""Introductions answered at once between two of those. Two processes that accept each other need three at most; where two speak
under one name each is news after the other, and without a bound every answer would lead to more."""
_STANDINGS = frozenset(Standing)
VACANT = 0
"""Stands for an incarnation where a place in the configuration is vacant."""


class Identity:
    """The file that says whose data directory this is. Written aside, synced and renamed on every change.

    Raises IdentityError if it belongs to something else, CorruptionError if it is damaged or missing beside other files.
    """

    def __init__(self, storage: Storage, node: str, cluster: str, members: list[str], incarnation: int) -> None:
        """``incarnation``: the number to take if the directory is blank."""
        self._storage = storage
        self.node, self.cluster, self.members = node, cluster, members
        self.incarnation, self.boot, self.state = incarnation, 0, BLANK
        self.founders: dict[str, int] = {}
        if IDENTITY in storage.list_names():
            self._load(storage.read(IDENTITY))
        elif others := [n for n in storage.list_names() if n.startswith(("log-", "snapshot-"))]:
            raise CorruptionError(
                f"there is {others[0]} but no file {IDENTITY}: this is no complete data directory. "
                "Restore the file, or move the directory away so that the node returns as a learner"
            )
        self.boot += 1
        self.save()

    def _load(self, data: bytes) -> None:
        try:
            text, checksum = data.rsplit(b"\n", 2)[:2]
            if int(checksum) != crc32(text):
                raise ValueError("the checksum does not match")
            known = json.loads(text)
            if known["version"] != VERSION:
                raise ValueError(f"format version {known['version']}, this program reads {VERSION}")
            self.incarnation, self.boot, self.state = int(known["incarnation"]), int(known["boot"]), int(known["state"])
            self.founders = {str(name): int(number) for name, number in known["founders"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptionError(
                f"file {IDENTITY}: {error}. Move the data directory away: the node returns as a learner"
            ) from None
        for name in ("cluster", "node", "members"):
            if known[name] != getattr(self, name):
                raise IdentityError(
                    f"the data directory belongs to {name} {known[name]!r} but the configuration says {getattr(self, name)!r}; "
                    "correct the configuration, or give the node an empty data directory"
                )

    def renew(self, incarnation: int) -> None:
        """From now on, durably, this directory is another incarnation: it votes again once it has been promoted."""
        self.incarnation = incarnation
        self.save()

    def save(self) -> None:
        text = json.dumps(
            {
                "version": VERSION,
                "cluster": self.cluster,
                "node": self.node,
                "members": self.members,
                "incarnation": self.incarnation,
                "boot": self.boot,
                "state": self.state,
                "founders": self.founders,
            },
            sort_keys=True,
        ).encode()
        aside = IDENTITY + ".writing"
        self._storage.remove(aside)
        self._storage.append(aside, text + b"\n%d\n" % crc32(text))
        self._storage.sync([aside], False)
        self._storage.rename(aside, IDENTITY)
        self._storage.sync([], True)


class Configuration:
    """Which incarnation votes for each node: as applied, and as of the last entry of the log.

    ``applied`` belongs to the replicated state. ``latest`` decides what is counted; changes in the log that are not applied
    are in force by the first row that matches:

    | change  | place before | in force     | why                                                                            |
    |---------|--------------|--------------|--------------------------------------------------------------------------------|
    | vacancy | any          | in the log   | a quorum without the place is a quorum with it, too                            |
    | join    | vacant       | in the log   | a quorum with the place shares a voter with each quorum without it             |
    | join    | occupied     | when applied | versions before protocol 1 write it: quorums of before and after may be apart  |
    """

    def __init__(self, voters: dict[str, int], in_log: bool) -> None:
        """``in_log`` False: all changes are in force when they are applied (``Defences.changes_in_log``)."""
        self.applied, self._in_log = dict(voters), in_log
        self._waiting: list[tuple[int, str, int]] = []
        """(index, node, incarnation) of changes in the log that are not applied, ascending."""
        self.latest = dict(voters)

    @property
    def last_change(self) -> int:
        """Index of the newest change in the log that is not applied, 0 if there is none."""
        return self._waiting[-1][0] if self._waiting else 0

    def replace(self, voters: dict[str, int]) -> None:
        """The founders are known, or a snapshot was restored: nothing is in the log behind it."""
        self.applied = dict(voters)
        self._waiting.clear()
        self._update()

    def added(self, index: int, payload: bytes) -> None:
        """An entry was appended to the log."""
        if payload[:2] == JOIN:
            self._waiting.append((index, *unpack_join(payload)))
            self._update()

    def cut(self, index: int) -> None:
        """The log was cut: ``index`` is the first entry gone."""
        if self._waiting:
            self._waiting = [change for change in self._waiting if change[0] < index]
            self._update()

    def apply(self, index: int, node: str, incarnation: int) -> None:
        """The change at ``index`` was applied."""
        self.applied[node] = incarnation
        self._waiting = [change for change in self._waiting if change[0] > index]
        self._update()

    def _update(self) -> None:
        latest = dict(self.applied)
        if self._in_log:
            for _, node, incarnation in self._waiting:
                if incarnation == VACANT or latest.get(node) == VACANT:
                    latest[node] = incarnation
        self.latest = latest

    def next_change(self, node: str, incarnation: int) -> bytes | None:
        """The entry that brings ``incarnation`` nearer to voting for ``node``, None if it votes already."""
        place = self.latest.get(node)
        if place == incarnation:
            return None
        return pack_join(node, incarnation if place == VACANT or not self._in_log else VACANT)


class Membership:
    """Founders, configuration, and which process of each peer is listened to."""

    def __init__(self, node: "RaftNode", identity: Identity) -> None:
        self._node = node
        self.identity = identity
        founders = dict(identity.founders) if identity.state == MEMBER else {}
        self.configuration = Configuration(founders, node.defences.changes_in_log)
        self.process = node.environment.rng.getrandbits(63) | 1
        """Nonce of this process."""
        self.opened = Memory(0, 0, 0)
        """What was on the disk when it was opened; its ``acknowledged`` is the last entry. Given by the node."""
        self.known: dict[str, int] = {}
        """Peer -> incarnation whose process we have accepted."""
        self.own_standings: dict[str, Standing] = {}
        """What each peer thinks of this process, once it has introduced itself."""
        self._judged: dict[str, tuple[int, int, Standing]] = {}
        """(incarnation, process, its standing) of each peer's process that introduced itself last."""
        self.problem: str | None = None
        """Why this node cannot take part, or a peer, for the status."""
        self._greetings: dict[str, Greeting] = {}
        """The last of each peer since this process started."""
        self._introductions: dict[str, Introduction] = {}
        """The last accepted one of each peer."""
        self._heard: dict[str, tuple[int, int]] = {}
        """Peer -> (process, sequence) of its newest introduction: what we echo."""
        self._records = {peer: Records() for peer in node.peers}
        self._sequence = 0
        self._newcomers: dict[str, tuple[int, float]] = {}
        """Peer -> (incarnation other than the known one, when it was first heard)."""
        self._foreign: set[str] = set()
        """Peers that belong to another cluster of the same name."""
        self._greet_at: dict[str, float] = {}
        self._introduce_at: dict[str, float] = {}
        self._answers: dict[str, tuple[float, int]] = {}
        """Peer -> (since when, how many) introductions were answered at once."""
        self._contest_seconds = node.config.election_max_ms / 1000
        self._introduction_seconds = INTRODUCTION_HEARTBEATS * node.heartbeat_seconds

    @property
    def formed(self) -> bool:
        return self.identity.state == MEMBER

    @property
    def voters(self) -> dict[str, int]:
        """Node -> incarnation, as applied."""
        return self.configuration.applied

    @property
    def is_voter(self) -> bool:
        identity = self.identity
        votes = self.configuration.latest.get(identity.node) == identity.incarnation
        return votes or (not self._node.defences.incarnations and self.formed)

    def counts(self, peer: str, incarnation: int) -> bool:
        """Whether a vote or acknowledgement of this incarnation of ``peer`` counts."""
        if not self._node.defences.incarnations:
            return True
        return incarnation != VACANT and self.configuration.latest.get(peer) == incarnation

    def counts_now(self, peer: str) -> bool:
        """Whether the incarnation of ``peer`` that is speaking counts."""
        return self.counts(peer, self.known.get(peer, VACANT))

    def command_version(self, member: str) -> int:
        """The newest version of commands that ``member`` is known to apply; 0 if it has not greeted since our start."""
        if member == self.identity.node:
            return self._node.config.command_version
        greeting = self._greetings.get(member)
        return greeting.command_version if greeting else 0

    def protocol(self, peer: str) -> int:
        """The newest protocol that ``peer`` speaks; 0 if it has not greeted since our start."""
        greeting = self._greetings.get(peer)
        return greeting.protocol if greeting else 0

    def snapshot_version(self, peer: str) -> int:
        """The newest format of snapshot files that ``peer`` reads; 1, the first, if it does not tell."""
        introduction = self._introductions.get(peer)
        return introduction.snapshot_version if introduction else 1

    def digest_version(self, peer: str) -> int:
        """The version of the digests of ``peer``; 1, the first, if it does not tell."""
        introduction = self._introductions.get(peer)
        return introduction.digest_version if introduction else 1

    def standing(self, peer: str, incarnation: int) -> Standing:
        """What we think of the process that introduced itself last as this incarnation of ``peer``."""
        judged = self._judged.get(peer)
        return judged[2] if judged is not None and judged[0] == incarnation else Standing.PENDING

    def standing_now(self, peer: str) -> Standing:
        """The same for the incarnation that introduced itself last; peers of protocol 0 are accepted when they greet."""
        if self.protocol(peer) == 0:
            return Standing.ACCEPTED if peer in self.known else Standing.PENDING
        return self._judged[peer][2] if peer in self._judged else Standing.PENDING

    def may_send(self, peer: str, kind: type) -> bool:
        """Whether ``peer`` has accepted this process and understands messages of ``kind``."""
        protocol = self.protocol(peer)
        return protocol == 0 or (self._accepted_by(peer) and SINCE.get(kind, 0) <= protocol)

    def _accepted_by(self, peer: str) -> bool:
        return self.own_standings.get(peer) is Standing.ACCEPTED

    def start(self) -> None:
        """A group of one founds itself."""
        if self.identity.state != MEMBER and not self._node.peers:
            self._become(MEMBER, {self.identity.node: self.identity.incarnation})

    @property
    def _promises_needed(self) -> int:
        return len(self._node.members) if self._node.defences.blank_formation else self._node.quorum

    def _become(self, state: int, founders: dict[str, int]) -> None:
        self.identity.state, self.identity.founders = state, founders
        self.identity.save()
        if state == MEMBER:
            self.configuration.replace(founders)
        for peer in self._node.peers:
            self.greet(peer)
        self._node.on_membership()

    # Greetings: who is there

    def greet(self, peer: str) -> None:
        identity = self.identity
        founders = tuple(sorted(identity.founders.items()))
        self._greet_at[peer] = self._node.environment.now() + self._node.heartbeat_seconds
        greeting = self._greetings.get(peer)
        echo, versions = greeting.source if greeting else 0, PROTOCOL << 16 | self._node.config.command_version
        self._node.environment.send(peer, Greeting(identity.incarnation, identity.state, founders, echo, versions))
        self._introduce(peer)

    def correct(self, peer: str) -> None:
        """``peer`` speaks to another incarnation than this one: what we had said to it got lost. At most once a heartbeat."""
        if self._greet_at.get(peer, 0.0) <= self._node.environment.now():
            self.greet(peer)

    def _misses(self, peer: str) -> bool:
        """Whether we and ``peer`` have yet to accept each other."""
        return not self.formed or peer not in self.known or (self.protocol(peer) > 0 and not self._accepted_by(peer))

    def tick(self, now: float) -> None:
        """Greet peers that are not accepted yet, and everybody while the cluster is being founded; repeat introductions."""
        for peer in self._node.connected_peers():
            if self._misses(peer) and self._greet_at.get(peer, 0.0) <= now:
                self.greet(peer)
            elif self.protocol(peer) > 0 and self._introduce_at.get(peer, 0.0) <= now:
                self._introduce(peer)

    def next_wakeup(self) -> float:
        times = [self._greet_at.get(p, 0.0) for p in self._node.connected_peers() if self._misses(p)]
        times += [self._introduce_at.get(p, 0.0) for p in self._node.connected_peers() if self.protocol(p) > 0]
        return min(times, default=float("inf"))

    def on_greeting(self, peer: str, greeting: Greeting) -> None:
        before = self._greetings.get(peer)
        self._greetings[peer] = greeting
        if greeting.protocol == 0:
            self._introductions.pop(peer, None)  # it may have been of a newer version before
            if self.known.get(peer) != greeting.source:
                self._accept(peer, greeting.source)
        if greeting.echo != self.identity.incarnation:
            self.greet(peer)
        elif greeting.protocol > 0 and (before is None or before.source != greeting.source):
            self._introduce(peer)
        if self.identity.state == BLANK:
            self._consider_promise()
        if self.identity.state == PROMISED:
            self._consider_founding()
        elif self.identity.state == MEMBER and greeting.state == MEMBER:
            self._check_founders(peer, greeting)

    def _accept(self, peer: str, incarnation: int) -> None:
        self.known[peer] = incarnation
        self._node.on_new_incarnation(peer)

    # Introductions: which process speaks

    def _introduce(self, peer: str) -> None:
        """Tell ``peer`` which process this is, once its greeting has said who it is and that it understands."""
        greeting = self._greetings.get(peer)
        if greeting is None or greeting.protocol == 0:
            return
        node = self._node
        self._introduce_at[peer] = node.environment.now() + self._introduction_seconds
        self._sequence += 1
        node.environment.send(
            peer,
            Introduction(
                self.identity.incarnation,
                greeting.source,
                self.process,
                self.identity.boot,
                self._sequence,
                *self._heard.get(peer, (0, 0)),
                *self.opened,
                node.log.durable_number,
                SNAPSHOT_VERSION,
                node.config.digest_version,
                self.standing(peer, greeting.source),
                *self.memory(peer, greeting.source),
            ),
        )

    def on_introduction(self, peer: str, said: Introduction) -> None:
        """``peer`` says which process speaks for it, and what it thinks of ours."""
        node = self._node
        if peer in self._foreign:
            return
        record = self._records[peer].of(said.source)
        record.note(node.replication.memory_of(peer, said.source))
        now, defences = node.environment.now(), node.defences
        standing = record.judge(
            said, self.process, self._sequence + 1, now, self._contest_seconds,
            regressions=defences.regressions, single_process=defences.single_process,
        )  # fmt: skip
        if standing is None:
            return
        self._heard[peer] = said.process, said.sequence
        other = self.known.get(peer)
        if standing is Standing.ACCEPTED:
            standing = self._beside_the_known(peer, said.source, now)
        before = self._judged.get(peer)
        self._judged[peer] = said.source, said.process, standing
        if standing is Standing.ACCEPTED:
            self._introductions[peer] = said
            if other != said.source:
                self._accept(peer, said.source)
        elif standing is not Standing.PENDING and other == said.source:
            del self.known[peer]
            node.replication.forget(peer)
        changed = self._judged[peer] != before
        if before is None or (before[0], before[2]) != (said.source, standing):
            self._report(peer, said, standing)
        if changed or said.standing == Standing.PENDING:
            self._answer(peer, now)
        self._on_own_standing(peer, said)

    def _answer(self, peer: str, now: float) -> None:
        """``peer`` waits for an introduction: send it at once, or with the next that is due if there were too many."""
        since, count = self._answers.get(peer, (now, 0))
        if now - since >= self._introduction_seconds:
            since, count = now, 0
        self._answers[peer] = since, count + 1
        if count < ANSWERS_MAX:
            self._introduce(peer)

    def _beside_the_known(self, peer: str, incarnation: int, now: float) -> Standing:
        """The standing of a process that is sound by itself, if we know another incarnation of ``peer``.

        A disk that was replaced, or a node that rejoined, speaks as the new one alone: it waits until the old one has been silent
        for the contest time. If the old one speaks on, two directories are in use.
        """
        known = self.known.get(peer, incarnation)
        if known == incarnation or not self._node.defences.single_process:
            self._newcomers.pop(peer, None)
            return Standing.ACCEPTED
        if self._newcomers.get(peer, (0, 0.0))[0] != incarnation:
            self._newcomers[peer] = incarnation, now
        heard_at = self._records[peer].of(known).heard_at
        if now - heard_at >= self._contest_seconds:
            return Standing.ACCEPTED
        return Standing.CONTESTED if heard_at > self._newcomers[peer][1] else Standing.PENDING

    def _report(self, peer: str, said: Introduction, standing: Standing) -> None:
        """Keep a note for the operator of a standing that is not as it should be."""
        if standing in (Standing.PENDING, Standing.ACCEPTED):
            return
        self._node.counters[f"peers_{standing.name.lower()}"] += 1
        if standing is Standing.CONTESTED:
            self._node.note(
                f"two processes speak for {peer} (one of boot {said.boot}): its data directory was copied, or two directories "
                "are in use; it does not count until one of them is stopped"
            )
        else:
            memory = self.memory(peer, said.source)
            self._node.note(
                f"the disk of {peer} went back: it opened with {said.opened_number} records, term {said.opened_term}, entry "
                f"{said.opened_index}; it had {memory.number} records, and entry {memory.acknowledged} in term {memory.term}. "
                "It rejoins without a vote"
            )

    def _on_own_standing(self, peer: str, said: Introduction) -> None:
        """What ``peer`` thinks of a process of this node; only what it says of this very process counts."""
        about_us = said.echo_process == self.process and said.destination == self.identity.incarnation
        standing = Standing(said.standing) if about_us and said.standing in _STANDINGS else Standing.PENDING
        before, self.own_standings[peer] = self.own_standings.get(peer), standing
        if standing is Standing.CONTESTED and standing is not before:
            self._node.counters["contested"] += 1
            self._node.note(
                f"{peer} hears another process under the name {self.identity.node}: a copy of this data directory, or another "
                "one, is in use; stop one of the two processes"
            )
        elif standing is Standing.REGRESSED:
            self._node.rejoin(
                f"{peer} remembers {said.remembered_number} records, and entry {said.remembered_index} in term "
                f"{said.remembered_term}, of this data directory; it was opened with {self.opened.number} records, term "
                f"{self.opened.term}, entry {self.opened.acknowledged}"
            )

    def memory(self, peer: str, incarnation: int) -> Memory:
        """What we know to be on the disk of this incarnation of ``peer``."""
        return self._records[peer].of(incarnation).memory

    def remember(self, peer: str, incarnation: int, memory: Memory) -> None:
        """This is on the disk of ``peer``."""
        self._records[peer].of(incarnation).note(memory)

    def rejoined(self) -> None:
        """This node goes on as another incarnation: every peer has to accept it anew."""
        self.own_standings.clear()
        for peer in self._node.peers:
            self.greet(peer)

    # Founding

    def _consider_promise(self) -> None:
        for greeting in self._greetings.values():
            if greeting.state == MEMBER:
                self._become(MEMBER, dict(greeting.founders))
                return
        if 1 + len(self._greetings) < self._promises_needed:
            return
        founders = dict.fromkeys(self._node.members, 0) | {peer: greeting.source for peer, greeting in self._greetings.items()}
        founders[self.identity.node] = self.identity.incarnation
        for peer, greeting in self._greetings.items():
            if greeting.state == PROMISED and dict(greeting.founders) != founders:
                self.problem = f"{peer} has promised to found the cluster with another data directory: {REMEDY}"
                return
        self._become(PROMISED, dict(sorted(founders.items())))

    def _consider_founding(self) -> None:
        ours = self.identity.founders
        promised = 1
        for peer, greeting in self._greetings.items():
            if dict(greeting.founders) == ours and greeting.state != BLANK:
                if greeting.state == MEMBER:
                    promised = self._promises_needed
                    break
                if greeting.source == ours[peer]:
                    promised += 1
            elif greeting.state == MEMBER and greeting.source == ours[peer]:
                # It founded without our promise, so our founders can never be complete.
                self._become(MEMBER, dict(greeting.founders))
                return
            elif greeting.source != ours[peer]:
                self.problem = f"{peer} has lost its data directory while the cluster was being founded: {REMEDY}"
        if promised >= self._promises_needed:
            self.problem = None
            self._become(MEMBER, ours)

    def _check_founders(self, peer: str, greeting: Greeting) -> None:
        if dict(greeting.founders) != self.identity.founders and self._node.defences.blank_formation:
            self.problem = f"{peer} belongs to another cluster of the same name: remove the data directory of one of them"
            self.known.pop(peer, None)
            self._foreign.add(peer)
        else:
            self._foreign.discard(peer)

    # Configuration

    def opened_log(self, opened: Memory, entries: list[Entry]) -> None:
        """The log was opened: ``entries`` are not applied yet."""
        self.opened = opened
        for payload, index, _ in entries:
            self.configuration.added(index, payload)

    def restored(self, voters: dict[str, int]) -> None:
        """A snapshot says who votes."""
        self.configuration.replace(voters)


REMEDY = "remove the data directories of all nodes; nothing had been stored yet"
