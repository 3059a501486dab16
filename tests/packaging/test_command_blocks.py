"""Every command block of README.md, CONTRIBUTING.md and docs/ is run by a test, or has a reason why not."""

import os
import re
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from replicated_namesrv.cli.main import available_commands, parser_of
from tests.cli.test_invocations import TABLE
from tests.deploy.test_operations_typed import PAGES as TYPED_PAGES
from tests.deploy.test_operations_typed import TYPED
from tests.packaging.tree import ROOT
from tests.support.nodes import run_command, running_command
from tests.support.ports import free_port
from tests.support.waiting import wait_until

PAGES = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md"),
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if not page.name.endswith(".template.md")),
]
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```|(?<=\n\n)((?:(?: {4}| {7})[^\n]*\n(?:\n(?= {4}))?)+)", re.MULTILINE | re.DOTALL)
PROMPT = re.compile(r"^(?:n\d)?[$#] ")
DEADLINE_S = 60.0
CONTRIBUTING = ROOT / "CONTRIBUTING.md"

NO_COMMANDS = (
    *("valid: ", "rule_files:", "peerTlsKeyPath=", "[anonymous]", "[identities."),  # output and settings
)
"""Beginnings of blocks without a language that contain no commands."""

DATA_LANGUAGES = {"toml", "yaml", "json", "properties"}
"""Languages of blocks that contain no commands."""

RUN_AS_A_WHOLE = {"docs/tls.md": "tests/interop/test_tls_page.py"}
"""Pages whose blocks with the language ``sh`` are run by a test in their order. They contain loops and functions, so no line of
them is a command of its own."""

TOUR = "tests/packaging/test_command_blocks.py::test_the_tour_of_the_readme"
DEFECTS = "tests/packaging/test_command_blocks.py::test_the_list_of_defects"
CURL = "tests/packaging/test_command_blocks.py::test_requests_of_the_pages"
INSTALLED = "changes the machine or needs its service manager; tests/packaging/test_deploy.py checks the files that it uses"
TYPED_BY = "tests/deploy/test_operations_typed.py"
SAME = "tests/cli/test_invocations.py::test_each_ends_as_the_table_says, with other hosts and files"
LONG = "takes minutes to hours; test_every_namesrv_command_is_understood parses it"
CHECKED = (
    # page, beginning of the command line, test that runs it or the reason why no test does
    ("README.md", r"\./namesrv demo", "tests/cli/test_demo.py::test_the_demo_on_real_processes"),
    ("README.md", r"\./namesrv (cluster|broker|route|diff|status)|export NAMESRV_", TOUR),
    ("README.md", r"\./namesrv test", "is a run of the tests"),
    ("CONTRIBUTING.md", r"\./namesrv test", "is a run of the tests"),
    ("CONTRIBUTING.md", r"pipx", "changes the user's home"),
    (
        "docs/getting-started.md",
        r"\./namesrv|export|sh |kill",
        "tests/interop/test_getting_started.py::test_the_page",
    ),
    ("docs/operations.md", r"namesrv cluster|export", TOUR),
    (
        "docs/operations.md",
        r"rm -rf build|\.venv/bin/python -m pip wheel",
        "tests/packaging/test_distribution.py::test_the_page_builds_the_same_wheel",
    ),
    ("docs/operations.md", r"mkdir|python3 -m venv|/opt/|install|systemctl|\(umask|scp|sed|rm|mv|head|chown", INSTALLED),
    ("docs/operations.md", r"docker|kubectl|helm", "needs a container engine; tests/packaging/test_deploy.py checks the files"),
    ("docs/admin-http.md", r"curl -N", "never ends; tests/admin/test_watch.py reads the same stream"),
    ("docs/admin-http.md", r"curl", CURL),
    ("docs/chaos-sabotage.md", r"namesrv chaos sabotage --list", DEFECTS),
    ("docs/chaos*.md", r"(\./)?namesrv (chaos|study)", LONG),
    ("docs/atlas/*", r"namesrv (chaos|simulate)", LONG),
    ("docs/atlas/*", r"\.venv/bin/python -m pytest", "is a run of a test"),
    ("docs/performance.md", r"\.venv/bin/python -m benchmarks", "takes minutes on a quiet machine"),
    ("docs/performance.md", r"\./namesrv setup test", "is the set-up of this environment"),
    ("docs/results/*", r"namesrv|for |done", LONG),
    (
        "docs/tables.md",
        r"spark\.read|duckdb",
        "Python, and DuckDB's own command; tests/spark/test_second_engine.py reads the tables with its library",
    ),
    (
        "docs/json.md",
        r"check-jsonschema",
        "is another project's; tests/packaging/json_page.py uses a library instead",
    ),
    ("docs/tls.md", r"JAVA_OPT=", "needs RocketMQ's distribution; tests/interop/test_tls_page.py uses the same options"),
    ("docs/*", r"namesrv ", SAME),
)


class Line(NamedTuple):
    """One command line of a page."""

    page: str
    section: str
    text: str


def blocks() -> Iterator[tuple[str, str, list[str]]]:
    """(page, section, lines) of each block without a language."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in BLOCK.finditer(text):
            lines = [line.strip() for line in (found[3] or found[4]).splitlines() if line.strip()]
            if not found[2] and not lines[0].startswith(NO_COMMANDS):
                yield page.relative_to(ROOT).as_posix(), HEADING.findall(text[: found.start()])[-1], lines


def unchecked_fences(page: str, text: str) -> list[str]:
    """The languages of fenced blocks that may contain commands and that ``blocks`` leaves out; a message if a fence cannot be
    read."""
    languages = Counter(found[2] for found in BLOCK.finditer(text) if not found[4])
    if len(re.findall(r"^ *(?:```|~~~)", text, re.MULTILINE)) != 2 * languages.total():
        return ["a fence that this test cannot read: write ``` alone, or with one word"]
    allowed = {"", *DATA_LANGUAGES, *(["sh"] if page in RUN_AS_A_WHOLE else [])}
    return sorted(languages.keys() - allowed)


