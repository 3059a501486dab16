"""The clusters that benchmarks measure start."""

import pytest

from benchmarks.cp.clusters import group
from benchmarks.cp.observers import add


@pytest.mark.parametrize(
    ("mode", "roles"),
    [("ap", ["independent"]), pytest.param("cp", ["follower", "follower", "leader"], marks=pytest.mark.slow)],
)
def test_the_nodes_of_a_benchmark_serve(mode: str, roles: list[str]) -> None:
    with group("test", mode) as nodes:
        assert sorted(nodes.roles()) == roles


@pytest.mark.slow
def test_an_observer_of_a_benchmark_serves_without_a_vote() -> None:
    with group("test", "cp", joining=["o1"]) as nodes:
        add(nodes, ["o1"])
        assert sorted(nodes.roles()) == ["follower", "follower", "leader", "observer"]
        assert nodes.is_ready(nodes.number("o1"))
