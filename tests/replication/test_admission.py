"""Admission of one copy of each registration, as in ``liveness/copies.py``."""

from replicated_namesrv.replication.liveness.copies import GRANT_MS, Admission, Asker, Decided
from replicated_namesrv.replication.liveness.leader_messages import GRANTED, LOOK_AGAIN
from replicated_namesrv.replication.marks import Key, Mark
from tests.replication.virtual import KEY

NO_MARKS: dict[Key, Mark] = {}
FIRST, SECOND, THIRD = (Asker(node, 1, 1) for node in ("n1", "n2", "n3"))


def test_one_copy_is_let_through_and_the_others_look_again() -> None:
    admission = Admission(NO_MARKS.get)
    assert admission.ask(FIRST, KEY, "x", 0, 0) == GRANTED
    assert admission.ask(SECOND, KEY, "x", 0, 1) is None
    assert admission.ask(FIRST, KEY, "x", 0, 2) == GRANTED, "the answer was lost"
    assert admission.ask(THIRD, KEY, "y", 0, 3) == GRANTED, "something else"
    again = SECOND._replace(number=2)
    assert admission.ask(again, KEY, "x", 0, 4) is None, "over another connection: the broker gave the first one up"
    assert admission.applied(KEY, "x") == [Decided(again, LOOK_AGAIN)]
    assert admission.applied(KEY, "x") == []


def test_who_looked_before_the_commit_looks_again_and_who_looked_after_it_is_let_through() -> None:
    admission = Admission({KEY: Mark(1, 10, "x")}.get)
    assert admission.ask(FIRST, KEY, "x", 9, 0) == LOOK_AGAIN
    assert admission.ask(FIRST, KEY, "x", 10, 0) == GRANTED
    assert admission.ask(SECOND, KEY, "y", 9, 0) == GRANTED, "other content"


def test_the_next_is_let_through_if_the_first_does_not_come() -> None:
    admission = Admission(NO_MARKS.get)
    admission.ask(FIRST, KEY, "x", 0, 0)
    admission.ask(SECOND, KEY, "x", 0, 1)
    assert admission.overdue((), GRANT_MS - 1) == []
    assert admission.overdue((), GRANT_MS) == [Decided(SECOND, GRANTED)]
    assert admission.overdue((), 2 * GRANT_MS) == []
    assert admission.ask(THIRD, KEY, "x", 0, 2 * GRANT_MS) == GRANTED, "forgotten"


def test_the_second_copy_has_as_much_time_as_the_first() -> None:
    admission = Admission(NO_MARKS.get)
    for asker in (FIRST, SECOND, THIRD):
        admission.ask(asker, KEY, "x", 0, 0)
    assert admission.overdue((), GRANT_MS) == [Decided(SECOND, GRANTED)]
    assert admission.overdue((), 2 * GRANT_MS - 1) == []
    assert admission.overdue((), 2 * GRANT_MS) == [Decided(THIRD, GRANTED)]


def test_the_next_is_let_through_if_the_firsts_node_is_not_heard() -> None:
    admission = Admission(NO_MARKS.get)
    admission.ask(FIRST, KEY, "x", 0, 0)
    admission.ask(SECOND, KEY, "x", 0, 1)
    assert admission.overdue((SECOND.node,), 2) == []
    assert admission.overdue((FIRST.node,), 2) == [Decided(SECOND, GRANTED)]


def test_the_next_is_let_through_if_the_first_withdraws() -> None:
    admission = Admission(NO_MARKS.get)
    admission.ask(FIRST, KEY, "x", 0, 0)
    admission.ask(SECOND, KEY, "x", 0, 1)
    admission.ask(THIRD, KEY, "x", 0, 2)
    assert admission.withdraw(FIRST._replace(number=9), KEY, "x", 3) == [], "another question of that node"
    assert admission.withdraw(SECOND, KEY, "x", 3) == [], "it has only waited"
    assert admission.withdraw(FIRST, KEY, "x", 3) == [Decided(THIRD, GRANTED)]
    assert admission.withdraw(THIRD, KEY, "x", 4) == []
    assert admission.withdraw(THIRD, KEY, "x", 4) == []
    assert admission.ask(SECOND, KEY, "x", 0, 5) == GRANTED, "forgotten"


def test_the_newer_question_of_a_node_takes_the_place_of_the_older_one() -> None:
    admission, newer = Admission(NO_MARKS.get), FIRST._replace(number=2)
    admission.ask(FIRST, KEY, "x", 0, 0)
    assert admission.ask(newer, KEY, "x", 0, 1) == GRANTED
    admission.ask(SECOND, KEY, "x", 0, 2)
    assert admission.withdraw(FIRST, KEY, "x", 3) == []
    assert admission.withdraw(newer, KEY, "x", 3) == [Decided(SECOND, GRANTED)]
