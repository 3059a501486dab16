"""Texts that must not be in the checkout, each with the reason in its test's name or message."""

import ast
import importlib
import io
import re
import tokenize
from collections.abc import Iterator

from tests.packaging.tree import ROOT, product_sources, sources, statements, tracked_files

MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 100

# Put together here so that this file does not contain the texts that it looks for.
REGISTRY_HOSTS = [
    ".".join(parts)
    for parts in (
        *(("pypi", "org"), ("pythonhosted", "org"), ("proxy", "golang", "org"), ("sum", "golang", "org"), ("registry", "npmjs")),
        *(("repo", "maven"), ("repo1", "maven"), ("crates", "io"), ("deb", "debian", "org"), ("maven", "org/maven2")),
    )
]
MACHINE_PATHS = [r"/wor[k]/[a-z.]", r"/roo[t]/", r"/home/(?!dev\b|rocketmq\b|user\b|you\b|u\b)[a-z]+/", r"/Users/[a-z]+/"]
SLEEP_IS_THE_SUBJECT = {"tests/admin/test_parts.py"}
"""Files that stall the event loop on purpose, to test that the stall is detected."""
BINARY_SUFFIXES = {".jar", ".class", ".so", ".pyc", ".exe", ".zip", ".gz", ".whl", ".parquet"}


def text_files() -> Iterator[tuple[str, str]]:
    for path in tracked_files():
        try:
            yield path.as_posix(), (ROOT / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # recorded frames and the like


def test_no_file_names_a_package_registry_host() -> None:
    """Lists and scripts work with the package index that the machine is configured for."""
    assert not [(name, host) for name, text in text_files() for host in REGISTRY_HOSTS if host in text]


def test_no_file_holds_a_path_of_one_machine() -> None:
    found = [
        f"{name}: {match[0]}"
        for name, text in text_files()
        if name != "tests/packaging/test_bans.py"
        for pattern in MACHINE_PATHS
        for match in re.finditer(pattern, text)
    ]
    assert not found


def test_no_file_holds_a_conflict_of_a_merge() -> None:
    marks = ("<" * 7 + " ", ">" * 7 + " ")
    found = [
        f"{name}:{at}" for name, text in text_files() for at, line in enumerate(text.splitlines(), 1) if line.startswith(marks)
    ]
    assert not found


def test_no_binary_is_committed() -> None:
    assert not [path for path in tracked_files() if path.suffix in BINARY_SUFFIXES]


def dotted(node: ast.expr) -> str:
    """``a.b.c`` of an expression that consists of names; empty for others."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else ""


def test_nothing_is_unpickled_evaluated_or_run_through_a_shell() -> None:
    banned = {"eval", "exec", "os.system", "os.popen", "marshal.load", "marshal.loads", "shelve.open", "yaml.load"}
    wrong = []
    for name, tree in product_sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (call := dotted(node.func)) in banned:
                wrong.append(f"{name}:{node.lineno} calls {call}")
            imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            imported += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            wrong += [f"{name} imports {module}" for module in imported if module.split(".")[0] in ("pickle", "marshal", "dill")]
            if isinstance(node, ast.keyword) and node.arg == "shell" and getattr(node.value, "value", None) is True:
                wrong.append(f"{name}: shell=True")
    assert not wrong


def sleeps_for_time(tree: ast.Module) -> Iterator[int]:
    """Lines with a sleep that is not inside a while loop. Only the pause between two looks at a condition is allowed."""
    polls = {id(node) for loop in ast.walk(tree) if isinstance(loop, ast.While) for node in ast.walk(loop)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and id(node) not in polls:
            yields_only = bool(node.args) and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
            if dotted(node.func) in ("time.sleep", "asyncio.sleep") and not yields_only:
                yield node.lineno


def test_tests_wait_for_conditions_and_never_for_time() -> None:
    wrong = [
        f"{name}:{line}"
        for name, tree in sources().items()
        if name.startswith("tests/") and name not in SLEEP_IS_THE_SUBJECT and b"sleep" in (ROOT / name).read_bytes()
        for line in sleeps_for_time(tree)
    ]
    assert not wrong


def lengths(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def test_files_and_functions_stay_readable() -> None:
    wrong = []
    for name, tree in sources().items():
        total = len((ROOT / name).read_text(encoding="utf-8").splitlines())
        wrong += [f"{name}: {total} lines"] if total > MAX_FILE_LINES else []
        wrong += [f"{name}: {function} has {count} lines" for function, count in lengths(tree) if count > MAX_FUNCTION_LINES]
    assert not wrong


def test_every_public_module_of_the_product_says_what_it_is() -> None:
    wrong = [name for name, tree in product_sources().items() if ast.get_docstring(tree) is None and tree.body]
    assert not wrong, f"no docstring in {', '.join(wrong)}: say in its first line what the module provides"


POSSESSIVE_GROUP = re.compile(r"\)(?:[*+?]|\{[0-9,]*\})\+")


def patterns(value: object) -> Iterator[str]:
    """The regular expressions in a global of a module, with a letter in place of each escaped character and character class."""
    if isinstance(value, re.Pattern):
        text = value.pattern if isinstance(value.pattern, str) else value.pattern.decode("latin-1")
        yield re.sub(r"\[\^?\]?[^]]*\]", "c", re.sub(r"\\.", "c", text, flags=re.DOTALL))
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from patterns(item)


def test_no_repetition_of_a_group_is_possessive() -> None:
    """Before Python 3.11.5 it can match text that the group does not match (python/cpython issue 106052)."""
    assert POSSESSIVE_GROUP.search(next(patterns(re.compile(r"(?:a[)]|\)b)*+"))))
    wrong = []
    for name in product_sources():
        if name.startswith("replicated_namesrv/") and not name.endswith("__main__.py"):
            module = importlib.import_module(name.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
            found = {text for value in vars(module).values() for text in patterns(value)}
            wrong += [f"{name}: {text}: repeat without '+' at the end" for text in found if POSSESSIVE_GROUP.search(text)]
    assert not wrong, "\n".join(wrong)


EXEMPTION = re.compile(r"#\s*(noqa|type:\s*ignore|pragma:|nosec|fmt:|ruff:|mypy:)", re.IGNORECASE)
EXPLAINED = re.compile(
    r"# (?:(?:ruff: )?noqa: [A-Z]+\d+(?:, [A-Z]+\d+)*|type: ignore\[[a-z, -]+\]|nosec \w+|pragma: no cover|fmt: (?:skip|off|on))"
    r" +(?:#|--?) +\w.{3,}"
)


def test_every_exemption_has_its_code_and_reason_on_the_same_line() -> None:
    wrong = []
    for name in [*sources(), "namesrv"]:
        text = (ROOT / name).read_text(encoding="utf-8")
        for token in tokenize.generate_tokens(io.StringIO(text).readline) if EXEMPTION.search(text) else ():
            if token.type == tokenize.COMMENT and EXEMPTION.match(token.string) and not EXPLAINED.match(token.string):
                wrong.append(f"{name}:{token.start[0]}: {token.string}: add the code and, after ' - ' or '  # ', the reason")
    assert not wrong, "\n".join(wrong)
