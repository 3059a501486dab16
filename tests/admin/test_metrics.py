"""Metrics: exported values equal the number of events, and names and labels are those of the catalogue."""

import re
import time
from pathlib import Path

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from replicated_namesrv.admin.exposition import LOOK_UP_OUTCOMES, METRICS, OF_REPLICATION, PREFIX, outcome_name, request_name
from replicated_namesrv.wire.codes import ResponseCode
from tests.packaging.metrics_page import sample_name
from tests.support.authority import Authority
from tests.support.nodes import ask_cluster_info, http, running_node
from tests.support.operated import operated
from tests.support.places import assert_listed, assert_same_names
from tests.support.ports import free_ports


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
        assert ours[name].documentation == declared.meaning, f"the help text of {name} is not its meaning in METRICS"
        for sample in ours[name].samples:
            given = set(sample.labels) - {"le"}
            assert_same_names(given, f"a sample of {name}", declared.labels, f"the labels of {name} in METRICS")
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


async def test_outcomes_of_look_ups_have_samples_before_they_occur(tmp_path: Path) -> None:
    async with running_node(tmp_path) as (_, port):
        found = await samples(port)
    for outcome in LOOK_UP_OUTCOMES:
        assert found[f'namesrv_requests_total{{outcome="{outcome}",request="GET_ROUTEINFO_BY_TOPIC"}}'] == 0
    assert_listed(LOOK_UP_OUTCOMES, "LOOK_UP_OUTCOMES", {"NONE", *(code.name for code in ResponseCode)}, "ResponseCode")


async def test_every_limit_on_bytes_has_its_use(tmp_path: Path) -> None:
    async with operated(tmp_path, 1) as cluster:
        found = await samples(cluster.admin_ports[0])
    used, limits = (
        {sample.partition("{")[2] for sample in found if sample.startswith(f"namesrv_{name}{{")}
        for name in ("bounded_bytes", "bounded_bytes_limit")
    )
    assert_same_names(used, "namesrv_bounded_bytes", limits, "namesrv_bounded_bytes_limit")


async def test_openmetrics_on_request(tmp_path: Path) -> None:
    async with running_node(tmp_path) as (_, port):
        answer = await http(port, "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    assert any(family.name == "namesrv_loop_lag_seconds" for family in parse_openmetrics(answer.text))  # type: ignore[no-untyped-call]  # the parser has no types


def test_peers_cannot_invent_label_values() -> None:
    assert {request_name(code) for code in (-5, 0, 99_999, 2**31 - 1)} == {"UNKNOWN"}
    assert request_name(105) == "GET_ROUTEINFO_BY_TOPIC"
    assert [outcome_name(code) for code in (None, 0, 17, 12_345)] == ["NONE", "SUCCESS", "TOPIC_NOT_EXIST", "OTHER"]


async def samples(port: int) -> dict[str, float]:
    """Sample (name and labels as in the text) to value."""
    answer = await http(port, "/metrics")
    assert answer.status == 200, answer.text
    lines = (line for line in answer.text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


async def test_every_metric_of_replication_has_samples_in_a_cluster(tmp_path: Path) -> None:
    async with operated(tmp_path) as cluster:
        leader = await cluster.elected()
        port = cluster.admin_ports[cluster.nodes.index(leader)]
        answer = await http(port, "/v1/kv/space/key", "PUT", b"value")
        assert answer.status == 200
        found = await samples(port)
        names = {re.sub(r"\{.*|_bucket.*|_sum$|_count$", "", sample) for sample in found}
        missing = sorted(name for name in OF_REPLICATION if sample_name(name) not in names)
        assert not missing, (
            "declared in OF_REPLICATION (admin/exposition.py), but yielded neither by replication/raft_metrics.py nor by "
            f"ReplicatedNode.measurements(): {missing}"
        )
        assert found['namesrv_raft_role{role="leader"}'] == 1
        assert found['namesrv_raft_proposals_total{outcome="committed"}'] >= 1
        assert found["namesrv_raft_commit_index"] == found["namesrv_raft_applied_index"] > 0
        assert found['namesrv_changes_total{kind="kv-put"}'] == 1
        others = [node.settings.node_id for node in cluster.nodes if node is not leader]
        for peer in others:
            assert found[f'namesrv_raft_peer_connected{{peer="{peer}"}}'] == 1
            assert 0 <= found[f'namesrv_raft_peer_last_contact_seconds{{peer="{peer}"}}'] < 5
        follower = await samples(cluster.admin_ports[cluster.nodes.index(cluster.named(others[0]))])
        assert follower['namesrv_raft_role{role="follower"}'] == 1
        contacts = [sample for sample in follower if sample.startswith("namesrv_raft_peer_last_contact_seconds")]
        assert contacts == [f'namesrv_raft_peer_last_contact_seconds{{peer="{leader.settings.node_id}"}}']


async def test_changes_of_the_log_are_not_counted_again_after_a_restart(tmp_path: Path) -> None:
    flags = {"mode": "cp", "nodeId": "n1", "clusterId": "test", "peers": f"n1=127.0.0.1:{free_ports(1)[0]}"}
    async with running_node(tmp_path, **flags) as (_, port):
        assert (await http(port, "/v1/kv/space/key", "PUT", b"value")).status == 200
        assert (await samples(port))['namesrv_changes_total{kind="kv-put"}'] == 1
    async with running_node(tmp_path, **flags) as (_, port):
        assert (await http(port, "/v1/kv/space/other", "PUT", b"value")).status == 200
        assert (await samples(port))['namesrv_changes_total{kind="kv-put"}'] == 1


async def test_expiry_follows_the_certificate_file(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.files("namesrv", days=10)
    flags = {"tls.server.certPath": str(files.certificate), "tls.server.keyPath": str(files.key), "tls.test.mode.enable": "false"}
    name = 'namesrv_certificate_expiry_timestamp_seconds{port="remoting"}'
    async with running_node(tmp_path / "node", **flags) as (_, port):
        assert 9 * 86_400 < (await samples(port))[name] - time.time() < 11 * 86_400
        authority.files("namesrv", days=20)
        assert 19 * 86_400 < (await samples(port))[name] - time.time() < 21 * 86_400
        files.certificate.write_text("no certificate")
        assert (await samples(port))[name] == 0
        files.certificate.unlink()
        assert (await samples(port))[name] == 0
