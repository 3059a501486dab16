"""Our commands and broker agents against RocketMQ's own name servers, alone and together with ours."""

import json
import subprocess
import sys

import pytest

from tests.interop.lab import OLD, VERSIONS, Lab, addresses_of, ask, wait_for
from tests.support.nodes import clean_environment, command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def namesrv(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=60, check=False, env=clean_environment())


def await_route(server: str, expected: dict[str, dict[str, str]]) -> None:
    wait_for(lambda: addresses_of(server, "topic-2") == expected, f"{server} routes topic-2 to {expected}")


@pytest.mark.parametrize("line", VERSIONS)
def test_agents_and_commands(lab: Lab, line: str) -> None:
    """Every form of registration that the Java server accepts. Our commands then show its state."""
    java, _ = lab.java_namesrv(line)
    ours, _ = lab.namesrv()
    both = f"{java};{ours}"
    ways = [("4.9", "register", ()), ("4.9", "register", ("--compressed",)), ("4.9", "322", ())]
    ways += [("5.3", "register", ()), ("5.3", "322", ())]
    if line != OLD:
        ways += [("5.3", "904", ())]
    for index, (version, heartbeat, more) in enumerate(ways):
        agents = subprocess.Popen(
            command(
                *("broker", "-n", both, "--version", version, "--heartbeat", heartbeat, "--replicas", "2", "--topics", "3"),
                *("--name-prefix", f"way{index}-", "--port", str(20911 + 100 * index), "--period-ms", "1000", *more),
            ),
            stdout=subprocess.DEVNULL,
            stderr=sys.stderr,
            env=clean_environment(),
        )
        name = f"way{index}-0"
        try:
            expected = {name: {"0": f"127.0.0.1:{20911 + 100 * index}", "1": f"127.0.0.1:{20915 + 100 * index}"}}
            for server in (java, ours):
                await_route(server, expected)
            route = json.loads(namesrv("route", "topic-2", "-n", java, "--json").stdout)
            assert route["queues"][0]["writeQueueNums"] == 8
            assert route["brokers"][0]["brokerAddrs"] == expected[name]
            difference = json.loads(namesrv("diff", "-n", both, "--json").stdout)
            # 4.9 knows no acting master; everything else must be alike
            if line != OLD:
                assert difference["equal"], difference
            assert name in namesrv("brokers", "-n", java).stdout
            assert name in namesrv("topics", "-n", java).stdout
            assert namesrv("brokers", "wipe-write", name, "-n", java).returncode == 0
        finally:
            agents.terminate()
            assert agents.wait(30) == 0
        wait_for(lambda: not addresses_of(java, "topic-2"), f"{name} is unregistered")
    assert namesrv("kv", "put", "NS", "k", "v", "-n", both).returncode == 0
    assert namesrv("kv", "get", "NS", "k", "-n", java).stdout == "v\n"
    assert namesrv("config", "set", "orderMessageEnable=true", "-n", java).returncode == 0
    assert "true" in namesrv("config", "get", "orderMessageEnable", "-n", java).stdout
    assert namesrv("config", "set", "kvConfigPath=/x", "-n", java).returncode == 1
    assert namesrv("topics", "delete", "nothing", "--cluster", "C", "-n", java).returncode == 0
    assert ask(java, 206)[0]["code"] == 0


def test_java_refuses_what_compressing_5x_brokers_send(lab: Lab) -> None:
    """``BrokerOuterAPI`` of 5.x deflates the body but declares it as not compressed. Java answers code 1; our server looks at the
    bytes."""
    java, _ = lab.java_namesrv("5.3.3")
    ours, _ = lab.namesrv()
    for server, code in ((java, 1), (ours, 0)):
        done = namesrv("broker", "-n", server, "--compressed", "--duration-s", "0.5")
        assert done.returncode == code, done.stderr
