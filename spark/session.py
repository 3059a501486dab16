"""One Spark session for a job: embedded by default, on a cluster where the caller says so, gone without a trace after it.

The session is given no master here but the embedded one; under ``spark-submit`` the cluster's own settings hold. Everything
that Spark would leave on disk lies in one temporary folder, which is removed with the JVM. So does what the JVM says of itself,
which is nothing that a user asked for; of a failure the last of it is told.
"""

import contextlib
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread, current_thread, main_thread

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.accumulators import AccumulatorTCPServer
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

import replicated_namesrv
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


class SparkFailedError(Exception):
    """What Spark said of a failure, as text: its exceptions lie in the JVM, which is gone once the session is left."""


@contextmanager
def session(name: str, master: str | None = EMBEDDED_MASTER, memory: str = EMBEDDED_MEMORY) -> Iterator[SparkSession]:
    """A session named ``name``. ``master`` None: as spark-submit says. Raises NoJavaError, SparkFailedError."""
    folder = Path(tempfile.mkdtemp(prefix="namesrv-analyze-"))
    before = dict(os.environ)
    try:
        conf = SparkConf().setAppName(name).setAll(list(_SETTINGS.items()))
        try:
            with _with_jvm_log(folder / "jvm.log"):
                if master is not None:
                    # What failed is raised, and told once.
                    logging.getLogger("py4j").setLevel(logging.CRITICAL)
                    logging.getLogger().addFilter(_is_ours)
                    AccumulatorTCPServer.handle_error = _nothing_more  # type: ignore[method-assign, assignment]  # py4j has no hook for it
                    _set_environment(master, folder)
                    conf.setMaster(master).setAll(list(_embedded(folder, memory).items()))
                    with (folder / "jvm.log").open("wb") as said:
                        gateway = launch_gateway(conf, {"stdout": said, "stderr": said})  # type: ignore[no-untyped-call]  # py4j has no types
                        SparkContext._ensure_initialized(gateway=gateway, conf=conf)
                with _own_handler():
                    spark = SparkSession.builder.config(conf=conf).getOrCreate()
                spark.sparkContext.setLogLevel("ERROR")
                yield spark
        finally:
            on_own_connection(_stop)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _restore(before)


def _nothing_more(*_: object) -> None:
    """Of a connection that ended with its JVM."""


def _is_ours(record: logging.LogRecord) -> bool:
    """Whether a record of the root logger is of this product: the library that talks to the JVM writes there when it ends."""
    return Path(record.pathname).parent.name != "py4j"


@contextmanager
def _own_handler() -> Iterator[None]:
    """Control-C stays what it was. Spark's own handler asks the JVM from within whatever was interrupted, which may be a question
    to the JVM; leaving the session ends all jobs anyway."""
    before = signal.getsignal(signal.SIGINT)
    yield
    if current_thread() is main_thread():
        signal.signal(signal.SIGINT, before)


def _embedded(folder: Path, memory: str) -> dict[str, str]:
    return {
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",  # no hidden file of checksums beside each file
        # Lines are read in Python; what is left to this JVM are many small queries, and it does not live long enough for compiled
        # code to pay: neither Spark's own nor that of the optimizing compiler.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.driver.memory": memory,
        # A JVM without memory rather ends than lingers: what it did not do is told then, and cleared away.
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={folder} -XX:ErrorFile={folder}/jvm-error.log "
        "-XX:+UseParallelGC -XX:TieredStopAtLevel=1 -XX:+ExitOnOutOfMemoryError",
    }


LOG_LINES = 400
"""Of what the JVM said, as many last lines are looked through for the cause of a failure."""


@contextmanager
def _with_jvm_log(log: Path) -> Iterator[None]:
    """A failure is raised with what the JVM had said in ``log``."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as cause:  # the last: the JVM has ended
        said = log.read_text("utf-8", "replace").splitlines() if log.exists() else []
        raise SparkFailedError("\n".join([str(cause), *said[-LOG_LINES:]])) from None


def _set_environment(master: str, folder: Path) -> None:
    """What the JVM and the Python workers that it starts have to find."""
    os.environ["JAVA_HOME"] = str(java_home(folder))
    # The workers have to run this Python, with what is installed in it, not the first one on the PATH; and this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    package = str(Path(replicated_namesrv.__file__).parents[1])
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", package)]
    os.environ["PYTHONPATH"] = os.pathsep.join([package, *paths])
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # no look-up of this machine's own name


def _restore(before: dict[str, str]) -> None:
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYTHONPATH", "SPARK_LOCAL_IP"):
        if name in before:
            os.environ[name] = before[name]
        else:
            os.environ.pop(name, None)


def on_own_connection(call: Callable[[], None]) -> None:
    """Call in a thread of its own, which has its own connection to the JVM: that of a thread that was interrupted may still be
    waiting for an answer, and would take it for that to its next question. What the JVM no longer answers is not raised."""

    def quietly() -> None:
        with contextlib.suppress(Py4JError, OSError):
            call()

    thread = Thread(target=quietly)
    thread.start()
    thread.join()


def _stop() -> None:
    """Stop the session and its JVM, which would otherwise live as long as this process."""
    gateway = SparkContext._gateway
    if gateway is None:
        return
    process = getattr(gateway, "proc", None)
    try:
        running = SparkSession._instantiatedSession
        if running is not None:
            running.stop()
        gateway.shutdown()
    finally:
        SparkContext._gateway = None
        SparkContext._jvm = None
        if process is not None:
            process.stdin.close()  # at this the JVM ends, whatever it does
            process.wait()
