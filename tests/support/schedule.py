"""The order in which the processes of pytest-xdist run the tests of a whole run."""

from collections.abc import Mapping
from pathlib import Path

ON_ALL_CORES = ("test_fixed_seeds", "test_fresh_seeds")
"""Tests of the simulator that start one process for each core."""

OF_SYNTAX_TREES = tuple(f"tests/packaging/test_{name}.py" for name in ("bans", "change_together", "imports", "modes", "names"))
"""Files with tests of all sources. Parsing the sources takes 3 s of CPU time."""


def group_of(test: str) -> str:
    """The tests that one process runs one after the other: those of a file.

    All files that use Spark are one group, because starting Spark takes as long as many tests. The files with tests of syntax
    trees are one group, so that one process parses the sources. Tests of the simulator only compute, so each is a group of its
    own.
    """
    path, _, name = test.partition("::")
    if path in OF_SYNTAX_TREES:
        return "syntax trees"
    folder = Path(path).parent.name
    return folder if folder == "spark" else test if folder == "simulation" and name else path


def in_order(tests: Mapping[str, bool]) -> list[str]:
    """The tests, group by group, the largest group first. The value of a test is whether it is marked slow.

    Most slow tests wait for processes, so a core is idle now and then. Slow tests of the simulator only compute. They are
    distributed among the groups with slow tests, and use the time of that core. Those that use all cores come last.
    """
    groups: dict[str, list[str]] = {}
    for test in tests:
        groups.setdefault(group_of(test), []).append(test)
    last: list[list[str]] = []
    computing: list[list[str]] = []
    rest: list[list[str]] = []
    for group in sorted(groups.values(), key=len, reverse=True):
        first = group[0]
        simulates = group_of(first) == first
        kind = last if simulates and first.endswith(ON_ALL_CORES) else computing if simulates and tests[first] else rest
        kind.append(group)
    waiting = [number for number, group in enumerate(rest) if any(tests[test] for test in group)] or [len(rest)]
    before: dict[int, list[list[str]]] = {}
    for number, group in enumerate(computing):
        before.setdefault(waiting[number * len(waiting) // len(computing)], []).append(group)
    ordered = [one for number, group in enumerate(rest) for one in (*before.get(number, ()), group)]
    return [test for group in (*ordered, *before.get(len(rest), ()), *last) for test in group]
