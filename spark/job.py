"""The analysis as a program for ``spark-submit``, which sets the master.

python3 -m zipfile -c replicated_namesrv.zip replicated_namesrv
spark-submit --master … --py-files replicated_namesrv.zip spark/job.py --out hdfs:///results hdfs:///runs
"""

import argparse
import contextlib
import errno
import os
import re
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.spark.analysis import Analysis, Results
from replicated_namesrv.spark.output_lock import output_lock
from replicated_namesrv.spark.report import write_report
from replicated_namesrv.spark.session import EMBEDDED_MASTER, EMBEDDED_MEMORY, SparkFailedError, session
from replicated_namesrv.spark.sources import Source, check_name, find_runs
from replicated_namesrv.spark.storage import LocalFiles, SparkStorage, local_path


def analyse(
    paths: Sequence[str],
    out: str,
    say: Callable[[str], None],
    master: str | None = EMBEDDED_MASTER,
    memory: str = EMBEDDED_MEMORY,
) -> Results:
    """Analyse runs and write tables and report into ``out``. Raises NamesrvError for an error that the user can correct."""
    try:
        with terminable() as end_if_signalled:

            def say_unless_signalled(line: str) -> None:
                end_if_signalled()
                say(line)

            sources = _checked(paths, out, master, memory)
            here = None if master is None or "HADOOP_CONF_DIR" in os.environ else local_path(out)
            with _nothing_half_written(here, out), session("namesrv analyze", master, memory) as spark:
                storage = SparkStorage(spark)
                there = local_path(storage.qualified(out)) if here is None else None
                with _nothing_half_written(there, out):
                    analysis = Analysis(spark, out, say_unless_signalled)

                    def report(results: Results) -> None:
                        say_unless_signalled("report")
                        write_report(storage, results, out)

                    return analysis.run(paths, report) if sources is None else analysis.analyse(sources, report)
    except SparkFailedError as cause:
        raise ClusterError(remedy(str(cause), out)) from cause
    except OSError as cause:
        known = known_remedy(str(cause), out)
        raise ClusterError(known or f"{cause}; choose another --out") from cause


def _checked(paths: Sequence[str], out: str, master: str | None, memory: str) -> list[Source] | None:
    """Check the arguments before a JVM starts. Returns the runs if all of them are on this machine."""
    if master is None:
        return None
    if not re.fullmatch(MASTERS, master):
        raise ClusterError(f"--master {master}: local[*], spark://host:7077, yarn or k8s://https://host:443 is expected")
    if master.startswith("local"):
        _check_memory(memory)
    elif master.startswith("spark://"):
        _check_reachable(master)
    if "HADOOP_CONF_DIR" in os.environ or any(local_path(path) is None for path in paths):
        return None  # the path may belong to another file system than that of this machine
    sources = find_runs(LocalFiles(), [local_path(path) or "" for path in paths])
    check_name(out)
    return sources


def _check_reachable(master: str) -> None:
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        with contextlib.suppress(OSError, ValueError, OverflowError), socket.create_connection((host, int(port)), 5):
            return
    raise ClusterError(f"--master {master}: no process listens there; start the master, or correct host and port")


@contextmanager
def _nothing_half_written(here: str | None, out: str) -> Iterator[None]:
    """Lock ``here``, and remove the empty folders that a failed analysis created.

    ``here`` is the path of ``out`` on this machine. None: it is not known to be there, and nothing is done. Raises ClusterError
    if nothing can be written there, BusyError if another analysis writes there."""
    if here is None:
        yield
        return
    folder = Path(here).absolute()
    new = [place for place in (folder, *folder.parents) if not os.path.lexists(place)]
    try:
        with ExitStack() as stack:
            try:
                stack.enter_context(output_lock(folder, out))
                stack.push(lambda failure, *_: _remove_empty(folder / "tables") if failure else None)
                (folder / "tables").mkdir(exist_ok=True)
                with tempfile.TemporaryFile(dir=folder / "tables"):
                    pass
            except OSError as cause:
                reason = "the disk is full" if cause.errno == errno.ENOSPC else cause.strerror
                raise ClusterError(f"--out {out}: cannot be written to ({reason}); choose another folder") from None
            yield
    except BaseException:
        for place in new:
            with contextlib.suppress(OSError):
                place.rmdir()
        raise


def _remove_empty(folder: Path) -> None:
    """Remove a folder that contains no files, with its subfolders."""
    for place, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(place)  # rmdir removes only an empty folder


MASTERS = r"local(\[([1-9]\d{0,3}|\*)(,\d+)?\])?|spark://.+:\d+|yarn|k8s://.+"
MEMORY_MIN_MB = 512


