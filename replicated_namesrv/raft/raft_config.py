"""Settings of one Raft node. Each comment has the bound, the effect of exceeding it, and how to choose it."""

from dataclasses import dataclass, field, fields, replace


@dataclass(frozen=True, slots=True)
class Defences:
    """One switch per defence, all on in production. The simulator turns one off to show that it is needed."""

    pre_vote: bool = True
    """A node asks whether it could win before it raises its term (dissertation, 9.6)."""
    stickiness: bool = True
    """No vote within the minimum election time of contact with a leader (dissertation, 4.2.3)."""
    check_quorum: bool = True
    """A leader without contact with a majority for the minimum election time steps down."""
    idempotent_append: bool = True
    """Only a real term conflict above the commit index cuts the log."""
    durable_acks: bool = True
    """No answer is sent before the fsync of the data on which it depends: entries, term and vote. The leader counts itself by the
    same rule."""
    durable_leadership: bool = True
    """A leader sends its followers nothing before its own vote is on disk."""
    durable_campaign: bool = True
    """The only voter does not campaign before its whole log is on disk."""
    durable_vote_first: bool = True
    """A node whose last term or vote is not on disk does not campaign for another term."""
    fresh_acks: bool = True
    """Acknowledgements of another term, or older than the last change of a follower's progress, are ignored."""
    acknowledged_check: bool = True
    """A follower that lacks entries which it acknowledged to the leader stops: its disk has lost synced data."""
    distinct_votes: bool = True
    """A voter is counted only once per election."""
    current_votes: bool = True
    """A vote for another term than the candidate's is dropped before anything is counted."""
    read_index: bool = True
    """A linearizable read asks a majority first. Off: the leader answers from its own state."""
    read_term_commit: bool = True
    """A leader confirms no read before an entry of its own term is committed."""
    at_most_once: bool = True
    """A command that was applied is not applied again, however often it was proposed."""
    current_forwards: bool = True
    """A leader appends a forwarded proposal only in the term in which it was forwarded, and only if it came from the process that
    the leader accepts at present for that peer."""
    lost_places: bool = True
    """A process whose place another data directory has taken continues as a new incarnation."""
    incarnations: bool = True
    """Votes and acknowledgements of a node that lost its disk are not counted before it is promoted."""
    changes_in_log: bool = True
    """Vacancies and joins are in force from the moment they are in a node's log, and a join follows a committed vacancy. Off:
    both are in force when they are applied, and a join replaces the lost incarnation at once."""
    single_change: bool = True
    """A leader changes the members only when its previous change is applied."""
    own_term_first: bool = True
    """A leader changes the members only when an entry of its own term is committed."""
    leader_stays: bool = True
    """A leader writes no change that takes its own vote; it transfers leadership first."""
    lasting_leader: bool = True
    """A node that was away keeps the configured nodes as peers until its leader is a member. Off: it keeps them until it knows a
    leader."""
    removal_committed_first: bool = True
    """A leader sends no member an entry that takes its vote before that entry is committed."""
    regressions: bool = True
    """If a process's disk lacks data that peers remember of its incarnation, it gets no vote and rejoins as a new incarnation."""
    single_process: bool = True
    """While two processes use one incarnation, both processes are ignored."""
    contested_silence: bool = True
    """A process that any peer contests sends neither votes nor acknowledgements to any peer."""
    introduced_first: bool = True
    """Until every peer has accepted it, a new process sends neither votes nor acknowledgements, and does not campaign in a
    transfer of leadership or as the only voter. The time for which it waits is limited (``Membership.is_silent``)."""
    remembered_data: bool = True
    """A node that lacks data that a peer remembers of it rejoins at once, whatever standing the peer reports."""
    earlier_reports: bool = True
    """What a peer has reported to an earlier process of this disk counts, too, because the peer may be lost before it has contact
    with this process."""
    confirmed_connections: bool = True
    """After each new connection, both processes accept each other again before other messages are sent: one of them may have been
    reset, memory included."""
    own_entries_cut: bool = True
    """A process that rejoins and has led since its start removes its uncommitted entries from the log."""
    own_numbers: bool = True
    """Proposal numbers and sequence numbers of requests start at a random place, and a node that applies a number of its own that
    it did not issue stops."""
    fatal_errors: bool = True
    """An error of the machine (no memory, no disk, no stack) in ``apply`` stops the node; without this, the error would be the
    command's result."""
    dissent_fences_reads: bool = True
    """While states differ and no majority agrees, reads are refused as writes are."""
    blank_formation: bool = True
    """Blank nodes form a cluster only if every configured peer is blank."""
    boot_silence: bool = True
    """A restarted node grants no vote for one minimum election time."""
    lease_drift: bool = True
    """The lease is shortened by the declared clock drift."""
    transfer_ends_lease: bool = True
    """A leader that transfers leadership answers no more lease reads in that term."""
    snapshot_before_reset: bool = True
    """A received snapshot is durable before the log that it replaces is dropped."""
    tail_rewrite: bool = True
    """On opening, records that are not marked as synced are copied to new files: after failed syncs only memory may have them."""
    promotion_rounds: bool = True
    """A learner is promoted when it keeps up with the writes. Off: it is promoted when it has every committed entry at one
    moment."""
    transfer_log: bool = True
    """The log after a snapshot that is being sent to a follower is kept until the follower has that part, too."""
    inflight_bound: bool = True
    """Only the newest unanswered messages to a follower are remembered. Off: all of them are."""
    resend_backoff: bool = True
    """Retries of data that a follower repeatedly lacks back off. A probe that had no effect is repeated with the next heartbeat.
    Off: both are sent again with each of the follower's answers."""
    encoded_bound: bool = True
    """Encoded entries are cached up to a number of bytes and dropped when unused. Off: up to 16 slices of any size."""
    disk_stall: bool = True
    """A leader transfers leadership if its disk does not finish a sync."""
    digest_check: bool = True
    """Digests of equal indexes are compared between nodes."""

    @classmethod
    def without(cls, name: str) -> "Defences":
        """All defences but ``name``. Raises ValueError with the names if there is no such defence."""
        names = [f.name for f in fields(cls)]
        if name not in names:
            raise ValueError(f"no defence {name!r}; there are: {', '.join(names)}")
        return replace(cls(), **{name: False})


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """All settings of a node. The constructor raises ValueError with the broken rule and both values."""

    election_min_ms: int = 300
    """Minimum time without contact with the leader before a node campaigns; also the time for CheckQuorum, stickiness and leases.
    It has to be at least five heartbeats, longer than any stall of the event loop, and longer than the round trip to the farthest
    node."""
    election_max_ms: int = 600
    """The election time is drawn between the minimum and this maximum; a wider range makes split votes rarer and fail-over
    slower."""
    heartbeat_ms: int = 50
    """Pause between the leader's heartbeats."""
    command_version: int = 1
    """The newest version of commands that this node's state machine applies. All members learn it. A command is proposed with
    the version that it needs and is refused until every member is known to apply it, so nodes can be upgraded one by one."""
    digest_version: int = 1
    """Version of the state machine's digests. Nodes compare digests of equal versions only, so a new form of the digest stops
    no node in a rolling upgrade."""
    election_grace_bytes_per_second: int = 2_500_000
    """Assumed pace of a node that receives, writes and applies data larger than ``append_bytes_max``. Such data is processed in
    one piece, and the node is silent meanwhile. No node campaigns and no leader steps down before the work could be done at this
    pace. So after such a command, the loss of a leader is detected later by up to the time of this work. The default is the pace
    of a very busy machine. Lower it if machines are slower."""
    election_grace_ms_max: int = 3_000
    """Maximum extension of the election time-out, for messages of any size."""
    clock_drift_max: float = 0.05
    """Greatest relative difference of clock rates between two nodes. Leases are shortened by twice this share."""
    lease_reads: bool = False
    """Whether ``lease_read`` may answer from the lease. Otherwise it requests a read index. The lease depends on the promises of
    the other nodes: ``election_min_ms`` and ``clock_drift_max`` must be the same on all nodes."""
    authenticated_peers: bool = True
    """Whether a message can only come from the node that it names. If not, an introduction counts only with the nonce of this
    process, because any process on the machine could otherwise take this node's vote with a false report (``earlier_reports``).
    The service sets it."""
    leaving_ms: int = 10_000
    """After a removal, the other nodes keep the removed node as a peer for this time, so that it learns of its removal."""
    proposal_timeout_ms: int = 5_000
    """A proposal that is undecided for this long ends as indeterminate, or as rejected if no copy of it can exist."""
    read_timeout_ms: int = 2_000
    """A read that is not confirmed for this long ends as rejected."""
    pending_proposals_max: int = 65_536
    """Maximum number of undecided proposals on this node; further ones are rejected at once."""
    pending_proposals_bytes_max: int = 64 << 20
    """Maximum total of undecided commands in bytes; further ones are rejected at once."""
    pending_reads_max: int = 262_144
    """Maximum number of waiting reads on this node; further ones are rejected at once."""
    command_bytes_max: int = 16 << 20
    """Maximum length of a command; a longer one is rejected at once."""
    entry_bytes_max: int = 128 << 10
    """Proposals are packed into one entry up to this size (one large command may exceed it)."""
    uncommitted_bytes_max: int = 4 << 20
    """Maximum number of bytes of entries that a leader has appended and not yet committed. At this number proposals wait. The
    setting bounds the time that one write and one fsync take."""
    forwarded_bytes_max: int = 512 << 10
    """Maximum number of bytes that a node has forwarded to the leader without a reply (one large command may exceed it). At this
    number proposals wait. On a link of 100 Mbit/s these bytes take 42 ms, which is well below the minimum election time.
    Acknowledgements queue behind them, and a leader that gets none for the minimum election time steps down."""
    append_bytes_max: int = 256 << 10
    """Maximum number of bytes of entries in one message (one large entry may exceed it)."""
    inflight_bytes_max: int = 4 << 20
    """Maximum number of bytes of entries that were sent to a follower and are not acknowledged. At this number the leader
    waits."""
    inflight_messages_max: int = 64
    """Maximum number of unacknowledged messages to a follower; also for chunks of a snapshot."""
    snapshot_window_bytes: int = 1 << 20
    """Maximum number of bytes of a snapshot that were sent to a follower and are not acknowledged. On a link of
    100 Mbit/s these bytes take 84 ms, which is well below the minimum election time. Heartbeats queue behind them."""
    transfer_log_entries_max: int = 400_000
    """Maximum number of entries kept for a follower to which a snapshot is sent. If there are more, they are dropped and the
    transfer is given up; the follower gets a newer snapshot, which succeeds when writes slow down. About 100 MB of small
    entries."""
    transfer_log_bytes_max: int = 128 << 20
    """Maximum number of bytes of these entries: this many may be written during the transfer, and again this many after the
    snapshot has arrived."""
    transfer_silence_ms: int = 10_000
    """After this time without an answer of the follower, which may never return, the entries are dropped, too."""
    apply_entries_max: int = 512
    """Maximum number of entries applied in one step, so that the node is not silent during a long backlog."""
    apply_bytes_max: int = 1 << 20
    """Maximum number of bytes of entries applied in one step, because an entry may contain thousands of commands. (At least two
    entries are applied, of any size.)"""
    compact_entries: int = 50_000
    """Number of entries in memory at which a snapshot is started."""
    compact_bytes: int = 64 << 20
    """Number of bytes written to the log after which a snapshot is started."""
    compact_margin_entries: int = 5_000
    """Number of entries before the end of a snapshot that are kept for followers that lag a little."""
    segment_bytes: int = 16 << 20
    """Size at which a log segment is closed. Only whole segments are deleted."""
    snapshot_slice_bytes: int = 128 << 10
    """Number of bytes of a snapshot that are written, sent or restored in one step."""
    digest_interval_entries: int = 4_096
    """Digests are compared at indexes that are multiples of this number, and when the cluster is idle."""
    digest_interval_ms: int = 2_000
    """Pause between comparisons of digests when the cluster is idle."""
    unsynced_bytes_max: int = 16 << 20
    """Maximum number of bytes of the log that wait for a sync in progress. At this number a leader appends nothing, and a
    follower accepts no entries. This is about a second of writes at full speed."""
    sync_stall_ms: int = 5_000
    """A sync of the log that takes longer counts as stalled: a leader transfers leadership or steps down, and no node campaigns.
    Busy or remote disks sometimes pause for a second or two. The limit is longer than such a pause, because an election would not
    help then. It is not longer than the usual time-out of a proposal. The limit for syncs of snapshots is twelve times as
    long."""
    sync_mark_ms: int = 20
    """After this time without writes, a mark in the log says which records have been synced. With it, damage to these records can
    be distinguished from a torn tail.
    """
    defences: Defences = field(default_factory=Defences)

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            least = 0 if setting.name == "compact_margin_entries" else 1
            if type(value) is int and value < least:
                raise ValueError(f"{setting.name} is {value}: it must be at least {least}")
        if self.command_version >= 1 << 16:
            raise ValueError(f"command_version is {self.command_version}: it must be less than {1 << 16}")
        if not 0 <= self.clock_drift_max < 0.5:
            raise ValueError(f"clock_drift_max is {self.clock_drift_max}: it must be at least 0 and less than 0.5")
        if self.election_min_ms < 5 * self.heartbeat_ms:
            raise ValueError(
                f"election_min_ms is {self.election_min_ms} and heartbeat_ms {self.heartbeat_ms}: "
                "the minimum election time must be at least five heartbeats, or lost messages cause elections"
            )
        if self.election_max_ms <= self.election_min_ms:
            raise ValueError(
                f"election_max_ms is {self.election_max_ms} and election_min_ms {self.election_min_ms}: "
                "the maximum election time must exceed the minimum, or nodes campaign at the same time"
            )
        if self.compact_margin_entries >= self.compact_entries:
            raise ValueError(
                f"compact_margin_entries is {self.compact_margin_entries} and compact_entries {self.compact_entries}: "
                "compact_margin_entries must be smaller than compact_entries, or each snapshot starts the next one"
            )

    @property
    def log_entries_max(self) -> int:
        """Maximum number of entries in memory. At this number a leader appends no entry and a follower accepts none until a
        snapshot has replaced some. The number is reached only if snapshots do not end."""
        return 2 * self.compact_entries + self.transfer_log_entries_max

    @property
    def message_bytes_max(self) -> int:
        """Longest message that these settings allow."""
        return max(self.command_bytes_max, self.entry_bytes_max, self.append_bytes_max, self.snapshot_slice_bytes) + 4_096
