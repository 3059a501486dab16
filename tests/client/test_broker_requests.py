"""Requests of simulated brokers, byte for byte against frames recorded from RocketMQ 4.9.8 and 5.3.3 brokers
(tests/data/client).
"""

import json
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from replicated_namesrv.client.answer_bodies import decode_data_version
from replicated_namesrv.client.broker_requests import (
    BrokerIdentity,
    BrokerVersion,
    heartbeat_request,
    register_request,
    unregister_request,
)
from replicated_namesrv.client.remoting import RemotingCommand, cut_commands, encode_command
from replicated_namesrv.client.topics import BrokerTopics, RegistrationExtras, TopicConfig, TopicTable, system_topics
from replicated_namesrv.model import DataVersion, TopicQueueMappingInfo
from replicated_namesrv.steps import finish
from replicated_namesrv.wire.codes import RequestCode
from replicated_namesrv.wire.registration_body import decode_register_body

RECORDED = Path(__file__).parent.parent / "data" / "client" / "broker_frames.jsonl"


@dataclass(frozen=True)
class Recorded:
    release: str
    number: int
    frame: bytes

    @property
    def version(self) -> BrokerVersion:
        return BrokerVersion.V4_9 if self.release == "4.9.8" else BrokerVersion.V5_3

    @property
    def command(self) -> RemotingCommand:
        (command,) = cut_commands(bytearray(self.frame))
        return command

    @property
    def identity(self) -> BrokerIdentity:
        fields = self.command.ext_fields
        assert fields is not None
        return BrokerIdentity(
            cluster_name=fields["clusterName"],
            broker_name=fields["brokerName"],
            broker_id=int(fields["brokerId"]),
            broker_addr=fields["brokerAddr"],
            ha_server_addr=fields.get("haServerAddr", ""),
        )


def recorded() -> list[Recorded]:
    lines = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    return [Recorded(line["release"], line["frame"], bytes.fromhex(line["hex"])) for line in lines]


def of_code(code: RequestCode) -> list[Any]:
    return [pytest.param(frame, id=f"{frame.release}-{frame.number}") for frame in recorded() if frame.command.code == code]


def topics_in_json(body: bytes) -> tuple[list[TopicConfig], DataVersion, int]:
    """Topics in recorded order, the data version and the timestamp of the mapping version (0 if there is none)."""
    wrapper = json.loads(body)["topicConfigSerializeWrapper"]
    configs = [
        TopicConfig(
            topic_name=entry["topicName"],
            read_queue_nums=entry["readQueueNums"],
            write_queue_nums=entry["writeQueueNums"],
            perm=entry["perm"],
            order=entry["order"],
            topic_sys_flag=entry["topicSysFlag"],
        )
        for entry in wrapper["topicConfigTable"].values()
    ]
    version = decode_data_version(json.dumps(wrapper["dataVersion"]).encode())
    return configs, version, wrapper.get("mappingDataVersion", {}).get("timestamp", 0)


def topics_in_stream(body: bytes) -> tuple[list[TopicConfig], DataVersion, int]:
    data = zlib.decompress(body)

    def text(position: int) -> tuple[str, int]:
        (length,) = struct.unpack_from(">i", data, position)
        return data[position + 4 : position + 4 + length].decode(), position + 4 + length

    version, position = text(0)
    (count,) = struct.unpack_from(">i", data, position)
    position += 4
    configs = []
    for _ in range(count):
        line, position = text(position)
        name, read_queue_nums, write_queue_nums, perm, *_ = line.split(" ")
        configs.append(TopicConfig(name, int(read_queue_nums), int(write_queue_nums), int(perm)))
    return configs, decode_data_version(version.encode()), 0


