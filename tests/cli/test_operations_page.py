"""The pages for operators: their commands are understood, and switching modes, backing up and restoring go as they say."""

import contextlib
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicated_namesrv.cli.main import parser_of
from tests.support.nodes import RunningCommand, run_command, running_command
from tests.support.ports import free_port
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / f"{name}.md" for name in ("operations", "members", "recovery", "switching")]
FILES = re.compile(r"(?:deploy|docs)/[\w./-]+")
DEADLINE_S = 60.0


def typed() -> list[str]:
    """Lines of the code blocks, without prompt and comment."""
    blocks = [block for page in PAGES for block in re.findall(r"^```\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)]
    lines = [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [re.sub(r"^(?:n\d)?[$#] ", "", line) for line in lines]


def test_every_command_on_the_pages_is_understood() -> None:
    understood = 0
    for line in typed():
        for part in re.split(r"&&|;\s(?=do|done)|\bdo\b|\buntil\b", line):
            words = shlex.split(part.strip().rstrip(";")) if "namesrv " in part else []
            if "namesrv" in words and words[0] in ("namesrv", "kubectl", "docker"):
                name, *arguments = words[len(words) - words[::-1].index("namesrv") :] if words[0] != "namesrv" else words[1:]
                if words[0] == "kubectl" and "--" not in words:
                    continue
                parser, _ = parser_of(name)
                parser.parse_args(arguments)
                understood += 1
    assert understood >= 20


def test_files_that_the_pages_name_are_there() -> None:
    named = {name.rstrip(".") for line in typed() for name in FILES.findall(line)}
    assert named
    gone = [name for name in named if not (ROOT / name).exists()]
    assert not gone, f"the pages for operators name files that do not exist: {', '.join(sorted(gone))}"


class Deployment:
    """Fixed ports, on which one set of nodes after the other runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.base = free_port(1, 2, 10, 11, 12, 20, 21, 22)
        self.namesrv = ";".join(f"127.0.0.1:{self.base + number}" for number in range(3))
        self.environment = {
            "NAMESRV_ADMIN": ";".join(f"127.0.0.1:{self.base + 10 + number}" for number in range(3)),
            "NAMESRV_ADDR": self.namesrv,
        }

    @contextlib.contextmanager
    def running(self, mode: str, data: str) -> Iterator[None]:
        """Three nodes of a mode."""
        arguments = ("cluster", "--mode", mode, "--listen", f"127.0.0.1:{self.base}", "--data-dir", str(self.folder / data))
        with running_command(*arguments, "--json", stderr=self.folder / f"{data}.err") as cluster:
            cluster.wait_line("namesrvAddr")
            yield
            cluster.process.terminate()
            assert cluster.process.wait(DEADLINE_S) == 0

    def do(self, *arguments: str) -> str:
        """Output of a command that has to succeed."""
        done = run_command(*arguments, environment=self.environment)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    def brokers(self) -> set[str]:
        """Addresses that the first node knows."""
        groups = json.loads(self.do("brokers", "--json"))["brokers"]
        return {address for group in groups for address in group["brokerAddrs"].values()}

    def all_is_well(self) -> None:
        """Wait until ``namesrv status`` reports no problem. On a busy machine this may take long."""
        wait_until(lambda: run_command("status", environment=self.environment).returncode == 0, "a healthy cluster", DEADLINE_S)

    def sees_brokers(self) -> bool:
        """Whether both brokers are registered."""
        with contextlib.suppress(AssertionError):
            return len(self.brokers()) == 2
        return False

    def node(self, number: int) -> tuple[str, str]:
        """Options for one node: its admin port, and its address for clients."""
        return f"127.0.0.1:{self.base + 10 + number}", f"127.0.0.1:{self.base + number}"

    def switch(self, mode: str, *backups: str) -> None:
        """``namesrv switch`` on every node."""
        for number in range(3):
            self.do("switch", "--to", mode, str(self.folder / "data" / f"n{number + 1}"), "--backup", *backups)

    def everywhere(self, keys: dict[str, str | None], settings: dict[str, str]) -> None:
        """Check the settings and the keys of the namespace N at every node. None: the key is absent."""
        for number in range(3):
            _, address = self.node(number)
            table = json.loads(self.do("kv", "list", "N", "-n", address, "--json"))["table"] or {}
            assert {key: table.get(key) for key in keys} == keys, address
            (found,) = json.loads(self.do("config", "get", *settings, "-n", address, "--json"))["nameServers"].values()
            assert found == settings, address


@contextlib.contextmanager
def brokers(deployment: Deployment) -> Iterator[RunningCommand]:
    """Two brokers that register every second with all nodes that listen."""
    arguments = ("broker", "--brokers", "2", "--topics", "2", "-n", deployment.namesrv, "--period-ms", "1000")
    with running_command(*arguments, stderr=deployment.folder / "broker.err") as running:
        yield running


@pytest.mark.slow
def test_modes_are_switched_there_and_back_on_the_same_disks(tmp_path: Path) -> None:
    """AP, CP, AP, CP. Data that was deleted or changed in one mode does not return from the files of the mode before."""
    here = Deployment(tmp_path)
    backups = [str(tmp_path / f"n{number}.backup") for number in (1, 2, 3)]
    with brokers(here):
        with here.running("ap", "data"):
            for key in ("k", "deleted in cp", "deleted in ap"):
                here.do("kv", "put", "N", key, "one")
            here.do("config", "set", "orderMessageEnable=true")
            for number, file in enumerate(backups):
                here.do("backup", file, "-a", here.node(number)[0])
        here.switch("cp", *backups)
        with here.running("cp", "data"):
            here.do("restore", "--merge", backups[0])
            here.all_is_well()
            here.everywhere(
                {"k": "one", "deleted in cp": "one", "deleted in ap": "one"},
                {"orderMessageEnable": "true", "supportActingMaster": "false"},
            )
            wait_until(here.sees_brokers, "the brokers at nodes that agree", DEADLINE_S)
            here.do("kv", "put", "N", "k", "two")
            here.do("kv", "delete", "N", "deleted in cp")
            here.do("config", "set", "orderMessageEnable=false", "supportActingMaster=true")
            here.do("backup", str(tmp_path / "cp.backup"))
        here.switch("ap", str(tmp_path / "cp.backup"))
        with here.running("ap", "data"):
            settings = {"orderMessageEnable": "false", "supportActingMaster": "true"}
            here.everywhere({"k": "two", "deleted in cp": None, "deleted in ap": "one"}, settings)
            wait_until(here.sees_brokers, "the brokers at independent nodes", DEADLINE_S)
            here.do("kv", "delete", "N", "deleted in ap")
            for number, file in enumerate(backups):
                here.do("backup", "--force", file, "-a", here.node(number)[0])
        here.switch("cp", *backups)
        with here.running("cp", "data"):
            here.do("restore", "--merge", backups[0])
            here.all_is_well()
            here.everywhere({"k": "two", "deleted in cp": None, "deleted in ap": None}, settings)
            here.do("backup", str(tmp_path / "whole.backup"))
    with here.running("cp", "lost-and-formed-anew"):
        here.do("restore", str(tmp_path / "whole.backup"))
        here.all_is_well()
        here.everywhere({"k": "two", "deleted in cp": None, "deleted in ap": None}, settings)