def commands() -> list[Line]:
    """Command lines without prompt and comment. In a block with prompts, the other lines are output."""
    found = []
    for page, section, lines in blocks():
        prompted = [line for line in lines if PROMPT.match(line)]
        found += [Line(page, section, PROMPT.sub("", line).partition("  #")[0].strip()) for line in prompted or lines]
    return found


def row_of(line: Line) -> str | None:
    """How a line is checked: a text that begins with the test that runs it, or the reason why no test does. None: it is not
    checked."""
    if line.page in TYPED_PAGES and line.section in TYPED and not re.search(TYPED[line.section], line.text):
        return TYPED_BY
    rows = (how for page, begin, how in CHECKED if Path(line.page).match(page) and re.match(begin, line.text))
    return next(rows, None)


def test_every_command_is_run_by_a_test_or_has_a_reason() -> None:
    lines = commands()
    assert len(lines) > 60
    unknown = [f"{line.page}: {line.text}" for line in lines if row_of(line) is None]
    assert not unknown, "add rows to CHECKED of this file:\n" + "\n".join(unknown)


def test_no_fenced_block_hides_commands_behind_a_language() -> None:
    texts = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}
    found = {page: unchecked_fences(page, text) for page, text in texts.items()}
    assert not {page: fences for page, fences in found.items() if fences}, "write ``` without a language for commands"
    for page, test in RUN_AS_A_WHOLE.items():
        assert "```sh\n" in texts[page]
        assert f'"{Path(page).name}"' in (ROOT / test).read_text(encoding="utf-8"), test
    for planted in ("```sh\nrm x\n```\n", "```bash\nrm x\n```\n", "```sh title=a\nrm x\n```\n", "~~~\nrm x\n~~~\n"):
        assert unchecked_fences("README.md", texts["README.md"] + "\n" + planted), planted


def test_no_row_is_left_over_and_the_tests_exist() -> None:
    used = {row_of(line) for line in commands()}
    assert TYPED_BY in used
    left = [f"{page}: {begin}" for page, begin, how in CHECKED if how not in used]
    assert not left, "rows of CHECKED in this file that match no command line; remove them:\n" + "\n".join(left)
    for name in re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", " ".join(how for _, _, how in CHECKED)):
        file, function = name
        assert f"def {function}" in (ROOT / file).read_text(encoding="utf-8"), name


def subcommand(text: str) -> tuple[str, ...]:
    """The words that name a command: ``status``, or ``kv export``."""
    return tuple(re.findall(r"^(?:namesrv )?(\w+)(?: ([a-z]+)(?= |$))?", text)[0])


def test_commands_that_run_with_other_hosts_are_in_the_table_of_invocations() -> None:
    run = {subcommand(one.line) for one in TABLE if one.code == 0 and one.line[0] != "-"}
    lines = [line for line in commands() if row_of(line) == SAME]
    assert lines
    missing = [line.text for line in lines if subcommand(line.text) not in run]
    assert not missing, "TABLE of tests/cli/test_invocations.py has no right use of these; add one:\n" + "\n".join(missing)


