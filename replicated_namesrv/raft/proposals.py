"""Proposals: each command of a caller gets exactly one outcome.

Every proposal gets a number from this node's origin (``sessions.py``). The first number of a process is random, so that a process
on a rolled-back data directory does not issue the numbers of an earlier process. A leader packs waiting proposals into entries;
another node forwards them to the leader. Each append or forward makes a copy of a proposal. After a change of leader, undecided
proposals are proposed again, and the sessions ensure that only one copy is applied. A proposal ends

- committed, when its number is first applied here, with the result of that application;
- rejected, when its time is up or this node stops, if no copy of it can exist: it was never sent, or another entry was committed
  in the place of each copy. A forward is for one term. The reply of the leader names a log index. If the network repeated the
  forward, other copies are in that term's log. If the entry at this index is cut, later copies are cut, too. An earlier copy that
  is not cut is applied, and ends the proposal, before this node finds another entry at this index.
- indeterminate, when its time is up or this node stops, if a copy may exist; when a snapshot shows that it was applied, but does
  not show its result; or when this node gives up its incarnation.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from replicated_namesrv.raft.configuration import Configuration
from replicated_namesrv.raft.entry_log import Log
from replicated_namesrv.raft.interfaces import (
    ApplyFailed,
    Committed,
    Indeterminate,
    Outcome,
    RaftState,
    Rejected,
    StateMachine,
    Voters,
)
from replicated_namesrv.raft.leadership import Leadership
from replicated_namesrv.raft.measurements import COMMITTED, REJECTED, UNKNOWN
from replicated_namesrv.raft.memory_bounds import Bounded
from replicated_namesrv.raft.node_context import NodeContext
from replicated_namesrv.raft.outbox import Outbox
from replicated_namesrv.raft.payloads import PROPOSAL, PROPOSALS, pack_group, unpack_groups
from replicated_namesrv.raft.raft_errors import MalformedError, RolledBackError, UnknownCommandError
from replicated_namesrv.raft.raft_messages import Forward, ForwardReply
from replicated_namesrv.raft.sessions import Origin, Sessions

Done = Callable[[Outcome], None]
EXPIRY_STEP_SECONDS = 0.05
NUMBERS_APART = 1 << 32
"""The first number of a process is a multiple of this; no process issues that many numbers."""
PLACED_PER_PENDING, PLACED_SPARE = 2, 64
"""If ``placed`` has more than two indexes for each pending proposal, plus the spare, those without a pending proposal are removed
at the next expiry."""
MACHINE_ERRORS = (MemoryError, RecursionError, OSError, ImportError, SystemError)
"""Exceptions of ``apply`` whose cause is this machine and not the command: another node would not raise them."""


class Pending:
    """A proposal that has not ended."""

    __slots__ = ("command", "copies", "done", "proposed_at", "queued")

    def __init__(self, command: bytes, done: Done, proposed_at: float) -> None:
        self.command, self.done, self.proposed_at = command, done, proposed_at
        self.copies = 0
        """Number of copies of the proposal that may exist in a log."""
        self.queued = True


class ProposalCore(RaftState, Protocol):
    """The methods of the consensus core that proposals need."""

    def propose(self, payload: bytes) -> int:
        """Append an entry. Returns its index."""


class Proposals:
    """The proposals of one node and, on a leader, the proposals that other nodes have forwarded."""

    def __init__(
        self,
        context: NodeContext,
        origin: Origin,
        core: ProposalCore,
        log: Log,
        voters: Voters,
        configuration: Configuration,
        outbox: Outbox,
        leadership: Leadership,
        sessions: Sessions,
        state_machine: StateMachine,
        may_append: Callable[[], bool],
        refused: Callable[[], str | None],
        boot_of: Callable[[str, int], int | None],
        is_connected: Callable[[str], bool],
    ) -> None:
        """``may_append``: whether a leader may append now; if not, proposals wait. ``refused``: why none is accepted, or None.
        ``boot_of``: the boot of the accepted process of a peer's incarnation, None if the peer does not report it.
        ``is_connected``: whether this node has a connection to a peer."""
        self._context, self._defences, self._now = context, context.defences, context.now
        self.config, self._measurements = context.config, context.measurements
        self._core, self._log, self._voters, self._configuration = core, log, voters, configuration
        self._outbox, self._leadership = outbox, leadership
        self._sessions, self._state_machine = sessions, state_machine
        self._may_append, self._refused, self._boot_of, self._is_connected = may_append, refused, boot_of, is_connected
        self.origin = origin
        self._started_at = self._now()
        self._uncertain_until = 0.0
        """Until then, a new proposal may come from a request that was executed before the machine was reset."""
        self._pending: dict[int, Pending] = {}
        self._pending_bytes = 0
        self._queue: deque[int] = deque()
        self._first = self._context.rng.getrandbits(31) * NUMBERS_APART if self._defences.own_numbers else 0
        """The first number of this process."""
        self._next = self._floor = self._first
        self.placed: dict[int, list[tuple[int, list[int]]]] = {}
        """For each index: (term, numbers) of the entry there that contains proposals of this node."""
        self._forwards: dict[int, tuple[list[int], float, int]] = {}
        """Forwards without an answer: from the sequence to (numbers, when to retry, bytes)."""
        self.first_sequence = self._first >> 2 if self._defences.own_numbers else origin.boot << 32
        """Requests of this process have greater sequence numbers. Without the random start, a late answer to an earlier process
        would match if a rolled-back disk repeats the boot number. The start is below 2^61, half of ``NUMBER_MAX``."""
        self._sequence = self.first_sequence
        self._uncommitted: deque[tuple[int, int]] = deque()
        """(index, bytes) of entries that this leader has appended and that are not committed yet."""
        self._unsettled_bytes = 0
        """Bytes of the uncommitted entries, or of the forwards without an answer."""
        self._arrived: deque[tuple[str, Forward, Origin]] = deque()
        """Forwards received: (peer, message, origin of its group)."""
        self._arrived_bytes = 0
        self._are_late = False
        """Whether forwards had to wait at the last append, because there was no more room."""
        self._expiry: dict[int, list[int]] = {}
        self._next_expiry = float("inf")
        self._not_before = 0.0
        self._leader_term = 0

    @property
    def _leader(self) -> str | None:
        return self._leadership.leader_of(self._core.term)

    @property
    def _reachable_leader(self) -> str | None:
        """The leader to which proposals can be forwarded now. Until there is a connection, and both processes have accepted each
        other, proposals wait: a forward that is lost is repeated late, and may exist as far as this node knows."""
        leader = self._leader
        if leader is None or leader not in self._context.peers or not self._voters.may_propose:
            return None
        return leader if self._is_connected(leader) and self._outbox.reaches(leader, Forward) else None

    # Callers

    def propose(self, command: bytes, done: Done, timeout_ms: int) -> None:
        config, now = self.config, self._now()
        if now < self._uncertain_until:
            self._measurements.proposals[UNKNOWN] += 1
            done(Indeterminate("this node went back to an earlier state lately; this request may have been executed before that"))
            return
        refused = self._refused()
        if len(command) > config.command_bytes_max:
            refused = f"the command has {len(command)} bytes, command_bytes_max is {config.command_bytes_max}"
        elif self._next - self._floor >= config.pending_proposals_max:
            self._advance_floor()
            if self._next - self._floor >= config.pending_proposals_max:
                refused = f"{self._next - self._floor} proposals since the oldest undecided one, the most allowed"
        elif self._pending_bytes + len(command) > config.pending_proposals_bytes_max:
            refused = f"{self._pending_bytes} bytes of proposals are undecided, the most allowed"
        if refused is not None:
            self._measurements.proposals[REJECTED] += 1
            done(Rejected(refused, self._leader))
            return
        # any step may lack memory: a number that is not pending yet is skipped, so the proposal is pending last
        number, pending = self._next, Pending(command, done, now)
        self._next = number + 1
        bucket = int((now + timeout_ms / 1000) / EXPIRY_STEP_SECONDS) + 1
        numbers = self._expiry.get(bucket)
        if numbers is None:
            self._expiry[bucket] = [number]
            self._next_expiry = min(self._next_expiry, bucket * EXPIRY_STEP_SECONDS)
        else:
            numbers.append(number)
        self._queue.append(number)
        self._pending[number] = pending
        self._pending_bytes += len(command)

    @property
    def count(self) -> int:
        return len(self._pending)

    # Progress

    def tick(self, now: float) -> None:
        while self._uncommitted and self._uncommitted[0][0] <= self._core.commit_index:
            self._unsettled_bytes -= self._uncommitted.popleft()[1]
        if (self._queue or self._arrived) and self._has_room:
            if self._core.is_leader:
                if self._may_append():
                    self._append()
            elif (leader := self._reachable_leader) is not None and now >= self._not_before:
                self._forward(leader, now)
        if now >= self._next_expiry:
            self._expire(now)
        if self._forwards and not self._core.is_leader:
            self._retry_forwards(now)

    def next_wakeup(self) -> float:
        times = [self._next_expiry]
        if self._forwards:
            times.append(next(iter(self._forwards.values()))[1])
        if (self._queue or self._arrived) and self._has_room:
            if self._core.is_leader and self._may_append():
                return 0.0
            if not self._core.is_leader and self._reachable_leader is not None:
                times.append(self._not_before)
        return min(times)

    @property
    def _has_room(self) -> bool:
        config = self.config
        most = config.uncommitted_bytes_max if self._core.is_leader else config.forwarded_bytes_max
        return self._unsettled_bytes < most

    @property
    def _retry_seconds(self) -> float:
        """Seconds after which a forward that is sent now counts as lost. On a slow link it waits for the bytes before it and
        takes long itself. Another copy would make the link still slower, and the log longer."""
        heartbeats = self._unsettled_bytes / (self.config.election_grace_bytes_per_second * self._context.heartbeat_seconds)
        return 2 * self.config.election_min_ms / 1000 + int(heartbeats) * self._context.heartbeat_seconds

    def _advance_floor(self) -> int:
        """Update the lowest number without an outcome: no number below it will be proposed again."""
        floor, pending, last = self._floor, self._pending, self._next
        while floor < last and floor not in pending:
            floor += 1
        self._floor = floor
        return floor

    def _take_group(self) -> tuple[bytes, list[int]] | None:
        """The front of the queue as a group of at most ``entry_bytes_max`` with its numbers; None if the queue is empty."""
        queue, size = self._queue, 0
        batch: list[tuple[int, bytes]] = []
        while queue:
            pending = self._pending.get(queue[0])
            if pending is None:
                queue.popleft()
                continue
            size += len(pending.command) + PROPOSAL.size
            if batch and size > self.config.entry_bytes_max:
                break
            pending.copies += 1
            pending.queued = False
            batch.append((queue.popleft(), pending.command))
        if not batch:
            return None
        return pack_group(self.origin, self._floor, batch), [number for number, _ in batch]

    def _append(self) -> None:
        """On a leader: put waiting proposals into entries, as far as there is room: first ours, then the forwarded ones. If
        forwards had to wait the last time, the first one goes before ours, and then both alternate, so that neither starves."""
        is_ours_next = not self._are_late
        parts: list[bytes] = []
        numbers: list[int] = []
        answers: list[tuple[str, int]] = []
        size = 0
        self._advance_floor()
        while self._has_room:
            if (is_ours_next or not self._arrived) and (taken := self._take_group()) is not None:
                group, own = taken
                answer = None
                is_ours_next = not self._are_late
            elif self._arrived:
                is_ours_next = True
                peer, message, origin = self._arrived.popleft()
                group = message.proposals
                self._arrived_bytes -= len(group)
                if not self._is_current(peer, message, origin):
                    continue
                own, answer = [], (peer, message.sequence)
            else:
                break
            if parts and size + len(group) > self.config.entry_bytes_max:
                self._append_entry(parts, numbers, answers)
                parts, numbers, answers, size = [], [], [], 0
            parts.append(group)
            size += len(group)
            self._unsettled_bytes += len(group)
            numbers.extend(own)
            if answer:
                answers.append(answer)
        self._are_late = bool(self._arrived)
        if parts:
            self._append_entry(parts, numbers, answers)

    def _append_entry(self, parts: list[bytes], numbers: list[int], answers: list[tuple[str, int]]) -> None:
        index = self._core.propose(PROPOSALS + b"".join(parts))
        size = sum(len(part) for part in parts)
        if self._leadership.is_large(size):
            self._leadership.extend_election_timeout(size, self._now(), index)
        self._uncommitted.append((index, size))
        if numbers:
            self.placed.setdefault(index, []).append((self._core.term, numbers))
        for peer, sequence in answers:
            self._outbox.send(peer, ForwardReply(*self._outbox.address(peer), sequence, index, self._core.term))

    def _forward(self, leader: str, now: float) -> None:
        self._refuse_forwarded()
        self._advance_floor()
        while self._has_room and (taken := self._take_group()) is not None:
            group, numbers = taken
            self._sequence += 1
            self._unsettled_bytes += len(group)
            self._forwards[self._sequence] = numbers, now + self._retry_seconds, len(group)
            self._outbox.send(leader, Forward(*self._outbox.address(leader), self._core.term, self._sequence, group))

    def _refuse_forwarded(self) -> None:
        for peer, message, _ in self._arrived:
            self._outbox.send(peer, ForwardReply(*self._outbox.address(peer), message.sequence, 0, 0))
        self._arrived.clear()
        self._arrived_bytes = 0

    def _retry_forwards(self, now: float) -> None:
        """Send forwards again that may have been lost. Their first copies may still exist."""
        for sequence, (numbers, retry_at, size) in list(self._forwards.items()):
            if retry_at > now:
                break
            del self._forwards[sequence]
            self._unsettled_bytes -= size
            self._requeue(numbers, False)

    def _requeue(self, numbers: list[int], copy_is_dead: bool) -> None:
        for number in numbers:
            pending = self._pending.get(number)
            if pending is None:
                continue
            if copy_is_dead:
                pending.copies -= 1
            if not pending.queued:
                pending.queued = True
                self._queue.append(number)

    def leader_changed(self, term: int) -> None:
        """A leader of a new term is known: propose the undecided proposals to it. (Old copies may still exist.)"""
        if term <= self._leader_term:
            return
        self._leader_term = term
        self._forwards.clear()
        self._uncommitted.clear()
        self._unsettled_bytes = 0
        self._not_before = 0.0
        self._requeue(list(self._pending), False)

    def _expire(self, now: float) -> None:
        for bucket in sorted(self._expiry):
            if bucket * EXPIRY_STEP_SECONDS > now:
                break
            for number in self._expiry.pop(bucket):
                pending = self._pending.get(number)
                if pending is None:
                    continue
                if pending.copies == 0:
                    self._end(number, Rejected("no leader accepted the command in time", self._leader))
                else:
                    self._end(number, Indeterminate("not committed in time; the command may still be applied"))
        self._next_expiry = min(self._expiry) * EXPIRY_STEP_SECONDS if self._expiry else float("inf")
        while self._queue and self._queue[0] not in self._pending:
            self._queue.popleft()  # without a leader nothing else removes expired proposals from the queue
        # remove indexes of entries that this node does not apply
        if len(self.placed) > PLACED_PER_PENDING * len(self._pending) + PLACED_SPARE:
            self.placed = {
                index: placed
                for index, placed in self.placed.items()
                if any(number in self._pending for _, numbers in placed for number in numbers)
            }

    def _committed(self, pending: Pending, outcome: Committed, now: float) -> None:
        self._pending_bytes -= len(pending.command)
        self._measurements.proposals[COMMITTED] += 1
        self._measurements.commit_seconds.observe(now - pending.proposed_at)
        pending.done(outcome)

    def _end(self, number: int, outcome: Rejected | Indeterminate) -> None:
        """End a proposal that was not committed, or may have been."""
        pending = self._pending.pop(number)
        self._pending_bytes -= len(pending.command)
        self._measurements.proposals[REJECTED if isinstance(outcome, Rejected) else UNKNOWN] += 1
        pending.done(outcome)

    # Messages

    def on_forward(self, peer: str, message: Forward) -> None:
        groups = unpack_groups(message.proposals)
        if len(groups) != 1 or groups[0][0].node != peer:
            raise MalformedError("a forward must contain exactly one group, and it must be of its sender")
        if not self._core.is_leader or message.term != self._core.term:
            self._outbox.send(peer, ForwardReply(*self._outbox.address(peer), message.sequence, 0, 0))
            return
        if self._refused() or self._arrived_bytes + len(message.proposals) > self.config.pending_proposals_bytes_max:
            return
        origin = groups[0][0]
        if not self._is_current(peer, message, origin):
            return
        self._arrived.append((peer, message, origin))
        self._arrived_bytes += len(message.proposals)

    def _is_current(self, peer: str, message: Forward, origin: Origin) -> bool:
        """Whether a forward is of this term, and of the process of ``peer`` that is accepted now.

        The session table has one row for each node. After another incarnation has proposed, the row does not show what an earlier
        boot of this incarnation did.
        """
        if not self._defences.current_forwards:
            return True
        boot = self._boot_of(peer, message.source)
        is_current = message.term == self._core.term and origin.incarnation == message.source and boot in (None, origin.boot)
        if not is_current:
            self._context.counters["stale_forwards"] += 1
        return is_current

    def on_forward_reply(self, message: ForwardReply) -> None:
        known = self._forwards.pop(message.sequence, None)
        if known is None:
            return
        numbers = known[0]
        self._unsettled_bytes -= known[2]
        if message.log_index == 0:
            self._not_before = self._now() + self._context.heartbeat_seconds
            # this copy is refused; but the network may have repeated it, and the leader may have accepted the other copy
            self._requeue(numbers, False)
        elif message.log_index <= self._core.applied_index:
            self._requeue(numbers, False)  # the entry is applied already; as far as we know, our pending proposals were not in it
        else:
            self.placed.setdefault(message.log_index, []).append((message.term, numbers))

    # Application

    def apply(self, log_index: int, payload: bytes) -> None:
        """Apply a proposals entry, in log order on every node.

        Raises RolledBackError for a number of our own that this process has not issued. The MACHINE_ERRORS stop the node.
        """
        machine_apply, at_most_once = self._state_machine.apply, self._defences.at_most_once
        pending, term, now = self._pending, self._log.term_at(log_index) or 0, self._now()
        for origin, floor, proposals in unpack_groups(payload, len(PROPOSALS)):
            ours = origin == self.origin
            if ours:
                self._check_issued(log_index, origin, max(proposals)[0] if proposals else floor)
            elif origin.incarnation == self.origin.incarnation:
                self._check_issued(log_index, origin, 0)
            session = self._sessions.session(origin, floor, self._configuration.applied.get(origin.node))
            if session is None:
                continue
            for number, command in proposals:
                if not session.take(number) and at_most_once:
                    continue
                try:
                    result = machine_apply(command)
                except UnknownCommandError:
                    raise
                except Exception as error:
                    if isinstance(error, MACHINE_ERRORS) and self._defences.fatal_errors:
                        raise
                    self._context.counters["apply_failures"] += 1
                    self._context.note(f"apply raised at index {log_index}: {error!r}")
                    result = ApplyFailed(type(error).__name__)
                if ours and number in pending:
                    self._committed(pending.pop(number), Committed(result, log_index, term), now)

    def _check_issued(self, log_index: int, origin: Origin, newest: int) -> None:
        """``origin`` is this directory's: check that it is an earlier boot, or that this process has issued number ``newest``."""
        if not self._defences.own_numbers or origin.boot < self.origin.boot:
            return
        if origin.boot > self.origin.boot or not self._first <= newest < self._next:
            raise RolledBackError(
                f"disk rolled back: up to entry {log_index} there are proposals that boot {origin.boot} of this data directory "
                f"made, and this process, boot {self.origin.boot}, did not. The directory was restored from an older image. "
                "Start the node again: it returns without a vote, catches up and is then promoted; a group of one needs its "
                "whole directory back"
            )

    def renumber(self, origin: Origin) -> None:
        """Continue as ``origin``. All pending proposals end as indeterminate. Even one that is still in the queue may have been
        applied under the earlier origin: if the machine was reset, its queue is that of an earlier time."""
        self.origin = origin
        for number in list(self._pending):
            self._end(number, Indeterminate("this node gave up its incarnation; the command may still be applied"))
        self._forwards.clear()
        self._uncommitted.clear()
        self._arrived.clear()
        self._unsettled_bytes = self._arrived_bytes = 0
        self.placed.clear()

    def distrust_requests(self) -> None:
        """The machine may have been reset, memory included. Then requests that waited in the callers of this package when the
        image was taken are executed again, so take no proposals until their time limit has passed. Each of them began after the
        start of the process."""
        now = self._now()
        self._uncertain_until = now + min(self.config.proposal_timeout_ms / 1000, now - self._started_at)

    def applied(self, log_index: int) -> None:
        """The entry at ``log_index`` was applied: copies that we put there in another term will never be committed, so the
        proposals wait again."""
        term = self._log.term_at(log_index)
        for placed_term, numbers in self.placed.pop(log_index, ()):
            if placed_term != term:
                self._requeue(numbers, True)

    def restored(self, log_index: int) -> None:
        """A snapshot replaced entries that we did not apply one by one."""
        session = self._sessions.newest(self.origin.node)
        if session is not None and session.origin.incarnation == self.origin.incarnation:
            self._check_issued(log_index, session.origin, max(self._first, session.next - 1))
        if session is not None and session.origin == self.origin:
            for number in [n for n in self._pending if session.applied(n)]:
                self._end(number, Indeterminate("applied, but the result is unknown: a snapshot replaced the entry"))
        for index in [i for i in self.placed if i <= log_index]:
            for _, numbers in self.placed.pop(index):
                self._requeue(numbers, False)

    def stop(self, reason: str) -> None:
        for number, pending in list(self._pending.items()):
            self._end(number, Indeterminate(reason) if pending.copies else Rejected(reason, None))
        self._queue.clear()
        self._arrived.clear()

    def memory(self) -> dict[str, Bounded]:
        """The memory used here, and its bounds."""
        config = self.config
        count, size = config.pending_proposals_max, config.pending_proposals_bytes_max
        return {
            "pending_proposals": (len(self._pending), count),
            "pending_proposals_bytes": (self._pending_bytes, size),
            "queued_proposals": (len(self._queue), 2 * count),
            "forwards": (len(self._forwards), count),
            "placed_proposals": (len(self.placed), (PLACED_PER_PENDING + 2) * count + PLACED_SPARE),
            "arrived_forwards_bytes": (self._arrived_bytes, size),
        }
