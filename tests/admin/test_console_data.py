"""The data that the console shows, without a browser: nodes, problems, differences, the time line, samples, and its vendored
files."""

import asyncio
import errno
import hashlib
import itertools
import json
import math
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from replicated_namesrv.admin import contents as contents_module
from replicated_namesrv.admin import time_line
from replicated_namesrv.admin.contents import GAP_MAX_MS, ROWS_MAX, ContentComparison, differences_steps
from replicated_namesrv.admin.diagnosis import NodeView, digests_equal, findings, leader_of
from replicated_namesrv.admin.open_paths import CONSOLE_FILES
from replicated_namesrv.admin.other_nodes import addresses
from replicated_namesrv.admin.samples import FINE_COUNT, SERIES_MAX, Ring, Samples, values_since
from replicated_namesrv.admin.time_line import TimeLine
from replicated_namesrv.client.remoting import RemotingClient, RemotingCommand
from replicated_namesrv.process import ServingNode
from replicated_namesrv.routes.commands import BrokerRemoval, UnregisterBrokers
from replicated_namesrv.routes.history import History
from replicated_namesrv.settings_sources import load_settings
from replicated_namesrv.steps import finish
from replicated_namesrv.wire.codes import RequestCode
from tests.admin.test_http import QUEUES, propose, registration
from tests.support.nodes import http, independent_flags, running_node
from tests.support.places import assert_same_names
from tests.support.ports import free_port
from tests.support.replicated_processes import eventually
from tests.support.work import work_of

VENDOR = Path(__file__).parents[2] / "replicated_namesrv" / "admin" / "console" / "vendor"


def test_vendored_files_are_those_that_were_recorded() -> None:
    recorded = json.loads((VENDOR / "vendored.json").read_text())
    files = {path.name for path in VENDOR.iterdir()} - {"vendored.json", "LICENSES.txt"}
    assert_same_names(recorded, "vendored.json of admin/console/vendor", files, "this folder")
    for name, facts in recorded.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == facts["sha256"], name
        title = f"== {facts['package']} =="
        assert title in (VENDOR / "LICENSES.txt").read_text(), f"LICENSES.txt of admin/console/vendor lacks {title}"
        assert f"vendor/{name}" in CONSOLE_FILES


REFUSED = {"refusal": "n1 refuses this node: n2 is not a member here: it was removed"}
"""A peer in the transport's status of a node that was removed while it did not run."""


def standing(**fields: Any) -> dict[str, Any]:
    return {"term": 3, "role": "follower", "commitIndex": 9, "appliedIndex": 9, "digest": "d", "fenced": False, **fields}


def view(name: str, error: str | None = None, **fields: Any) -> NodeView:
    status = {"ready": True, "replication": standing(), "layers": [], **fields}
    return NodeView(name, "10.0.0.1:9886", status, error)


@pytest.mark.parametrize(
    ("seen", "problem", "remedy"),
    [
        (view("n2", "no answer within 1 s"), "n2 does not answer at 10.0.0.1:9886", "Check that its process runs"),
        (NodeView("n2", "h:1", None, "wrong token", 401), "wrong token", "the same token"),
        (NodeView("n2", "h:1", None, "Connection refused", None, True), "Connection refused", "adminListen"),
        (NodeView("n2", "h:1", None, "no answer within 1 s", None, False, 9_000), "no answer within 1 s", "its process runs"),
        (
            NodeView("n2", "h:1", view("n2").status, silent_ms=12_300),
            "Nothing has arrived from it over Raft for 12 s, although its connection is open.",
            "Restore the network",
        ),
        (view("n1", replication=standing(fenced=True)), "It is fenced", "restore the network"),
        (
            view("n2", replication=standing(fenced=True, raft={"transport": {"peers": {"n3": {"refusal": ""}, "n1": REFUSED}}})),
            "It does not serve: n1 refuses this node: n2 is not a member here: it was removed.",
            "members add",
        ),
        (view("n2", replication=standing(fenced=True, role="removed")), "It was removed from the cluster", "members add"),
        (view("n1", replication=standing(raft={"problem": "the disk hangs"})), "The disk hangs.", "docs/recovery.md"),
        (
            view("n1", replication=standing(fenced=True, raft={"problem": "states differ"})),
            "States differ.",
            "docs/recovery.md",
        ),
        (
            view("n1", ready=False, layers=[{"name": "disk", "ok": False, "problem": "no sync for 6 s"}]),
            "It is not ready (disk: no sync for 6 s).",
            "read its log",
        ),
        (view("n1", replication=standing(commitIndex=5_000)), "4991 entries behind", "CPU and disk"),
        (view("n1", diskWarning="little is free"), "Little is free.", "Make room"),
        (
            view("n1", quotas=[{"name": "maxKvBytes", "used": 95, "limit": 100}]),
            "95 % of maxKvBytes is used",
            "raise the setting",
        ),
        (view("n1", drained=True, ready=False), "It is drained", "serve again"),
        (view("n1", loopLagRecentMaxMs=900), "delayed by 900 ms", "more CPU"),
    ],
)
def test_each_problem_has_a_remedy(seen: NodeView, problem: str, remedy: str) -> None:
    first = findings(seen)[0]
    assert problem in first.problem
    assert remedy in first.remedy


