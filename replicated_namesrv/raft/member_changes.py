"""Changes of the members that an operator requests: which of them the leader refuses, and the outcome of the others.

If a row matches, the change is refused and certainly not written; the first such row gives the remedy. Otherwise the leader
writes a MEMBERS entry.

| row | request | condition                                            | remedy                                       |
|-----|---------|------------------------------------------------------|----------------------------------------------|
| M1  | any     | this node does not lead                              | ask the leader                               |
| M2  | any     | a transfer of leadership, another change, or the first commit of this term is in progress; a full log | repeat |
| M3  | any     | a member does not know MEMBERS entries               | upgrade it                                   |
| M4  | add     | the name is a member                                 | another name, or remove it; promote an observer |
| M5  | other   | the name is not a member                             | list the members                             |
| M6  | any     | a limit or a malformed field                         | named in the refusal                         |
| M7  | promote | it is not an observer                                | nothing to do                                |
| M8  | promote | it lags, or does not answer                          | wait, or start it                            |
| M9  | remove  | it is the last voter                                 | add another one first                        |
| M10 | any     | fewer voters answer than the quorum after the change | bring voters back, or remove those that are gone |
| M11 | remove  | it leads                                             | leadership is transferred; ask the next leader |

M10 does not count a voter that is moved, unless there are only two: the other members close their connections to it, and reach it
only after its restart.

The tests have the names of the rows: ``tests/raft/test_member_changes.py``.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from replicated_namesrv.listening import is_same_host
from replicated_namesrv.raft.configuration import Configuration
from replicated_namesrv.raft.entry_log import Log
from replicated_namesrv.raft.followers import Followers
from replicated_namesrv.raft.interfaces import Committed, Indeterminate, Outcome, RaftState, Rejected
from replicated_namesrv.raft.leadership import Leadership
from replicated_namesrv.raft.members import (
    MEMBERS_MAX,
    VOTERS_MAX,
    Kind,
    Members,
    RaftMember,
    is_for_listening,
    pack_members,
    places,
    problem_of,
    quorum_of,
)
from replicated_namesrv.raft.node_context import NodeContext
from replicated_namesrv.raft.promotion import Promotion
from replicated_namesrv.raft.raft_messages import MEMBERS_PROTOCOL

Done = Callable[[Outcome], None]
Address = tuple[str, int]
ROWS = tuple(f"M{number}" for number in range(1, 12))
ACTIONS = ("add", "remove", "promote", "move", "describe")


class MemberChange(NamedTuple):
    """One request."""

    action: str
    """The kind of change: one of ``ACTIONS``."""
    name: str
    address: Address | None = None
    """Address at which the other members reach the member; for ``add`` and ``move``."""
    observer: bool = False
    """For ``add``: the new member does not vote until it is promoted."""
    details: str | None = None
    """For ``add``, ``move`` and ``describe``: a text that the user of this package defines. None: with ``move`` the text becomes
    empty."""


PASSING_ROWS = {"M2", "M11"}
"""Rows whose conditions end by themselves within seconds."""


class Refusal(NamedTuple):
    """The outcome of a row of the table."""

    row: str
    reason: str


class Transfers(Protocol):
    """The methods of the leadership transfer that changes need."""

    @property
    def running(self) -> bool: ...

    def start(self, peer: str | None, done: Callable[[bool], None]) -> None: ...


class MemberChanges:
    """The requests of one node. On a leader, at most one change is undecided."""

    def __init__(
        self,
        context: NodeContext,
        core: RaftState,
        log: Log,
        configuration: Configuration,
        followers: Followers,
        leadership: Leadership,
        promotion: Promotion,
        transfer: Transfers,
        protocol: Callable[[str], int | None],
        addresses: Mapping[str, Address],
    ) -> None:
        """``protocol``: the newest protocol that a peer supports, None if it has not greeted. ``addresses``: those of the
        configured members, which the first MEMBERS entry takes over."""
        self._context, self._defences, self._now = context, context.defences, context.now
        self._core, self._log, self._configuration, self._followers = core, log, configuration, followers
        self._leadership, self._promotion, self._transfer = leadership, promotion, transfer
        self._protocol, self._addresses = protocol, addresses
        self._undecided: tuple[int, int, Done] | None = None
        """(index, term, done) of the change that is in the log and not applied yet; None: there is none."""

    def request(self, change: MemberChange, done: Done) -> None:
        """Change a member. ``done`` gets the outcome once, perhaps before this returns: Committed when the change is applied here
        (an added voter is a learner then), Rejected if it is certainly not written."""
        refusal = self.refusal(change)
        if refusal is not None:
            if refusal.row == "M11":
                self._transfer.start(None, lambda _: None)
            done(Rejected(refusal.reason, self._leader, is_passing=refusal.row in PASSING_ROWS))
            return
        index = self._promotion.write(pack_members(self._after(change)))
        if self._undecided is not None:  # this can only happen without ``Defences.single_change``
            self._end(Indeterminate("another change followed"))
        self._undecided = index, self._core.term, done

    @property
    def _leader(self) -> str | None:
        return self._leadership.leader_of(self._core.term)

    # Decisions

    def refusal(self, change: MemberChange) -> Refusal | None:
        """Why ``change`` is refused now, by the table above; None if it is accepted."""
        name, members = change.name, self._configuration.members
        if not self._core.is_leader:  # M1
            known = f"{self._leader} is" if self._leader else "no leader is known"
            return Refusal("M1", f"{self._context.node_id} is not the leader, {known}; ask the leader")
        if self._transfer.running:  # M2
            return Refusal("M2", "leadership is being transferred; repeat the request in a second")
        if (obstacle := self._promotion.obstacle()) is not None:
            return Refusal("M2", f"{obstacle}; repeat the request in a second")
        if (old := self._old_members()) is not None:  # M3
            return Refusal("M3", old)
        if change.action == "add" and name in members:  # M4
            if members[name].kind is Kind.OBSERVER and not change.observer:
                return Refusal("M4", f"{name} is a member already, an observer; promote it, or choose another name")
            return Refusal("M4", f"{name} is a member already; choose another name, or remove it first")
        if change.action != "add" and name not in members:  # M5
            known = ", ".join(sorted(members))
            return Refusal("M5", f"{name} is not a member: it was removed already, or never was one; the members are {known}")
        after = self._after(change)
        if (problem := self._problem_of(change, after)) is not None:  # M6
            return Refusal("M6", problem)
        if change.action == "promote":
            if members[name].kind is not Kind.OBSERVER:  # M7
                kind = members[name].kind.name.lower()
                return Refusal("M7", f"{name} is a {kind}: only an observer can be promoted; a learner votes once it keeps up")
            if (lag := self._lag(name)) is not None:  # M8
                return Refusal("M8", lag)
        if not places(after):  # M9
            return Refusal("M9", f"{name} is the last voter: without it nothing could be written; add another one first")
        if (fewer := self._too_few(change, after)) is not None:  # M10
            return Refusal("M10", fewer)
        if self._context.node_id not in places(after) and self._defences.leader_stays:  # M11
            return Refusal("M11", f"{name} leads: it transfers leadership now; send the request to the next leader")
        return None

    def _old_members(self) -> str | None:
        if not self._configuration.is_static:
            return None  # the members are in the log, so this was checked before the first MEMBERS entry
        spoken = {peer: self._protocol(peer) for peer in self._context.peers}
        greeted = {peer: protocol for peer, protocol in spoken.items() if protocol is not None}
        old = sorted(peer for peer, protocol in greeted.items() if protocol < MEMBERS_PROTOCOL)
        knowing = (greeted.keys() - set(old)) | {self._context.node_id}
        if old or len(knowing & self._context.voters) < self._context.quorum:
            names = ", ".join(old) or ", ".join(sorted(self._context.voters - knowing))
            return f"the members cannot be changed before {names} is upgraded to this version and has connected"
        return None

    def _after(self, change: MemberChange) -> Members:
        """The members after ``change``, with the configured addresses for those whose address is not in the log."""
        members = {name: self._with_address(name, member) for name, member in self._configuration.members.items()}
        name, before = change.name, members.get(change.name, RaftMember(Kind.OBSERVER if change.observer else Kind.LEARNER))
        if change.action == "remove":
            members.pop(name, None)
        elif change.action == "promote":
            members[name] = before._replace(kind=Kind.LEARNER)
        else:
            host, port = change.address or (before.host, before.port)
            kept = "" if change.action == "move" else before.details  # the text may describe the machine that it leaves
            details = kept if change.details is None else change.details
            members[name] = before._replace(host=host, port=port, details=details)
        return members

    def _with_address(self, name: str, member: RaftMember) -> RaftMember:
        if member.host or name not in self._addresses:
            return member
        host, port = self._addresses[name]
        return member._replace(host=host, port=port)

    def _problem_of(self, change: MemberChange, after: Members) -> str | None:
        if change.action in ("add", "move", "describe"):
            if (problem := problem_of(change.name, after[change.name])) is not None:
                return problem
            others = {name: member for name, member in after.items() if name != change.name and member.host}
            host, port = change.address or ("", 0)
            owner = next((name for name, m in others.items() if port == m.port and is_same_host(host, m.host)), None)
            if change.address is not None and owner is not None:
                return f"{host}:{port} is the address of {owner}; give another one, or remove or move {owner} first"
        if (unreachable := self._unreachable(change, after)) is not None:
            return unreachable
        unknown = sorted(name for name, member in after.items() if not member.host) if self._addresses else []
        if unknown:
            return (
                f"{self._context.node_id}, the leader, does not know the address of {', '.join(unknown)}; transfer leadership to "
                "a node whose settings name all members, and repeat the request"
            )
        if change.action == "add" and len(after) > MEMBERS_MAX:
            return f"the cluster has {MEMBERS_MAX} members, the most allowed; remove one first"
        wanted = sum(member.kind is not Kind.OBSERVER for member in after.values())
        grows = change.action == "promote" or (change.action == "add" and not change.observer)
        if grows and wanted > VOTERS_MAX:
            return f"the cluster has {VOTERS_MAX} voters and learners, the most allowed; remove one first, or add an observer"
        return None

    def _unreachable(self, change: MemberChange, after: Members) -> str | None:
        """Why the other members cannot reach a member at an address that this change would write."""
        for name, member in after.items():
            before = self._configuration.members.get(name, RaftMember())
            if (member.host, member.port) == (before.host, before.port) or not is_for_listening(member.host, member.port):
                continue
            given = name == change.name and change.address is not None
            where = "given" if given else f"that {self._context.node_id}, the leader, is configured with"
            remedy = "give another one" if given else "correct it there and start that node again"
            return f"no other node reaches {name} at {member.host}:{member.port}, the address {where}; {remedy}"
        return None

    def _contact_limit(self) -> float:
        """A member that has acknowledged nothing sent since then does not answer. CheckQuorum allows the same time."""
        return self._now() - self._context.config.election_min_ms / 1000

    def _lag(self, name: str) -> str | None:
        progress = self._followers.progress.get(name)
        if progress is None or not progress.connected:
            return f"{name} is not connected to the leader; start it, or correct its address with move"
        lag, most = self._log.last_index - progress.match, self._context.config.apply_entries_max
        if lag > most:
            return f"{name} lags {lag} entries behind the leader; wait until it lags at most {most}"
        is_silent = progress.acknowledged_at < self._contact_limit()
        return f"{name} does not answer the leader; see why its process or its links do not work" if is_silent else None

    def _too_few(self, change: MemberChange, after: Members) -> str | None:
        # Without a quorum after the change, this leader would step down, and none could be elected. A voter whose connection was
        # closed counts again when it has answered over a new one: it may have lost its disk, and then it needs a quorum to join.
        limit = self._contact_limit()
        answering = {
            p.peer
            for p in self._followers.progress.values()
            if p.has_answered and p.acknowledged_at >= limit and self._configuration.latest.get(p.peer) == p.incarnation
        } | {self._context.node_id}
        needed, voters = quorum_of(after), places(after)
        before = self._with_address(change.name, self._configuration.members.get(change.name, RaftMember()))
        moves = change.action == "move" and change.address != (before.host, before.port) and change.name in voters
        if moves and len(voters) > 2:
            answering.discard(change.name)
        if len(answering & voters) >= needed or quorum_of(self._configuration.members) == 1:
            return None
        silent = ", ".join(sorted(voters - answering - ({change.name} if moves else set())))
        until = f", until {change.name} is started at its new address," if moves else ""
        return (
            f"after this change{until} {needed} of {len(voters)} voters would be needed, and {silent} does not answer now; "
            "start it, or remove it first"
        )

    # The outcome

    def applied(self, index: int) -> None:
        """The entry at ``index`` was applied."""
        if self._undecided is not None and index >= self._undecided[0]:
            written, term, _ = self._undecided
            if index == written and self._log.term_at(index) == term:
                self._end(Committed(None, index, term))
            else:
                self._end(Indeterminate("the leader changed; list the members to see whether the change was made"))

    def stopped(self, reason: str) -> None:
        """This node does not lead any more, or stops."""
        if self._undecided is not None:
            self._end(Indeterminate(f"{reason}; list the members to see whether the change was made"))

    def _end(self, outcome: Outcome) -> None:
        assert self._undecided is not None
        done, self._undecided = self._undecided[2], None
        done(outcome)
