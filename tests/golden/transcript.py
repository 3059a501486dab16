"""The format of a transcript, and how its commands are found and called.

A file is a sequence of blocks, separated by blank lines. A block is one or more commands, a line ``----``, and the output of
those commands up to the next blank line. Lines that begin with ``#`` are comments, before commands or as a block of their own::

    # Its timer fires.
    campaign n1
    run 10
    ----
    > 301.2 n1
      term=1 role=candidate

Commands are methods of a stage with the decorator ``command``. Their annotations say how the words of a line are read, so an
unknown command, a missing, a surplus and a malformed argument are errors with file and line number.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

SEPARATOR = "----"
F = TypeVar("F", bound=Callable[..., None])


class ScriptError(Exception):
    """A line of a script cannot be run; the text says which and why."""


@dataclass(frozen=True)
class Block:
    """``lines``: comments and commands. ``commands``: (line number, line), empty for a comment of its own."""

    lines: tuple[str, ...]
    commands: tuple[tuple[int, str], ...]


class Stage(Protocol):
    """The stage on which a script runs."""

    def convert(self, kind: object, word: str) -> object:
        """``word`` as an argument of the annotated type ``kind``. Raises ValueError."""

    def take_output(self) -> list[str]:
        """Lines since the last call."""

    def problem(self) -> str | None:
        """A broken invariant."""


def command(method: F) -> F:
    """Make a method a command of scripts; its name has ``-`` for ``_``."""
    method.is_command = True  # type: ignore[attr-defined]  # functions take attributes
    return method


def commands_of(kind: type) -> dict[str, Callable[..., None]]:
    """The commands of a class of stages by their names."""
    found: dict[str, Callable[..., None]] = {}
    for name, value in inspect.getmembers(kind, inspect.isfunction):
        if getattr(value, "is_command", False):
            found[name.rstrip("_").replace("_", "-")] = value
    return found


def parse(text: str, name: str) -> list[Block]:
    """The blocks of a file; raises ScriptError for a command without ``----``."""
    blocks: list[Block] = []
    lines = [*text.split("\n"), ""]
    paragraph: list[tuple[int, str]] = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            paragraph.append((number, line))
            continue
        if paragraph:
            blocks.append(_block(paragraph, name))
        paragraph = []
    return blocks


def _block(paragraph: list[tuple[int, str]], name: str) -> Block:
    lines: list[str] = []
    commands = []
    for number, line in paragraph:
        if line == SEPARATOR:
            break
        lines.append(line)
        if not line.startswith("#"):
            commands.append((number, line))
    else:
        if commands:
            raise ScriptError(f"{name}:{paragraph[0][0]}: commands without a line {SEPARATOR} after them")
    return Block(tuple(lines), tuple(commands))


def play(blocks: list[Block], stage: Stage, name: str) -> str:
    """Run the commands. Returns the file with their present output. Raises ScriptError."""
    paragraphs = []
    for block in blocks:
        if not block.commands:
            paragraphs.append("\n".join(block.lines))
            continue
        for number, line in block.commands:
            try:
                call(stage, line.split())
            except ScriptError as error:
                raise ScriptError(f"{name}:{number}: {line.strip()}: {error}") from error
            problem = stage.problem()
            if problem is not None:
                raise ScriptError(f"{name}:{number}: {line.strip()}: broken invariant: {problem}")
        output = stage.take_output() or ["ok"]
        paragraphs.append("\n".join([*block.lines, SEPARATOR, *output]))
    return "\n\n".join(paragraphs) + "\n"


def call(stage: Stage, words: list[str]) -> None:
    """Find the command ``words[0]`` and call it with the rest. Raises ScriptError."""
    known = commands_of(type(stage))
    method = known.get(words[0])
    if method is None:
        raise ScriptError(f"unknown command {words[0]!r}; there are: {', '.join(sorted(known))}")
    arguments, options = _arguments(stage, method, words[1:])
    method(stage, *arguments, **options)


def _arguments(stage: Stage, method: Callable[..., None], words: list[str]) -> tuple[list[object], dict[str, object]]:
    parameters = list(inspect.signature(method).parameters.values())[1:]
    named: Mapping[str, Any] = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}
    any_option = any(p.kind is p.VAR_KEYWORD for p in parameters)
    options: dict[str, object] = {}
    plain = []
    for word in words:
        key, equals, value = word.partition("=")
        if equals and key in named:
            options[key] = _convert(stage, named[key], value)
        elif equals and any_option:
            options[key] = value
        else:
            plain.append(word)
    arguments: list[object] = []
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            if plain:
                arguments.append(_convert(stage, parameter, plain.pop(0)))
            elif parameter.default is parameter.empty:
                raise ScriptError(f"missing argument {parameter.name}")
            else:
                arguments.append(parameter.default)
        elif parameter.kind is parameter.VAR_POSITIONAL:
            arguments.extend(_convert(stage, parameter, word) for word in plain)
            plain = []
    if plain:
        raise ScriptError(f"surplus argument {plain[0]!r}")
    return arguments, options


def _convert(stage: Stage, parameter: inspect.Parameter, word: str) -> object:
    try:
        return stage.convert(parameter.annotation, word)
    except ValueError as error:
        raise ScriptError(f"argument {parameter.name}: {error}") from None


def check(path: Path, stage: Stage, rewrite: bool) -> str | None:
    """Play the transcript at ``path``: None if the output is as written, or was rewritten, else what is different."""
    written = path.read_text()
    name = f"{path.parent.name}/{path.name}"
    present = play(parse(written, name), stage, name)
    if rewrite:
        if present != written:
            path.write_text(present)
        return None
    return None if present == written else difference(name, written, present)


def difference(name: str, written: str, present: str) -> str:
    """The first line that differs, with its number."""
    before, after = written.split("\n"), present.split("\n")
    for number in range(max(len(before), len(after))):
        old = before[number] if number < len(before) else "(nothing)"
        new = after[number] if number < len(after) else "(nothing)"
        if old != new:
            return (
                f"{name}:{number + 1} differs\n  written: {old}\n  now:     {new}\n"
                "if the change is intended, run pytest tests/golden --rewrite and review the difference"
            )
    return f"{name} differs"
