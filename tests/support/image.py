"""The image of deploy/docker/Dockerfile without a container engine: a stage is a folder, which chroot makes the root.

The base image is this machine: /usr, /etc and the Python of the tests, mounted read-only. Each command runs in namespaces of its
own (unshare), so the mounts end with it. Needs root.
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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import Template

from tests.packaging.tree import LINKED, ROOT, tracked_files

FOLDER = ROOT / "deploy" / "docker"
BUILD_LIMIT_S = 600.0
COMMAND_LIMIT_S = 60.0
STOP_LIMIT_S = 60.0
PYTHON = "/base/bin/python"
DEVICES = ("null", "zero", "random", "urandom")
_NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
_DESCRIPTION = ("LABEL", "EXPOSE", "STOPSIGNAL")
"""Instructions that only describe the image."""


def is_permitted() -> bool:
    """Whether this process may make the namespaces and change the root."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "nsenter", "setpriv", "chroot", "ip"))):
        return False
    tried = subprocess.run([*_NAMESPACES, "--net", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False)
    return tried.returncode == 0


def _of_machine() -> list[str]:
    """Paths that a stage has from this machine: programs, the Python of the tests, and what pip and the resolver read."""
    found = {"/usr", "/etc", sys.base_prefix, os.path.realpath("/etc/resolv.conf")}
    found |= {
        value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "REQUESTS_")) and os.path.exists(value)
    }
    return [path for path in sorted(found) if path == os.path.normpath(path) and not path.startswith(("/usr/", "/etc/"))]


