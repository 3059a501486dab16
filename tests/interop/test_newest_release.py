"""A broker of RocketMQ 5.5.0 that splits its registration, with an independent node and a replicated cluster."""

import json
from pathlib import Path

import pytest

from tests.interop.lab import ask, laboratory, route, wait_for
from tests.support import provision
from tests.support.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

VERSION = provision.NEWEST_ROCKETMQ
TOPICS = [f"Split_{number}" for number in range(50)]
UPDATE_BROKER_CONFIG = 25


def topics_file() -> str:
    """topics.json of a broker that has TOPICS."""
    topic = {
        "perm": 6,
        "readQueueNums": 8,
        "writeQueueNums": 8,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
    }
    table = {name: {**topic, "topicName": name, "attributes": {}} for name in TOPICS}
    return json.dumps({"dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 1}, "topicConfigTable": table})


def test_every_batch_of_a_split_registration_is_stored(tmp_path: Path) -> None:
    """One change of the data version concerns all topics, which arrive in batches of 20 (RocketMQ issue 10425)."""
    jars = {VERSION: provision.require_rocketmq_jars(VERSION)}
    java = str(provision.java())
    with (
        laboratory(tmp_path / "ap", java, jars, {VERSION: tmp_path}) as lab,
        laboratory(tmp_path / "cp", java, jars, {}, "cp") as other,
    ):
        nodes = other.namesrvs("ns0", "ns1", "ns2", settings={"fenceAfterMs": "20000"})
        addresses = [address for address, _ in (*lab.namesrvs("ns"), *nodes)]
        port = free_port(-2, 1)
        config = lab.folder / f"broker-split-{port}" / "store" / "config"
        config.mkdir(parents=True)
        (config / "topics.json").write_text(topics_file())
        split = {"enableSplitRegistration": "true", "splitRegistrationSize": "20"}
        broker, process = lab.broker(VERSION, "split", ";".join(addresses), port=port, properties=split)

        def permissions() -> dict[str, set[int]]:
            """The permissions of all topics at each name server."""
            found = {address: [route(address, topic) for topic in TOPICS] for address in addresses}
            return {
                address: {data["perm"] for one in routes if one for data in one["queueDatas"]} | {0 for one in routes if not one}
                for address, routes in found.items()
            }

        def wait_for_permission(perm: int) -> None:
            seen: dict[str, set[int]] = {}

            def is_everywhere() -> bool:
                seen.update(permissions())
                return all(perms == {perm} for perms in seen.values())

            try:
                wait_for(is_everywhere, f"every topic has permission {perm}")
            except AssertionError as error:
                raise AssertionError(f"{error}; {seen}; {process.last_words()}") from None

        wait_for_permission(6)
        for perm in (4, 6):
            header, _ = ask(broker, UPDATE_BROKER_CONFIG, body=f"brokerPermission={perm}\n".encode())
            assert header["code"] == 0, header
            wait_for_permission(perm)
