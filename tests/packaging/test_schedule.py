"""The order of a whole test run."""

from tests.packaging.tree import ROOT
from tests.support.places import assert_same_names
from tests.support.schedule import OF_SYNTAX_TREES, group_of, in_order

FILES = [f"tests/interop/test_{letter}.py" for letter in "abcd"]
COMPUTES = [f"tests/simulation/test_s.py::test_{number}" for number in (1, 2)]


def test_slow_tests_that_compute_run_while_others_wait() -> None:
    waits = [f"{file}::test_1" for file in FILES]
    quick = ["tests/wire/test_w.py::test_1", "tests/wire/test_w.py::test_2", "tests/simulation/test_s.py::test_quick"]
    seeds = "tests/simulation/test_s.py::test_fixed_seeds"
    tests = dict.fromkeys([seeds, *COMPUTES, *waits], True) | dict.fromkeys(quick, False)
    assert in_order(tests) == [*quick[:2], COMPUTES[0], *waits[:2], COMPUTES[1], *waits[2:], quick[2], seeds]


def test_without_tests_that_wait_the_largest_group_is_first() -> None:
    quick = ["tests/a/test_a.py::test_1", "tests/b/test_b.py::test_1", "tests/b/test_b.py::test_2"]
    assert in_order(dict.fromkeys(quick, False)) == [*quick[1:], quick[0]]
    assert in_order(dict.fromkeys([COMPUTES[0]], True) | {quick[0]: False}) == [quick[0], COMPUTES[0]]


def test_groups() -> None:
    assert group_of("tests/spark/test_x.py::test_y") == group_of("tests/spark/test_z.py::test_y")
    assert group_of("tests/wire/test_x.py::test_y") == "tests/wire/test_x.py"
    assert group_of(COMPUTES[0]) == COMPUTES[0]
    assert group_of(f"{OF_SYNTAX_TREES[0]}::test_x") == group_of(f"{OF_SYNTAX_TREES[1]}::test_y")


def test_one_process_parses_the_sources() -> None:
    parse = {path for path in (ROOT / "tests" / "packaging").glob("test_*.py") if "sources()" in path.read_text(encoding="utf-8")}
    found = {path.relative_to(ROOT).as_posix() for path in parse} - {"tests/packaging/test_schedule.py"}
    assert_same_names(found, "the files that call sources()", OF_SYNTAX_TREES, "OF_SYNTAX_TREES of tests/support/schedule.py")
