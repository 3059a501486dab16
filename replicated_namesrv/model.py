"""Values that the wire layer decodes and the route state machine stores: immutable, comparable, without behaviour.

``wire`` and ``routes`` know nothing of each other; this module is the only thing they share. Every type is a tuple, so that
equal values hash and encode equally on every node, and most values are interned by whoever decodes them: 300 brokers that
announce the same 10,000 topics then hold 10,000 references each and not three million objects, and "nothing changed" is
found by identity before it is found by comparison.

Field names are RocketMQ's, written as Python writes names (``readQueueNums`` is ``read_queue_nums``).
"""

from typing import NamedTuple

MASTER_ID = 0
"""brokerId of a master (``MixAll.MASTER_ID``)."""


class DataVersion(NamedTuple):
    """Version of a broker's topic table (``DataVersion.java``): equal only when all three numbers are."""

    counter: int
    state_version: int
    timestamp: int
    """Milliseconds since 1970, the broker's clock."""


class QueueData(NamedTuple):
    """One broker group's queues of one topic (``QueueData.java`` without ``brokerName``, which is the key it is stored under)."""

    perm: int
    """Bits of ``PermName``: 8 priority, 4 read, 2 write, 1 inherit."""
    read_queue_nums: int
    topic_sys_flag: int
    write_queue_nums: int


class TopicQueueMappingInfo(NamedTuple):
    """Static topic mapping of one broker (``TopicQueueMappingInfo.java``)."""

    bname: str
    curr_id_map: tuple[tuple[int, int], ...]
    """Pairs (global queue id, local queue id), ascending."""
    dirty: bool
    epoch: int
    scope: str
    topic: str
    total_queues: int
