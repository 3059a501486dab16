"""Writes the page of a study: Markdown with every number filled in from the published data, and its charts."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from textwrap import fill

from replicated_namesrv.files import write_atomically
from replicated_namesrv.spark import study_charts, study_decision
from replicated_namesrv.spark.charts import Figure
from replicated_namesrv.spark.study_data import COUNTED, StudyData, batches, described, number
from replicated_namesrv.spark.study_results import FIGURES, PRIMARY_FIGURES, StudyFigure
from replicated_namesrv.spark.summary import REPLICATES_MIN
from replicated_namesrv.spark.survival import Survival

AP, CP = "ap", "cp-linearizable"
COMPARED = ((CP, AP), (AP, "java"), ("cp-lease", CP), ("cp-stale", CP))
"""Pairs of arms that the page compares, if the study has them."""
MAIN_STUDY, MAIN_PAGE = "primary", "README.md"
"""The page of the main study is MAIN_PAGE. The page of any other study has the name of the study."""
WIDTH = 130
_BY_COLUMN = {figure.column: figure for figure in FIGURES}
READ_LEVELS = (
    *("fresh_reads", "route_fresh_reads", "staleness_max", "linearizable_keys", "route_linearizable_keys", "lost_writes"),
    *("route_latency_median steady", "route_latency_p99 steady", "put_latency_median steady", "pinned_yield_in_time fault"),
)
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


def page(data: StudyData) -> str:
    """The page as Markdown."""
    sections = [
        _head(data),
        *_answer(data),
        *_by_level(data),
        *_clients(data),
        *_detection(data),
        *_levels(data),
        *_resolution(data),
        *_threats(data),
        *_sources(data),
    ]
    return "\n\n".join(_wrapped(section) for section in sections) + "\n"


def write_page(folder: Path, data: StudyData) -> Path:
    """Write the page into ``folder``, and its charts beside its data."""
    place = folder / data.plan.name
    for figure in charts(data):
        write_atomically(place / f"{figure.name}.svg", figure.svg.encode())
    path = folder / (MAIN_PAGE if data.plan.name == MAIN_STUDY else f"{data.plan.name}.md")
    write_atomically(path, page(data).encode())
    return path


def _head(data: StudyData) -> str:
    plan, done = data.plan, len(data.runs)
    parts = ", ".join(f"{arm} {own} ({counted} judged)" for arm, own, counted in batches(data))
    return f"""# {plan.title}

This page is for people who choose between AP and CP. {plan.question}

