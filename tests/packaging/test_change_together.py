"""Places that have to change together (CONTRIBUTING.md): a failure names the place that is missing."""

import ast
import dataclasses
import inspect
import re
from collections.abc import Callable

import pytest

from replicated_namesrv.cli.main import GROUPS, program_of
from replicated_namesrv.compat.independent_node import IndependentNode
from replicated_namesrv.replication import route_machine
from replicated_namesrv.replication.command_kinds import BASE_VERSION, COMMAND_KINDS, ENVELOPE_FORMAT, RESTORE_MARK
from replicated_namesrv.replication.replicated_node import ReplicatedNode
from replicated_namesrv.routes import commands, encoding, history, quotas, state
from replicated_namesrv.routes.commands import (
    BrokerRemoval,
    ChangeWritePerm,
    Command,
    DeleteKVConfig,
    DeleteTopic,
    UnregisterBrokers,
    UpdateSettings,
)
from replicated_namesrv.routes.tables import RouteSettings, Tables
from replicated_namesrv.server.change_handlers import ChangeService
from replicated_namesrv.server.query_handlers import QueryService
from replicated_namesrv.server.registrations import RegistrationService
from replicated_namesrv.wire.codes import RequestCode
from tests.packaging.tree import ROOT, product_sources, sources
from tests.routes.model import PlainModel

RELEASED_VERSION = 4
"""The newest command version of release 0.2. RELEASED_COMMANDS and RELEASED_KINDS are those of this release. Change them only to
those of a later release."""
RELEASED_COMMANDS = (
    *("RegisterBroker", "UnregisterBrokers", "RegisterTopic", "DeleteTopic", "ChangeWritePerm"),
    *("PutKVConfig", "DeleteKVConfig", "UpdateSettings"),
)
RELEASED_KINDS = {
    **{(ENVELOPE_FORMAT, kind): since for kind, since in enumerate((1, 1, 1, 1, 1, 2, 3, RELEASED_VERSION))},
    **dict.fromkeys(((RESTORE_MARK, kind) for kind in range(4)), 1),
}
"""First byte and kind of each command, with its version."""
COMMANDS_SINCE = {**dict.fromkeys(RELEASED_COMMANDS, BASE_VERSION)}
"""The command version of the kind in which each command is proposed (``replication/command_kinds.py``). Nodes of release 0.2 stop
at a command that is not in RELEASED_COMMANDS."""
SUMS = {
    "topic_revisions": "revisions_sum",
    "cluster_names": "clusters_sum",
    "mappings": "mappings_sum",
    "kv": "kv_sum",
    "groups": "groups_sum",
    "live": "live_sum",
}
"""Tables that the digest contains through a sum over their entries."""
_COMMAND, _SUM, _INDEX = "concerns the last command only", "is the sum of a table", "is derived from a table"
NOT_STORED = {
    **dict.fromkeys(("next_revision", "changed", "compares_content", "effects", "ended", "moved", "_touched"), _COMMAND),
    **dict.fromkeys(("revisions_sum", "groups_sum", "clusters_sum", "live_sum", "mapping_sums", "mappings_sum", "kv_sum"), _SUM),
    **dict.fromkeys(("topic_groups", "clusters_of", "clusters_at", "topic_mappings", "kv_index", "sizes"), _INDEX),
    "keeps_sums": "says how this process computes sums",
    "uncounted": "are the groups whose sum is not updated yet",
    "topic_names_changes": "shows this process whether copies of names are valid",
    "listing_changes": "shows this process whether copies of lists are valid",
    "memos": "are memos of this process's server, which it can make again",
    "kv_revision": "is the revision of a change in this process",
    "_interned": "saves memory",
}
"""Attributes of ``Tables`` that are not in a snapshot, each with the reason."""
PART_OF_A_COMMAND = BrokerRemoval
WITHOUT_TEXTS = UpdateSettings
"""A command whose only texts are names of settings."""
WITHOUT_OBJECTS = WITHOUT_BYTES = {UnregisterBrokers, DeleteTopic, ChangeWritePerm, DeleteKVConfig, UpdateSettings}
"""Commands that add no objects, and commands that add no bytes, to the state (``routes/quotas.py``)."""
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


def is_case_of(name: str, function: Callable[..., object]) -> bool:
    """Whether a ``case`` of the function has the class ``name``, alone or combined with others."""
    return re.search(rf"^ *case .*\b{name}\(", inspect.getsource(function), re.MULTILINE) is not None


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


