"""The checkout's shape, its metadata and the pinned lists."""

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from replicated_namesrv import __version__
from tests.packaging.tree import LINKED, ROOT
from tests.support.places import assert_same_names

LISTS = ROOT / ".ci" / "requirements"
NAMES = ("base", "build", "chaos", "docs", "go", "java", "spark", "test", "test-light", "traces")
REMEDY = "; run .ci/requirements/compile (it needs uv)"


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def declared() -> Any:
    """The module that reads pyproject.toml's declarations."""
    specification = importlib.util.spec_from_file_location("declared", LISTS / "declared.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def pins(name: str) -> dict[str, str]:
    """Normalised package name to version of a list."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", (LISTS / f"{name}.txt").read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", package).lower(): version for package, version in found}


@pytest.mark.parametrize("name", LINKED)
def test_linked_folders_are_links_inside_the_package(name: str) -> None:
    link = ROOT / "replicated_namesrv" / name
    assert link.is_symlink()
    assert os.readlink(link) == f"../{name}"
    assert link.resolve() == ROOT / name
    if (ROOT / ".git").exists():
        mode = subprocess.run(
            ["git", "ls-files", "-s", f"replicated_namesrv/{name}"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.split()[0]
        assert mode == "120000", "git has a copy of the folder in place of a link"


def test_metadata() -> None:
    tables = pyproject()
    project = tables["project"]
    assert tables["tool"]["setuptools"]["packages"]["find"]["include"] == ["replicated_namesrv*"]
    assert "version" not in project, "the version stands in replicated_namesrv/__init__.py only"
    assert tables["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "replicated_namesrv.__version__"}
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None
    told = "enter a line for users below the heading of that version"
    assert newest[1] == __version__, (
        f"CHANGELOG.md begins with {newest[1]}, replicated_namesrv/__init__.py says {__version__}; {told}"
    )
    chart = (ROOT / "deploy/helm/namesrv/Chart.yaml").read_text(encoding="utf-8")
    in_chart = dict(re.findall(r"^(version|appVersion): (\S+)$", chart, re.MULTILINE))
    assert in_chart == {"version": __version__, "appVersion": __version__}, "deploy/helm/namesrv/Chart.yaml has another version"
    assert_same_names(project["scripts"], "the scripts of pyproject.toml", {"namesrv", "mqnamesrv"}, "this test")
    assert (ROOT / "LICENSE").read_text(encoding="utf-8").lstrip().startswith("Apache License")


@pytest.mark.parametrize("script", ["namesrv", ".ci/run", ".ci/requirements/compile"])
def test_scripts_are_executable(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)


@pytest.mark.parametrize("name", NAMES)
def test_list_is_fresh_pinned_and_hashed(name: str) -> None:
    module = declared()
    text = (LISTS / f"{name}.txt").read_text(encoding="utf-8")
    assert text.splitlines()[0].endswith("sha256:" + module.fingerprint(pyproject())), "made from other dependencies" + REMEDY
    held = pins(name)
    for requirement in map(Requirement, module.requirements(pyproject(), name)):
        version = held.get(re.sub(r"[-_.]+", "-", requirement.name).lower())
        assert version is not None, f"{requirement} is not in the list" + REMEDY
        assert requirement.specifier.contains(version), f"{requirement} is not satisfied by {version}" + REMEDY
    blocks = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)[1:]
    assert blocks
    unhashed = [block.split("==")[0] for block in blocks if not re.search(r"--hash=sha256:[0-9a-f]{64}", block)]
    assert not unhashed, f"{name}.txt has no hash of {', '.join(unhashed)}" + REMEDY
    assert "://" not in text, "a list names no host"


def test_lists_agree_with_each_other() -> None:
    seen: dict[str, tuple[str, str]] = {}
    for name in NAMES:
        for package, version in pins(name).items():
            first = seen.setdefault(package, (version, name))
            assert first[0] == version, f"{package}: {first} and {(version, name)}" + REMEDY


def test_each_list_is_known_to_the_setup() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "namesrv"), "setup", "--help"], capture_output=True, text=True, check=True)
    assert_same_names((file.stem for file in LISTS.glob("*.txt")), ".ci/requirements", NAMES, "NAMES of this file")
    for name in NAMES:
        assert name == "build" or name in done.stdout, f"'namesrv setup --help' does not name the list {name}"


def test_type_checkers_see_the_linked_packages(tmp_path: Path) -> None:
    """mypy finds the packages behind the links under the names that the product uses."""
    user = tmp_path / "user.py"
    user.write_text("import replicated_namesrv.compat\nreveal_type(replicated_namesrv.compat)\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path / "cache"), str(user)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "types.ModuleType" in done.stdout, done.stdout
    assert "error" not in done.stdout, done.stdout
