"""Every answer is a frame that peers read, or a clear error, however large the state is.

The tests use limits that are 100 times smaller.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicated_namesrv.compat.independent_node import IndependentNode
from replicated_namesrv.model import QueueData
from replicated_namesrv.routes import quotas
from replicated_namesrv.routes.commands import Command, PutKVConfig
from replicated_namesrv.routes.quotas import ORDER_TOPICS, Quotas
from replicated_namesrv.routes.sizes import Sizes
from replicated_namesrv.server import dispatch, query_handlers, registrations
from replicated_namesrv.server import request as requests
from replicated_namesrv.wire import bodies, fastjson_writer, frame
from tests.support.remoting_server import Answer, Peer, ServerThread, broker_fields, live_server, topic_table
from tests.support.routes import register

ORDER = "ORDER_TOPIC_CONFIG"
UNIT, UNIT_SUB = 1, 2
VALUE_BYTES_MAX, MAX_TOTAL, ORDER_TOPICS_BYTES_MAX, HEADER_BYTES = 10_485, 167_772, 157_286, 655


def test_order_topics_leave_room_for_the_rest_of_an_answer() -> None:
    assert quotas.ORDER_TOPICS_BYTES_MAX + 100 < registrations.ORDER_TOPICS_BYTES_MAX == frame.MAX_TOTAL - 65_536


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "tmp_path" in request.fixturenames:
        monkeypatch.setattr(quotas, "ORDER_TOPICS_BYTES_MAX", ORDER_TOPICS_BYTES_MAX)
        monkeypatch.setattr(dispatch, "MAX_TOTAL", MAX_TOTAL)
        monkeypatch.setattr(requests, "MAX_TOTAL", MAX_TOTAL)
        monkeypatch.setattr(registrations, "ORDER_TOPICS_BYTES_MAX", MAX_TOTAL - HEADER_BYTES)


def store(server: ServerThread, commands: Iterator[Command]) -> None:
    """Store without a check, as a version without these limits did."""
    node = server.service
    assert isinstance(node, IndependentNode)

    def apply() -> None:
        for command in commands:
            node.state.apply(command, 1)

    server.do(apply)


def register_over(peer: Peer) -> Answer:
    return peer.call(103, broker_fields("a", "a:10911"), topic_table("T", "U"))


@pytest.mark.parametrize("character", ["v", "\x01"])
def test_order_topics_are_refused_before_brokers_cannot_read_them(tmp_path: Path, character: str) -> None:
    value = character * ((VALUE_BYTES_MAX - 10) // (1 if character == "v" else 6))
    with live_server(tmp_path) as server, Peer(server.port) as peer:
        answers = [peer.call(100, {"namespace": ORDER, "key": f"k{number}", "value": value}) for number in range(17)]
        refused = [answer for answer in answers if answer.code]
        assert 1 <= len(refused) <= 3
        for answer in refused:
            assert f"{ORDER_TOPICS} is {ORDER_TOPICS_BYTES_MAX}" in (answer.header.remark or "")
            assert "remove what is not needed in the namespace ORDER_TOPIC_CONFIG" in (answer.header.remark or "")
        assert server.service.quotas.refused[ORDER_TOPICS] == len(refused)
        for answer in (register_over(peer), peer.call(219, {"namespace": ORDER})):
            assert (answer.code, len(json.loads(answer.body)["table"])) == (0, 17 - len(refused))
            assert len(answer.body) <= ORDER_TOPICS_BYTES_MAX
        assert peer.call(100, {"namespace": ORDER, "key": "k0", "value": "a:1"}).code == 0, (
            "at the limit, a shorter value is accepted"
        )
        assert peer.call(100, {"namespace": "other", "key": "k0", "value": value}).code == 0
        table = server.service.state.kv_view(ORDER)
        assert table is not None
        for key in list(table):
            assert peer.call(102, {"namespace": ORDER, "key": key}).code == 0
        assert server.service.state.sizes.order_topics == 0


def test_a_backup_with_too_many_order_topics_can_be_restored() -> None:
    """A cluster with more order topics works, and nobody can remove entries from its backup file."""
    held = Sizes()
    for number in range(16):
        held.entry(ORDER, f"k{number}", "v" * quotas.VALUE_BYTES_MAX, 1)
    plenty = dict.fromkeys(("maxStateBytes", "maxKvBytes", "maxKvNamespaceBytes", "maxBrokerBytes"), lambda: 1 << 40)
    assert held.order_topics > quotas.ORDER_TOPICS_BYTES_MAX
    Quotas(plenty, lambda command: ()).check_whole(held)


def test_a_registration_is_answered_without_order_topics_that_are_too_large(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with live_server(tmp_path) as server, Peer(server.port) as peer:
        store(server, (PutKVConfig(ORDER, f"k{number}", "v" * VALUE_BYTES_MAX) for number in range(17)))
        for _ in range(3):
            answer = register_over(peer)
            assert (answer.code, answer.body) == (0, b"")
        logged = [record for record in caplog.records if "ORDER_TOPIC_CONFIG" in record.message]
        assert len(logged) == 1
        answer = peer.call(219, {"namespace": ORDER})
        assert answer.code == 1
        assert f"at most {MAX_TOTAL}" in (answer.header.remark or "")
        assert server.metrics.limits_hit["answerBytes"] == 2


def long_names(kind: str, count: int) -> Iterator[str]:
    return (f"{kind}{number}".ljust(1_000, "x") for number in range(count))


@pytest.mark.parametrize("serialize_type", [0, 1])
def test_an_answer_that_is_too_large_is_a_clear_error(tmp_path: Path, serialize_type: int) -> None:
    with live_server(tmp_path) as server, Peer(server.port) as peer:
        for flag in (UNIT | UNIT_SUB, UNIT_SUB):
            topics = dict.fromkeys(long_names(f"topic{flag}-", 170), QueueData(6, 8, flag, 8))
            store(server, iter([register(f"b{flag}", 0, f"b{flag}:1", topics=topics)]))
        names = zip(long_names("broker", 90), long_names("address", 90), strict=True)
        store(server, (register(name, 0, address, topics=["T", "U"]) for name, address in names))
        store(server, (PutKVConfig("n", f"k{number}", "v" * VALUE_BYTES_MAX) for number in range(17)))
        store(server, iter([PutKVConfig("n", "control", "\x01" * VALUE_BYTES_MAX)]))
        too_large = {
            105: {"topic": "T"},
            106: None,
            206: None,
            219: {"namespace": "n"},
            224: {"cluster": "C"},
            311: None,
            312: None,
            313: None,
        }
        for code, fields in too_large.items():
            for _ in range(2):  # the second one may come from a cache
                answer = peer.call(code, fields, serialize_type=serialize_type)
                assert answer.code == 1, code
                remark = answer.header.remark or ""
                assert remark.startswith(f"the answer to request code {code} has "), code
                assert f"a frame at most {MAX_TOTAL}; read it in pages over the admin port" in remark
        assert server.metrics.limits_hit["answerBytes"] >= len(too_large)
        for code, fields in {
            101: {"namespace": "n", "key": "control"},
            304: None,
            319: None,
            322: {"clusterName": "C", "brokerAddr": "b3:1"},
            901: {"clusterName": "C", "brokerName": "b3"},
        }.items():
            answer = peer.call(code, fields, serialize_type=serialize_type)
            assert answer.code in (0, 1), code
            assert 4 + len(answer.body) <= MAX_TOTAL


def test_an_answer_that_cannot_fit_is_not_encoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoding the names of 300,000 topics of 1 KB took 4 s of one turn of the loop, before the answer was refused."""

    def encode(*arguments: object) -> bytes:
        raise AssertionError("encoded")

    encoders = ("encode_topic_list", "encode_kv_table", "kv_table_steps")
    for name in encoders:
        monkeypatch.setattr(bodies, name, encode)
    monkeypatch.setattr(registrations, "encode_kv_table", encode)
    monkeypatch.setattr(query_handlers, "MAX_TOTAL", MAX_TOTAL)
    with live_server(tmp_path) as server, Peer(server.port) as peer:
        for number in range(2):
            topics = dict.fromkeys(["T", *long_names(f"{number}-", 90)], QueueData(6, 8, UNIT | number * UNIT_SUB, 8))
            store(server, iter([register(f"b{number}" * 45_000, 0, f"b{number}:1", topics=topics)]))
        topics = dict.fromkeys(long_names("sub-", 170), QueueData(6, 8, UNIT_SUB, 8))
        store(server, iter([register("sub", 0, "sub:1", topics=topics, cluster="D")]))
        store(server, (PutKVConfig(ORDER, f"k{number}", "v" * VALUE_BYTES_MAX) for number in range(17)))
        asked: dict[int, dict[str, str] | None] = {105: {"topic": "T"}, 219: {"namespace": ORDER}, 224: {"cluster": "C"}}
        asked |= dict.fromkeys((106, 206, 304, 311, 312, 313))
        for code, fields in asked.items():
            answer = peer.call(code, fields)
            assert answer.code == 1, code
            remark = answer.header.remark or ""
            assert remark.startswith(f"the answer to request code {code} has more than "), remark
        assert server.metrics.limits_hit["answerBytes"] == len(asked)
        assert (register_over(peer).code, server.metrics.limits_hit["answerBytes"]) == (0, len(asked) + 1)


