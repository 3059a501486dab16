"""promtool, which checks and tests Prometheus' rules: found, or built through the Go module proxy."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from replicated_namesrv.provision import ProvisionError, cached, find_go, run_with_progress
from tests.support.provision import say

VERSION = "0.303.1"
"""Version of the module; it is the one of Prometheus 3.3.1."""
MODULE = "github.com/prometheus/prometheus"
TEST_TIMEOUT_S = 1_900
"""Time limit of a test that may have to build promtool, which takes minutes of CPU time. Later tests use the built program."""
_KUBERNETES = """// Package kubernetes has the type that promtool names, without Kubernetes' client.
package kubernetes

import (
	"github.com/prometheus/common/config"
	"github.com/prometheus/prometheus/discovery"
)

// SDConfig has the field that "promtool check config" reads.
type SDConfig struct {
	discovery.Config
	HTTPClientConfig config.HTTPClientConfig
}
"""


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
    environment = {
        **os.environ,
        "GOPATH": str(folder / "path"),
        "GOCACHE": str(folder / "cache"),
        "GOFLAGS": "-modcacherw -buildvcs=false",
        "GOWORK": "off",
        "CGO_ENABLED": "0",
    }
    environment.pop("GOMODCACHE", None)

    def run(*arguments: str) -> None:
        status, output = run_with_progress(["nice", "-n", "5", str(go), *arguments], environment, folder, say)
        if status != 0:
            raise ProvisionError(f"promtool {VERSION} could not be built: " + " | ".join(output.strip().splitlines()[-3:]))

    run("mod", "download", f"{MODULE}@v{VERSION}")
    # A copy is built, because 'go install MODULE@VERSION' refuses a go.mod with a replace directive.
    source = shutil.copytree(folder / "path" / "pkg" / "mod" / f"{MODULE}@v{VERSION}", folder / "source")
    leave_out_service_discovery(source)
    run("-C", str(source), "build", "-p", "1", "-trimpath", "-ldflags", "-s -w", "-o", str(folder / "promtool"), "./cmd/promtool")
    os.replace(folder / "promtool", final)


def leave_out_service_discovery(source: Path) -> None:
    """Remove the clients of clouds and of Kubernetes, which are two thirds of the code, and which no check of rules uses."""
    (source / "plugins" / "plugins.go").unlink()
    kubernetes = source / "discovery" / "kubernetes"
    for file in kubernetes.glob("*.go"):
        file.unlink()
    (kubernetes / "kubernetes.go").write_text(_KUBERNETES)


def run_promtool(*arguments: str, stdin: str = "") -> str:
    """The output of promtool. AssertionError with the output if it fails."""
    done = subprocess.run([promtool(), *arguments], input=stdin, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"promtool {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
    return done.stdout