@dataclass
class Stage:
    """A stage of the file; the last one is the image."""

    root: Path
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": "/base/bin:/usr/local/bin:/usr/bin:/bin", "HOME": "/"})
    folder: str = "/"
    user: str = "0:0"
    volumes: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)
    entry: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)

    def inside(self, path: str) -> Path:
        """A path of the stage, seen from outside."""
        return self.root / path.lstrip("/")

    def start(self, command: list[str], *, log: Path, network: bool, writable: Path | None = None) -> "subprocess.Popen[bytes]":
        """Start a command as the stage's user. ``network``: that of this machine, otherwise only a loopback interface.
        ``writable``: the folder that is mounted at each volume; then everything else is read-only."""
        root = shlex.quote(str(self.root))
        lines = ["set -e", f"mount --rbind {root} {root}", f"cd {root}"]
        for path in _of_machine():
            lines += [f"mount --rbind {path} .{path}", f"mount -o remount,bind,ro .{path}"]
        lines += ["mount -t proc proc ./proc", *(f"mount --bind /dev/{name} ./dev/{name}" for name in DEVICES)]
        if writable is not None:
            lines += [f"mount --bind {shlex.quote(str(writable))} .{volume}" for volume in self.volumes]
            lines.append(f"mount -o remount,bind,ro {root}")
        if not network:
            lines.append("ip link set lo up")
        words = ["setpriv", "--no-new-privs", "chroot", f"--userspec={self.user}", "--groups=", str(self.root)]
        words += [
            "env",
            "-i",
            f"--chdir={self.folder}",
            *(f"{name}={value}" for name, value in self.environment.items()),
            *command,
        ]
        lines.append(f"exec {shlex.join(words)}")
        own = [] if network else ["--net"]
        with log.open("ab") as output:
            return subprocess.Popen([*_NAMESPACES, *own, "sh", "-c", "\n".join(lines)], stdout=output, stderr=output)

    def run(self, line: str, log: Path) -> None:
        """``RUN``: a shell command with this machine's network. AssertionError if it fails."""
        passed = {
            n: v for n, v in os.environ.items() if n.startswith(("PIP_", "SSL_", "REQUESTS_")) or n.lower().endswith("_proxy")
        }
        stage = replace(self, environment={**passed, **self.environment})
        with stage.start(["sh", "-ec", line], log=log, network=True) as process:
            try:
                status = process.wait(BUILD_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        assert status == 0, f"RUN {line}\nexit code {status}\n{log.read_text(errors='replace')[-3000:]}"


def base(root: Path) -> Stage:
    """A new stage from the base image."""
    stage = Stage(root)
    for path in (*_of_machine(), "/proc", "/dev", "/base/bin", "/tmp"):
        place = stage.inside(path)
        if os.path.isfile(path):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        else:
            place.mkdir(parents=True, exist_ok=True)
    for name in DEVICES:
        stage.inside(f"/dev/{name}").touch()
    for link in ("/bin", "/sbin", "/lib", "/lib64"):
        if os.path.islink(link):
            stage.inside(link).symlink_to(os.readlink(link))
    stage.inside(PYTHON).symlink_to(os.path.realpath(sys.executable))
    stage.inside("/tmp").chmod(0o1777)
    return stage


def instructions() -> Iterator[tuple[str, str]]:
    """(instruction, rest) of the Dockerfile."""
    text = re.sub(r"^#.*\n", "", (FOLDER / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    for line in re.sub(r"\s*\\\n\s*", " ", text).splitlines():
        if line.strip():
            word, _, rest = line.partition(" ")
            yield word, rest.strip()


def context() -> list[Path]:
    """The files that Dockerfile.dockerignore sends to the build."""
    first, *rest = (FOLDER / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert first == "**", "everything is ignored, except what the next lines name"
    named = [Path(line[1:]) for line in rest if line.startswith("!")]
    return [path for path in tracked_files() if any(path.is_relative_to(name) for name in named)]


def _copy(stage: Stage, words: list[str], stages: Mapping[str, Stage], source: Path) -> None:
    """``COPY``: a folder's content, or files."""
    if words[0].startswith("--from="):
        source = stages[words.pop(0).removeprefix("--from=")].root
    *names, target = words
    to = stage.inside(os.path.normpath(os.path.join(stage.folder, target)))
    to.mkdir(parents=True, exist_ok=True)
    for name in names:
        found = source / name.lstrip("/")
        if found.is_dir():
            shutil.copytree(found, to, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy2(found, to)


def build(folder: Path) -> Stage:
    """Do what the Dockerfile says. Returns the last stage."""
    source, log = folder / "context", folder / "build.log"
    for path in context():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, source / path)
    for name in LINKED:
        (source / "replicated_namesrv" / name).symlink_to(f"../{name}")
    stages: dict[str, Stage] = {}
    stage: Stage | None = None
    for word, rest in instructions():
        if word == "ARG":
            continue  # the name of the base image
        if word == "FROM":
            image, _, name = rest.partition(" AS ")
            assert image == "${BASE_IMAGE}"
            stage = stages[name] = base(folder / f"stage-{len(stages)}")
            continue
        assert stage is not None
        if word == "WORKDIR":
            stage.folder = rest
            stage.inside(rest).mkdir(parents=True, exist_ok=True)
        elif word == "COPY":
            _copy(stage, rest.split(), stages, source)
        elif word == "RUN":
            stage.run(rest, log)
        elif word == "ENV":
            for pair in shlex.split(rest):
                name, _, value = pair.partition("=")
                stage.environment[name] = Template(value).substitute(stage.environment)
        elif word == "USER":
            stage.user = rest
        elif word == "VOLUME":
            stage.volumes = json.loads(rest)
        elif word == "HEALTHCHECK":
            stage.health = json.loads(rest.partition("CMD ")[2])
        elif word == "ENTRYPOINT":
            stage.entry = json.loads(rest)
        elif word == "CMD":
            stage.arguments = json.loads(rest)
        else:
            assert word in _DESCRIPTION, f"{word}: tests/support/image.py does not know this instruction"
    assert stage is not None
    return stage


class Container:
    """A started image: read-only root, a volume, an empty network, no privileges."""

    def __init__(self, image: Stage, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.image, self.process, self.log = image, process, log

    @property
    def inner(self) -> int:
        """The id of the container's first process. Raises ProcessLookupError if it does not run."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        if not children:
            raise ProcessLookupError("the first process of the container does not run")
        return int(children[0])

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """``docker exec``."""
        user, group = self.image.user.split(":")
        enter = ["nsenter", f"--target={self.inner}", "--mount", "--net", "--pid", "--root", "--wd", "-S", user, "-G", group]
        words = [*enter, "env", "-i", *(f"{name}={value}" for name, value in self.image.environment.items()), *command]
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=COMMAND_LIMIT_S)

    def is_healthy(self) -> bool:
        """Whether ``HEALTHCHECK`` passes. AssertionError if the container has ended."""
        assert self.process.poll() is None, f"the container ended: {self.log.read_text(errors='replace')[-3000:]}"
        return self.run(*self.image.health).returncode == 0

    def stop(self) -> int:
        """``docker stop``: the exit code after SIGTERM."""
        os.kill(self.inner, signal.SIGTERM)
        return self.process.wait(STOP_LIMIT_S)


@contextlib.contextmanager
def container(image: Stage, volume: Path, log: Path, *arguments: str, **variables: str) -> Iterator[Container]:
    """``docker run --read-only``: start the image with a volume. ``arguments`` replace ``CMD``."""
    user, group = map(int, image.user.split(":"))
    volume.mkdir(exist_ok=True)
    os.chown(volume, user, group)
    started = replace(image, environment={**image.environment, **variables})
    process = started.start([*image.entry, *(arguments or image.arguments)], log=log, network=False, writable=volume)
    try:
        yield Container(started, process, log)
    finally:
        process.kill()
        process.wait()
