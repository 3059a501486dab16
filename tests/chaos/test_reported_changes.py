"""The check that ``/v1/watch`` reports all changes, and what the run records of the reports."""

from typing import Any, cast

import pytest

from replicated_namesrv.chaos.checks import judge
from replicated_namesrv.chaos.checks.reported_changes import REPORTED, check_reports
from replicated_namesrv.chaos.checks.story import Story
from replicated_namesrv.chaos.process_cluster import ProcessCluster
from replicated_namesrv.chaos.recorder import Recorder
from replicated_namesrv.chaos.records import Complete, Member, TraceRecord
from replicated_namesrv.chaos.watcher import EventWatcher
from replicated_namesrv.verify import Verdict
from tests.chaos.traces import Script

END = 12_900
HELD = [("g1/0", 7), ("g2/0", 9)]


def told(key: str, members: list[tuple[str, Any]], *, count: int = 5, revision: int = 9) -> Script:
    """The last event has revision 9. ``revision``: that of the last looks."""
    script = Script().busy("c1", 0, 13_000, every=50)
    script.saw(11_000, "n1", [], 5).saw_kv(11_000, "n1", [], 5)
    script.saw(12_000, "n1", HELD, revision).saw_kv(12_000, "n1", [("k", "v")], revision)
    script.op(END, END, "watcher", "watched", "changes", str(count), node="n1", members=[("after", 4), ("to", 9)])
    return script.op(END, END, "watcher", "watched", key, node="n1", members=members)


@pytest.mark.parametrize(
    ("key", "members", "verdict"),
    [
        ("kv", [("k", "=v"), ("gone", "")], Verdict.VALID),
        ("kv", [("k", "=old")], Verdict.VIOLATED),
        ("kv", [("k", "")], Verdict.VIOLATED),
        ("kv", [("gone", "=v")], Verdict.VIOLATED),
        ("brokers", [("g1/0", "=7"), ("g3/0", "")], Verdict.VALID),
        ("brokers", [("g1/0", "=6")], Verdict.VIOLATED),
        ("brokers", [("g2/0", "")], Verdict.VIOLATED),
        ("brokers", [("g3/0", "=1")], Verdict.VIOLATED),
    ],
)
@pytest.mark.parametrize("slowdown", [1.0, 9.0])
def test_reports_are_compared_with_the_state(key: str, members: list[tuple[str, Any]], verdict: Verdict, slowdown: float) -> None:
    found = check_reports(told(key, members).slowed(slowdown).story)
    assert found.verdict is verdict, found.findings


@pytest.mark.parametrize(("count", "verdict"), [(5, Verdict.VALID), (4, Verdict.VIOLATED), (6, Verdict.VIOLATED)])
def test_each_revision_is_one_event(count: int, verdict: Verdict) -> None:
    assert check_reports(told("kv", [], count=count).story).verdict is verdict


def test_only_a_look_at_the_revision_of_the_last_event_counts() -> None:
    found = check_reports(told("kv", [("k", "=old")], revision=10).story)
    assert (found.verdict, sum(found.left_out.values())) == (Verdict.UNKNOWN, 1)


def test_older_traces_have_no_reports() -> None:
    story = Script().story
    assert REPORTED not in {check.name for check in judge(story, "cp").checks}
    asked = Story(story.trace, {**story.manifest, "asks": ["watched"]})
    assert REPORTED in {check.name for check in judge(asked, "cp").checks}


class Written:
    """Takes the records that a recorder writes."""

    def __init__(self) -> None:
        self.records: list[TraceRecord] = []

    def write(self, record: TraceRecord) -> None:
        self.records.append(record)


class OneNode:
    """The part of a cluster that a watcher uses before it follows."""

    nodes = ("n1",)


def broker(name: str, addr: str, timestamp: int) -> dict[str, Any]:
    group, _, number = name.partition("/")
    return {"brokerName": group, "brokerId": int(number), "brokerAddr": addr, "dataVersion": {"timestamp": timestamp}}


def test_the_last_event_about_each_key_and_broker_is_recorded() -> None:
    written = Written()
    watcher = EventWatcher(cast(ProcessCluster, OneNode()), Recorder(cast(Any, written)))
    a, b = broker("pair/0", "a", 1), broker("pair/1", "b", 2)
    events: list[tuple[str, dict[str, Any]]] = [
        ("kv-put", {"namespace": "chaos", "key": "k", "value": "1"}),
        ("kv-put", {"namespace": "other", "key": "o", "value": "1"}),
        ("kv-put", {"namespace": "chaos", "key": "gone", "value": "1"}),
        ("kv-deleted", {"namespace": "chaos", "key": "gone"}),
        ("broker-registered", {"brokers": [a], "replaced": []}),
        ("broker-registered", {"brokers": [b], "replaced": []}),
        ("broker-registered", {"brokers": [broker("pair/2", "a", 3)], "replaced": []}),
        ("broker-expired", {"brokers": [b]}),
        ("settings-changed", {"settings": {}}),
    ]
    watcher._note("n1", "hello", {"revision": 9, "leader": None, "term": 0})
    for revision, (kind, fields) in enumerate(events, 10):
        watcher._note("n1", kind, {"revision": revision, "kind": kind, **fields})
    watcher.report(["n1"])
    told = [one for one in written.records if isinstance(one, Complete)]
    assert [(one.value, one.members) for one in told] == [
        (str(len(events)), [Member("after", "9"), Member("to", "18")]),
        (None, [Member("gone", ""), Member("k", "=1")]),
        (None, [Member("pair/0", ""), Member("pair/1", ""), Member("pair/2", "=3")]),
    ]


def test_after_the_state_was_replaced_the_reports_begin_anew() -> None:
    written = Written()
    watcher = EventWatcher(cast(ProcessCluster, OneNode()), Recorder(cast(Any, written)))
    watcher._note("n1", "kv-put", {"revision": 4, "namespace": "chaos", "key": "k", "value": "1"})
    watcher._note("n1", "restored", {"revision": 90})
    watcher._note("n1", "kv-put", {"revision": 91, "namespace": "chaos", "key": "l", "value": "1"})
    watcher.report(["n1"])
    told = [one for one in written.records if isinstance(one, Complete)]
    assert [one.members for one in told] == [
        [Member("after", "3"), Member("to", "4")],
        [Member("after", "90"), Member("to", "91")],
        [Member("l", "=1")],
        [],
    ]
