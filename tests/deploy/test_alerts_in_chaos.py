"""The alerts of deploy/prometheus in scenarios of the chaos laboratory: its fault causes the alert, and no fault causes none.

Each run records the metrics of all nodes once a second. promtool evaluates the shipped rules on these samples in real time. A
fault of the laboratory lasts for seconds, but alerts wait for minutes. So the samples of the last second of the fault are
repeated: the fault lasts. ``test_alerts.py`` has the faults of a cluster without the laboratory.
"""

import dataclasses
import json
from pathlib import Path
from typing import NamedTuple

import pytest

from replicated_namesrv.chaos.metrics_recorder import METRICS_FILE
from replicated_namesrv.chaos.records import TRACE_FILE, FaultRecord, Header, Phase, read_trace
from replicated_namesrv.chaos.run import RunPlan
from replicated_namesrv.chaos.scenario import WorkloadSpec, load
from replicated_namesrv.chaos.suite import execute
from replicated_namesrv.verify import Verdict
from tests.packaging.tree import ROOT
from tests.support.alert_rules import NAMES, RULES, WAITS
from tests.support.places import assert_listed
from tests.support.promtool import TEST_TIMEOUT_S, promtool, run_promtool
from tests.support.recorded_metrics import Scrape, input_series, parsed, rule_test

INTERVAL_S, INTERVAL_NS = 1, 1_000_000_000
MARGIN_NS = 1_200_000_000
"""A scrape that began less than this time before the end of the fault may show the state after it: it takes at most a second."""
BEFORE_S = 330
"""How long the state before the fault lasts: longer than the longest range that looks for a new series."""
HOLD_S = 600
"""How long the fault lasts after the last sample: longer than the longest ``for``."""


class Row(NamedTuple):
    """A scenario of the laboratory and the alerts that its fault causes."""

    scenario: str
    alerts: tuple[str, ...]
    tolerated: tuple[str, ...] = ()
    """Alerts that the fault may cause as well."""
    fault_s: float | None = None
    """Length of the fault. None: that of the scenario."""


LAGS = "NamesrvFollowerLags"
"""Clients write some 50 entries per second while a node is away."""
ROWS = (
    Row("isolate-follower", ("NamesrvPeerUnreachable", "NamesrvFenced", LAGS), fault_s=25),
    Row("isolate-leader", ("NamesrvPeerUnreachable", "NamesrvFenced"), (LAGS,), fault_s=12),
    Row("kill-follower", ("NamesrvNodeDown", "NamesrvPeerUnreachable"), (LAGS,), fault_s=14),
    Row("pause-all", ("NamesrvNodeDown", "NamesrvNoLeader")),
    Row("hand-overs", ("NamesrvLeaderFlapping",)),
    Row("slow-disks", ("NamesrvDiskSlow",), ("NamesrvLeaderFlapping",)),
    Row("disk-hangs", ("NamesrvDiskHangs",), ("NamesrvDiskSlow", "NamesrvFenced", "NamesrvPeerUnreachable", LAGS), fault_s=12),
    Row("disk-full", ("NamesrvDiskShort", "NamesrvLimitHit")),
    Row("wrong-state", ("NamesrvDigestMismatch",), ("NamesrvNodeDown", "NamesrvPeerUnreachable", LAGS)),
    Row("kv-nearly-full", ("NamesrvQuotaNearlyUsed",)),
    Row("certificate-expires", ("NamesrvCertificateExpires",)),
    Row("certificate-unusable", ("NamesrvCertificateUnusable",)),
    Row("brokers-cut-from-all", ("NamesrvNoBrokers",)),
    Row("brokers-flap", ("NamesrvBrokersFlap",), ("NamesrvNoBrokers",)),
)
STEADY = WorkloadSpec(pair=False, mortal="none", early_deaths=False, deputy=False, churn=False, kv_writes="one")
"""Clients and brokers, of which none stops or dies. A write goes to one node and does not wait for nodes that do not answer, so
there are many writes during a fault."""
HAND_OVER = "hand-over"
OF_SCENARIO = ("register_period_ms", "broker_timeout_ms", "changes_per_s", "kv_per_s")
"""Parts of the workload that a scenario determines."""


class Run(NamedTuple):
    before: list[Scrape]
    """The scrapes from the start of the clients to the first fault. Without a fault, all of them."""
    during: list[Scrape]
    """The scrapes from the first fault to the end of the last one."""
    began_s: float
    """Time of the first scrape, seconds since 1970."""


