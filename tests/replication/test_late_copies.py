"""Every row of the table of late copies in ``liveness/copies.py``, most of them on whole nodes."""

import pytest

from replicated_namesrv.model import DataVersion
from replicated_namesrv.replication.liveness.copies import LateCopies
from tests.replication.virtual import KEY, registration, virtual_cluster

REPEAT_MS = 10_000
X, Y = DataVersion(1, 0, 1), DataVersion(2, 0, 2)


def test_newer_version_is_taken() -> None:
    with virtual_cluster() as cluster:
        wire = cluster.wire("n1")
        for counter in (1, 2):
            assert cluster.register(wire, registration(counter)).code == 0
        cluster.run(0.2)
        assert cluster.counters() == {2}


def test_late_copy_has_no_effect() -> None:
    assert not LateCopies(REPEAT_MS).is_repeated(KEY, X, 0)
    with virtual_cluster() as cluster:
        old, new = cluster.wire("n1"), cluster.wire("n2")
        cluster.register(old, registration(1))
        cluster.register(new, registration(2))
        assert cluster.register(old, registration(1)).code == 0, "it is answered"
        cluster.run(0.2)
        assert cluster.counters() == {2}


def test_burst_of_copies() -> None:
    copies = LateCopies(REPEAT_MS)
    copies.had_no_effect(KEY, X, 100)
    assert not copies.is_repeated(KEY, X, 99 + REPEAT_MS)
    copies.had_no_effect(KEY, X, 5_000)
    assert copies.is_repeated(KEY, X, 100 + REPEAT_MS), "since the first one"
    assert not copies.is_repeated(KEY, Y, 100 + REPEAT_MS), "another version"
    copies.had_no_effect(KEY, Y, 6_000)
    assert not copies.is_repeated(KEY, X, 100 + REPEAT_MS), "the last version counts"


@pytest.mark.parametrize("over", ["the same connection", "another connection"])
def test_repeated_version_is_taken(over: str) -> None:
    """This happens if a broker was restored from a backup."""
    with virtual_cluster(lateCopyMs="1000") as cluster:
        wire = cluster.wire("n1")
        cluster.register(wire, registration(2))
        assert cluster.register(wire, registration(1)).code == 0
        cluster.run(0.5)
        cluster.register(wire, registration(1))
        cluster.run(0.2)
        assert cluster.counters() == {2}
        cluster.run(0.6)
        again = wire if over == "the same connection" else cluster.wire("n1")
        assert cluster.register(again, registration(1)).code == 0
        cluster.run(0.2)
        assert cluster.counters() == {1}


def test_a_repeated_version_does_not_replace_one_committed_after_its_receipt() -> None:
    """The node lags: it does not know the newest version yet."""
    with virtual_cluster(lateCopyMs="500") as cluster:
        near, far = cluster.followers()
        early = cluster.wire(far)
        cluster.register(cluster.wire(near), registration(2))
        cluster.run(0.2)
        cluster.register(early, registration(1))
        cluster.run(0.6)
        mend = cluster.isolate(far)
        late = cluster.say(early, lambda server, c: server.node.register(registration(1), c))
        cluster.register(cluster.wire(near), registration(3))
        mend()
        cluster.until(lambda: late.ended, "an end")
        cluster.run(0.3)
        assert cluster.counters() == {3}


def test_what_ended_is_forgotten() -> None:
    copies = LateCopies(REPEAT_MS)
    copies.had_no_effect(KEY, X, 0)
    copies.forget(KEY)
    assert not copies.is_repeated(KEY, X, REPEAT_MS)
