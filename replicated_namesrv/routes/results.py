"""What applying a command gives back: a result for the caller and effects for whoever performs them."""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Result:
    """Answer of one command in Java's terms; ``changed`` says whether the state moved."""

    code: int = 0
    remark: str | None = None
    changed: bool = False
    master_addr: str | None = None
    """Code 103: address of the live master, for a registering slave."""
    ha_server_addr: str | None = None
    count: int | None = None
    """Codes 205 and 327: topics that have a queue entry of the broker."""
    epoch: int | None = None
    """Code 103: registration epoch now in force for the broker; what a removal must name to be fenced."""


class NotifyMinBrokerIdChange(NamedTuple):
    """Effect: push code 905, oneway, to each recipient in turn (``RouteInfoManager.notifyMinBrokerIdChanged``)."""

    recipients: tuple[str, ...]
    min_broker_id: int
    min_broker_addr: str
    offline_broker_addr: str | None
    ha_broker_addr: str | None


class BrokerRemoved(NamedTuple):
    """Effect: a registration ended; volatile bookkeeping, metrics and watchers drop it."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    epoch: int


Effect = NotifyMinBrokerIdChange | BrokerRemoved


class Applied(NamedTuple):
    """Outcome of ``RouteInfoManager.apply``."""

    result: Result
    effects: tuple[Effect, ...]
