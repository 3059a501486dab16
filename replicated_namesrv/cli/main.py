"""``namesrv SUBCOMMAND``: finds and runs the module of a command, and imports no other.

A command is a module with ``HELP`` (one line), ``add_arguments(parser)`` and ``run(arguments) -> exit code``. It may define
``PARSER_CLASS`` if RocketMQ prescribes how wrong options are reported. The overview reads the ``HELP`` lines from the source
text, so it imports no command. Exit codes: 0 good, 1 bad or violated, 2 usage error or unknown. An error that the user can
correct is one line on stderr without a stack trace.
"""

import argparse
import ast
import difflib
import errno
import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from replicated_namesrv import __version__
from replicated_namesrv.cli.command_parser import CommandParser
from replicated_namesrv.errors import NamesrvError

EXIT_BAD = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk behind a redirected stdout (``namesrv topics > file``). If a command writes a file itself, it
raises one of the exceptions in ``errors`` instead."""

JUDGING = "Trials, load, fault injection, analysis"
"""Commands for which exit code 1 means that a promise was broken."""

GROUPS: dict[str, tuple[str, ...]] = {
    "Run name servers": ("cluster", "serve", "mqnamesrv"),
    "Inspect running name servers, ours or RocketMQ's own": (
        *("route", "topics", "brokers", "clusters"),
        *("kv", "config", "diff", "adopt"),
    ),
    "Operate": (
        *("status", "top", "doctor", "watch", "members", "leader", "drain"),
        *("backup", "restore", "recover", "switch", "access", "log", "completion"),
    ),
    JUDGING: ("demo", "broker", "simulate", "chaos", "study", "trace", "analyze"),
}
"""Commands by purpose, in the order of the overview. Commands without a module are not listed."""

_INTRODUCTION = """\
usage: namesrv COMMAND [options]

A name service for Apache RocketMQ: brokers, clients and mqadmin use it in place of RocketMQ's own name server.
"""

_FIRST_STEPS = """\
First steps:
  namesrv cluster                                three name servers on this machine; prints the address list for brokers
  namesrv topics -n 127.0.0.1:9876               the topics of one of them
  namesrv COMMAND --help                         options and examples of a command