def test_node_that_works_has_no_problem() -> None:
    assert findings(view("n1")) == []


def test_only_nodes_at_the_same_position_and_of_one_version_are_compared() -> None:
    assert digests_equal([view("n1"), view("n2")]) is True
    assert digests_equal([view("n1"), view("n2", replication=standing(digest="e"))]) is False
    assert digests_equal([view("n1"), view("n2", replication=standing(digest="e", appliedIndex=8))]) is None
    assert digests_equal([view("n1"), view("n2", "gone", replication=standing(digest="e"))]) is None
    upgrade = [view("n1", version="1"), view("n2", version="1"), view("n3", version="2", replication=standing(digest="e"))]
    assert digests_equal(upgrade) is True
    assert digests_equal(upgrade[1:]) is None


def test_leader_is_that_of_the_newest_term() -> None:
    old = view("n1", replication=standing(role="leader", term=2))
    assert leader_of([old, view("n2")]) == (None, 3)
    assert leader_of([old, view("n2", replication=standing(role="leader"))]) == ("n2", 3)
    assert leader_of([view("n1", "gone", replication=standing(role="leader"))]) == (None, None)
    asked = NodeView("n1", "10.0.0.1:9886", None)
    assert leader_of([asked, view("n2", replication=standing(leader="n1"))]) == ("n1", 3)
    assert leader_of([view("n1", "gone"), view("n2", replication=standing(leader="n1"))]) == (None, 3)


def test_admin_addresses_are_as_far_from_the_listed_ports_as_on_this_node() -> None:
    peers = ((1, "h1:9896"), (2, "h2:9896"), (3, "[::1]:9897"))
    members: list[dict[str, Any]] = [{"nodeId": f"n{at}", "peerAddress": each, "adminAddress": None} for at, each in peers]
    for given in ({"peers": "n1=h1:9896,n4=gone:9896"}, {"join": "n2=h2:9896", "peerListen": "h1:9896"}):
        settings = load_settings(flags={"mode": "cp", "nodeId": "n1", **given}, environment={})
        assert addresses(settings, members, 9886, 9876, "h1:9876") == [("n2", "h2:9886"), ("n3", "[::1]:9887")]
        told = [members[0], members[1] | {"adminAddress": "10.9.9.9:7777"}, members[2]]
        found = addresses(settings, told, 9886, 9876, "h1:9876")
        assert found == [("n2", "h2:7777"), ("n3", "[::1]:9887")], (
            "the port is what n2 reports, the host what administrators gave"
        )
        unknown = {"nodeId": "n4", "peerAddress": ":0", "adminAddress": None}
        assert addresses(settings, [*told, unknown], 9886, 9876, "h1:9876") == found, "a node that joins knows no address of n4"
    settings = load_settings(flags={"nameServerAddresses": "h1:9876; h2:9877"}, environment={})
    assert addresses(settings, None, 9886, 9876, "h1:9876") == [(None, "h2:9887")]


def contents(brokers: dict[str, list[Any]], topics: dict[str, int], removed: dict[str, int] | None = None) -> dict[str, Any]:
    return {"brokers": brokers, "topics": topics, "removedMs": removed or {}}


def differences(by_node: dict[str, dict[str, Any]], before: ContentComparison, now_ms: int) -> dict[str, Any]:
    return finish(differences_steps(by_node, before, now_ms))


