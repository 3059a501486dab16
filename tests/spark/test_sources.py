"""Wrong input of a user is refused before a JVM starts; the error gives its name and the remedy."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from replicated_namesrv.cli.main import main
from replicated_namesrv.spark.sources import InputError, find_runs
from replicated_namesrv.spark.storage import LocalFiles

MANIFEST = {"schema": 1, "run": "one", "mode": "cp", "seed": 3, "nodes": ["n1", "n2", "n3"], "scenario": {"name": "calm"}}
TRACE = '{"record":"header","time_ns":1,"schema":1,"run":"one"}\n{"record":"end","time_ns":2,"records":2}\n'


def made(folder: Path, trace: str = TRACE, **changed: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps(MANIFEST | changed))
    (folder / "trace.jsonl").write_text(trace)
    return folder


def test_a_run_is_what_its_manifest_says(tmp_path: Path) -> None:
    made(tmp_path / "suite" / "full" / "a", scenario={"name": "cut", "timing": {"fault_s": 7}}, read_consistency="lease")
    made(tmp_path / "suite" / "b", TRACE.replace("one", "two")[:-1], run="two", mode="java:5.5.0")
    (tmp_path / "suite" / "latest").symlink_to(tmp_path / "suite" / "b")
    two, cut = find_runs(LocalFiles(), [str(tmp_path / "suite")])
    assert (two.run, two.mode, two.about["read_consistency"]) == ("two", "java:5.5.0", "local")
    assert two.torn
    assert not cut.torn
    assert [cut.about[name] for name in ("scenario", "fault_s", "nodes", "read_consistency")] == ["cut", 7.0, 3, "lease"]


def test_what_vanishes_while_folders_are_looked_through_is_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An analysis that runs at the same time, in a folder beside the runs, removes its own folders."""
    made(tmp_path / "runs" / "one")
    for name in ("tables/new", "tables/old"):
        (tmp_path / "runs" / "analysis" / name).mkdir(parents=True)
    stat = os.stat

    def vanish(path: str, *arguments: object, **named: object) -> os.stat_result:
        if str(path).endswith("tables/new"):
            for place in (tmp_path / "runs" / "analysis" / "tables").iterdir():
                place.rmdir()
        return stat(path, *arguments, **named)  # type: ignore[arg-type]  # passed through unchanged

    monkeypatch.setattr(os, "stat", vanish)
    (source,) = find_runs(LocalFiles(), [str(tmp_path / "runs")])
    assert source.run == "one"
    assert not list((tmp_path / "runs" / "analysis" / "tables").iterdir()), "they did vanish"


Spoil = Callable[[Path], object]


def manifest(text: str) -> Spoil:
    return lambda run: (run / "manifest.json").write_text(text)


def told(**changed: object) -> Spoil:
    return manifest(json.dumps(MANIFEST | changed))


def trace(content: bytes) -> Spoil:
    return lambda run: (run / "trace.jsonl").write_bytes(content)


