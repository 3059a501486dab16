"""The first line of a snapshot: written and read in steps that do not grow with the number of brokers, in its old form."""

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicated_namesrv.model import DataVersion, QueueData
from replicated_namesrv.replication import marks as marks_module
from replicated_namesrv.replication.marks import Mark, OwnLineReader, marks_table, own_line, unregistered_table
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


def filled(marks: dict[Any, Any], gone: dict[Any, int]) -> tuple[SummedTable[Any, Mark], SummedTable[Any, int]]:
    first, second = marks_table(), unregistered_table()
    for key, mark in marks.items():
        first.put(key, Mark(*mark))
    for key, revision in gone.items():
        second.put(key, revision)
    return first, second


@given(
    st.tuples(NUMBERS, NUMBERS, NUMBERS),
    st.dictionaries(KEYS, st.tuples(NUMBERS, NUMBERS, TEXT), max_size=5),
    st.dictionaries(KEYS, NUMBERS, max_size=5),
    st.integers(1, 40),
    st.integers(1, 3),
    st.booleans(),
)
def test_a_line_cut_anywhere_is_read_as_it_was(
    numbers: tuple[int, int, int], marks: dict[Any, Any], gone: dict[Any, int], size: int, rows: int, is_old: bool
) -> None:
    """``is_old``: as earlier versions wrote it. They read the new one, too."""
    one, other = filled(marks, gone)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(marks_module, "ROWS_MAX", rows)
        line = b"".join(own_line(numbers, one, other))
    old = dump([*numbers, [[*key, *mark] for key, mark in one.items()], [[*key, n] for key, n in other.items()]]) + b"\n"
    assert load(line) == load(old)
    data, reader, behind = (old if is_old else line) + b"behind", OwnLineReader(), b""
    for start in range(0, len(data), size):
        part = data[start : start + size]
        behind += part if reader.complete else reader.feed(part)
    assert reader.complete
    assert behind == b"behind"
    assert tuple(reader.numbers) == numbers
    for table, read in ((one, reader.marks), (other, reader.unregistered)):
        assert list(read.items()) == list(table.items())
        assert read.sum == table.sum


@pytest.mark.parametrize("line", [b"[1,2]\n", b"[1,2,3,[],[],[]]\n", b'[1,2,3,[["a","b",1,2,"c"],[]]\n', b"[1,2,3,[[{}]],[]]\n"])
def test_another_line_is_refused(line: bytes) -> None:
    with pytest.raises(RouteFormatError, match="first line"):
        OwnLineReader().feed(line)


def test_changes_while_the_line_is_taken_are_not_in_it() -> None:
    marks, gone = filled({("c", "a"): (1, 2, "x")}, {("c", "b"): 3})
    parts = own_line((1, 2, 3), marks, gone)
    marks.put(("c", "new"), Mark(1, 2, "y"))
    gone.take(("c", "b"))
    assert load(b"".join(parts)) == [1, 2, 3, [["c", "a", 1, 2, "x"]], [["c", "b", 3]]]


def machine_of(brokers: int) -> RouteStateMachine:
    """As many are registered as were unregistered."""
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


def test_steps_of_the_line_do_not_grow_with_the_number_of_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beginning and end included."""
    monkeypatch.setattr(marks_module, "ROWS_MAX", 50)
    most: list[tuple[Work, ...]] = []
    for brokers in (300, 600):
        machine, copy = machine_of(brokers), RouteStateMachine()
        own = (machine.serial, machine.time_ms, machine.led_term), machine.marks, machine._unregistered
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
