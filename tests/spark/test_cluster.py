"""The same job on a real standalone cluster, a master and two workers from the pyspark wheel: same tables, and no files left."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from replicated_namesrv.child_process import die_with
from replicated_namesrv.spark.analysis import KEPT, Analysis
from replicated_namesrv.spark.generate import generate
from replicated_namesrv.spark.java import java_home
from tests.spark.processes import processes_of, wait_for
from tests.spark.submitted import QUICK_START, ROOT, SPARK_HOME, alike, packaged, rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


class Cluster:
    """A master and workers on ports that the kernel chooses. Everything that they write is in ``folder``."""

    def __init__(self, folder: Path, home: Path) -> None:
        self._folder = folder
        for name in ("conf", "local", "work", "temporary", "logs"):
            (folder / name).mkdir()
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))},
            "JAVA_HOME": str(home), "SPARK_HOME": str(SPARK_HOME), "SPARK_CONF_DIR": str(folder / "conf"),
            "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(folder / "local"), "PYSPARK_PYTHON": sys.executable,
            "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": QUICK_START, "TMPDIR": str(folder / "temporary"),
        }  # fmt: skip  # items grouped by line
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def start(self, workers: int) -> None:
        """Master first; every worker has registered when this returns."""
        log = self._daemon("master.Master")
        self.url = self._said(log, r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")
        logs = [
            self._daemon("worker.Worker", "--cores", "1", "--memory", "1g", "--work-dir", f"{self._folder}/work", self.url)
            for _ in range(workers)
        ]
        for log in logs:
            self._said(log, r"(Successfully registered with master)")

    def _daemon(self, name: str, *arguments: str) -> Path:
        log = self._folder / "logs" / f"{len(self._processes)}.log"
        command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
        command += ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0", *arguments]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=self.environment, start_new_session=True,
                preexec_fn=die_with(os.getpid()),
            )  # fmt: skip  # items grouped by line
        self._processes.append(process)
        return log

    def _said(self, log: Path, pattern: str) -> str:
        def found() -> re.Match[str] | None:
            assert all(process.poll() is None for process in self._processes), log.read_text()
            return re.search(pattern, log.read_text())

        match = wait_for(found, lambda: f"{pattern} in {log.read_text()}")
        return str(match[1])

    def submit(self, package: Path, out: Path, traces: Path) -> None:
        """The documented command."""
        options = {
            "spark.driver.extraJavaOptions": QUICK_START, "spark.executor.extraJavaOptions": QUICK_START,
            "spark.driver.memory": "600m", "spark.executor.memory": "600m", "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
        }  # fmt: skip  # items grouped by line
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", self.url, "--py-files", str(package)]
        command += [part for name, value in options.items() for part in ("--conf", f"{name}={value}")]
        command += [str(ROOT / "spark" / "job.py"), "--out", str(out), str(traces)]
        done = subprocess.run(
            command, capture_output=True, text=True, env=self.environment, cwd=self._folder, timeout=1500, check=False,
            preexec_fn=die_with(os.getpid()),
        )  # fmt: skip  # items grouped by line
        assert done.returncode == 0, done.stderr

    def stop(self) -> None:
        """Stop the processes. Workers end what they started; processes that remain in a session are killed."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    folder = tmp_path / "cluster"
    folder.mkdir()
    running = Cluster(folder, java_home(folder))
    try:
        running.start(2)
        yield running
    finally:
        running.stop()


def test_the_same_job_on_a_standalone_cluster(cluster: Cluster, spark: SparkSession, tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    generate(10_000, 3, 5, traces, print)
    package = packaged(tmp_path)
    submitted, embedded = tmp_path / "submitted", tmp_path / "embedded"
    cluster.submit(package, submitted, traces)
    Analysis(spark, str(embedded), print).run([str(traces)])
    for name in ("observations", "events", *KEPT):
        ours, theirs = rows(embedded / "tables" / name), rows(submitted / "tables" / name)
        assert alike(ours, theirs), name
    assert (submitted / "report" / "index.html").is_file()
    assert len(list((tmp_path / "cluster" / "work").glob("app-*/*/stdout"))) == 2, "each worker took part"
    cluster.stop()
    wait_for(lambda: not processes_of(tmp_path), lambda: "\n".join(processes_of(tmp_path)))
    left = [path for name in ("local", "temporary") for path in (tmp_path / "cluster" / name).rglob("*") if path.is_file()]
    assert not left