def recorded(row: Row, folder: Path) -> Run:
    """Make a run and read its metrics."""
    scenario = load(row.scenario)
    kept = {name: getattr(scenario.workload, name) for name in OF_SCENARIO}
    scenario = dataclasses.replace(scenario, workload=dataclasses.replace(STEADY, **kept))
    done = execute(RunPlan(scenario, "cp", 3, 1, duration_s=row.fault_s, metrics_s=INTERVAL_S), folder, print)
    assert done.judgement.verdict is not Verdict.VIOLATED, done.folder
    trace = read_trace(done.folder / TRACE_FILE).records
    phases = {record.phase: record.time_ns for record in trace if isinstance(record, Phase)}
    faults = [record for record in trace if isinstance(record, FaultRecord)]
    begins_ns = min((fault.began_ns for fault in faults), default=phases["final"])
    # nothing ends a transfer of leadership, so its effect lasts; the phase "heal" waits until the nodes agree
    ends_ns = max((fault.began_ns for fault in faults if fault.name != HAND_OVER), default=phases["final"])
    lines = [json.loads(line) for line in (done.folder / METRICS_FILE).read_text(encoding="utf-8").splitlines()]
    scrapes: dict[int, dict[str, dict[str, float] | None]] = {}
    for line in lines:
        text, number = line["metrics"], round((line["time_ns"] - lines[0]["time_ns"]) / INTERVAL_NS)
        if phases["steady"] < line["time_ns"] < ends_ns - MARGIN_NS:
            scrapes.setdefault(number, {})[line["node"]] = None if text is None else parsed(text, NAMES)
    begins = (begins_ns - lines[0]["time_ns"]) / INTERVAL_NS
    before = [scrapes[number] for number in sorted(scrapes) if number < begins]
    (header,) = [record for record in trace if isinstance(record, Header)]
    began_s = (header.wall_ns + lines[0]["time_ns"] - header.time_ns) / 1e9
    return Run(list(before), [scrapes[number] for number in sorted(scrapes) if number >= begins], began_s)


def judge(folder: Path, test: dict[str, object]) -> None:
    file = folder / "recorded.yaml"
    rules = {"rule_files": [str(RULES)], "evaluation_interval": f"{INTERVAL_S}s", "tests": [test]}
    file.write_text(json.dumps(rules), encoding="utf-8")
    run_promtool("test", "rules", str(file))


def fired(selector: str) -> str:
    """Number of alerts that fired at any time of the test."""
    return f'count(count_over_time(ALERTS{{{selector}, alertstate="firing"}}[1h]))'


@pytest.mark.slow
@pytest.mark.timeout(TEST_TIMEOUT_S)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.scenario)
def test_a_scenario_causes_its_alerts_and_no_others(row: Row, tmp_path: Path) -> None:
    promtool()
    run = recorded(row, tmp_path)
    scrapes = [*[run.before[0]] * BEFORE_S, *run.before, *run.during]
    end_s = len(scrapes) + HOLD_S - 1
    checks: list[tuple[str, float, object]] = [(fired(f'alertname="{alert}"') + " > bool 0", end_s, 1) for alert in row.alerts]
    known = "|".join((*row.alerts, *row.tolerated))
    checks.append((fired(f'alertname!~"{known}"'), end_s, None))
    judge(tmp_path, rule_test(row.scenario, input_series(scrapes, run.began_s, HOLD_S), checks, INTERVAL_S))


@pytest.mark.slow
@pytest.mark.timeout(TEST_TIMEOUT_S)
def test_no_condition_of_a_rule_holds_without_a_fault(tmp_path: Path) -> None:
    promtool()
    run = recorded(Row("no-fault", (), fault_s=40), tmp_path)
    scrapes = run.before
    end_s = len(scrapes) - 1
    assert end_s >= 40
    test = rule_test(
        "no fault", input_series(scrapes, run.began_s, 0), [("count(count_over_time(ALERTS[1h]))", end_s, None)], INTERVAL_S
    )
    judge(tmp_path, test)


def test_rows_have_no_unknown_alert() -> None:
    assert_listed((alert for row in ROWS for alert in (*row.alerts, *row.tolerated)), "ROWS of this file", WAITS, "alerts.yaml")


def test_the_page_names_the_scenarios_of_each_alert() -> None:
    page = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
    for alert in WAITS:
        lines = [each for each in page.splitlines() if each.startswith(f"| {alert} |")]
        assert len(lines) == 1, f"docs/alerts.md has {len(lines)} rows in its table for {alert}: write one"
        named = lines[0].split("|")[-2].strip()
        wanted = ", ".join(row.scenario for row in ROWS if alert in row.alerts)
        assert named == wanted, f"docs/alerts.md names for {alert} the scenarios '{named}', ROWS of this file '{wanted}'"
