"""docs/getting-started.md: its commands run as the page has them, on other ports, with a real broker and RocketMQ's own tools."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.lab import Lab, Process, wait_for
from tests.packaging.tree import ROOT
from tests.support.nodes import clean_environment, run_command, running_command
from tests.support.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
VERSION = "5.3.3"


def blocks() -> list[str]:
    """The code blocks of the page."""
    text = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")
    return re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def distribution(lab: Lab, home: Path, port: int) -> None:
    """The scripts of RocketMQ's distribution that the page uses, with the jars of the tests and a port for the broker."""
    properties = f"listenPort={port}\nhaListenPort={port + 1}\nbrokerIP1=127.0.0.1\nstorePathRootDir={home}/store\n"
    properties += "mappedFileSizeCommitLog=16777216\ndiskMaxUsedSpaceRatio=95\nwaitTimeMillsInSendQueue=20000\n"
    (home / "bin").mkdir(parents=True)
    (home / "broker.properties").write_text(properties)
    for script, name, main in (
        ("mqbroker", "broker", f"org.apache.rocketmq.broker.BrokerStartup -c {home}/broker.properties"),
        ("mqadmin", "tools", "org.apache.rocketmq.tools.command.MQAdminStartup"),
    ):
        logs = f"-Drmq.logback.configurationFile={home}/conf/rmq.{name}.logback.xml"
        java = shlex.join(lab._java_command(VERSION, home, 384, "-XX:MaxDirectMemorySize=512m", logs))
        (home / "bin" / script).write_text(f'exec {java} {main} "$@"\n')


def test_the_page(lab: Lab, tmp_path: Path) -> None:
    base, home = free_port(1, 2, 10, 11, 12, 20, 21, 22), tmp_path / "rocketmq"
    distribution(lab, home, free_port(-2, 1))
    addresses = ";".join(f"127.0.0.1:{base + number}" for number in range(3))
    admin = ";".join(f"127.0.0.1:{base + 10 + number}" for number in range(3))
    environment = clean_environment(ROCKETMQ_HOME=str(home), NAMESRV_ADDR=addresses, NAMESRV_ADMIN=admin)  # as the page exports

    def here(block: str) -> str:
        block = re.sub(r":98([78]\d)\b", lambda found: f":{base + int(found[1]) - 76}", block)
        return block.replace("./namesrv", f"{sys.executable} -m replicated_namesrv")

    def run(block: str) -> str:
        done = subprocess.run(
            ["sh", "-ec", here(block)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, (block, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout

    def leader() -> str:
        found = re.search(r"^leader:? *(n\d)", run_command("status", environment=environment).stdout, re.MULTILINE)
        return found[1] if found else ""

    cluster, broker, look, messages, kill = blocks()
    assert cluster == "./namesrv cluster\n"
    place = ("--listen", f"127.0.0.1:{base}", "--data-dir", str(tmp_path / "data"))
    with running_command("cluster", *place, stderr=tmp_path / "cluster.err") as running:
        running.wait_line("namesrvAddr")
        pids = {line.split()[0]: line.split()[3] for line in running.lines if re.match(r"n\d ", line)}
        script = here(broker).replace('sh "$ROCKETMQ_HOME/bin/mqbroker"', 'exec sh "$ROCKETMQ_HOME/bin/mqbroker"')
        assert "exec" in script, "without it the broker outlives the shell that the test ends"
        lab.processes.append(Process("broker", ["sh", "-ec", script], home, environment))
        registered = str((home / "broker.properties").read_text().split()[0].partition("=")[2])
        wait_for(lambda: registered in run_command("brokers", environment=environment).stdout, "the broker registers")
        assert registered in run(look)
        assert "SEND_OK" in run(messages)
        wait_for(leader, "a leader")
        run(kill.replace("PID", pids[leader()]).partition("\n")[0])
        printed = run(messages)
        assert "SEND_OK" in printed
        assert "MSGID:" in printed
