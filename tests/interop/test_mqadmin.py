"""mqadmin works equally with our node and RocketMQ's: one broker registers with both, and every command's outputs are
compared.
"""

import re
from functools import partial

import pytest

from tests.interop.lab import VERSIONS, Driver, Lab, addresses_of, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

COMMANDS = [
    ("updateTopic", "-c", "DefaultCluster", "-t", "Compared"),
    ("updateTopic", "-b", "{broker}", "-t", "Single", "-r", "4", "-w", "4"),
    ("topicList",),
    ("topicList", "-c"),
    ("topicRoute", "-t", "Compared"),
    ("topicRoute", "-t", "NoSuchTopic"),
    ("topicStatus", "-t", "Compared"),
    ("topicClusterList", "-t", "Compared"),
    ("clusterList",),
    ("clusterList", "-m"),
    ("updateTopicPerm", "-c", "DefaultCluster", "-t", "Single", "-p", "4"),
    ("topicRoute", "-t", "Single"),
    ("updateKvConfig", "-s", "NAMESPACE", "-k", "key", "-v", "value"),
    ("deleteKvConfig", "-s", "NAMESPACE", "-k", "key"),
    ("wipeWritePerm", "-b", "broker-a"),
    ("topicRoute", "-t", "Compared"),
    ("addWritePerm", "-b", "broker-a"),
    ("topicRoute", "-t", "Compared"),
    ("wipeWritePerm", "-b", "no-such-broker"),
    # a broker that receives an order configuration registers all its topics again, which restores a wiped permission
    ("updateOrderConf", "-t", "Compared", "-m", "put", "-v", "broker-a:4"),
    ("updateOrderConf", "-t", "Compared", "-m", "get"),
    ("updateOrderConf", "-t", "Compared", "-m", "delete"),
    ("updateOrderConf", "-t", "Compared", "-m", "get"),
    ("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true"),
    ("updateNamesrvConfig", "-k", "kvConfigPath", "-v", "elsewhere"),
    ("getNamesrvConfig",),
    ("brokerStatus", "-b", "{broker}"),
    ("getBrokerConfig", "-b", "{broker}"),
    ("statsAll", "-a"),
    ("consumerProgress",),
    ("deleteTopic", "-c", "DefaultCluster", "-t", "Compared"),
    ("topicRoute", "-t", "Compared"),
]
VOLATILE_CONFIG = {"configStorePath", "kvConfigPath", "rocketmqHome", "listenPort", "bindAddress", "configBlackList"}


def normalized(command: tuple[str, ...], output: str, address: str) -> object:
    """The part of an output that must be equal: everything except the server's own address, times, rates and the order of
    lines.
    """
    text = output.replace(address, "NAMESRV")
    text = re.sub(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[,.\d]*", "TIME", text)
    text = re.sub(r"perm from \d to", "perm from BEFORE to", text)  # the first server's command has changed it already
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    if command[0] == "getNamesrvConfig":
        return dict(line.split("=", 1) if "=" in line else line.split(None, 1) for line in lines if len(line.split("=", 1)) == 2)
    if command[0] in ("brokerStatus", "getBrokerConfig", "statsAll", "clusterList", "topicStatus", "consumerProgress"):
        return sorted(line.split()[:5] if command[0] == "clusterList" else line.split()[:1] for line in lines)
    if command[0] == "topicRoute" and text.lstrip().startswith("{"):
        return sorted(re.findall(r'"?[\w@]+"?:[^,{}\[\]]+', text.replace(" ", "")))
    return sorted(re.sub(r"timestamp=\d+|counter=\d+", "", line) for line in lines if not line.lstrip().startswith("at "))


@pytest.mark.parametrize("version", VERSIONS)
def test_mqadmin_answers_equal(lab: Lab, version: str) -> None:
    theirs, _ = lab.java_namesrv(version)
    ours, _ = lab.namesrv()
    broker, _ = lab.broker(version, "broker-a", f"{theirs};{ours}")
    for address in (theirs, ours):
        wait_for(partial(addresses_of, address, "TBW102"), f"the broker is registered at {address}")
    driver = lab.driver(version)
    differences = [difference for command in COMMANDS if (difference := compare(driver, command, broker, theirs, ours))]
    assert not differences, "\n\n".join(differences)


def compare(driver: Driver, words: tuple[str, ...], broker: str, theirs: str, ours: str) -> str:
    """Give one command to both name servers. Returns the difference, or an empty text."""
    command = tuple(word.format(broker=broker) for word in words)
    expected, got = (driver.admin(*command, "-n", address) for address in (theirs, ours))
    want, have = normalized(command, expected, theirs), normalized(command, got, ours)
    if command[0] == "getNamesrvConfig" and isinstance(want, dict) and isinstance(have, dict):
        want = {key: value for key, value in want.items() if key.strip() not in VOLATILE_CONFIG}
        have = {key: have.get(key) for key in want}
    return "" if want == have else f"{' '.join(command)}\n--- Java\n{expected}\n--- ours\n{got}\n{want}\n{have}"
