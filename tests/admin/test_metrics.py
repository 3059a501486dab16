"""Metrics: what is exported is what happened, under names and labels that the catalogue declares."""

from pathlib import Path

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from replicated_namesrv.admin.exposition import METRICS, PREFIX, outcome_name, request_name
from tests.support.nodes import ask_cluster_info, http, running_node


async def test_every_declared_metric_is_exported_and_no_other(tmp_path: Path) -> None:
    async with running_node(tmp_path) as (_, port):
        text = (await http(port, "/metrics")).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    ours = {name.removeprefix(PREFIX): family for name, family in families.items() if name.startswith(PREFIX)}
    missing = METRICS.keys() - ours.keys()
    assert not missing, f"declared in METRICS, but yielded by no method of NodeCollector (admin/exposition.py): {sorted(missing)}"
    unknown = ours.keys() - METRICS.keys()
    assert not unknown, f"exported, but not declared in METRICS (admin/exposition.py): {sorted(unknown)}"
    for name, declared in METRICS.items():
        assert ours[name].documentation == declared.meaning
        for sample in ours[name].samples:
            assert set(sample.labels) - {"le"} == set(declared.labels)
    assert "process_resident_memory_bytes" in families
    assert "process_cpu_seconds" in families


async def test_requests_are_counted_by_code_and_outcome(tmp_path: Path) -> None:
    async with running_node(tmp_path) as (node, port):
        for _ in range(3):
            assert await ask_cluster_info(node.remoting.port) == 0
        text = (await http(port, "/metrics")).text
        assert 'namesrv_requests_total{outcome="SUCCESS",request="GET_BROKER_CLUSTER_INFO"} 3.0' in text
        assert "namesrv_request_duration_seconds_count 3.0" in text
        assert "namesrv_connections_accepted_total 3.0" in text
        assert "namesrv_ready 1.0" in text


async def test_openmetrics_on_request(tmp_path: Path) -> None:
    async with running_node(tmp_path) as (_, port):
        answer = await http(port, "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    assert any(family.name == "namesrv_loop_lag_seconds" for family in parse_openmetrics(answer.text))  # type: ignore[no-untyped-call]  # the parser has no types


def test_peers_cannot_invent_label_values() -> None:
    assert {request_name(code) for code in (-5, 0, 99_999, 2**31 - 1)} == {"UNKNOWN"}
    assert request_name(105) == "GET_ROUTEINFO_BY_TOPIC"
    assert [outcome_name(code) for code in (None, 0, 17, 12_345)] == ["NONE", "SUCCESS", "TOPIC_NOT_EXIST", "OTHER"]