def _check_memory(memory: str) -> None:
    found = re.fullmatch(r"(\d{1,6})([mg])", memory.lower())
    wanted_mb = int(found[1]) * (1024 if found[2] == "g" else 1) if found else 0
    if wanted_mb < MEMORY_MIN_MB:
        raise ClusterError(f"--memory {memory}: give at least {MEMORY_MIN_MB}m, for example 1600m or 3g")
    machine_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    if wanted_mb > machine_mb:
        raise ClusterError(f"--memory {memory}: this machine has {machine_mb}m; give less, or use a cluster with --master")


@contextmanager
def terminable() -> Iterator[Callable[[], None]]:
    """Let SIGTERM end the process as Control-C does, with all clean-up. A second SIGTERM does not interrupt the clean-up.

    Python drops an error that is raised in a callback of a weak reference, and the library that talks to the JVM has many. So the
    caller must call, from time to time, the function that this context yields. The function raises SystemExit after a signal.
    """
    status: int | None = None

    def end_if_signalled() -> None:
        if status is not None:
            sys.exit(status)

    if threading.current_thread() is not threading.main_thread():
        yield end_if_signalled
        return

    def end(number: int, _: FrameType | None) -> None:
        nonlocal status
        status = 128 + number
        for one in before:
            # a function, not SIG_IGN, because with SIG_IGN Python would report a signal that is already pending
            signal.signal(one, lambda *_: None)
        sys.exit(status)  # not KeyboardInterrupt, because the library that talks to the JVM would log it

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield end_if_signalled
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class ClusterError(NamesrvError):
    """Spark failed because a resource is missing that the user can provide. The text names the resource."""


_REMEDIES = (
    (r"OutOfMemoryError|GC overhead",
     "the JVM ran out of memory; give more with --memory, for example --memory 3g, or use a cluster with --master"),
    (r"No space left on device|Disk quota exceeded",
     "the disk is full; make room in the folder of --out ({out}) and in the temporary folder ({temporary}, from TMPDIR)"),
    (r"File too large",
     "a file is larger than the limit, in --out ({out}) or the temporary folder ({temporary}); raise the limit (ulimit -f)"),
    (r"Could not reserve enough|Invalid maximum heap size|insufficient memory",
     "Java could not be started with this heap; give less with --memory"),
    (r"HADOOP_CONF_DIR or YARN_CONF_DIR", "--master yarn needs the cluster's configuration; set HADOOP_CONF_DIR to its folder"),
    (r"Could not parse Master URL|All masters are unresponsive|Cannot call methods on a stopped SparkContext",
     "the Spark master of --master cannot be used; check its URL and that it runs"),
    (r"JAVA_GATEWAY_EXITED", "Java could not be started; check 'java -version' and JAVA_HOME"),
    (r"Answer from Java side is empty|while sending or receiving|Connection refused|Connection reset|Broken pipe"
     r"|Error while obtaining a new communication",
     "the JVM ended before the analysis, most likely for lack of memory; give more with --memory, but less than the machine has"),
)  # fmt: skip  # items grouped by line
"""Remedies: pairs of a pattern for an error text of Spark, the JVM or the system, and a remedy. The first pattern that matches
counts."""


def known_remedy(text: str, out: str) -> str | None:
    """The remedy for a failure with this ``text``; None if the failure is unknown."""
    for pattern, found in _REMEDIES:
        if re.search(pattern, text):
            return found.format(out=out, temporary=tempfile.gettempdir())
    return None


def remedy(text: str, out: str) -> str:
    """The known remedy; for an unknown failure, its last cause or the first line of its text."""
    causes = re.findall(r"^Caused by: (.+)", text, re.MULTILINE)
    said = causes[-1] if causes else text.strip().partition("\n")[0] or "it gives no reason"
    unknown = f"Spark failed: {said[:500]}; if the machine and the cluster work, report it with the runs that cause it"
    return known_remedy(text, out) or unknown


def main() -> int:
    """Entry point for spark-submit."""
    parser = argparse.ArgumentParser(
        description="compute the consistency and availability of AP and CP on this cluster; see namesrv analyze --help",
        epilog="every machine must be able to read RUN and write --out; each analysis needs its own --out. "
        "Exit 0: analysed. 2: wrong usage, or a run that cannot be analysed; the line says which and what to do.",
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run, or a folder that contains such folders")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for tables and report, for example hdfs:///results")
    arguments = parser.parse_args()
    try:
        analyse(arguments.runs, arguments.out, lambda line: print(line, file=sys.stderr, flush=True), None)
    except NamesrvError as error:
        print(f"namesrv analyze: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
