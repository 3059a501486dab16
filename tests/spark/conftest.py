"""One Spark session for all tests that need one: starting it costs more than most of them."""

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from replicated_namesrv.spark.session import session

# Of JVMs that live for a minute half the CPU time goes to the optimizing compiler, which is left out for all that tests start.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with session("tests") as running:
        yield running
