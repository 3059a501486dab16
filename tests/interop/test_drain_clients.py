"""Real clients and a real broker while each node of a cluster is drained in turn, as before a restart."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.lab import Lab, ask, compile_driver, laboratory, wait_for
from tests.interop.test_peers import create_topic, registered
from tests.support import provision
from tests.support.nodes import run_command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
VERSION = "5.3.3"
WITHIN_S = 5
LOOKERS = 6
FAILED_MAX = 0.005
"""Share of look-ups that may fail. Measured at a load average of 28, with look-ups every 20 ms: 5.3.3 at most 1 of 2,315, 4.9.7 3
of 1,464."""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A laboratory with the jars of one version, and replicated name servers."""
    jars = provision.require_rocketmq_jars(VERSION)
    classes = compile_driver(jars, tmp_path / "classes")
    with laboratory(tmp_path, str(provision.java()), {VERSION: jars}, {VERSION: classes}, "cp") as it:
        yield it


def test_clients_move_on_and_no_send_fails(lab: Lab) -> None:
    nodes = [address for address, _ in lab.namesrvs("n1", "n2", "n3")]
    names = ";".join(nodes)
    lab.broker(VERSION, "broker-a", names)
    wait_for(lambda: registered(nodes, "broker-a", 0), "the broker is registered")
    driver = lab.driver(VERSION)
    create_topic(driver, names, nodes, "Drained", "broker-a")
    driver.call("sender-start", "s", names, "Drained", "5")
    for number in range(LOOKERS):
        driver.call("looker-start", str(number), names, "Drained", "20", "3000")
    for address in nodes:
        before = driver.sender_state("s")["sent"]
        host, _, port = address.rpartition(":")
        admin = f"{host}:{int(port) + 10}"
        done = run_command("drain", "-a", admin, "--within", str(WITHIN_S), "--json")
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert told["cut"] == 0, told
        with pytest.raises(OSError, match="refused"):
            ask(address, 206)
        wait_for(lambda: driver.sender_state("s")["sent"] > before + 50, "messages flow")  # noqa: B023 - called within this turn of the loop
        assert run_command("drain", "--undo", "-a", admin).returncode == 0
        wait_for(lambda: registered([address], "broker-a", 0), "the node serves again")  # noqa: B023 - called within this turn of the loop
    states = [driver.looker_state(str(number)) for number in range(LOOKERS)]
    assert driver.sender_state("s")["failed"] == 0
    # A request that is sent while its connection is being closed fails, and a 5.x client tries one name server per call.
    assert sum(state["failed"] for state in states) <= FAILED_MAX * sum(state["answered"] for state in states), states
    for number in range(LOOKERS):
        driver.call("looker-stop", str(number))
    driver.call("sender-stop", "s")
