"""The schedule of faults of one run, drawn from its seed.

A run first draws its kinds of faults and their density, then the time, length and kind of every fault. Runs with few kinds reach
states that runs with all kinds never reach (swarm testing). Long faults are drawn from a stream of their own, in a share of the
runs, so the other faults of a seed do not depend on them. The same holds for rare faults, which are expensive.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from replicated_namesrv.simulation.world import MS, SECOND, World, exponential

_RACES = ("abandoned", "amnesia", "deaf_hand_over", "forgetful_voter", "old_image", "orphaned_join", "put_back", "slow_leader")
"""Kinds of faults that have several steps. A fifth of the runs has only these, with a mean gap of 1.5 s."""
LONG = "one_way_for_minutes"
_LONG_SHARE = 0.07
"""Share of the runs that have a fault of this kind."""
_BESIDE_LONG = ("crash", "isolate", "pause", "power_loss", "restart", "transfer")
"""Kinds of faults that strike during a long one, in half of these runs, with a mean gap of 20 s."""
FIRST_LONG = 1_000
"""Number of the first fault that is drawn with a long one. The numbers do not depend on the other faults, so a run can be reduced
to some of its faults."""
_RARE = {"burst": (0.2, 0.8), "split_votes": (2.0, 5.0), "stuck_disk": (10.0, 16.0)}
"""Kinds of rare faults, with their shortest and longest duration in seconds."""
_RARE_SHARE = 0.2
"""Share of the runs that have a rare fault. A fault that would last beyond the others is omitted."""
FIRST_RARE = 2_000
"""Number of the first rare fault."""
ALONE = frozenset(
    (
        "pause", "crash", "power_loss", "restart", "crash_all", "power_loss_all",
        "slow_disk", "full_disk", "failing_disk", "hung_disk", "no_memory", "clock", "burst", "stuck_disk",
    )
)  # fmt: skip  # items grouped by line
"""Kinds of faults that are possible with a single node."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a schedule."""

    number: int
    at_ns: int
    duration_ns: int
    kind: str

    @property
    def end_ns(self) -> int:
        """The time at which it ends."""
        return self.at_ns + self.duration_ns

    def describe(self) -> str:
        """The fault as text."""
        return f"#{self.number} {self.kind} at {self.at_ns / SECOND:.3f} s for {self.duration_ns / SECOND:.3f} s"


def plan_faults(world: World, end_ns: int, kinds: Iterable[str]) -> list[Fault]:
    """The schedule of a run that ends its faults at ``end_ns``."""
    rng = world.random("faults")
    known = sorted(set(kinds) - {LONG, *_RARE})
    share = rng.choice((0.1, 0.4))
    chosen = [kind for kind in known if rng.random() < share] or known
    gap_ms = rng.choice((200, 700, 2_000, 4_000))
    if rng.random() < 0.2:
        chosen, gap_ms = list(_RACES), 1_500
    faults: list[Fault] = []
    at_ns = rng.choice((0, SECOND, 2 * SECOND))
    while True:
        at_ns += int(exponential(rng) * gap_ms * MS) + 1
        if at_ns >= end_ns:
            return faults
        longest_ms = gap_ms * rng.choice((0.3, 1.0, 3.0))
        duration_ns = min(int(rng.random() * longest_ms * MS) + MS, end_ns - at_ns)
        faults.append(Fault(len(faults), at_ns, duration_ns, rng.choice(chosen)))


def plan_long_faults(world: World, end_ns: int) -> list[Fault]:
    """A fault of two to four minutes in a share of the runs, which begins before ``end_ns``. In half of these runs, other faults
    strike during it."""
    rng = world.random("long faults")
    if rng.random() >= _LONG_SHARE:
        return []
    faults = [Fault(FIRST_LONG, int(rng.random() * end_ns), int((120 + 120 * rng.random()) * SECOND), LONG)]
    if rng.random() < 0.5:
        return faults
    at_ns = end_ns
    while True:
        at_ns += int(exponential(rng) * 20 * SECOND) + 1
        duration_ns = int(rng.random() * 3 * SECOND) + MS
        if at_ns + duration_ns >= faults[0].end_ns:
            return faults
        faults.append(Fault(FIRST_LONG + len(faults), at_ns, duration_ns, rng.choice(_BESIDE_LONG)))


def plan_rare_faults(world: World, end_ns: int, always: Collection[str]) -> list[Fault]:
    """Rare faults of a run that ends its faults at ``end_ns``. ``always``: kinds that this run must have."""
    rng = world.random("rare faults")
    drawn = [rng.choice(sorted(_RARE))] if rng.random() < _RARE_SHARE else []
    faults: list[Fault] = []
    for number, kind in enumerate((*drawn, *sorted(always))):
        shortest_s, longest_s = _RARE[kind]
        duration_ns = int((shortest_s + (longest_s - shortest_s) * rng.random()) * SECOND)
        at_ns = 2 * SECOND + int(rng.random() * (end_ns - duration_ns - 2 * SECOND))
        if at_ns >= 2 * SECOND:
            faults.append(Fault(FIRST_RARE + number, at_ns, duration_ns, kind))
    return faults
