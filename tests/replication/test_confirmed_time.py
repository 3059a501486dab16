"""The time for which heartbeats confirm the state, converted from Raft's clock to that of the node."""

from tests.replication.virtual import virtual_cluster


def test_the_time_of_one_confirmation_never_looks_newer() -> None:
    """One clock counts seconds, the other milliseconds. If rounding moved the time, a node without contact would not fence."""
    with virtual_cluster() as cluster:
        name = cluster.followers()[0]
        consensus = cluster.node(name).consensus
        cluster.run(1)
        mend = cluster.isolate(name)
        cluster.run(0.1)
        confirmed_ms = consensus.confirmed_ms
        seen = set[float]()
        for _ in range(300):
            cluster.run(0.0137)
            seen.add(consensus.confirmed_ms)
        assert seen == {confirmed_ms}
        assert cluster.node(name).reads.fenced
        mend()
        cluster.until(lambda: consensus.confirmed_ms > confirmed_ms, "contact")
