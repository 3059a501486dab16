"""The kinds of changes that ``routes/history.py`` can record, read from its syntax tree."""

import ast
import inspect
from collections.abc import Iterator

from replicated_namesrv.routes import history


def kinds_of_events() -> set[str]:
    """The kinds that ``describe`` and its helpers return, and those that the class ``History`` adds itself."""
    return _kinds_in(ast.parse(inspect.getsource(history)))


def _kinds_in(tree: ast.Module) -> set[str]:
    found = set(history.REMOVALS)  # ``describe`` returns its argument ``removal``
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    (describes,) = [one.returns for one in functions if one.name == "describe" and one.returns is not None]
    for function in functions:
        if function.returns is not None and ast.dump(function.returns) == ast.dump(describes):
            for returned in (node.value for node in ast.walk(function) if isinstance(node, ast.Return)):
                if isinstance(returned, ast.Tuple):
                    found |= set(_values(returned.elts[0], function))
                else:
                    assert isinstance(returned, ast.Call), f"line {function.lineno} of routes/history.py: unknown form of return"
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "add" and len(call.args) == 4:
            kind = call.args[1]
            if isinstance(kind, ast.Constant) or (isinstance(kind, ast.Name) and kind.id.isupper()):
                found |= set(_values(kind, None))
    return found


def _values(kind: ast.expr, function: ast.FunctionDef | None) -> Iterator[str]:
    """The values that an expression for a kind can have."""
    match kind:
        case ast.Constant(value=str(text)):
            yield text
        case ast.IfExp():
            yield from _values(kind.body, function)
            yield from _values(kind.orelse, function)
        case ast.Name(id="removal"):
            yield from history.REMOVALS
        case ast.Name(id=name) if name.isupper():
            yield getattr(history, name)
        case ast.Name(id=name) if function is not None:
            values = [
                node.value
                for node in ast.walk(function)
                if isinstance(node, ast.Assign) and name in map(ast.unparse, node.targets)
            ]
            assert values, f"{name} of {function.name}() in routes/history.py has no value that this test can read"
            for value in values:
                yield from _values(value, function)
        case _:
            raise AssertionError(f"routes/history.py, line {kind.lineno}: cannot read the kind {ast.unparse(kind)}")
