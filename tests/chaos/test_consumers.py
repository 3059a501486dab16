"""How consumers divide the queues of a topic if each consumer asked another node."""

from replicated_namesrv.chaos.checks.figures import figures
from tests.chaos.test_checks import BOTH
from tests.chaos.traces import NODES, Script


def probed(views: dict[str, list[tuple[str, int]] | None]) -> Script:
    """All nodes asked for one topic at once; None: no answer."""
    script = Script()
    for node, members in views.items():
        outcome = None if members is not None else "indeterminate"
        script.op(2000, 2010, "probe", "route", "t", node=node, members=members, outcome=outcome, probe=1)
    return script


def test_consumers_with_different_routes_read_queues_twice_or_not_at_all() -> None:
    """Two brokers of four queues, three consumers: with equal routes they take three, three and two of them."""
    same = figures(probed(dict.fromkeys(NODES, BOTH)).story)
    assert (same.queues_doubled, same.queues_orphaned) == (0, 0)
    split = figures(probed({"n1": BOTH, "n2": BOTH, "n3": BOTH[:1]}).story)
    assert (split.queues_doubled, split.queues_orphaned) == (1 / 8, 2 / 8)
    moved_on = figures(probed({"n1": BOTH, "n2": BOTH, "n3": None}).story)
    assert (moved_on.queues_doubled, moved_on.queues_orphaned) == (0, 0), "who gets no answer asks another node"
    with_spare = probed({"n1": BOTH, "n2": BOTH[:1], "n3": BOTH}).story
    with_spare.nodes.append("n4")
    found = figures(with_spare)
    assert (found.queues_doubled, found.queues_orphaned) == (1 / 8, 3 / 8), "a spare that has not started has no consumer"
