"""Tests of the records that brokers of a chaos run make of answers to ``QUERY_DATA_VERSION`` (322) and to registrations."""

import asyncio
import itertools
import random
from typing import Any, cast

import pytest

from replicated_namesrv.chaos.recorded_brokers import ChaosBroker, Clock
from replicated_namesrv.chaos.recorder import Recorder
from replicated_namesrv.chaos.records import Complete, Invoke, TraceRecord
from replicated_namesrv.client.broker import BrokerOptions
from replicated_namesrv.client.broker_requests import BrokerIdentity, BrokerVersion, data_version_json
from replicated_namesrv.client.remoting import RemotingCommand
from replicated_namesrv.model import DataVersion
from replicated_namesrv.wire.codes import RequestCode
from tests.support.client_peers import answer_to, scripted_server

OTHER = DataVersion(9, 0, 9)


class Written:
    """Takes the records that a recorder writes."""

    def __init__(self) -> None:
        self.records: list[TraceRecord] = []

    def write(self, record: TraceRecord) -> None:
        self.records.append(record)

    def answers(self, kind: str) -> list[str | None]:
        """The values of the operations of a kind."""
        asked = {one.op for one in self.records if isinstance(one, Invoke) and one.kind == kind}
        return [one.value for one in self.records if isinstance(one, Complete) and one.op in asked]


def recorded(changed: str, stored: str, broker_id: int = 0, fields: dict[str, str] | None = None) -> Written:
    """A broker registers, and asks for its version. ``stored``: same, other or none."""
    written = Written()

    async def scenario() -> None:
        async with scripted_server() as server:

            def answer(request: RemotingCommand) -> RemotingCommand:
                if request.code != RequestCode.QUERY_DATA_VERSION:
                    return answer_to(request, ext_fields=fields or {})
                body = request.body if stored == "same" else data_version_json(OTHER, BrokerVersion.V5_3).encode()
                return answer_to(request, ext_fields={"changed": changed}, body=b"" if stored == "none" else body)

            server.answer = answer
            identity = BrokerIdentity("chaos", "pair", broker_id, "127.0.1.1:1", "127.0.1.1:1")
            recorder, numbers = Recorder(cast(Any, written)), itertools.count(1)
            options = BrokerOptions(force_register=False, register_period_ms=60_000)
            servers, rng = {"n1": server.address}, random.Random(1)
            broker = ChaosBroker(
                identity, ["t"], servers, options, recorder, rng, Clock(), lambda: next(numbers), lambda node: True, {}
            )
            broker.processes = {"127.0.1.2:1": "pair/0"}
            await broker.start()
            await broker.agent.register_round()
            await broker.agent.kill()

    asyncio.run(scenario())
    return written


@pytest.mark.parametrize(
    ("changed", "stored", "value"),
    [
        ("false", "same", "1"),
        ("true", "other", str(OTHER)),
        ("true", "none", None),
        ("true", "same", "1, changed"),
        ("false", "other", f"{OTHER}, unchanged"),
        ("false", "none", "unchanged, without a version"),
    ],
)
def test_the_stored_version_is_recorded(changed: str, stored: str, value: str | None) -> None:
    assert recorded(changed, stored).answers("version") == [value]


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({}, None),
        ({"masterAddr": "127.0.1.2:1", "haServerAddr": "127.0.1.2:1"}, "pair/0"),
        ({"masterAddr": "127.0.1.2:1"}, "pair/0 with the HA address None"),
        ({"masterAddr": "127.0.1.3:1", "haServerAddr": "127.0.1.3:1"}, "127.0.1.3:1"),
    ],
)
def test_the_master_is_recorded(fields: dict[str, str], value: str | None) -> None:
    assert set(recorded("false", "same", 1, fields).answers("master")) == {value}
