"""deploy/prometheus: rules that promtool accepts, over metrics that exist, each alert with a page for the operator."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from replicated_namesrv.admin.exposition import HISTOGRAM, METRICS
from tests.packaging.metrics_page import sample_name
from tests.packaging.test_pages import anchors
from tests.packaging.tree import ROOT
from tests.support.nodes import http
from tests.support.operated import operated
from tests.support.places import assert_listed, assert_same_names
from tests.support.promtool import TEST_TIMEOUT_S, run_promtool
from tests.support.recorded_metrics import names_in

FOLDER = ROOT / "deploy" / "prometheus"
ALERTS, RECORDING, TESTS = (FOLDER / f"{name}.yaml" for name in ("alerts", "recording", "rules-tests"))


def sample_names() -> set[str]:
    """Every name that a query may use."""
    names = {sample_name(name) for name in METRICS}
    names -= {sample_name(name) for name, metric in METRICS.items() if metric.kind is HISTOGRAM}
    return names | {f"namesrv_{n}_{end}" for n, m in METRICS.items() if m.kind is HISTOGRAM for end in ("bucket", "sum", "count")}


def rules(file: Path) -> list[dict[str, Any]]:
    return [rule for group in YAML(typ="safe", pure=True).load(file)["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("file", [ALERTS, RECORDING], ids=lambda file: file.stem)
def test_rules_use_metrics_that_exist(file: Path) -> None:
    used = names_in(" ".join(rule["expr"] for rule in rules(file)))
    assert used
    assert not used - sample_names(), f"no such metric: {sorted(used - sample_names())}"


def test_each_alert_has_a_section_of_the_page_and_the_page_has_no_other() -> None:
    names = {rule["alert"] for rule in rules(ALERTS)}
    for rule in rules(ALERTS):
        wanted, given = f"docs/alerts.md#{rule['alert'].lower()}", rule["annotations"]["runbook_url"]
        assert given == wanted, f"{rule['alert']} in alerts.yaml: its runbook_url is {given}, not {wanted}"
    sections = {anchor for anchor in anchors(Path("docs/alerts.md")) if anchor.startswith("namesrv")}
    assert_same_names(sections, "the sections of docs/alerts.md", map(str.lower, names), "alerts.yaml")


def test_the_table_of_the_page_has_the_metrics_and_waiting_times_of_the_rules() -> None:
    page = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
    units = {"s": "s", "m": "min"}
    for rule in rules(ALERTS):
        metrics = ", ".join(f"`{name}`" for name in sorted(names_in(rule["expr"]) or {"up"}))
        waits = rule.get("for", "")
        row = f"| {rule['alert']} | {metrics} | "
        lines = [each for each in page.splitlines() if each.startswith(f"| {rule['alert']} |")]
        assert len(lines) == 1, f"docs/alerts.md has {len(lines)} rows in its table for {rule['alert']}: write one"
        (line,) = lines
        assert line.startswith(row), f"docs/alerts.md: the row has to begin with {row}"
        wanted = f"{waits[:-1]} {units[waits[-1]]}" if waits else ""
        assert line.split("|")[-3].strip() == wanted, f'docs/alerts.md: {rule["alert"]}: the column "for" has to be {wanted!r}'


def test_each_recording_rule_is_on_the_page_of_objectives() -> None:
    page = (ROOT / "docs" / "slo.md").read_text(encoding="utf-8")
    missing = [rule["record"] for rule in rules(RECORDING) if f"`{rule['record']}`" not in page]
    assert not missing, f"docs/slo.md does not describe {missing}"


def test_each_alert_has_a_unit_test() -> None:
    named = {test["name"] for test in YAML(typ="safe", pure=True).load(TESTS)["tests"]}
    assert_listed((rule["alert"] for rule in rules(ALERTS)), "alerts.yaml", named, "rules-tests.yaml")


@pytest.mark.slow
@pytest.mark.timeout(TEST_TIMEOUT_S)
def test_promtool_accepts_the_rules_and_their_unit_tests() -> None:
    run_promtool("check", "rules", "--lint=all", "--lint-fatal", str(ALERTS), str(RECORDING))
    run_promtool("test", "rules", str(TESTS))


@pytest.mark.slow
@pytest.mark.timeout(TEST_TIMEOUT_S)
async def test_promtool_finds_nothing_wrong_with_the_names_of_the_metrics(tmp_path: Path) -> None:
    """Prometheus' conventions: units, endings, a help text for each metric."""
    async with operated(tmp_path) as cluster:
        leader = await cluster.elected()
        text = (await http(cluster.admin_ports[cluster.nodes.index(leader)], "/metrics")).text
    assert await asyncio.to_thread(run_promtool, "check", "metrics", stdin=text) == ""