**{done} of the {len(plan.keys)} runs of the study are done.** By arm: {parts}. A run with an unknown verdict is done, but
its figures do not count, because the machine was too busy. Brackets contain 95 % intervals, and parentheses the values
themselves where there are fewer than {REPLICATES_MIN} replicates. For figures over all scenarios, the scenarios are the
replicates; within one scenario, its runs are. `namesrv study publish` fills in every number on this page from the
[data](#data-and-how-to-repeat-the-study)."""


def _answer(data: StudyData) -> Iterable[str]:
    if not {AP, CP} <= set(data.plan.arms):
        return
    yield "## When should I choose CP?"
    decision = _decision(data)
    if decision is None:
        yield "The study has no pair of runs in AP and CP under a fault yet, so there is no answer."
        return
    inputs = decision.inputs
    wrong, unanswered = (number(100 * value, signed=True) for value in (inputs.wrong, inputs.unanswered))
    yield (
        "Choose CP if a broker that is missing from an answer costs you more than the table says. A cell is the waiting time of "
        "a client that is as bad as one missing broker"
        + (", with its 95 % interval. " if decision.resamples else "; there are too few scenarios for intervals. ")
        + f"The inputs are means over {len(decision.scenarios)} scenarios with a fault, for CP with linearizable reads:"
    )
    yield "\n".join(
        _bullet(text)
        for text in (
            f"Missing brokers: a fault adds {wrong} percentage points more to the living brokers that answers lack in AP than in "
            "CP.",
            f"Requests without an answer: a fault adds {unanswered} percentage points more to the requests of fail-over clients "
            "that are not answered in time in CP than in AP.",
            f"Look-ups: before the fault, the median is {number(1000 * inputs.slower_s)} ms longer in CP than in AP.",
        )
    )
    yield _table(
        ["time with a fault", *(f"round trip {one} ms" for one in study_decision.ROUND_TRIPS_MS)], study_decision.table(decision)
    )
    yield f"![Frequency of faults, round trip and cost of a missing broker]({data.plan.name}/decision.svg)"
    yield (
        f"The model is in `spark/study_decision.py`. It counts a request without an answer as {study_decision.DEADLINE_S:g} "
        "s, the time-out of RocketMQ's client. It adds one round trip to each linearizable look-up; no run of this study had "
        "a round trip between sites. It leaves out that clients cache routes for 30 s, which makes a slow look-up cheaper. "
        "With lease or stale reads, the column for 0 ms applies to the nodes that answer without asking others."
    )


def _by_level(data: StudyData) -> Iterable[str]:
    for name, levels in data.plan.factors:
        yield f"## What the {name} changes"
        yield f"Each row is over all runs with this {name}."
        rows = []
        for figure in (*PRIMARY_FIGURES, _BY_COLUMN["route_latency_median steady"]):
            for level in levels:
                found = [data.estimate(arm, figure, None, level) for arm in data.plan.arms]
                rows.append([_title(figure), level, *(described(one, figure.unit) for one in found)])
        yield _table(["", name, *data.plan.arms], rows)


def _clients(data: StudyData) -> Iterable[str]:
    yield "## What clients see"
    yield (
        "The five primary figures, which were chosen before the runs were made. `no-fault` counts too: brokers die and "
        "return in it."
    )
    yield _arms_table(data, PRIMARY_FIGURES)
    for arm, other in COMPARED:
        if {arm, other} <= set(data.plan.arms):
            yield f"### {arm} minus {other}"
            yield f"![Paired differences of {arm} and {other}]({data.plan.name}/forest-{arm}-{other}.svg)"
            yield _differences(data, arm, other)
    yield "### Effects on messages"
    yield (
        "A route decides which consumer reads which queue. The shares of queues are computed from the answers that all nodes "
        "gave at the same moment: one consumer for each node, with RocketMQ's `AllocateMessageQueueAveragely`. No message "
        "was sent."
    )
    yield _arms_table(data, [_BY_COLUMN[column] for column in MESSAGES])
    yield "### Gaps by kind of client"
    yield f"![Longest time without a success]({data.plan.name}/gaps.svg)"
    yield "A point is a run, a line the mean. A client that knows one node waits until this node serves again."


def _differences(data: StudyData, arm: str, other: str) -> str:
    rows = []
    for figure in PRIMARY_FIGURES:
        found = data.difference(arm, other, figure)
        if found is not None:
            chance = "-" if found.chance is None else f"{found.chance:.3f}"
            text = described(found, figure.unit, signed=True)
            rows.append([_title(figure), text, str(len(found.values)), chance])
    return _table(["figure", f"{arm} minus {other}", "pairs", "probability if there were no difference"], rows)


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
        texts = ["-" if value is None else f"{number(value)} s" for value in quantiles]
        rows.append([arm, str(len(times)), str(sum(not seen for _, seen in times)), *texts])
    yield _table(["arm", "deaths seen by a node", "still listed at the end", "median", "90 %"], rows)
    yield (
        "Times are from a broker's death until the first answer of a node after its last answer with this broker "
        "(Kaplan-Meier). They are exact to the interval between two looks, 0.25 s."
    )


def _levels(data: StudyData) -> Iterable[str]:
    yield "## What reads see, and what they cost"
    yield _arms_table(data, [_BY_COLUMN[column] for column in READ_LEVELS])
    yield (
        "All processes of a run share two cores, so compare latencies between columns, not with other machines. A KV put "
        "goes to every name server in turn."
    )


def _resolution(data: StudyData) -> Iterable[str]:
    yield "## Does divergence depend on the resolution?"
    yield f"![Certain divergence by the time between two looks]({data.plan.name}/resolution.svg)"
    yield (
        "The nodes were asked every 0.25 s. The other points were computed as if only some of these looks had been made. "
        "Certain divergence is a lower bound, so it falls with coarser looks. Two nodes that change at the same moment never "
        "differ for certain."
    )
    figures = [_BY_COLUMN[name] for name in ("divergence_share", "divergence_share_possible")]
    yield _arms_table(data, figures)


def _threats(data: StudyData) -> Iterable[str]:
    slow = sorted(float(row["slowdown"]) for row in data.runs.values() if row["slowdown"])
    repeated = sum(row["attempt"] not in ("", "1") for row in data.runs.values())
    unknown = sum(row["verdict"] not in COUNTED for row in data.runs.values())
    versions = {row["source_sha256"] for row in data.runs.values() if row["source_sha256"]}
    analyses = {row["analysis_sha256"] for row in data.runs.values() if row["analysis_sha256"]}
    scenarios = len(data.plan.scenarios)
    busy = (
        f"the median of the largest slowdown of a run was {number(median(slow))}, the greatest {number(slow[-1])}"
        if slow
        else "it is unknown"
    )
    yield "## Threats to validity"
    yield "\n".join(
        _bullet(text)
        for text in (
            "**One machine.** All name servers, brokers and clients ran on one machine with two cores, over loopback and "
            "Toxiproxy. There is no network between sites, one clock, and one disk. CPU load of one arm's processes slows "
            "its own clients.",
            f"**Load.** Processes waited for a core: {busy} (1: never waited). {repeated} runs were repeated because their "
            f"verdict was unknown or they failed; {unknown} runs are unknown after all attempts, and are left out. The order "
            "of the arms in a block was drawn, so load and drift affect all arms.",
            f"**Time scale.** {' '.join(data.plan.timers.split())}",
            f"**Choice of scenarios.** We chose the {scenarios} scenarios. All runs have the same weight in figures of all "
            "scenarios. "
            "How often a fault of each kind occurs in production is unknown. The chart of the decision therefore has the "
            "frequency as an axis.",
            f"**Few replicates.** A sign test over {scenarios} scenarios cannot give a probability below {2 / 2**scenarios:.2g}.",
            "**Workload.** A few brokers, topics and clients at tens of requests per second. Brokers change far more often "
            "than in production, which makes stale routes more frequent.",
            "**Same authors.** AP, CP, the workload and the checks are by the same authors. RocketMQ's own name server is "
            "the control: AP is meant to behave like it.",
            "**Observation.** Java and AP nodes are observed over RocketMQ's protocol, CP nodes over their admin port. "
            "Removals are taken from the answers, not from reports of the nodes.",
            f"**Versions.** The runs used {len(versions)} version{'s' * (len(versions) != 1)} of the code, and "
            f"{len(analyses)} of the analysis (`source_sha256` and `analysis_sha256` in runs.csv).",
        )
    )


def _sources(data: StudyData) -> Iterable[str]:
    name = data.plan.name
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


def _arms_table(data: StudyData, figures: Sequence[StudyFigure]) -> str:
    rows = []
    for figure in figures:
        found = {arm: data.estimate(arm, figure) for arm in data.plan.arms}
        rows.append([_title(figure), *(described(found[arm], figure.unit) for arm in data.plan.arms)])
    return _table(["", *data.plan.arms], rows)


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
