"""Linearizability checker for histories, with a small witness for each violation.

A history is linearizable if and only if the operations on each key are (locality, Herlihy and Wing), so each key is judged
alone. Failed operations are left out. Indeterminate ones may take effect at any time after their start, or never. The verdict
is VALID, VIOLATED with a witness, or UNKNOWN if the search exceeded its limits. The check always ends.

The search is exponential only in the number of operations on one key that are open at the same time and write equal values, or
that are indeterminate and later read. A key with eight clients and unique values costs a few steps per operation.

The witness is found in two steps:

1. Bisection finds the shortest prefix that is not linearizable. This works because every prefix of a linearizable history is
   linearizable.
2. Operations are removed while the rest still fails. A removal is allowed only if it cannot break a legal history. These can be
   removed: reads; all writes of one value with all reads of it; the writes of a component that ended before another write of the
   component began, together with all reads that began before this other write ended.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeVar

from replicated_namesrv.verify.models import Action, Token, model_of
from replicated_namesrv.verify.operation_history import Operation, Outcome
from replicated_namesrv.verify.search import Bounds, Found, SearchOutcome, Step, search

_Part = TypeVar("_Part")


class Verdict(StrEnum):
    """Judgement of a key or a history."""

    VALID = "valid"
    VIOLATED = "violated"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """Limits of the check of one key. Beyond them the verdict is UNKNOWN."""

    steps: int = 3_000_000
    """Maximum number of configurations that are tried; about a million are tried per second."""
    configurations: int = 200_000
    """Maximum number of configurations in memory at once; each takes some 200 bytes."""


@dataclass(frozen=True, slots=True)
class KeyVerdict:
    """Judgement of one key."""

    key: str
    model: str
    verdict: Verdict
    operations: int
    """Number of operations that were judged; operations that failed are left out."""
    prefix: int
    """VIOLATED: number of operations that had begun when the shortest failing prefix ended; else 0."""
    witness: tuple[Operation, ...]
    """VIOLATED: a few operations without a legal order, by start time."""
    unwritten: tuple[Token, ...] = ()
    """VIOLATED: values that were read although no operation of the key can have written them."""

    def describe(self) -> str:
        """The verdict as text."""
        if self.verdict is Verdict.VALID:
            return f"{self.key}: linearizable ({self.operations} operations)"
        if self.verdict is Verdict.UNKNOWN:
            return f"{self.key}: unknown: the search among {self.operations} operations exceeded its limits"
        origin = self.witness[0].start_ns
        lines = [
            f"{self.key}: not linearizable as a {self.model}; "
            f"the first {self.prefix} of its {self.operations} operations have no legal order.",
            f"These {len(self.witness)} have no legal order (times after the first):",
            *(f"  {operation.describe(origin)}" for operation in self.witness),
            *(f"  No operation wrote {' = '.join(filter(None, token))}." for token in self.unwritten),
        ]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class HistoryVerdict:
    """Judgement of a history: VIOLATED if the verdict on a key is VIOLATED, else UNKNOWN if the verdict on a key is UNKNOWN."""

    verdict: Verdict
    operations: int
    keys: tuple[KeyVerdict, ...]

    def describe(self) -> str:
        """The verdicts as text: every key that is not valid, or one line."""
        bad = [key.describe() for key in self.keys if key.verdict is not Verdict.VALID]
        return "\n".join(bad) or f"linearizable: {self.operations} operations on {len(self.keys)} keys"


class _Judged(NamedTuple):
    operation: Operation
    action: Action
    end_ns: int | None
    """When the operation returned. None: its outcome is indeterminate, or it did not return within the prefix."""


def check_history(operations: Iterable[Operation], limits: SearchLimits | None = None) -> HistoryVerdict:
    """Check a history. Raises HistoryError for operations that no model has."""
    keys: defaultdict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        keys[operation.key].append(operation)
    verdicts = tuple(_check_key(key, keys[key], limits or SearchLimits()) for key in sorted(keys))
    found = {verdict.verdict for verdict in verdicts}
    worst = next((verdict for verdict in (Verdict.VIOLATED, Verdict.UNKNOWN) if verdict in found), Verdict.VALID)
    return HistoryVerdict(worst, sum(verdict.operations for verdict in verdicts), verdicts)


def _check_key(key: str, operations: Sequence[Operation], limits: SearchLimits) -> KeyVerdict:
    model = model_of(operations)
    judged = [
        _Judged(operation, model.action(operation), None if operation.outcome is Outcome.INDETERMINATE else operation.end_ns)
        for operation in sorted(operations, key=lambda operation: operation.start_ns)
        if operation.outcome is Outcome.OK or (operation.outcome is Outcome.INDETERMINATE and operation.op != model.read)
    ]
    bounds = Bounds(limits.steps, limits.configurations)
    found = _search(judged, bounds)
    if found.answer is not SearchOutcome.VIOLATED:
        verdict = Verdict.VALID if found.answer is SearchOutcome.LINEARIZABLE else Verdict.UNKNOWN
        return KeyVerdict(key, model.name, verdict, len(judged), 0, ())
    prefix = _shortest_failing_prefix(judged, found.step, bounds)
    witness = _Witness(prefix, bounds).reduce()
    written = {item.action.writes for item in judged}
    unwritten = dict.fromkeys(token for item in witness for token in item.action.reads or () if token not in written)
    reported = tuple(item.operation for item in witness)
    return KeyVerdict(key, model.name, Verdict.VIOLATED, len(judged), len(prefix), reported, tuple(unwritten))


def _search(judged: Sequence[_Judged], bounds: Bounds) -> Found:
    return search([Step(item.operation.start_ns, item.end_ns, *item.action) for item in judged], bounds)


def _until(judged: Sequence[_Judged], end_ns: int) -> list[_Judged]:
    """The prefix up to ``end_ns``. Operations without a return are open; open reads are left out."""
    known = []
    for item in judged:
        if item.operation.start_ns > end_ns:
            continue
        if item.end_ns is not None and item.end_ns <= end_ns:
            known.append(item)
        elif item.action.writes is not None:
            known.append(item._replace(end_ns=None))
    return known


def _shortest_failing_prefix(judged: Sequence[_Judged], failed: int, bounds: Bounds) -> list[_Judged]:
    """The shortest prefix that fails, by bisection over the returns from the one at which the search failed. The search looks
    ahead, so this prefix may end after that return.
    """
    first = judged[failed].end_ns or 0
    ends = sorted({item.end_ns for item in judged if item.end_ns is not None and item.end_ns >= first})
    low, high = 0, len(ends) - 1
    while low < high:
        middle = (low + high) // 2
        if _search(_until(judged, ends[middle]), bounds).answer is SearchOutcome.VIOLATED:
            high = middle
        else:
            low = middle + 1
    return _until(judged, ends[high])


class _Witness:
    """Removes operations from a history while it still fails."""

    _MAX_TRIALS = 600
    _MAX_STEPS = 2_000_000
    _MAX_LAST = 8

    def __init__(self, failing: list[_Judged], bounds: Bounds) -> None:
        self._failing, self._bounds = failing, bounds
        self._trials, self._steps = self._MAX_TRIALS, self._MAX_STEPS

    def reduce(self) -> list[_Judged]:
        self._take_out(self._tokens(), _without_tokens)
        self._take_out([item for item in self._failing if item.action.reads is not None], _without_items)
        self._take_out(self._tokens(), _without_tokens)
        self._begin_late()
        return self._failing

    def _begin_late(self) -> None:
        """For each component: try to remove all operations before one of its last writes, and keep the shortest rest that still
        fails.
        """
        writes: defaultdict[str, list[_Judged]] = defaultdict(list)
        for item in self._failing:
            if item.action.writes is not None and item.end_ns is not None:
                writes[item.action.writes.component].append(item)
        for component in sorted(writes):
            for first in writes[component][: -self._MAX_LAST - 1 : -1]:
                rest = _from(self._failing, first)
                if self._fails(rest):
                    self._failing = rest
                    break

    def _fails(self, rest: list[_Judged]) -> bool:
        self._trials -= 1
        found = _search(rest, self._bounds)
        self._steps -= found.steps + len(rest)
        return found.answer is SearchOutcome.VIOLATED

    def _tokens(self) -> list[Token]:
        return sorted({item.action.writes for item in self._failing if item.action.writes is not None}, key=str)

    def _take_out(self, parts: list[_Part], without: Callable[[list[_Judged], list[_Part]], list[_Judged]]) -> None:
        size = len(parts)
        while size >= 1:
            at = 0
            while at < len(parts) and self._trials > 0 and self._steps > 0:
                chunk = parts[at : at + size]
                rest = without(self._failing, chunk)
                if self._fails(rest):
                    self._failing = rest
                    parts = parts[:at] + parts[at + size :]
                else:
                    at += size
            size //= 2


def _from(judged: list[_Judged], first: _Judged) -> list[_Judged]:
    """The operations, without (1) the reads that began before ``first`` ended, and (2) the writes to the component of ``first``
    that ended before ``first`` began. Of (2) the last write of each value that is still read is kept. No legal order puts a write
    of (2) after ``first``, or a remaining read before it."""
    component = None if first.action.writes is None else first.action.writes.component
    first_end_ns = first.end_ns or 0
    demanded = {token for item in judged if item.operation.start_ns > first_end_ns for token in item.action.reads or ()}
    kept: list[_Judged] = []
    for item in reversed(judged):
        token = item.action.writes
        if token is None:
            keep = item.operation.start_ns > first_end_ns
        else:
            ended = item.end_ns is not None and item.end_ns < first.operation.start_ns
            keep = token.component != component or not ended or token in demanded
            demanded.discard(token)
        if keep:
            kept.append(item)
    return kept[::-1]


def _without_items(judged: list[_Judged], items: list[_Judged]) -> list[_Judged]:
    gone = {id(item) for item in items}
    return [item for item in judged if id(item) not in gone]


def _without_tokens(judged: list[_Judged], tokens: list[Token]) -> list[_Judged]:
    gone = set(tokens)
    return [item for item in judged if item.action.writes not in gone and not _demands(item.action, gone)]


def _demands(action: Action, tokens: set[Token]) -> bool:
    if action.reads is None:
        return False
    present = {token.component for token in action.reads}
    return any(token in action.reads if token.value is not None else token.component not in present for token in tokens)
