"""Looks in succession at a node that gave the same answer, as one: what a trace holds is mostly repetition. Pure.

Lines are not in the order of what they tell: a question that was not answered is written down when its time is up, and its node
was silent from the question on. So nothing is joined within MARGIN_NS of either end of what is at hand, where the neighbour in
time may be elsewhere.
"""

from collections.abc import Hashable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from replicated_namesrv.spark.schemas import LOOKS, arrow
from replicated_namesrv.verify.divergence import STALL_NS

MARGIN_NS = 3_000_000_000
"""How much earlier than the line before it a line may have happened."""

SILENT = -1

Longs = NDArray[np.int64]


class Looks:
    """Observations of one run, as they follow each other in its trace."""

    def __init__(self) -> None:
        self._nodes: dict[Hashable, int] = {}
        self._keys: dict[Hashable, int] = {}
        self._answers: dict[Hashable, int] = {}
        self._parts: list[tuple[Longs, Longs, Longs, Longs]] = []

    def add(self, observations: pa.Table) -> None:
        """Take columns of ``lines.OBSERVATIONS``."""
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
            )
        )

    def table(self) -> pa.Table:
        """LOOKS of all that was added."""
        schema = arrow(LOOKS)
        if not self._parts:
            return schema.empty_table()
        at_ns, nodes, keys, answers = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        first, last = alike(at_ns, nodes * len(self._keys) + keys, answers)
        silent = answers[first] == SILENT
        columns = (
            pa.array(list(self._keys), pa.string()).take(keys[first]),
            pa.array(list(self._nodes), pa.string()).take(nodes[first]),
            pa.array(at_ns[first]),
            pa.array(at_ns[last]),
            pa.array(list(self._answers), pa.string()).take(pa.array(answers[first], mask=silent)),
        )
        return pa.table(columns, schema=schema)


def _codes(column: pa.ChunkedArray, known: dict[Hashable, int]) -> Longs:
    """A number for each value, the same in all parts."""
    encoded = column.combine_chunks().dictionary_encode("encode")
    numbers = np.array([known.setdefault(value, len(known)) for value in encoded.dictionary.to_pylist()], np.int64)
    found: Longs = numbers[encoded.indices.to_numpy()]
    return found


def alike(at_ns: Longs, entity: Longs, answer: Longs) -> tuple[Longs, Longs]:
    """Where the first and the last look lie of each succession of looks at one ``entity`` with one ``answer``."""
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
