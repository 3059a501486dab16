"""The checkout as data: tracked files, parsed sources, and the imports of each module, also those inside functions."""

import ast
import contextlib
import gc
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
LINKED = ("compat", "chaos", "spark")
"""Folders at the top that are packages of the product through links inside it."""
SOURCES = ("replicated_namesrv", *LINKED, "tests", "benchmarks", "deploy", ".ci")


class Import(NamedTuple):
    """One imported name and where."""

    file: str
    line: int
    target: str
    """Dotted: the module, and for ``from a import b`` also b."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.target}"


@cache
def tracked_files() -> tuple[Path, ...]:
    """Files to look at, relative to ROOT: those that git tracks or does not ignore. Without git, all that are not
    ``_ignored``."""
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        if (ROOT / ".git").exists():
            command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
            listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
            return tuple(sorted(path for path in map(Path, set(listed) - {""}) if (ROOT / path).is_file()))
    every = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
    return tuple(sorted(path for path in every if not any(map(_ignored, path.parts))))


def copy_checkout(folder: Path) -> None:
    """Write the tracked files into ``folder``, with the links to the top of the repository."""
    for name in tracked_files():
        target = folder / name
        if not any((ROOT / parent).is_symlink() for parent in name.parents):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    for linked in LINKED:
        (folder / linked).mkdir(exist_ok=True)
        (folder / "replicated_namesrv" / linked).symlink_to(f"../{linked}")


def _ignored(part: str) -> bool:
    """Whether files below a folder of this name are ignored, as .gitignore says."""
    return part in ("__pycache__", "build", "dist", "runs") or part.endswith(".egg-info") or (part[0] == "." and part != ".ci")


@cache
def sources() -> dict[str, ast.Module]:
    """Parsed Python files by path relative to ROOT; linked folders under their own names only."""
    gc.disable()  # collections while a tree grows take most of the time, and their finalizers may disturb the parser
    try:
        return {
            path.as_posix(): ast.parse((ROOT / path).read_bytes(), filename=str(path))
            for path in tracked_files()
            if path.suffix == ".py" and path.parts[0] in SOURCES and not (ROOT / path.parts[0] / path.parts[1]).is_symlink()
        }
    finally:
        gc.freeze()  # the trees stay, and each later collection would look at all their nodes
        gc.enable()


def product_sources() -> dict[str, ast.Module]:
    """The ``sources`` that are shipped."""
    return {name: tree for name, tree in sources().items() if name.split("/")[0] in ("replicated_namesrv", *LINKED)}


def statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """All statements, also those inside others. Most nodes of a tree belong to expressions, which contain no statement."""
    below: list[ast.AST] = [tree]
    while below:
        node = below.pop()
        for field in ("body", "orelse", "handlers", "finalbody", "cases"):
            inside = getattr(node, field, ())
            if isinstance(inside, list):  # the body of a lambda is an expression
                below += inside
        if isinstance(node, ast.stmt):
            yield node


@cache
def imports(file: str) -> tuple[Import, ...]:
    """Everything that ``file`` imports, at its top or anywhere below."""
    package = file.removesuffix(".py").split("/")[:-1]
    found = []
    for node in statements(sources()[file]):
        if isinstance(node, ast.Import):
            found += [Import(file, node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            found += [Import(file, node.lineno, f"{module}.{alias.name}") for alias in node.names]
    return tuple(found)


def layer(file: str) -> str:
    """The layer that a product file belongs to: the folder inside the package, or the module itself."""
    parts = file.removesuffix(".py").split("/")
    return parts[0] if parts[0] in LINKED else parts[1]


def module_of(file: str) -> str:
    """The dotted name under which a product file is imported."""
    parts = file.removesuffix(".py").removesuffix("/__init__").split("/")
    return ".".join(["replicated_namesrv", *parts] if parts[0] in LINKED else parts)
