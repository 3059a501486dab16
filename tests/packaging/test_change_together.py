"""Places that have to change together (CONTRIBUTING.md): a failure names the place that is missing."""

import ast
import inspect
import re

from replicated_namesrv.cli.main import GROUPS
from replicated_namesrv.replication.command_kinds import BASE_VERSION, COMMAND_KINDS
from replicated_namesrv.routes import encoding, history, state
from replicated_namesrv.routes.commands import Command
from replicated_namesrv.wire.codes import RequestCode
from tests.packaging.tree import ROOT, sources

COMMANDS_SINCE = {
    **dict.fromkeys(("RegisterBroker", "UnregisterBrokers", "RegisterTopic", "DeleteTopic", "ChangeWritePerm"), BASE_VERSION),
    **dict.fromkeys(("PutKVConfig", "DeleteKVConfig", "UpdateSettings"), BASE_VERSION),
}
"""The command version of the kind in which each command is proposed (``replication/command_kinds.py``)."""
HANDLERS = ("query_handlers", "change_handlers", "dispatch")
SENT = {RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE}
"""Sent by a name server, so it has no handler."""


def named(file: str, owner: str) -> set[str]:
    """Names ``X`` of all ``owner.X`` in a source file."""
    return {
        node.attr
        for node in ast.walk(sources()[file])
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == owner
    }


def test_every_request_code_has_a_handler() -> None:
    handled = set[str]().union(*(named(f"replicated_namesrv/server/{name}.py", "RequestCode") for name in HANDLERS))
    missing = [
        f"request code {code.value} ({code.name}) has no handler: enter it in handlers() of server/query_handlers.py or "
        "server/change_handlers.py"
        for code in RequestCode
        if code.name not in handled and code not in SENT
    ]
    assert not missing, "\n".join(missing)


def test_every_request_code_has_a_row_in_the_compatibility_page() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    rows = {int(code): name for code, name in re.findall(r"^\| (\d+) \| `(\w+)` \|", page, re.MULTILINE)}
    wrong = [
        f"request code {code.value} has no row in docs/compatibility.md: add '| {code.value} | `{code.name}` | … |'"
        for code in RequestCode
        if rows.get(code.value) != code.name
    ]
    unknown = rows.keys() - {code.value for code in RequestCode}
    wrong += [f"docs/compatibility.md has a row for request code {code}, which RequestCode has not" for code in sorted(unknown)]
    assert not wrong, "\n".join(wrong)


def test_every_command_is_known_wherever_commands_are_told_apart() -> None:
    described = inspect.getsource(history.describe)
    strategies = (ROOT / "tests" / "routes" / "strategies.py").read_text(encoding="utf-8")
    missing = []
    for kind in Command.__args__:
        name = kind.__name__
        places = {
            "_KINDS in routes/encoding.py": kind in encoding._KINDS,
            "_FIELDS_OF in routes/encoding.py": kind in encoding._FIELDS_OF,
            "_COMMAND_FROM in routes/encoding.py": encoding._KINDS.get(kind) in encoding._COMMAND_FROM,
            "_HANDLERS in routes/state.py": kind in state._HANDLERS,
            "describe() in routes/history.py": f"case {name}()" in described,
            "'commands' in tests/routes/strategies.py": re.search(rf"\b{name}\b", strategies) is not None,
        }
        missing += [f"command {name} is not in {place}" for place, is_there in places.items() if not is_there]
    assert not missing, "\n".join(missing)


def test_every_command_has_the_version_of_a_kind() -> None:
    """Nodes of an older version stop at a command that they do not know."""
    kinds = {kind.since for kind in COMMAND_KINDS.values()}
    missing = [
        f"propose {kind.__name__} in a kind of a new version (replication/command_kinds.py), and enter both in COMMANDS_SINCE"
        for kind in Command.__args__
        if COMMANDS_SINCE.get(kind.__name__) not in kinds
    ]
    assert not missing, "\n".join(missing)


def test_every_command_module_is_offered() -> None:
    offered = {name for names in GROUPS.values() for name in names}
    missing = [
        f"{file} has a HELP line, but the command is not in GROUPS of replicated_namesrv/cli/main.py"
        for file, tree in sources().items()
        if file.startswith("replicated_namesrv/cli/")
        and any(isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "HELP" for node in tree.body)
        and file.rpartition("/")[2].removesuffix(".py") not in offered
    ]
    assert not missing, "\n".join(missing)