def test_no_step_of_a_comparison_visits_many_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing 50,000 topics and KV entries that all differ took a second of one turn of the loop."""
    monkeypatch.setattr(contents_module, "KEYS_PER_TURN", 100)
    count = 5_001
    by_node = {
        name: kv_contents({f"S|{number:05}": number * factor for number in range(1, count)}, {})
        | {"topics": {f"T{number:05}": number * factor for number in range(1, count)}}
        for name, factor in (("one", 1), ("two", 2), ("three", 2))
    }
    lines, found = list[int](), dict[str, Any]()
    steps = differences_steps(by_node, ContentComparison(), 1_000)

    def step() -> None:
        try:
            next(steps)
        except StopIteration as stop:
            found.update(stop.value)

    while not found:
        lines.append(work_of(step).lines)
    assert (found["topicsDiffer"], found["kvDiffer"], len(found["topics"])) == (count - 1, count - 1, ROWS_MAX)
    assert [row["topic"] for row in found["topics"]] == [f"T{number:05}" for number in range(1, ROWS_MAX + 1)]
    assert max(lines) < 5_000


def test_differences_name_the_time_at_which_they_began() -> None:
    before = ContentComparison()
    has = contents({"C|a|0|x:1": ["1/0", 100], "C|b|0|y:1": ["1/0", 100]}, {"T": 1, "U": 1})
    removed = contents({"C|a|0|x:1": ["2/0", 200]}, {"T": 1}, {"C|y:1": 700})
    found = differences({"one": has, "two": removed}, before, 1_000)
    assert found["nodes"] == ["one", "two"]
    assert found["brokers"] == [
        {"broker": "C|a|0|x:1", "values": ["1/0", "2/0"], "sinceMs": 1_000, "orEarlier": True},
        {"broker": "C|b|0|y:1", "values": ["1/0", None], "sinceMs": 700, "orEarlier": False},
    ]
    assert found["topics"] == [{"topic": "U", "values": [1, None], "sinceMs": 1_000, "orEarlier": True}]
    assert differences({"one": has, "two": removed}, before, 2_000)["topics"][0]["sinceMs"] == 1_000
    assert differences({"one": has, "two": has}, before, 3_000)["brokersDiffer"] == 0
    assert before.first_seen == {}
    for now_ms, or_earlier in ((4_000, False), (4_001 + GAP_MAX_MS, True)):  # after a recent comparison, and after a pause
        before.first_seen = {}
        (topic,) = differences({"one": has, "two": removed}, before, now_ms)["topics"]
        assert (topic["sinceMs"], topic["orEarlier"]) == (now_ms, or_earlier)
    before.first_seen = {}
    (topic,) = differences({"one": has, "three": removed}, before, before.time_ms + 1)["topics"]
    assert topic["orEarlier"], "these nodes were not compared before"


def test_differences_count_topics_that_were_not_compared() -> None:
    found = differences({"n1": contents({}, {}), "n2": contents({}, {}) | {"topicsLeftOut": 3}}, ContentComparison(), 1)
    assert found["topicsLeftOut"] == 3


def kv_contents(values: dict[str, int], changed: dict[str, int], since_ms: int = 0) -> dict[str, Any]:
    return contents({}, {}) | {"kv": values, "kvLeftOut": 0, "kvChangedMs": changed, "kvSinceMs": since_ms}


def test_differences_of_kv_entries_began_with_the_last_change() -> None:
    before = ContentComparison()
    one, two = kv_contents({"S|a": 1, "S%7Ct|b": 2}, {"S|a": 500, "S%7Ct|b": 600}), kv_contents({"S|a": 3}, {"S|a": 700})
    found = differences({"one": one, "two": two}, before, 1_000)
    assert (found["kvNodes"], found["kvDiffer"]) == (["one", "two"], 2)
    assert found["kv"] == [
        {"namespace": "S|t", "key": "b", "values": [2, None], "sinceMs": 600, "orEarlier": False},
        {"namespace": "S", "key": "a", "values": [1, 3], "sinceMs": 700, "orEarlier": False},
    ]
    two["kvChangedMs"]["S|a"], two["kv"]["S|a"] = 1_500, 4
    assert differences({"one": one, "two": two}, before, 2_000)["kv"][1]["sinceMs"] == 700, "they differed before this change"
    assert differences({"one": one, "two": two}, before, 2_001 + GAP_MAX_MS)["kv"][1]["sinceMs"] == 1_500
    assert differences({"one": one, "two": one}, before, 60_000)["kvDiffer"] == 0


def test_differences_of_kv_entries_may_be_older_if_a_node_does_not_know_its_changes() -> None:
    one, two = kv_contents({"S|a": 1}, {"S|a": 500}), kv_contents({"S|a": 2}, {}, since_ms=800)
    (row,) = differences({"one": one, "two": two}, ContentComparison(), 1_000)["kv"]
    assert (row["sinceMs"], row["orEarlier"]) == (1_000, True)


def test_only_nodes_that_show_their_kv_config_are_compared_in_it() -> None:
    one = kv_contents({"S|a": 1}, {})
    found = differences({"one": one, "three": contents({}, {}), "two": one}, ContentComparison(), 1_000)
    assert (found["kvNodes"], found["kvDiffer"]) == (["one", "two"], 0)
    found = differences({"three": contents({}, {})}, ContentComparison(), 1_000)
    assert (found["kvNodes"], found["kvDiffer"]) == ([], 0)


async def test_contents_with_the_kv_config_need_the_permission_to_read_it(tmp_path: Path) -> None:
    """Without a token, only requests of this machine are permitted. A proxy's header shows that a request came from elsewhere."""
    one, two = independent_flags("one", "two")
    async with running_node(tmp_path / "one", **one) as (_, port), running_node(tmp_path / "two", **two) as (_, other):
        assert (await http(port, "/v1/kv/SPACE/key", "PUT", b"value")).status == 200
        elsewhere = {"X-Forwarded-For": "10.0.0.9"}
        assert (await http(port, "/v1/contents?kv=true", headers=elsewhere)).status == 403
        assert "kv" not in (await http(port, "/v1/contents", headers=elsewhere)).json
        assert list((await http(port, "/v1/contents?kv=true")).json["kv"]) == ["SPACE|key"]
        compared = (await http(other, "/v1/differences")).json
        assert (compared["kvNodes"], compared["kvDiffer"], compared["kvNotCompared"]) == (["one", "two"], 1, [])
        refused = (await http(other, "/v1/differences", headers=elsewhere)).json
        assert (refused["kvNodes"], refused["kv"]) == ([], []), "although node two keeps the contents that it received before"
        assert [each["node"] for each in refused["kvNotCompared"]] == ["two"]
        assert (await http(other, "/v1/differences")).json["kvDiffer"] == 1


