"""``./namesrv`` in its own checkout: sets up once, prints what it does, repairs, and never uses an incomplete set-up."""

import importlib.machinery
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib.metadata import packages_distributions
from pathlib import Path
from types import ModuleType

import pytest
from packaging.utils import canonicalize_name

from replicated_namesrv import provision
from tests.packaging.tree import LINKED, ROOT
from tests.support.places import assert_same_names

SYSTEM_PYTHON = os.path.realpath(sys.executable)
CARRIED = ["namesrv", "pyproject.toml", "LICENSE", "replicated_namesrv", *LINKED]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, without .venv, whose base list is one small package so that a set-up takes seconds."""
    folder = tmp_path_factory.mktemp("user") / "checkout"
    folder.mkdir()
    for name in CARRIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, folder / name)
    shutil.copytree(ROOT / ".ci" / "requirements", folder / ".ci" / "requirements")
    write_list(folder, "prometheus-client")
    return folder


def write_list(checkout: Path, *packages: str) -> None:
    """Reduce the base list to these packages, with the pins and hashes of the real list."""
    text = (ROOT / ".ci" / "requirements" / "base.txt").read_text(encoding="utf-8")
    blocks = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)
    chosen = [block for block in blocks if block.split("==")[0] in packages]
    assert len(chosen) == len(packages)
    (checkout / ".ci" / "requirements" / "base.txt").write_text("".join(chosen), encoding="utf-8")


def start(checkout: Path, *arguments: str) -> "subprocess.Popen[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    command = [SYSTEM_PYTHON, str(checkout / "namesrv"), *arguments]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may run with SIGINT ignored
    try:
        return subprocess.Popen(
            command, cwd="/", env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    finally:
        signal.signal(signal.SIGINT, before)


def call(checkout: Path, *arguments: str) -> tuple[int, str, str]:
    """(exit status, standard output, standard error) of a call from another folder."""
    with start(checkout, *arguments) as process:
        out, err = process.communicate(timeout=600)
    return process.returncode, out, err


def installed(checkout: Path, module: str) -> bool:
    command = [str(checkout / ".venv" / "bin" / "python"), "-I", "-c", f"import {module}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_set_up_once_then_start_at_once(checkout: Path) -> None:
    status, out, err = call(checkout, "setup")
    assert status == 0, err
    assert out == ""
    assert "creating .venv" in err
    assert re.search(r"installing list base: .* \(1 package, at most \d+ MB to download\)", err), err
    assert installed(checkout, "prometheus_client")
    assert not installed(checkout, "aiohttp")

    began = time.monotonic()
    status, out, err = call(checkout, "--help")
    took_s = time.monotonic() - began
    assert (status, err) == (0, "")
    assert "namesrv" in out
    assert took_s < 3
    for script in ("namesrv", "mqnamesrv"):
        assert os.access(checkout / ".venv" / "bin" / script, os.X_OK)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_exit_status_is_the_command_s(checkout: Path) -> None:
    call(checkout, "setup")
    assert call(checkout, "no-such-command")[0] == 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_changed_list_is_installed_from_scratch(checkout: Path) -> None:
    call(checkout, "setup")
    write_list(checkout, "idna")
    status, _, err = call(checkout, "setup")
    assert status == 0, err
    assert installed(checkout, "idna")
    assert not installed(checkout, "prometheus_client"), "a package that the list no longer names is not installed"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_wrong_hash_installs_nothing_and_is_told(checkout: Path) -> None:
    base = checkout / ".ci" / "requirements" / "base.txt"
    write_list(checkout, "idna")
    good = base.read_text(encoding="utf-8")
    base.write_text(re.sub(r"sha256:[0-9a-f]{8}", "sha256:00000000", good), encoding="utf-8")
    try:
        status, out, err = call(checkout, "setup")
        assert (status, out) == (2, "")
        assert "DO NOT MATCH THE HASHES" in err
        assert "pip could not install list base" in err
        assert "Traceback" not in err
        assert call(checkout, "--help")[0] == 2, "the next call installs the list before it runs the command"
    finally:
        base.write_text(good, encoding="utf-8")
    assert call(checkout, "setup")[0] == 0
    assert installed(checkout, "idna")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_call_after_an_interrupted_one_continues(checkout: Path, number: signal.Signals) -> None:
    write_list(checkout, "prometheus-client")
    shutil.rmtree(checkout / ".venv", ignore_errors=True)
    with start(checkout, "setup") as first:
        assert first.stderr is not None
        for line in first.stderr:
            if "installing list base" in line:
                break
        first.send_signal(number)
        said = first.stderr.read()
    assert first.returncode == -number
    assert ("interrupted; the next call continues" in said) == (number == signal.SIGINT)
    assert not (checkout / ".venv" / "installed.json").exists()
    status, _, err = call(checkout, "setup")
    assert status == 0, err
    assert "continuing an interrupted set-up" in err
    assert "creating .venv" not in err
    assert "installing list build" not in err
    assert installed(checkout, "prometheus_client")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_files_that_an_interrupted_call_did_not_write_are_written(checkout: Path) -> None:
    write_list(checkout, "prometheus-client")
    call(checkout, "setup")
    stamp = json.loads((checkout / ".venv" / "installed.json").read_text(encoding="utf-8"))
    stamp["begun list base"] = stamp.pop("list base")
    (checkout / ".venv" / "partial.json").write_text(json.dumps(stamp), encoding="utf-8")
    (checkout / ".venv" / "installed.json").unlink()
    for lost in checkout.glob(".venv/lib/python*/site-packages/prometheus_client/__init__.py"):
        lost.unlink()
    status, _, err = call(checkout, "setup")
    assert (status, "creating .venv" in err) == (0, False), err
    assert installed(checkout, "prometheus_client.exposition")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_calls_at_once_set_up_once(checkout: Path) -> None:
    shutil.rmtree(checkout / ".venv", ignore_errors=True)
    with start(checkout, "setup") as one, start(checkout, "setup") as other:
        answers = [process.communicate(timeout=600) for process in (one, other)]
    assert [one.returncode, other.returncode] == [0, 0], answers
    assert sum("creating .venv" in err for _, err in answers) == 1
    assert sum("waiting for it" in err for _, err in answers) == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_moved_or_broken_environment_is_repaired(checkout: Path) -> None:
    call(checkout, "setup")
    (checkout / ".venv" / "bin" / "python").unlink()
    assert call(checkout, "--help")[0] == 0
    moved = checkout.with_name("moved")
    checkout.rename(moved)
    try:
        status, _, err = call(moved, "--help")
        assert status == 0, err
        assert "creating .venv" in err
    finally:
        moved.rename(checkout)


def load_script() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("namesrv_script", str(ROOT / "namesrv"))
    specification = importlib.util.spec_from_loader("namesrv_script", loader)
    assert specification is not None
    module = importlib.util.module_from_spec(specification)
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = written
    return module


def test_progress_of_pip_says_what_is_going_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = load_script()
    monkeypatch.setattr(script, "VENV", str(tmp_path))
    progress = script.PipProgress(3)
    packages = tmp_path / "lib" / "python3.11" / "site-packages"

    def after(line: str) -> str:
        progress.read(line)
        return str(progress.doing())

    def install(name: str) -> None:
        (packages / f"{name}-1.dist-info").mkdir(parents=True)
        (packages / f"{name}-1.dist-info" / "RECORD").touch()

    install("typing_extensions")
    os.utime(packages / "typing_extensions-1.dist-info" / "RECORD", (1, 1))  # of an earlier version
    assert after("Looking in links: /opt/wheels") == "starting pip"
    assert after("Collecting aiohttp==3.14.5 (from -r base.txt (line 5))") == "fetching aiohttp (1 of 3)"
    assert after("  Downloading aiohttp-3.14.5-cp311.whl (1.9 MB)") == "downloading aiohttp, 1.9 MB (1 of 3)"
    assert after("Collecting idna==3 (from -r base.txt (line 7))") == "fetching idna (2 of 3)"
    reading = "; reading the index of the next package"
    assert after("  Downloading https://index/idna-3.whl (69 kB)") == f"fetched idna, 69 kB (2 of 3){reading}"
    assert after("  Using cached idna-3.whl (69 kB)") == f"fetched idna from pip's cache (2 of 3){reading}"
    assert after("Collecting typing-extensions==4") == "fetching typing-extensions (3 of 3)"
    assert after("Processing /opt/wheels/typing_extensions-4.whl") == "fetched typing_extensions (3 of 3)"
    assert after("Building wheels for collected packages: pysyncobj") == "fetched typing_extensions (3 of 3)"
    assert after("  Building wheel for pysyncobj (setup.py): started") == "building pysyncobj"
    assert after("Installing collected packages: idna, typing-extensions") == "installing idna (1 of 2)"
    install("idna")
    assert progress.doing() == "installing typing-extensions (2 of 2)"
    os.utime(packages / "typing_extensions-1.dist-info" / "RECORD")
    assert progress.doing() == "ending pip"


def test_a_python_without_ensurepip_is_told_which_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = load_script()
    monkeypatch.setattr(script, "VENV", str(tmp_path / ".venv"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as stopped:
        script.create()
    assert stopped.value.code == 2
    assert "install the package python3-venv" in capsys.readouterr().err


def test_an_older_python_is_refused_or_replaced_before_anything_newer_is_met() -> None:
    """The version check and the lines above it can be parsed and run by old versions of Python."""
    text = (ROOT / "namesrv").read_text(encoding="utf-8")
    head = text[: text.index("import fcntl")]
    assert "sys.version_info < MINIMUM" in head
    compile(head, "namesrv", "exec", flags=0, dont_inherit=True)
    import ast

    ast.parse(text, feature_version=(3, 7))


@pytest.mark.parametrize(
    ("paths", "quick", "more"),
    [
        ([], False, {"test", "go", "java"}),
        (["."], False, {"test", "go", "java"}),
        (["tests"], False, {"test", "go", "java"}),
        ([], True, set()),
        (["tests/packaging"], False, {"test", "go", "java"}),
        (["tests/packaging"], True, set()),
        (["tests/routes", "tests/raft/test_log.py"], False, set()),
        (["tests/chaos/test_runs.py"], False, {"go", "java"}),
        (["tests/spark/test_pair.py"], True, {"test", "java"}),
        (["tests/interop"], False, {"java"}),
    ],
)
def test_lists_follow_from_the_selected_tests(
    paths: list[str], quick: bool, more: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = load_script()
    monkeypatch.setattr(script, "without_tools", lambda names: names)
    assert set(script.lists_of_tests(paths, quick)) == {"base", "test-light", *more}


def test_tests_keep_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """If Python does not keep compiled code, each of a thousand processes compiles the sources again. Images of containers often
    set the variable that prevents it."""
    script = load_script()
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(script, "set_up", lambda names: False)
    command = []

    def run(program: str, arguments: list[str]) -> None:
        show = [program, "-c", "import sys; print(sys.dont_write_bytecode)"]
        command.extend(arguments)
        assert subprocess.run(show, capture_output=True, text=True, check=True).stdout.strip() == "False"

    monkeypatch.setattr(script, "PYTHON", sys.executable)
    monkeypatch.setattr(os, "execv", run)
    monkeypatch.chdir(ROOT)
    script.test_command(["tests/routes"])
    assert command[1:3] == ["-m", "pytest"]


def test_lists_go_and_java_are_for_machines_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    script = load_script()
    monkeypatch.setattr(provision, "find_go", lambda: Path("go"))
    monkeypatch.setattr(provision, "find_java", lambda: None)
    assert script.without_tools(["base", "go", "java"]) == ["base", "java"]
    monkeypatch.setattr(provision, "find_toxiproxy", lambda: None)
    monkeypatch.setattr(provision, "find_go", lambda: None)
    monkeypatch.delenv("TOXIPROXY_SERVER", raising=False)
    assert script.lists_of("chaos", ["run", "no-fault"]) == ["base", "chaos", "go"]
    assert script.lists_of("chaos", ["list"]) == ["base", "chaos"]
    assert script.lists_of("study", ["resume", "runs"]) == ["base", "chaos", "go"]
    assert script.lists_of("study", ["plan", "primary"]) == ["base", "chaos"]
    assert script.lists_of("study", ["publish", "runs"]) == ["base", "chaos", "spark"]
    assert script.lists_of("chaos", ["run", "--help"]) == ["base"]


COLLECT = """
import sys
import pytest
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in sys.argv[1].split(","):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
raise SystemExit(pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""


@pytest.mark.slow
def test_other_tests_import_what_the_light_list_has() -> None:
    script = load_script()
    light = {name for file in ("base", "test-light", "build") for name in packages_of(file)}
    large = packages_of("test") - light
    assert "pyspark" in large
    tops = [top for top, names in packages_distributions().items() if {canonicalize_name(name) for name in names} <= large]
    assert {"pyspark", "pandas", "duckdb"} <= set(tops)
    ignored = [f"--ignore={place}" for place, lists in script.LISTS_OF_TESTS.items() if "test" in lists]
    command = [sys.executable, "-c", COLLECT, ",".join(tops), *ignored, "tests"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def packages_of(name: str) -> set[str]:
    """Normalised names of the packages in a list."""
    text = (ROOT / ".ci" / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    return {canonicalize_name(package) for package in re.findall(r"^([A-Za-z0-9._-]+)==", text, re.MULTILINE)}


def test_each_list_has_a_size_and_each_place_of_tests_exists() -> None:
    script = load_script()
    lists = {file.stem for file in (ROOT / ".ci" / "requirements").glob("*.txt")}
    assert_same_names(script.CONTENT, "CONTENT of ./namesrv", lists, ".ci/requirements")
    gone = [place for place in script.LISTS_OF_TESTS if not (ROOT / place).exists()]
    assert not gone, f"LISTS_OF_TESTS of ./namesrv has places that do not exist: {', '.join(gone)}"


def test_unknown_list_is_a_usage_error() -> None:
    done = subprocess.run([str(ROOT / "namesrv"), "setup", "nonsense"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no list named nonsense; there are: base" in done.stderr
