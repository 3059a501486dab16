"""One test for each row of the tables in raft/formation.py."""

from collections.abc import Callable

import pytest

from replicated_namesrv.raft.formation import NOBODY_FOUNDS, ROWS, FormationStep, judge_member, next_step
from replicated_namesrv.raft.identity import BLANK, MEMBER, PROMISED, Identity
from replicated_namesrv.raft.raft_messages import Greeting
from tests.support.places import assert_same_names
from tests.support.raft_world import Disk

MEMBERS = ["a", "b", "c"]
OURS = {"a": 1, "b": 2, "c": 3}
OTHERS = {"a": 1, "b": 2, "c": 33}


def identity(state: int) -> Identity:
    """The identity of node a, with incarnation 1."""
    found = Identity(Disk(), "a", "cluster", MEMBERS, 1)
    found.state, found.founders = state, {} if state == BLANK else dict(OURS)
    return found


def greeting(source: int, state: int = BLANK, founders: dict[str, int] | None = None) -> Greeting:
    return Greeting(source, state, tuple(sorted((founders or {}).items())), 1, 1 << 16)


def step(state: int, **greetings: Greeting) -> FormationStep:
    return next_step(identity(state), MEMBERS, greetings, len(MEMBERS))


def row_f1() -> FormationStep:
    found = step(BLANK, b=greeting(2, MEMBER, OTHERS))
    assert (found.state, found.founders) == (MEMBER, OTHERS)
    return found


def row_f2() -> FormationStep:
    found = step(BLANK, b=greeting(2))
    assert (found.state, found.problem) == (None, None)
    return found


def row_f3() -> FormationStep:
    found = step(BLANK, b=greeting(2, PROMISED, OTHERS), c=greeting(3))
    assert found.state is None
    assert found.problem is not None
    assert "b has promised" in found.problem
    return found


def row_f4() -> FormationStep:
    found = step(BLANK, b=greeting(2, PROMISED, OURS), c=greeting(3))
    assert (found.state, found.founders) == (PROMISED, OURS)
    return found


def row_f5() -> FormationStep:
    """One peer that is a member is enough, because it knows that all have promised."""
    found = step(PROMISED, b=greeting(2, MEMBER, OURS))
    assert (found.state, found.founders) == (MEMBER, OURS)
    return found


def row_f6() -> FormationStep:
    found = step(PROMISED, b=greeting(2, MEMBER, OTHERS))
    assert (found.state, found.founders) == (MEMBER, OTHERS)
    return found


def row_f7() -> FormationStep:
    found = step(PROMISED, b=greeting(2, PROMISED, OURS), c=greeting(3, PROMISED, OURS))
    assert (found.state, found.founders) == (MEMBER, OURS)
    return found


def row_f8() -> FormationStep:
    found = step(PROMISED, b=greeting(2, PROMISED, OURS), c=greeting(33))
    assert found.state is None
    assert found.problem is not None
    assert "c has lost its data directory" in found.problem
    return found


def row_f9() -> FormationStep:
    found = step(PROMISED, b=greeting(2, PROMISED, OURS), c=greeting(3))
    assert (found.state, found.problem) == (None, None)
    return found


def row_f12() -> FormationStep:
    """A node that joins never founds a cluster, even if all configured peers are blank."""
    found = next_step(identity(BLANK), MEMBERS, {"b": greeting(2), "c": greeting(3)}, len(MEMBERS), joins=True)
    assert (found.state, found.problem) == (None, NOBODY_FOUNDS)
    alone = next_step(identity(BLANK), MEMBERS, {}, len(MEMBERS), joins=True)
    assert (alone.state, alone.problem) == (None, None)
    return found


def row_f10() -> FormationStep:
    found = judge_member(identity(MEMBER), "b", greeting(2, MEMBER, OTHERS))
    assert found.problem is not None
    assert "b belongs to another cluster" in found.problem
    return found


def row_f11() -> FormationStep:
    found = judge_member(identity(MEMBER), "b", greeting(2, MEMBER, OURS))
    assert found.problem is None
    return found


CASES: dict[str, Callable[[], FormationStep]] = {
    name.removeprefix("row_").upper(): case for name, case in globals().copy().items() if name.startswith("row_f")
}


def test_every_row_has_a_test() -> None:
    assert_same_names(CASES, "the functions row_… of this file", ROWS, "ROWS")


@pytest.mark.parametrize("row", ROWS)
def test_row(row: str) -> None:
    assert CASES[row]().row == row


@pytest.mark.parametrize("stranger", [greeting(4), greeting(4, PROMISED, OTHERS), greeting(4, MEMBER, OTHERS)])
def test_nodes_that_are_not_configured_found_nothing(stranger: Greeting) -> None:
    """A hint named them, and they greet, for example blank nodes that join."""
    assert step(PROMISED, d=stranger).row == "F9"
    assert step(PROMISED, b=greeting(2, PROMISED, OURS), d=stranger).row == "F9"
    assert step(BLANK, b=greeting(2), d=stranger).row == ("F1" if stranger.state == MEMBER else "F2")
    found = step(BLANK, b=greeting(2), c=greeting(3), d=greeting(4))
    assert (found.row, found.founders) == ("F4", OURS)


def test_fewer_promises_are_needed_without_the_defence() -> None:
    assert next_step(identity(BLANK), MEMBERS, {"b": greeting(2)}, 2).founders == {"a": 1, "b": 2, "c": 0}
