"""One Spark session for a job: embedded by default, on a cluster where the caller says so, gone without a trace after it.

The session is given no master here but the embedded one; under ``spark-submit`` the cluster's own settings hold. Everything
that Spark would leave on disk lies in one temporary folder, which is removed with the JVM.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from replicated_namesrv.spark.java import java_home

EMBEDDED_MASTER = "local[*]"
EMBEDDED_MEMORY = "1600m"
"""Heap of the embedded JVM; with its own overhead and two Python workers the job stays below 3 GB."""

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.adaptive.coalescePartitions.minPartitionSize": "8m",
    # Rows of a run come file by file, so that many partitions can be written at once instead of sorting whole records.
    "spark.sql.maxConcurrentOutputFileWriters": "64",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "200000",
    "spark.sql.legacy.charVarcharAsString": "true",
    "spark.python.worker.reuse": "true",
}


@contextmanager
def session(name: str, master: str | None = EMBEDDED_MASTER, memory: str = EMBEDDED_MEMORY) -> Iterator[SparkSession]:
    """A session named ``name``. ``master`` None: as spark-submit says. Raises NoJavaError."""
    folder = Path(tempfile.mkdtemp(prefix="namesrv-analyze-"))
    try:
        if "JAVA_HOME" not in os.environ:
            os.environ["JAVA_HOME"] = str(java_home(folder))
        if master is not None:
            # The workers have to run this Python, with what is installed in it, not the first one on the PATH.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if master is not None and master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # no look-up of this machine's own name
        builder = SparkSession.builder.appName(name)
        for key, value in _SETTINGS.items():
            builder = builder.config(key, value)
        if master is not None:
            builder = builder.master(master).config("spark.local.dir", str(folder))
            builder = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            builder = builder.config("spark.driver.memory", memory)
            builder = builder.config("spark.driver.extraJavaOptions", f"-Djava.io.tmpdir={folder} -XX:+UseParallelGC")
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        try:
            yield spark
        finally:
            _stop(spark)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _stop(spark: SparkSession) -> None:
    """Stop the session and its JVM, which would otherwise live as long as this process."""
    gateway = spark.sparkContext._gateway
    spark.stop()
    if gateway is None:
        return
    process = getattr(gateway, "proc", None)
    gateway.shutdown()
    if process is not None:
        process.stdin.close()
        process.wait()
    SparkContext._gateway = None
    SparkContext._jvm = None
