"""Rules for imports: the directions between layers, libraries that pure layers must not import, and names that belong to other
projects."""

import sys
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from packaging.requirements import Requirement

from tests.packaging.tree import LINKED, ROOT, Import, imports, layer, module_of, product_sources, sources
from tests.support.places import assert_same_names

BASE = {"__version__", "errors", "model"}
"""Values and errors, which every layer may import."""

TRACE_CONTRACT = ("replicated_namesrv.chaos.records.", "replicated_namesrv.chaos.run_modes.")
"""The only modules of chaos that spark imports: the content of a trace, and the modes. They import nothing of chaos."""

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
PURE_EXCEPTIONS = {"replicated_namesrv/verify/operation_history.py": {"pathlib"}}
"""The only pure module that reads files: it reads histories."""

EXTRAS = ("chaos", "spark", "tracing")
"""Layers whose libraries come with an extra of their own."""


def internal(found: Import) -> str | None:
    """The layer an import leads to, None if it leads out of the product."""
    parts = found.target.split(".")
    return parts[1] if parts[0] == "replicated_namesrv" and len(parts) > 1 else None


def layer_table(text: str) -> dict[str, set[str] | None]:
    """The table of ARCHITECTURE.md: what each layer imports, None: any."""
    rows = text.partition("| layer | imports |\n|---|---|\n")[2].partition("\n\n")[0].splitlines()
    table: dict[str, set[str] | None] = {}
    for row in rows:
        layers, imported = (cell.strip() for cell in row.strip("|").split("|"))
        names = None if imported == "any" else set(imported.split(", ")) - {"nothing"}
        table |= dict.fromkeys((name.strip("`") for name in layers.split(", ")), names)
    return table


def test_layers_import_what_the_architecture_says() -> None:
    """The layers import exactly those of the table, so that the page stays true."""
    table = layer_table((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    assert len(table) > 20
    found: dict[str, dict[str, str]] = {}
    """For each layer: its imports from other layers, and where they are."""
    for file in product_sources():
        own = found.setdefault(layer(file), {})
        for one in imports(file):
            if internal(one) not in {None, layer(file), *BASE}:
                own[one.target.removeprefix("replicated_namesrv.")] = str(one)
    base = {name: found.pop(name) for name in (*BASE, "__init__") if name in found}
    assert not any(base.values()), base
    new, gone = found.keys() - table.keys(), table.keys() - found.keys()
    assert not new, f"{sorted(new)} have no row in the table 'layer | imports' of ARCHITECTURE.md"
    assert not gone, f"{sorted(gone)} have a row in the table of ARCHITECTURE.md, but are not layers"
    rows = {name: may for name, may in table.items() if may is not None}
    wrong = [
        where for name, may in rows.items() for target, where in found[name].items() if not any(covers(e, target) for e in may)
    ]
    assert not wrong, "the table of ARCHITECTURE.md does not allow: " + "; ".join(wrong)
    unused = [(name, entry) for name, may in rows.items() for entry in may if not any(covers(entry, t) for t in found[name])]
    assert not unused, "delete these from the table of ARCHITECTURE.md"


def covers(entry: str, target: str) -> bool:
    """Whether an entry of the table, a layer or a module, allows the import of ``target``."""
    return target == entry or target.startswith(f"{entry}.")


def module_graph(files: Iterable[str]) -> dict[str, set[str]]:
    """Modules and the modules each imports, wherever the import stands."""
    modules = {module_of(file): file for file in files}
    graph: dict[str, set[str]] = {}
    for module, file in modules.items():
        targets = graph[module] = set()
        for found in imports(file):
            target = found.target
            while target and target not in modules:
                target = target.rpartition(".")[0]
            if target and target != module:
                targets.add(target)
    return graph


def cycles(graph: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Groups of modules that all import each other, directly or through others."""

    def reached(module: str) -> set[str]:
        found: set[str] = set()
        waiting = [module]
        while waiting:
            for target in graph[waiting.pop()]:
                if target not in found:
                    found.add(target)
                    waiting.append(target)
        return found

    reach = {module: reached(module) for module in graph}
    groups = {tuple(sorted(other for other in reach[module] if module in reach[other])) for module in graph}
    return sorted(list(group) for group in groups if len(group) > 1)


def test_a_cycle_is_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == [["b", "c"]]
    assert cycles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_no_module_is_part_of_an_import_cycle() -> None:
    """Imports under TYPE_CHECKING and inside functions count: a type that two modules share belongs below both."""
    assert cycles(module_graph(product_sources())) == []


def test_the_drawing_of_raft_and_replication_is_true() -> None:
    """Every module occurs in the drawing once, and imports only modules on lower lines."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    drawing = text.partition("imports only modules on lower lines:\n\n```\n")[2].partition("```")[0]
    drawn = [block.splitlines()[1:] for block in drawing.strip("\n").split("\n\n")]
    for package, lines in zip(("raft", "replication"), drawn, strict=True):
        inside = [f for f in product_sources() if f.startswith(f"replicated_namesrv/{package}/") and "__init__" not in f]
        graph = module_graph(inside)
        names = {module: module.rpartition(".")[2] for module in graph}
        height = {name: -line for line, row in enumerate(lines) for name in row.strip().split(", ")}
        assert_same_names(height, "the drawing of ARCHITECTURE.md", names.values(), f"{package}/")
        twice = [name for name, count in Counter(", ".join(row.strip() for row in lines).split(", ")).items() if count > 1]
        assert not twice, f"the drawing of ARCHITECTURE.md has {', '.join(twice)} twice"
        upward = [f"{names[m]} -> {names[t]}" for m, into in graph.items() for t in into if height[names[t]] >= height[names[m]]]
        assert not upward, upward


def test_pure_layers_know_no_io_clock_or_randomness() -> None:
    wrong = []
    for file in product_sources():
        if layer(file) in PURE:
            allowed = PURE_MAY_IMPORT | PURE_EXCEPTIONS.get(file, set()) | {"replicated_namesrv"}
            wrong += [str(found) for found in imports(file) if not {found.target, found.target.split(".")[0]} & allowed]
    assert not wrong


def test_bare_names_of_linked_folders_are_never_imported() -> None:
    """On the package index, these names belong to other projects. In the product the folders are ``replicated_namesrv.compat``
    and so on."""
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
    """These packages use the product from outside; a node never imports them."""
    wrong = [
        str(found)
        for file in product_sources()
        for found in imports(file)
        if internal(found) in ("chaos", "spark")
        and layer(file) not in (internal(found), "cli")
        and not (layer(file) == "spark" and found.target.startswith(TRACE_CONTRACT))
    ]
    assert not wrong


def test_what_is_imported_is_declared_and_the_other_way_round() -> None:
    """Here the names of distributions and modules differ at most by - and _. The layers in EXTRAS may also import the
    libraries of their extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {Requirement(line).name.replace("-", "_") for line in project["dependencies"]}
    roots = {found.target.split(".")[0] for file in product_sources() for found in imports(file) if layer(file) not in EXTRAS}
    assert roots - sys.stdlib_module_names - {"replicated_namesrv"} == declared
