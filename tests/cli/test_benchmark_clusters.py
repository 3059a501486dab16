"""The clusters that benchmarks measure start."""

import pytest

from benchmarks.cp.clusters import group


@pytest.mark.parametrize(("mode", "roles"), [("ap", ["independent"]), ("cp", ["follower", "follower", "leader"])])
def test_the_nodes_of_a_benchmark_serve(mode: str, roles: list[str]) -> None:
    with group("test", mode) as nodes:
        assert sorted(nodes.roles()) == roles
