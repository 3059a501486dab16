"""deploy/grafana: dashboards whose every query uses metrics that exist, with the labels that they have."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from replicated_namesrv.admin.exposition import METRICS
from replicated_namesrv.wire.codes import RequestCode, ResponseCode
from tests.deploy.test_prometheus import ALERTS, RECORDING, rules, sample_names
from tests.packaging.metrics_page import sample_name
from tests.packaging.tree import ROOT
from tests.support.event_kinds import kinds_of_events
from tests.support.nodes import http
from tests.support.operated import operated
from tests.support.places import assert_listed
from tests.support.promtool import TEST_TIMEOUT_S, run_promtool
from tests.support.recorded_metrics import names_in

DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
OF_PROMETHEUS = {"job", "instance", "le", "alertname", "alertstate"}


def dashboard(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana" / name).read_text(encoding="utf-8"))
    return found


def queries(name: str) -> list[str]:
    return [target["expr"] for panel in dashboard(name)["panels"] for target in panel["targets"]]


names = pytest.mark.parametrize("name", [path.name for path in DASHBOARDS])


@names
def test_every_query_uses_metrics_and_labels_that_exist(name: str) -> None:
    recorded = {rule["record"] for rule in rules(RECORDING)}
    labels = {sample_name(metric): set(declared.labels) for metric, declared in METRICS.items()}
    for query in queries(name):
        used = names_in(query)
        assert used <= sample_names(), f"{query}: no such metric: {sorted(used - sample_names())}"
        assert_listed(re.findall(r"\w+:namesrv_\w+:\w+", query), f"the query {query}", recorded, "the recording rules")
        allowed = OF_PROMETHEUS.union(*(labels[re.sub(r"_(bucket|sum|count)$", "", one)] for one in used))
        asked = {label for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(", ")}
        asked |= {label for group in re.findall(r"\{([^}]*)\}", query) for label in re.findall(r"(\w+)[=!]", group)}
        assert asked <= allowed, f"{query}: no such label: {sorted(asked - allowed)}"


@names
def test_legends_and_variables_use_labels_and_metrics_that_exist(name: str) -> None:
    labels = {sample_name(metric): set(declared.labels) for metric, declared in METRICS.items()}
    for panel in dashboard(name)["panels"]:
        for target in panel["targets"]:
            query, shown = target["expr"], set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            groups = re.findall(r"\bby \(([^)]*)\)", query)
            of_metrics = set().union(*(labels.get(one, set()) for one in names_in(query)))
            kept = {label for group in groups for label in group.split(", ")} if groups else of_metrics | {"job", "instance"}
            assert shown <= kept, f"{query}: its result has no label {sorted(shown - kept)}, which the legend shows"
    for variable in dashboard(name)["templating"]["list"]:
        if variable["type"] == "query":
            matched = re.fullmatch(r"label_values\((namesrv_\w+)(?:\{[^}]*\})?, (\w+)\)", variable["query"])
            assert matched is not None, variable
            assert matched[1] in sample_names(), f"${variable['name']}: no such metric: {matched[1]}"
            assert matched[2] in OF_PROMETHEUS | labels[matched[1]], f"${variable['name']}: no such label: {matched[2]}"


async def test_every_value_of_a_label_in_queries_and_rules_is_one_that_nodes_export(tmp_path: Path) -> None:
    """A node exports the values of most labels before they occur. The others are named in the help text of their metric, or are
    names of requests, responses or events."""
    async with operated(tmp_path, 1) as cluster:
        text = (await http(cluster.admin_ports[0], "/metrics")).text
    codes = {each.name for kind in (RequestCode, ResponseCode) for each in kind}
    events = kinds_of_events()
    of_rules = [rule["expr"] for file in (ALERTS, RECORDING) for rule in rules(file)]
    for query in [*of_rules, *(query for path in DASHBOARDS for query in queries(path.name))]:
        for metric, matchers in re.findall(r"(namesrv_\w+)\{([^}]*)\}", query):
            base = next(one for one in METRICS if sample_name(one) == re.sub(r"_(bucket|sum|count)$", "", metric))
            for label, value in re.findall(r'(\w+)(?:=~|!~|!=|=)"([^"]*)"', matchers):
                for one in () if "$" in value or label in {"job", "instance"} else value.split("|"):
                    known = f'{label}="{one}"' in text or one in re.findall(r"[\w-]+", METRICS[base].meaning)
                    assert known or one in codes | events, f"{query}: no {metric} has {label}={one!r}"


@names
def test_panels_have_ids_of_their_own_and_do_not_overlap(name: str) -> None:
    panels = dashboard(name)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


@pytest.mark.slow
@pytest.mark.timeout(TEST_TIMEOUT_S)
@names
def test_promtool_parses_every_query(name: str, tmp_path: Any) -> None:
    """The queries are checked as recording rules, with Grafana's variables replaced."""
    texts = [query.replace("$__rate_interval", "1m").replace("$job", "j").replace("$instance", ".*") for query in queries(name)]
    found = [{"record": f"query:{number}", "expr": text} for number, text in enumerate(texts)]
    file = tmp_path / "queries.yaml"
    file.write_text(json.dumps({"groups": [{"name": "queries", "rules": found}]}), encoding="utf-8")
    run_promtool("check", "rules", str(file))
