"""The distribution: built with standard tools, inspected, installed into an empty environment and run there."""

import json
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from replicated_namesrv import __version__
from tests.packaging.tree import LINKED, ROOT, tracked_files
from tests.support.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
NEVER_SHIPPED = ("tests/", "deploy/", "benchmarks/", "typings/", ".ci/")


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the sdist made from the tracked files and the wheel made from that sdist."""
    source = tmp_path_factory.mktemp("source")
    for name in tracked_files():
        target = source / name
        if not any((ROOT / parent).is_symlink() for parent in name.parents):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    for linked in LINKED:
        (source / linked).mkdir(exist_ok=True)
        (source / "replicated_namesrv" / linked).symlink_to(f"../{linked}")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source))
    return folder


def run(*command: str, cwd: Path | str = "/") -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "NAMESRV"))}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


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


def test_wheel_holds_the_product_and_nothing_else(distributions: Path) -> None:
    (wheel,) = distributions.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    metadata = {name for name in names if ".dist-info/" in name}
    assert {name for name in names if name.endswith(".py")} == expected_modules()
    assert any(name.endswith("LICENSE") for name in metadata)
    assert "replicated_namesrv/py.typed" in names
    assert "replicated_namesrv/chaos/scenarios/no-fault.toml" in names
    assert all(name.startswith("replicated_namesrv/") for name in names - metadata)


def test_sdist_holds_no_tests_and_no_link(distributions: Path) -> None:
    (sdist,) = distributions.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    names = {member.name.partition("/")[2] for member in members}
    assert not [name for name in names if name.startswith(NEVER_SHIPPED)]
    assert not [member.name for member in members if member.issym() or member.islnk()]
    assert expected_modules() <= names


def test_wheel_runs_in_an_empty_environment(distributions: Path, tmp_path: Path) -> None:
    (wheel,) = distributions.glob("*.whl")
    home = tmp_path / "venv"
    venv.EnvBuilder(with_pip=True, symlinks=True).create(home)
    pip = (str(home / "bin" / "python"), "-I", "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    lists = ROOT / ".ci" / "requirements"
    hashed = ("--require-hashes", "--no-build-isolation")
    run(*pip, *hashed, "-r", str(lists / "build.txt"))
    run(*pip, *hashed, "-r", str(lists / "base.txt"))
    run(*pip, "--no-index", str(wheel))
    namesrv = str(home / "bin" / "namesrv")
    assert "cluster" in run(namesrv, "--help")
    assert "usage" in run(str(home / "bin" / "mqnamesrv"), "-h").lower()
    answer = run(
        str(home / "bin" / "python"), "-I", "-c", "import importlib.metadata as m; print(m.version('replicated-namesrv'))"
    )
    assert answer.strip() == __version__
    listen = f"127.0.0.1:{free_port(1, 2, 10, 11, 12, 20, 21, 22)}"
    told = json.loads(run(namesrv, "cluster", "--listen", listen, "--data-dir", str(tmp_path / "data"), "--once", "--json"))
    assert (told["mode"], len(told["nodes"])) == ("cp", 3)
