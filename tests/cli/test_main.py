"""The table of commands."""

import importlib
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from replicated_namesrv import __version__
from replicated_namesrv.cli import main
from replicated_namesrv.errors import SettingError, UnavailableError
from tests.support.nodes import clean_environment, command, run_command
from tests.support.places import assert_same_names


@pytest.mark.parametrize("name", main.available_commands())
def test_every_command_keeps_the_contract(name: str) -> None:
    module = importlib.import_module(f"replicated_namesrv.cli.{name}")
    assert main.summary(name) == module.HELP != ""
    assert "\n" not in module.HELP
    assert len(module.HELP) <= 100
    assert callable(module.run)


@pytest.mark.parametrize("name", main.available_commands())
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main.main([name, "--help"])
    assert exited.value.code == 0
    assert main.summary(name) in " ".join(capsys.readouterr().out.split())


def test_overview_lists_exactly_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--help"]) == 0
    listed = {
        line.split()[0]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("  ") and not line.startswith("  namesrv")
    }
    assert_same_names(listed, "the output of namesrv --help", main.available_commands(), "available_commands()")
    assert {"serve", "mqnamesrv", "cluster"} <= listed


def test_no_command_is_a_usage_error_with_the_overview_on_stderr() -> None:
    done = run_command()
    assert (done.returncode, done.stdout) == (2, "")
    assert "Run name servers:" in done.stderr


@pytest.mark.parametrize(("given", "meant"), [("clutser", "cluster"), ("srve", "serve"), ("topic", "topics")])
def test_unknown_command_suggests_the_nearest(given: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([given]) == 2
    assert f"unknown command '{given}': did you mean 'namesrv {meant}'?" in capsys.readouterr().err


def test_unknown_option_is_called_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--zzz"]) == 2
    assert "unknown option '--zzz'" in capsys.readouterr().err


def test_version() -> None:
    assert run_command("--version").stdout == f"namesrv {__version__}\n"


def test_help_of_a_command_both_ways() -> None:
    assert run_command("help", "cluster").stdout == run_command("cluster", "--help").stdout


def test_overview_imports_no_command() -> None:
    code = (
        "import sys; from replicated_namesrv.cli.main import main; main(['--help']); print(sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=clean_environment())
    for heavy in ("asyncio", "aiohttp", "orjson", "replicated_namesrv.settings", "replicated_namesrv.cli.serve"):
        assert f"'{heavy}'" not in done.stderr


def test_overview_is_quick() -> None:
    """The limit is 150 ms, most of which is Python's own start. The best processor time of five runs counts, because other load
    must not decide."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command("--help"), capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    assert min(once() for _ in range(5)) < 0.15


def test_reader_that_goes_away_is_no_error_to_see() -> None:
    text = f"{' '.join(command('serve', '-p'))} | true"
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=False, env=clean_environment())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (SettingError("key=value: give another"), 1, "namesrv serve: key=value: give another\n"),
        (UnavailableError("no server answers"), 1, "namesrv serve: no server answers\n"),
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(), 1, ""),
    ],
)
def test_errors_end_as_one_line_and_an_exit_code(
    error: BaseException, code: int, told: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(arguments: object) -> int:
        raise error

    monkeypatch.setattr("replicated_namesrv.cli.serve.run", fail)
    monkeypatch.setattr("replicated_namesrv.cli.main._silence_stdout", lambda: None)
    assert main.main(["serve"]) == code
    assert capfd.readouterr() == ("", told)


@pytest.mark.parametrize("redirection", [">&-", ">&- 2>&-"])
def test_a_process_without_stdout_ends_as_usual(redirection: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" "$@" {redirection}', *command("chaos", "list")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("line", ["access token", "--help", "--version", "status --help", "mqnamesrv -h", "chaos list"])
def test_output_that_cannot_be_written_is_one_line_and_an_exit_code(line: str, unbuffered: str) -> None:
    environment = clean_environment(PYTHONUNBUFFERED=unbuffered)
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command(*line.split()), stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=environment
        )
    told = [text for text in done.stderr.splitlines() if "still running: " not in text]  # printed on a busy machine
    name = main.program_of(line.split()[0]) if not line.startswith("--") else "namesrv"
    assert (done.returncode, told) == (2, [f"{name}: the output could not be written: No space left on device"])


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("stderr", ["2>/dev/full", "2>&1 >/dev/null | true", "2>&-"])
@pytest.mark.parametrize(
    ("line", "code"),
    [
        *(("status -a nonsense", 1), ("status --nonsense", 2), ("nonsense", 2), ("", 2)),
        *(("serve --nonsense", 1), ("mqnamesrv -c /nonexistent", 255), ("recover /nonexistent", 2)),
    ],
)
def test_errors_that_cannot_be_written_keep_the_exit_code(line: str, code: int, stderr: str, unbuffered: str) -> None:
    text = f'"$0" "$@" {stderr}; echo ${{PIPESTATUS[0]}}'
    done = subprocess.run(
        ["bash", "-c", text, *command(*line.split())],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env=clean_environment(PYTHONUNBUFFERED=unbuffered),
    )
    assert done.stdout.splitlines()[-1] == str(code)


@pytest.mark.parametrize(
    "arguments",
    [
        ("log", "inspect", "{}"),
        ("recover", "{}"),
        ("switch", "--to", "ap", "{}", "--backup", "b"),
        ("backup", "{}"),
        ("kv", "export", "{}"),
        ("config", "export", "{}"),
        ("drain", "-c", "{}"),
        ("chaos", "results", "{}"),
    ],
)
def test_a_folder_of_another_user_is_one_line_and_an_exit_code(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """For example, folders in /var/lib/private, which systemd creates, can be opened only by root."""
    folder = tmp_path / "private"
    folder.mkdir(mode=0)
    unprivileged = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if os.geteuid() == 0 else ()
    words = (*unprivileged, *command(*(word.format(folder / "data") for word in arguments)))
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=clean_environment())
    assert done.returncode == (2 if arguments[0] == "chaos" else 1), "1 of chaos means that a promise was broken"
    line = rf"namesrv [a-z ]+: {folder}/data\S*: Permission denied; (repeat|give) [^\n]*\n"
    told = "".join(text for text in done.stderr.splitlines(True) if "still running: " not in text)
    assert re.fullmatch(line, told), done.stderr
