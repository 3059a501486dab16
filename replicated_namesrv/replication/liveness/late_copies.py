"""LateCopies: registrations with an older data version than the stored one. Pure; time is an argument.

Either a copy was overtaken on its way by a newer registration, or the broker means it, as after a restore from a backup. A late
copy is not repeated; a broker registers again in its next round, and the shortest period between rounds is 10 s. A renewal of the
stored version between two older ones ends the memory of the first: the broker does not mean the older version.

    data version            this node got the same before       outcome                             test
    not older               -                                   taken                               test_newer_version_is_taken
    older                   no                                  no effect, answered, remembered;    test_late_copy_has_no_effect
                                                                a contact like a heartbeat
    older                   less than lateCopyMs ago            no effect, answered; a contact      test_burst_of_copies
    older                   at least lateCopyMs ago             taken                               test_repeated_version_is_taken

Older means: neither the counter nor the timestamp is greater, and they are not equal (``route_machine.is_older``). A broker
that lost its disk counts from zero with a newer timestamp, and is not older. A copy with another broker id may be older, too:
it was sent before the broker changed its id. Whether the version is older is decided in log
order (``route_machine.py``); this node only says whether the registration was repeated.
"""

from replicated_namesrv.replication.marks import Key


class LateCopies:
    """What one node remembers of registrations that had no effect: one for each broker."""

    def __init__(self, repeat_ms: float) -> None:
        """``repeat_ms``: the setting ``lateCopyMs``."""
        self._repeat_ms = repeat_ms
        self._seen: dict[Key, tuple[str, float]] = {}
        """Content of the last one, and when it came first."""

    def is_repeated(self, key: Key, content: str, now_ms: float) -> bool:
        """Whether an older registration with this content is meant."""
        seen = self._seen.get(key)
        return seen is not None and seen[0] == content and now_ms - seen[1] >= self._repeat_ms

    def had_no_effect(self, key: Key, content: str, received_ms: float) -> None:
        """A registration was older than the stored one."""
        seen = self._seen.get(key)
        if seen is None or seen[0] != content:
            self._seen[key] = (content, received_ms)

    def forget(self, key: Key) -> None:
        """A registration of the broker was taken or renewed, or its registration ended."""
        self._seen.pop(key, None)
