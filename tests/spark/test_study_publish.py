"""``namesrv study publish``: the figures of runs, the published data, the model of the decision, and the page."""

import csv
import gzip
import hashlib
import json
import math
import random
import re
import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import pyarrow as pa
import pytest

from replicated_namesrv.chaos import study_plan
from replicated_namesrv.chaos.study_plan import load_study
from replicated_namesrv.cli.main import run_command
from replicated_namesrv.spark.generate import generate
from replicated_namesrv.spark.lines import OBSERVATIONS, read, split
from replicated_namesrv.spark.looks import Looks
from replicated_namesrv.spark.one_run import judged_run
from replicated_namesrv.spark.run_records import RunRecords
from replicated_namesrv.spark.sources import InputError, read_manifest
from replicated_namesrv.spark.storage import LocalFiles
from replicated_namesrv.spark.study_data import (
    RUN_COLUMNS,
    BlockKey,
    Estimate,
    PlanFacts,
    StudyData,
    described,
    estimate,
    number,
    read_data,
    write_data,
)
from replicated_namesrv.spark.study_decision import DEADLINE_S, DecisionInputs, decide
from replicated_namesrv.spark.study_page import page
from replicated_namesrv.spark.study_results import FIGURES, PRIMARY_FIGURES, StudyTrace, coarse_divergence, computed, results
from replicated_namesrv.spark.summary import PRIMARY
from replicated_namesrv.spark.truth import Listings, TruthSpan, observed_detections
from tests.support.json_outputs import check_output
from tests.support.places import assert_same_names

PLAN = """title = "Small"
question = "What is small?"
timers = "All as in production."
scenarios = ["no-fault", "isolate-leader"]
nodes = [3]
seeds = 3
[[arm]]
name = "ap"
mode = "ap"
[[arm]]
name = "cp-linearizable"
mode = "cp"
"""
LOOK = 250_000_000


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A generated run of each mode."""
    ap, cp = generate(10_000, 3, 1, tmp_path_factory.mktemp("recorded"), lambda line: None)
    return {"ap": ap, "cp-linearizable": cp}


def entry_of(run: str, made: Path, **about: Any) -> dict[str, Any]:
    """The ledger's line for a run."""
    sums = {name: hashlib.sha256((made / file).read_bytes()).hexdigest() for name, file in
            (("trace_sha256", "trace.jsonl"), ("manifest_sha256", "manifest.json"))}  # fmt: skip  # items grouped by line
    return {
        "run": run, "attempt": 1, "verdict": "valid", "reason": None, "folder": f"attempts/{run}",
        "started": "2026-01-02T03:04:05Z",
        "took_s": 20.1, "load1": 1.5, "slowdown": 1.25, "stall_s": 0.1, "jobs": 1, "commit": None, "source_sha256": "c",
        "figures": {"queues_doubled": 0.01, "queues_orphaned": 0.25}, **sums, **about,
    }  # fmt: skip  # items grouped by line


