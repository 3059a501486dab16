"""Writes the page of a study: Markdown with every number filled in from the published data, and its charts."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from textwrap import fill
from typing import NamedTuple

from replicated_namesrv.files import write_atomically
from replicated_namesrv.spark import study_charts, study_decision
from replicated_namesrv.spark.charts import Figure
from replicated_namesrv.spark.study_data import BlockKey, StudyData, Where, described, number
from replicated_namesrv.spark.study_results import COARSER, FIGURES, PRIMARY_FIGURES, StudyFigure
from replicated_namesrv.spark.summary import REPLICATES_MIN, holm
from replicated_namesrv.spark.survival import Survival

AP, CP = "ap", "cp-linearizable"
COMPARED = ((CP, AP), (AP, "java"), ("cp-lease", CP), ("cp-stale", CP))
"""Pairs of arms that the page compares, if the study has them. The first is the primary comparison."""
MAIN_STUDY, MAIN_PAGE = "primary", "README.md"
"""The page of the main study is MAIN_PAGE. The page of any other study has the name of the study."""
WIDTH = 130
_BY_COLUMN = {figure.column: figure for figure in FIGURES}
READ_LEVELS = (
    *("fresh_reads", "route_fresh_reads", "staleness_max", "linearizable_keys", "route_linearizable_keys", "lost_writes"),
    *("route_latency_median steady", "route_latency_p99 steady", "put_latency_median steady", "pinned_yield_in_time fault"),
)
RECOVERY = ("ghosts fault", "convergence", "not_converged", "elections", "leaderless")
MESSAGES = ("misrouted fault", "unrouted fault", "queues_doubled", "queues_orphaned")


def charts(data: StudyData) -> list[Figure]:
    """All charts that have data."""
    pairs = [pair for pair in COMPARED if set(pair) <= set(data.plan.arms)]
    found = [study_charts.forest(data, *pair) for pair in pairs]
    decision = _decision(data)
    optional = (study_charts.detection(data), None if decision is None else study_charts.decision_chart(decision))
    return [*found, *(one for one in optional if one is not None), study_charts.gaps(data), study_charts.resolution(data)]


def _decision(data: StudyData) -> study_decision.ModeDecision | None:
    return study_decision.decide(data, CP, AP) if _has_decision(data) else None


def page(data: StudyData, others: Sequence[str] = ()) -> str:
    """The page as Markdown. ``others``: names of the other studies that have a page."""
    sections = [
        _head(data),
        *_answer(data),
        *_by_level(data),
        *_clients(data),
        *_slices(data),
        *_detection(data),
        *_levels(data),
        *_resolution(data),
        *_made(data),
        *_changes(data),
        *_threats(data, others),
        *_sources(data, others),
    ]
    return "\n\n".join(_wrapped(section) for section in sections) + "\n"


def write_page(folder: Path, data: StudyData) -> Path:
    """Write the page into ``folder``, and its charts beside its data."""
    place = folder / data.plan.name
    for figure in charts(data):
        write_atomically(place / f"{figure.name}.svg", figure.svg.encode())
    path = folder / (MAIN_PAGE if data.plan.name == MAIN_STUDY else f"{data.plan.name}.md")
    others = [other.stem for other in sorted(folder.glob("*.md")) if other.name not in (MAIN_PAGE, path.name)]
    write_atomically(path, page(data, others).encode())
    return path


def _head(data: StudyData) -> str:
    plan, done = data.plan, len(data.runs)
    counted = len(data.runs_of(plan.arms[0]))
    stopped = "" if done == len(plan.keys) else " The study was stopped because its time was up, not because of its results."
    seeds = f"{data.seeds} seed{'s' * (data.seeds != 1)}"
    same = "scenario, number of name servers, seed and kind of cut"
    levels = "".join(f" They also have the same {name} (a *factor*: the study varies it)." for name, _ in plan.factors)
    readers = "choose between AP and CP" if {AP, CP} <= set(plan.arms) else "configure a CP cluster"
    with_values = (
        "In tables of differences, and in those with a row for each value of the factor"
        if plan.factors
        else "In tables of differences"
    )
    reading = "\n".join(
        _bullet(text)
        for text in (
            f"Brackets contain 95 % intervals. If a figure covers at least {REPLICATES_MIN} scenarios, the scenarios are the "
            "replicates from which its interval is computed. If it covers fewer scenarios, the seeds are the replicates. With "
            f"fewer than {REPLICATES_MIN} replicates there is no interval.",
            f"A cell has a mean, and its interval if there is one. {with_values}, a mean without an interval is followed by the "
            "values in parentheses, or by their range.",
            "*In all n* means that all n runs, or pairs of runs, have this value. Then, with 95 % confidence, at most about 3/n "
            "of further runs (or pairs) have another value (rule of three).",
            "A value below 0.005 of its unit is shown as 0. So `0 % [0, 0]` is a mean over runs of which some have a value near "
            "zero.",
            "A dash means that there is no value.",
            "Differences of shares are in percentage points.",
        )
    )
    return f"""# {plan.title}

