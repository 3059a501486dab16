"""One Spark session for all tests that need one: starting it costs more than most of them."""

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from replicated_namesrv.spark.session import session
from tests.spark import judged_runs
from tests.spark.judged_runs import Tables, Values
from tests.spark.metric_oracles import Run

# In a JVM that lives for a minute, the optimizing compiler takes half of the CPU time. So the tests start JVMs without this
# compiler.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with session("tests") as running:
        yield running


@pytest.fixture(scope="session")
def drawn() -> dict[str, Run]:
    """Random runs, by name."""
    return judged_runs.random_runs()


@pytest.fixture(scope="session")
def tables(drawn: dict[str, Run]) -> Tables:
    """All tables of the random runs and of those written by hand."""
    return judged_runs.judge(drawn)


@pytest.fixture(scope="session")
def found(tables: Tables) -> Values:
    """The figures of the random runs."""
    return judged_runs.figures(tables)