@pytest.mark.parametrize(
    ("node", "file"),
    [
        (IndependentNode, "compat/independent_node.py"),
        (ReplicatedNode, "replicated_namesrv/replication/replicated_node.py"),
    ],
)
def test_both_nodes_implement_every_call_of_the_handlers(node: type, file: str) -> None:
    missing = [
        f"{node.__name__} in {file} has no {call}(), which {service.__name__} of server/ declares: add it"
        for service in (QueryService, ChangeService, RegistrationService)
        for call, value in vars(service).items()
        if inspect.isfunction(value) and not call.startswith("_") and not hasattr(node, call)
    ]
    assert not missing, "\n".join(missing)


def test_every_command_is_in_the_union_of_commands() -> None:
    missing = [
        f"{name} in routes/commands.py is not in Command at the end of this file: add it, or enter it in PART_OF_A_COMMAND here"
        for name, kind in vars(commands).items()
        if dataclasses.is_dataclass(kind) and kind is not PART_OF_A_COMMAND and kind not in Command.__args__
    ]
    assert not missing, "\n".join(missing)


def test_every_command_is_known_wherever_commands_are_told_apart() -> None:
    strategies = (ROOT / "tests" / "routes" / "strategies.py").read_text(encoding="utf-8")
    missing = []
    for kind in Command.__args__:
        name = kind.__name__
        places = {
            "_KINDS in routes/encoding.py": kind in encoding._KINDS,
            "_FIELDS_OF in routes/encoding.py": kind in encoding._FIELDS_OF,
            "_COMMAND_FROM in routes/encoding.py": encoding._KINDS.get(kind) in encoding._COMMAND_FROM,
            "_HANDLERS in routes/state.py": kind in state._HANDLERS,
            "describe() in routes/history.py": is_case_of(name, history.describe),
            "_texts() in routes/quotas.py": is_case_of(name, quotas._texts) or kind is WITHOUT_TEXTS,
            "'commands' in tests/routes/strategies.py": re.search(rf"\b{name}\b", strategies) is not None,
            f"PlainModel in tests/routes/model.py, as a method _{name}()": hasattr(PlainModel, f"_{name}"),
        }
        missing += [f"command {name} is not in {place}" for place, is_there in places.items() if not is_there]
    assert not missing, "\n".join(missing)


def test_every_command_that_stores_data_is_limited() -> None:
    objects = inspect.getsource(quotas.additions)
    missing = []
    for kind in Command.__args__:
        name = kind.__name__
        places = {
            ("byte_needs()", "WITHOUT_BYTES"): is_case_of(name, quotas.byte_needs) or kind in WITHOUT_BYTES,
            ("additions()", "WITHOUT_OBJECTS"): re.search(rf"\b{name}\b", objects) is not None or kind in WITHOUT_OBJECTS,
        }
        missing += [
            f"command {name} is not in {place} of routes/quotas.py: add it, or enter it in {exempt} of "
            "tests/packaging/test_change_together.py if it adds none to the state"
            for (place, exempt), is_there in places.items()
            if not is_there
        ]
    assert not missing, "\n".join(missing)


def test_every_command_has_the_version_of_a_kind() -> None:
    """Nodes of an older version stop at a command that they do not know."""
    kinds = {kind.since for kind in COMMAND_KINDS.values()}
    missing = [
        f"propose {kind.__name__} in a kind of a new version (replication/command_kinds.py), and enter both in COMMANDS_SINCE of "
        "tests/packaging/test_change_together.py"
        for kind in Command.__args__
        if COMMANDS_SINCE.get(kind.__name__) not in kinds
    ]
    assert not missing, "\n".join(missing)