@asynccontextmanager
async def marking_proxy(port: int, target: int) -> AsyncIterator[None]:
    """A proxy for HTTP that says for whom it forwards, as other hosts have no access to some views."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, mark: bytes) -> None:
        while part := await reader.read(1 << 16):
            writer.write(part.replace(b"\r\nHost:", mark + b"\r\nHost:"))
        writer.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(copy(reader, there[1], b"\r\nX-Forwarded-For: 10.0.0.9"), copy(there[0], writer, b""))

    server = await asyncio.start_server(forward, "127.0.0.1", port)
    try:
        yield
    finally:
        server.close()


async def test_differences_name_a_node_that_does_not_show_its_kv_config(tmp_path: Path) -> None:
    one, two = independent_flags("one", "two")
    base = free_port(1)
    two["nameServerAddresses"] = f"127.0.0.1:{base}"
    async with (
        running_node(tmp_path / "one", **one) as (_, target),
        running_node(tmp_path / "two", **two) as (_, port),
        marking_proxy(base + 1, target),
    ):
        found = (await http(port, "/v1/differences")).json
        assert (found["nodes"], found["kvNodes"], found["notCompared"]) == (["one", "two"], ["two"], [])
        assert found["kvNotCompared"] == [{"node": "one", "why": "this is readable from this machine only"}]


async def test_time_line_tells_that_an_independent_node_was_lost_and_came_back(tmp_path: Path) -> None:
    one, two = independent_flags("one", "two")

    async def entries() -> list[tuple[str, str, str | None]]:
        await http(port, "/v1/cluster")
        found = (await http(port, "/v1/timeline?nodes=all&kind=peer-lost&kind=peer-back")).json["entries"]
        return [(entry["kind"], entry["peer"], entry["why"]) for entry in found]

    async with running_node(tmp_path / "one", **one) as (_, port):
        async with running_node(tmp_path / "two", **two):
            assert await entries() == []
        lost = ("peer-lost", "two", "Connection refused")

        async def is_lost() -> bool:
            return await entries() == [lost]

        await eventually(is_lost, "the loss")
        async with running_node(tmp_path / "two", **two) as (_, other):

            async def is_back() -> bool:
                return await entries() == [("peer-back", "two", None), lost]

            await eventually(is_back, "the return")

            async def serves() -> bool:
                found = (await http(port, "/v1/timeline?nodes=all&kind=serving&q=two")).json["entries"]
                return [entry["node"] for entry in found] == ["two"]

            await eventually(serves, "what node two says about itself")
            (seen, _) = (await http(other, "/v1/timeline?nodes=all&kind=peer-back&kind=peer-lost")).json["entries"]
            assert (seen["kind"], seen["peer"], seen["seenBy"]) == ("peer-back", "two", ["one"])


async def test_kv_config_that_a_node_reads_at_its_start_was_not_changed_then(tmp_path: Path) -> None:
    """In earlier versions, the time line and the audit log had each entry of kvConfig.json after each start."""
    flags = {"accessPolicy": "observe"}
    for number in range(2):
        async with running_node(tmp_path, **flags) as (_, port):
            for key in "abc" if number == 0 else "":
                assert (await http(port, f"/v1/kv/SPACE/{key}", "PUT", b"value")).status == 200
            entries = (await http(port, "/v1/timeline")).json["entries"]
            kinds = [entry["kind"] for entry in entries if "revision" in entry or entry["kind"] == "changes-missed"]
            assert kinds == (["kv-put"] * 3 if number == 0 else ["restored"])
            assert list((await http(port, "/v1/contents?kv=true")).json["kv"]) == ["SPACE|a", "SPACE|b", "SPACE|c"]
            assert (await http(port, "/v1/kv")).json["revision"] == 3
    assert (tmp_path / "audit.log").read_text().count("PUT_KV_CONFIG") == 3


async def test_contents_have_the_first_topics_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of the topics are sorted in parts."""
    monkeypatch.setattr(contents_module, "TOPICS_MAX", 5)
    monkeypatch.setattr(contents_module, "KEYS_PER_TURN", 3)
    async with running_node(tmp_path) as (node, port):
        propose(node, registration("broker-a", {f"T{number * 7 % 10}": QUEUES for number in range(10)}))
        found = (await http(port, "/v1/contents")).json
        assert list(found["topics"]) == ["T0", "T1", "T2", "T3", "T4"]
        assert found["topicsLeftOut"] == 5


