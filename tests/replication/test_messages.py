"""Messages between nodes: encoding and decoding are inverse, and other bytes are refused."""

import random

import pytest

from replicated_namesrv.raft.raft_errors import MalformedError
from replicated_namesrv.replication.liveness.leader_messages import (
    AGE_MAX,
    GRANTED,
    HELD,
    LAST,
    LOST,
    MORE,
    REGISTER,
    REMOVE,
    WITHDRAW,
    Decision,
    Inquiry,
    Message,
    NodeReport,
    ReportAnswer,
    ReportEntry,
    decode,
    encode,
)

MESSAGES = [
    NodeReport(
        5,
        6,
        7,
        True,
        (ReportEntry(("c", "ä:1"), HELD, True, 8, 9, 11), ReportEntry(("c", "b:1"), LOST, False, 3, 0, AGE_MAX)),
        12,
    ),
    NodeReport(5, 6, 7, True, (ReportEntry(("c", "a:1"), HELD, False, 8, 9, 11),), 12, MORE),
    NodeReport(5, 7, 7, False, (), 12, LAST),
    ReportAnswer(5, 6, 7, False, 1_700_000_000_000, ((0, 1), (3, 2))),
    Inquiry(5, 6, 7, REGISTER, 8, AGE_MAX, ("c", "a:1"), "0123456789abcdef"),
    Inquiry(5, 6, 7, REMOVE, 0, 9, ("c", "a:1"), '["a",0,3]'),
    Inquiry(5, 6, 7, WITHDRAW, 0, AGE_MAX, ("c", "a:1"), "0123456789abcdef"),
    Decision(5, 6, GRANTED),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_what_is_written_is_read(message: Message) -> None:
    assert decode(encode(message)) == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_damaged_bytes_raise_nothing_but_malformed(message: Message) -> None:
    data, chance = encode(message), random.Random(1)
    for end in range(len(data)):
        with pytest.raises(MalformedError):
            decode(data[:end])
    for _ in range(2_000):
        damaged = bytearray(data)
        damaged[chance.randrange(len(data))] = chance.randrange(256)
        try:
            decode(bytes(damaged))
        except MalformedError:
            continue


@pytest.mark.parametrize("is_full", [False, True])
def test_a_part_differs_for_older_leaders_only_in_an_age_that_they_ignore(is_full: bool) -> None:
    """0.1 reads this age only if the term before it is not 0. Here this term is 0."""
    whole = NodeReport(5, 6, 7, is_full, (ReportEntry(("c", "a:1"), HELD, False, 8, 9, 11),), 12)
    part = whole._replace(part=MORE)
    age = slice(38, 42)
    assert encode(whole)[30:42] == bytes(8) + b"\xff" * 4
    assert encode(part)[: age.start] + encode(whole)[age] + encode(part)[age.stop :] == encode(whole)
    for told_term, told_ms in ((1, AGE_MAX - LAST), (0, 5), (3, 5)):
        sent_by_0_1 = bytearray(encode(whole))
        sent_by_0_1[30:42] = told_term.to_bytes(8, "little") + told_ms.to_bytes(4, "little")
        assert decode(bytes(sent_by_0_1)) == whole
