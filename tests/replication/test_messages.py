"""Messages between nodes: encoding and decoding are inverse, and other bytes are refused."""

import random

import pytest

from replicated_namesrv.raft.raft_errors import MalformedError
from replicated_namesrv.replication.liveness.leader_messages import (
    AGE_MAX,
    GRANTED,
    HELD,
    LOST,
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
