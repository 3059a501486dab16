"""promtool, which checks and tests Prometheus' rules: found, or built through the Go module proxy."""

import os
import subprocess
from pathlib import Path

import pytest

from replicated_namesrv.provision import ProvisionError, cached, find_go, run_with_progress
from tests.support.provision import say

VERSION = "0.303.1"
"""Version of the module; it is the one of Prometheus 3.3.1."""
MODULE = "github.com/prometheus/prometheus"
TEST_TIMEOUT_S = 1_900
"""Time limit of a test that may have to build promtool, which takes 5 minutes of CPU time. Later tests use the built program."""
_MAIN = f'//go:build tools\n\npackage tools\n\nimport _ "{MODULE}/cmd/promtool"\n'


def promtool() -> Path:
    """The program that PROMTOOL names, or the one in the cache, which is built if necessary. Without Go the running test is
    skipped. Raises ProvisionError."""
    if named := os.environ.get("PROMTOOL"):
        return Path(named)
    with cached(f"promtool-{VERSION}", say) as (final, folder):
        if folder is not None:
            _build(final, folder)
    return final


def _build(final: Path, folder: Path) -> None:
    go = find_go()
    if go is None:
        pytest.skip("no promtool, and no Go 1.23 or later to build it; install Go, or name promtool with PROMTOOL")
    say(f"building promtool {VERSION} with {go}, once; this takes some minutes")
    source = folder / "source"
    source.mkdir()
    # Its go.mod has a replace directive, so 'go install MODULE@VERSION' is refused; as a dependency it can be built.
    (source / "go.mod").write_text(f"module promtool\n\ngo 1.23.0\n\nrequire {MODULE} v{VERSION}\n")
    (source / "tools.go").write_text(_MAIN)
    environment = {
        **os.environ,
        "GOPATH": str(folder / "path"),
        "GOCACHE": str(folder / "cache"),
        "GOFLAGS": "-modcacherw -mod=mod -buildvcs=false",
        "CGO_ENABLED": "0",
    }
    environment.pop("GOMODCACHE", None)
    for arguments in (["mod", "tidy"], ["build", "-p", "1", "-trimpath", "-ldflags", "-s -w", f"{MODULE}/cmd/promtool"]):
        command = ["nice", "-n", "5", str(go), "-C", str(source), *arguments]
        status, output = run_with_progress(command, environment, folder, say)
        if status != 0:
            raise ProvisionError(f"promtool {VERSION} could not be built: " + " | ".join(output.strip().splitlines()[-3:]))
    os.replace(source / "promtool", final)


def run_promtool(*arguments: str, stdin: str = "") -> str:
    """The output of promtool. AssertionError with the output if it fails."""
    done = subprocess.run([promtool(), *arguments], input=stdin, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"promtool {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
    return done.stdout
