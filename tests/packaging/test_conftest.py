"""Promises of the test framework: a seed repeats a run, a failure prints it, and no test is skipped that could have run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.tree import ROOT
from tests.support.provision import SKIP_PREFIX

pytestmark = pytest.mark.slow


def run_pytest(folder: Path, text: str, *arguments: str, path: str | None = None) -> tuple[int, str]:
    """(exit status, output) of pytest on one file with ``text``, with this project's conftest."""
    (folder / "test_it.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path or os.environ["PATH"], "CI": "true"}
    done = subprocess.run(
        [*command, "-c", os.devnull, *arguments, "test_it.py"],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


RANDOM_FAILURE = """
from hypothesis import given, strategies

def test_drawn(rng):
    assert False, f"drew {rng.random()}"

@given(strategies.integers())
def test_found(value):
    assert value < 1000
"""


def test_a_failure_tells_the_seed_and_the_seed_repeats_it(tmp_path: Path) -> None:
    status, output = run_pytest(tmp_path, RANDOM_FAILURE)
    assert status == 1
    (seed,) = set(re.findall(r"--seed (\d+)", output))
    assert f"./namesrv test 'test_it.py::test_drawn' --seed {seed}" in output
    assert f"./namesrv test 'test_it.py::test_found' --seed {seed}" in output
    assert "@reproduce_failure" in output
    drawn = re.findall(r"drew (0\.\d+)", output)[0]
    assert f"drew {drawn}" in run_pytest(tmp_path, RANDOM_FAILURE, "--seed", seed)[1]
    assert f"drew {drawn}" not in run_pytest(tmp_path, RANDOM_FAILURE, "--seed", str(int(seed) + 1))[1]
    parallel = run_pytest(tmp_path, RANDOM_FAILURE, "--seed", seed, "-n", "2", "--dist", "loadscope")[1]
    assert f"drew {drawn}" in parallel
    assert f"./namesrv test 'test_it.py::test_drawn' --seed {seed}" in parallel


def test_tests_without_jars_fail_the_run_where_maven_is(tmp_path: Path) -> None:
    text = f"import pytest\n\ndef test_broker():\n    pytest.skip({SKIP_PREFIX!r})\n"
    without = tmp_path / "without"
    without.mkdir()
    status, output = run_pytest(tmp_path, text, path=str(without))
    assert status == 0, output
    (without / "mvn").write_text("#!/bin/sh\n", encoding="utf-8")
    (without / "mvn").chmod(0o755)
    status, output = run_pytest(tmp_path, text, path=str(without))
    assert status == 1
    assert "Maven is here, but these were skipped: test_it.py::test_broker" in output


def test_the_tests_of_a_file_run_in_one_process(tmp_path: Path) -> None:
    text = "import os, pytest\n" + "".join(
        f"def test_{number}():\n    pytest.fail(os.environ['PYTEST_XDIST_WORKER'] + ' ran it')\n" for number in range(8)
    )
    (tmp_path / "test_other.py").write_text("def test_beside_it():\n    pass\n", encoding="utf-8")
    _, output = run_pytest(tmp_path, text, "-n", "2", "--dist", "loadscope", "test_other.py")
    assert len(set(re.findall(r"(gw\d) ran it", output))) == 1, output
