"""Writes the page of a study: Markdown with every number filled in from the published data, and its charts."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from textwrap import fill

from replicated_namesrv.files import write_atomically
from replicated_namesrv.spark import study_charts, study_decision
from replicated_namesrv.spark.charts import Figure
from replicated_namesrv.spark.study_data import BlockKey, StudyData, Where, described, number
from replicated_namesrv.spark.study_results import FIGURES, PRIMARY_FIGURES, StudyFigure
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
    return study_decision.decide(data, CP, AP) if {AP, CP} <= set(data.plan.arms) else None


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
        *_threats(data),
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
    stopped = "" if done == len(plan.keys) else " It was stopped because its time was up, not because of its results."
    seeds = f"{data.seeds} seed{'s' * (data.seeds != 1)}"
    return f"""# {plan.title}

This page is for people who choose between AP and CP. {plan.question}

**{done} of the {len(plan.keys)} runs of the study are done.**{stopped} The compared systems are called *arms*: RocketMQ's own
name server (`java`), AP, and CP with each read level. A *block* is one run of each arm with the same scenario, size, seed and
kind of cut ([silent or held](#the-primary-figures-by-scenario-size-and-kind-of-cut)). The figures cover the {counted} blocks
that are complete, with {seeds}. A run counts even if it broke a promise or if its verdict is unknown ([what was
made](#what-was-made-and-which-promises-were-broken)).

How to read the numbers: brackets contain 95 % intervals. For figures over at least {REPLICATES_MIN} scenarios, the scenarios are
the replicates of the interval; for figures over fewer scenarios, the seeds are. With fewer than {REPLICATES_MIN} replicates there
is no interval: a cell then has the mean, sometimes followed by the values or their range in parentheses. A dash means that there
is no value. If all n values are equal, at most about 3/n of further runs have another value (rule of three, 95 % confidence).
Differences of shares are in percentage points. `namesrv study publish` computes the results on this page from the
[data](#data-and-how-to-repeat-the-study)."""


def _answer(data: StudyData) -> Iterable[str]:
    if not {AP, CP} <= set(data.plan.arms) or data.plan.factors:
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
        else f"**Choose CP if one broker that is missing from one answer is worse for you than one client that waits for {cost}. "
        "Otherwise choose AP.**"
    )
    yield (
        f"{answer} This is the answer for faults during {name} and a round trip of 10 ms between the nodes. The table has "
        "other frequencies and round trips. A cell is the waiting time that costs a client as much as one missing broker"
        + (", with its 95 % interval." if decision.resamples else "; there are too few scenarios for intervals.")
    )
    yield _table(
        ["time with a fault", *(f"round trip {one} ms" for one in study_decision.ROUND_TRIPS_MS)], study_decision.table(decision)
    )
    yield f"![Frequency of faults, round trip and cost of a missing broker]({data.plan.name}/decision.svg)"
    wrong, unanswered = (number(100 * value) for value in (inputs.wrong, inputs.unanswered))
    left_out = f" ({decision.pairs_left_out} pairs lack an input)" if decision.pairs_left_out else ""
    yield (
        f"The table is computed by a model from three measured inputs. They are means over {len(decision.scenarios)} scenarios "
        f"with a fault and {decision.pairs} pairs of runs{left_out}, for CP with linearizable reads:"
    )
    yield "\n".join(
        _bullet(text)
        for text in (
            "Missing brokers: a fault raises the share of living brokers that are missing from answers. It raises this share by "
            f"{wrong} percentage points more in AP than in CP.",
            "Requests without an answer: a fault raises the share of requests that are not answered in time. It raises this "
            f"share by {unanswered} percentage points more in CP than in AP. Only clients that fail over to other nodes count.",
            f"Look-ups: before the fault, their median latency is {number(1000 * inputs.slower_s)} ms higher in CP than in AP. "
            "All processes of a run share two cores. With a machine for each process, the difference would be smaller.",
        )
    )
    yield (
        f"The model is in `spark/study_decision.py`. It counts a request without an answer as {study_decision.DEADLINE_S:g} "
        "s, the time-out of RocketMQ's client. It adds one round trip to each linearizable look-up, although a node that does "
        "not lead needs two. The runs of this study had no delay between sites. The model assumes that a long fault "
        "behaves like the short ones that were measured. An election takes as long in a short fault as in a long one, so this "
        "assumption is unfavourable to CP. The model leaves out that clients cache routes for 30 s, which makes a slow look-up "
        "cheaper."
    )
    yield from _settings(data)


def _settings(data: StudyData) -> Iterable[str]:
    """Which read level to choose in CP."""
    levels = [arm for arm in ("cp-lease", "cp-stale") if arm in data.plan.arms]
    if not levels:
        return
    yield (
        "**Which settings in CP?** `readConsistency` decides how fresh an answer is and what it costs. A node that answers a "
        "lease or stale read without asking others adds no round trip, so the column for 0 ms applies. The table shows what each "
        "level costs and returns."
    )
    yield _arms_table(
        data,
        [_BY_COLUMN[name] for name in ("route_latency_median steady", "route_fresh_reads", "failover_yield_in_time fault")],
        [CP, *levels],
    )


def _by_level(data: StudyData) -> Iterable[str]:
    for name, levels in data.plan.factors:
        yield f"## What the {name} changes"
        yield f"Each row is over all runs with this {name}."
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
        "The table has the five primary figures, which were chosen before the runs were made. Rows that begin with *answered* "
        "are shares of requests. The means include the scenario `no-fault`, in which brokers die and return. So they show a "
        "smaller effect of a fault than the scenarios with a fault do. Answers *certainly* differed if the recorded answers of "
        "the nodes prove it. Messages are simulated: a client that caches routes chooses a broker for each message, but sends "
        "nothing."
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
        f"scenario's difference were random. It is corrected (Holm) in two families: the {len(PRIMARY_FIGURES)} figures of the "
        f"primary comparison ({CP} minus {AP}), and the figures of all other comparisons."
    )
    yield "### Effects on messages"
    yield (
        "A route decides which consumer reads which queue. The shares of queues are computed from the answers that all nodes "
        "gave at the same moment. They assume one consumer for each node, with RocketMQ's `AllocateMessageQueueAveragely`. A "
        "consumer whose node did not answer has the view of the first node that did, because it keeps its routes or "
        "asks another node. So in CP these shares are smaller by construction, because a node without a majority stops "
        "answering. The first row leaves out the messages of the second row, so these rows belong together."
    )
    yield _arms_table(data, [_BY_COLUMN[column] for column in MESSAGES])
    yield "### Gaps by kind of client"
    yield f"![Longest time without a success]({data.plan.name}/gaps.svg)"
    yield (
        "A point is a run, and a line is the mean. A gap is the longest time without a success. For clients that fail over, the "
        "chart shows the gap of the worst client in the run. For clients that know one node, it shows the gap of the worst "
        "combination of node and kind of operation. A client that knows one node waits until this node serves again. In "
        "scenarios that cut off a site, a client of this site may reach no other node."
    )
    yield "### Recovery"
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
        "neither of the rows for cuts. If no look-up of a run was answered during the fault, this run has no value for brokers "
        "in answers, so a cell can have fewer runs than blocks."
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
        quantiles = [curve.quantile(at) for at in (0.5, 0.9)] if times else [None, None]
        texts = ["-" if value is None else f"{number(value)}" for value in quantiles]
        rows.append([arm, str(len(times)), str(sum(not seen for _, seen in times)), *texts])
    yield _table(["arm", "pairs of a silent death and a node", "still listed at the end", "median", "90 %"], rows)
    yield (
        "Times are multiples of the broker's time-out (3 s, in some scenarios 5 s). They begin with the silent death of a "
        "broker. They end with the first answer of a node that lacks this broker, if no later answer contains it. The quantiles "
        "are Kaplan-Meier estimates; a dash means that the observation ended before the quantile. A node is asked every 0.25 s, "
        "and some nodes do not answer during a fault, so a time is an upper bound. The deaths of one run are not independent. "
        "Brokers whose connections closed are left out."
    )


def _levels(data: StudyData) -> Iterable[str]:
    yield "## What reads see, and what they cost"
    yield _arms_table(data, [_BY_COLUMN[column] for column in READ_LEVELS])
    ages = [[data.visible_ms(arm, share) for arm in data.plan.arms] for share in VISIBLE_SHARES]
    if any(age is not None for row in ages for age in row):
        yield "Time from the acknowledgement of a KV write until all reads see it (t-visibility, Turnbull's estimate):"
        yield _table(
            ["share of the writes", *data.plan.arms],
            [
                [f"{100 * share:g} %", *("not reached" if age is None else f"{number(age)} ms" for age in row)]
                for share, row in zip(VISIBLE_SHARES, ages, strict=True)
            ],
        )
    yield (
        "All processes of a run share two cores, so compare latencies between columns, not with other machines. A KV put "
        "goes to every name server in turn, and each of these requests counts as one put."
    )


VISIBLE_SHARES = (0.5, 0.9, 0.99)


def _resolution(data: StudyData) -> Iterable[str]:
    yield "## Does divergence depend on the resolution?"
    yield f"![Certain divergence by the time between two looks]({data.plan.name}/resolution.svg)"
    yield (
        "The nodes were asked every 0.25 s. The first point of each line uses all answers; the others use only every second, "
        "fourth or eighth answer. Certain divergence is a lower bound, so it falls with longer intervals. If two nodes change "
        "between the same two questions, a short difference between them is possible but not certain."
    )
    figures = [_BY_COLUMN[name] for name in ("divergence_share", "divergence_share_possible")]
    yield _arms_table(data, figures)


def _made(data: StudyData) -> Iterable[str]:
    """Attempts, verdicts, load and broken promises of each arm."""
    yield "## What was made, and which promises were broken"
    rows, broken = [], []
    for arm in data.plan.arms:
        own = [row for row in data.runs.values() if row["arm"] == arm]
        attempts = sum(int(row["attempt"] or 1) for row in own)
        counts = [sum(row["verdict"] == verdict for row in own) for verdict in ("unknown", "failed")]
        slow = sorted(float(row["slowdown"]) for row in own if row["slowdown"])
        operations = [int(row["operations"]) for row in own if row["operations"]]
        violated = [row for row in own if row["violated"]]
        broken += [f"`{row['run']}`: {row['violated'].replace(';', ', ')}{_repaired(row)}" for row in violated]
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
        "A *failed* attempt made no complete trace, and is repeated at most twice. No other run is repeated: the figures do not "
        "depend on a verdict. A run is judged when it is made, and again, with the present checks, by "
        "`namesrv study publish --judge-again`. A verdict is unknown if too little "
        "happened or the machine was too busy to judge times. The promises are those of the mode and, in CP, of the read level. "
        "In runs.csv, `verdict` and `reason` also cover promises that stale reads do not make. "
        "Slowdown is the time in which processes ran or waited for a core, divided by the time in which they ran, in the worst "
        "phase of a run after its start. *Operations* is the mean number of clients' operations in a run. A client sends nothing "
        "while it waits for an answer, so a run with slow answers has fewer operations. A list below names each run "
        "that broke a promise, and the promise."
    )
    if broken:
        yield "\n".join(_bullet(text) for text in broken[:BROKEN_MAX])
    if len(broken) > BROKEN_MAX:
        yield f"runs.csv names the other {len(broken) - BROKEN_MAX} runs that broke a promise."


def _repaired(row: Mapping[str, str]) -> str:
    """What caused the broken promises of a run, if their causes are known and repaired; otherwise nothing."""
    causes = [REPAIRED.get((row["commit"], promise)) for promise in row["violated"].split(";")]
    return "" if None in causes else f" ({'; '.join(cause for cause in causes if cause)})"


REPAIRED = {
    ("fefe8d749d53741fff0705057fc452f7f5b9d3a6", "one state for one revision"): (
        "a page of `/v1/kv` in the version of this run could show a later change under an earlier revision; repaired in commit "
        "c2b6b84f"
    ),
}
"""Version and promise -> why runs of this version broke the promise, and the repair. Only causes that a later version has
repaired."""
BROKEN_MAX = 10
EARLIER = (
    ("divergence_share", "AP 25 %, CP 1.3 %", "differences of less than 0.5 s were left out; now they must be certain"),
    ("fresh_reads", "AP 59 %, CP 100 %", "a KV put went to one node; now it goes to every node, as in RocketMQ"),
    ("lost_writes", "AP 2.9, CP 0", "a KV put went to one node"),
    ("failover_yield_in_time fault", "CP 92 % (all clients together)", "now only clients that fail over"),
    ("pinned_yield_in_time fault", "CP 92 % (all clients together)", "now only clients that know one node"),
    (
        "failover_unavailable_longest",
        "2.6 s without a fault",
        "the probe, a client that pauses by design, counted, too; now the worst client counts",
    ),
    (
        "convergence",
        "from the start of the phase `heal`",
        "now from the recorded repair of the last link, and only if nodes differed",
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
        ["t-visibility, 99 % of the KV writes", "AP 8.2 s", _visible(data), "8.2 s was the edge of a bin; a put went to one node"]
    )
    yield _table(["figure", "earlier", "now", "change"], rows)


def _visible(data: StudyData) -> str:
    ages = {arm: data.visible_ms(arm, 0.99) for arm in (AP, CP) if arm in data.plan.arms}
    return ", ".join(f"{arm} {'not reached' if age is None else f'{number(age)} ms'}" for arm, age in ages.items())


def _threats(data: StudyData) -> Iterable[str]:
    versions, analyses, jobs = (
        {row[name] for row in data.runs.values() if row[name]} for name in ("source_sha256", "analysis_sha256", "jobs")
    )
    scenarios = len(data.plan.scenarios)
    at_a_time = " or ".join(sorted(jobs)) or "an unknown number"
    yield "## Threats to validity"
    yield "\n".join(
        _bullet(text)
        for text in (
            "**One machine.** All name servers, brokers and clients ran on one machine with two cores, over loopback and "
            "Toxiproxy. There was no network between sites, and only one clock and one disk.",
            f"**Load.** {at_a_time} run{'s were' if jobs - {'1'} else ' was'} made at a time, and the processes of a run compete "
            "for the cores ([slowdown](#what-was-made-and-which-promises-were-broken)). Latencies are those of a busy "
            "machine. Elections, leases, the brokers' time-outs and the fence (when a node without a majority closes its "
            "connections) use timers, which can expire because of load. The arms use different amounts of CPU time, so load is a "
            "part of the difference between them. Signs of differences, lost writes and verdicts on linearizability depend less "
            "on load than times do.",
            f"**Time scale.** {' '.join(data.plan.timers.split())}",
            f"**Choice of scenarios.** We chose the {scenarios} scenarios. A mean over them holds for these scenarios only. "
            "How often a fault of each kind occurs in production is unknown. The chart of the decision therefore has the "
            "frequency as an axis.",
            f"**Few replicates.** A sign-flip test over {scenarios} scenarios cannot give a probability below "
            f"{2 / 2**scenarios:.2g}, and each scenario without a difference doubles this. In simulations with six scenarios, "
            "the intervals contain the mean in 93 % of the cases if the values are normally distributed, and in 83 to 90 % if "
            "half of them are zero.",
            "**Faults.** If a fault targets the leader, it hits the elected leader in CP, and a node chosen by the seed in AP "
            "and Java. The runs of a block have the same schedule, but not the same victim.",
            "**Workload.** A run has a few brokers, topics and clients, and tens of requests per second. Brokers change far more "
            "often than in production, which makes stale routes more frequent.",
            "**Same authors.** AP, CP, the workload and the checks are by the same authors. RocketMQ's own name server is "
            "the control: AP is meant to behave like it.",
            "**Observation.** Java and AP nodes are observed over RocketMQ's protocol, with several requests for each "
            "observation. CP nodes are observed over their admin port, with one request. Removals are taken from the answers, "
            "not from reports of the nodes. A node that does not answer is left out of the divergence. After a crash, a JVM "
            "needs some seconds longer to start than our nodes. Therefore Java's nodes seem to differ for less time after "
            "`kill-leader`: when such a node answers again, brokers have registered already.",
            f"**Versions.** The runs used {len(versions)} version{'s' * (len(versions) != 1)} of the code, and "
            f"{len(analyses)} of the analysis (`source_sha256` and `analysis_sha256` in runs.csv).",
        )
    )


def _sources(data: StudyData, others: Sequence[str]) -> Iterable[str]:
    name = data.plan.name
    if others and name == MAIN_STUDY:
        yield "## Other studies"
        yield "\n".join(f"- [{other}]({other}.md)" for other in others)
    yield "## Data, and how to repeat the study"
    yield (
        f"[{name}/runs.csv]({name}/runs.csv) has a row for each run: verdict, load of the machine, version of the code, and "
        f"the SHA-256 of its manifest and its trace. [{name}/figures.csv]({name}/figures.csv) has the figures of each run. "
        "The definitions are in `spark/DESIGN.md`. The traces themselves are in the folder of the study (about 0.1 MB each, "
        "compressed), not in the repository."
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
        if block.startswith(("#", "|", "!", "    ", "- ")):
            blocks.append(block)
        else:
            joined = re.sub(r"(?<=\d) (?=%|m?s\b|\[)", "\0", " ".join(block.split()))
            blocks.append(fill(joined, WIDTH, break_long_words=False, break_on_hyphens=False).replace("\0", " "))
    return "\n\n".join(blocks)
