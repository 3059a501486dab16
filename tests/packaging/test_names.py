"""A name means one thing: no two modules of the product share a file name, no two top-level classes a class name."""

import ast
from collections.abc import Iterable
from pathlib import PurePosixPath

from tests.packaging.tree import product_sources

CONVENTIONAL = {"__init__.py", "__main__.py"}
COMMANDS = "replicated_namesrv/cli"
"""A command's module has the command's name. The module that does the command's work may have the same name."""


def repeated(names: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Names that occur at several places, with these places."""
    places: dict[str, list[str]] = {}
    for name, place in names:
        places.setdefault(name, []).append(place)
    return {name: found for name, found in places.items() if len(found) > 1}


def test_a_repeated_name_is_found() -> None:
    assert repeated([("a.py", "x/a.py"), ("b.py", "x/b.py"), ("a.py", "y/a.py")]) == {"a.py": ["x/a.py", "y/a.py"]}


def test_file_names_are_unique() -> None:
    paths = [PurePosixPath(file) for file in product_sources()]
    found = repeated((p.name, str(p)) for p in paths if p.name not in CONVENTIONAL and str(p.parent) != COMMANDS)
    assert not found, "\n".join(f"{name} names {' and '.join(places)}: rename one" for name, places in found.items())


def test_class_names_are_unique() -> None:
    """This concerns classes at the top of a module whose names do not begin with an underscore."""
    classes = [
        (node.name, file)
        for file, tree in product_sources().items()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    found = repeated(classes)
    assert not found, "\n".join(f"{name} names {' and '.join(places)}: rename one" for name, places in found.items())
