"""The alarm of a nearly full disk."""

from pathlib import Path

from replicated_namesrv.files import DiskReserve
from replicated_namesrv.replication.disk_alarm import DISK_SHORT, SILENCE_MS, DiskAlarm


def test_a_voter_without_room_stops_additions_and_an_observer_does_not(tmp_path: Path) -> None:
    """Commits wait for voters only, so an observer that cannot write harms nobody else."""
    now_ms, voters = [0.0], {"n1", "n2"}
    disk = DiskReserve(tmp_path, 0, lambda: 0)
    alarm = DiskAlarm(disk, lambda data: None, lambda short: None, lambda: now_ms[0], voters.__contains__)
    assert alarm.room() > 0
    assert alarm.received("o1", DISK_SHORT)
    assert (alarm.room() > 0, alarm.warning) == (True, None)
    assert alarm.received("n2", DISK_SHORT)
    assert (alarm.room(), "the disk of n2 is nearly full" in (alarm.warning or "")) == (0, True)
    voters.add("o1")  # it was promoted, and repeats its message
    assert "the disk of n2, o1 is nearly full" in (alarm.warning or "")
    now_ms[0] += SILENCE_MS
    assert (alarm.room() > 0, alarm.warning) == (True, None)
    assert not alarm.received("n2", b"another message")
