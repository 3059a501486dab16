"""Searches for a legal order of operations on a map: the algorithm of Wing and Gong in Lowe's just-in-time form.

Events (invocations and returns) are processed by time. A *configuration* is a possible state together with the set of open
operations that have already taken effect. Operations take effect as late as possible: when one returns, it must have taken
effect in each configuration. A configuration in which this is impossible is dropped. If no configuration is left, there is no
legal order: the history up to that return is not linearizable. (Wing, Gong: Testing and verifying concurrent objects, 1993; Lowe:
Testing for linearizability, 2017.)

The following rules keep the number of configurations small. They lose no legal order, because reads have no effect, and writes
are *blind*: what a write stores does not depend on the state:

- An open read that is legal in the present state takes effect at once.
- When an operation returns, an open write needs to take effect before it only in three cases: the write is that operation, an
  open read demands its token, or a second write of the same token exists. Otherwise the write can take effect later.
- A write whose token no later read demands (a *burden*) takes effect directly before the next write to its component.
- A configuration is dead if it overwrites a token that a later read demands and that no remaining write produces.
- Indeterminate writes stay open for ever. Those never read are left out, and equal ones take effect in order. If two
  configurations differ only in the indeterminate writes that have taken effect, the one with fewer such writes *covers* the
  other: each legal order that continues the other also continues it.

Steps and configurations are bounded; beyond the bound the answer is UNKNOWN. Other work that grows counts as steps too: the
configurations visited at each return, and the open writes visited at each step.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from replicated_namesrv.verify.models import Token

_NEVER = -1
_WRITES_PER_STEP, _SETS_PER_STEP = 16, 16
"""Number of open writes, and number of sets of indeterminate writes, whose processing takes about as long as one step."""
_BITS = 512
"""A configuration is assumed to take about 200 bytes. This number of operations fits into them. If there are more, fewer
configurations are kept.
"""


class Step(NamedTuple):
    """One operation as the search sees it."""

    start_ns: int
    end_ns: int | None
    """When the operation returned; None: it never returns."""
    writes: Token | None
    reads: tuple[Token, ...] | None


class SearchOutcome(Enum):
    """Outcomes of a search."""

    LINEARIZABLE = "linearizable"
    VIOLATED = "violated"
    UNKNOWN = "unknown"


class Found(NamedTuple):
    """Result of a search."""

    answer: SearchOutcome
    step: int
    """Index of the operation at whose return no configuration was left; -1 if the history is not violated."""
    steps: int
    """Number of steps, including other work that counts as steps. The limit applies to this number."""


class Bounds(NamedTuple):
    """Limits of a search."""

    steps: int
    configurations: int


_Configuration = tuple[int, int, int]
"""State; bits of the open operations that have taken effect; bits of the indeterminate writes that have taken effect."""


def search(steps: Sequence[Step], bounds: Bounds) -> Found:
    """Search for a legal order of ``steps``. Open reads must have been left out."""
    return _Search(steps, bounds).run()


class _States:
    """Tokens, components and states as small integers. Each transition is computed once."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.components: dict[str, int] = {}
        self.tokens: dict[Token, int] = {}
        for step in steps:
            for token in (step.writes, *(step.reads or ())):
                if token is not None:
                    self.components.setdefault(token.component, len(self.components))
        self.absent = tuple(self.token(Token(component, None)) for component in self.components)
        self.states: dict[tuple[int, ...], int] = {}
        self.content: list[tuple[int, ...]] = []
        self.initial = self._intern(self.absent)
        self._after: dict[tuple[int, int, int], int] = {}

    def token(self, token: Token) -> int:
        return self.tokens.setdefault(token, len(self.tokens))

    def _intern(self, content: tuple[int, ...]) -> int:
        state = self.states.setdefault(content, len(self.content))
        if state == len(self.content):
            self.content.append(content)
        return state

    def demanded(self, tokens: tuple[Token, ...]) -> int:
        content = list(self.absent)
        for token in tokens:
            content[self.components[token.component]] = self.token(token)
        return self._intern(tuple(content))

    def after(self, state: int, component: int, token: int) -> int:
        key = (state, component, token)
        known = self._after.get(key)
        if known is None:
            content = list(self.content[state])
            content[component] = token
            known = self._after[key] = self._intern(tuple(content))
        return known


