"""KV writes of a run go to all nodes in turn, as RocketMQ's clients write them, and each request is recorded."""

import asyncio
import itertools
import random
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from replicated_namesrv.chaos.checks.linear import check_kv
from replicated_namesrv.chaos.checks.node_promises import check_node_kv
from replicated_namesrv.chaos.checks.order import check_sessions
from replicated_namesrv.chaos.checks.timing import check_availability
from replicated_namesrv.chaos.clients import Client, KvLoop
from replicated_namesrv.chaos.recorder import Recorder
from replicated_namesrv.chaos.records import SCHEMA_VERSION, Complete, Header, Invoke, TraceWriter, read_trace
from replicated_namesrv.verify import Verdict
from replicated_namesrv.wire.codes import ResponseCode
from tests.chaos.test_checks import with_renewals
from tests.chaos.traces import Script
from tests.support.client_peers import Behaviour, ScriptedServer, answer_to, scripted_server

Recorded = list[tuple[str, str | None, str | None, str]]


def written(tmp_path: Path, behaviours: list[Behaviour], *, refuses: int | None = None, to_all: bool = True) -> Recorded:
    """(kind, value, node, outcome) of each operation that one write of a client records. The nodes have these ``behaviours``;
    node number ``refuses`` answers with an error."""
    writer = TraceWriter(tmp_path / "trace.jsonl")
    writer.write(Header(0, SCHEMA_VERSION, "by hand", 0))

    async def scenario() -> list[ScriptedServer]:
        async with AsyncExitStack() as stack:
            servers = [await stack.enter_async_context(scripted_server(behaviour)) for behaviour in behaviours]
            if refuses is not None:
                servers[refuses].answer = lambda request: answer_to(request, ResponseCode.SYSTEM_ERROR)
            nodes = {f"n{number}": server.address for number, server in enumerate(servers, 1)}
            clock = itertools.count(1)
            client = Client("kv-1", "failover", nodes, Recorder(writer, lambda: next(clock)), random.Random(0), 2_000)
            await (client.write_to_all if to_all else client.write)("put", "k", "v")
            await client.close()
            return servers

    asyncio.run(scenario())
    writer.close()
    records = read_trace(tmp_path / "trace.jsonl").records
    ends = {record.op: record for record in records if isinstance(record, Complete)}
    begun = [record for record in records if isinstance(record, Invoke)]
    return [(one.kind, one.value, ends[one.op].node, ends[one.op].outcome) for one in begun]


def test_a_write_goes_to_every_node_and_each_answer_is_recorded(tmp_path: Path) -> None:
    found = written(tmp_path, [Behaviour.ANSWER] * 3)
    assert found == [("put", "v", node, "ok") for node in ("n1", "n2", "n3")]


def test_a_refusal_does_not_keep_it_from_the_rest(tmp_path: Path) -> None:
    found = written(tmp_path, [Behaviour.ANSWER] * 3, refuses=0)
    assert [outcome for *_, outcome in found] == ["indeterminate", "ok", "ok"]


@pytest.mark.parametrize(
    ("behaviour", "outcome"), [(Behaviour.HANG, "indeterminate"), (Behaviour.CLOSE_AFTER_REQUEST, "indeterminate")]
)
def test_a_node_that_does_not_answer_ends_it(behaviour: Behaviour, outcome: str, tmp_path: Path) -> None:
    found = written(tmp_path, [Behaviour.ANSWER, behaviour, Behaviour.ANSWER])
    assert [(node, ended) for _, _, node, ended in found] == [("n1", "ok"), ("n2", outcome)]


def test_the_variant_writes_to_one_node(tmp_path: Path) -> None:
    ((kind, value, node, outcome),) = written(tmp_path, [Behaviour.ANSWER] * 3, to_all=False)
    assert (kind, value, outcome) == ("put", "v", "ok")
    assert node in ("n1", "n2", "n3")


def test_the_loop_writes_as_it_was_told(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "trace.jsonl")
    client = Client("kv-1", "failover", {"n1": "127.0.0.1:1"}, Recorder(writer), random.Random(0), 100)
    assert KvLoop(client, ["k"], to_all=True)._write == client.write_to_all
    assert KvLoop(client, ["k"], to_all=False)._write == client.write
    writer.close()


def test_each_client_keeps_its_own_order_when_its_list_changes(tmp_path: Path) -> None:
    """RocketMQ's clients shuffle their list, so two clients that write to all nodes write in different orders."""
    writer = TraceWriter(tmp_path / "trace.jsonl")
    addresses = {node: f"127.0.0.1:{port}" for port, node in enumerate(("n3", "n1", "n4", "n2"), 1)}
    client = Client("kv-1", "failover", addresses, Recorder(writer), random.Random(0), 100)
    client.use_nodes(("n1", "n2", "n3"))
    assert list(client.nodes) == ["n3", "n1", "n2"]
    client.use_nodes(("n1", "n2", "n4"))
    assert list(client.nodes) == ["n1", "n4", "n2"]
    writer.close()


def two_writers(*reads: tuple[float, str]) -> Script:
    """Two clients write one key to all nodes at the same time, and the requests to the last node come in the other order."""
    script = Script()
    for at, client, value, node in (
        (1000, "c1", "a", "n1"),
        (1020, "c2", "b", "n1"),
        (1040, "c2", "b", "n2"),
        (1060, "c1", "a", "n2"),
    ):
        script.op(at, at + 10, client, "put", "k", value, node=node)
    for begin, seen in reads:
        script.op(begin, begin + 5, "c2", "get", "k", seen, node="n2")
    return script


def test_in_a_cluster_each_request_is_a_write_so_an_old_value_may_return() -> None:
    """The request to the second node writes the old value again. A value that no later request wrote must not return."""
    good = with_renewals(two_writers((1012, "a"), (1052, "b"), (1075, "a")))
    assert [check(good).verdict for check in (check_kv, check_sessions)] == [Verdict.VALID] * 2
    assert check_kv(with_renewals(two_writers((1052, "b"), (1075, "b")))).verdict is Verdict.VIOLATED


def test_independent_nodes_are_judged_by_the_request_to_them() -> None:
    script = Script("ap").op(1000, 1010, "c1", "put", "k", "a", node="n1").op(1020, 1030, "c1", "put", "k", "a", node="n2")
    script.op(1012, 1015, "c2", "get", "k", None, node="n2").op(1040, 1050, "c2", "get", "k", "a", node="n2")
    assert check_node_kv(script.story).verdict is Verdict.VALID
    script.op(1060, 1070, "c2", "get", "k", None, node="n2")
    assert check_node_kv(script.story).count == 1


def test_a_client_that_waits_for_a_node_that_it_named_may_wait() -> None:
    """A KV write to every name server ends at the first one that does not answer."""
    script = Script().busy("c1", 1000, 3000).busy("c1", 9500, 12000)
    for start in range(3000, 9000, 1500):
        script.op(start, start + 1_499, "c1", "put", "k", "a", outcome="indeterminate")
    story = with_renewals(script)
    workload = story.manifest["scenario"]["workload"]
    workload["kv_writes"] = "one"
    assert check_availability(story).verdict is Verdict.VIOLATED, "a write goes to one node, and another one can replace it"
    workload["kv_writes"] = "all"
    assert check_availability(story).verdict is Verdict.VALID
