"""The pages for operators, typed line by line on machines: network namespaces at 10.0.0.1 to 10.0.0.6.

The nodes run the shipped unit's command with the shipped properties. ``systemctl`` is ``tests.support.unit_manager``, and the
folders /etc/namesrv, /etc/systemd and /var/lib/private are folders of the test. Needs root.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicated_namesrv import __version__
from tests.interop.lab import Lab
from tests.packaging.tree import ROOT, copy_checkout
from tests.support import provision
from tests.support.nodes import clean_environment
from tests.support.waiting import wait_until

PAGES = tuple(f"docs/{name}.md" for name in ("operations", "members", "recovery", "switching"))
TEXT = "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
NAMES = ("n1", "n2", "n3")
ADDED = ("n4", "n6")
"""Machines that the section about members adds."""
DEADLINE_S = 240.0
OLDER_VERSION = "0.1.99"
NONE = "^$"
TYPED = {
    "Cluster size and settings": "namesrv cluster",
    "systemd": r"mkdir|venv|pip|scp",  # typed before an upgrade
    "Check the state": NONE,
    "Watch changes": NONE,
    "Restart": NONE,
    "Upgrade": NONE,
    "Change settings": r"10\.1\.0\.1",  # another cluster
    "Back up": NONE,
    "Restore": NONE,
    "A disk is lost": NONE,
    "A majority fails": NONE,
    "One disk becomes a new cluster": NONE,
    "Switch running nodes": NONE,
    "Switch stopped nodes": NONE,
    "Adopt RocketMQ's name servers": NONE,
    "Change the number of nodes": NONE,
}
"""Sections whose lines are typed, each with the lines that are left out."""
SERVERS = "10.0.0.1:9876;10.0.0.2:9876;10.0.0.3:9876"
SWAP = """\
#!/bin/bash
name=n${{1##*.}}
pid=$(cat {folder}/$name/java.pid)
kill $pid
while kill -0 $pid 2>/dev/null && ! grep -q ' Z ' /proc/$pid/stat; do sleep 0.1; done
. {folder}/$name/profile
exec ip netns exec {prefix}$name systemctl start namesrv
"""
"""The script swap.sh of the page: stops RocketMQ's name server on host ``$1``, and starts ours."""


SSH = """\
#!/bin/bash
name=n${{1##*.}}
script=$(printf %s "$2" | sed 's#/etc/namesrv#{folder}/'$name'/etc#g; s#/var/lib/private#{folder}/'$name'/lib#g')
script=$(printf %s "$script" | sed 's#/opt/namesrv#{folder}/'$name'/opt#g')
cd {folder}/$name
exec ip netns exec {prefix}$name env -i PATH={folder}/$name/unit:/usr/local/bin:/usr/bin:/bin bash -c "$script"
"""
SCP = """\
#!/bin/bash
host=${{@: -1}} name=${{@: -1}}
host=${{host%:}} name=n${{host##*.}}
cp "${{@:2:$#-2}}" {folder}/$name/
"""
"""ssh and scp to another machine. ssh runs a command in no login shell, so PATH is the one of sshd: it has systemctl, but not
what /etc/profile.d adds."""


def blocks(heading: str) -> list[str]:
    """The lines of the code blocks in a section."""
    sections = re.split(r"^#+ (.*)$", TEXT, flags=re.MULTILINE)
    section = sections[sections.index(heading) + 1]
    return [line for block in re.findall(r"^```\n(.*?)^```", section, re.MULTILINE | re.DOTALL) for line in block.splitlines()]


class Machines:
    """Three namespaces, joined by a bridge that has no address."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.prefix = f"op{os.getpid() % 100_000}"
        exports = [line for line in blocks("Cluster size and settings") if line.startswith("export ")]
        self.without_a_node = [line for line in exports if "NAMESRV_ADMIN=" in line]
        self.exports = [line for line in exports if line not in self.without_a_node]
        self.typed: list[tuple[str, str]] = []
        self.packages: Path | None = None
        """Folder with what pip installs in /opt/namesrv. None: nothing is installed, and nodes run the code of the checkout."""

    def create(self) -> None:
        """Raises CalledProcessError where namespaces are not permitted."""
        self._ip("link", "add", f"{self.prefix}br", "type", "bridge")
        self._ip("link", "set", f"{self.prefix}br", "up")
        for name in (*NAMES, *ADDED):
            space, outer, inner = self.prefix + name, f"{self.prefix}{name}", "eth0"
            self._ip("netns", "add", space)
            self._ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", space)
            self._ip("link", "set", outer, "master", f"{self.prefix}br", "up")
            self._ip("-n", space, "addr", "add", f"10.0.0.{name[1:]}/24", "dev", inner)
            self._ip("-n", space, "link", "set", inner, "up")
            self._ip("-n", space, "link", "set", "lo", "up")
            for part in ("etc", "bin", "run", "lib", "units"):
                (self.folder / name / part).mkdir(parents=True)
            self._program(name, "namesrv", f'exec {sys.executable} -m replicated_namesrv "$@"')
            self._program(name, "systemctl", f'exec {sys.executable} -m tests.support.unit_manager "$@"')

    def remove(self) -> None:
        """Kill the nodes, and delete the namespaces."""
        for name in (*NAMES, *ADDED):
            listed = subprocess.run(["ip", "netns", "pids", self.prefix + name], check=False, capture_output=True, text=True)
            for pid in listed.stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            # Deleting a namespace does not wait for its links, and the next test uses the same names.
            for kind in ("link", "netns"):
                subprocess.run(["ip", kind, "del", self.prefix + name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", f"{self.prefix}br"], check=False, capture_output=True)

    def _ip(self, *arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)

    def _program(self, name: str, program: str, line: str) -> None:
        file = self.folder / name / "bin" / program
        file.write_text(f"#!/bin/sh\ncd {ROOT}\n{line}\n" if program == "systemctl" else f"#!/bin/sh\n{line}\n")
        file.chmod(0o755)

    def inside(self, name: str) -> tuple[str, ...]:
        """The beginning of a command that runs on a machine."""
        return ("ip", "netns", "exec", self.prefix + name)

    def environment(self, name: str) -> dict[str, str]:
        """Variables of a machine: its programs, and the folders of its unit."""
        own = self.folder / name
        pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.packages)}
        installed = {**pip, "PYTHONPATH": "", "NAMESRV": str(own / "opt" / "bin" / "namesrv")}
        return {
            "PATH": f"{own / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "UNIT": str(own / "units" / "namesrv.service"),
            "STATE_DIRECTORY": str(own / "lib" / "namesrv"),
            "CREDENTIALS_DIRECTORY": str(own / "run" / "credentials"),
            "RUN": str(own / "run"),
            "ETC": str(own / "etc"),
            "NAMESRV": str(own / "bin" / "namesrv"),
            **({} if self.packages is None else installed),
        }

    def run(self, name: str, line: str, where: Path | None = None) -> str:
        """The output of a line that is typed on a machine, in the folder ``where``. AssertionError unless it succeeds."""
        own = self.folder / name
        script = "\n".join((*self.exports, line))
        places = (("/etc/namesrv", "etc"), ("/etc/systemd/system", "units"), ("/var/lib/private", "lib"), ("/opt/namesrv", "opt"))
        for path, place in places:
            script = script.replace(path, str(own / place))
        script = script.replace("deploy/systemd", str(ROOT / "deploy" / "systemd"))
        done = subprocess.run(
            [*self.inside(name), "bash", "-c", script],
            env=clean_environment(**self.environment(name)),
            cwd=where or own,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        log = own / "run" / "log"
        seen = log.read_text(errors="replace")[-2000:] if done.returncode and log.exists() else ""
        assert done.returncode == 0, f"{name}: {line}\nexit code {done.returncode}\n{done.stdout}{done.stderr}\n{seen}"
        self.typed.append((name, line))
        return done.stdout

    def type(self, line: str) -> str:
        """Type a line as it is on the page. The prompt names the machine, or a comment says that it is typed on every node."""
        prompt, text = re.match(r"(?:(n\d)?[#$] )?(.*)", line).groups()  # type: ignore[union-attr]  # matches everything
        where = NAMES if "# on every node" in text else (prompt or "n1",)
        return "".join(self.run(name, text) for name in where)

    def section(self, heading: str, later: str = NONE) -> None:
        """Type what ``TYPED`` names of a section, without the lines that are typed later."""
        lines = [line for line in blocks(heading) if not re.search(f"{TYPED[heading]}|{later}", line)]
        assert lines, heading
        for line in lines:
            self.type(line)

    def install(self, *names: str) -> None:
        """Type on each machine the lines that copy the shipped files."""
        for line in blocks("systemd"):
            if "install -m" in line:
                for name in names:
                    self.run(name, line.removeprefix("n1# "))

    def copy(self, file: str, source: str, *names: str) -> None:
        """``scp``: copy a file from one machine to others."""
        for name in names:
            if name != source:
                shutil.copy(self.folder / source / file, self.folder / name / file)

    def copy_secrets(self, *names: str) -> None:
        """Copy what n1 has made to other machines."""
        for secret in ("peer-secret", "admin-token"):
            self.copy(f"etc/{secret}", "n1", *names)

    def configure(self, later: str = NONE) -> None:
        """Type the section about systemd, without the lines that are typed later."""
        self.install(*NAMES)
        for line in blocks("systemd"):
            if "scp" in line:
                self.copy_secrets(*NAMES)
            elif not re.search(f"{TYPED['systemd']}|install -m|{later}", line):
                self.type(line)

    def start(self) -> None:
        """Type the section about systemd, and wait until the nodes serve."""
        self.configure()
        self.well()

    def write_profile(self, name: str) -> None:
        """Write the variables of a machine to a file. Scripts that reach the machine use them, as in a login shell."""
        exports = (f"export {variable}={shlex.quote(value)}" for variable, value in self.environment(name).items())
        (self.folder / name / "profile").write_text("\n".join(exports))

    def allow_ssh(self, name: str) -> None:
        """Create what a command over ssh finds: systemctl in its PATH, and the programs of /opt/namesrv by their full name."""
        own = self.folder / name
        self.write_profile(name)
        for file in (own / "unit" / "systemctl", own / "opt" / "bin" / "namesrv"):
            file.parent.mkdir(parents=True)
            file.write_text(f'#!/bin/sh\n. {own / "profile"}\nexec {own / "bin" / file.name} "$@"\n')
            file.chmod(0o755)

    def use_installed(self, name: str) -> None:
        """Let ``namesrv`` on a machine be the one in /opt/namesrv, which is installed with the Python of the tests."""
        program = self.folder / name / "bin" / "namesrv"
        program.unlink()
        program.symlink_to(self.folder / name / "opt" / "bin" / "namesrv")
        self._program(name, "python3", f'exec {sys.executable} "$@"')

    def versions(self) -> dict[str, str]:
        """The version of each node, as ``namesrv status`` shows it."""
        nodes = json.loads(self.run("n1", "namesrv status --json"))["nodes"]
        return {node["nodeId"]: node["version"] for node in nodes}

    def well(self) -> None:
        """Wait until ``namesrv status`` exits with 0 on n1."""

        def is_well() -> bool:
            with contextlib.suppress(AssertionError):
                return bool(self.run("n1", "namesrv status"))
            return False

        wait_until(is_well, "a healthy cluster", DEADLINE_S)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and iproute2: the page is typed in network namespaces")
    found = Machines(tmp_path)
    try:
        try:
            found.create()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces are not permitted here: {error.stderr.strip()}")
        yield found
    finally:
        found.remove()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_page_of_operations_works_as_typed(machines: Machines) -> None:
    machines.start()
    machines.section("Check the state")
    for name in ("n2", "n3"):
        machines.run(name, "systemctl restart namesrv")
        assert "exit code 0" in (machines.folder / name / "run" / "stops").read_text(), "the node was not drained"
        machines.well()
    for line in blocks("Restart"):  # with 'until namesrv status', and a leader transfer from a machine that does not lead
        machines.type(line)
        if line.startswith("n1# namesrv drain"):
            machines.run("n1", "namesrv drain --undo")
            machines.well()
    machines.well()
    machines.run("n2", "\n".join([*machines.without_a_node, "namesrv status"]))
    for target in ("n3", "n1", "n2"):
        machines.run("n1", f"namesrv leader transfer {target}")
        assert machines.run("n1", "namesrv leader").startswith(f"{target},")
        machines.well()
    machines.section("Change settings")
    assert "true" in machines.run("n3", "namesrv config get orderMessageEnable")
    machines.run("n2", "systemctl reload namesrv")
    machines.run("n1", "namesrv kv put ORDER_TOPIC_CONFIG orders broker-0:4")
    changes_are_watched(machines)
    machines.section("Back up")
    machines.run("n1", "cp namesrv-*.backup namesrv.backup")

    machines.section("Restore", later="--merge")
    machines.well()
    assert machines.run("n3", "namesrv kv get ORDER_TOPIC_CONFIG orders") == "broker-0:4\n"
    machines.run("n1", "namesrv restore --merge namesrv.backup")
    assert len(machines.typed) > 60


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_page_of_operations_works_as_typed_after_losses_and_changes(machines: Machines) -> None:
    machines.start()
    machines.run("n1", "namesrv kv put ORDER_TOPIC_CONFIG orders broker-0:4")
    for line in blocks("A disk is lost"):
        if line.startswith("n2#") and "start namesrv" in line:
            machines.run("n2", "systemctl stop namesrv")
        if "status" not in line:
            machines.type(line)
        machines.well()
    a_majority_fails(machines)
    switched_there_and_back(machines)
    assert machines.run("n3", "namesrv kv get ORDER_TOPIC_CONFIG orders") == "broker-0:4\n"
    members_change(machines)
    assert machines.run("n6", "namesrv kv get ORDER_TOPIC_CONFIG orders -n 10.0.0.6:9876") == "broker-0:4\n"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_running_nodes_are_switched_as_typed(machines: Machines) -> None:
    machines.start()
    machines.run("n1", "namesrv kv put ORDER_TOPIC_CONFIG orders broker-0:4")
    for name in NAMES:
        machines.allow_ssh(name)
    for program, text in (("ssh", SSH), ("scp", SCP)):
        file = machines.folder / "n1" / "bin" / program
        file.write_text(text.format(folder=machines.folder, prefix=machines.prefix))
        file.chmod(0o755)
    to_cp, replace_peers, to_ap = blocks("Switch running nodes")
    for line, mode in ((to_ap, "cp -> ap"), (to_cp, "ap -> cp")):
        told = machines.type(line)
        assert re.findall(rf"^10\.0\.0\.(\d):9876: {mode} in .*", told, re.MULTILINE) == ["1", "2", "3"], told
        on_each(machines, "namesrv kv get ORDER_TOPIC_CONFIG orders", r"^broker-0:4$")
    machines.type(replace_peers)
    machines.run("n1", "systemctl restart namesrv")
    machines.well()
    assert len(re.findall(r"^n\d ", machines.run("n2", "namesrv members list"), re.MULTILINE)) == len(NAMES)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_disk_becomes_a_new_cluster_as_typed(machines: Machines) -> None:
    machines.start()
    machines.run("n1", "namesrv kv put ORDER_TOPIC_CONFIG orders broker-0:4")
    for name in ("n1", "n2"):
        machines.run(name, "systemctl stop namesrv")
    for line in blocks("One disk becomes a new cluster"):
        machines.type(line)
    listed = machines.run("n3", "namesrv members list")
    assert re.findall(r"^(n\d) ", listed, re.MULTILINE) == ["n1", "n3"]
    read = "namesrv kv get ORDER_TOPIC_CONFIG orders -n 10.0.0.1:9876 || true"
    wait_until(lambda: machines.run("n1", read) == "broker-0:4\n", "the entry at the added node", DEADLINE_S)


def older_and_this(folder: Path) -> tuple[Path, Path]:
    """Checkouts of an older version, which has the code of this one, and of this version."""
    older, this = folder / "older", folder / "this"
    for checkout in (older, this):
        checkout.mkdir()
        copy_checkout(checkout)
    module = older / "replicated_namesrv" / "__init__.py"
    module.write_text(module.read_text().replace(__version__, OLDER_VERSION))
    return older, this


def download(packages: Path) -> None:
    """Download what pip installs, because the machines have no network."""
    lists = [word for name in ("build", "base") for word in ("-r", str(ROOT / ".ci" / "requirements" / f"{name}.txt"))]
    options = ("--quiet", "--disable-pip-version-check", "--no-build-isolation", "--no-deps", "--require-hashes")
    command = [sys.executable, "-m", "pip", "download", *options, *lists, "--dest", str(packages)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_upgrade_works_as_typed(machines: Machines, tmp_path: Path) -> None:
    older, this = older_and_this(tmp_path)
    machines.packages = tmp_path / "packages"
    download(machines.packages)
    installation = [line.removeprefix("n1# ") for line in blocks("systemd") if re.search(r"mkdir|venv|pip", line)]
    assert len(installation) == 5
    for name in NAMES:
        machines.use_installed(name)
        for line in installation:
            machines.run(name, line, older)
    machines.start()
    machines.run("n1", "namesrv kv put ORDER_TOPIC_CONFIG orders broker-0:4")
    assert machines.versions() == dict.fromkeys(NAMES, OLDER_VERSION)
    machines.section("Back up")
    for number, name in enumerate(NAMES, 1):
        for line in blocks("Upgrade"):
            machines.run(name, line.removeprefix("n1# ").removeprefix("n1$ "), this)
        machines.well()
        expected = {one: __version__ if one in NAMES[:number] else OLDER_VERSION for one in NAMES}
        assert machines.versions() == expected
        assert machines.run(name, "namesrv kv get ORDER_TOPIC_CONFIG orders") == "broker-0:4\n"


@contextlib.contextmanager
def rocketmqs_name_servers(machines: Machines) -> Iterator[None]:
    """RocketMQ's own name server on each machine."""
    version = provision.ROCKETMQ_VERSIONS[0]
    jars = provision.require_rocketmq_jars(version)
    lab = Lab(machines.folder / "lab", str(provision.java()), {version: jars}, {version: jars})
    with contextlib.ExitStack() as running:
        for name in NAMES:
            home = machines.folder / name / "java"
            command = [*machines.inside(name), *lab.java_namesrv_command(version, home, 9876)]
            process = running.enter_context(process_of(command, home / "log", {**os.environ, "ROCKETMQ_HOME": str(home)}))
            (machines.folder / name / "java.pid").write_text(str(process.pid))
        yield


@contextlib.contextmanager
def process_of(command: list[str], log: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process, which is killed at the end."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def on_each(machines: Machines, line: str, wanted: str) -> None:
    """Type a line on n1 for the server of each machine until its output ends with ``wanted``."""
    for name in NAMES:
        text = f"({line} -n 10.0.0.{name[1:]}:9876) || true"
        wait_until(lambda text=text: re.search(wanted, machines.run("n1", text)), f"{wanted} of {text}", DEADLINE_S)  # type: ignore[misc]  # a default of a lambda


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_rocketmqs_name_servers_are_adopted_as_typed(machines: Machines) -> None:
    with rocketmqs_name_servers(machines):
        machines.configure(later="systemctl")  # the page: "On each machine, install a node. Do not start it."
        on_each(machines, "namesrv kv put ORDER_TOPIC_CONFIG orders broker-0:4", r"9876 +done\b")
        compare, *walk = blocks("Adopt RocketMQ's name servers")
        machines.type(compare)
        for name in NAMES:
            machines.run(name, "sed -i 's/^mode=.*/mode=ap/' /etc/namesrv/namesrv.properties")
            # The default of the second setting, 45 s, is longer than the period of real brokers, 30 s.
            own = "needWaitForService=true\\nwaitSecondsForService=5\\n"
            machines.run(name, f"printf '{own}' >> /etc/namesrv/namesrv.properties")
            shutil.copytree(machines.folder / "n1" / "start", machines.folder / name / "lib" / "namesrv")
            machines.write_profile(name)
        swap = machines.folder / "n1" / "swap.sh"
        swap.write_text(SWAP.format(folder=machines.folder, prefix=machines.prefix))
        swap.chmod(0o755)
        broker = [
            sys.executable,
            "-m",
            "replicated_namesrv",
            "broker",
            "-n",
            SERVERS,
            "--host",
            "10.0.0.1",
            "--period-ms",
            "2000",
        ]
        environment = clean_environment(PYTHONPATH=str(ROOT))
        with process_of([*machines.inside("n1"), *broker], machines.folder / "broker.log", environment):
            on_each(machines, "namesrv brokers", r"broker-0")
            for line in walk:
                told = machines.type(line)
                swapped = re.findall(r"^10\.0\.0\.(\d):9876: rocketmq -> ours in .* all answers are equal$", told, re.MULTILINE)
                assert swapped == ["1", "2", "3"], told
            on_each(machines, "namesrv route topic-0", r"broker-0")
        on_each(machines, "namesrv kv get ORDER_TOPIC_CONFIG orders", r"^broker-0:4$")
    assert "independent nodes" in machines.run("n1", "namesrv status")


def changes_are_watched(machines: Machines) -> None:
    """Type each command of the section for some seconds, because it never ends. ``1200``: a revision that this cluster has."""
    nodes = json.loads(machines.run("n1", "namesrv status --json"))["nodes"]
    revision = max(node["revision"] for node in nodes)
    change = "namesrv kv put ORDER_TOPIC_CONFIG watched broker-0:4"
    for line in blocks("Watch changes"):
        command = line.partition("#")[0].strip().replace("1200", str(revision))
        machines.type(f"(sleep 2; {change}) & timeout 10 {command} > seen; test $? = 124; wait; grep -q watched seen")


def a_majority_fails(machines: Machines) -> None:
    """Type the section on the machine that is left, and start the others again."""
    for name in ("n1", "n2"):
        machines.run(name, "systemctl stop namesrv")
    asked, *others = blocks("A majority fails")
    shown = [line for line in others if line.startswith("[")]
    wait_until(lambda: all(line in machines.run("n3", f"{asked[4:]} || true") for line in shown), "the answer of the page")
    for line in others:
        if line.startswith("n3#"):
            machines.type(line)
            if "--stale" in line:
                machines.run("n3", "mv survivor.backup running.backup")
    for file in ("running", "survivor"):
        assert "is whole" in machines.run("n3", f"namesrv backup --check {file}.backup")
    for name in NAMES:
        machines.run(name, "systemctl start --no-block namesrv")
    machines.well()


def switched_there_and_back(machines: Machines) -> None:
    """CP, AP, CP, as the page shows it. Files are copied where the page says so."""
    lines = blocks("Switch stopped nodes")
    begin = next(number for number, line in enumerate(lines) if "backup namesrv.backup" in line)
    for line in lines[begin:]:
        machines.type(line)
        if "backup namesrv.backup" in line:
            machines.copy("namesrv.backup", "n1", *NAMES)
    machines.well()
    assert "independent" in machines.run("n1", "namesrv status")
    for line in lines[:begin]:
        machines.type(line)
        if match := re.search(r"(n\d)\$ namesrv backup (\S+)", line):
            machines.copy(match[2], match[1], *NAMES)
    machines.well()


def members_change(machines: Machines) -> None:
    """Add n4, remove n2, replace n3, which is dead, by n6, move n4, and add n2 again, as an observer that is promoted."""
    machines.install(*ADDED)
    machines.copy_secrets(*ADDED)
    for line in blocks("Change the number of nodes"):
        if "replace n3" in line:
            machines.run("n3", "systemctl stop namesrv")
        machines.type(line)
    listed = machines.run("n1", "namesrv members list")
    assert re.findall(r"^(n\d) +(?:voter|leader)", listed, re.MULTILINE) == ["n1", "n2", "n4", "n6"], listed
    assert re.search(r"^n4 .*10\.0\.0\.4:9897", listed, re.MULTILINE), listed
    script = "import urllib.request as r; print(r.urlopen('http://10.0.0.1:9886/rocketmq/nsaddr').read().decode())"
    line = f"{sys.executable} -c {shlex.quote(script)}"
    wanted = {f"10.0.0.{name[1:]}:9876" for name in ("n1", "n2", "n4", "n6")}
    wait_until(lambda: set(machines.run("n1", line).strip().split(";")) == wanted, "the addresses of the members", DEADLINE_S)
