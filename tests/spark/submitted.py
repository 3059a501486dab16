"""Jobs that tests submit to a cluster: their package, the options of their JVMs, and the comparison of their tables."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pyspark
import pytest

ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(str(pyspark.__file__)).parent
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options for JVMs that do little work: they spend no time on optimizing compilation."""


def packaged(folder: Path) -> Path:
    """The zip file of the package, made as documented."""
    package = folder / "replicated_namesrv.zip"
    subprocess.run([sys.executable, "-m", "zipfile", "-c", str(package), str(ROOT / "replicated_namesrv")], check=True)
    return package


def rows(table: Path) -> list[list[Any]]:
    read = pyarrow.dataset.dataset(table, partitioning="hive").to_table()
    names = sorted(read.column_names)
    return sorted((list(row) for row in zip(*(read[name].to_pylist() for name in names), strict=True)), key=repr)


def alike(ours: list[list[Any]], theirs: list[list[Any]]) -> bool:
    """Whether rows are equal except for the last digits of sums, whose order is not fixed."""
    return len(ours) == len(theirs) and all(
        value == (pytest.approx(other, rel=1e-12, abs=1e-12) if isinstance(other, float) else other)
        for mine, row in zip(ours, theirs, strict=True)
        for value, other in zip(mine, row, strict=True)
    )
