"""The first line of a snapshot: written and read in steps that do not grow with the number of brokers, in its old form."""

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicated_namesrv.model import DataVersion, QueueData
from replicated_namesrv.replication import marks as marks_module
from replicated_namesrv.replication.marks import (
    Mark,
    OwnLineReader,
    Suspicion,
    Tables,
    marks_table,
    own_line,
    suspected_table,
    unregistered_table,
)
from replicated_namesrv.replication.route_machine import RouteStateMachine, encode_lead
from replicated_namesrv.routes.commands import BrokerRemoval, RegisterBroker, UnregisterBrokers
from replicated_namesrv.routes.encoding import RouteFormatError, dump, load
from replicated_namesrv.routes.state import RouteSettings
from replicated_namesrv.routes.sums import SummedTable
from tests.support.log_entries import encoded
from tests.support.work import Work, work_of

TEXT = st.text(st.sampled_from('a0",[]\\\n é\ud800'), max_size=6) | st.text(max_size=6)
"""Characters that mean something in JSON, and one that is not allowed alone."""
KEYS = st.tuples(TEXT, TEXT)
NUMBERS = st.integers(0, 2**53)


def filled(marks: dict[Any, Any], gone: dict[Any, int], silent: dict[Any, Any] | None = None) -> Tables:
    first, second, third = marks_table(), unregistered_table(), suspected_table()
    for key, mark in marks.items():
        first.put(key, Mark(*mark))
    for key, revision in gone.items():
        second.put(key, revision)
    for key, known in (silent or {}).items():
        third.put(key, Suspicion(*known))
    return first, second, third


@given(
    st.lists(NUMBERS, min_size=3, max_size=4),
    st.dictionaries(KEYS, st.tuples(NUMBERS, NUMBERS, TEXT), max_size=5),
    st.dictionaries(KEYS, NUMBERS, max_size=5),
    st.dictionaries(KEYS, st.tuples(NUMBERS, NUMBERS), max_size=5),
    st.integers(1, 40),
    st.integers(1, 3),
    st.booleans(),
)
def test_a_line_cut_anywhere_is_read_as_it_was(
    numbers: list[int], marks: dict[Any, Any], gone: dict[Any, int], silent: dict[Any, Any], size: int, rows: int, is_old: bool
) -> None:
    """``is_old``: the line is written as by earlier versions, which can read the new form, too. Without a newer command version
    there is no table of suspicions."""
    tables = filled(marks, gone, silent if len(numbers) == 4 else {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(marks_module, "ROWS_MAX", rows)
        line = b"".join(own_line(numbers, tables))
    values = [[[*key, *mark] for key, mark in tables[0].items()], [[*key, n] for key, n in tables[1].items()]]
    if len(numbers) == 4:
        values.append([[*key, *known] for key, known in tables[2].items()])
    old = dump([*numbers, *values]) + b"\n"
    assert load(line) == load(old)
    data, reader, behind = (old if is_old else line) + b"behind", OwnLineReader(), b""
    for start in range(0, len(data), size):
        part = data[start : start + size]
        behind += part if reader.complete else reader.feed(part)
    assert reader.complete
    assert behind == b"behind"
    assert reader.numbers == numbers
    pairs: list[tuple[SummedTable[Any, Any], SummedTable[Any, Any]]] = [
        (reader.marks, tables[0]),
        (reader.unregistered, tables[1]),
        (reader.suspected, tables[2]),
    ]
    for read, table in pairs:
        assert list(read.items()) == list(table.items())
        assert read.sum == table.sum


@pytest.mark.parametrize(
    "line", [b"[1,2]\n", b"[1,2,3,[],[],[]]\n", b"[1,2,3,4,[],[]]\n", b'[1,2,3,[["a","b",1,2,"c"],[]]\n', b"[1,2,3,[[{}]],[]]\n"]
)
def test_another_line_is_refused(line: bytes) -> None:
    with pytest.raises(RouteFormatError, match="first line"):
        OwnLineReader().feed(line)


def test_changes_while_the_line_is_taken_are_not_in_it() -> None:
    marks, gone, silent = filled({("c", "a"): (1, 2, "x")}, {("c", "b"): 3}, {("c", "a"): (1, 5)})
    parts = own_line((1, 2, 3, 4), (marks, gone, silent))
    marks.put(("c", "new"), Mark(1, 2, "y"))
    gone.take(("c", "b"))
    silent.take(("c", "a"))
    assert load(b"".join(parts)) == [1, 2, 3, 4, [["c", "a", 1, 2, "x"]], [["c", "b", 3]], [["c", "a", 1, 5]]]


def machine_of(brokers: int) -> RouteStateMachine:
    """A machine with this number of registered brokers and the same number of unregistered ones."""
    machine = RouteStateMachine()
    machine.apply(encode_lead(RouteSettings(), 0, 1))
    topics = {"T": QueueData(6, 8, 0, 8), "U": QueueData(6, 8, 0, 8)}
    for number in range(2 * brokers):
        name, address = f"b{number}", f"b{number}:1"
        command = RegisterBroker("c", name, address, 0, "", None, None, False, DataVersion(1, 0, 1), topics, {}, None)
        machine.apply(encoded(machine, command, 0))
        if number % 2:
            machine.apply(encoded(machine, UnregisterBrokers((BrokerRemoval("c", address, name, 0, None),)), 0))
    assert len(machine.marks) == len(machine._unregistered) == brokers
    return machine


@pytest.mark.slow
def test_steps_of_the_line_do_not_grow_with_the_number_of_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    """This includes the first and the last step."""
    monkeypatch.setattr(marks_module, "ROWS_MAX", 50)
    most: list[tuple[Work, ...]] = []
    for brokers in (300, 600):
        machine, copy = machine_of(brokers), RouteStateMachine()
        own = (machine.serial, machine.time_ms, machine.led_term), (machine.marks, machine._unregistered, machine.suspected)
        begin = work_of(partial(own_line, *own))
        line, chunks = own_line(*own), list(machine.snapshot())
        steps = [work_of(partial(next, line)) for _ in range(chunks.index(b"]]\n") + 1)]
        assert next(line, None) is None
        restoration = copy.restore()
        reads = [work_of(partial(restoration.feed, chunk)) for chunk in chunks]
        end = work_of(restoration.finish)
        assert copy.digest() == machine.digest()
        most.append((begin, maximum(steps), maximum(reads[: len(steps)]), end))
    for one, twice in zip(*most, strict=True):
        assert twice.lines <= one.lines + 5, most
        assert twice.bytes < 80_000, most
    assert max(work.lines for work in most[1]) < 50 * 30


def maximum(works: list[Work]) -> Work:
    return Work(*map(max, zip(*works, strict=True)))
