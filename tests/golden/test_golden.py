"""Every transcript of ``raft/`` and ``routes/`` is what the nodes do now, and the harness notices a difference."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import replicated_namesrv
from replicated_namesrv.simulation.route_cluster import silenced
from tests.golden.raft_stage import RaftStage
from tests.golden.routes_stage import RouteStage
from tests.golden.rows import NO_TRANSCRIPT, TABLES, WITHOUT_STORY, rows_claimed, rows_in, rows_of_tables, rows_taken
from tests.golden.transcript import ScriptError, Stage, check, commands_of, parse, play

HERE = Path(__file__).parent
STAGES: dict[str, type[Stage]] = {"raft": RaftStage, "routes": RouteStage}
STORIES = sorted(path for kind in STAGES for path in (HERE / kind).glob("*.txt"))
ONE_NODE = "nodes 1\nstart\nuntil n1 role leader\n----\n"


def stage_of(path: Path) -> Stage:
    return STAGES[path.parent.name]()


@pytest.mark.parametrize("path", STORIES, ids=[f"{path.parent.name}/{path.stem}" for path in STORIES])
def test_transcript(path: Path, pytestconfig: pytest.Config) -> None:
    with silenced(), rows_taken() as taken:
        different = check(path, stage_of(path), bool(pytestconfig.getoption("--rewrite", False)))
    assert different is None, different
    assert rows_claimed(path.read_text()) <= taken, "the story does not take these rows"


def test_every_row_of_the_tables_occurs_in_a_story() -> None:
    claimed = set().union(*(rows_claimed(path.read_text()) for path in STORIES))
    assert len(rows_of_tables()) >= 110
    assert claimed | WITHOUT_STORY.keys() == rows_of_tables()
    assert not claimed & WITHOUT_STORY.keys()
    tests = "".join(path.read_text() for folder in ("replication", "raft") for path in (HERE.parent / folder).glob("test_*.py"))
    assert [name for name in WITHOUT_STORY.values() if f"def {name}(" not in tests] == []


def test_every_table_of_rows_has_stories_or_tests() -> None:
    """A new table has to be in ``TABLES``, where its rows need stories, or in ``NO_TRANSCRIPT``, where they need tests."""
    package = Path(replicated_namesrv.__file__).parent
    with_rows = {
        str(path.relative_to(package)): rows
        for path in package.rglob("*.py")
        if (rows := rows_in(ast.get_docstring(ast.parse(path.read_text()), clean=False) or ""))
    }
    known = {str(Path(str(module.__file__)).relative_to(package)) for module in TABLES.values()}
    assert with_rows.keys() == known | NO_TRANSCRIPT.keys()
    for module, tests in NO_TRANSCRIPT.items():
        text = (HERE.parent.parent / tests).read_text()
        assert [row for row in with_rows[module] if f'"{row}"' not in text] == []


def test_rows_are_taken_by_the_stories_that_need_them() -> None:
    """The harness would notice the claim of a row that is not taken: a restart takes S6 and not S5, and a cluster of one node
    takes only D1."""
    with rows_taken() as taken:
        check(HERE / "raft" / "restart.txt", RaftStage(), rewrite=False)
    assert "standing S6" in taken
    assert "standing S5" not in taken
    with rows_taken() as taken:
        check(HERE / "raft" / "one_node.txt", RaftStage(), rewrite=False)
    assert taken == {"stall D1"}
    assert rows_claimed("# A story.\n# rows: formation F1 F2, standing S1\n") == {"formation F1", "formation F2", "standing S1"}


def test_an_altered_output_is_noticed(tmp_path: Path) -> None:
    """One changed letter, one missing line, one line too many: each names the first line that differs."""
    written = (HERE / "raft" / "one_node.txt").read_text()
    position = written.index("becomes leader")
    line = written[:position].count("\n") + 1
    for altered in (
        written.replace("becomes leader", "becomes Leader", 1),
        written.replace("  becomes leader\n", "", 1),
        written.replace("  becomes leader\n", "  waits\n  becomes leader\n", 1),
    ):
        path = tmp_path / "altered.txt"
        path.write_text(altered)
        different = check(path, RaftStage(), rewrite=False)
        assert different is not None
        assert f"altered.txt:{line} differs" in different
        assert check(path, RaftStage(), rewrite=True) is None
        assert path.read_text() == written


def test_an_altered_script_changes_the_output() -> None:
    """The output comes from the nodes: with another proposal it is different."""
    text = (HERE / "raft" / "one_node.txt").read_text().replace("propose n1 x", "propose n1 other")
    assert "applies other" in play(parse(text, "script"), RaftStage(), "script")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("elect n1", "script:6: elect n1: unknown command 'elect'; there are:"),
        ("kill n1 now", "script:6: kill n1 now: argument nodes: no node 'now'"),
        ("campaign n1 n1", "script:6: campaign n1 n1: surplus argument 'n1'"),
        ("campaign", "script:6: campaign: missing argument node"),
        ("run fast", "script:6: run fast: argument ms: 'fast' is not a number"),
        ("drop n1>n7 Vote", "script:6: drop n1>n7 Vote: argument links: 'n1>n7' is not a link"),
        ("drop n1>* Veto", "script:6: drop n1>* Veto: argument kind: no kind of message 'Veto'"),
        ("deliver #1", "script:6: deliver #1: argument numbers: no held message #1"),
        ("propose n1 x term=1", "script:6: propose n1 x term=1: surplus argument 'term=1'"),
        ("configure n1 heartbeat=5", "script:6: configure n1 heartbeat=5: no setting 'heartbeat'"),
        ("until n1 mood good", "script:6: until n1 mood good: the status has no 'mood'"),
        ("lose-disk n1", "script:6: lose-disk n1: n1 runs; kill it first"),
    ],
)
def test_mistakes_in_a_script_are_errors_with_the_line(line: str, error: str) -> None:
    with pytest.raises(ScriptError) as caught:
        play(parse(f"{ONE_NODE}\n{line}\n----\n", "script"), RaftStage(), "script")
    assert str(caught.value).startswith(error)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("register n1 A 1", "script:1: register n1 A 1: argument broker: 'A' is not a broker name like a"),
        ("register n1 a", "script:1: register n1 a: missing argument version"),
        ("silence a", "script:1: silence a: a does not live; begin with the command live"),
        ("live a 1 nodes=n7", "script:1: live a 1 nodes=n7: no node n7"),
        ("heartbeat n1 a timeout=5", "script:1: heartbeat n1 a timeout=5: surplus argument 'timeout=5'"),
    ],
)
def test_mistakes_in_a_script_of_brokers_are_errors(line: str, error: str) -> None:
    stage = RouteStage()
    play(parse("nodes 1\n----\n", "script"), stage, "script")
    with pytest.raises(ScriptError) as caught:
        play(parse(f"{line}\n----\n", "script"), stage, "script")
    assert str(caught.value).startswith(error)


def test_commands_without_an_output_mark_are_an_error() -> None:
    with pytest.raises(ScriptError, match="script:3: commands without a line ----"):
        parse("# A story.\n\nrun 1\n\nrun 2\n----\n", "script")


def test_a_broken_invariant_ends_the_script() -> None:
    """The simulator's invariants watch every story."""

    class Broken(RaftStage):
        def problem(self) -> str | None:
            self.invariants.violated("election safety", "two leaders")
            return super().problem()

    with pytest.raises(ScriptError, match="script:1: nodes 1: broken invariant: election safety: two leaders"):
        play(parse(ONE_NODE, "script"), Broken(), "script")


@pytest.mark.parametrize("kind", STAGES.values())
def test_every_command_says_what_it_does(kind: type[Stage]) -> None:
    assert [name for name, method in commands_of(kind).items() if not method.__doc__] == []


@pytest.mark.slow
def test_output_does_not_depend_on_the_hash_seed() -> None:
    """Sets and dictionaries of names have another order in another process, but the transcripts are the same."""
    chosen = [str(HERE / f"{name}.txt") for name in ("raft/late_vote", "raft/lost_disk", "routes/outage_keeps_brokers")]
    program = (
        "import sys\nfrom pathlib import Path\nfrom tests.golden.test_golden import check, stage_of\n"
        "for name in sys.argv[1:]:\n"
        "    different = check(Path(name), stage_of(Path(name)), rewrite=False)\n"
        "    assert different is None, different\n"
    )
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        done = subprocess.run(
            [sys.executable, "-c", program, *chosen], env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
