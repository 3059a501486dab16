"""Bounds of the numbers in messages: a node accepts only numbers that a correct cluster can reach within years of work.

A number near 2^64 leaves no room for the next one. A cluster that adopts such a term can never elect a leader again, because the
term is on its disks. The field's type in ``raft_messages.py`` says which kind of number it is, so that a new message is covered.
A message is dropped by the first row that matches:

| row | number                       | condition                                         | why                                   |
|-----|------------------------------|---------------------------------------------------|---------------------------------------|
| B1  | term, ordinal                | > `NUMBER_MAX`                                    | leaves no room for the next ones      |
| B2  | term                         | > own term + `TERM_STEP_MAX`, own term is not 0   | elections cannot have reached it      |
| B3  | term of an entry or snapshot | > term of the message; in a vote: >= that term    | a log has no entries of later terms   |
| B4  | acknowledged                 | > index before the entries                        | a leader sends what follows the match |
| B5  | offset                       | > total                                           | a file has no bytes after its end     |

B2 does not hold for term 0: a new disk joins a cluster of any age. Identities (incarnations, nonces, checksums) may have any
value, because they are drawn from all 64-bit numbers.

If a node repeatedly sends terms that B2 refuses, that node's term may have been raised by several steps, each within the bound.
Then no other node accepts its messages any more. So the receiver raises its own term by one step (``Elections.approach_term``)
when such messages have arrived for one election time. While it has a leader, it waits for ``PATIENCE_ELECTIONS`` election times.
One forged message has no effect. Introductions to this incarnation count too. They are needed by a node that was down while the
other nodes raised their terms and were restarted: it has accepted none of their processes.

Only authentication keeps out a process that repeats steps within the bound.

The tests of each row: ``BOUNDS_ROWS`` in ``tests/raft/test_message_bounds.py``.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, get_args, get_type_hints

from replicated_namesrv.raft.raft_errors import MalformedError
from replicated_namesrv.raft.raft_messages import (
    Append,
    Message,
    Ordinal,
    PreVote,
    SnapshotChunk,
    Term,
    Vote,
)

NUMBER_MAX = 1 << 62
"""Greatest term and ordinal. Sequence numbers of requests begin below 2^61. With a greater term on its disk a node does not
start."""
TERM_STEP_MAX = 1 << 30
"""Greatest accepted distance of a term above the term of this node. A node that was cut off for a year and raised its term every
150 ms, which pre-vote prevents, comes back 2.1 * 10^8 terms later: a fifth of this. From term 1 to ``NUMBER_MAX`` there are 2^32
such steps, each with a sync of the disk."""


class TermError(MalformedError):
    """A term that elections cannot have reached (rows B1 and B2)."""

    is_term_possible = False
    """Whether the term is at most ``NUMBER_MAX`` (B2)."""


class _Fields(NamedTuple):
    """Positions of the numbers of one kind of message."""

    terms: tuple[int, ...]
    ordinals: tuple[int, ...]


def _fields(kind: type[Message]) -> _Fields:
    hints = list(get_type_hints(kind, include_extras=True).values())
    for name, hint in zip(kind._fields, hints, strict=True):
        if hint is int:  # the field has none of the three kinds
            raise TypeError(f"{kind.__name__}.{name}: say whether it is an Identity, a Term or an Ordinal")
    return _Fields(*(tuple(n for n, hint in enumerate(hints) if hint == wanted) for wanted in (Term, Ordinal)))


KINDS: Sequence[type[Message]] = get_args(Message)
_FIELDS = {kind: _fields(kind) for kind in KINDS}


def check_numbers(message: Message, own_term: int) -> None:
    """MalformedError, or TermError, if a row of the table matches."""
    terms, ordinals = _FIELDS[type(message)]
    numbers: tuple[int, ...] = message  # type: ignore[assignment]  # all fields at the positions of numbers are int
    for position in terms:
        term = numbers[position]
        if term > NUMBER_MAX or (term > own_term + TERM_STEP_MAX and own_term):  # B1, B2
            is_possible = term <= NUMBER_MAX
            error = TermError(
                f"{_named(message, position)} is beyond what elections can reach from term {own_term}. "
                + (
                    "If this repeats, forged messages have raised the term of its sender; this node raises its own in steps "
                    "until it accepts the sender. Leave all data directories in place"
                    if is_possible
                    else "The message was forged, or a forged term is on the disk of its sender, which will not start again: the "
                    "error at that start names the remedy"
                )
            )
            error.is_term_possible = is_possible
            raise error
    for position in ordinals:
        if numbers[position] > NUMBER_MAX:
            raise MalformedError(f"{_named(message, position)} is more than {NUMBER_MAX}")  # B1
    relation = _RELATIONS.get(type(message))
    if relation is not None:
        relation(message)


def _named(message: Message, position: int) -> str:
    return f"{type(message).__name__}.{message._fields[position]}={message[position]!r}"


def _check_append(message: Append) -> None:
    if message.previous_term > message.term:  # B3
        raise MalformedError(f"Append of term {message.term} after an entry of term {message.previous_term}")
    if message.acknowledged > message.previous_index:  # B4
        raise MalformedError(f"Append after entry {message.previous_index} to a node that acknowledged {message.acknowledged}")


def _check_vote(message: Vote | PreVote) -> None:
    if message.last_term >= message.term:  # B3
        raise MalformedError(f"{type(message).__name__} for term {message.term} with an entry of term {message.last_term}")


def _check_chunk(message: SnapshotChunk) -> None:
    if message.snapshot_term > message.term:  # B3
        raise MalformedError(f"SnapshotChunk of term {message.term} with a snapshot of term {message.snapshot_term}")
    if message.offset > message.total:  # B5
        raise MalformedError(f"SnapshotChunk at offset {message.offset} of {message.total}")


_RELATIONS: dict[type[Message], Callable[..., None]] = {
    Append: _check_append,
    Vote: _check_vote,
    PreVote: _check_vote,
    SnapshotChunk: _check_chunk,
}
