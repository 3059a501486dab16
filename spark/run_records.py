"""The records of one run, by kind, as the stages of its judgement read them. Pure."""

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
"""Name and version of the brokers in an answer."""


@dataclass(frozen=True)
class RunRecords:
    """One run. Lines that are not records are left out."""

    about: Row
    """Its row of RUNS."""
    clients: Mapping[str, str]
    """Kinds of clients by name, from the manifest."""
    events: pa.Table
    looks: pa.Table
    _decoded: dict[str, Members] = field(default_factory=dict)

    @property
    def run(self) -> str:
        """Its name."""
        return str(self.about["run"])

    def of(self, record: str, *columns: str) -> list[Row]:
        """The records of one kind by time."""
        chosen = self.events.filter(pc.equal(self.events["record"], record)).select(["time_ns", *columns])
        return sorted(chosen.to_pylist(), key=lambda row: int(row["time_ns"]))

    @cached_property
    def timeline(self) -> Timeline:
        """Phases, and sides of nodes."""
        return Timeline(self.of("phase", "phase"), self.of("fault", "edge", "sides"), self.about["nodes"])

    def members(self, text: str | None) -> Members:
        """The brokers of an answer. Most answers repeat."""
        if text is None:
            return ()
        found = self._decoded.get(text)
        if found is None:
            found = self._decoded[text] = tuple((member["name"], member["version"]) for member in orjson.loads(text))
        return found