This page is for people who {readers}. {plan.question}

**{done} of the {len(plan.keys)} runs of the study are done.**{stopped}

{_arms(data)}

A *block* has one run of each arm. All its runs have the same {same} ([silent or
held](#the-primary-figures-by-scenario-size-and-kind-of-cut)).{levels} The figures cover the {counted} complete blocks, with
{seeds}. A *promise* is a property that a mode guarantees. Checks test the promises after each run. The *verdict* of a run says
whether it kept them ([verdicts](#{MADE})). All runs of complete blocks count, whatever their verdict is.

How to read the numbers:

{reading}

`namesrv study publish` computes the results on this page from the [data](#data-and-how-to-repeat-the-study)."""


def _arms(data: StudyData) -> str:
    """What the compared systems are."""
    modes = dict(zip(data.plan.arms, data.plan.modes, strict=True))
    texts = [f"The study compares {len(modes)} system{'s' * (len(modes) != 1)}, called *arms*."]
    for arm, mode in modes.items():
        product, _, version = mode.partition(":")
        if product in OTHER_PRODUCTS:
            texts.append(f"`{arm}` is {OTHER_PRODUCTS[product]} (version {version}).")
        elif mode == "ap":
            texts.append(f"`{arm}` is this project's name server in AP mode: each node works alone.")
    if own := [f"`{arm}`" for arm, mode in modes.items() if mode == "cp"]:
        names = " and ".join([*([", ".join(own[:-1])] if own[1:] else []), own[-1]])
        texts.append(
            f"{names} {'are' if own[1:] else 'is'} this project's name server in CP mode: the nodes replicate with Raft."
        )
        if all(arm.startswith("cp-") for arm, mode in modes.items() if mode == "cp"):
            texts.append(f"The last part of {'each' if own[1:] else 'its'} name is the [read level](../consistency.md#levels).")
    return " ".join(texts)


OTHER_PRODUCTS = {"java": "RocketMQ's own name server", "rust": "the name server of rocketmq-rust"}
MADE = "runs-verdicts-and-broken-promises"
"""The place of the section on verdicts in the page."""


def _has_decision(data: StudyData) -> bool:
    """Whether the page has the section on the choice of a mode."""
    return {AP, CP} <= set(data.plan.arms) and not data.plan.factors


def _answer(data: StudyData) -> Iterable[str]:
    if not _has_decision(data):
        return
    yield "## When should I choose CP?"
    decision = _decision(data)
    if decision is None:
        yield "The study has no pair of runs in AP and CP under a fault yet, so there is no answer."
        return
    inputs = decision.inputs
    name, share = study_decision.FREQUENCIES[1]
    cost = study_decision.described_cost(decision, share, 10)
    answer = (
        "**Choose AP: under these faults, its answers lacked no more brokers than those of CP.**"
        if inputs.wrong <= 0
        else f"**Compare two costs: an answer that lacks one living broker, and a wait of one client for {cost}. If the missing "
        "broker costs you more, choose CP. Otherwise choose AP.**"
    )
    yield (
        f"{answer} This holds if a fault is present for {name} in total and the round trip between the nodes is 10 ms. The table "
        "has other frequencies and round trips. Each cell is a threshold: the cost of one answer that lacks a living "
        "broker, expressed as a wait of one client. At this cost, AP and CP cost the same in the model. If such an answer costs "
        "you more, choose CP. "
        + (
            "The brackets contain the 95 % interval of the threshold."
            if decision.resamples
            else "There are too few scenarios for intervals."
        )
    )
    yield _table(
        ["time with a fault", *(f"round trip {one} ms" for one in study_decision.ROUND_TRIPS_MS)], study_decision.table(decision)
    )
    yield f"![Frequency of faults, round trip and cost of a missing broker]({data.plan.name}/decision.svg)"
    wrong, unanswered, slower = (number(value) for value in (100 * inputs.wrong, 100 * inputs.unanswered, 1000 * inputs.slower_s))
    left_out = f" ({decision.pairs_left_out} pairs lack an input)" if decision.pairs_left_out else ""
    yield (
        "The thresholds are computed by a model (`spark/study_decision.py`) from three measured inputs. The inputs are means "
        f"over {len(decision.scenarios)} scenarios with a fault and {decision.pairs} pairs of runs{left_out}, for CP with "
        "linearizable reads:"
    )
    yield "\n".join(
        _bullet(text)
        for text in (
            "*missing*: a fault raises the share of living brokers that are missing from answers. It raises this share by "
            f"{wrong} percentage points more in AP than in CP.",
            "*unanswered*: a fault raises the share of requests that are not answered in time. It raises this share by "
            f"{unanswered} percentage points more in CP than in AP. Only requests of fail-over clients count: clients that ask "
            "the next node if one does not answer.",
            f"*slower*: before the fault, the median latency of look-ups is {slower} ms higher in CP than in AP. All processes "
            "of a run share two cores. With a machine for each process, the difference would be smaller.",
        )
    )
    yield (
        f"`threshold = ((slower + {study_decision.LOOKUP_ROUND_TRIPS} × round trip) / share of time with a fault + "  # noqa: RUF001 - a formula
        f"unanswered × {study_decision.DEADLINE_S:g} s) / missing`"  # noqa: RUF001 - a formula
    )
    yield (
        f"A request without an answer counts as {study_decision.DEADLINE_S:g} s, the time-out of RocketMQ's client. Each "
        "linearizable look-up counts with two round trips, as at a follower: one to the leader, and one from the leader to a "
        "majority. At the leader it needs only the second one. The runs of this study had no delay between sites. The model "
        "assumes that a long fault behaves like the short ones that were measured. The "
        "duration of an election does not depend on the length of the fault. In a long fault, the election is therefore a "
        "smaller share of the fault. The model uses the larger share of the short faults, so it overestimates this cost of CP. "
        "Clients cache routes for 30 s, so few messages wait for a look-up. The model ignores this, so it overestimates the "
        "cost of slow and unanswered look-ups. If an answer lacks a broker, a client can use this answer for 30 s. Include "
        "this in your cost of a missing broker."
    )
    yield from _settings(data)


def _settings(data: StudyData) -> Iterable[str]:
    """Which read level to choose in CP."""
    levels = [arm for arm in ("cp-lease", "cp-stale") if arm in data.plan.arms]
    if not levels:
        return
    yield (
        "**Which settings in CP?** `readConsistency` decides how fresh an answer is and what it costs "
        "([levels](../consistency.md#levels)). A stale read needs no round trip. A lease read needs none at a leader with a "
        "valid lease; at other nodes, it costs as much as a linearizable read. For reads without a round trip, use the column "
        "*round trip 0 ms* of the table above. The next table shows what each level costs and returns."
    )
    yield _arms_table(
        data,
        [_BY_COLUMN[name] for name in ("route_latency_median steady", "route_fresh_reads", "failover_yield_in_time fault")],
        [CP, *levels],
    )


def _by_level(data: StudyData) -> Iterable[str]:
    for name, levels in data.plan.factors:
        yield f"## What the {name} changes"
        yield f"Each row covers all runs with the value in the column *{name}*."
        rows = []
        for figure in (*PRIMARY_FIGURES, _BY_COLUMN["route_latency_median steady"]):
            for level in levels:
                found = [data.estimate(arm, figure, _has_level(level)) for arm in data.plan.arms]
                rows.append([_title(figure), level, *(described(one, figure.unit) for one in found)])
        yield _table(["", name, *data.plan.arms], rows)


def _has_level(level: str) -> Where:
    return lambda block: level in block.levels.split(";")


def _clients(data: StudyData) -> Iterable[str]:
    yield "## What clients see"
    yield (
        "The table has the five primary figures, which were chosen before the runs were made. *During the fault* is the phase "
        "of a run in which its faults are active. *Fail-over clients* ask the next node if one does not answer. *Pinned "
        "clients* know one node only. The deadline of a request is the client's time-out for one node (1.5 s by default). "
        "Answers *certainly* differed if the recorded answers of the nodes prove it. Messages are simulated: a client that "
        "caches routes chooses a broker for each message, but sends nothing."
    )
    if study_decision.BASELINE in data.plan.scenarios:
        yield (
            f"The means include the scenario `{study_decision.BASELINE}`. It injects no fault into name servers or links, but "
            "its brokers stop, die and return. There, *during the fault* is the same phase of the run, without a fault. "
            "Therefore these means show a smaller effect of faults than a mean over only the scenarios with a fault."
        )
    yield _arms_table(data, PRIMARY_FIGURES)
    pairs = [pair for pair in COMPARED if set(pair) <= set(data.plan.arms)]
    families = [pairs[:1], pairs[1:]] if pairs[:1] == [COMPARED[0]] else [pairs]
    for family in families:
        adjusted = _adjusted(data, family)
        for arm, other in family:
            yield f"### {arm} minus {other}"
            yield f"![Paired differences of {arm} and {other}]({data.plan.name}/forest-{arm}-{other}.svg)"
            yield _differences(data, arm, other, adjusted)
    yield (
        "The last column of these tables is a p-value: the probability of a mean at least as far from zero if the sign of each "
        f"{_replicate(data)}'s difference were random. {_families(families)}"
    )
    yield "### Effects on messages"
    yield (
        "The first row counts only messages for which the client knew a broker: it is the share of these messages for which "
        "the broker was dead or closed to writes. The second row counts all messages: it is the share for which the client knew "
        "no broker. Compare the arms by both rows."
    )
    yield (
        "The last two rows are shares of queues. A route decides which consumer reads which queue. The shares are computed from "
        "probes, which ask all nodes at the same time. They assume one consumer for each node, with RocketMQ's "
        "`AllocateMessageQueueAveragely`. If a node did not answer, the computation gives its consumer the answer of the first "
        "answering node, in order of node names. The reason: a real consumer keeps its old routes or asks another node. In CP, a "
        "node without a majority stops answering. Its consumer then has the same route as another consumer. Therefore this rule "
        "alone makes both shares smaller in CP."
    )
    yield _arms_table(data, [_BY_COLUMN[column] for column in MESSAGES])
    yield "### Gaps by kind of client"
    yield f"![Longest time without a successful request]({data.plan.name}/gaps.svg)"
    yield (
        "A point is a run, and a line is the mean. A *gap* is the longest time without a successful request. For fail-over "
        "clients, the chart shows the gap of the worst client in the run. For pinned clients, it shows the gap of the worst "
        "combination of node and kind of operation. A pinned client waits until its node serves again. If a scenario cuts off a "
        "site, even a fail-over client of this site can be unable to reach another node."
    )
    yield "### Recovery"
    yield (
        "The first row is the share of dead brokers in the answers. The next two rows cover only runs in which the answers "
        "prove that they differed after the fault began. The end of the last fault counts as the repair of the last link. A "
        "time of 0 s means that the difference ended before the repair. The last two rows exist only in CP. Each newly elected "
        "leader has a new term."
    )
    yield _arms_table(data, [_BY_COLUMN[column] for column in RECOVERY])


Chances = Mapping[tuple[str, str, str], float]
"""Probabilities by arm, other arm and figure."""


def _adjusted(data: StudyData, pairs: Sequence[tuple[str, str]]) -> Chances:
    """The probabilities of the primary figures of these comparisons, corrected for their number."""
    found = {
        (arm, other, figure.column): one.chance
        for arm, other in pairs
        for figure in PRIMARY_FIGURES
        if (one := data.difference(arm, other, figure)) is not None and one.chance is not None
    }
    return dict(zip(found, holm(list(found.values())), strict=True))


def _differences(data: StudyData, arm: str, other: str, adjusted: Chances) -> str:
    rows = []
    for figure in PRIMARY_FIGURES:
        found = data.difference(arm, other, figure)
        if found is not None:
            chance = adjusted.get((arm, other, figure.column))
            text = described(found, figure.unit, signed=True)
            rows.append([_title(figure), text, str(len(found.values)), "-" if chance is None else f"{chance:.2g}"])
    return _table(["figure", f"{arm} minus {other}", "pairs", "probability, corrected"], rows)


def _slices(data: StudyData) -> Iterable[str]:
    """The primary figures by scenario, size and kind of cut."""
    yield "## The primary figures by scenario, size and kind of cut"
    yield (
        "Within a scenario, the seeds are the replicates. `namesrv chaos list` explains the names of the scenarios. A cut is "
        "*silent* if the bytes are dropped, and *held* if they wait until the fault ends. Scenarios that cut no link are in "
        "no row for cuts. If no look-up of a run was answered during the fault, this run has no value for the share "
        "of the serving brokers. So a cell can have fewer runs than blocks."
    )
    parts: list[tuple[str, Where]] = [(name, _in("scenario", name)) for name in data.plan.scenarios]
    parts += [(f"{size} nodes", _in("nodes", size)) for size in sorted(_all(data, "nodes"))]
    parts += [(f"cut: {cut}", _in("cut", cut)) for cut in sorted(_all(data, "cut") - {"", "none"})]
    for figure in PRIMARY_FIGURES:
        yield f"### {_title(figure)[:1].upper()}{_title(figure)[1:]}"
        rows = []
        for name, where in parts:
            found = [data.estimate(arm, figure, where) for arm in data.plan.arms]
            if any(found):
                count = max(len(one.values) for one in found if one is not None)
                rows.append([name, str(count), *(described(one, figure.unit, show_values=False) for one in found)])
        yield _table(["", "blocks", *data.plan.arms], rows)


def _in(name: str, value: str) -> Where:
    return lambda block: bool(getattr(block, name) == value)


def _all(data: StudyData, name: str) -> set[str]:
    blocks: Iterable[BlockKey] = data.runs_of(data.plan.arms[0])
    return {getattr(block, name) for block in blocks}


def _detection(data: StudyData) -> Iterable[str]:
    found = {arm: data.detections(arm) for arm in data.plan.arms}
    if not any(found.values()):
        return
    yield "## How soon nodes notice a dead broker"
    yield f"![Survival curves of detection]({data.plan.name}/detection.svg)"
    rows = []
    for arm, times in found.items():
        curve = Survival(times)
        quantiles = [curve.quantile(at) for at in (0.5, 0.9)]
        texts = ["not reached" if value is None else f"{number(value)}" for value in quantiles] if times else ["-", "-"]
        rows.append([arm, str(len(times)), str(sum(not seen for _, seen in times)), *texts])
    yield _table(["arm", "pairs of a death and a node", "still listed in the last answer", "median", "90 %"], rows)
    yield (
        "The figures cover only deaths of brokers whose connections stayed open, because a node notices closed connections at "
        "once. A pair is a death and a node that listed the broker then. Each time begins at the death. The node's last answer "
        "that lists the broker is followed by an answer without it. With this answer the time ends. Times are multiples of the "
        "broker's time-out. In some pairs, the observation ended before the removal, so the time is only known to be longer. The "
        "quantiles take these pairs into account (Kaplan-Meier estimates). *Not reached* means that the observation ended before "
        "the quantile. A node is asked every 0.25 s, and some nodes do not answer during a fault, so a time is an upper bound. "
        "The deaths of one run are not independent."
    )


def _levels(data: StudyData) -> Iterable[str]:
    yield "## What reads see, and what they cost"
    yield _arms_table(data, [_BY_COLUMN[column] for column in READ_LEVELS])
    ages = [[data.visible_ms(arm, share) for arm in data.plan.arms] for share in VISIBLE_SHARES]
    if any(age is not None for row in ages for age in row):
        yield (
            "Time from the acknowledgement of a KV write until all reads see it (t-visibility). For one write, the reads show "
            "this time only as an interval. The distribution is estimated from the intervals (Turnbull's method):"
        )
        yield _table(
            ["share of the writes", *data.plan.arms],
            [
                [f"{100 * share:g} %", *("not reached" if age is None else f"{number(age)} ms" for age in row)]
                for share, row in zip(VISIBLE_SHARES, ages, strict=True)
            ],
        )
    yield (
        "*Final reads* are those of the last phase of a run: when the clients have stopped, every key is read from every node. "
        "All processes of a run share two cores, so compare latencies between columns, not with other machines. A KV put goes "
        "to every name server in turn, and each of these requests counts as one put."
    )


VISIBLE_SHARES = (0.5, 0.9, 0.99)


def _resolution(data: StudyData) -> Iterable[str]:
    yield "## Does divergence depend on the resolution?"
    yield f"![Certain divergence by the time between two questions]({data.plan.name}/resolution.svg)"
    yield _coarser(data) + (
        "The nodes were asked every 0.25 s. The first point of each line uses all answers; the others use only every second, "
        "fourth or eighth answer. *Certain divergence* is the time for which the answers prove a difference. With longer "
        "intervals there are fewer answers, so they prove less. The computation assumes that a node did not change its state "
        "between two equal answers. With longer intervals, this is more often wrong: the state can change and change back. Then "
        "the figure can rise. If two nodes change within the same interval, they may have "
        "differed for a short time within it. The answers cannot prove this."
    )
    figures = [_BY_COLUMN[name] for name in ("divergence_share", "divergence_share_possible")]
    yield _arms_table(data, figures)


def _coarser(data: StudyData) -> str:
    """How much certain divergence changes with the longest interval."""
    every = f"divergence_share_every_{COARSER[-1]}"
    pairs = {
        arm: (fmean(data.values(arm, "divergence_share").values()), fmean(coarse.values()))
        for arm in data.plan.arms
        if (coarse := data.values(arm, every))
    }
    if not pairs:
        return ""
    greatest = number(100 * max(abs(fine - coarse) for fine, coarse in pairs.values()))
    change = "by less than 0.01 percentage points" if greatest == "0" else f"by at most {greatest} percentage points"
    changes = ", ".join(f"{arm} {number(100 * fine)} and {number(100 * coarse)} %" for arm, (fine, coarse) in pairs.items())
    return (
        f"If the nodes are asked every {COARSER[-1] / 4:g} s instead of every 0.25 s, the mean of the certain divergence changes "
        f"{change}. The certain divergence with 0.25 s and with {COARSER[-1] / 4:g} s: {changes}. "
    )


def _made(data: StudyData) -> Iterable[str]:
    """Attempts, verdicts, load and broken promises of each arm."""
    yield "## Runs, verdicts and broken promises"
    rows, broken = [], []
    for arm in data.plan.arms:
        own = [row for row in data.runs.values() if row["arm"] == arm]
        attempts = sum(int(row["attempt"] or 1) for row in own)
        counts = [sum(row["verdict"] == verdict for row in own) for verdict in ("unknown", "failed")]
        slow = sorted(float(row["slowdown"]) for row in own if row["slowdown"])
        operations = [int(row["operations"]) for row in own if row["operations"]]
        violated = [row for row in own if row["violated"]]
        broken += [f"`{row['run']}`: {row['violated'].replace(';', ', ')}" for row in violated]
        rows.append(
            [
                *(arm, str(attempts), str(len(own)), *map(str, counts), str(len(violated))),
                f"{number(median(slow))}, {number(slow[-1])}" if slow else "-",
                f"{fmean(operations):,.0f}" if operations else "-",
            ]
        )
    head = ("arm", "attempts", "runs", "verdict unknown", "failed", "broke a promise", "slowdown: median, greatest", "operations")
    yield _table(head, rows)
    yield (
        "An attempt fails if it makes no complete trace. Then the run is repeated, at most twice. A run is *failed* if all its "
        "attempts fail. A run with a complete trace is never repeated. So the selection of runs does not depend on their "
        "verdicts."
    )
    yield (
        "Each run is judged when it ends, by the checks of its version. `namesrv study publish --judge-again` judges all runs "
        f"again by the present checks. {''.join(_judged(data))}A verdict is unknown if a required check found nothing to judge. "
        "It is also unknown if the load of the machine was so high that time limits could not be judged. The table counts only "
        "the promises of the mode and, in CP, of the read level ([checks](../chaos-checks.md#checks)). In runs.csv, the columns "
        "`verdict` and `reason` apply all promises of CP to every CP run. So they can name promises that stale reads do not "
        "make."
    )
    yield (
        "*Slowdown* is the time in which the processes of a run ran or waited for a core, divided by the time in which they ran. "
        "It is measured for each phase of a run. The worst phase counts. The start-up does not count. *Operations* is the mean "
        "number of clients' operations in a run. A client sends nothing while it waits for an answer, so a run with slow answers "
        "has fewer operations."
    )
    if broken:
        yield from _repaired(data)
        yield "These runs broke a promise:"
        yield "\n".join(_bullet(text) for text in broken[:BROKEN_MAX])
    if len(broken) > BROKEN_MAX:
        yield f"runs.csv names the other {len(broken) - BROKEN_MAX} runs that broke a promise."


def _judged(data: StudyData) -> Iterable[str]:
    """Which checks the runs were judged by again."""
    for commit, checks in JUDGED_AGAIN.items():
        if any(row["commit"] == commit for row in data.runs.values()):
            yield f"The runs of commit {commit[:8]} have the verdicts of the checks of commit {checks}. "


def _repaired(data: StudyData) -> Iterable[str]:
    """Causes of broken promises that a later version has repaired."""
    for (commit, promise), cause in REPAIRED.items():
        count = sum(row["commit"] == commit and promise in row["violated"].split(";") for row in data.runs.values())
        if count:
            yield f"*{promise}*: {cause.meaning} {count} run{'s' * (count > 1)} broke this promise. {cause.repair}"


class RepairedCause(NamedTuple):
    """Why runs of a version broke a promise."""

    meaning: str
    """The promise as a sentence."""
    repair: str
    """The cause and its repair."""


OF_STUDY = "fefe8d749d53741fff0705057fc452f7f5b9d3a6"
"""The version whose runs of the main study are published."""
OF_SWEEPS = "ddbf1f759a3c5bcc8c8ccd15de76eda9ea1cf540"
"""The version whose runs with varied factors are published."""
REPAIRED = {
    (OF_STUDY, "one state for one revision"): RepairedCause(
        "two states with the same revision number must be equal.",
        "The cause was a defect in the paged answers of `GET /v1/kv`: such a page could contain a later change than its revision "
        "number says. Commit c2b6b84f repaired it.",
    ),
    (OF_SWEEPS, "no ghosts"): RepairedCause(
        "no node lists a broker that has been dead for longer than its time-out.",
        "The cause was the workload: it recorded a living broker as stopped while this broker registered in a new role and "
        "waited for a node that was cut off. Commit 0fc10ff0 repaired it.",
    ),
    (OF_SWEEPS, "answers agree"): RepairedCause(
        "answers of one moment list the same brokers.",
        "The cause was the workload: a pair of brokers switched roles under one data version, so a registration that a link had "
        "held brought the earlier roles back for a moment. Commit 731e4a2f repaired it.",
    ),
}
"""Version and promise -> why runs of this version broke the promise. Only causes that a later version has repaired."""
JUDGED_AGAIN = {OF_STUDY: "9ef01922"}
"""Version of runs -> the commit whose checks judged them, if they were published with ``--judge-again``."""
BROKEN_MAX = 10
EARLIER = (
    (
        "divergence_share",
        "AP 25 %, CP 1.3 %",
        "earlier, differences shorter than 0.5 s did not count; now, only differences that the answers prove count",
    ),
    ("fresh_reads", "AP 59 %, CP 100 %", "earlier, a KV put went to one node only; now it goes to every node, as in RocketMQ"),
    ("lost_writes", "AP 2.9, CP 0", "earlier, a KV put went to one node only"),
    ("failover_yield_in_time fault", "CP 92 % (all clients together)", "now only fail-over clients count"),
    ("pinned_yield_in_time fault", "CP 92 % (all clients together)", "now only pinned clients count"),
    (
        "failover_unavailable_longest",
        "2.6 s without a fault",
        "earlier, the probe was included, a client that pauses by design; now only the worst fail-over client counts",
    ),
    (
        "convergence",
        "-",
        "earlier, the time began with the phase `heal`; now it begins with the recorded repair of the last link, and only runs "
        "whose nodes differed count",
    ),
)
"""Figures, what an earlier study of 320 runs published for them, and how the definition changed."""


def _changes(data: StudyData) -> Iterable[str]:
    if data.plan.name != MAIN_STUDY:
        return
    yield "## Changed definitions"
    yield (
        "An earlier study (320 runs, up to version 0.1.0) had other scenarios and other definitions. Some of its findings were "
        "artefacts of the measurement. This table shows its figures beside those of this study."
    )
    rows = []
    for column, before, change in EARLIER:
        figure = _BY_COLUMN[column]
        now = ", ".join(
            f"{arm} {described(data.estimate(arm, figure), figure.unit, show_values=False)}"
            for arm in (AP, CP)
            if arm in data.plan.arms
        )
        rows.append([_title(figure), before, now, change])
    rows.append(
        [
            "t-visibility, 99 % of the KV writes",
            "AP 8.2 s",
            _visible(data),
            "8.2 s was the upper limit of a histogram bin, not a measured value; a put went to one node only",
        ]
    )
    yield _table(["figure", "earlier", "now", "change"], rows)


def _visible(data: StudyData) -> str:
    ages = {arm: data.visible_ms(arm, 0.99) for arm in (AP, CP) if arm in data.plan.arms}
    return ", ".join(f"{arm} {'not reached' if age is None else f'{number(age)} ms'}" for arm, age in ages.items())


def _threats(data: StudyData, others: Sequence[str]) -> Iterable[str]:
    versions, analyses, jobs = (
        {row[name] for row in data.runs.values() if row[name]} for name in ("source_sha256", "analysis_sha256", "jobs")
    )
    scenarios, kind = len(data.plan.scenarios), _replicate(data)
    replicates = scenarios if kind == "scenario" else len({block.seed for arm in data.plan.arms for block in data.runs_of(arm)})
    at_a_time = " or ".join(sorted(jobs)) or "an unknown number"
    has_java = any(mode.partition(":")[0] in OTHER_PRODUCTS for mode in data.plan.modes)
    control = " RocketMQ's own name server is the control: AP is meant to behave like it." if has_java else ""
    slow_starts = (
        " After a crash, a JVM needs some seconds longer to start than our nodes. Therefore Java's nodes seem to differ for less "
        "time after `kill-leader`: when such a node answers again, brokers have registered already."
        if has_java and "kill-leader" in data.plan.scenarios
        else ""
    )
    observed = (
        "Java and AP nodes are observed over RocketMQ's protocol, with several requests for each observation. CP nodes are "
        "observed over their admin port, with one request."
        if has_java
        else "Nodes are observed over their admin port, with one request for each observation."
    )
    charted = " Therefore the chart in *When should I choose CP?* shows the result for each frequency."
    yield "## Threats to validity"
    yield "\n".join(
        _bullet(text)
        for text in (
            "**One machine.** All name servers, brokers and clients ran on one machine with two cores, over loopback and "
            "Toxiproxy. There was no network between sites, and only one clock and one disk.",
            f"**Load.** {at_a_time} run{'s were' if jobs - {'1'} else ' was'} made at a time. The processes of a run compete for "
            "the cores with each other and with other programs ([slowdown](#runs-verdicts-and-broken-promises)). Latencies are "
            "those of a busy machine. Elections, leases, the brokers' time-outs and the fence (when a node without a majority "
            "closes its connections) use timers, which can expire because of load. The arms use different amounts of CPU time, "
            "so load is a part of the difference between them. Load affects times most. It has less effect on the sign (plus or "
            "minus) of a difference, on lost writes and on verdicts on linearizability.",
            f"**Time scale.** {' '.join(data.plan.timers.split())}{_real_timers(data, others)}",
            f"**Choice of scenarios.** We chose the {scenarios} scenarios. A mean over them holds for these scenarios only. "
            f"How often a fault of each kind occurs in production is unknown.{charted if _has_decision(data) else ''}",
            f"**Few replicates.** A sign-flip test over {replicates} {kind}s cannot give a probability below "
            f"{2 / 2**replicates:.2g}, and each {kind} without a difference doubles this. In simulations with six scenarios, "
            "the intervals contain the mean in 93 % of the cases if the values are normally distributed, and in 83 to 90 % if "
            "half of them are zero.",
            "**Faults.** If a fault targets the leader, it hits the elected leader in CP, and a node chosen by the seed in AP "
            "and Java. The runs of a block have the same schedule, but not the same victim.",
            "**Workload.** A run has a few brokers, topics and clients, and tens of requests per second. Brokers change far more "
            "often than in production, which makes stale routes more frequent.",
            f"**Same authors.** The name server, the workload and the checks are by the same authors.{control}",
            f"**Observation.** {observed} The time at which a node removes a "
            "broker is taken from the node's answers, not from its reports. Divergence is computed only over the nodes that "
            f"answer.{slow_starts}",
            f"**Versions.** The runs used {len(versions)} version{'s' * (len(versions) != 1)} of the code, and "
            f"{len(analyses)} of the analysis (`source_sha256` and `analysis_sha256` in runs.csv).",
        )
    )


def _families(families: list[list[tuple[str, str]]]) -> str:
    """How the p-values are corrected for their number."""
    if len(families) == 1:
        return "It is corrected for the number of figures, because some of many differences look significant by chance (Holm)."
    return (
        "It is corrected for the number of figures that are tested together, because some of many differences look significant "
        f"by chance (Holm). The {len(PRIMARY_FIGURES)} figures of the primary comparison ({CP} minus {AP}) are one group, and "
        "the figures of all other comparisons are the other group."
    )


def _replicate(data: StudyData) -> str:
    """What the intervals and tests over all runs take as replicates (``study_data.estimate``)."""
    return "scenario" if len(data.plan.scenarios) >= REPLICATES_MIN else "seed"


def _real_timers(data: StudyData, others: Sequence[str]) -> str:
    """Which study measures the effect of the short timers."""
    if data.plan.name != MAIN_STUDY:
        return ""
    known = f"Its results: [{REAL_TIMERS}]({REAL_TIMERS}.md)." if REAL_TIMERS in others else "It has no published results yet."
    return f" The study plan `{REAL_TIMERS}` (chaos/studies/{REAL_TIMERS}.toml) is meant to measure this effect. {known}"


REAL_TIMERS = "real-timers"


def _sources(data: StudyData, others: Sequence[str]) -> Iterable[str]:
    name = data.plan.name
    if others and name == MAIN_STUDY:
        yield "## Other studies"
        yield "\n".join(f"- [{other}]({other}.md)" for other in others)
    yield "## Data, and how to repeat the study"
    yield (
        f"[{name}/runs.csv]({name}/runs.csv) has a row for each run: verdict, load of the machine, version of the code, and "
        "the SHA-256 values of two files. The *trace* has all requests and observations; the *manifest* says what was run. "
        f"[{name}/figures.csv]({name}/figures.csv) has the figures of each run. The definitions are in `spark/DESIGN.md`. The "
        "traces themselves are in the folder of the study (about 0.1 MB each, compressed), not in the repository."
    )
    yield (
        f"    namesrv study plan {name}                                   # how long it takes\n"
        f"    namesrv study run {name} --published docs/results           # only the runs that are not published yet\n"
        f"    namesrv study publish runs/studies/{name}                   # adds them, and writes this page"
    )


def _title(figure: StudyFigure) -> str:
    phase = {"all": "", "fault": ", during the fault", "steady": ", before the fault"}[figure.phase]
    return figure.title + phase


def _arms_table(data: StudyData, figures: Sequence[StudyFigure], arms: Sequence[str] = ()) -> str:
    arms = arms or data.plan.arms
    rows = [
        [_title(figure), *(described(data.estimate(arm, figure), figure.unit, show_values=False) for arm in arms)]
        for figure in figures
    ]
    return _table(["", *arms], rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _bullet(text: str) -> str:
    return fill(text, WIDTH, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _wrapped(section: str) -> str:
    """Wrap the text of a section. Headings, tables, pictures, lists and commands stay unchanged."""
    blocks = []
    for block in section.split("\n\n"):
        if block.startswith(("#", "|", "!", "    ", "- ", "`threshold")):
            blocks.append(block)
        else:
            joined = re.sub(r"(?<=\d) (?=%|m?s\b|\[)", "\0", " ".join(block.split()))
            blocks.append(fill(joined, WIDTH, break_long_words=False, break_on_hyphens=False).replace("\0", " "))
    return "\n\n".join(blocks)
