"""RaftNode: one member of the cluster, without IO.

Events go in (messages, ticks, completed syncs), messages and sync requests come out through ``Environment``; PySyncObj, behind
``Core``, makes Raft's decisions. The same code runs in production and in the simulator. A broken invariant, a failed write or
sync and a damaged file stop the node for good: nothing is acknowledged after that.

The parts are membership (incarnations, formation), elections, replication, reads, proposals, snapshot taking and receiving, and
digests. The module of each part says why the part is safe. This module connects them, holds answers back until they are durable,
and says when the next tick is due.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import ParamSpec, assert_never

from replicated_namesrv.raft.appending import Appending
from replicated_namesrv.raft.compaction import Compaction
from replicated_namesrv.raft.configuration import Configuration, change_in
from replicated_namesrv.raft.digests import Digests
from replicated_namesrv.raft.elections import Elections
from replicated_namesrv.raft.entry_log import Entry, Log
from replicated_namesrv.raft.followers import Followers
from replicated_namesrv.raft.group import Group
from replicated_namesrv.raft.heartbeat_confirmations import HeartbeatConfirmations
from replicated_namesrv.raft.identity import MEMBER, Identity
from replicated_namesrv.raft.interfaces import (
    FOREVER,
    Environment,
    Observer,
    Outcome,
    ReadOutcome,
    Rejected,
    StateMachine,
    Storage,
    Work,
)
from replicated_namesrv.raft.leadership import Leadership
from replicated_namesrv.raft.member_changes import Address, MemberChange, MemberChanges
from replicated_namesrv.raft.members import MEMBERS_ENTRY, rows_of
from replicated_namesrv.raft.membership import Membership
from replicated_namesrv.raft.message_bounds import NUMBER_MAX, TermError, check_numbers
from replicated_namesrv.raft.node_context import NodeContext
from replicated_namesrv.raft.node_views import NodeViews
from replicated_namesrv.raft.outbox import Outbox
from replicated_namesrv.raft.payloads import JOIN, PROPOSALS
from replicated_namesrv.raft.promotion import Promotion
from replicated_namesrv.raft.proposals import Proposals
from replicated_namesrv.raft.pysyncobj_core import Core
from replicated_namesrv.raft.raft_config import RaftConfig
from replicated_namesrv.raft.raft_errors import CorruptionError, MalformedError, RolledBackError
from replicated_namesrv.raft.raft_messages import (
    Append,
    AppendReply,
    ApplicationData,
    Confirmation,
    ConfirmationRequest,
    DigestReport,
    Forward,
    ForwardReply,
    Greeting,
    HigherTerm,
    Introduction,
    MemberHint,
    Message,
    PeerMessage,
    PreVote,
    PreVoteReply,
    ReadAck,
    ReadProbe,
    ReadReply,
    ReadRequest,
    SnapshotAck,
    SnapshotChunk,
    TimeoutNow,
    Vote,
    VoteReply,
)
from replicated_namesrv.raft.read_index import ReadIndex
from replicated_namesrv.raft.replication import Replication
from replicated_namesrv.raft.sessions import Origin, Sessions
from replicated_namesrv.raft.snapshot_receiving import SnapshotReceiving
from replicated_namesrv.raft.snapshot_sending import SnapshotSending
from replicated_namesrv.raft.snapshot_taking import SnapshotTaking
from replicated_namesrv.raft.snapshots import SnapshotStore, is_disk_full
from replicated_namesrv.raft.stall import Stall
from replicated_namesrv.raft.standing import Memory, PeerMemories
from replicated_namesrv.raft.syncs import Syncs
from replicated_namesrv.raft.transfer_leadership import LeadershipTransfer

P = ParamSpec("P")


class RaftNode(NodeViews):
    """Opens ``storage``, recovering from any crash. Its entry points are then called one at a time.

    Raises CorruptionError, IdentityError or OSError if the directory cannot be used.
    """

    def __init__(
        self,
        node_id: str,
        members: Sequence[str] | Mapping[str, Address],
        cluster_id: str,
        environment: Environment,
        storage: Storage,
        state_machine: StateMachine,
        config: RaftConfig | None = None,
        observer: Observer | None = None,
        joins: bool = False,
    ) -> None:
        """``members``: all configured nodes, this one included, perhaps with their addresses. One member makes a cluster
        of one. ``joins``: a blank node joins a cluster, and ``members`` are only the nodes that it contacts first."""
        self.config = config or RaftConfig()
        self.defences = self.config.defences
        self.context = NodeContext(node_id, list(members), cluster_id, environment, self.config)
        self._addresses: Mapping[str, Address] = members if isinstance(members, Mapping) else {}
        self._joins = joins
        self.node_id = node_id
        self.cluster_id, self.counters, self.notes = cluster_id, self.context.counters, self.context.notes
        self.environment, self.storage, self.state_machine = environment, storage, state_machine
        self.observer = observer or Observer()
        self._observes_entries = type(self.observer).applied is not Observer.applied
        self._digest_interval = self.config.digest_interval_entries
        self.failed: BaseException | None = None
        self.stopped = False
        self._role = "follower"
        self._forgets = False
        """Whether the log is cut because this node gave up its incarnation."""
        self._notified_leader: str | None = None
        self._work = Work.TICK
        self._wakes_at = FOREVER
        """The last result of ``next_wakeup``. The driver calls ``tick`` at this time."""
        self._mark_at = 0.0
        self._heartbeat_at = 0.0
        config = self.config
        self._log_entries_max = config.log_entries_max + config.apply_entries_max + config.uncommitted_bytes_max // 32
        self._log_buffer_bytes_max = config.unsynced_bytes_max + 2 * (config.uncommitted_bytes_max + config.message_bytes_max)
        self._open()

    def _open(self) -> None:
        """Recover from the files, then build the parts, each from earlier ones."""
        context, config, storage, now = self.context, self.config, self.storage, self.context.now
        self.identity = identity = Identity(
            storage, self.node_id, self.cluster_id, context.configured, context.new_incarnation(), self._joins
        )
        self.incarnation, self.boot = identity.incarnation, identity.boot
        founders = dict(identity.founders) if identity.state == MEMBER else {}
        self.configuration = Configuration(founders, self.defences.changes_in_log)
        self.log = self._open_log()
        self.sessions = Sessions()
        self.snapshots = SnapshotStore(storage, self.cluster_id)
        opened = self.snapshots.open_newest()
        self.notes.extend(f"damaged snapshot ignored: {reason}" for reason in self.snapshots.skipped)
        if opened:
            self.log.align(opened[0].metadata.previous, opened[0].metadata.last)
        elif self.log.first_number > 1 or (len(self.log) and self.log.first_index > 1):
            raise CorruptionError(
                f"{self.log.name} does not begin with the first record and entry, but there is no snapshot of what came before. "
                "Restore it, or move the directory away: the node returns without a vote, copies the state and is then promoted"
            )
        self.core = Core(
            self.node_id,
            context.configured,
            self,
            self.log,
            now,
            context.heartbeat_seconds,
            config.election_min_ms / 1000 if self.defences.check_quorum else 1e8,
            config.compact_entries,
        )
        if self.core.term > NUMBER_MAX:
            raise CorruptionError(
                f"the term on this disk is {self.core.term}, which elections cannot reach; a forged message brought it. If other "
                "nodes have it, too, start all nodes on empty data directories and restore a backup; else move this data "
                "directory away: the node returns without a vote, copies the state and is then promoted"
            )
        self._build()
        if opened:
            metadata = opened[0].metadata
            restoration = self.state_machine.restore()
            for chunk in opened[1]:
                restoration.feed(chunk)
            restoration.finish()
            self.sessions.load(metadata.sessions)
            self.configuration.replace(metadata.voters, metadata.members)
            self.core.load_snapshot(metadata.previous, metadata.last)
        unapplied = self.log.entries(self.core.applied_index + 1, len(self.log)) if len(self.log) else []
        for payload, index, _ in unapplied:
            self.configuration.added(index, payload)
        self.group.start()
        self.membership.opened = Memory(self.log.durable_number, self.core.term, self.log.last_index)
        self.membership.start()

    def _open_log(self) -> Log:
        config = self.config
        is_member = self.identity.state == MEMBER
        log = Log(self.storage, config.segment_bytes, self.defences.tail_rewrite, must_exist=is_member)
        log.read_max, log.read_bytes_max = config.apply_entries_max, config.apply_bytes_max
        log.entries_max, log.buffered_bytes_max = config.log_entries_max, config.unsynced_bytes_max
        log.on_add, log.on_cut = self.configuration.added, self._log_cut
        return log

    def _build(self) -> None:
        context, core, log, configuration = self.context, self.core, self.log, self.configuration
        now, storage, snapshots, sessions = context.now, self.storage, self.snapshots, self.sessions
        self.memories = memories = PeerMemories(self.peers, configuration)
        self.followers = Followers(self.peers, core, log, memories, self.config)
        self.membership = membership = Membership(
            context, self.identity, configuration, log, self.followers, memories, self._formed_changed, self.rejoin,
            lambda: core.term, lambda: core.applied_index, self._joins,
        )  # fmt: skip  # items grouped by line
        self.outbox = outbox = Outbox(self.environment.send, membership, log, core, self.defences.durable_acks)
        self.syncs = Syncs(self.environment)
        self.stall = stall = Stall(context, self.syncs)
        self.leadership = leadership = Leadership(self.config, now())
        self.elections = Elections(context, core, log, membership, memories, outbox, leadership, stall, self._leader_known)
        self.appending = Appending(context, core, log, self.elections, leadership, outbox)
        self.taking = SnapshotTaking(
            context, log, storage, self.syncs, self.state_machine, sessions, configuration, snapshots,
            self.followers.snapshots_in_use,
        )  # fmt: skip  # items grouped by line
        self.receiving = SnapshotReceiving(
            context, core, log, storage, self.syncs, self.state_machine, sessions, configuration, snapshots, self.elections,
            outbox, lambda log_index, members: self.group.receiving(log_index, members), self._restored,
        )  # fmt: skip  # items grouped by line
        self.compaction = Compaction(context, core, log, self.followers, snapshots, self.taking, stall)
        sending = SnapshotSending(
            context, core, self.followers, outbox, self.compaction, snapshots, storage, membership.snapshot_version
        )
        promotion = Promotion(context, core, log, configuration, stall)
        self.replication = Replication(
            context, core, log, self.followers, membership, outbox, leadership, self.compaction, sending, promotion,
            configuration.takes_vote_of,
        )  # fmt: skip  # items grouped by line
        self.transfer = LeadershipTransfer(context, core, membership, self.replication, outbox, leadership, stall)
        self.member_changes = MemberChanges(
            context, core, log, configuration, self.followers, leadership, promotion, self.transfer,
            membership.greeted_protocol, self._addresses,
        )  # fmt: skip  # items grouped by line
        self.group = Group(
            context, core, configuration, self.identity, membership, memories, self.followers, self.replication,
            leadership, self.observer, self._connected,
        )  # fmt: skip  # items grouped by line
        self.digests = Digests(context, core, membership, outbox, membership.digest_version, self.state_digest)
        self.proposals = Proposals(
            context, Origin(self.node_id, self.incarnation, self.boot), core, log, membership, configuration, outbox, leadership,
            sessions, self.state_machine, self._may_append, self.why_writes_are_refused, membership.boot_of,
            self.followers.is_connected,
        )  # fmt: skip  # items grouped by line
        self.reads = ReadIndex(
            context, core, log, membership, outbox, leadership, self.elections.leader_contact,
            self.replication.quorum_acknowledged_at, self.why_reads_are_refused, self.proposals.first_sequence,
        )  # fmt: skip  # items grouped by line
        self.confirmations = HeartbeatConfirmations(
            context, core, outbox, leadership, self.replication.quorum_acknowledged_at, self.reads.is_term_committed,
            self.why_reads_are_refused, self.proposals.first_sequence,
        )  # fmt: skip  # items grouped by line

    def change_member(self, change: MemberChange, done: Callable[[Outcome], None]) -> None:
        """Add, remove, promote or move a member. ``done`` is called exactly once; a refusal names its reason."""
        if self.stopped:
            done(Rejected("this node has stopped"))
        else:
            self._guarded(self.member_changes.request, change, done)

    # Events

    def on_connected(self, peer: str) -> None:
        """This node's own connection to ``peer`` was established: messages sent from now on can arrive."""
        if self.stopped:
            return
        self.group.links.add(peer)
        self.confirmations.connection_changed(peer)
        if peer in self.followers.progress:
            self._guarded(self._connected, peer)

    def _connected(self, peer: str) -> None:
        self.followers.connected(peer)
        self.core.connected(peer)
        self.membership.connected(peer)

    def on_disconnected(self, peer: str) -> None:
        """The connection to ``peer`` was lost."""
        self.group.links.discard(peer)
        self.confirmations.connection_changed(peer)
        if not self.stopped and peer in self.followers.progress:
            self.followers.disconnected(peer)
            self.core.disconnected(peer)
            self.membership.disconnected()

    def on_message(self, peer: str, message: Message) -> Work:
        """``message`` arrived over a connection that ``peer`` opened (and authenticated). Returns what has to be done next.
        Frequent messages that leave nothing to do, such as heartbeats and their answers, cost no ``tick``."""
        if self.stopped or not (peer in self.followers.progress or isinstance(message, MemberHint)):
            return Work.SEND
        self._work = Work.TICK
        self._guarded(self._received, peer, message)
        if self._work is Work.TICK:
            return Work.TICK
        is_notified = self._notified_leader == self.leadership.leader_of(self.core.term)
        # Each contact with the leader draws another election time-out, which may end before the present one.
        is_in_time = self.leadership.election_deadline >= self._wakes_at or self.core.is_leader
        return self._work if is_notified and is_in_time else Work.TICK

    def _received(self, peer: str, message: Message) -> None:
        try:
            check_numbers(message, self.core.term)
            self._receive(peer, message)
            # rejoin now, before this node acknowledges the entry that took its place
            if self.group.has_lost_place and self.defences.lost_places:
                self._rejoin("another data directory has taken the place of this one")
                self._work = Work.TICK
        except TermError as error:
            self._refuse(peer, error)
            if error.is_term_possible and self.membership.formed and self._may_raise_term(peer, message):
                self.elections.approach_term(peer)
        except MalformedError as error:
            self._refuse(peer, error)

    def _may_raise_term(self, peer: str, message: Message) -> bool:
        """Whether a refused term counts for ``approach_term``: from an accepted process, or in an introduction to this node."""
        is_introduction = isinstance(message, Introduction) and message.destination == self.incarnation
        return is_introduction or self.membership.known.get(peer) == message.source

    def _refuse(self, peer: str, error: MalformedError) -> None:
        """Drop a message of ``peer``."""
        self.counters["terms_refused" if isinstance(error, TermError) else "malformed"] += 1
        reason = f"message of {peer} dropped: {error}"
        self.context.note(reason)
        self.observer.refused(peer, reason)

    @property
    def refusals(self) -> dict[str, int]:
        """Messages of peers that were dropped since the start: because of a term, or because no node sends such a message."""
        return {"term": self.counters["terms_refused"], "message": self.counters["malformed"]}

    def _receive(self, peer: str, message: Message) -> None:
        membership = self.membership
        if isinstance(message, Greeting):
            membership.on_greeting(peer, message)
        elif isinstance(message, MemberHint):
            self.group.on_hint(message)
        elif message.destination != self.incarnation:
            self._other_incarnation(peer)
        elif isinstance(message, Introduction):
            membership.on_introduction(peer, message)
            self._work = Work.SEND if membership.is_settled else Work.TICK
        elif not membership.formed or membership.known.get(peer) != message.source:
            self._other_incarnation(peer)
        else:
            self._dispatch(peer, message)

    def _other_incarnation(self, peer: str) -> None:
        """A message from or for another incarnation of a node: drop it."""
        self.counters["other_incarnation"] += 1
        self.membership.correct(peer)

    def _dispatch(self, peer: str, message: PeerMessage) -> None:
        """Hand a message between accepted processes to the part that takes it; the frequent kinds come first."""
        match message:
            case AppendReply():
                if not self.replication.on_append_reply(peer, message) and not self.transfer.running:
                    self._work = Work.SEND
            case Append():
                if not self.appending.on_append(peer, message):
                    self._work = Work.SEND
                now = self.context.now()
                self.membership.accompany(now)
                self.confirmations.request(now)
            case ReadAck():
                self.reads.on_ack(peer, message)
                self._work = Work.READS if self.reads.has_confirmed else Work.SEND
            case ReadProbe():
                self.reads.on_probe(peer, message)
                self._work = Work.SEND
            case ReadRequest():
                self.reads.on_request(peer, message)
                self._work = Work.READS
            case ReadReply():
                self.reads.on_reply(peer, message)
                self._work = Work.READS
            case Forward():
                self.proposals.on_forward(peer, message)
            case ForwardReply():
                self.proposals.on_forward_reply(message)
            case ApplicationData():
                self.observer.received(peer, message.data)
                self._work = Work.READS
            case ConfirmationRequest():
                self.confirmations.on_request(peer, message)
                self._work = Work.SEND
            case Confirmation():
                self.confirmations.on_confirmation(message)
                self._work = Work.SEND
            case SnapshotChunk():
                self.receiving.on_chunk(peer, message)
            case SnapshotAck():
                self.replication.on_snapshot_ack(peer, message)
            case DigestReport():
                self.digests.on_report(peer, message)
            case PreVote():
                self.elections.on_pre_vote(peer, message)
            case PreVoteReply():
                self.elections.on_pre_vote_reply(peer, message)
            case Vote():
                self.elections.on_vote(peer, message)
            case VoteReply():
                self.elections.on_vote_reply(peer, message)
            case HigherTerm():
                self.elections.on_higher_term(peer, message)
            case TimeoutNow():
                self.elections.on_timeout_now(peer, message)
            case _:
                assert_never(message)

    def on_arriving(self, peer: str, size: int) -> None:
        """A part of a message of ``size`` bytes has arrived, so work is expected. For drivers that can report it."""
        if not self.stopped and peer in self.followers.progress and self.leadership.is_large(size):
            self.leadership.extend_election_timeout(size, self.context.now())

    def on_synced(self, token: int) -> None:
        """The sync request of this token is complete."""
        then = self.syncs.completed(token)
        if then is not None and not self.stopped:
            self._guarded(then)

    def on_sync_failed(self, token: int, error: BaseException) -> None:
        """The sync failed: give the snapshot up if the disk has no room for it, otherwise stop the node. (A failed fsync is never
        repeated, because the pages may be lost.)"""
        if_full = self.syncs.failed(token)
        if self.stopped:
            return
        if if_full is not None and isinstance(error, OSError) and is_disk_full(error):
            self._guarded(if_full, error)
        else:
            self._fail(error)

    def tick(self) -> None:
        """Do what is due. Call it after each batch of events and at ``next_wakeup``."""
        if not self.stopped:
            self._guarded(self._tick)

    def _tick(self) -> None:
        core, now, alone = self.core, self.context.now(), self.context.is_alone
        self.group.tick(now)
        self.membership.tick(now)
        self.stall.tick(now)
        self.transfer.tick_stall()
        if self.defences.check_quorum:
            core.set_quorum_seconds(self.leadership.quorum_timeout(now, core.commit_index))
        if alone and not self.waits_for_disk:
            core.tick()  # before anything is appended, so that records that are already durable do not wait for the new ones
        self.proposals.tick(now)
        if self.membership.formed:
            if not alone and not self.context.is_alone:
                core.tick()
            if core.is_leader:
                self.replication.tick()
            if core.is_leader:
                self.transfer.tick(now)
            else:
                self.elections.tick(now)
            self.digests.tick(now)
            self._snapshot_tick()
        self.reads.tick(now)
        self._sync_log(now)
        leader = self.leader_id
        if self._notified_leader != leader:
            self._notified_leader = leader
            self.context.measurements.leader_known(leader)
            self.observer.leader_changed(leader, core.term)

    def tick_reads(self) -> None:
        """The part of ``tick`` that reads need, after events that concern only reads."""
        if not self.stopped:
            self._guarded(self.reads.tick, self.context.now())

    @property
    def waits_for_disk(self) -> bool:
        """Whether the only voter has records that are not on disk: in a cluster of one, PySyncObj would commit them at once."""
        return self.context.is_alone and self.defences.durable_acks and self.log.is_unsynced

    def _may_append(self) -> bool:
        """Whether a leader may append proposals now; otherwise they wait."""
        return not (self.transfer.running or self.waits_for_disk or self.stall.stalled or self.log.is_full)

    def _snapshot_tick(self) -> None:
        self.taking.tick()
        self.receiving.tick()
        self.compaction.tick()

    def next_wakeup(self) -> float:
        """Time of ``Environment.now`` by which ``tick`` must be called. It is not later than now if there is work."""
        if self.stopped:
            return FOREVER
        core, is_leader = self.core, self.core.is_leader
        if (
            (not self.log.syncing and (self.log.dirty or core.applied_index < core.commit_index))
            or self.taking.wants_tick
            or (self.taking.is_done and not self.waits_for_disk)
            or self.receiving.wants_tick
            or (is_leader and self.replication.wants_tick)
        ):
            self._wakes_at = 0.0
            return 0.0
        times = [self.membership.next_wakeup(), self.proposals.next_wakeup(), self.reads.next_wakeup(), self.stall.next_wakeup()]
        if self.log.wants_mark:
            times.append(self._mark_at)
        if self.membership.formed:
            times.append((self.transfer if is_leader else self.elections).next_wakeup())
            times.append(self.digests.next_wakeup())
            if is_leader and self.peers and not self.waits_for_disk:
                times.append(self._heartbeat_at)
        self._wakes_at = min(times)
        return self._wakes_at

    def next_read_wakeup(self) -> float:
        """Like ``next_wakeup``, after ``tick_reads``. The last value of ``next_wakeup`` stays valid, too."""
        return FOREVER if self.stopped else self.reads.next_wakeup()

    def stop(self) -> None:
        """End every proposal and read. Idempotent."""
        if self.stopped:
            return
        self.stopped = True
        reason = f"this node has stopped: {self.failed}" if self.failed else "this node has stopped"
        self.transfer.stop()
        self.member_changes.stopped(reason)
        self.proposals.stop(reason)
        self.reads.stop(reason)

    def _guarded(self, action: Callable[P, None], *arguments: P.args, **options: P.kwargs) -> None:
        """Run one event. Anything unexpected stops the node."""
        try:
            action(*arguments, **options)
        except RolledBackError as error:
            if not self.context.is_alone:  # in a cluster of one there is no other node that could promote a new incarnation
                self._give_up_incarnation()
            self._fail(error)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self.failed = error
        self.stop()
        self.observer.failed(error)

    # Callers

    def propose(self, command: bytes, done: Callable[[Outcome], None], timeout_ms: int | None = None, version: int = 0) -> None:
        """Apply ``command`` once on every node. ``done`` is called exactly once, perhaps before this returns. ``version``: the
        command is rejected unless every member is known to apply commands of this version. Omit it once a command of that version
        has been applied."""
        if self.stopped:
            done(Rejected("this node has stopped"))
        elif version and version > (known := self.membership.command_version(least := self._least_version())):
            reason = f"commands of version {version} have to wait: {least} is known to apply none newer than {known}"
            done(Rejected(f"{reason}; upgrade every member first", self.leader_id))
        else:
            self.proposals.propose(command, done, timeout_ms or self.config.proposal_timeout_ms)

    def read_index(self, done: Callable[[ReadOutcome], None]) -> None:
        """Wait until the local state includes everything acknowledged before this call. On any node."""
        if self.stopped:
            done(Rejected("this node has stopped"))
        else:
            self.reads.ask(done)

    @property
    def confirmed_at(self) -> float:
        """The latest time of ``Environment.now`` for which heartbeats confirm that the state here includes everything
        acknowledged before. NEVER if there is none."""
        return self.confirmations.confirmed_at()

    def lease_read(self, done: Callable[[ReadOutcome], None]) -> None:
        """Like ``read_index``, but answered at once on a leader with a valid lease, if ``RaftConfig.lease_reads``."""
        if self.stopped:
            done(Rejected("this node has stopped"))
        else:
            self.reads.ask_lease(done)

    def transfer_leadership(self, peer: str | None, done: Callable[[bool], None]) -> None:
        """Transfer leadership to ``peer`` (None: the voter with the longest log). ``done(is_done)``: whether this node stepped
        down for a new leader within the maximum election time."""
        if self.stopped:
            done(False)
        else:
            self._guarded(self.transfer.start, peer, done)

    def tell(self, peer: str, data: bytes) -> None:
        """Call ``Observer.received`` at ``peer``. Without a connection, or before both processes have accepted each other,
        ``data`` is lost."""
        if not self.stopped:
            self.outbox.send(peer, ApplicationData(*self.outbox.address(peer), data))

    # Reactions to events of the parts

    def _sync_log(self, now: float) -> None:
        log = self.log
        if log.syncing:
            return
        if log.wants_mark and now >= self._mark_at:
            log.mark()
        if log.dirty:
            names, directory = log.begin_sync()
            self.stall.log_sync_began(now)
            self.syncs.request(names, directory, self._log_synced)

    def _log_synced(self) -> None:
        now = self.context.now()
        self.context.measurements.fsync_seconds.observe(self.stall.age(now))
        self.log.complete_sync()
        self.stall.log_sync_ended()
        self._mark_at = now + self.config.sync_mark_ms / 1000
        if self.core.is_leader:
            self.replication.on_log_synced()
        self.outbox.release()

    def _leader_known(self, term: int) -> None:
        """The leader of ``term`` became known."""
        self.group.leader_known()
        self.proposals.leader_changed(term)

    def rejoin(self, reason: str) -> None:
        """The disk was rolled back: continue as a new incarnation."""
        if self.context.is_alone:
            raise RolledBackError(f"the disk of the only voter was rolled back: {reason}. Put its directory back as it was")
        self._rejoin(f"this disk was rolled back: {reason}")
        self.proposals.distrust_requests()

    def _rejoin(self, reason: str) -> None:
        """Continue as a new incarnation without a vote, until the leader promotes it. The log stays; the leader corrects it."""
        self.counters["rejoined"] += 1
        self.context.note(f"{reason}. This node continues without a vote until it has caught up")
        if self.peers and self._role != "follower":
            self.core.observe_term(self.peers[0], self.core.term + 1)
        self._give_up_incarnation()
        if self.stopped:
            return
        self.incarnation = self.identity.incarnation
        if self.followers.term_led and self.defences.own_entries_cut:
            # If the memory went back, too, this process appended other entries with the index and term of committed ones. Only a
            # node whose acknowledgements do not count may cut entries that may be committed.
            self._forgets = True
            self.core.cut_uncommitted(self.followers.term_led)
            self._forgets = False
        self.outbox.drop_held()
        self.proposals.renumber(Origin(self.node_id, self.incarnation, self.boot))
        self.group.rejoined()
        self.membership.rejoined()

    def _give_up_incarnation(self) -> None:
        try:
            self.identity.renew(self.context.new_incarnation())
        except OSError as error:
            self._fail(error)

    def _log_cut(self, index: int) -> None:
        self.configuration.cut(index)
        if self._forgets:
            self.observer.forgot(index)
        else:
            self.observer.truncated(index, self.core.commit_index)

    def _formed_changed(self) -> None:
        """Founding has progressed."""
        self.group.formed()
        self.elections.restart_timer(self.context.now())

    def _restored(self, log_index: int) -> None:
        """The state was replaced by a received snapshot."""
        session = self.sessions.newest(self.node_id)
        self.group.restored(log_index, None if session is None else session.origin.incarnation)
        self.member_changes.applied(log_index)
        self.proposals.restored(log_index)
        self.digests.forget()
        self.observer.restored(log_index)

    def state_digest(self) -> bytes:
        """Digest of everything replicated: state machine, sessions, members."""
        configuration = self.configuration
        members = sorted(configuration.applied.items()) if configuration.is_static else rows_of(configuration.applied_members)
        parts = (self.state_machine.digest(), self.sessions.digest(), repr(members).encode())
        return hashlib.blake2b(b"|".join(parts), digest_size=32).digest()

    # Called by Core

    def on_vote_request(self, peer: str, term: int, last_index: int, last_term: int) -> None:
        self.observer.voted(self.node_id, term)
        self.elections.vote_requested(peer, term, last_index, last_term)

    def on_vote_granted(self, peer: str, term: int) -> None:
        self.observer.voted(peer, term)
        self.elections.vote_granted(peer, term)

    def on_append_answer(self, peer: str, success: bool, next_index: int) -> None:
        self.appending.answered(peer, success, next_index)

    def on_timeout_now(self, peer: str, term: int) -> None:
        self.transfer.send_timeout_now(peer, term)

    def on_role(self, role: str) -> None:
        previous, self._role = self._role, role
        self.context.measurements.role_changed(role, self.core.term, self.context.now())
        if role == "leader":
            self.counters["elections_won"] += 1
            self.replication.lead()
            self.elections.recognise_leader(self.node_id)
        elif previous == "leader":
            self.leadership.stepped_down()
            self.replication.on_stepped_down()
            self.confirmations.on_stepped_down()
            self.transfer.on_stepped_down()
            self.member_changes.stopped("this node lost leadership")
            self.elections.restart_timer(self.context.now())
        self.observer.role_changed(self.role, self.core.term)

    def on_heartbeat_due(self) -> None:
        now = self.context.now()
        self._heartbeat_at = now + self.context.heartbeat_seconds
        self.replication.heartbeat()
        self.membership.accompany(now)
        self.confirmations.confirm()

    def on_apply(self, log_index: int, payload: bytes) -> None:
        kind = payload[:2]
        try:
            if kind == PROPOSALS:
                self.proposals.apply(log_index, payload)
            elif kind in (JOIN, MEMBERS_ENTRY):
                change = change_in(payload)
                assert change is not None
                self.group.apply(log_index, change)
                if kind == MEMBERS_ENTRY:
                    self.member_changes.applied(log_index)
        except MalformedError as error:
            raise CorruptionError(f"entry {log_index} cannot be applied: {error}") from None
        if self.leadership.is_large(len(payload)):
            # the other nodes apply this entry now or soon, and send nothing while they do so
            self.leadership.extend_election_timeout(len(payload), self.context.now())
        if self.proposals.placed:
            self.proposals.applied(log_index)
        if log_index % self._digest_interval == 0:
            self.digests.report(log_index)
        if self._observes_entries:
            self.observer.applied(log_index, self.log.term_at(log_index) or 0, payload)

    def on_compaction_due(self, previous: Entry, last: Entry) -> None:
        if self.compaction.wanted(last[1]):
            self.taking.begin(previous, last)

    def compaction_running(self) -> bool:
        return self.taking.running

    def compaction_done(self) -> int | None:
        return self.compaction.dropped()
