"""The distribution is built with standard tools, inspected, installed into an empty environment and run there."""

import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from replicated_namesrv import __version__
from replicated_namesrv.spark.java import java_home
from tests.packaging.tree import LINKED, ROOT, copy_checkout, tracked_files
from tests.support import provision
from tests.support.places import assert_listed, assert_same_names
from tests.support.ports import free_port
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
NEVER_SHIPPED = ("tests/", "deploy/", "benchmarks/", "typings/", ".ci/")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout: the tracked files, with the links to the top of the repository."""
    source = tmp_path_factory.mktemp("source")
    copy_checkout(source)
    return source


@pytest.fixture(scope="module")
def distributions(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the sdist made from ``source`` and the wheel made from that sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source))
    return folder


def clean(**variables: str) -> dict[str, str]:
    """The environment without variables that could lead to the checkout, and with ``variables``."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "NAMESRV"))}
    return {**inherited, **variables}


def attempt(*command: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, cwd="/", env=clean(**variables), capture_output=True, text=True, check=False)


def run(*command: str, **variables: str) -> str:
    done = attempt(*command, **variables)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of an environment that has the wheel and the base list."""
    (wheel,) = distributions.glob("*.whl")
    home = tmp_path_factory.mktemp("installed") / "venv"
    venv.EnvBuilder(with_pip=True, symlinks=True).create(home)
    pip = (str(home / "bin" / "python"), "-I", "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    lists = ROOT / ".ci" / "requirements"
    hashed = ("--require-hashes", "--no-build-isolation")
    run(*pip, *hashed, "-r", str(lists / "build.txt"))
    run(*pip, *hashed, "-r", str(lists / "base.txt"))
    run(*pip, "--no-index", str(wheel))
    return home / "bin"


def expected_modules() -> set[str]:
    """Every Python file of the product under the name that it has in a distribution."""
    shipped = set()
    for path in tracked_files():
        name = path.as_posix()
        if path.suffix == ".py" and path.parts[0] in LINKED:
            shipped.add("replicated_namesrv/" + name)
        elif path.suffix == ".py" and path.parts[0] == "replicated_namesrv" and path.parts[1] not in LINKED:
            shipped.add(name)
    return shipped


def expected_data() -> set[str]:
    """Every other file of the product, except pages, under the name that it has in a distribution."""
    files = [path for path in tracked_files() if path.suffix not in (".py", ".md") and not (ROOT / path).is_symlink()]
    inside = {path.as_posix() for path in files if path.parts[0] == "replicated_namesrv" and path.parts[1] not in LINKED}
    return inside | {f"replicated_namesrv/{path.as_posix()}" for path in files if path.parts[0] in LINKED}


def test_wheel_holds_the_product_and_nothing_else(distributions: Path) -> None:
    (wheel,) = distributions.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    metadata = {name for name in names if ".dist-info/" in name}
    modules, data = ({name for name in names - metadata if name.endswith(".py") is code} for code in (True, False))
    assert_same_names(modules, "the wheel", expected_modules(), "the modules that git tracks")
    assert any(name.endswith("LICENSE") for name in metadata)
    assert_same_names(data, "the wheel", expected_data(), "the data files that git tracks (package-data of pyproject.toml)")
    assert all(name.startswith("replicated_namesrv/") for name in names - metadata)


def test_the_page_builds_the_same_wheel(source: Path, distributions: Path) -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^\.venv/bin/python (-m pip wheel .*)$", page, re.MULTILINE)
    subprocess.run([sys.executable, *shlex.split(line)], cwd=source, env=clean(), check=True)
    (built,), (wheel,) = (source / "build").glob("*.whl"), distributions.glob("*.whl")
    assert built.name == wheel.name
    names, expected = (zipfile.ZipFile(file).namelist() for file in (built, wheel))
    assert_same_names(names, "the wheel that the page builds", expected, "the tested wheel")


def test_sdist_holds_no_tests_and_no_link(distributions: Path) -> None:
    (sdist,) = distributions.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    names = {member.name.partition("/")[2] for member in members}
    assert not [name for name in names if name.startswith(NEVER_SHIPPED)]
    assert not [member.name for member in members if member.issym() or member.islnk()]
    assert_listed(expected_modules(), "the modules that git tracks", names, "the sdist")


def test_wheel_runs_in_an_empty_environment(installed: Path, tmp_path: Path) -> None:
    namesrv = str(installed / "namesrv")
    assert "cluster" in run(namesrv, "--help")
    assert "usage" in run(str(installed / "mqnamesrv"), "-h").lower()
    answer = run(str(installed / "python"), "-I", "-c", "import importlib.metadata as m; print(m.version('replicated-namesrv'))")
    assert answer.strip() == __version__
    listen = f"127.0.0.1:{free_port(1, 2, 10, 11, 12, 20, 21, 22)}"
    told = json.loads(run(namesrv, "cluster", "--listen", listen, "--data-dir", str(tmp_path / "data"), "--once", "--json"))
    assert (told["mode"], len(told["nodes"])) == ("cp", 3)


def test_serve_answers_without_a_checkout(installed: Path, tmp_path: Path) -> None:
    namesrv, address = str(installed / "namesrv"), f"127.0.0.1:{free_port(10)}"
    command = [namesrv, "serve", "--listen", address, "--data-dir", str(tmp_path / "data")]
    with subprocess.Popen(command, cwd="/", env=clean(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: attempt(namesrv, "topics", "-n", address).returncode == 0, "an answer of the name server")
            run(namesrv, "kv", "put", "N", "key", "value", "-n", address)
            assert run(namesrv, "kv", "get", "N", "key", "-n", address) == "value\n"
        finally:
            process.terminate()
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("command", "extra"),
    [("chaos run no-fault", "chaos"), ("chaos suite smoke", "chaos"), ("demo", "chaos"), ("analyze /", "spark")],
)
def test_a_command_without_its_extra_names_it(installed: Path, command: str, extra: str) -> None:
    done = attempt(str(installed / "namesrv"), *command.split())
    others = [line for line in done.stdout.splitlines() if "still running" not in line]  # a busy machine needs more than 2 s
    assert (done.returncode, others) == (2, [])
    assert f"pip install 'replicated-namesrv[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_chaos_and_analyze_run_without_a_checkout(installed: Path, tmp_path: Path) -> None:
    """The libraries of the extras are those of the test environment: downloading Spark again would take minutes."""
    namesrv, extras = str(installed / "namesrv"), {"PYTHONPATH": sysconfig.get_paths()["purelib"]}
    where = run(str(installed / "python"), "-c", "import replicated_namesrv.chaos as c; print(c.__file__)", **extras)
    assert Path(where.strip()).is_relative_to(installed.parent)
    assert "isolate-leader" in run(namesrv, "chaos", "list", **extras)
    toxiproxy = {"TOXIPROXY_SERVER": str(provision.toxiproxy_server())}
    arguments = ("no-fault", "--mode", "ap", "--duration-s", "3", "--out", str(tmp_path))
    done = attempt(namesrv, "chaos", "run", *arguments, **extras, **toxiproxy)
    assert done.returncode in (0, 2), done.stderr  # 2: the machine was too busy
    latest = tmp_path / "latest"
    assert {"timeline.html", "verdict.json"} <= {path.name for path in latest.iterdir()}, done.stderr
    java = java_home(tmp_path / "java")
    run(namesrv, "analyze", str(latest), "--out", str(tmp_path / "analysis"), **extras, JAVA_HOME=str(java))
    assert (tmp_path / "analysis" / "report" / "index.html").stat().st_size > 10_000


def test_the_script_for_ci_runs_from_a_clean_home(distributions: Path, tmp_path: Path) -> None:
    """A job on a new runner installs the wheel with its dependencies, runs a scenario, and writes the summary."""
    (wheel,) = distributions.glob("*.whl")
    home, out = tmp_path / "home", tmp_path / "out"
    home.mkdir()
    variables = {"HOME": str(home), "XDG_CACHE_HOME": "", "CHAOS_PACKAGE": str(wheel), "CHAOS_OUT": str(out)}
    variables["TOXIPROXY_SERVER"] = str(provision.toxiproxy_server())
    script = str(ROOT / "deploy" / "ci" / "chaos.sh")
    done = attempt(script, "run", "no-fault", "--mode", "ap", "--duration-s", "3", **variables)
    assert done.returncode in (0, 2), done.stderr  # 2: the machine was too busy
    (timeline,) = out.glob("single/*/timeline.html")
    summary = (out / "summary.md").read_text()
    assert "| no-fault | AP |" in summary
    assert "```mermaid\ngantt" in summary
    assert timeline.stat().st_size > 1_000
    refused = attempt(script, **{**variables, "CHAOS_PACKAGE": ""})
    assert (refused.returncode, "CHAOS_PACKAGE is not set" in refused.stderr) == (2, True)
