"""How a route is recorded: a version for each broker, by the numbers of its queues."""

import pytest

from replicated_namesrv.chaos.recorder import route_members
from replicated_namesrv.chaos.records import Member
from replicated_namesrv.model import BrokerData, QueueData, TopicRouteData


@pytest.mark.parametrize(("read", "version"), [(7, "7"), (1, "-7")])
def test_a_version_is_negative_if_the_numbers_of_queues_differ(read: int, version: str) -> None:
    brokers = BrokerData("chaos", "g1", ((0, "h:1"), (1, "h:2")), None, False)
    route = TopicRouteData(None, (("g1", QueueData(6, read, 0, 7)),), (brokers,), (), None)
    assert route_members(route) == [Member("g1/0", version), Member("g1/1", version)]
