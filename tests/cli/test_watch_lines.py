"""Lines of ``namesrv watch``."""

import re

import pytest

from replicated_namesrv.cli.watch import Event, _show

TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}"


def test_each_line_has_a_time_also_that_of_a_new_leader(capsys: pytest.CaptureFixture[str]) -> None:
    _show(Event("7", "kv-put", {"revision": 7, "timeMs": 1_763_732_000_000, "key": "k"}), "n1:9886", as_json=False)
    _show(Event(None, "leader", {"leader": "n2", "term": 6}), "n1:9886", as_json=False)
    change, leader = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"7  {TIME}  kv-put  key=k", change)
    assert re.fullmatch(rf"-  {TIME}  leader  leader=n2 term=6", leader)
