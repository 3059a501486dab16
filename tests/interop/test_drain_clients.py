"""Real clients of 4.9 and 5.x and a real broker while each node of a cluster is drained in turn, as before a restart."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.lab import Lab, ask, compile_driver, laboratory, wait_for
from tests.interop.test_peers import create_topic, registered
from tests.support import provision
from tests.support.nodes import run_command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
BROKER = "5.3.3"
WITHIN_S = 5
LOOKERS = 3
"""Number of clients of each version that look up routes."""
FAILED_MAX = 0.005
"""Share of look-ups that may fail. Measured at a load average of 28, with look-ups every 20 ms: 5.3.3 at most 1 of 2,315, 4.9.7 3
of 1,464."""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A laboratory with the jars of both versions, and replicated name servers."""
    jars = {version: provision.require_rocketmq_jars(version) for version in provision.ROCKETMQ_VERSIONS}
    classes = {version: compile_driver(found, tmp_path / f"classes-{version}") for version, found in jars.items()}
    with laboratory(tmp_path, str(provision.java()), jars, classes, "cp") as it:
        yield it


def test_clients_move_on_and_no_send_fails(lab: Lab) -> None:
    nodes = [address for address, _ in lab.namesrvs("n1", "n2", "n3")]
    names = ";".join(nodes)
    lab.broker(BROKER, "broker-a", names)
    wait_for(lambda: registered(nodes, "broker-a", 0), "the broker is registered")
    drivers = {version: lab.driver(version) for version in provision.ROCKETMQ_VERSIONS}
    create_topic(drivers[BROKER], names, nodes, "Drained", "broker-a")
    lookers = [(driver, f"{version}-{number}") for version, driver in drivers.items() for number in range(LOOKERS)]
    for driver in drivers.values():
        driver.call("sender-start", "s", names, "Drained", "5")
    for driver, looker in lookers:
        driver.call("looker-start", looker, names, "Drained", "20", "3000")

    def sent() -> list[int]:
        return [driver.sender_state("s")["sent"] for driver in drivers.values()]

    for address in nodes:
        before = sent()
        host, _, port = address.rpartition(":")
        admin = f"{host}:{int(port) + 10}"
        done = run_command("drain", "-a", admin, "--within", str(WITHIN_S), "--json")
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert told["cut"] == 0, told
        with pytest.raises(OSError, match="refused"):
            ask(address, 206)
        wait_for(lambda: all(now > then + 50 for now, then in zip(sent(), before, strict=True)), "messages flow")  # noqa: B023 - called within this turn of the loop
        assert run_command("drain", "--undo", "-a", admin).returncode == 0
        wait_for(lambda: registered([address], "broker-a", 0), "the node serves again")  # noqa: B023 - called within this turn of the loop
    states = {looker: driver.looker_state(looker) for driver, looker in lookers}
    assert [driver.sender_state("s")["failed"] for driver in drivers.values()] == [0, 0]
    # A request that is sent while its connection is being closed fails, and a 5.x client tries one name server per call.
    for version in drivers:
        found = [state for looker, state in states.items() if looker.startswith(version)]
        assert sum(state["failed"] for state in found) <= FAILED_MAX * sum(state["answered"] for state in found), (version, found)
    for driver, looker in lookers:
        driver.call("looker-stop", looker)
    for driver in drivers.values():
        driver.call("sender-stop", "s")
