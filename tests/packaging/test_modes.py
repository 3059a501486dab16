"""The server and the admin side do not ask which mode runs: they use what every node offers (``confirms_reads`` and the like)."""

import ast

import pytest

from tests.packaging.tree import imports, layer, product_sources

ASKING_LAYERS = ("server", "admin")
NODE_LAYERS = ("replicated_namesrv.compat", "replicated_namesrv.replication", "replicated_namesrv.raft")
NODE_NAMES = {"IndependentNode", "ReplicatedNode", "is_replicated", "is_independent", "is_cp", "is_ap"}
INSPECTIONS = {"isinstance", "issubclass", "type", "hasattr", "getattr"}


def questions(tree: ast.Module) -> list[str]:
    """Places that ask for the mode, or for a member that only one kind of node has.

    ``settings.mode`` may be reported, as a value in a dictionary or a tuple. It may not be compared, branched on or kept.
    """
    reported = {
        id(value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict | ast.Tuple)
        for value in (node.values if isinstance(node, ast.Dict) else node.elts)
    }
    compared = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Compare) for part in ast.walk(node)}
    found = []
    for node in ast.walk(tree):
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None
        if name in NODE_NAMES or (name == "mode" and (id(node) not in reported or id(node) in compared)):
            found.append(f"line {node.lineno}: {name}")  # type: ignore[attr-defined]  # an expression has a line
        if isinstance(node, ast.Constant) and node.value in ("ap", "cp"):
            found.append(f"line {node.lineno}: {node.value!r}")
        if isinstance(node, ast.Call) and any(isinstance(part, ast.Constant) and part.value == "mode" for part in node.args):
            found.append(f"line {node.lineno}: a call with 'mode'")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in INSPECTIONS and node.args:
            inspected = node.args[0]
            asked = inspected.attr if isinstance(inspected, ast.Attribute) else getattr(inspected, "id", "")
            if asked.strip("_") == "service":
                found.append(f"line {node.lineno}: {node.func.id} of the service")
    return found


@pytest.mark.parametrize(
    "source",
    [
        'if service.mode == "cp": pass',
        "if settings.mode != AP: pass",
        "mode = context.settings.mode",
        "kept = context.settings.mode",
        "match service.mode:\n  case AP: pass",
        "x = (1, settings.mode) == (1, AP)",
        "if node.is_replicated: pass",
        "isinstance(self._service, Node)",
        'hasattr(service, "led_term")',
        "x = type(context.service)",
        'x = getattr(context.settings, "mode")',
        'x = settings.get("mode")',
        "def f(node: ReplicatedNode) -> None: pass",
        'x = {"cp": 1}',
    ],
)
def test_a_question_is_found(source: str) -> None:
    assert questions(ast.parse(source))


@pytest.mark.parametrize(
    "source",
    [
        'fields = {"mode": context.settings.mode}',
        "info.add_metric((version, context.settings.mode, node_id), 1)",
        "if service.confirms_reads: pass",
        "path.touch(mode=0o600)",
        "isinstance(outcome, Future)",
    ],
)
def test_what_is_reported_or_offered_by_every_node_is_no_question(source: str) -> None:
    assert not questions(ast.parse(source))


def test_server_and_admin_ask_no_node_for_its_mode() -> None:
    asking = {file: tree for file, tree in product_sources().items() if layer(file) in ASKING_LAYERS}
    assert len(asking) > 30
    assert not {file: found for file, tree in asking.items() if (found := questions(tree))}
    assert not [str(one) for file in asking for one in imports(file) if one.target.startswith(NODE_LAYERS)]