def test_time_line_is_bounded_and_counts_flaps(monkeypatch: pytest.MonkeyPatch) -> None:
    history, now = History(), [10_000_000]
    line = TimeLine(history, lambda: True, lambda: False, lambda: now[0])
    broker = {"clusterName": "C", "brokerName": "b", "brokerId": 0, "brokerAddr": "x:1"}
    for revision in (1, 3):
        history.add(revision, "broker-registered", now[0], {"brokers": [broker], "topics": ("T",) * 9})
        history.add(revision + 1, "broker-expired", now[0], {"brokers": [broker], "topics": ("T",)})
    while line.catch_up():
        pass
    assert [entry["kind"] for entry in line.latest()] == ["broker-expired", "broker-registered"] * 2
    assert line.latest()[-1]["topicCount"] == 9
    assert [(row["brokerName"], row["removals"]) for row in line.flapping()] == [("b", 2)]
    assert line.flapping() == line.removals()
    assert line.removed_ms == {("C", "x:1"): now[0]}
    now[0] += time_line.SPAN_MS + 1
    assert line.latest() == []
    for number in range(time_line.ENTRIES_MAX + 5):
        line.notify_leader("n1", number + 1)
    assert len(line.latest()) == time_line.ENTRIES_MAX


async def test_time_line_reads_many_changes_in_small_batches() -> None:
    """Between two batches the loop serves requests."""
    batches: list[tuple[int, int]] = []
    turns = itertools.count()

    class Recorded(TimeLine):
        def catch_up(self) -> bool:
            before = len(self.entries)
            more = super().catch_up()
            batches.append((next(turns), len(self.entries) - before))
            return more

    history, count = History(), 2_000
    line = Recorded(history, lambda: True, lambda: False, lambda: 10_000_000)
    for revision in range(1, count + 1):
        history.add(revision, "kv-put", 10_000_000, {"namespace": "N", "key": "k"})
    line._tick()
    while line.entries[-1].get("revision") != count:
        next(turns)
        await asyncio.sleep(0)
    line.stop()
    assert max(size for _, size in batches) <= 300
    assert all(after - before > 1 for (before, _), (after, _) in itertools.pairwise(batches)), "a turn had two batches"
    history.add(count + 1, "kv-put", 10_000_000, {"namespace": "N", "key": "k"})
    assert not line.catch_up(), "nothing is left, so the next tick reads again"
    assert line.entries[-1]["revision"] == count + 1


async def test_time_line_tells_who_requested_what(tmp_path: Path) -> None:
    async with running_node(tmp_path, nodeId="first") as (_, port):
        assert (await http(port, "/v1/kv/SPACE/key", "PUT", b"secret text")).status == 200
        entries = (await http(port, "/v1/timeline?q=space")).json["entries"]
        assert sorted(entry["kind"] for entry in entries) == ["kv-put", "requested"]
        request = next(entry for entry in entries if entry["kind"] == "requested")
        assert (request["by"], request["method"], request["path"], request["status"]) == (
            "127.0.0.1",
            "PUT",
            "/v1/kv/SPACE/key",
            200,
        )
        assert "secret" not in json.dumps(entries)
        assert (await http(port, "/v1/timeline?limit=0")).status == 400


