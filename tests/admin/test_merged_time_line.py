"""One time line from those of several nodes."""

from typing import Any

import pytest

from replicated_namesrv.admin.merged_time_line import JOIN_MS, merged


def entry(number: int, time_ms: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"number": number, "timeMs": time_ms, "kind": kind, **fields}


def lost(number: int, time_ms: int, since_ms: int, peer: str = "n3", **fields: Any) -> dict[str, Any]:
    return entry(number, time_ms, "peer-lost", peer=peer, sinceMs=since_ms, why="its connection ended", **fields)


@pytest.mark.parametrize("kind", ["requested", "fenced", "unfenced", "serving", "not-serving", "stalled"])
def test_entries_about_a_node_itself_name_it(kind: str) -> None:
    found = merged([entry(1, 100, kind)], {"n2": [entry(1, 200, kind)]})
    assert found == [entry(1, 200, kind) | {"number": "n2 1", "node": "n2"}, entry(1, 100, kind)]


def test_a_leader_that_several_nodes_saw_is_one_entry() -> None:
    def leader(number: int, time_ms: int, term: int, name: str | None = "n2") -> dict[str, Any]:
        return entry(number, time_ms, "leader", leader=name, term=term)

    own = [leader(3, 300, 5), leader(2, 200, 5, None)]
    found = merged(own, {"n2": [leader(7, 290, 5), leader(6, 100, 4), leader(5, 50, 4, None)]})
    assert [(each["timeMs"], each["leader"], each["term"]) for each in found] == [(290, "n2", 5), (200, None, 5), (100, "n2", 4)]


def test_a_loss_that_several_nodes_saw_is_one_entry() -> None:
    own = [lost(1, 1_000, 900, seenBy=["n1"])]
    (found,) = merged(own, {"n2": [lost(4, 990 + JOIN_MS, 950)], "n4": [lost(9, 990, 890)]})
    assert (found["timeMs"], found["sinceMs"], found["seenBy"]) == (990, 950, ["n1", "n2", "n4"])
    assert own == [lost(1, 1_000, 900, seenBy=["n1"])], "the entries of this node are not changed"


def test_other_losses_are_entries_of_their_own() -> None:
    own = [lost(1, 1_000, 900, seenBy=["n1"])]
    late = lost(4, 1_001 + JOIN_MS, 950)
    assert len(merged(own, {"n2": [late]})) == 2
    assert len(merged(own, {"n2": [lost(4, 1_000, 900, peer="n1")]})) == 2
    assert len(merged([*own, lost(2, 3_000, 2_900, seenBy=["n1"])], {})) == 2, "it was lost twice"
    back = {**lost(4, 1_500, 900), "kind": "peer-back"}
    assert [each["kind"] for each in merged(own, {"n2": [back]})] == ["peer-back", "peer-lost"]


@pytest.mark.parametrize(
    "odd",
    [
        None,
        {"kind": "requested"},
        {"kind": ["requested"], "timeMs": 1},
        entry(1, 1, "broker-registered"),
        entry(1, 1, "peer-lost"),
        entry(1, 1, "peer-lost", peer=["n3"], sinceMs=1),
        entry(1, 1, "leader", leader=None, term=3),
        entry(1, 1, "leader", leader="n2"),
    ],
)
def test_other_entries_are_left_out(odd: object) -> None:
    assert merged([], {"n2": [odd]}) == []
