"""The analysis as a program for ``spark-submit``: no master of its own, whatever the cluster says.

python3 -m zipfile -c replicated_namesrv.zip replicated_namesrv
spark-submit --master … --py-files replicated_namesrv.zip spark/job.py --out hdfs:///results hdfs:///runs
"""

import argparse
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.spark.analysis import Analysis, Results
from replicated_namesrv.spark.report import write_report
from replicated_namesrv.spark.session import EMBEDDED_MASTER, EMBEDDED_MEMORY, SparkSaidError, session
from replicated_namesrv.spark.storage import Storage


def analyse(
    paths: Sequence[str],
    out: str,
    say: Callable[[str], None],
    master: str | None = EMBEDDED_MASTER,
    memory: str = EMBEDDED_MEMORY,
) -> Results:
    """Analyse runs and write tables and report into ``out``. Raises NamesrvError for input that cannot be analysed."""
    if master is not None and master.startswith("local"):
        _check_memory(memory)
    try:
        with _terminable(), session("namesrv analyze", master, memory) as spark:
            try:
                results = Analysis(spark, out, say).run(paths)
                say("report")
                write_report(Storage(spark), results, out)
                return results
            except (PySparkException, Py4JError) as cause:
                raise SparkSaidError(str(cause)) from cause
    except SparkSaidError as cause:
        reason = _remedy(str(cause))
        if reason is None:
            raise RuntimeError(str(cause)) from cause
        raise ClusterError(reason) from cause


MEMORY_MIN_MB = 512


def _check_memory(memory: str) -> None:
    found = re.fullmatch(r"(\d{1,6})([mg])", memory.lower())
    if found is None or int(found[1]) * (1024 if found[2] == "g" else 1) < MEMORY_MIN_MB:
        raise ClusterError(f"--memory {memory}: give at least {MEMORY_MIN_MB}m, for example 1600m or 3g")


@contextmanager
def _terminable() -> Iterator[None]:
    """A SIGTERM ends the process as Control-C does: what was begun is cleared away."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class ClusterError(NamesrvError):
    """Spark could not do its work for want of something that the user can give; the text says what."""


def _remedy(text: str) -> str | None:
    """What a user can do about an error of the JVM; None where it is a mistake of ours."""
    if "OutOfMemoryError" in text or "GC overhead" in text:
        return "the JVM ran out of memory; give more with --memory, for example --memory 3g, or use a cluster with --master"
    if "JAVA_GATEWAY_EXITED" in text:
        return "Java could not be started with this heap; give less with --memory, or check 'java -version'"
    if "Answer from Java side is empty" in text or "while sending or receiving" in text:
        return (
            "the JVM ended in the middle, most likely for want of memory; give more with --memory, or less than the machine has"
        )
    if "No space left on device" in text:
        return "the disk is full; make room in the folder of --out and in the temporary folder (TMPDIR)"
    if "Could not parse Master URL" in text or "All masters are unresponsive" in text:
        return "the Spark master of --master cannot be used; check its URL and that it runs"
    return None


def main() -> int:
    """What spark-submit runs."""
    parser = argparse.ArgumentParser(description="analyse recorded runs on this cluster")
    parser.add_argument("runs", nargs="+", help="folders of runs, or folders that hold them")
    parser.add_argument("--out", required=True, help="folder for tables and report")
    arguments = parser.parse_args()
    try:
        analyse(arguments.runs, arguments.out, lambda line: print(line, file=sys.stderr, flush=True), None)
    except NamesrvError as error:
        print(f"namesrv analyze: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
