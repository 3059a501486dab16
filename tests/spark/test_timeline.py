"""The side of a node while members change: voters count, not members."""

import pytest

from replicated_namesrv.spark.timeline import Timeline

FOUNDERS, ALL = ["n1", "n2", "n3"], ["n1", "n2", "n3", "n4"]


@pytest.mark.parametrize(
    ("sides", "voters", "majority"),
    [
        ([["n1", "n2"], ["n3"], ["n4"]], [FOUNDERS, ALL], "n1 n2"),
        ([["n1", "n2"], ["n3"], ["n4"]], [ALL], ""),
        ([["n1", "n2"], ["n3", "n4"]], [FOUNDERS], "n1 n2"),
        ([["n3", "n4"], ["n1", "n2"]], None, ""),
        ([["n1", "n2", "n3"], ["n4"]], None, "n1 n2 n3"),
    ],
    ids=["a node is being added", "it was added", "an observer", "an older trace", "an older trace with a majority"],
)
def test_a_side_is_a_majority_if_it_has_one_of_voters(
    sides: list[list[str]], voters: list[list[str]] | None, majority: str
) -> None:
    timeline = Timeline([], [{"time_ns": 5, "edge": "start", "sides": sides, "voters": voters}])
    found = {node: timeline.side_at(node, 5) for node in ALL}
    assert found == {node: "majority" if node in majority.split() else "minority" for node in ALL}
    assert timeline.side_at("n1", 4) == "whole"