"""


def available_commands() -> tuple[str, ...]:
    """Names of all commands that have a module."""
    return tuple(name for names in GROUPS.values() for name in names if _module_file(name).exists())


def _module_file(name: str) -> Path:
    return Path(__file__).with_name(f"{name}.py")


def summary(name: str) -> str:
    """The ``HELP`` line of a command, read from its source without importing it."""
    with _module_file(name).open(encoding="utf-8") as source:
        for line in source:
            if line.startswith(("HELP = ", "HELP: str = ")):
                return str(ast.literal_eval(line.partition(" = ")[2]))
    return ""


def overview() -> str:
    """Text of ``namesrv --help``."""
    available = available_commands()
    parts = [_INTRODUCTION]
    for title, names in GROUPS.items():
        lines = [f"  {name:<11} {summary(name)}" for name in names if name in available]
        if lines:
            parts.append("\n".join([f"{title}:", *lines, ""]))
    return "\n".join([*parts, _FIRST_STEPS])


def program_of(name: str) -> str:
    """The program and command name that the user typed."""
    return "mqnamesrv" if name == "mqnamesrv" else f"namesrv {name}"


def parser_of(name: str) -> tuple[argparse.ArgumentParser, object]:
    """The parser of one command and its module."""
    module = importlib.import_module(f"replicated_namesrv.cli.{name}")
    parser_class: type[argparse.ArgumentParser] = getattr(module, "PARSER_CLASS", CommandParser)
    parser = parser_class(
        prog=program_of(name),
        description=module.HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    return parser, module


class _LossyFile(io.FileIO):
    """Discards text that it cannot write."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def _open_streams() -> None:
    """If the process has no stdout or stderr (``>&-``), Python has None in its place. Replace it by a stream that discards
    everything. Text that stderr cannot accept, because its disk is full or its pipe is closed, is discarded, too. Otherwise the
    error would change the exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 -- open until the process ends
    given = sys.__stderr__
    if given is not None and sys.stderr is given:
        file = io.BufferedWriter(_LossyFile(given.fileno(), "w", closefd=False))
        sys.stderr = io.TextIOWrapper(file, given.encoding, "backslashreplace", line_buffering=True)


def run_command(name: str, arguments: Sequence[str]) -> int:
    """Run one command. Returns its exit code. Handles the exceptions of ``errors``, errors of files, and Ctrl-C."""
    _open_streams()
    for argument in arguments:
        if any("\ud800" <= character <= "\udfff" for character in argument):  # undecodable bytes can be neither sent nor printed
            print(f"{program_of(name)}: argument {argument!a} is not UTF-8; give it in UTF-8", file=sys.stderr)
            return EXIT_USAGE

    def work() -> int:
        parser, module = parser_of(name)
        code: int = module.run(parser.parse_args(arguments))  # type: ignore[attr-defined]  # each command has run
        return code

    return _reporting(program_of(name), work, EXIT_USAGE if name in GROUPS[JUDGING] else EXIT_BAD)


def is_reported(error: BaseException) -> bool:
    """Whether ``run_command`` reports this error of a file or of stdout in one line."""
    return isinstance(error, OSError) and (
        error.filename is not None or error.errno in DISK_FULL or isinstance(error, BrokenPipeError)
    )


def _reporting(program: str, work: Callable[[], int], file_error: int = EXIT_BAD) -> int:
    """The exit code of ``work``. An error that the user can correct is one line on stderr. ``file_error``: exit code if a file or
    folder cannot be used."""
    try:
        try:
            return work()
        finally:  # also after --help, which ends with SystemExit
            sys.stdout.flush()
    except NamesrvError as error:
        _tell(f"{program}: {error}")
        return EXIT_BAD
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return EXIT_BAD
    except OSError as error:
        if not is_reported(error):
            raise
        if error.filename is not None:
            correction = "repeat the command as another user" if isinstance(error, PermissionError) else "give another path"
            _tell(f"{program}: {error.filename}: {error.strerror}; {correction}")
            return file_error
        _silence_stdout()
        _tell(f"{program}: the output could not be written: {error.strerror}")
        return EXIT_USAGE


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _silence_stdout() -> None:
    """Discard the rest of stdout: the reader has closed the pipe (`namesrv topics | head`), or the disk is full. Otherwise Python
    reports the error again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print(text: str) -> int:
    def work() -> int:
        try:
            print(text, flush=True)
        except BrokenPipeError:
            _silence_stdout()
        return 0

    return _reporting("namesrv", work)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script ``namesrv``."""
    _open_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments:
        print(overview(), file=sys.stderr)
        return EXIT_USAGE
    name, *rest = arguments
    if name == "help" and rest:
        name, rest = rest[0], ["--help"]
    if name in ("-h", "--help", "help"):
        return _print(overview())
    if name in ("-V", "--version"):
        return _print(f"namesrv {__version__}")
    if name not in available_commands():
        print(f"namesrv: {_unknown(name)}", file=sys.stderr)
        return EXIT_USAGE
    return run_command(name, rest)


def _unknown(name: str) -> str:
    nearest = difflib.get_close_matches(name, available_commands(), n=1, cutoff=0.5)
    advice = f"did you mean 'namesrv {nearest[0]}'? " if nearest else ""
    kind = "option" if name.startswith("-") else "command"
    return f"unknown {kind} '{name}': {advice}'namesrv --help' lists all commands"


def mqnamesrv() -> int:
    """Entry point of the console script ``mqnamesrv``, the replacement of RocketMQ's."""
    return run_command("mqnamesrv", sys.argv[1:])
