"""Session guarantees (Terry et al. 1994). The checks of chaos runs and the analysis of many runs use this definition.

A session is a client. A read breaks a guarantee if it returns an older version than the guarantee requires. The guarantees
require at least:

- read your writes: the version that the client had written;
- monotonic reads: the version that the client had read before;
- monotonic writes: for the writer of the value that is read, the newest version of this writer that the client had read before;
- writes follow reads: if the client had read a value, the version that the writer of this value had read before that write.

"Before" means that the operation had ended when the other one began. A version is an interval: one version is older than another
if it had ended before the other began. The caller chooses the numbers. With the start and the end of each write, versions have
the order that real time enforces. With consecutive numbers, each as the interval from n to n, versions have a total order. Pure.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from replicated_namesrv.verify.attribution import KeyEvent, Write


class Version(NamedTuple):
    """The version that a write created."""

    first: float
    last: float
    """End of the write (``first`` is its start). The version is older than each version whose ``first`` is greater than this."""
    op: int | None = None
    """Number of the write. None: no write of the history created the version."""
    writer: str = ""


OLDEST = Version(-math.inf, -math.inf)
"""Older than every other version."""


class SessionAccess(NamedTuple):
    """One read or write of a session."""

    op: int
    client: str
    start_ns: float
    end_ns: float
    """End of the operation. Infinite if the client never learned the outcome of its write: then no guarantee requires the client
    to see the write."""
    reads: bool
    version: Version | None
    """The version written or read. None: no write has the value that was read, which counts as older than all versions."""
    is_certain: bool = True
    """False: the read may have returned another version than this one. The read is judged by this version, but later reads
    need not be as new.
    """


class Broken(NamedTuple):
    """The guarantees that a read broke."""

    read_your_writes: bool
    monotonic_reads: bool
    monotonic_writes: bool
    writes_follow_reads: bool


class SessionVerdict(NamedTuple):
    """Judgement of one read."""

    broken: Broken
    newest: Version
    """The newest version that the client had written or read before this read."""


def accesses_by_time(
    writes: Iterable[Write], reads: Iterable[KeyEvent], sources: Mapping[int, Write | None]
) -> Iterator[SessionAccess]:
    """The operations on one key, in the order of time. The writes' times order the versions; ``sources`` has the version that
    each read saw.
    """
    for write in writes:
        if write.op is not None:
            yield SessionAccess(write.op, write.client, write.start_ns, write.end_ns, False, _by_time(write))
    for read in reads:
        source = sources[read.op]
        yield SessionAccess(read.op, read.client, read.start_ns, read.end_ns, True, None if source is None else _by_time(source))


def _by_time(write: Write) -> Version:
    return Version(write.start_ns, write.end_ns, write.op, write.client)


def session_verdicts(accesses: Iterable[SessionAccess]) -> dict[int, SessionVerdict]:
    """The judgement of each read of one key, by the number of the read."""
    clients: defaultdict[str, list[SessionAccess]] = defaultdict(list)
    for access in sorted(accesses, key=lambda access: (access.start_ns, access.op)):
        clients[access.client].append(access)
    known_before: dict[int, Version] = {}
    """For each write, the newest version that its client had read before the write."""
    for session in clients.values():
        seen, newest = _seen(session), OLDEST
        for access in session:
            if not access.reads:
                while seen and seen[-1][0] < access.start_ns:
                    newest = _newer(newest, seen.pop()[1])
                known_before[access.op] = newest
    return {op: verdict for session in clients.values() for op, verdict in _walk(session, known_before)}


def _newer(left: Version, right: Version) -> Version:
    return right if right.first > left.first else left


def _seen(session: Sequence[SessionAccess]) -> list[tuple[float, Version]]:
    """The ends of the reads that require a version, each with this version, the latest end first."""
    found = [(one.end_ns, one.version) for one in session if one.reads and one.is_certain and one.version is not None]
    return sorted(found, key=lambda pair: pair[0], reverse=True)


def _walk(session: Sequence[SessionAccess], known_before: dict[int, Version]) -> Iterator[tuple[int, SessionVerdict]]:
    written_by_end = [(one.end_ns, one.version or OLDEST) for one in session if not one.reads]
    own = sorted(written_by_end, key=lambda pair: pair[0], reverse=True)
    seen = _seen(session)
    written = read = causal = OLDEST
    of_writer: dict[str, Version] = {}
    for access in session:
        if not access.reads:
            continue
        while own and own[-1][0] < access.start_ns:
            written = _newer(written, own.pop()[1])
        while seen and seen[-1][0] < access.start_ns:
            before = seen.pop()[1]
            read = _newer(read, before)
            if before.op is not None:
                of_writer[before.writer] = _newer(of_writer.get(before.writer, OLDEST), before)
                causal = _newer(causal, known_before[before.op])
        version = access.version or OLDEST
        same_writer = OLDEST if version.op is None else of_writer.get(version.writer, OLDEST)
        broken = Broken(*(entitled.first > version.last for entitled in (written, read, same_writer, causal)))
        yield access.op, SessionVerdict(broken, _newer(written, read))
