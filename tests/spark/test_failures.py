"""Messages when the machine's resources run out: the folder or setting concerned, and the remedy."""

import logging
from pathlib import Path

import pytest
from py4j import java_gateway

from replicated_namesrv.spark import java, session
from replicated_namesrv.spark.job import known_remedy, remedy
from replicated_namesrv.spark.session import SparkFailedError


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("java.lang.OutOfMemoryError: Java heap space", "the JVM ran out of memory; give more with --memory"),
        ("java.io.IOException: No space left on device", "the disk is full; make room in the folder of --out (results)"),
        ("[Errno 122] Disk quota exceeded: 'x'", "the disk is full; make room in the folder of --out (results)"),
        ("Cannot unpack libzstd-jni: File too large", "a file is larger than the limit, in --out (results)"),
        ("[JAVA_GATEWAY_EXITED] Java gateway process exited", "Java could not be started; check 'java -version'"),
        ("[Errno 111] Connection refused", "the JVM ended before the analysis, most likely for lack of memory"),
        ("x\nCaused by: java.lang.Odd: why\n\tat y", "Spark failed: java.lang.Odd: why; "),
    ],
)
def test_a_failure_is_told_with_its_remedy(said: str, told: str) -> None:
    assert remedy(said, "results").startswith(told)


def test_paths_are_not_taken_for_failures() -> None:
    assert known_remedy("[Errno 13] Permission denied: 'results'", "results") is None


def test_of_a_jvm_that_ended_its_own_last_words_are_told(tmp_path: Path) -> None:
    """A refused connection has no details; the JVM's last output has."""
    log = tmp_path / "jvm.log"
    log.write_text("Terminating due to java.lang.OutOfMemoryError: Java heap space\n")
    with pytest.raises(SparkFailedError, match="OutOfMemoryError") as ended, session._with_jvm_log(log):
        raise ConnectionRefusedError(111, "Connection refused")
    assert remedy(str(ended.value), "results").startswith("the JVM ran out of memory")


def test_a_full_disk_names_the_folders() -> None:
    """The disk is really full: /dev/full accepts no byte."""
    with pytest.raises(OSError, match="No space left") as full:
        Path("/dev/full").write_text("x")
    told = remedy(str(full.value), "results")
    assert "(results)" in told
    assert "TMPDIR" in told


@pytest.mark.parametrize("version", ['openjdk version "11.0.22" 2024-01-16', 'java version "1.8.0_401"', "not a Java at all"])
def test_an_older_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{version}' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for module in ("replicated_namesrv.provision", "importlib.util"):
        monkeypatch.setattr(f"{module}.find_spec", lambda _: None)
    with pytest.raises(java.NoJavaError, match=f"needs Java 17 or later, JAVA_HOME={tmp_path}, .* is older or does not run"):
        java.java_home(tmp_path)


def test_the_library_that_talks_to_the_jvm_writes_nothing_of_its_own() -> None:
    """The library logs to the root logger when a JVM ends. These messages are removed; those of other libraries stay."""
    said = [logging.LogRecord("root", logging.ERROR, place, 1, "", (), None) for place in (java_gateway.__file__, __file__)]
    assert [session._is_ours(record) for record in said] == [False, True]
