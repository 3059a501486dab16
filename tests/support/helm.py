"""Helm, which renders and checks the chart: found, or built through the Go module proxy."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from replicated_namesrv.provision import ProvisionError, cached, find_go, run_with_progress
from tests.support.provision import say

VERSION = "3.17.4"
MODULE = "helm.sh/helm/v3"
TEST_TIMEOUT_S = 1_900
"""Time limit of a test that may have to build Helm, which takes some minutes of CPU time. Later tests use the built program."""


def helm() -> Path:
    """The program that HELM names, the one on the PATH, or the one in the cache, which is built if necessary. Without Go the
    running test is skipped. Raises ProvisionError."""
    if named := os.environ.get("HELM") or shutil.which("helm"):
        return Path(named)
    with cached(f"helm-{VERSION}", say) as (final, folder):
        if folder is not None:
            _build(final, folder)
    return final


def run_helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Helm without a cluster."""
    environment = {**os.environ, "KUBECONFIG": os.devnull}
    return subprocess.run([helm(), *arguments], capture_output=True, text=True, timeout=120, check=False, env=environment)


def _build(final: Path, folder: Path) -> None:
    go = find_go()
    if go is None:
        pytest.skip("no helm, and no Go 1.23 or later to build it; install either, or name helm with HELM")
    say(f"building helm {VERSION} with {go}, once; this takes some minutes")
    environment = {
        **os.environ,
        "GOBIN": str(folder),
        "GOPATH": str(folder / "path"),
        "GOCACHE": str(folder / "cache"),
        "GOFLAGS": "-modcacherw",
        "CGO_ENABLED": "0",
    }
    environment.pop("GOMODCACHE", None)
    flags = f"-s -w -X {MODULE}/internal/version.version=v{VERSION}"
    install = [str(go), "install", "-v", "-p", "1", "-trimpath", "-ldflags", flags, f"{MODULE}/cmd/helm@v{VERSION}"]
    status, output = run_with_progress(["nice", "-n", "5", *install], environment, folder, say)
    if status != 0:
        raise ProvisionError(f"helm {VERSION} could not be built: " + " | ".join(output.strip().splitlines()[-3:]))
    os.replace(folder / "helm", final)
