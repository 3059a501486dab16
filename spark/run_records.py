"""The records of one run, by kind. The stages of its judgement read them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from replicated_namesrv.spark.timeline import Timeline

Row = dict[str, Any]
Members = tuple[tuple[str, str], ...]
"""Names and versions of the brokers in an answer."""


@dataclass(frozen=True)
class RunRecords:
    """One run. Lines that are not records are left out."""

    about: Row
    """The row of this run in RUNS."""
    clients: Mapping[str, str]
    """The kind of each client, from the manifest."""
    events: pa.Table
    looks: pa.Table
    _decoded: dict[str, Members] = field(default_factory=dict)

    @property
    def run(self) -> str:
        """Name of the run."""
        return str(self.about["run"])

    def of(self, record: str, *columns: str) -> list[Row]:
        """The records of one kind, in the order of time."""
        chosen = self.events.filter(pc.equal(self.events["record"], record)).select(["time_ns", *columns])
        return sorted(chosen.to_pylist(), key=lambda row: int(row["time_ns"]))

    @cached_property
    def timeline(self) -> Timeline:
        """The phases of the run, and the sides of its nodes."""
        return Timeline(self.of("phase", "phase"), self.of("fault", "edge", "sides", "voters"))

    def members(self, text: str | None) -> Members:
        """The brokers of an answer. The result is cached, because most answers repeat."""
        if text is None:
            return ()
        found = self._decoded.get(text)
        if found is None:
            found = self._decoded[text] = tuple((member["name"], member["version"]) for member in orjson.loads(text))
        return found