def folder_for(name: str) -> Spoil:
    def replace(run: Path) -> None:
        (run / name).unlink()
        (run / name).mkdir()

    return replace


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda run: (run / "manifest.json").unlink(), "manifest.json: is missing"),
        (manifest("{"), "manifest.json: not JSON"),
        (manifest(""), "manifest.json: not JSON"),
        (manifest("[]"), "manifest.json: is not a JSON object"),
        (manifest("[" * 100_000), "manifest.json: no manifest (nested too deeply)"),
        (manifest('"' + "x" * (17 << 20) + '"'), "manifest.json: not JSON (longer than 16 MiB)"),
        (folder_for("manifest.json"), "manifest.json: is a folder"),
        (told(schema=2), "manifest.json: schema version is 2, expected 1"),
        (
            told(mode="xp"),
            "manifest.json: mode is 'xp', expected ap, cp, or a foreign name server with its version, as in java:5.5.0",
        ),
        (
            told(mode="java:5"),
            "manifest.json: mode is 'java:5', expected ap, cp, or a foreign name server with its version, as in java:5.5.0",
        ),
        (
            told(mode=["ap"]),
            "manifest.json: mode is ['ap'], expected ap, cp, or a foreign name server with its version, as in java:5.5.0",
        ),
        (told(run="a/b"), "manifest.json: run is 'a/b'"),
        (told(seed=True), "manifest.json: seed is True, expected a number"),
        (told(seed=2**70), "manifest.json: seed is"),
        (told(nodes=[]), "manifest.json: nodes is []"),
        (told(scenario=[1]), "manifest.json: scenario is [1]"),
        (told(scenario={"timing": {"fault_s": "soon"}}), "manifest.json: scenario.timing.fault_s is 'soon', expected a number"),
        (told(clock={"offsets": {"n1": 5}}), "manifest.json: clock.offsets is 5"),
        (folder_for("trace.jsonl"), "trace.jsonl: is a folder"),
        (trace(b""), "trace.jsonl: is empty"),
        (trace(gzip.compress(TRACE.encode())), "trace.jsonl: does not begin with a header"),
        (trace(bytes(range(256)) * 1000), "trace.jsonl: does not begin with a header"),
        (trace(TRACE.replace('"schema":1', '"schema":9').encode()), "trace.jsonl: schema version 9, this version reads 1"),
        (trace(TRACE.replace("one", "other").encode()), "trace.jsonl: is of run 'other'"),
    ],
)
def test_bad_runs_are_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Spoil, said: str) -> None:
    made(tmp_path / "runs" / "good", TRACE.replace("one", "good"), run="good")
    bad = made(tmp_path / "runs" / "one")
    spoil(bad)
    assert main(["analyze", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"namesrv analyze: {bad}/{said}")
    assert "restore" in line or "record" in line or "give" in line, "the remedy is named"
    assert not (tmp_path / "out").exists()


def test_bad_arguments_are_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made(tmp_path / "runs" / "one")
    copied = made(tmp_path / "copies" / "one")
    (tmp_path / "empty").mkdir()
    (tmp_path / "linked").symlink_to(run)
    (tmp_path / "file").write_text("")
    patterned = made(tmp_path / "runs[1]" / "one")
    for arguments, said in (
        ([tmp_path / "empty"], f"{tmp_path}/empty: contains no run"),
        ([tmp_path / "none"], f"{tmp_path}/none: no such file or folder"),
        ([""], "RUN is empty"),
        ([run / "trace.jsonl"], f"{run}/trace.jsonl: is a file"),
        ([run, f"{run}/"], f"{run}: is given twice"),
        ([tmp_path / "runs", tmp_path / "linked"], f"{run}: is given twice"),
        ([run, copied], f"{copied}: run 'one' is in {run} too"),
        ([patterned], f"{patterned}: contains one of"),
        ([run, "--out", tmp_path / "file"], f"--out {tmp_path}/file: cannot be written to"),
        ([run, "--out", "/proc/nowhere"], "--out /proc/nowhere: cannot be written to"),
        ([run, "--master", "loacl[2]"], "--master loacl[2]: "),
        ([run, "--master", "local[0]"], "--master local[0]: "),
        ([run, "--master", "spark://127.0.0.1:1"], "--master spark://127.0.0.1:1: no process listens there"),
        ([run, "--memory", "200m"], "--memory 200m: give at least 512m"),
        ([run, "--memory", "3x"], "--memory 3x: give at least 512m"),
        ([run, "--memory", "90000g"], "--memory 90000g: this machine has"),
    ):
        assert main(["analyze", *map(str, arguments)]) == 2
        assert capsys.readouterr().err.startswith(f"namesrv analyze: {said}")
    assert sorted(path.name for path in run.iterdir()) == ["manifest.json", "trace.jsonl"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_what_may_not_be_read_or_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made(tmp_path / "runs" / "one")
    run.chmod(0o500)
    assert main(["analyze", str(run)]) == 2
    assert "cannot be written to (Permission denied)" in capsys.readouterr().err
    (run / "trace.jsonl").chmod(0)
    with pytest.raises(InputError, match=r"trace\.jsonl: Permission denied; make it readable"):
        find_runs(LocalFiles(), [str(run)])
    run.chmod(0o700)
