"""One Spark session for a job. It is embedded by default, or runs on a cluster, and leaves nothing on disk.

This module sets a master only for the embedded session. Under ``spark-submit`` the settings of the cluster and of ``--conf``
apply. All of Spark's files are in one temporary folder, which is removed with the JVM. The output of the JVM goes there, too. If
the job fails, the end of that output becomes part of the error.
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
"""Heap of the embedded JVM. With the JVM's overhead and two Python workers the job stays below 3 GB."""

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.adaptive.coalescePartitions.minPartitionSize": "8m",
    # The rows of a run arrive file by file. If this many writers may be open, Spark writes many partitions at once instead of
    # sorting whole records.
    "spark.sql.maxConcurrentOutputFileWriters": "64",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "200000",
    "spark.sql.legacy.charVarcharAsString": "true",
    "spark.python.worker.reuse": "true",
}


class SparkFailedError(Exception):
    """A failure of Spark as text. The original exception is an object in the JVM, which ends with the session."""


@contextmanager
def session(name: str, master: str | None = EMBEDDED_MASTER, memory: str = EMBEDDED_MEMORY) -> Iterator[SparkSession]:
    """A session named ``name``. ``master`` None: the master that spark-submit gives. Raises NoJavaError, SparkFailedError."""
    folder = Path(tempfile.mkdtemp(prefix="namesrv-analyze-"))
    before = dict(os.environ)
    try:
        try:
            with _with_jvm_log(folder / "jvm.log"):
                if master is None:
                    conf = _submitted(name)
                else:
                    conf = SparkConf().setAppName(name).setAll(list(_SETTINGS.items()))
                    # A failure is raised as an error, so py4j must not log it as well.
                    logging.getLogger("py4j").setLevel(logging.CRITICAL)
                    logging.getLogger().addFilter(_is_ours)
                    AccumulatorTCPServer.handle_error = _nothing_more  # type: ignore[method-assign, assignment]  # py4j has no hook for it
                    _set_environment(master, folder)
                    conf.setMaster(master).setAll(list(_own_driver(folder, memory, master).items()))
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
    """Do not report connections that end because the JVM ended."""


def _is_ours(record: logging.LogRecord) -> bool:
    """False for log records of py4j, which writes to the root logger when the JVM ends."""
    return Path(record.pathname).parent.name != "py4j"


@contextmanager
def _own_handler() -> Iterator[None]:
    """Keep the handler of Control-C. Spark installs one that calls the JVM from the interrupted code, which may itself be in a
    call to the JVM. Spark's handler is not needed, because leaving the session ends all jobs."""
    before = signal.getsignal(signal.SIGINT)
    yield
    if current_thread() is main_thread():
        signal.signal(signal.SIGINT, before)


def _submitted(name: str) -> SparkConf:
    """The settings of ``spark-submit``, including its ``--conf`` options. Our settings are used only for options that it does not
    set.
    """
    SparkContext._ensure_initialized()  # starts the JVM; without it SparkConf does not know the options of spark-submit
    conf = SparkConf().setAppName(name)
    for key, value in _SETTINGS.items():
        conf.setIfMissing(key, value)
    return conf


def _own_driver(folder: Path, memory: str, master: str) -> dict[str, str]:
    """Settings of a JVM that this process starts. The settings of code generation are for an embedded session, not for the
    workers of a cluster."""
    own = {
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        # this class writes no hidden file with checksums beside each file
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        "spark.driver.memory": memory,
        # ExitOnOutOfMemoryError: a JVM that runs out of memory exits at once. The job then reports the failure, and its folder is
        # removed.
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={folder} -XX:ErrorFile={folder}/jvm-error.log "
        "-XX:+UseParallelGC -XX:TieredStopAtLevel=1 -XX:+ExitOnOutOfMemoryError",
    }
    if not master.startswith("local"):
        return own
    # Python reads the lines, so this JVM only runs many small queries. It ends too soon to profit from Spark's code generation or
    # from the optimizing compiler.
    return {**own, "spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


LOG_LINES = 400
"""Number of lines at the end of the JVM's output that are searched for the cause of a failure."""


@contextmanager
def _with_jvm_log(log: Path) -> Iterator[None]:
    """Raise failures together with the output of the JVM in ``log``."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as cause:  # ConnectionError means that the JVM has ended
        said = log.read_text("utf-8", "replace").splitlines() if log.exists() else []
        raise SparkFailedError("\n".join([str(cause), *said[-LOG_LINES:]])) from None


def _set_environment(master: str, folder: Path) -> None:
    """Set the environment that the JVM and its Python workers need."""
    os.environ["JAVA_HOME"] = str(java_home(folder))
    # Workers must run this Python interpreter with its installed packages, not the first one on the PATH. They must also find
    # this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    package = str(Path(replicated_namesrv.__file__).parents[1])
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", package)]
    os.environ["PYTHONPATH"] = os.pathsep.join([package, *paths])
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # otherwise Spark looks up the name of this machine


def _restore(before: dict[str, str]) -> None:
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYTHONPATH", "SPARK_LOCAL_IP"):
        if name in before:
            os.environ[name] = before[name]
        else:
            os.environ.pop(name, None)


def on_own_connection(call: Callable[[], None]) -> None:
    """Run ``call`` in a new thread, which gets its own connection to the JVM. The connection of an interrupted thread may still
    be waiting for an answer, and would take it for the answer to its next request. Errors of a JVM that no longer answers are
    ignored."""

    def quietly() -> None:
        with contextlib.suppress(Py4JError, OSError):
            call()

    thread = Thread(target=quietly)
    thread.start()
    thread.join()


def _stop() -> None:
    """Stop the session and its JVM. Otherwise the JVM would run until this process ends."""
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
            process.stdin.close()  # the JVM exits when its input is closed, even if it is busy
            process.wait()
