"""The group of a node: the peers with which it exchanges messages now. It follows the members in the log.

The peers of a node are the other members and the members that were removed lately. The configured nodes are peers, too, while the
node is not a member or has not found a leader that is one. Another node can send its list of members (a hint). The members that
this node does not know yet become peers. Votes and acknowledgements are counted by the configuration alone.
"""

from collections.abc import Callable, Collection, Set

from replicated_namesrv.raft.configuration import Change, Configuration
from replicated_namesrv.raft.followers import Followers
from replicated_namesrv.raft.identity import Identity
from replicated_namesrv.raft.interfaces import Observer
from replicated_namesrv.raft.leadership import Leadership
from replicated_namesrv.raft.members import VACANT, Members, RaftMember, places, unpack_members
from replicated_namesrv.raft.membership import Membership
from replicated_namesrv.raft.node_context import NodeContext
from replicated_namesrv.raft.pysyncobj_core import Core
from replicated_namesrv.raft.raft_messages import MemberHint
from replicated_namesrv.raft.replication import Replication
from replicated_namesrv.raft.standing import PeerMemories


class Group:
    """The peers of one node."""

    def __init__(
        self,
        context: NodeContext,
        core: Core,
        configuration: Configuration,
        identity: Identity,
        membership: Membership,
        memories: PeerMemories,
        followers: Followers,
        replication: Replication,
        leadership: Leadership,
        observer: Observer,
        connected: Callable[[str], None],
    ) -> None:
        """``connected``: called with a new peer to which this node has a connection already."""
        self._context, self._core, self._configuration, self._identity = context, core, configuration, identity
        self._membership, self._memories, self._followers = membership, memories, followers
        self._replication, self._observer, self._connected = replication, observer, connected
        self._leadership = leadership
        self.links: set[str] = set()
        """Nodes to which this node has a connection. Not all of them have to be members."""
        self._leaving: dict[str, float] = {}
        """Members that were removed, each with the time until which it is kept as a peer, so that it learns of its removal."""
        self._is_due = False
        """Whether peers have to be added or dropped at the next tick."""
        self.is_searching = True
        """True until this process has found a leader that is a member according to its log or to a hint. Until then the
        configured nodes are peers, too. If the log is behind and the hint was lost, only the configuration may name the
        leader."""
        self.hint: tuple[int, Members] = (0, {})
        """(index, members) of the newest hint. It is dropped when this node has applied the index."""
        self._hint_source = VACANT
        """The incarnation of the node that sent this hint."""
        self.version = 0
        """Number of changes so far: of the members in the log, and of the peers."""
        self.has_lost_place = False
        """Whether the log or a snapshot gave the place of this incarnation away: to another incarnation, or to none yet."""
        self._was_named = False
        """Whether the members have named this incarnation since this process started."""
        self._is_listed = False
        """Whether this node was a member when the members were last applied, or in a newer snapshot that was received."""

    def start(self) -> None:
        """The log and the snapshot have been read."""
        self._configuration.on_change = self.configuration_changed
        self.configuration_changed()
        self._regroup()
        self.formed()

    def formed(self) -> None:
        """The founders are known, or the log was read."""
        self._is_listed = self._context.node_id in self._configuration.applied

    def configuration_changed(self) -> None:
        """The configuration has changed: PySyncObj counts by it at once, and peers are added and dropped in the next tick.

        A MEMBERS entry is in force once it is appended. So the identity file notes it before the entry can be acknowledged.
        Otherwise a release that does not know these entries could start on this directory, and count by another
        configuration."""
        if self._configuration.has_members_entry:
            self._identity.note_members(self._identity.removed_at)
        self._context.set_voters(places(self._configuration.members) or frozenset(self._context.configured))
        self._replication.places_changed(self._core.set_voters(self._context.voters))
        self._is_due = True
        member = self._configuration.members.get(self._context.node_id)
        if member is None:
            return
        if member.incarnation == self._identity.incarnation:
            self._was_named = True
        elif self._was_named and (member.incarnation != VACANT or member.votes):  # VACANT and no vote: a learner added again
            self.has_lost_place = True

    def rejoined(self) -> None:
        """This node continues as an incarnation that never had a place."""
        self.has_lost_place = self._was_named = False

    def tick(self, now: float) -> None:
        """Add and drop peers if it is time."""
        if self._leaving:
            for peer in [peer for peer, until in self._leaving.items() if until <= now]:
                del self._leaving[peer]
                self._is_due = True
        if self.hint[0] and not self._hint_counts:
            self._is_due = True
        if self._is_due:
            self._regroup()

    def _regroup(self) -> None:
        self._is_due = False
        self.version += 1
        configuration, context = self._configuration, self._context
        if self.is_searching:
            self.is_searching = not self._has_leader
        names = {*configuration.members, *configuration.applied, *self._leaving}
        if self.is_searching or context.node_id not in configuration.applied:
            names.update(context.configured)
        if self._hint_counts:
            names.update(self.hint[1])
        else:
            self.hint = (0, {})
        names.discard(context.node_id)
        before = set(context.peers)
        if names == before:
            return
        context.peers = sorted(names)
        for peer in sorted(before - names):
            self._membership.drop(peer)
            self._followers.drop(peer)
            self._core.disconnected(peer)
        for peer in sorted(names - before):
            self._memories.add(peer)
            self._followers.add(peer)
            if peer in self.links:
                self._connected(peer)

    def contact(self, names: Collection[str]) -> None:
        """These nodes were named after the start, in reply to a question of the driver. They count as configured."""
        self._context.configured = sorted({*self._context.configured, *names})
        self._is_due = True

    def on_hint(self, message: MemberHint) -> None:
        """Another node knows these members. Raises MalformedError."""
        members = unpack_members(message.members)
        if message.log_index > max(self._core.applied_index, self.hint[0]) and not self._membership.is_foreign(message.source):
            self.hint, self._hint_source = (message.log_index, members), message.source
            self._is_due = True

    @property
    def _hint_counts(self) -> bool:
        """Whether the hint is of this cluster, as far as known, and newer than the entries that this node has applied."""
        return self.hint[0] > self._core.applied_index and not self._membership.is_foreign(self._hint_source)

    def member(self, peer: str) -> RaftMember | None:
        """``peer`` as a member, from the newest source: the hint or the log. None: neither knows it. An entry after the index of
        the hint may have changed the address. Without the new address this node may never apply the entry."""
        configuration, (log_index, hinted) = self._configuration, self.hint
        sources = [hinted, configuration.members, configuration.applied_members]
        if configuration.last_change > log_index:
            sources = [*sources[1:], hinted]
        return next((members[peer] for members in sources if peer in members), None)

    def leader_known(self) -> None:
        """This process knows another leader than before."""
        self._is_due |= self.is_searching

    @property
    def _has_leader(self) -> bool:
        """Whether this node knows a leader that is a member by the log or the hint. Such a leader stays a peer and sends its
        log."""
        leader = self._leadership.leader_of(self._core.term)
        if not self._context.config.defences.lasting_leader:
            return leader is not None
        return leader == self._context.node_id or leader in self._configuration.members or leader in self.hint[1]

    @property
    def leaving(self) -> Set[str]:
        """Members that were removed lately. A node that applies its log after a start may not know their addresses, and needs
        none."""
        return self._leaving.keys()

    @property
    def accepts_strangers(self) -> bool:
        """Whether nodes that are not peers may connect. They may be the present members: all members that this node knows may
        have been replaced while it was down or cut off. From such nodes only hints are accepted."""
        silent = self._context.now() - self._leadership.last_contact_at
        without_leader = not self._core.is_leader and silent > self._context.config.election_max_ms / 1000
        return self.is_searching or without_leader

    def apply(self, log_index: int, change: Change) -> None:
        """The change at ``log_index`` was applied."""
        before = self._configuration.applied_members
        self._configuration.apply(log_index, change)
        if isinstance(change, dict):
            self._note_removal(log_index, self._configuration.applied)
            after, until = self._configuration.applied, self._context.now() + self._context.config.leaving_ms / 1000
            for peer in before.keys() - after.keys():
                self._leaving[peer] = until
            for peer in after.keys() & self._leaving.keys():
                del self._leaving[peer]
            self._leaving.pop(self._context.node_id, None)
            self._is_due = True
            for peer in sorted(self.links & set(self._context.peers)):
                self._membership.hint(peer, log_index)  # the peer may lag, and not know that the present leader is a member
            self._observer.members_changed()

    def restored(self, log_index: int, last_origin: int | None) -> None:
        """The members were replaced by those of a snapshot. ``last_origin``: the incarnation of this node whose proposals were
        applied last, None if there is none."""
        own, member = self._identity.incarnation, self._configuration.members.get(self._context.node_id)
        is_named = member is not None and member.incarnation == own
        if self._was_named and not is_named and last_origin not in (None, own):
            # The entries that the snapshot replaces gave the place to another incarnation and then took it away. The sessions no
            # longer contain the proposals of this process.
            self.has_lost_place = True
        if not self._configuration.is_static:
            self._note_removal(log_index, self._configuration.applied)
            self._is_due = True
            self._observer.members_changed()

    def receiving(self, log_index: int, members: Members | None) -> None:
        """A received snapshot gets its final file name next, and replaces the members when it is installed. If the node stops
        before that, it starts from this snapshot, which does not show whether the node was a member before."""
        if members is not None:
            self._note_removal(log_index, members)

    def _note_removal(self, log_index: int, members: Collection[str]) -> None:
        """Durably note whether a MEMBERS entry up to ``log_index`` removed this node."""
        identity = self._identity
        was_listed, self._is_listed = self._is_listed, self._context.node_id in members
        if self._is_listed:
            identity.note_members(0)
            return
        removed_at = log_index if was_listed else identity.removed_at
        if removed_at and removed_at != identity.removed_at:
            self._context.note(f"entry {removed_at} removed this node from the cluster; its disk is unchanged")
        identity.note_members(removed_at)

    @property
    def removed(self) -> str | None:
        """Why this node does not serve, if it was removed from the cluster."""
        if not self._identity.removed_at:
            return None
        return (
            f"this node was removed from the cluster by entry {self._identity.removed_at}; its disk is unchanged. To take part "
            "again, add it as a member"
        )
