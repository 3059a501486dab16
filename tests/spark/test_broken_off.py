"""Interrupted analyses in their own processes: no partial file, folder or process is left."""

import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from replicated_namesrv.spark.generate import generate
from replicated_namesrv.spark.job import terminable
from tests.spark.processes import processes_of, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def started(traces: Path, temporary: Path, *arguments: str) -> subprocess.Popen[str]:
    temporary.mkdir()
    command = [sys.executable, "-m", "replicated_namesrv", "analyze", str(traces), *arguments]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "TMPDIR": str(temporary), "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"},
    )  # fmt: skip  # items grouped by line


def test_a_terminated_analysis_leaves_nothing(tmp_path: Path) -> None:
    generate(10_000, 3, 1, tmp_path / "traces", print)
    temporary, out = tmp_path / "temporary", tmp_path / "out"
    process = started(tmp_path / "traces", temporary, "--out", str(out))
    assert process.stderr is not None
    with process.stderr as lines:
        said = []
        for line in lines:
            said.append(line)
            if line.rstrip().endswith(" s  figures"):
                process.send_signal(signal.SIGTERM)
                process.send_signal(signal.SIGINT)  # a second signal must not stop the clean-up
                said.append(lines.read())
                break
    assert process.wait(600) in (128 + signal.SIGTERM, 128 + signal.SIGINT), "".join(said)
    assert not any("Traceback" in line for line in said), "".join(said)
    assert sorted(path.name for path in (out / "tables").iterdir()) == [
        "events",
        "ingested",
        "judged_runs",
        "looks",
        "observations",
    ], "".join(said)
    assert not list(temporary.glob("namesrv-analyze-*"))
    wait_for(lambda: not processes_of(temporary), lambda: "\n".join(processes_of(temporary)))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_in_a_weak_reference_callback_is_not_lost() -> None:
    class Referent:
        pass

    def lose_a_signal(end_if_signalled: Callable[[], None]) -> None:
        end_if_signalled()
        referent = Referent()
        reference = weakref.ref(referent, lambda _: signal.raise_signal(signal.SIGTERM))
        del referent
        assert reference() is None
        end_if_signalled()

    with terminable() as end_if_signalled, pytest.raises(SystemExit) as ended:
        lose_a_signal(end_if_signalled)
    assert ended.value.code == 128 + signal.SIGTERM
