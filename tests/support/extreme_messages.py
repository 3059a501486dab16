"""Messages between nodes with one number at a bound, made from the definitions of the messages."""

import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_type_hints

from replicated_namesrv.raft.message_bounds import NUMBER_MAX, TERM_STEP_MAX
from replicated_namesrv.raft.raft_messages import (
    Append,
    DigestReport,
    Introduction,
    Message,
    PreVote,
    ReadProbe,
    SnapshotChunk,
    Term,
    TimeoutNow,
    Vote,
    encode,
)

BOUNDS = (0, 1, 255, 2**16, 2**32 - 1, NUMBER_MAX, NUMBER_MAX + 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1)
OF_LEADERS = (Append, SnapshotChunk, ReadProbe, TimeoutNow)
"""Sent only by the leader of the term."""


class Facts(NamedTuple):
    """The receiver's state, and the incarnations of sender and receiver."""

    sender: int
    receiver: int
    """Incarnations."""
    term: int
    last_index: int
    last_term: int
    applied_index: int
    founders: Mapping[str, int]
    sender_process: int = 1
    receiver_process: int = 1
    digest: bytes = b""


def plausible(kind: type[Message], facts: Facts) -> Message:
    """A message with usual values, chosen by the names and types of the kind's fields."""
    by_name: dict[str, object] = {
        "source": facts.sender,
        "destination": facts.receiver,
        "echo": facts.receiver,
        "term": facts.term + (kind in (Vote, PreVote)),
        "state": 2,
        "founders": tuple(sorted(facts.founders.items())),
        "process": facts.sender_process,
        "echo_process": facts.receiver_process,
        "previous_index": facts.last_index,
        "previous_term": facts.last_term,
        "digest": facts.digest if kind is DigestReport else b"",
        "log_index": facts.applied_index,
        "last_index": facts.last_index,
        "snapshot_index": facts.last_index + 10,
        "total": 100,
        "proposals": b"",
    }
    by_type: dict[object, object] = {bool: False, bytes: b""}
    make: Any = kind
    message: Message = make(*(by_name.get(name, by_type.get(hint, 1)) for name, hint in get_type_hints(kind).items()))
    return message


def contradicts(message: Message, facts: Facts) -> bool:
    """Whether the message contradicts the receiver's state.

    An append that contradicts a committed entry stops the receiver. An introduction with a number that was never sent shows that
    a machine was reset, so a node rejoins."""
    if isinstance(message, Introduction):
        return any(1 < number <= NUMBER_MAX for number in (message.sequence, message.echo_sequence))
    if not isinstance(message, Append) or message.previous_term > message.term:
        return False
    named = message.previous_index, message.previous_term
    return 0 < message.previous_index <= facts.last_index and named != (facts.last_index, facts.last_term)


def at_bounds(message: Message, own_term: int) -> Iterator[Message]:
    """The message with one number at a bound, for each number and each bound that can be encoded."""
    for name, hint in get_type_hints(type(message), include_extras=True).items():
        if getattr(message, name).__class__ is not int:
            continue
        steps = (own_term + TERM_STEP_MAX, own_term + TERM_STEP_MAX + 1) if hint == Term else ()
        for value in (*BOUNDS, *steps):
            changed: Any = message._replace(**{name: value})
            try:
                encode(changed)
            except struct.error:
                continue
            yield changed
