"""Merges consecutive looks at a node with the same answer, because most of a trace is repetition. Pure.

Lines are not sorted by the time of the event. A question without an answer is recorded after its time-out, but its node was
silent from the question on. So no looks are merged within MARGIN_NS of either end of a part, because the neighbour in time may
be in another part.
"""

from collections.abc import Hashable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from replicated_namesrv.spark.schemas import LOOKS, arrow
from replicated_namesrv.verify.divergence import STALL_NS

MARGIN_NS = 3_000_000_000
"""Maximum time by which an event may be earlier than the event of the previous line."""

SILENT = -1

Longs = NDArray[np.int64]


class Looks:
    """Observations of one run in the order of its trace."""

    def __init__(self) -> None:
        self._nodes: dict[Hashable, int] = {}
        self._keys: dict[Hashable, int] = {}
        self._answers: dict[Hashable, int] = {}
        self._parts: list[tuple[Longs, Longs, Longs, Longs, Longs]] = []

    def add(self, observations: pa.Table) -> None:
        """Add columns of ``lines.OBSERVATIONS``."""
        answered = observations["answered"].fill_null(False).to_numpy()
        time_ns = observations["time_ns"]
        asked_ns = pc.coalesce(observations["asked_ns"], time_ns)
        answers = _codes(observations["members"].fill_null("[]"), self._answers)
        self._parts.append(
            (
                np.where(answered, time_ns.to_numpy(), asked_ns.to_numpy()),
                _codes(observations["node"], self._nodes),
                _codes(observations["key"], self._keys),
                np.where(answered, answers, SILENT),
                asked_ns.to_numpy(),
            )
        )

    def table(self) -> pa.Table:
        """LOOKS of all added observations."""
        schema = arrow(LOOKS)
        if not self._parts:
            return schema.empty_table()
        at_ns, nodes, keys, answers, asked_ns = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        first, last = alike(at_ns, nodes * len(self._keys) + keys, answers)
        silent = answers[first] == SILENT
        columns = (
            pa.array(list(self._keys), pa.string()).take(keys[first]),
            pa.array(list(self._nodes), pa.string()).take(nodes[first]),
            pa.array(asked_ns[first]),
            pa.array(at_ns[first]),
            pa.array(asked_ns[last]),
            pa.array(at_ns[last]),
            pa.array(list(self._answers), pa.string()).take(pa.array(answers[first], mask=silent)),
        )
        return pa.table(columns, schema=schema)


def _codes(column: pa.ChunkedArray, known: dict[Hashable, int]) -> Longs:
    """A number for each value; equal values have the same number in all parts."""
    encoded = column.combine_chunks().dictionary_encode("encode")
    numbers = np.array([known.setdefault(value, len(known)) for value in encoded.dictionary.to_pylist()], np.int64)
    found: Longs = numbers[encoded.indices.to_numpy()]
    return found


def alike(at_ns: Longs, entity: Longs, answer: Longs) -> tuple[Longs, Longs]:
    """Indices of the first and the last look of each sequence of looks at one ``entity`` with one ``answer``."""
    if len(at_ns) == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    order = np.lexsort((at_ns, entity))
    at_ns, entity, answer = at_ns[order], entity[order], answer[order]
    edge = (at_ns < at_ns.min() + MARGIN_NS) | (at_ns > at_ns.max() - MARGIN_NS)
    begins = np.ones(len(at_ns), bool)
    begins[1:] = (
        (entity[1:] != entity[:-1]) | (answer[1:] != answer[:-1]) | (at_ns[1:] - at_ns[:-1] > STALL_NS) | edge[1:] | edge[:-1]
    )
    first = np.flatnonzero(begins)
    return order[first], order[np.append(first[1:] - 1, len(at_ns) - 1)]