def test_versions_of_released_commands_are_not_used_again() -> None:
    """A node of version 0.2 says that it applies version RELEASED_VERSION. It stops at a later command with such a version."""
    wrong = [
        f"COMMAND_KINDS of replication/command_kinds.py has no {row} (first byte, kind) since version {since}, which release 0.2 "
        "proposes: restore it"
        for row, since in RELEASED_KINDS.items()
        if row not in COMMAND_KINDS or COMMAND_KINDS[row].since != since
    ]
    wrong += [
        f"kind {kind.name} of replication/command_kinds.py has version {kind.since}, which release 0.2 used: give it a version "
        f"above {RELEASED_VERSION}"
        for row, kind in COMMAND_KINDS.items()
        if row not in RELEASED_KINDS and kind.since <= RELEASED_VERSION
    ]
    wrong += [
        f"command {kind.__name__} has version {COMMANDS_SINCE[kind.__name__]} in COMMANDS_SINCE, which release 0.2 used: propose "
        f"it in a kind of a version above {RELEASED_VERSION}"
        for kind in Command.__args__
        if kind.__name__ not in RELEASED_COMMANDS and COMMANDS_SINCE.get(kind.__name__, RELEASED_VERSION + 1) <= RELEASED_VERSION
    ]
    assert not wrong, "\n".join(wrong)


def test_every_table_is_in_digest_and_snapshot() -> None:
    """A table that is missing in the snapshot is lost at each restart. One that is missing in the digest can differ unnoticed."""
    hashed, written = (named(f"replicated_namesrv/routes/{file}.py", "tables") for file in ("digest", "snapshot"))
    attributes = vars(Tables(RouteSettings())).keys()
    wrong = []
    for name in sorted(attributes - NOT_STORED.keys()):
        places = {"digest": SUMS.get(name, name) in hashed, "snapshot": name in written}
        wrong += [
            f"Tables.{name} of routes/tables.py is not in {place}() of routes/{place}.py: add it, or enter it in NOT_STORED of "
            "tests/packaging/test_change_together.py with the reason"
            for place, is_there in places.items()
            if not is_there
        ]
    wrong += [f"NOT_STORED or SUMS has {name}, which Tables has not" for name in (NOT_STORED | SUMS).keys() - attributes]
    wrong += [f"Tables.{name} is in snapshots: remove it from NOT_STORED" for name in NOT_STORED.keys() & written]
    assert not wrong, "\n".join(wrong)


def test_every_kind_of_command_has_a_version_and_is_applied() -> None:
    kinds = {kind for first, kind in COMMAND_KINDS if first == ENVELOPE_FORMAT}
    handlers = set(route_machine._HANDLERS)
    missing = [f"kind {kind} is not in COMMAND_KINDS of replication/command_kinds.py" for kind in handlers - kinds]
    missing += [f"kind {kind} is not in _HANDLERS of replication/route_machine.py" for kind in kinds - handlers]
    assert not missing, "\n".join(missing)


def test_every_kind_of_command_is_proposed() -> None:
    names = {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for file, tree in product_sources().items()
        if not file.endswith("/route_machine.py")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute | ast.Name)
    }
    missing = [
        f"{name}() of replication/route_machine.py is never called: propose the command with it in replication/replicated_node.py"
        for name in vars(route_machine)
        if name.startswith("encode_") and name not in names
    ]
    assert not missing, "\n".join(missing)


PARTS_OF_A_CLI_MODULE = {"HELP", "add_arguments", "run"}


def parts_of(tree: ast.Module) -> set[str]:
    """The parts of a CLI command that a module defines or imports."""
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    names |= {ast.unparse(node.targets[0]) for node in tree.body if isinstance(node, ast.Assign)}
    names |= {alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    return names & PARTS_OF_A_CLI_MODULE


def test_every_cli_command_is_complete_and_offered() -> None:
    offered = {name for names in GROUPS.values() for name in names}
    folder = "replicated_namesrv/cli/"
    parts = {
        file.removeprefix(folder).removesuffix(".py"): parts_of(t) for file, t in sources().items() if file.startswith(folder)
    }
    wrong = [f"GROUPS of cli/main.py has the command {name}, but there is no cli/{name}.py" for name in offered - parts.keys()]
    for name, found in parts.items():
        if name in offered or len(found) > 1:
            wrong += [f"cli/{name}.py has no {part}" for part in sorted(PARTS_OF_A_CLI_MODULE - found)]
            wrong += [] if name in offered else [f"cli/{name}.py is a command, but {name} is not in GROUPS of cli/main.py"]
    assert not wrong, "\n".join(wrong)


def test_every_cli_command_is_on_a_page() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")))
    missing = [
        f"no page shows 'namesrv {name}': say when to use it, for example in docs/operations.md"
        for names in GROUPS.values()
        for name in names
        if not re.search(rf"\b{program_of(name)}\b", pages)
    ]
    assert not missing, "\n".join(missing)
