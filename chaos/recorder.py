"""The recorder that all participants of a run share: one clock, one numbering of operations, one trace."""

import itertools
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from replicated_namesrv.chaos.records import Complete, Invoke, Member, TraceRecord, TraceWriter
from replicated_namesrv.client.queries import RefusedError
from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.model import TopicRouteData
from replicated_namesrv.wire.codes import ResponseCode

OK, FAIL, INDETERMINATE = "ok", "fail", "indeterminate"


class Ended(NamedTuple):
    """How an operation ended."""

    outcome: str
    node: str | None = None
    value: str | None = None
    members: Sequence[Member] | None = None
    error: str | None = None


class Recorder:
    """Writes records and counts successful operations."""

    def __init__(self, writer: TraceWriter, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._writer = writer
        self._numbers = itertools.count(1)
        self.now_ns = clock
        self.succeeded = 0
        self.issued = 0

    def write(self, record: TraceRecord) -> None:
        """Write a record. Raises TraceError."""
        self._writer.write(record)

    def invoke(
        self,
        client: str,
        kind: str,
        key: str,
        *,
        value: str | None = None,
        node: str | None = None,
        level: str | None = None,
        probe: int | None = None,
        topics: list[str] | None = None,
    ) -> int:
        """Record that an operation begins; returns its number."""
        number = next(self._numbers)
        self.issued += 1
        self.write(Invoke(self.now_ns(), number, client, kind, key, value, node, level, probe, topics))
        return number

    def complete(self, number: int, ended: Ended) -> None:
        """Record that the operation has ended."""
        self.succeeded += ended.outcome == OK
        members = None if ended.members is None else list(ended.members)
        self.write(Complete(self.now_ns(), number, ended.outcome, ended.node, ended.value, members, ended.error))


def ended_by(error: NamesrvError, node: str | None = None) -> Ended:
    """The end of an operation that failed with ``error``. Of all refusals only "busy" proves that the operation was not
    applied.
    """
    if isinstance(error, RefusedError):
        return Ended(FAIL if error.code == ResponseCode.SYSTEM_BUSY else INDETERMINATE, node, error=str(error))
    return Ended(FAIL if error.definite else INDETERMINATE, node, error=str(error))


def route_members(route: TopicRouteData | None) -> list[Member]:
    """Brokers of a route: every address, with the group's queues as version. Brokers register as many read queues as write
    queues. If the numbers differ, the version is negative, so it is one that no broker has registered."""
    if route is None:
        return []
    queues = {
        name: str(data.write_queue_nums if data.read_queue_nums == data.write_queue_nums else -data.write_queue_nums)
        for name, data in route.queue_datas
    }
    return [
        Member(f"{data.broker_name}/{broker_id}", queues[data.broker_name])
        for data in route.broker_datas
        if data.broker_name in queues
        for broker_id, _ in data.broker_addrs
    ]