def test_a_list_of_escaped_values_is_not_encoded_beyond_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The values fit into a frame, their JSON does not: it is six times as long. Encoding all of it took a second of one turn of
    the loop."""
    quoted = list[int]()

    def quote(text: str) -> str:
        quoted.append(len(text))
        return fastjson_writer.quote(text)

    monkeypatch.setattr(bodies, "quote", quote)
    monkeypatch.setattr(query_handlers, "MAX_TOTAL", MAX_TOTAL)
    with live_server(tmp_path) as server, Peer(server.port) as peer:
        store(server, (PutKVConfig("n", f"k{number}", "\x01" * VALUE_BYTES_MAX) for number in range(12)))
        quoted.clear()
        answer = peer.call(219, {"namespace": "n"})
        assert (answer.code, server.metrics.limits_hit["answerBytes"]) == (1, 1)
    assert max(quoted) <= bodies.CHARACTERS_PER_STEP
    assert sum(quoted) <= MAX_TOTAL // 6 + bodies.CHARACTERS_PER_STEP


def test_a_list_of_escaped_names_is_not_encoded_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for values. Topics may have any characters."""
    quoted = list[int]()

    def quote(text: str) -> str:
        quoted.append(len(text))
        return fastjson_writer.quote(text)

    monkeypatch.setattr(bodies, "quote", quote)
    names = [f"{number}" + "\x01" * 1_000 for number in range(12_000)]
    with pytest.raises(requests.AnswerTooLargeError):
        query_handlers.list_body(206, names)
    assert sum(quoted) < len("".join(names)) / 3
