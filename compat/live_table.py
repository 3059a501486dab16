"""Last contact and connection of each broker: the volatile part of Java's ``brokerLiveTable``.

These facts differ between nodes and end with the process, so they are not part of the replicated state. Pure: the caller gives
the time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from replicated_namesrv.service import Connection

DEFAULT_BROKER_CHANNEL_EXPIRED_TIME_MS = 120_000


class BrokerKey(NamedTuple):
    """Key of a live entry (``BrokerAddrInfo.java``)."""

    cluster_name: str
    broker_addr: str


@dataclass(slots=True)
class Attachment:
    """One broker's last contact, and the connection of its last registration."""

    connection: Connection
    last_update_ms: float
    """Time of the last heartbeat in milliseconds on the monotonic clock."""
    timeout_ms: int


class LiveTable:
    """Attachments by broker, and brokers by connection."""

    def __init__(self) -> None:
        self._attachments: dict[BrokerKey, Attachment] = {}
        self._brokers_of: dict[int, set[BrokerKey]] = {}

    def __len__(self) -> int:
        return len(self._attachments)

    def attach(self, key: BrokerKey, connection: Connection, now_ms: float, timeout_ms: int) -> None:
        """Record a registration: the broker is attached to this connection only."""
        present = self._attachments.get(key)
        if present is not None and present.connection is connection:
            present.last_update_ms, present.timeout_ms = now_ms, timeout_ms
            return
        self.detach(key)
        self._attachments[key] = Attachment(connection, now_ms, timeout_ms)
        self._brokers_of.setdefault(connection.connection_id, set()).add(key)

    def touch(self, key: BrokerKey, now_ms: float) -> bool:
        """Record a heartbeat. Returns False if the broker is unknown."""
        present = self._attachments.get(key)
        if present is None:
            return False
        present.last_update_ms = now_ms
        return True

    def detach(self, key: BrokerKey) -> Attachment | None:
        """Remove a broker."""
        present = self._attachments.pop(key, None)
        if present is not None:
            brokers = self._brokers_of[present.connection.connection_id]
            brokers.discard(key)
            if not brokers:
                del self._brokers_of[present.connection.connection_id]
        return present

    def is_attached(self, key: BrokerKey, connection: Connection) -> bool:
        """Whether the broker's last registration came over this connection."""
        present = self._attachments.get(key)
        return present is not None and present.connection is connection

    def brokers_of(self, connection: Connection) -> list[BrokerKey]:
        """Brokers whose last registration came over this connection, in a stable order."""
        return sorted(self._brokers_of.get(connection.connection_id, ()))

    def silent_since(self, now_ms: float) -> Iterator[tuple[BrokerKey, Attachment]]:
        """Brokers whose last contact is longer ago than their time-out."""
        for key, attachment in self._attachments.items():
            if attachment.last_update_ms + attachment.timeout_ms < now_ms:
                yield key, attachment

    def age_ms(self, key: BrokerKey, now_ms: float) -> float | None:
        """Milliseconds since the last contact, None for an unknown broker."""
        present = self._attachments.get(key)
        return None if present is None else now_ms - present.last_update_ms
