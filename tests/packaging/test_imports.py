"""Directions of import between the layers, what pure layers may know of the world, and names that mean somebody else's code."""

import sys
import tomllib

from packaging.requirements import Requirement

from tests.packaging.tree import LINKED, ROOT, Import, imports, layer, product_sources, sources

BASE = {"__version__", "errors", "model"}
"""Values and errors: free to all."""

MAY_IMPORT = {
    "wire": set(),
    "routes": set(),
    "raft": {"files"},
    "verify": set(),
    "simulation": {"raft", "replication", "routes", "service", "settings", "verify", "files"},
    "files": set(),
    "provision": set(),
    "child_process": set(),
    "settings": {"wire"},
    "service_manager": set(),
    "service": {"routes"},
    "server": {"service", "routes", "wire", "client", "settings", "files"},
    "admin": {"service", "routes", "wire", "settings", "server", "files"},
    "config_writer": {"settings", "files", "routes"},
    "compat": {"service", "routes", "settings", "files", "config_writer"},
    "replication": {"service", "routes", "raft", "settings", "files", "config_writer"},
    "client": {"wire"},
    "chaos": {"client", "wire", "verify", "provision", "settings", "files", "child_process"},
    "spark": {"verify", "provision", "files"},
    "node": {"service", "compat", "replication", "server", "admin", "settings", "files", "service_manager"},
    "cli": None,
    "__main__": {"cli"},
}
"""Layers that each layer may import besides itself and BASE; None: any. A layer that is not here may not exist."""

TRACE_CONTRACT = "replicated_namesrv.chaos.records"
"""The one module of chaos that spark imports: it declares what a trace holds, and imports nothing of chaos."""

PURE = ("wire", "routes", "verify")
PURE_MAY_IMPORT = {
    *(
        "__future__",
        "abc",
        "array",
        "ast",
        "base64",
        "binascii",
        "bisect",
        "collections",
        "copy",
        "dataclasses",
        "decimal",
        "enum",
    ),
    *("functools", "hashlib", "heapq", "io", "ipaddress", "itertools", "json", "math", "operator", "re", "string", "struct"),
    *("types", "typing", "unicodedata", "weakref", "zlib", "orjson", "xxhash", "sys.intern"),
}
"""Libraries without IO, clock or randomness."""
PURE_EXCEPTIONS = {"replicated_namesrv/verify/history.py": {"pathlib"}}
"""The one reader of history files."""

EXTRAS = ("chaos", "spark")
"""Layers whose libraries come with an extra of their name."""


def internal(found: Import) -> str | None:
    """The layer an import leads to, None if it leads out of the product."""
    parts = found.target.split(".")
    return parts[1] if parts[0] == "replicated_namesrv" and len(parts) > 1 else None


def wrong_directions(file: str) -> list[str]:
    """Imports of ``file`` that lead where its layer may not look."""
    own = layer(file)
    if own == "__init__" or own in BASE:
        allowed: set[str] | None = set()
    else:
        assert own in MAY_IMPORT, f"{own} is a new layer: enter it in MAY_IMPORT with what it may import"
        allowed = MAY_IMPORT[own]
    if allowed is None:
        return []
    return [str(found) for found in imports(file) if internal(found) not in {None, own, *BASE, *allowed} and not _contract(found)]


def _contract(found: Import) -> bool:
    """Whether it is the analysis that imports what a trace holds."""
    return layer(found.file) == "spark" and found.target.startswith(f"{TRACE_CONTRACT}.")


def test_layers_import_only_what_they_may() -> None:
    assert not [wrong for file in product_sources() for wrong in wrong_directions(file)]


def test_pure_layers_know_no_io_clock_or_randomness() -> None:
    wrong = []
    for file in product_sources():
        if layer(file) in PURE:
            allowed = PURE_MAY_IMPORT | PURE_EXCEPTIONS.get(file, set()) | {"replicated_namesrv"}
            wrong += [str(found) for found in imports(file) if not {found.target, found.target.split(".")[0]} & allowed]
    assert not wrong


def test_bare_names_of_linked_folders_are_never_imported() -> None:
    """Those names belong to other projects; inside the product the folders are replicated_namesrv.compat and so on."""
    assert not [str(found) for file in sources() for found in imports(file) if found.target.split(".")[0] in LINKED]


def test_product_imports_neither_tests_nor_their_tools() -> None:
    outside = {
        "tests",
        "benchmarks",
        "deploy",
        "pytest",
        "hypothesis",
        "mypy",
        "ruff",
        "packaging",
        "setuptools",
        "pkg_resources",
    }
    assert not [str(found) for file in product_sources() for found in imports(file) if found.target.split(".")[0] in outside]


def test_exactly_one_module_imports_pysyncobj() -> None:
    importers = {file for file in product_sources() for found in imports(file) if found.target.split(".")[0] == "pysyncobj"}
    assert len(importers) == 1, importers
    assert layer(importers.pop()) == "raft"


def test_chaos_and_spark_are_imported_by_the_command_line_alone() -> None:
    """They use the product from outside; a node never carries them."""
    wrong = [
        str(found)
        for file in product_sources()
        for found in imports(file)
        if internal(found) in ("chaos", "spark") and layer(file) not in (internal(found), "cli") and not _contract(found)
    ]
    assert not wrong


def test_what_is_imported_is_declared_and_the_other_way_round() -> None:
    """Distributions and modules differ in name by no more than - and _ here; extras may be imported by their users only."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {Requirement(line).name.replace("-", "_") for line in project["dependencies"]}
    roots = {found.target.split(".")[0] for file in product_sources() for found in imports(file) if layer(file) not in EXTRAS}
    assert roots - sys.stdlib_module_names - {"replicated_namesrv"} == declared
