"""docs/tls.md: its commands run as the page has them, on other ports, with a real broker, client and mqadmin."""

import re
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.interop.lab import Driver, Lab, Process, wait_for
from tests.packaging.tree import ROOT
from tests.support.nodes import clean_environment
from tests.support.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
VERSION = "5.3.3"
OFFSETS = (1, 2, 10, 11, 12, 20, 21, 22)


def has_broker(tools: Driver, address: str) -> bool:
    return "broker-a" in tools.admin("clusterList", "-n", address)


def test_the_page(lab: Lab, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "tls.md").read_text(encoding="utf-8")
    certificates, roles, nodes, start, operators, commands, asked, java = re.findall(
        r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL
    )
    base = free_port(*OFFSETS)
    moved = {9876 + offset: base + offset for offset in (-1, 0, *OFFSETS)} | {9885: base + 9}

    def here(block: str) -> str:
        block = re.sub(r"\b98[789]\d\b", lambda found: str(moved[int(found[0])]), block)
        return re.sub(r"\bnamesrv (?=serve|access|status|brokers)", f"{sys.executable} -m replicated_namesrv ", block)

    environment = clean_environment(PYTHONPATH=str(ROOT))

    def run(block: str, code: int | None = 0) -> str:
        done = subprocess.run(
            ["sh", "-ec", here(block)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert code is None or done.returncode == code, (block, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout

    for block in (certificates, roles, nodes, java):
        run(block)
    for line in filter(None, (part.strip() for part in here(start).split("&"))):
        lab.processes.append(Process(line, shlex.split(line), tmp_path, environment))
    wait_for(lambda: '"ready":true' in run(operators, None), "the node is ready, and tells the operator so")
    wait_for(lambda: "problem:" not in run(commands, None), "the commands find no problem")
    assert "no registered broker" in run(asked)
    assert '"notCompared":[]' in run(operators.replace("/v1/status", "/v1/differences")), "the nodes read from each other"
    change = operators.strip().replace("/v1/status", "/v1/kv/n/k") + " -X PUT -d value"
    run(change)
    run(change.replace("tools", "client"), 22)
    run(change.replace("--cert tools.pem --key tools.key", ""), 22)

    options = {name: tuple((tmp_path / f"{name}.opts").read_text().split()) for name in ("broker-a", "client", "tools")}
    names = ";".join(f"localhost:{base + number}" for number in range(3))
    lab.broker(VERSION, "broker-a", names, system=options["broker-a"])
    tools = lab.driver(VERSION, options["tools"])
    for address in names.split(";"):
        wait_for(partial(has_broker, tools, address), f"{address} has the broker")
    client = lab.driver(VERSION, options["client"])
    assert client.call("send", names, "TBW102", "5", "m").startswith("5 stored")
    assert "Failed" in client.admin("wipeWritePerm", "-n", names, "-b", "broker-a")
    assert "OK" in tools.admin("wipeWritePerm", "-n", names, "-b", "broker-a")
    peers = run("tail -c 2000 data-n1/audit.log")
    assert '"identity":"tools","address":"127.0.0.1"' in peers
