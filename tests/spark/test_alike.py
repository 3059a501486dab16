"""Joining looks with the same answer, batch by batch, against doing so with all of them at hand."""

import random
from operator import itemgetter

import pyarrow as pa

from replicated_namesrv.spark.observations import MARGIN_NS, STANDSTILL_NS, _alike

Look = tuple[str, int, int | None]
"""node, at_ns, hash."""


def drawn(seed: int) -> list[Look]:
    """Looks in the order in which they were written: what was not answered happened up to MARGIN_NS earlier."""
    chooser = random.Random(seed)
    written: list[tuple[int, Look]] = []
    for node in ("n1", "n2"):
        now, held = 0, 1
        for _ in range(chooser.randint(1, 60)):
            now += chooser.choice((MARGIN_NS // 2, MARGIN_NS // 7, STANDSTILL_NS + 1, 1))
            held += chooser.random() < 0.1
            silent = chooser.random() < 0.15
            late = chooser.randint(0, MARGIN_NS) if silent else 0
            written.append((now + late, (node, now, None if silent else held)))
            now += late
    return [look for _, look in sorted(written)]


def joined(spans: list[tuple[str, int, int, int | None]]) -> list[tuple[str, int, int, int | None]]:
    """Spans of one node that follow each other without a gap, with the same answer, as one."""
    found: list[tuple[str, int, int, int | None]] = []
    for node, first, last, value in sorted(spans, key=itemgetter(0, 1)):
        if found and found[-1][0] == node and found[-1][3] == value and first - found[-1][2] <= STANDSTILL_NS:
            found[-1] = (node, found[-1][1], last, value)
        else:
            found.append((node, first, last, value))
    return found


def test_batches_join_what_the_whole_would() -> None:
    fewer = 0
    for seed in range(150):
        looks = drawn(seed)
        size = random.Random(-seed).randint(1, len(looks) + 1)
        batches = [looks[start : start + size] for start in range(0, len(looks), size)]
        tables = [
            pa.record_batch(
                [
                    pa.array(["r"] * len(batch)), pa.array(["k"] * len(batch)), pa.array([node for node, _, _ in batch]),
                    pa.array([at for _, at, _ in batch], pa.int64()), pa.array([value for _, _, value in batch], pa.int64()),
                ],
                names=["run", "key", "node", "at_ns", "hash"],
            )
            for batch in batches
        ]  # fmt: skip
        rows = [row for batch in _alike(tables) for row in batch.to_pylist()]
        spans = [(row["node"], row["from_ns"], row["last_ns"], row["hash"]) for row in rows]
        single = [(node, at, at, value) for node, at, value in looks]
        assert joined(spans) == joined(single), f"seed {seed}"
        assert {(row["run"], row["key"]) for row in rows} == {("r", "k")}
        fewer += len(looks) - len(spans)
    assert fewer > 300


def test_one_batch_of_a_calm_hour_is_a_few_rows() -> None:
    count = 36_000
    looks = pa.record_batch(
        [
            pa.array(["r"] * count), pa.array(["k"] * count), pa.array(["n1"] * count),
            pa.array([number * 100_000_000 for number in range(count)], pa.int64()), pa.array([7] * count, pa.int64()),
        ],
        names=["run", "key", "node", "at_ns", "hash"],
    )  # fmt: skip
    rows = sum(batch.num_rows for batch in _alike([looks]))
    assert rows <= 2 * MARGIN_NS // 100_000_000 + 3
