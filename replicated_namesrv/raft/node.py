"""RaftNode: one member of the group, without IO.

Events go in (messages, ticks, completed syncs), messages and sync requests come out through ``Environment``; PySyncObj, behind
``Core``, decides what Raft decides. The same code runs in production and in the simulator. A broken invariant, a failed write or
sync and a damaged file stop the node for good: nothing is acknowledged after that.

The parts, each with its argument in its own module: membership (incarnations, founding), elections, replication, reads,
proposals, snapshot taking and receiving, digests. This module connects them, holds answers back until they are durable, and
says when the next tick is due.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from replicated_namesrv.raft.bounds import Bounded, memory_of
from replicated_namesrv.raft.compaction import Compaction
from replicated_namesrv.raft.config import RaftConfig
from replicated_namesrv.raft.digests import Digests
from replicated_namesrv.raft.elections import Elections
from replicated_namesrv.raft.errors import CorruptionError, MalformedError, RolledBackError
from replicated_namesrv.raft.handlers import HANDLERS
from replicated_namesrv.raft.interfaces import Environment, Observer, Outcome, ReadOutcome, Rejected, StateMachine, Storage
from replicated_namesrv.raft.log import Entry, Log
from replicated_namesrv.raft.membership import MEMBER, Identity, Membership
from replicated_namesrv.raft.messages import AppendReply, ApplicationData, Greeting, Introduction, Message
from replicated_namesrv.raft.payloads import JOIN, PROPOSALS, unpack_join
from replicated_namesrv.raft.proposals import Proposals
from replicated_namesrv.raft.pysyncobj_core import Core
from replicated_namesrv.raft.reads import Reads
from replicated_namesrv.raft.replication import Replication
from replicated_namesrv.raft.sessions import Origin, Sessions
from replicated_namesrv.raft.snapshots import SnapshotStore
from replicated_namesrv.raft.stall import Stall
from replicated_namesrv.raft.standing import Memory
from replicated_namesrv.raft.status import status_of
from replicated_namesrv.raft.transfer import RECEIVED_SYNCS_MAX, SnapshotReceiving, SnapshotTaking

FOREVER = float("inf")
NOTES_MAX = 20
HELD_MAX = 1_024
"""Answers that wait for the disk. At this number only the newest of each kind to each peer stay, which cover the others: a few
hundred are usual at most, more mean that the disk does not answer."""


class RaftNode:
    """Opens ``storage`` (recovering from whatever a crash left), and is then driven by its entry points, one at a time.

    Raises CorruptionError, IdentityError or OSError if the directory cannot be used.
    """

    def __init__(
        self,
        node_id: str,
        members: Sequence[str],
        cluster_id: str,
        environment: Environment,
        storage: Storage,
        state_machine: StateMachine,
        config: RaftConfig | None = None,
        observer: Observer | None = None,
    ) -> None:
        """``members``: all configured nodes, this one included. One member makes a group of its own."""
        self.node_id, self.members, self.cluster_id = node_id, sorted(members), cluster_id
        if node_id not in self.members or len(set(self.members)) != len(self.members):
            raise ValueError(f"node {node_id!r} must be among the members, each once: {', '.join(self.members)}")
        self.peers = [m for m in self.members if m != node_id]
        self.quorum = len(self.members) // 2 + 1
        self.environment, self.storage, self.state_machine = environment, storage, state_machine
        self.config = config or RaftConfig()
        self.defences = self.config.defences
        self.observer = observer or Observer()
        self._observes_entries = type(self.observer).applied is not Observer.applied
        self.heartbeat_seconds = self.config.heartbeat_ms / 1000
        self._digest_interval = self.config.digest_interval_entries
        self._unsynced_bytes_max, self._log_entries_max = self.config.unsynced_bytes_max, self.config.log_entries_max
        self.failed: BaseException | None = None
        self.stopped = False
        self.counters: Counter[str] = Counter()
        self.notes: list[str] = []
        """The last few things worth an operator's attention."""
        self._role = "follower"
        self._leader: tuple[str | None, int] = (None, 0)
        self._told_leader: str | None = None
        self._held: list[tuple[int, str, type, tuple[Any, ...]]] = []
        self._syncs: dict[int, tuple[float, Callable[[], None]]] = {}
        """Syncs under way by token, oldest first: since when, and what follows."""
        self._sync_token = 0
        self._mark_at = 0.0
        self._heartbeat_at = 0.0
        self._open()

    def _open(self) -> None:
        storage, config = self.storage, self.config
        identity = Identity(storage, self.node_id, self.cluster_id, self.members, self._new_incarnation())
        self.incarnation, self.boot = identity.incarnation, identity.boot
        if identity.state == MEMBER and not any(n.startswith("log-") for n in storage.list_names()):
            raise CorruptionError(
                "this data directory belongs to a member but its log is missing. Restore it, or move the directory away: "
                "the node returns without a vote, copies the state and is then promoted"
            )
        self.membership = Membership(self, identity)
        self.log = Log(storage, config.segment_bytes, self.defences.tail_rewrite)
        self.log.read_max, self.log.read_bytes_max = config.apply_entries_max, config.apply_bytes_max
        self.log.on_add = self.membership.configuration.added
        self.log.on_cut = self._log_cut
        self.sessions = Sessions()
        self.snapshots = SnapshotStore(storage, self.cluster_id)
        opened = self.snapshots.open_newest()
        self.notes.extend(f"damaged snapshot passed over: {reason}" for reason in self.snapshots.skipped)
        if opened:
            self.log.align(opened[0].metadata.previous, opened[0].metadata.last)
        elif self.log.first_number > 1 or (len(self.log) and self.log.first_index > 1):
            raise CorruptionError(
                f"{self.log.name} does not begin with the first record and entry, but there is no snapshot of what came before. "
                "Restore it, or move the directory away: the node returns without a vote, copies the state and is then promoted"
            )
        self.replication = Replication(self)
        self.elections = Elections(self)
        self.reads = Reads(self)
        self.proposals = Proposals(self, Origin(self.node_id, self.incarnation, self.boot))
        self.taking, self.receiving = SnapshotTaking(self), SnapshotReceiving(self)
        self.digests = Digests(self)
        self.stall, self.compaction = Stall(self), Compaction(self)
        self.core = Core(
            self.node_id,
            self.members,
            self,
            self.log,
            self.environment.now,
            self.heartbeat_seconds,
            config.election_min_ms / 1000 if self.defences.check_quorum else 1e8,
            config.compact_entries,
        )
        if opened:
            metadata = opened[0].metadata
            restoration = self.state_machine.restore()
            for chunk in opened[1]:
                restoration.feed(chunk)
            restoration.finish()
            self.sessions.load(metadata.sessions)
            self.membership.restored(metadata.voters)
            self.core.load_snapshot(metadata.previous, metadata.last)
        unapplied = self.log.entries(self.core.applied_index + 1, len(self.log)) if len(self.log) else []
        self.membership.opened_log(Memory(self.log.durable_number, self.core.term, self.log.last_index), unapplied)
        self.membership.start()

    # Events

    def on_connected(self, peer: str) -> None:
        """This node's own connection to ``peer`` was established: messages sent from now on can arrive."""
        if not self.stopped:
            self._guarded(self._connected, peer)

    def _connected(self, peer: str) -> None:
        self.replication.connected(peer)
        self.core.connected(peer)
        self.membership.greet(peer)

    def on_disconnected(self, peer: str) -> None:
        """That connection is gone."""
        if not self.stopped:
            self.replication.disconnected(peer)
            self.core.disconnected(peer)

    def on_message(self, peer: str, message: Message) -> None:
        """``message`` arrived over a connection that ``peer`` opened (and authenticated)."""
        if self.stopped or peer not in self.replication.progress:
            return
        self._guarded(self._receive, peer, message)

    def _receive(self, peer: str, message: Message) -> None:
        membership = self.membership
        if isinstance(message, Greeting):
            membership.on_greeting(peer, message)
        elif isinstance(message, Introduction) and message.destination == self.incarnation:
            membership.on_introduction(peer, message)
        elif message.destination != self.incarnation or not membership.formed or membership.known.get(peer) != message.source:
            self.counters["other_incarnation"] += 1
            membership.correct(peer)
        else:
            HANDLERS[type(message)](self, peer, message)

    def on_arriving(self, peer: str, size: int) -> None:
        """A part of a message of ``size`` bytes has arrived: work is coming. For drivers that see it."""
        if not self.stopped and peer in self.replication.progress:
            self.elections.forgive(size)

    def on_synced(self, token: int) -> None:
        """The request of this token is durable."""
        sync = self._syncs.pop(token, None)
        if sync is not None and not self.stopped:
            self._guarded(sync[1])

    def on_sync_failed(self, token: int, error: BaseException) -> None:
        """It is not, and never will be: the node stops. (A failed fsync is never repeated: the pages may be gone.)"""
        if not self.stopped:
            self._fail(error)

    def tick(self) -> None:
        """Do what is due. Call it after each batch of events and at ``next_wakeup``."""
        if not self.stopped:
            self._guarded(self._tick)

    def _tick(self) -> None:
        now = self.environment.now()
        self.membership.tick(now)
        self.stall.tick(now)
        if self.defences.check_quorum:
            self.core.set_quorum_seconds(self.elections.patience(now))
        if not self.peers and not self.waits_for_disk:
            self.core.tick()  # before anything is appended: what is on disk must not wait for that
        self.proposals.tick(now)
        if self.membership.formed:
            if self.peers:
                self.core.tick()
            if self.core.is_leader:
                self.replication.tick()
            self.elections.tick(now)
            self.digests.tick(now)
            self._snapshot_tick()
        self.reads.tick(now)
        self._sync_log(now)
        if self._told_leader != self.leader_id:
            self._told_leader = self.leader_id
            self.observer.leader_changed(self.leader_id, self.core.term)

    @property
    def leader_is_told(self) -> bool:
        """False: a new leader is known, or lost, and the next ``tick`` acts on it."""
        return self._told_leader == self.leader_id

    def tick_reads(self) -> None:
        """The part of ``tick`` that reads need, after events that concern nothing else."""
        if not self.stopped:
            self._guarded(self._tick_reads)

    def _tick_reads(self) -> None:
        self.reads.tick(self.environment.now())

    @property
    def waits_for_disk(self) -> bool:
        """Whether a group of one has something that is not on disk: PySyncObj, alone, would commit it at once."""
        return not self.peers and self.defences.durable_acks and (self.log.dirty or self.log.syncing)

    @property
    def may_append(self) -> bool:
        """Whether a leader may append proposals now; else they wait."""
        return not (self.elections.transferring or self.waits_for_disk or self.stall.stalled or self.log_is_full)

    @property
    def log_is_full(self) -> bool:
        """Whether disk or snapshots are so far behind that no entries are taken."""
        return self.log.buffered_bytes >= self._unsynced_bytes_max or len(self.log) >= self._log_entries_max

    @property
    def oldest_sync_at(self) -> float | None:
        """When the oldest sync under way was requested."""
        return next(iter(self._syncs.values()))[0] if self._syncs else None

    def _snapshot_tick(self) -> None:
        self.taking.tick()
        self.receiving.tick()
        self.compaction.tick()

    def next_wakeup(self) -> float:
        """Time of ``Environment.now`` at which ``tick`` is due at the latest; not later than now if there is work at hand."""
        if self.stopped:
            return FOREVER
        if (
            (self.log.dirty and not self.log.syncing)
            or (self.core.applied_index < self.core.commit_index and not self.log.syncing)
            or self.taking.wants_tick
            or self.receiving.wants_tick
            or (self.core.is_leader and self.replication.wants_tick)
        ):
            return 0.0
        times = [
            self.membership.next_wakeup(), self.proposals.next_wakeup(), self.reads.next_wakeup(), self.stall.next_wakeup()
        ]  # fmt: skip
        if self.log.wants_mark:
            times.append(self._mark_at)
        if self.membership.formed:
            times += self.elections.next_wakeup(), self.digests.next_wakeup()
            if self.core.is_leader and self.peers:
                times.append(self._heartbeat_at)
        return min(times)

    def stop(self) -> None:
        """End every proposal and read; nothing happens afterwards. Idempotent."""
        if self.stopped:
            return
        self.stopped = True
        reason = f"this node has stopped: {self.failed}" if self.failed else "this node has stopped"
        self.elections.end_transfer(False)
        self.proposals.stop(reason)
        self.reads.stop(reason)

    def _guarded(self, action: Callable[..., None], *arguments: Any) -> None:
        """Run one event. Malformed messages are dropped; anything else unexpected stops the node."""
        try:
            action(*arguments)
        except MalformedError as error:
            self.counters["malformed"] += 1
            self.note(f"message dropped: {error}")
        except RolledBackError as error:
            if self.peers:  # alone, nobody could promote another incarnation
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
        """Have ``command`` applied once on every node. ``done`` is called exactly once, perhaps before this returns.

        A node that is not the leader forwards it. Nothing happens before the next ``tick``, which packs what waits. ``version``:
        rejected unless every member is known to apply commands of it; leave it out once one of that version has been applied.
        """
        if self.stopped:
            done(Rejected("this node has stopped"))
        elif version and version > (known := self.membership.command_version(least := self._least_version())):
            reason = f"commands of version {version} have to wait: {least} is known to apply none newer than {known}"
            done(Rejected(f"{reason}; upgrade every member first", self.leader_id))
        else:
            self.proposals.propose(command, done, timeout_ms or self.config.proposal_timeout_ms)

    def _least_version(self) -> str:
        """The member that is known to apply the oldest commands."""
        return min(self.members, key=self.membership.command_version)

    @property
    def command_version(self) -> int:
        """The newest version of commands that every member is known to apply; 0 while one is unheard of since our start."""
        return self.membership.command_version(self._least_version())

    def read_index(self, done: Callable[[ReadOutcome], None]) -> None:
        """Wait until the local state holds all that was acknowledged before this call. On any node."""
        if self.stopped:
            done(Rejected("this node has stopped"))
        else:
            self.reads.ask(done)

    def lease_read(self, done: Callable[[ReadOutcome], None]) -> None:
        """As ``read_index``; answered at once on a leader whose lease holds, if ``RaftConfig.lease_reads``."""
        if self.stopped:
            done(Rejected("this node has stopped"))
        else:
            self.reads.ask_lease(done)

    def lease_valid(self) -> bool:
        """Whether this node may answer reads of its applied state at this moment without asking anybody."""
        return (
            not self.stopped
            and self.config.lease_reads
            and not self.reads_refused
            and self.core.applied_index >= self.core.commit_index
            and self.reads.lease_valid()
        )

    def transfer_leadership(self, peer: str | None, done: Callable[[bool], None]) -> None:
        """Hand over to ``peer`` (None: the furthest). ``done(True)`` once this node has stepped down for a new leader,
        ``done(False)`` if it is not the leader or nothing came of it within the greatest election time."""
        if self.stopped:
            done(False)
        else:
            self._guarded(self.elections.transfer, peer, done)

    def tell(self, peer: str, data: bytes) -> None:
        """Have ``Observer.received`` called at ``peer``. Without a connection, or before it has greeted, ``data`` is lost."""
        if not self.stopped:
            self.send(peer, ApplicationData, data)

    # What the parts use

    def send(self, peer: str, kind: type, *fields: Any) -> None:
        """Send a message to the process of ``peer`` that we have accepted and that has accepted us; without one it is lost."""
        destination = self.membership.known.get(peer)
        if destination is not None and self.membership.may_send(peer, kind):
            self.environment.send(peer, kind(self.incarnation, destination, *fields))

    def send_when_durable(self, number: int, peer: str, kind: type, *fields: Any) -> None:
        """Send once the log is durable up to record ``number``, if the term (the first field) is still the same."""
        if number <= self.log.durable_number or not self.defences.durable_acks:
            self.send(peer, kind, *fields)
        else:
            if len(self._held) >= HELD_MAX:
                # Keep the newest of each kind to each peer.
                self._held = list({(i[1], i[2], i[3][2] if i[2] is AppendReply else None): i for i in self._held}.values())
            self._held.append((number, peer, kind, fields))

    def _release_held(self) -> None:
        if not self._held:
            return
        held, self._held = self._held, []
        newest: dict[str, tuple[Any, ...]] = {}
        for item in held:
            number, peer, kind, fields = item
            if number > self.log.durable_number:
                self._held.append(item)
            elif fields[0] != self.core.term:
                continue
            elif kind is AppendReply and fields[2]:
                newest[peer] = fields  # covers the older ones
            else:
                self.send(peer, kind, *fields)
        for peer, fields in newest.items():
            self.send(peer, AppendReply, *fields)

    def request_sync(self, names: Sequence[str], directory: bool, then: Callable[[], None]) -> None:
        self._sync_token += 1
        self._syncs[self._sync_token] = self.environment.now(), then
        self.environment.request_sync(self._sync_token, names, directory)

    def _sync_log(self, now: float) -> None:
        log = self.log
        if log.syncing:
            return
        if log.wants_mark and now >= self._mark_at:
            log.mark()
        if log.dirty:
            names, directory = log.begin_sync()
            self.stall.log_sync_began(now)
            self.request_sync(names, directory, self._log_synced)

    def _log_synced(self) -> None:
        self.log.complete_sync()
        self.stall.log_sync_ended()
        self._mark_at = self.environment.now() + self.config.sync_mark_ms / 1000
        if self.core.is_leader:
            self.replication.on_log_synced()
        self._release_held()

    def set_leader(self, leader: str) -> None:
        """A message of the leader of the current term arrived, or this node became it."""
        if self._leader != (leader, self.core.term):
            self._leader = leader, self.core.term
            self.proposals.leader_changed(self.core.term)

    def connected_peers(self) -> list[str]:
        return [p.peer for p in self.replication.progress.values() if p.connected]

    def on_new_incarnation(self, peer: str) -> None:
        self.replication.new_incarnation(peer, self.membership.known[peer])

    def rejoin(self, reason: str) -> None:
        """Go on as a new incarnation, as after the loss of the disk: without a vote, until the leader promotes it.

        The log stays: what is committed in it is right, and the leader replaces the rest.
        """
        self.counters["rejoined"] += 1
        self.note(f"this disk went back: {reason}. This node goes on without a vote until it has caught up")
        if self.peers and self._role != "follower":
            self.core.observe_term(self.peers[0], self.core.term + 1)
        self._give_up_incarnation()
        if self.stopped:
            return
        self.incarnation = self.membership.identity.incarnation
        self._held.clear()
        self.proposals.renumber(Origin(self.node_id, self.incarnation, self.boot))
        self.membership.rejoined()

    def _give_up_incarnation(self) -> None:
        try:
            self.membership.identity.renew(self._new_incarnation())
        except OSError as error:
            self._fail(error)

    def _new_incarnation(self) -> int:
        return self.environment.rng.getrandbits(63) | 1

    def _log_cut(self, index: int) -> None:
        self.membership.configuration.cut(index)
        self.observer.truncated(index, self.core.commit_index)

    def on_membership(self) -> None:
        self.elections.restart_timer(self.environment.now())

    def on_restored(self, log_index: int) -> None:
        """The state was replaced by a received snapshot."""
        self.proposals.restored(log_index)
        self.digests.forget()
        self.observer.restored(log_index)

    def state_digest(self) -> bytes:
        """Over everything replicated: state machine, sessions, voters."""
        parts = (self.state_machine.digest(), self.sessions.digest(), repr(sorted(self.membership.voters.items())).encode())
        return hashlib.blake2b(b"|".join(parts), digest_size=32).digest()

    def note(self, text: str) -> None:
        self.notes.append(text)
        del self.notes[:-NOTES_MAX]

    # Told by Core

    def on_vote_request(self, peer: str, term: int, last_index: int, last_term: int) -> None:
        self.observer.voted(self.node_id, term)
        self.elections.vote_requested(peer, term, last_index, last_term)

    def on_vote_granted(self, peer: str, term: int) -> None:
        self.observer.voted(peer, term)
        self.elections.vote_granted(peer, term)

    def on_append_answer(self, peer: str, success: bool, next_index: int) -> None:
        self.replication.append_answered(peer, success, next_index)

    def on_timeout_now(self, peer: str, term: int) -> None:
        self.elections.timeout_now_due(peer, term)

    def on_role(self, role: str) -> None:
        previous, self._role = self._role, role
        if role == "leader":
            self.counters["elections_won"] += 1
            self.replication.lead()
            self.set_leader(self.node_id)
        elif previous == "leader":
            self._leader = None, 0
            self.replication.follow()
            self.elections.led_no_longer()
            self.elections.restart_timer(self.environment.now())
        self.observer.role_changed(self.role, self.core.term)

    def on_heartbeat_due(self) -> None:
        self._heartbeat_at = self.environment.now() + self.heartbeat_seconds
        self.replication.heartbeat()

    def on_apply(self, log_index: int, payload: bytes) -> None:
        kind = payload[:2]
        try:
            if kind == PROPOSALS:
                self.proposals.apply(log_index, payload)
            elif kind == JOIN:
                self.membership.configuration.apply(log_index, *unpack_join(payload))
        except MalformedError as error:
            raise CorruptionError(f"entry {log_index} cannot be applied: {error}") from None
        if len(payload) > self.config.append_bytes_max:
            self.elections.forgive(len(payload))  # the others apply it now, or will soon
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

    # State, for status, metrics and invariants

    @property
    def role(self) -> str:
        """leader, candidate, follower or learner."""
        promoted = self.membership.voters.get(self.node_id) == self.incarnation or not self.defences.incarnations
        return "learner" if self._role == "follower" and not promoted else self._role

    @property
    def term(self) -> int:
        return self.core.term

    @property
    def leader_id(self) -> str | None:
        """The leader of the current term, if it is known."""
        leader, term = self._leader
        return leader if term == self.core.term else None

    @property
    def commit_index(self) -> int:
        return self.core.commit_index

    @property
    def applied_index(self) -> int:
        """Applied to the state machine."""
        return self.core.applied_index

    @property
    def first_index(self) -> int:
        """Oldest entry still in memory."""
        return self.log.first_index

    @property
    def last_index(self) -> int:
        return self.log.last_index

    @property
    def durable_index(self) -> int:
        return self.log.durable_index

    @property
    def voters(self) -> Mapping[str, int]:
        """Node -> incarnation that may vote; empty before the cluster is formed."""
        return self.membership.voters

    @property
    def founders(self) -> Mapping[str, int]:
        """Node -> incarnation of those that founded the cluster; empty before."""
        return self.membership.identity.founders

    def remembered_records(self, peer: str, incarnation: int) -> int:
        """How many records this node knows the log of this incarnation of ``peer`` to have."""
        return self.membership.memory(peer, incarnation).number

    @property
    def writes_refused(self) -> str | None:
        """Why this node takes no proposals though it runs: its disk is stalled, or no majority of digests."""
        if self.stall.stalled:
            return f"the disk of this node has not finished a sync for more than {self.config.sync_stall_ms} ms"
        return self._dissent

    @property
    def _dissent(self) -> str | None:
        index = self.digests.mismatch_index
        return f"the nodes' states differ at entry {index} and no majority agrees" if index else None

    @property
    def reads_refused(self) -> str | None:
        """Why this node confirms no reads: no majority of digests."""
        return self._dissent if self.defences.dissent_fences_reads else None

    def term_at(self, index: int) -> int | None:
        """Term of the entry at ``index``, None if it is not in memory."""
        return self.log.term_at(index)

    def entry_at(self, index: int) -> bytes | None:
        """Payload of the entry at ``index``, None if it is not in memory."""
        if index <= self.log.base_index or self.log.term_at(index) is None:
            return None
        return self.log.entries(index, 1)[0][0]

    @property
    def unsynced_seconds(self) -> float:
        """How long the oldest write to the log has waited for the disk."""
        return self.stall.age(self.environment.now())

    @property
    def disk_problem(self) -> str | None:
        """What is wrong with the disk, if a sync has not ended in time."""
        return self.stall.problem(self.environment.now())

    def memory(self) -> dict[str, Bounded]:
        """What this node holds in memory beside the state machine: name -> (size, bound). See ``bounds.py``."""
        return memory_of(self)

    def memory_of_guard(self) -> dict[str, Bounded]:
        """The part of ``memory`` that belongs to this module and the log."""
        config = self.config
        step = config.uncommitted_bytes_max + config.message_bytes_max
        return {
            "log_entries": (
                len(self.log),
                config.log_entries_max + config.apply_entries_max + config.uncommitted_bytes_max // 32,
            ),
            "log_buffer_bytes": (self.log.buffered_bytes, config.unsynced_bytes_max + 2 * step),
            "held_messages": (len(self._held), HELD_MAX),
            "pending_syncs": (len(self._syncs), 2 + RECEIVED_SYNCS_MAX),
        }

    def status(self) -> dict[str, object]:
        """Everything an operator or a metric wants, JSON-able."""
        return status_of(self)