async def test_time_line_tells_who_requested_a_change_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change whose outcome is unknown may have been made. In an earlier version, the time line did not name its caller."""
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, "the folder cannot be synced")
        sync(descriptor)

    async with running_node(tmp_path) as (_, port):
        assert (await http(port, "/v1/drain?withinSeconds=0", "POST")).status == 400
        monkeypatch.setattr(os, "fsync", fsync)
        assert (await http(port, "/v1/kv/SPACE/key", "PUT", b"v")).status == 504
        assert (await http(port, "/v1/kv/SPACE/other", "PUT", b"v", {"Origin": "http://evil.example"})).status == 403
        entries = (await http(port, "/v1/timeline?kind=requested")).json["entries"]
        assert [(entry["path"], entry["by"], entry["status"]) for entry in entries] == [
            ("/v1/kv/SPACE/key", "127.0.0.1", 504),
            ("/v1/drain", "127.0.0.1", 400),
        ]


async def test_time_line_includes_requests_that_other_nodes_received(tmp_path: Path) -> None:
    one, two = independent_flags("one", "two")
    path = "/v1/timeline?nodes=all&kind=requested&q=space"
    async with running_node(tmp_path / "one", **one) as (_, port):
        async with running_node(tmp_path / "two", **two) as (_, other):
            assert (await http(other, "/v1/kv/SPACE/second", "PUT", b"v")).status == 200
            assert (await http(port, "/v1/kv/SPACE/first", "PUT", b"v")).status == 200
            found = (await http(port, path)).json
            assert [(entry["path"], entry.get("node"), entry["by"]) for entry in found["entries"]] == [
                ("/v1/kv/SPACE/first", None, "127.0.0.1"),
                ("/v1/kv/SPACE/second", "two", "127.0.0.1"),
            ]
            assert (found["total"], found["notAsked"]) == (2, [])
            assert len({entry["number"] for entry in found["entries"]}) == 2
            alone = (await http(port, "/v1/timeline?kind=requested")).json
            assert [entry["path"] for entry in alone["entries"]] == ["/v1/kv/SPACE/first"]
            assert "notAsked" not in alone
        found = (await http(port, path)).json
        assert len(found["entries"]) == 1
        assert [each["node"] for each in found["notAsked"]] == ["two"]


async def test_time_line_tells_who_requested_a_change_at_the_rocketmq_port(tmp_path: Path) -> None:
    fields = {"namespace": "SPACE", "key": "key", "value": "secret text"}
    async with running_node(tmp_path, nodeId="first") as (node, port):
        client = RemotingClient()
        try:
            answer = await client.request(node.listen_address, RemotingCommand(RequestCode.PUT_KV_CONFIG, fields))
        finally:
            await client.close()
        assert answer.code == 0
        entries = (await http(port, "/v1/timeline?q=space")).json["entries"]
        assert [entry["kind"] for entry in entries] == ["kv-put", "requested"]
        request = entries[1]
        assert (request["by"], request["method"], request["path"], request["status"]) == (
            "127.0.0.1",
            "PUT_KV_CONFIG",
            "SPACE/key",
            None,
        )
        assert "secret" not in json.dumps(entries)


async def test_time_line_counts_the_removals_of_each_broker_that_is_searched(tmp_path: Path) -> None:
    async with running_node(tmp_path) as (node, port):
        for name in ("broker-a", "broker-b"):
            command = registration(name, {"T1": QUEUES, "T2": QUEUES})
            propose(node, command)
            propose(node, UnregisterBrokers((BrokerRemoval(command.cluster_name, command.broker_addr, name, 0, None),)))
        found = (await http(port, "/v1/timeline?q=broker-b")).json
        assert [(row["brokerName"], row["removals"]) for row in found["removals"]] == [("broker-b", 1)]
        assert found["flapping"] == []
        assert len((await http(port, "/v1/timeline?limit=1")).json["removals"]) == 1


def test_ring_forgets_what_is_old_and_marks_gaps() -> None:
    ring = Ring(2.0, 4)
    ring.put(10, {"a": 1.0})
    ring.put(12, {"a": 3.0, "b": 5.0})
    assert list(ring.slots(0)) == [9, 10, 11, 12]
    assert [ring.series["a"][slot % 4] for slot in (10, 12)] == [1.0, 3.0]
    assert math.isnan(ring.series["a"][11 % 4])
    ring.put(100, {"b": 7.0})
    assert math.isnan(ring.series["a"][100 % 4])
    ring.put(101, {f"s{number}": 1.0 for number in range(2 * SERIES_MAX)})
    assert len(ring.series) == SERIES_MAX


def test_ring_drops_what_lies_after_a_clock_that_was_set_back() -> None:
    ring = Ring(2.0, 4)
    for slot in (100, 101, 102):
        ring.put(slot, {"a": float(slot)})
    ring.put(101, {"a": 7.0})
    assert list(ring.slots(0)) == [98, 99, 100, 101]
    assert [ring.series["a"][slot % 4] for slot in (100, 101)] == [100.0, 7.0]
    assert math.isnan(ring.series["a"][102 % 4])
    assert list(ring.slots(102 * 2000)) == list(ring.slots(0)), "a reader that knows a later time gets everything"
    ring.put(50, {"a": 8.0})
    assert [math.isnan(ring.series["a"][slot % 4]) for slot in ring.slots(0)] == [True, True, True, False]


async def test_sample_that_comes_while_an_answer_is_built_is_not_in_it() -> None:
    """In earlier versions, its values had the time of the oldest slot: a chart had a point an hour before the node's start."""
    ring = Ring(2.0, 4)
    for slot in (12, 13):
        ring.put(slot, {"a": 1.0, "b": 2.0})
    answer = asyncio.ensure_future(values_since(ring, 0))
    await asyncio.sleep(0)
    ring.put(14, {"a": 3.0, "b": 4.0})
    assert await answer == ([20_000, 22_000, 24_000, 26_000], {"a": [None, None, 1.0, 1.0], "b": [None, None, 2.0, 2.0]})


