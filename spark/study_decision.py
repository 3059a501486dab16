"""When CP is the better choice: a model of what a look-up costs in each mode, with measured inputs. Pure.

The cost of a look-up is a time: the time that a client waits for it, plus a time for each broker that is missing from its answer.
The inputs are measured, as differences of CP and AP in the same blocks:

- ``unanswered``: additional share of requests of fail-over clients that CP does not answer in time during a fault. Each costs the
  time-out of one attempt, DEADLINE_S.
- ``wrong``: additional share of living brokers that are missing from AP's answers during a fault. A missing broker costs
  ``cost_s``, which the reader chooses.
- ``slower``: how much longer a look-up takes in CP without a fault on one machine. LOOKUP_ROUND_TRIPS round trips between sites
  are added to it.

With faults during the share ``p`` of the time, CP is cheaper if ``cost_s`` is greater than
((slower + LOOKUP_ROUND_TRIPS x round trip) / p + unanswered x DEADLINE_S) / wrong.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from replicated_namesrv.spark.study_data import StudyData
from replicated_namesrv.spark.summary import REPLICATES_MIN, tail_share

DEADLINE_S = 3.0
"""RocketMQ's client waits this long for a name server (``MQClientConfig``: 3,000 ms)."""
LOOKUP_ROUND_TRIPS = 2
"""Round trips of a linearizable look-up at a node that does not lead: one to the leader, which needs one to a majority."""
ROUND_TRIPS_MS = (0, 10, 50, 150)
HOUR = 1 / (365 * 24)
FREQUENCIES = (("1 h a year", HOUR), ("1 h a month", 12 * HOUR), ("1 h a week", 52 * HOUR), ("1 h a day", 365 * HOUR))
"""Shares of time with a fault."""
RESAMPLES = 2_000
BASELINE = "no-fault"


class DecisionInputs(NamedTuple):
    """Differences between a CP arm and AP: means over blocks, or one resample of them."""

    unanswered: float
    wrong: float
    slower_s: float

    def threshold_s(self, share: float, round_trip_ms: float) -> float:
        """The cost of a missing broker above which CP is cheaper; infinite if AP's answers lack no more brokers than CP's."""
        if self.wrong <= 0:
            return math.inf
        look_up_s = self.slower_s + LOOKUP_ROUND_TRIPS * round_trip_ms / 1000
        return max(0.0, (look_up_s / share + self.unanswered * DEADLINE_S) / self.wrong)


class ModeDecision(NamedTuple):
    """The inputs, and resamples of them. Resamples draw scenarios; there are none from too few scenarios."""

    inputs: DecisionInputs
    resamples: tuple[DecisionInputs, ...]
    scenarios: tuple[str, ...]
    pairs: int
    """Number of pairs of runs with all inputs."""
    pairs_left_out: int
    """Number of pairs under a fault without some input, for example because no look-up was answered during the fault."""

    def threshold_s(self, share: float, round_trip_ms: float) -> tuple[float, float | None, float | None]:
        """The threshold and its interval."""
        centre = self.inputs.threshold_s(share, round_trip_ms)
        if not self.resamples:
            return centre, None, None
        drawn = sorted(one.threshold_s(share, round_trip_ms) for one in self.resamples)
        place = int(tail_share(len(self.scenarios)) * len(drawn))
        return centre, drawn[place], drawn[-1 - place]


def decide(data: StudyData, cp: str, ap: str) -> ModeDecision | None:
    """The inputs from the blocks of scenarios with a fault. None: no such block has all inputs of both arms."""
    rows: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    names = (
        *("failover_yield_in_time fault", "failover_yield_in_time steady", "harvest fault", "harvest steady"),
        "route_latency_median steady",
    )
    own, other = ([data.values(arm, name) for name in names] for arm in (cp, ap))
    blocks = [block for block in data.runs_of(cp) if block.scenario != BASELINE and block in data.runs_of(ap)]
    for block in blocks:
        if not all(block in values for values in (*own, *other)):
            continue
        answered, harvest = ([(values[place][block] - values[place + 1][block]) for values in (own, other)] for place in (0, 2))
        slower_s = (own[4][block] - other[4][block]) / 1000
        rows[block.scenario].append((answered[1] - answered[0], harvest[0] - harvest[1], slower_s))
    if not rows:
        return None
    scenarios = sorted(rows)
    means = np.array([np.mean(rows[name], axis=0) for name in scenarios])
    resamples: list[DecisionInputs] = []
    if len(scenarios) >= REPLICATES_MIN:
        drawn = np.random.default_rng(1).integers(0, len(scenarios), (RESAMPLES, len(scenarios)))
        resamples = [DecisionInputs(*map(float, one)) for one in means[drawn].mean(axis=1)]
    pairs = sum(map(len, rows.values()))
    centre = DecisionInputs(*map(float, means.mean(axis=0)))
    return ModeDecision(centre, tuple(resamples), tuple(scenarios), pairs, len(blocks) - pairs)


def described_s(seconds: float | None) -> str:
    """A cost as text."""
    if seconds is None:
        return "-"
    if math.isinf(seconds):
        return "never"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{_two(seconds / size)} {unit}"
    return f"{_two(seconds)} s"


def described_cost(decision: ModeDecision, share: float, round_trip_ms: float) -> str:
    """The threshold as text, with its interval."""
    centre, low, high = decision.threshold_s(share, round_trip_ms)
    return described_s(centre) if low is None else f"{described_s(centre)} [{described_s(low)}, {described_s(high)}]"


def _two(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{float(f'{value:.2g}'):g}"


def table(decision: ModeDecision, round_trips: Sequence[float] = ROUND_TRIPS_MS) -> list[list[str]]:
    """Rows: a frequency of faults, then the threshold for each round trip."""
    return [[name, *(described_cost(decision, share, one) for one in round_trips)] for name, share in FREQUENCIES]