def test_the_page_has_the_numbers_of_lines() -> None:
    stated = re.search(r"have about (\d+)\s+command\s+lines\.\s+Tests\s+run\s+at\s+least\s+(\d+)", CONTRIBUTING.read_text())
    assert stated is not None
    hows = [row_of(line) or "" for line in commands()]
    run = sum(how.startswith("tests/") for how in hows)
    assert abs(len(hows) - int(stated[1])) <= 15, f"the pages have {len(hows)} command lines; correct CONTRIBUTING.md"
    assert int(stated[2]) <= run, (run, Counter(how for how in hows if not how.startswith("tests/")))


def test_every_namesrv_command_is_understood() -> None:
    understood = 0
    for line in commands():
        for part in re.split(r"&&|;\s(?=do|done)|\bdo\b|\buntil\b", line.text):
            words = shlex.split(part.strip().rstrip(";"))
            words = [word.removeprefix("./") for word in words[: words.index("|") if "|" in words else None]]
            if words[:1] == ["namesrv"] and words[1] in available_commands():
                parser, _ = parser_of(words[1])
                values = {"$mode": "cp", "$seed": "7", "$s": "4"}
                parser.parse_args([values.get(word, word) for word in words[2:]])
                understood += 1
    assert understood > 40


def listed(page: str, begin: str) -> list[str]:
    """The command lines of ``page`` that begin with ``begin``."""
    return [line.text for line in commands() if line.page == page and line.text.startswith(begin)]


def arguments_of(text: str) -> list[str]:
    return shlex.split(text.removeprefix("./").removeprefix("namesrv "))


@pytest.mark.slow
def test_the_tour_of_the_readme(tmp_path: Path) -> None:
    """The commands of the tour run as the page has them, on other ports."""
    base = free_port(1, 2, 10, 11, 12, 20, 21, 22)
    place = ("--listen", f"127.0.0.1:{base}", "--data-dir", str(tmp_path / "data"))
    environment = {}
    for text in set(listed("README.md", "export ")):
        text = re.sub(r":98([78]\d)\b", lambda found: f":{base + int(found[1]) - 76}", text)
        name, _, value = shlex.split(text)[1].partition("=")
        environment[name] = value
    assert environment.keys() == {"NAMESRV_ADDR", "NAMESRV_ADMIN"}
    (start,) = {*listed("README.md", "./namesrv cluster")}
    (broker,) = listed("README.md", "./namesrv broker")
    queries = [text for text in listed("README.md", "./namesrv") if text.split()[1] in ("route", "diff", "status")]
    assert len(queries) == 3
    with (
        running_command(*arguments_of(start), *place, stderr=tmp_path / "cluster.err"),
        running_command(*arguments_of(broker), environment=environment, stderr=tmp_path / "broker.err"),
    ):
        for text in queries:  # brokers may still be registering
            command = arguments_of(text)
            wait_until(
                lambda command=command: run_command(*command, environment=environment).returncode == 0,  # type: ignore[misc]  # of a loop
                text,
                DEADLINE_S,
            )


@pytest.mark.slow
def test_requests_of_the_pages(tmp_path: Path) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("no curl; Debian: apt-get install curl")
    base = free_port(1, 2, 10, 11, 12, 20, 21, 22)
    requests = [line.text for line in commands() if row_of(line) == CURL]
    assert len(requests) >= 3
    arguments = ("cluster", "--listen", f"127.0.0.1:{base}", "--data-dir", str(tmp_path / "data"))
    ready = [curl, "-sf", f"http://127.0.0.1:{base + 10}/readyz"]
    with running_command(*arguments, stderr=tmp_path / "cluster.err"):
        wait_until(lambda: subprocess.run(ready, capture_output=True, check=False).returncode == 0, "the node", DEADLINE_S)
        for text in requests:
            command = [curl, "-sS", "-w", "\n%{http_code}", *shlex.split(text.replace("9886", str(base + 10)))[1:]]
            done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "no_proxy": "*"})
            assert done.returncode == 0, (text, done.stderr)
            status = done.stdout.splitlines()[-1]
            assert status == ("404" if "/routes/TopicTest" in text else "200"), (text, done.stdout)


def test_the_list_of_defects() -> None:
    (text,) = listed("docs/chaos-sabotage.md", "namesrv chaos sabotage --list")
    done = run_command(*arguments_of(text))
    assert done.returncode == 0, done.stderr
    assert "never-fences" in done.stdout
