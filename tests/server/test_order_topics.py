"""ORDER_TOPIC_CONFIG in the answers of registrations: right after every change, encoded once for each."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from replicated_namesrv.server import registrations
from replicated_namesrv.wire.bodies import encode_kv_table
from tests.support.remoting_server import Peer, broker_fields, live_server, topic_table

REGISTER, PUT_KV, DELETE_KV, UPDATE_CONFIG = 103, 100, 102, 318


def register(peer: Peer, address: str) -> dict[str, str] | None:
    """The order topics in the answer of a registration; None: the answer has no body."""
    answer = peer.call(REGISTER, broker_fields(address, f"{address}:10911"), topic_table("T", "U"))
    assert answer.code == 0
    return json.loads(answer.body)["table"] if answer.body else None


def test_registrations_share_one_encoding_of_the_order_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = list[int]()

    def counted(table: Mapping[str, str | None]) -> bytes:
        encoded.append(len(table))
        return encode_kv_table(table)

    monkeypatch.setattr(registrations, "encode_kv_table", counted)
    with live_server(tmp_path) as server, Peer(server.port) as peer:

        def kv(code: int, namespace: str, key: str, value: str = "") -> None:
            assert peer.call(code, {"namespace": namespace, "key": key, "value": value}).code == 0

        assert register(peer, "a") is None
        kv(PUT_KV, "ORDER_TOPIC_CONFIG", "t", "a:4")
        kv(PUT_KV, "ORDER_TOPIC_CONFIG", "u", "a:8")
        for address in ("a", "a", "b", "c", "a"):
            assert register(peer, address) == {"t": "a:4", "u": "a:8"}
        assert encoded == [2], "whether it was recognised or evaluated"
        kv(PUT_KV, "another namespace", "t", "b:4")
        kv(PUT_KV, "ORDER_TOPIC_CONFIG", "t", "a:4")
        assert register(peer, "a") == {"t": "a:4", "u": "a:8"}
        assert encoded == [2], "nothing of it has changed"
        kv(PUT_KV, "ORDER_TOPIC_CONFIG", "t", "a:1")
        assert register(peer, "a") == {"t": "a:1", "u": "a:8"}
        kv(DELETE_KV, "ORDER_TOPIC_CONFIG", "t")
        assert register(peer, "b") == {"u": "a:8"}
        assert encoded == [2, 2, 1]
        assert peer.call(UPDATE_CONFIG, None, b"returnOrderTopicConfigToBroker=false\n").code == 0
        assert register(peer, "a") is None
        assert peer.call(UPDATE_CONFIG, None, b"returnOrderTopicConfigToBroker=true\n").code == 0
        assert register(peer, "a") == {"u": "a:8"}
        assert encoded == [2, 2, 1]