@pytest.fixture
def study(tmp_path: Path, recorded: dict[str, Path]) -> Path:
    """The folder of a study, in which the first eight runs of the plan are done; one of them is unknown, one failed."""
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "plan.toml").write_text(PLAN)
    (folder / "name.txt").write_text("small")
    lines = []
    for place, run in enumerate(load_study(folder / "plan.toml", "small").runs[:8]):
        made = folder / "attempts" / run.key / "small" / "1"
        made.mkdir(parents=True)
        source = recorded[run.arm]
        shutil.copy(source / "manifest.json", made)
        (made / "trace.jsonl.gz").write_bytes(gzip.compress((source / "trace.jsonl").read_bytes()))
        scenario, nodes, seed, cut, _ = run.block
        entry = entry_of(run.key, source, arm=run.arm, scenario=scenario, nodes=nodes, seed=seed, cut=cut, levels=[])
        if place == 5:
            entry |= {"verdict": "unknown", "attempt": 3, "reason": "slowdown 9"}
        if place == 6:
            entry = {name: value for name, value in entry.items() if "sha256" not in name} | {"verdict": "failed", "attempt": 3}
        lines += [json.dumps(entry)] * entry["attempt"]
    (folder / "ledger.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def records_of(made: Path) -> RunRecords:
    about, clients = read_manifest(LocalFiles(), str(made / "manifest.json"))
    lines = read(split((made / "trace.jsonl").read_bytes()))
    looks = Looks()
    looks.add(lines.observations)
    return RunRecords(about, clients, lines.events, looks.table())


def test_primary_figures_are_those_of_the_analysis() -> None:
    figures = [figure.metric for figure in PRIMARY_FIGURES]
    assert_same_names(figures, "PRIMARY_FIGURES of spark/study_results.py", PRIMARY, "PRIMARY of spark/summary.py")
    assert figures == list(PRIMARY), "PRIMARY of spark/summary.py has another order"
    assert len({figure.column for figure in FIGURES}) == len(FIGURES)


@pytest.mark.parametrize("arm", ["ap", "cp-linearizable"])
def test_figures_of_a_run_are_those_of_the_analysis(recorded: dict[str, Path], arm: str) -> None:
    made = recorded[arm]
    found = computed(StudyTrace(entry_of("r", made), made))
    records = records_of(made)
    own = records.about["read_consistency"]
    rows = [row for row in judged_run(records)["per_run"].to_pylist() if row["side"] == "all"]
    for figure in FIGURES:
        same = [row for row in rows if (row["metric"], row["phase"]) == (figure.metric, figure.phase)]
        expected = {row["level"]: row["value"] for row in same if row["level"] in (own, "all")}
        if figure.metric.startswith(("divergence_share_every", "queues")):
            continue
        assert found.figures.get(figure.column) == expected.get(own, expected.get("all")), figure
    assert {"divergence_share", "fresh_reads", "queues_orphaned", "divergence_share_every_2"} <= found.figures.keys()
    assert (found.figures["queues_doubled"], found.figures["queues_orphaned"]) == (0.01, 0.25)


def test_another_trace_than_that_of_the_ledger_is_refused(recorded: dict[str, Path]) -> None:
    made = recorded["ap"]
    with pytest.raises(InputError, match="not the trace"):
        computed(StudyTrace({**entry_of("r", made), "trace_sha256": "0" * 64}, made))


def test_results_are_computed_once(study: Path, recorded: dict[str, Path]) -> None:
    made = recorded["ap"]
    trace, said = StudyTrace(entry_of("r", made), made), list[str]()
    first = results(study, [trace], said.append)
    assert len(said) == 1
    assert results(study, [trace], said.append) == first
    assert len(said) == 1
    (kept,) = (study / "results").glob("r=*.json")
    kept.rename(study / "results" / "r=of-an-older-version.json")
    assert results(study, [trace], said.append) == first
    assert [path.name for path in (study / "results").iterdir()] == [kept.name], "the result of another version is replaced"


def test_divergence_at_every_look_is_the_divergence_and_coarser_looks_see_what_lasts(recorded: dict[str, Path]) -> None:
    """Two nodes are asked 40 times. They differ in looks 10 to 13. Of every second look, two see it: 10 and 12. Of every fourth
    look, one sees it: 12. One look proves no difference that lasted."""
    events = records_of(recorded["ap"]).events
    looks = Looks()
    rows = [
        {"record": "observe", "time_ns": at * LOOK + 1, "asked_ns": at * LOOK, "node": node, "key": "brokers",
         "answered": True, "members": json.dumps([{"name": "b", "version": "2" if node == "n1" and 10 <= at < 14 else "1"}])}
        for at in range(40) for node in ("n1", "n2")
    ]  # fmt: skip  # items grouped by line
    looks.add(pa.Table.from_pylist(rows, schema=OBSERVATIONS))
    records = RunRecords({"run": "r", "observe_interval_ms": 250}, {}, events, looks.table())
    shares = {factor: coarse_divergence(records, factor) for factor in (1, 2, 4, 8)}
    assert shares[1] == pytest.approx(3 / 39, abs=0.002)
    assert shares[2] == pytest.approx(2 / 38, abs=0.002)
    assert shares[4] == pytest.approx(0, abs=0.002)
    assert shares[8] == 0


def test_detection_is_the_first_answer_without_the_broker_after_the_last_with_it() -> None:
    names = {"old": (("b", "1"), ("c", "1")), "new": (("c", "1"),)}

    class Told:
        """Answers by name."""

        @staticmethod
        def members(text: str) -> tuple[tuple[str, str], ...]:
            return names[text]

    answers = [
        ("n1", 0, 12, "old"), ("n1", 12, 40, "new"),  # drops it at 12
        ("n2", 0, 11, "old"), ("n2", 11, 13, "new"), ("n2", 13, 15, "old"), ("n2", 15, 40, "new"),  # lists it once more
        ("n3", 0, 9, "old"), ("n3", 30, 40, "old"),  # was silent at the death
        ("n4", 0, 25, "old"),  # lists it to the end of its answers
        ("n5", 0, 20, "old"), ("n5", 22, 40, "new"),  # gave no answer for a while
    ]  # fmt: skip  # items grouped by line
    states = [{"key": "brokers", "node": node, "from_ns": at, "until_ns": to, "members": text} for node, at, to, text in answers]
    listings = Listings(Told(), states)  # type: ignore[arg-type]  # only members is used
    spans = [TruthSpan("b", 1, "serving", "1", [], [], 0, 10), TruthSpan("b", 1, "silent", "1", [], [], 10, 35)]
    found = {row["node"]: (row["detected_ns"], row["observed_ns"]) for row in observed_detections(spans, listings)}
    assert found == {"n1": (2, 25), "n2": (5, 25), "n4": (None, 15), "n5": (12, 25)}


FACTS = PlanFacts(
    "p", "t", "q", "timers", ("ap", "cp-linearizable"), ("ap", "cp"), ("no-fault", "s1", "s2"), (), frozenset("abc")
)


def made_data(values: dict[tuple[str, str, int], dict[str, float]], verdict: str = "valid") -> StudyData:
    """Data with the figures of runs by (arm, scenario, seed)."""
    runs, figures = {}, {}
    for (arm, scenario, seed), own in values.items():
        key = f"{seed}-{scenario}-{arm}"
        about = {"run": key, "arm": arm, "scenario": scenario, "nodes": "3", "seed": str(seed), "cut": "", "levels": ""}
        runs[key] = dict.fromkeys(RUN_COLUMNS, "") | about | {"verdict": verdict}
        figures[key] = {"run": key, **{name: repr(value) for name, value in own.items()}}
    return StudyData(FACTS, runs, figures)


def test_differences_are_of_pairs_in_complete_blocks() -> None:
    harvest = PRIMARY_FIGURES[1]
    values = {("ap", "s1", 1): 0.5, ("cp-linearizable", "s1", 1): 0.75, ("ap", "s1", 2): 0.25, ("cp-linearizable", "s2", 2): 1.0}
    data = made_data({place: {"harvest fault": value} for place, value in values.items()})
    found = data.difference("cp-linearizable", "ap", harvest)
    assert found is not None
    assert (found.mean, found.values, found.interval) == (0.25, (0.25,), (None, None))
    alone = data.estimate("ap", harvest)
    assert alone is not None
    assert alone.mean == 0.5, "the blocks of seed 2 have one arm only"
    assert data.estimate("ap", harvest, lambda block: block.scenario == "s2") is None


def test_a_run_counts_whatever_its_verdict_is_if_its_block_is_complete() -> None:
    harvest = PRIMARY_FIGURES[1]
    both = {("ap", "s1", 1): {"harvest fault": 0.5}, ("cp-linearizable", "s1", 1): {"harvest fault": 1.0}}
    alone = {("ap", "s1", 2): {"harvest fault": 0.0}}
    for verdict in ("valid", "violated", "unknown"):
        found = made_data(both | alone, verdict).estimate("ap", harvest)
        assert found is not None
        assert found.values == (0.5,), "the block of seed 2 has no run in CP"


def test_scenarios_or_seeds_are_the_replicates_and_few_replicates_have_no_interval() -> None:
    rng = random.Random(3)

    def drawn(scenarios: int, seeds: int) -> dict[BlockKey, float]:
        cells = product(range(scenarios), range(seeds), ("3", "5"))
        return {BlockKey(f"s{scenario}", nodes, str(seed), "", ""): rng.random() for scenario, seed, nodes in cells}

    found = [estimate(drawn(*shape), "share") for shape in ((1, 6), (1, 4), (2, 10), (2, 4), (6, 2))]
    assert [each and (each.replicates, each.interval[0] is not None) for each in found] == [
        (6, True), (4, False), (10, True), (4, False), (6, True),
    ]  # fmt: skip  # items grouped by line


@pytest.mark.parametrize(
    ("found", "unit", "text"),
    [
        (None, "s", "-"),
        (Estimate(0.5, (0.25, 0.75), (0.5,) * 3 + (0.4,) * 3, 6), "share", "50 % [25, 75]"),
        (Estimate(0.5, (None, None), (0.7, 0.3), 2), "share", "50 % (30, 70)"),
        (Estimate(0.0, (0.0, 0.39), (0.0,) * 30, 6), "share", "0 % in all 30"),
        (Estimate(3.5, (None, None), tuple(map(float, range(8))), 2), "s", "3.5 s (0 to 7 in 8)"),
        (Estimate(-0.123, (-0.2, 0.05), (1.0, 2.0), 6), "share", "-12 points [-20, +5]"),
    ],
)
def test_estimates_as_text(found: Estimate | None, unit: str, text: str) -> None:
    assert described(found, unit, signed=text.startswith("-12")) == text


def test_numbers_do_not_pretend() -> None:
    shown = [number(value) for value in (0.0004, 0.0123, 1.26, 12.6, 99.96, 97.26, 12345.0, -3.14)]
    assert shown == ["0", "0.012", "1.3", "13", "99.96", "97.3", "12,345", "-3.1"]


def test_cp_is_cheaper_exactly_above_the_threshold() -> None:
    """Compute both costs from their definition, with random inputs, and compare them."""
    rng = random.Random(1)
    for _ in range(200):
        inputs = DecisionInputs(rng.uniform(-0.1, 0.3), rng.uniform(0.01, 0.5), rng.uniform(0, 0.02))
        share, round_trip_ms = 10 ** rng.uniform(-5, 0), rng.choice((0, 10, 150))
        threshold = inputs.threshold_s(share, round_trip_ms)
        for cost_s in (*([threshold * 0.9] if threshold else []), threshold * 1.1 + 1e-6):
            cp = inputs.slower_s + 2 * round_trip_ms / 1000 + share * inputs.unanswered * DEADLINE_S
            ap = share * inputs.wrong * cost_s
            assert (cp < ap) == (cost_s > threshold), (inputs, share, round_trip_ms, cost_s)
    assert math.isinf(DecisionInputs(0.1, -0.01, 0.0).threshold_s(0.5, 0))


def test_inputs_of_the_decision_are_means_over_scenarios_of_what_the_fault_adds() -> None:
    names = ("failover_yield_in_time fault", "failover_yield_in_time steady", "harvest fault", "harvest steady",
             "route_latency_median steady")  # fmt: skip  # items grouped by line
    told = {
        ("ap", "s1", 1): (1.0, 1.0, 0.6, 1.0, 2.0), ("cp-linearizable", "s1", 1): (0.8, 1.0, 0.9, 1.0, 5.0),
        ("ap", "s1", 2): (1.0, 1.0, 0.8, 1.0, 2.0), ("cp-linearizable", "s1", 2): (0.8, 1.0, 0.9, 1.0, 5.0),
        ("ap", "s2", 1): (0.9, 0.9, 0.4, 0.9, 2.0), ("cp-linearizable", "s2", 1): (1.0, 1.0, 0.9, 0.9, 3.0),
        ("ap", "no-fault", 1): (0.0, 1.0, 0.0, 1.0, 9.0), ("cp-linearizable", "no-fault", 1): (1.0, 1.0, 1.0, 1.0, 9.0),
        ("ap", "s2", 3): (0.0, 1.0, 0.0, 1.0, 9.0),
    }  # fmt: skip  # items grouped by line
    data = made_data({place: dict(zip(names, values, strict=True)) for place, values in told.items()})
    decision = decide(data, "cp-linearizable", "ap")
    assert decision is not None
    assert decision.scenarios == ("s1", "s2")
    assert decision.inputs == pytest.approx((mean([0.2, 0.0]), mean([0.2, 0.5]), mean([0.003, 0.001])))
    assert decision.resamples == ()
    wider = {
        (arm, f"s{count}", 1): {name: value + 0.01 * count * (arm == "ap") for name, value in data_of.items()}
        for count in range(6)
        for arm, data_of in (("ap", dict.fromkeys(names, 0.5)), ("cp-linearizable", {**dict.fromkeys(names, 0.5), names[2]: 0.9}))
    }
    drawn = decide(made_data(wider), "cp-linearizable", "ap")
    assert drawn is not None
    centre, low, high = drawn.threshold_s(0.01, 50)
    assert low is not None
    assert high is not None
    assert low <= centre <= high


def test_each_level_of_a_factor_has_its_rows() -> None:
    base = made_data({("ap", "s1", seed): {"harvest fault": seed / 10} for seed in range(1, 5)})
    runs = {run: {**row, "levels": "3 s;x" if row["seed"] < "3" else "6 s;x"} for run, row in base.runs.items()}
    facts = FACTS._replace(arms=("ap",), modes=("ap",), factors=(("time-out", ("3 s", "6 s")),))
    text = page(StudyData(facts, runs, base.figures))
    rows = [line for line in text.splitlines() if line.startswith("| share of the serving brokers") and " s |" in line]
    assert [row.rstrip(" |").split(" | ")[1:3] for row in rows] == [["3 s", "15 % (10, 20)"], ["6 s", "35 % (30, 40)"]]


def links(text: str) -> Iterator[str]:
    return (link for link in re.findall(r"\]\((?!http|#)([^)#]+)\)", text))


def test_publish_from_a_small_recorded_set(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = tmp_path / "published"
    arguments = ["publish", str(study), "--to", str(to), "--json"]
    assert run_command("study", arguments) == 0
    out = capsys.readouterr().out
    check_output(("study", "publish", "--json"), out)
    total = len(load_study(study / "plan.toml", "small").runs)
    told = json.loads(out)
    assert (told["added"], told["done"], told["runs"]) == (8, 8, total)
    text = (to / "small.md").read_text()
    assert f"**8 of the {total} runs of the study are done.**" in text
    assert "(30" not in text
    assert [link for link in links(text) if not (to / link).exists()] == []
    assert "nan" not in text.lower().replace("finance", "")
    runs = (to / "small" / "runs.csv").read_text().splitlines()
    assert len(runs) == 9
    assert sum(",failed," in row for row in runs) == sum(",unknown," in row for row in runs) == 1
    # one more run: its row is added, the others stay
    ledger = (study / "ledger.jsonl").read_text().splitlines()
    more = json.loads(ledger[0])
    before = (to / "small" / "figures.csv").read_text().splitlines()
    (study / "ledger.jsonl").write_text(json.dumps({**more, "verdict": "violated"}) + "\n")
    assert run_command("study", ["publish", str(study), "--to", str(to)]) == 0
    assert (to / "small" / "figures.csv").read_text().splitlines() == before
    with (to / "small" / "runs.csv").open(newline="") as rows:
        assert [row["run"] for row in csv.DictReader(rows) if row["verdict"] == "violated"] == [more["run"]]
    assert "8 of" in capsys.readouterr().out


def test_a_study_of_the_product_is_published_with_its_present_texts(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    present = tmp_path / "small.toml"
    monkeypatch.setattr(study_plan, "available_studies", lambda: {"small": present})
    for content, title in ((PLAN, "# Reworded"), (PLAN.replace("seeds = 3", "seeds = 4"), "# Small")):
        present.write_text(content.replace('"Small"', '"Reworded"'))
        to = tmp_path / title
        assert run_command("study", ["publish", str(study), "--to", str(to)]) == 0
        assert (to / "small.md").read_text().splitlines()[0] == title


def test_verdicts_of_the_present_checks_are_published(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = json.loads((study / "ledger.jsonl").read_text().splitlines()[0])
    (made,) = (study / entry["folder"]).glob("*/*")
    check = {"check": "fence", "promised": True, "verdict": "violated"}
    verdict = {
        "verdict": "violated",
        "checks": [check],
        "figures": {},
        "scenario": "s",
        "mode": "cp",
        "read_consistency": "lease",
    }
    (made / "verdict.json").write_text(json.dumps(verdict))
    to = tmp_path / "published"
    assert run_command("study", ["publish", str(study), "--to", str(to)]) == 0
    with (to / "small" / "runs.csv").open(newline="") as rows:
        found = {row["run"]: (row["verdict"], row["violated"], row["reason"]) for row in csv.DictReader(rows)}
    assert found[entry["run"]] == ("violated", "fence", "fence: violated")
    assert [run for run, about in found.items() if about[0] == "violated"] == [entry["run"]]
    capsys.readouterr()
    # generated traces are for the analysis only, so the checks refuse them
    assert run_command("study", ["publish", str(study), "--to", str(to), "--judge-again"]) == 2
    assert "manifest or trace has wrong content" in capsys.readouterr().err
    assert run_command("study", ["publish", "--judge-again"]) == 2
    assert "--judge-again: needs the runs" in capsys.readouterr().err


def test_a_study_without_results_is_refused(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (study / "ledger.jsonl").write_text("")
    assert run_command("study", ["publish", str(study), "--to", str(tmp_path / "p")]) == 2
    assert "no run is done yet" in capsys.readouterr().err


def test_data_survive_writing_and_reading(tmp_path: Path) -> None:
    rows = [{"run": "b", "arm": "ap", "scenario": "s1", "nodes": "3", "seed": "1", "cut": "", "levels": "", "verdict": "valid"}]
    write_data(tmp_path, rows, [{"run": "b", "harvest fault": "0.5", "detection": "1.00 2.50+ 3.00"}])
    write_data(tmp_path, [{**rows[0], "run": "a", "seed": "2"}], [{"run": "a", "harvest fault": "1"}])
    data = read_data(tmp_path, FACTS._replace(arms=("ap",), modes=("ap",)))
    assert list(data.runs) == ["a", "b"]
    assert data.values("ap", "harvest fault") == {("s1", "3", "2", "", ""): 1.0, ("s1", "3", "1", "", ""): 0.5}
    assert data.detections("ap") == [(1.0, True), (2.5, False), (3.0, True)]