@pytest.mark.parametrize("frame", of_code(RequestCode.REGISTER_BROKER))
def test_registration_is_the_recorded_one(frame: Recorded) -> None:
    command = frame.command
    compressed = command.body.startswith(b"\x78")
    configs, data_version, mapping_ms = (topics_in_stream if compressed else topics_in_json)(command.body)
    fields = command.ext_fields
    assert fields is not None
    timeout = fields.get("heartbeatTimeoutMillis")
    topics = BrokerTopics(TopicTable(()), TopicTable(configs))
    request = register_request(
        frame.identity,
        frame.version,
        topics.encode(frame.version, data_version, mapping_ms, compressed=compressed),
        compressed=compressed,
        oneway=command.flag == 2,
        enable_acting_master=fields.get("enableActingMaster") == "true",
        heartbeat_timeout_ms=None if timeout is None else int(timeout),
        zone_name=None,
    )
    assert encode_command(request._replace(opaque=command.opaque)) == frame.frame


@pytest.mark.parametrize("version", BrokerVersion)
def test_a_name_server_reads_filter_servers_and_static_mappings(version: BrokerVersion) -> None:
    mapping = TopicQueueMappingInfo("b", ((0, 1), (2, 3)), False, 7, "__global__", "T", 4)
    topics = BrokerTopics(
        TopicTable(()), TopicTable([TopicConfig("T"), TopicConfig("U")]), RegistrationExtras(("f:1", "f:2"), (mapping,))
    )
    for one in (topics, topics.put([TopicConfig("V")]).delete(["U"])):
        body = one.encode(version, DataVersion(1, 0, 1), 1, compressed=False)
        read = finish(decode_register_body(body, version.remoting_version, False))
        assert read.filter_servers == ("f:1", "f:2")
        assert read.topic_queue_mapping_infos == ({"T": mapping} if version is BrokerVersion.V5_3 else {})
        assert read.topics is not None
        assert set(read.topics) == {config.topic_name for config in one}


@pytest.mark.parametrize("frame", of_code(RequestCode.UNREGISTER_BROKER))
def test_unregistration_is_the_recorded_one(frame: Recorded) -> None:
    request = unregister_request(frame.identity, frame.version)
    assert encode_command(request._replace(opaque=frame.command.opaque)) == frame.frame


@pytest.mark.parametrize("frame", of_code(RequestCode.QUERY_DATA_VERSION))
def test_heartbeat_is_the_recorded_one(frame: Recorded) -> None:
    request = heartbeat_request(frame.identity, frame.version, decode_data_version(frame.command.body))
    assert encode_command(request._replace(opaque=frame.command.opaque)) == frame.frame


def test_every_kind_of_frame_was_compared() -> None:
    """Otherwise an empty file of recordings would not be noticed."""
    compared = {(frame.release, frame.command.code, frame.command.flag) for frame in recorded()}
    assert compared >= {
        ("5.3.3", 103, 0),
        ("4.9.8", 103, 0),
        ("4.9.8", 103, 2),
        ("5.3.3", 104, 0),
        ("4.9.8", 104, 0),
        ("5.3.3", 322, 2),
    }


@pytest.mark.parametrize(("release", "number"), [("5.3.3", 0), ("5.3.3", 46), ("4.9.8", 0)])
def test_a_new_broker_owns_the_system_topics_that_real_ones_own(release: str, number: int) -> None:
    """A real 4.9.8 broker may have topics of its users besides; the recorded one also had a transaction's half topic."""
    (frame,) = [frame for frame in recorded() if (frame.release, frame.number) == (release, number)]
    configs, _, _ = topics_in_json(frame.command.body)
    ours = system_topics(frame.identity.cluster_name, frame.identity.broker_name, frame.version)
    assert len(ours) == len({config.topic_name for config in ours})
    created_later = {"RMQ_SYS_TRANS_HALF_TOPIC"} if release == "4.9.8" else set()
    assert set(ours) == {config for config in configs if config.topic_name not in created_later}


def test_a_name_with_quotes_and_other_scripts_survives() -> None:
    config = TopicConfig('a"b\\é主题')
    topics = BrokerTopics(TopicTable(()), TopicTable([config]))
    configs, _, _ = topics_in_json(topics.encode(BrokerVersion.V5_3, DataVersion(1, 2, 3), 4, compressed=False))
    assert configs == [config]
