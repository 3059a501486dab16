"""Joining looks with the same answer part by part gives the same as joining all of them at once."""

import random
from operator import itemgetter

import pyarrow as pa

from replicated_namesrv.spark.lines import OBSERVATIONS
from replicated_namesrv.spark.looks import MARGIN_NS, Looks
from replicated_namesrv.verify.divergence import STALL_NS

Look = tuple[str, int, int | None]
"""node, at_ns, answer."""
Span = tuple[str, int, int, str | None]


def drawn(seed: int) -> list[tuple[int, Look]]:
    """Random looks with the times at which they were written, in this order. A look without an answer began up to MARGIN_NS
    before it was written."""
    chooser = random.Random(seed)
    written: list[tuple[int, Look]] = []
    for node in ("n1", "n2"):
        now, held = 0, 1
        for _ in range(chooser.randint(1, 60)):
            now += chooser.choice((MARGIN_NS // 2, MARGIN_NS // 7, STALL_NS + 1, 1))
            held += chooser.random() < 0.1
            silent = chooser.random() < 0.15
            late = chooser.randint(0, MARGIN_NS) if silent else 0
            written.append((now + late, (node, now, None if silent else held)))
            now += late
    return sorted(written)


def observed(looks: list[tuple[int, Look]], chooser: random.Random) -> pa.Table:
    """The looks as a table, as they are read from lines. If no answer came, the time of the question is always present. Otherwise
    it is present at random."""
    rows = []
    for written_ns, (node, at_ns, answer) in looks:
        asked_ns = at_ns if answer is None or chooser.random() < 0.5 else None
        members = None if answer is None else str(answer)
        rows.append({"time_ns": written_ns, "asked_ns": asked_ns, "node": node, "answered": answer is not None,
                     "members": members, "key": "k"})  # fmt: skip  # items grouped by line
    return pa.Table.from_pylist(rows, schema=OBSERVATIONS)


def joined(spans: list[Span]) -> list[Span]:
    """Consecutive spans of one node with the same answer and no gap between them are joined into one."""
    found: list[Span] = []
    for node, first, last, value in sorted(spans, key=itemgetter(0, 1)):
        if found and found[-1][0] == node and found[-1][3] == value and first - found[-1][2] <= STALL_NS:
            found[-1] = (node, found[-1][1], last, value)
        else:
            found.append((node, first, last, value))
    return found


def test_parts_join_what_the_whole_would() -> None:
    fewer = 0
    for seed in range(150):
        looks, chooser = drawn(seed), random.Random(-seed)
        size, block = chooser.randint(1, len(looks) + 1), chooser.randint(1, 20)
        spans: list[Span] = []
        for start in range(0, len(looks), size):
            part, found = looks[start : start + size], Looks()
            for place in range(0, len(part), block):
                found.add(observed(part[place : place + block], chooser))
            rows = found.table().to_pylist()
            assert {row["key"] for row in rows} == {"k"}
            spans += [(row["node"], row["from_ns"], row["last_ns"], row["members"]) for row in rows]
        single = [(node, at, at, None if answer is None else str(answer)) for _, (node, at, answer) in looks]
        assert joined(spans) == joined(single), f"seed {seed}"
        fewer += len(looks) - len(spans)
    assert fewer > 300


def test_a_calm_hour_is_a_few_rows() -> None:
    looks: list[tuple[int, Look]] = [(number * 100_000_000, ("n1", number * 100_000_000, 7)) for number in range(36_000)]
    found = Looks()
    found.add(observed(looks, random.Random(1)))
    assert found.table().num_rows <= 2 * MARGIN_NS // 100_000_000 + 3


def test_nothing_to_join() -> None:
    assert Looks().table().num_rows == 0
    found = Looks()
    found.add(OBSERVATIONS.empty_table())
    assert found.table().num_rows == 0
