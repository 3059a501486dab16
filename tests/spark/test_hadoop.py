"""The same job on HDFS and YARN: the same figures, to the digit."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from replicated_namesrv.child_process import die_with
from replicated_namesrv.spark.analysis import KEPT, Analysis
from replicated_namesrv.spark.generate import generate
from replicated_namesrv.spark.java import java_home
from tests.spark.hadoop import Hadoop
from tests.spark.submitted import QUICK_START, ROOT, SPARK_HOME, alike, packaged, rows
from tests.support.provision import require_hadoop_jars

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

OPTIONS = {
    "spark.driver.extraJavaOptions": QUICK_START, "spark.executor.extraJavaOptions": QUICK_START,
    "spark.yarn.am.extraJavaOptions": QUICK_START,
    "spark.driver.memory": "600m", "spark.executor.memory": "600m", "spark.yarn.am.memory": "384m",
    "spark.executor.instances": "2", "spark.executor.cores": "1", "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2",
    "spark.yarn.jars": f"local:{SPARK_HOME}/jars/*",
}  # fmt: skip  # items grouped by line


@pytest.fixture
def hadoop(tmp_path: Path) -> Iterator[Hadoop]:
    jars, folder = require_hadoop_jars(), tmp_path / "hadoop"
    folder.mkdir()
    running = Hadoop(folder, jars, java_home(folder))
    try:
        running.start()
        yield running
    finally:
        running.stop()


def copied(spark: SparkSession, source: str, target: str) -> None:
    """Copy a folder between file systems with Hadoop's client."""
    jvm, settings = spark._jvm, spark._jsc.hadoopConfiguration()
    assert jvm is not None
    one, other = jvm.org.apache.hadoop.fs.Path(source), jvm.org.apache.hadoop.fs.Path(target)
    systems = one.getFileSystem(settings), other.getFileSystem(settings)
    assert jvm.org.apache.hadoop.fs.FileUtil.copy(systems[0], one, systems[1], other, False, settings)


def submitted(hadoop: Hadoop, folder: Path, out: str, traces: str) -> None:
    """The documented command, with ``--master yarn``."""
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "yarn", "--py-files", str(packaged(folder))]
    command += [part for name, value in OPTIONS.items() for part in ("--conf", f"{name}={value}")]
    command += [str(ROOT / "spark" / "job.py"), "--out", out, traces]
    done = subprocess.run(
        command, capture_output=True, text=True, env=hadoop.environment, cwd=folder, timeout=1500, check=False,
        preexec_fn=die_with(os.getpid()),
    )  # fmt: skip  # items grouped by line
    assert done.returncode == 0, done.stderr


def test_the_same_job_on_yarn_with_files_in_hdfs(hadoop: Hadoop, spark: SparkSession, tmp_path: Path) -> None:
    traces, embedded, fetched = tmp_path / "traces", tmp_path / "embedded", tmp_path / "fetched"
    generate(10_000, 3, 5, traces, print)
    copied(spark, f"file://{traces}", f"{hadoop.files}/traces")
    submitted(hadoop, tmp_path, f"{hadoop.files}/results", f"{hadoop.files}/traces")
    copied(spark, f"{hadoop.files}/results", f"file://{fetched}")
    Analysis(spark, str(embedded), print).run([str(traces)])
    for name in ("observations", "events", *KEPT):
        assert alike(rows(embedded / "tables" / name), rows(fetched / "tables" / name)), name
    assert (fetched / "report" / "index.html").is_file()
    assert hadoop.containers() == 3, "an application master and two executors"