def test_samples_are_rates_and_quantiles_of_what_was_counted_in_between() -> None:
    served, slow = [0.0], [0.0]

    def collect() -> list[Metric]:
        requests = CounterMetricFamily("namesrv_requests", "", labels=("request", "outcome"))
        requests.add_metric(("GET", "SUCCESS"), served[0])
        latency = HistogramMetricFamily("namesrv_request_duration_seconds", "")
        latency.add_metric((), [("0.001", served[0] - slow[0]), ("1.0", served[0]), ("+Inf", served[0])], 0.0)
        return [requests, latency, GaugeMetricFamily("namesrv_connections", "", value=7)]

    wall = [1_000.0]
    recorded = Samples(collect, lambda: wall[0])
    recorded.sample()
    served[0], slow[0] = 100.0, 2.0
    wall[0] += 2
    recorded.sample()
    newest = {name: values[501 % FINE_COUNT] for name, values in recorded.fine.series.items()}
    assert newest["connections"] == 7
    assert newest["request:GET"] > 0
    assert (newest["latency:0.5"], newest["latency:0.99"]) == (0.001, 1.0)
    assert recorded.coarse.series["connections"][16 % recorded.coarse.count] == 7


async def test_rows_are_sorted_by_numbers_and_paged(tmp_path: Path) -> None:
    async with running_node(tmp_path) as (node, port):
        propose(node, registration("broker-a", {f"T{number:02d}": QUEUES for number in range(30)}))
        propose(node, registration("broker-b", {"T07": QUEUES, "T21": QUEUES}))
        seen, after = [], ""
        while True:
            page = (await http(port, f"/v1/topics?limit=8&sort=-writeQueueNums&after={after}")).json
            seen += [row["topic"] for row in page["topics"]]
            if page["next"] is None:
                break
            after = page["next"]
        assert seen[:3] == ["T07", "T21", "T00"]
        assert sorted(seen) == [f"T{number:02d}" for number in range(30)]
        answer = await http(port, "/v1/topics?sort=colour")
        assert (answer.status, "writeQueueNums" in answer.json["error"]) == (400, True)
        assert (await http(port, "/v1/topics?sort=revision&after=x")).status == 400


async def test_search_of_the_kv_config_covers_values(tmp_path: Path) -> None:
    async with running_node(tmp_path) as (_, port):
        for key, value in (("one", b"Needle in it"), ("two", b"nothing")):
            assert (await http(port, f"/v1/kv/SPACE/{key}", "PUT", value)).status == 200
        assert [row["key"] for row in (await http(port, "/v1/kv?q=needle")).json["entries"]] == ["one"]


async def test_write_permission_is_wiped_and_restored(tmp_path: Path) -> None:
    async with running_node(tmp_path) as (node, port):
        propose(node, registration("broker-a", {"T1": QUEUES, "T2": QUEUES}))
        for writable, perm in (("false", 4), ("true", 6)):
            answer = await http(port, f"/v1/brokers/broker-a/write-permission?writable={writable}", "POST")
            assert answer.status == 200
            assert {data["perm"] for data in (await http(port, "/v1/routes/T1")).json["queueDatas"]} == {perm}
        assert (await http(port, "/v1/brokers/broker-a/write-permission", "POST")).status == 400


