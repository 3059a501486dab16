"""The results of applying a command: an answer for the caller, and effects to perform."""

from dataclasses import dataclass
from typing import NamedTuple

NOT_EMPTY = 2
"""Code of the result of a restore into a cluster that contains data."""


@dataclass(frozen=True, slots=True)
class Result:
    """Answer of one command in Java's terms. ``changed``: whether the state changed."""

    code: int = 0
    remark: str | None = None
    changed: bool = False
    master_addr: str | None = None
    """For ``REGISTER_BROKER`` (103): the address of the live master, if a slave registers."""
    ha_server_addr: str | None = None
    count: int | None = None
    """For ``WIPE_WRITE_PERM_OF_BROKER`` (205) and ``ADD_WRITE_PERM_OF_BROKER`` (327): the number of topics with a queue entry of
    the broker."""
    epoch: int | None = None
    """For ``REGISTER_BROKER`` (103): the epoch of the broker's registration. A removal of this registration names it."""


class NotifyMinBrokerIdChange(NamedTuple):
    """Effect: send ``NOTIFY_MIN_BROKER_ID_CHANGE`` (905), oneway, to each recipient
    (``RouteInfoManager.notifyMinBrokerIdChanged``).
    """

    recipients: tuple[str, ...]
    min_broker_id: int
    min_broker_addr: str
    offline_broker_addr: str | None
    ha_broker_addr: str | None


class BrokerRemoved(NamedTuple):
    """Effect: a registration ended. Volatile tables, metrics and watchers drop it."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    epoch: int


Effect = NotifyMinBrokerIdChange | BrokerRemoved


class Applied(NamedTuple):
    """Outcome of ``RouteInfoManager.apply``."""

    result: Result
    effects: tuple[Effect, ...]
