"""Checks the ``--json`` output of real commands with the schemas of docs/schemas."""

import json
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from tests.packaging.json_page import OUTPUTS

NAMES = {command: name for name, output in OUTPUTS.items() for command in output.commands}


def schema_of(arguments: tuple[str, ...]) -> str | None:
    """The name of the schema for a command line; None if the command has no ``--json`` output."""
    words = [word for word in arguments[:2] if not word.startswith("-")]
    return NAMES.get(" ".join(words)) or NAMES.get(arguments[0])


@cache
def _validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(OUTPUTS[name].schema)


def check_document(name: str, document: Any) -> None:
    """AssertionError if the document is not what the schema says."""
    errors = [f"{error.json_path}: {error.message[:300]}" for error in _validator(name).iter_errors(document)]
    assert not errors, f"not what docs/schemas/{name}.json says: {errors[:5]}"


def check_output(arguments: tuple[str, ...], text: str) -> None:
    """Check stdout of a command with ``--json``. Nothing is checked without ``--json``, or if it printed nothing.

    AssertionError if the output is not what its schema says.
    """
    if "--json" not in arguments or not text.strip():
        return
    name = schema_of(arguments)
    assert name is not None, f"no schema in tests/packaging/json_page.py for: {' '.join(arguments)}"
    for part in text.splitlines() if OUTPUTS[name].in_lines and not text.startswith(("{\n", "[\n")) else [text]:
        check_document(name, json.loads(part))
