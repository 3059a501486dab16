"""Who may vote: incarnations, and how blank nodes form a cluster.

The members are fixed by configuration; what changes is the disk behind a name. A data directory draws an incarnation number
when it is created. ``voters`` says which incarnation of each node votes: the founders' first, and from a join entry on the
one it names. Votes and acknowledgements of any other incarnation are not counted, so a node that lost its disk, and with it
its memory of votes and acknowledgements, is a learner until a majority without it has committed its join.

Founding: a blank node that hears that every configured peer is blank promises, durably, to found with exactly these
incarnations, and founds once every one of them has promised the same. A node promises once, so two different sets of founders
that share a data directory cannot both be complete, and a cluster is never founded beside one that exists: members answer that
they are members, and the blank node joins those as a learner. If a disk is lost while founding, nothing was committed yet and
nodes wait for the operator to remove the data directories; the status says so.
"""

import json
from typing import TYPE_CHECKING
from zlib import crc32

from replicated_namesrv.raft.interfaces import CorruptionError, IdentityError, Storage
from replicated_namesrv.raft.messages import Greeting

if TYPE_CHECKING:
    from replicated_namesrv.raft.node import RaftNode

BLANK, PROMISED, MEMBER = 0, 1, 2
STATES = ("blank", "promised", "member")
IDENTITY = "identity"
VERSION = 1


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


class Membership:
    """Founders, voters, and which incarnation of each peer is speaking."""

    def __init__(self, node: "RaftNode", identity: Identity) -> None:
        self._node = node
        self.identity = identity
        self.voters: dict[str, int] = dict(identity.founders) if identity.state == MEMBER else {}
        self.known: dict[str, int] = {}
        """Peer -> incarnation that greeted last."""
        self._greetings: dict[str, Greeting] = {}
        """The last of each peer since this process started."""
        self._greet_at: dict[str, float] = {}
        self.problem: str | None = None
        """Why this node cannot take part, for the status."""

    @property
    def formed(self) -> bool:
        return self.identity.state == MEMBER

    @property
    def is_voter(self) -> bool:
        identity = self.identity
        return self.voters.get(identity.node) == identity.incarnation or (not self._node.defences.incarnations and self.formed)

    def counts(self, peer: str, incarnation: int) -> bool:
        """Whether a vote or acknowledgement of this incarnation of ``peer`` counts."""
        return self.voters.get(peer) == incarnation or not self._node.defences.incarnations

    def counts_now(self, peer: str) -> bool:
        """Whether the incarnation of ``peer`` that is speaking counts."""
        return self.counts(peer, self.known.get(peer, 0))

    def command_version(self, member: str) -> int:
        """The newest version of commands that ``member`` is known to apply; 0 if it has not greeted since our start."""
        if member == self.identity.node:
            return self._node.config.command_version
        greeting = self._greetings.get(member)
        return greeting.command_version if greeting else 0

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
            self.voters = dict(founders)
        for peer in self._node.peers:
            self.greet(peer)
        self._node.on_membership()

    def greet(self, peer: str) -> None:
        identity = self.identity
        founders = tuple(sorted(identity.founders.items()))
        self._greet_at[peer] = self._node.environment.now() + self._node.heartbeat_seconds
        known, version = self.known.get(peer, 0), self._node.config.command_version
        self._node.environment.send(peer, Greeting(identity.incarnation, identity.state, founders, known, version))

    def correct(self, peer: str) -> None:
        """``peer`` speaks to another incarnation than this one: what it was told got lost. At most once a heartbeat."""
        if self._greet_at.get(peer, 0.0) <= self._node.environment.now():
            self.greet(peer)

    def tick(self, now: float) -> None:
        """Greet whom we do not know yet, and everybody while the cluster is being founded."""
        for peer in self._node.connected_peers():
            if (not self.formed or peer not in self.known) and self._greet_at.get(peer, 0.0) <= now:
                self.greet(peer)

    def next_wakeup(self) -> float:
        waiting = [self._greet_at.get(p, 0.0) for p in self._node.connected_peers() if not self.formed or p not in self.known]
        return min(waiting, default=float("inf"))

    def on_greeting(self, peer: str, greeting: Greeting) -> None:
        self._greetings[peer] = greeting
        if self.known.get(peer) != greeting.source:
            self.known[peer] = greeting.source
            self._node.on_new_incarnation(peer)
        if greeting.echo != self.identity.incarnation:
            self.greet(peer)
        if self.identity.state == BLANK:
            self._consider_promise()
        if self.identity.state == PROMISED:
            self._consider_founding()
        elif self.identity.state == MEMBER and greeting.state == MEMBER:
            self._check_founders(peer, greeting)

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

    def restored(self, voters: dict[str, int]) -> None:
        """A snapshot says who votes."""
        self.voters = dict(voters)

    def joined(self, peer: str, incarnation: int) -> None:
        """A join entry was applied."""
        self.voters[peer] = incarnation


REMEDY = "remove the data directories of all nodes; nothing had been stored yet"