class _Search:
    def __init__(self, steps: Sequence[Step], bounds: Bounds) -> None:
        self._steps, self._bounds, self._used = steps, bounds, 0
        self._states = states = _States(steps)
        self._component = [0 if step.writes is None else states.components[step.writes.component] for step in steps]
        self._writes = [_NEVER if step.writes is None else states.token(step.writes) for step in steps]
        self._reads = [_NEVER if step.reads is None else states.demanded(step.reads) for step in steps]
        self._events = self._order(steps)
        self._now = 0
        self._look_ahead()
        self._configurations: set[_Configuration] = {(states.initial, 0, 0)}
        self._free_bits: list[int] = []
        self._bits = 0
        self._bit: dict[int, int] = {}
        self._open_demands: Counter[int] = Counter()
        self._open_reads: defaultdict[int, int] = defaultdict(int)
        self._open_writes: dict[int, int] = {}
        self._endless: list[int] = []
        self._endless_bit: dict[int, int] = {}
        self._producing: defaultdict[int, int] = defaultdict(int)
        self._producing_endless: defaultdict[int, int] = defaultdict(int)

    def _order(self, steps: Sequence[Step]) -> list[tuple[int, bool, int]]:
        """(time, is a return, index): at equal times invocations come first, so that touching operations overlap."""
        demanded = {token for state in {s for s in self._reads if s != _NEVER} for token in self._states.content[state]}
        events = []
        for index, step in enumerate(steps):
            if step.end_ns is not None:
                events.append((step.start_ns, False, index))
                events.append((step.end_ns, True, index))
            elif self._writes[index] in demanded:
                events.append((step.start_ns, False, index))
        events.sort()
        return events

    def _look_ahead(self) -> None:
        """Position of the last invocation that demands or produces each token, and the tokens that are written twice."""
        count = len(self._states.tokens)
        self._last_demand, self._last_production = [_NEVER] * count, [_NEVER] * count
        productions: Counter[int] = Counter()
        for position, (_, returns, index) in enumerate(self._events):
            if returns:
                continue
            if self._reads[index] != _NEVER:
                for token in self._states.content[self._reads[index]]:
                    self._last_demand[token] = position
            else:
                self._last_production[self._writes[index]] = position
                productions[self._writes[index]] += 1
        self._repeated = {token for token, times in productions.items() if times > 1}

    def run(self) -> Found:
        for position, (_, returns, index) in enumerate(self._events):
            self._now = position
            if not returns:
                self._invoke(index)
                continue
            if not self._return(index):
                return Found(SearchOutcome.UNKNOWN, _NEVER, self._used)
            if not self._configurations:
                return Found(SearchOutcome.VIOLATED, index, self._used)
        return Found(SearchOutcome.LINEARIZABLE, _NEVER, self._used)

    def _invoke(self, index: int) -> None:
        token = self._writes[index]
        if self._steps[index].end_ns is None:
            bit = self._endless_bit[index] = 1 << len(self._endless)
            self._endless.append(index)
            self._producing_endless[token] |= bit
            return
        bit = self._bit[index] = self._take_bit()
        if token != _NEVER:
            self._open_writes[index] = bit
            self._producing[token] |= bit
            return
        state = self._reads[index]
        self._open_reads[state] |= bit
        self._open_demands.update(self._states.content[state])
        self._configurations = {(s, done | bit if s == state else done, endless) for s, done, endless in self._configurations}

    def _take_bit(self) -> int:
        if self._free_bits:
            return self._free_bits.pop()
        self._bits += 1
        return 1 << (self._bits - 1)

    def _return(self, index: int) -> bool:
        """Let ``index`` take effect in every configuration. Returns False if a limit was exceeded."""
        bit = self._bit.pop(index)
        self._used += len(self._configurations) - 1
        burdened = len(self._open_writes) // _WRITES_PER_STEP
        room = self._bounds.configurations * _BITS // max(_BITS, self._bits + len(self._endless))
        behind: set[_Configuration] = set()
        stack: list[_Configuration] = []
        for configuration in self._configurations:
            if configuration[1] & bit:
                behind.add(configuration)
            else:
                stack.append(configuration)
        seen = set(stack)
        while stack:
            configuration = stack.pop()
            for candidate in self._candidates(configuration, index):
                self._used += 1 + burdened
                if self._is_spent():
                    return False
                reached = self._take_effect(configuration, candidate)
                if reached is None or reached in seen:
                    continue
                if reached[1] & bit:
                    behind.add(reached)
                else:
                    seen.add(reached)
                    stack.append(reached)
            if len(seen) + len(behind) > room:
                return False
        self._close(index, bit)
        self._configurations = self._least({(state, done & ~bit, endless) for state, done, endless in behind})
        return not self._is_spent()

    def _is_spent(self) -> bool:
        return self._used > self._bounds.steps

    def _close(self, index: int, bit: int) -> None:
        self._free_bits.append(bit)
        if self._writes[index] != _NEVER:
            del self._open_writes[index]
            self._producing[self._writes[index]] &= ~bit
            return
        state = self._reads[index]
        self._open_reads[state] &= ~bit
        for token in self._states.content[state]:
            self._open_demands[token] -= 1
            if self._open_demands[token] == 0:
                del self._open_demands[token]

    def _candidates(self, configuration: _Configuration, returning: int) -> list[int]:
        """Open writes that may have to take effect before ``returning``, and ``returning`` itself."""
        _, done, endless = configuration
        demands, writes = self._open_demands, self._writes
        found = [
            index
            for index, bit in self._open_writes.items()
            if not done & bit and (index == returning or writes[index] in demands or writes[index] in self._repeated)
        ]
        for token in demands:
            left = self._producing_endless.get(token, 0) & ~endless
            if left:
                found.append(self._endless[(left & -left).bit_length() - 1])
        return found

    def _take_effect(self, configuration: _Configuration, index: int) -> _Configuration | None:
        """The configuration after the write ``index``, with its burdens directly before it. None if the configuration is dead."""
        state, done, endless = configuration
        token, component = self._writes[index], self._component[index]
        if index in self._open_writes:
            done |= self._open_writes[index]
        else:
            endless |= self._endless_bit[index]
        for other, bit in self._open_writes.items():
            if not done & bit and self._component[other] == component and self._is_burden(self._writes[other]):
                done |= bit
        old = self._states.content[state][component]
        if old != token:
            if self._last_demand[old] > self._now and not self._can_return(old, done, endless):
                return None
            state = self._states.after(state, component, token)
        return state, done | self._open_reads[state], endless

    def _is_burden(self, token: int) -> bool:
        return token not in self._open_demands and self._last_demand[token] <= self._now

    def _can_return(self, token: int, done: int, endless: int) -> bool:
        return (
            self._last_production[token] > self._now
            or bool(self._producing[token] & ~done)
            or bool(self._producing_endless[token] & ~endless)
        )

    def _least(self, configurations: set[_Configuration]) -> set[_Configuration]:
        """The configurations that no other one covers. A configuration covers another one that differs only in having used more
        indeterminate writes.
        """
        if len(configurations) < 2:
            return configurations
        used: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for state, done, endless in configurations:
            used[state, done].append(endless)
        least = set()
        for (state, done), sets in used.items():
            kept: list[int] = []
            for endless in sorted(sets, key=int.bit_count):
                self._used += len(kept) // _SETS_PER_STEP
                if self._is_spent() or not any(smaller & endless == smaller for smaller in kept):
                    kept.append(endless)
                    least.add((state, done, endless))
        return least
