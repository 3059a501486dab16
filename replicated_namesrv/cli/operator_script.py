"""Runs a command of an operator for one server, without a shell: ``adopt --swap`` and ``switch --walk``."""

import asyncio
import shlex
import sys
from collections.abc import Mapping, Sequence

from replicated_namesrv.cli.admin import reason_of
from replicated_namesrv.errors import NamesrvError, SettingError

END_S = 5.0
"""Time that a command has to end after SIGTERM."""


class ScriptError(NamesrvError):
    """The command could not be run, failed, or did not end in time."""


def words_of(option: str, command: str, missing: str = "give a command") -> list[str]:
    """Split a command as a shell does. ``missing``: the remedy if there is none. Raises SettingError."""
    try:
        found = shlex.split(command)
    except ValueError as cause:
        raise SettingError(f"{option} {command!r}: {cause}; quote it as for a shell") from None
    if not found:
        raise SettingError(f"{option} {command!r}: {missing}")
    return found


def filled(words: Sequence[str], values: Mapping[str, str], lists: Mapping[str, Sequence[str]] | None = None) -> list[str]:
    """``words`` with ``{name}`` replaced by the value of this name. A word that consists of the ``{name}`` of a list is replaced
    by the items of this list."""
    found: list[str] = []
    for word in words:
        items = (lists or {}).get(word[1:-1]) if word.startswith("{") and word.endswith("}") else None
        for name, value in values.items() if items is None else ():
            word = word.replace("{" + name + "}", value)
        found += [word] if items is None else items
    return found


def address_values(address: str) -> dict[str, str]:
    """The values ``host``, ``port`` and ``address`` of a server."""
    host, _, port = address.rpartition(":")
    return {"host": host.strip("[]"), "port": port, "address": address}


async def run_script(option: str, address: str, words: Sequence[str], within_s: float) -> None:
    """Run the command for the server at ``address``. Its output goes to stderr. Raises ScriptError."""
    try:
        process = await asyncio.create_subprocess_exec(*words, stdout=sys.stderr)
        async with asyncio.timeout(within_s):
            code = await process.wait()
    except TimeoutError:  # a subclass of OSError, so it comes first
        await _end(process)
        raise ScriptError(
            f"{address}: the command of {option} did not end within {within_s} s, and was stopped: {shlex.join(words)}; "
            "whether the server was replaced is unknown: see which one runs, and repeat the command when all servers answer"
        ) from None
    except OSError as cause:
        raise ScriptError(f"{address} was not changed: {words[0]}: {reason_of(cause)}") from None
    if code:
        raise ScriptError(
            f"{address}: the command of {option} ended with {code}: {shlex.join(words)}; the other servers were not touched"
        )


async def _end(process: asyncio.subprocess.Process) -> None:
    """Terminate a process; kill it if it does not end."""
    process.terminate()
    try:
        async with asyncio.timeout(END_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