async def test_cluster_says_that_a_node_does_not_answer(tmp_path: Path) -> None:
    async with running_node(tmp_path, nameServerAddresses="127.0.0.1:1") as (node, port):
        assert isinstance(node, ServingNode)
        propose(node, registration("broker-a", {"T1": QUEUES, "T2": QUEUES}))
        propose(node, UnregisterBrokers((BrokerRemoval("C", "10.0.0.0:1", "none", 0, None),)))
        nodes = {each["answers"]: each for each in (await http(port, "/v1/cluster")).json["nodes"]}
        assert nodes[True]["ageMs"] == 0
        assert nodes[False]["ageMs"] is None
        assert "does not answer" in nodes[False]["findings"][0]["problem"]
        compared = (await http(port, "/v1/differences")).json
        assert (len(compared["notCompared"]), compared["brokersDiffer"]) == (1, 0)
        assert [row["clusterName"] for row in (await http(port, "/v1/clusters")).json["clusters"]] == ["C"]
        unknown = await http(port, "/v1/nodes/nobody/status")
        assert unknown.status == 404
        assert unknown.json["remedy"].endswith("; views: brokers, samples, contents, status, members")
        assert (await http(port, "/v1/samples?span=year")).status == 400
        assert any(
            row["name"] == "orderMessageEnable" and row["atRunTime"]
            for row in (await http(port, "/v1/settings")).json["settings"]
        )


async def test_the_error_of_another_node_is_passed_on(tmp_path: Path) -> None:
    """In an earlier version, a wrong parameter was answered with 502 ``does not answer``."""
    other, own = free_port(10), free_port(10)
    ports = [{"listenPort": str(port), "adminListen": f"127.0.0.1:{port + 10}"} for port in (other, own)]
    async with (
        running_node(tmp_path / "other", **ports[0]),
        running_node(tmp_path / "own", **ports[1], nameServerAddresses=f"127.0.0.1:{other}") as (_, port),
    ):
        assert (await http(port, "/v1/cluster")).status == 200
        path = f"/v1/nodes/127.0.0.1:{other + 10}"
        assert (await http(port, f"{path}/brokers?limit=1")).status == 200
        for query, told in (("brokers?limit=0", "limit=0: give 1 to 1000"), ("samples?span=year", "span=year")):
            answer = await http(port, f"{path}/{query}")
            assert (answer.status, told in answer.json["error"]) == (400, True), answer.text


@asynccontextmanager
async def asked_through_another_node(tmp_path: Path) -> AsyncIterator[tuple[Any, int, int, str]]:
    """Two nodes of this machine: the node that is asked about, its admin port, the admin port of the node that receives the
    requests, and the path of views of the first node."""
    other, own = free_port(10), free_port(10)
    ports = [{"listenPort": str(port), "adminListen": f"127.0.0.1:{port + 10}"} for port in (other, own)]
    async with (
        running_node(tmp_path / "other", **ports[0]) as (node, other_port),
        running_node(tmp_path / "own", **ports[1], nameServerAddresses=f"127.0.0.1:{other}") as (_, port),
    ):
        assert (await http(port, "/v1/cluster")).status == 200
        yield node, other_port, port, f"/v1/nodes/127.0.0.1:{other + 10}"


async def test_the_kv_config_of_another_node_needs_the_permission_to_read_it(tmp_path: Path) -> None:
    """The other node sees the address of this node, not that of the caller. In an earlier version, it therefore gave the names
    of KV keys to callers from other machines."""
    elsewhere = {"X-Forwarded-For": "192.0.2.1"}
    async with asked_through_another_node(tmp_path) as (_, other_port, port, path):
        assert (await http(other_port, "/v1/kv/SPACE/key", "PUT", b"value")).status == 200
        assert "SPACE|key" in (await http(port, f"{path}/contents?kv=true")).json["kv"]
        assert (await http(other_port, "/v1/contents?kv=true", headers=elsewhere)).status == 403
        for query in ("kv=true", "%6Bv=true", "kv=tru%65", "kv=true&kv=false"):
            assert (await http(port, f"{path}/contents?{query}", headers=elsewhere)).status == 403, query
        for query in ("", "?kv=false", "?a=%26kv=true", "?a=b%26kv%3Dtrue"):
            answer = await http(port, f"{path}/contents{query}", headers=elsewhere)
            assert (answer.status, "kv" in answer.json) == (200, False), query


@pytest.mark.parametrize("name", ["a#b", "a%26b", "a&b"])
async def test_a_query_reaches_another_node_unchanged(tmp_path: Path, name: str) -> None:
    async with asked_through_another_node(tmp_path) as (node, other_port, port, path):
        for broker in (name, "ab", "b"):
            propose(node, registration(broker, {"T1": QUEUES, "T2": QUEUES}))
        query = f"brokers?q={quote(name, safe='')}"
        direct = (await http(other_port, f"/v1/{query}")).json
        assert [row["brokerName"] for row in direct["brokers"]] == [name]
        assert (await http(port, f"{path}/{query}")).json == direct
