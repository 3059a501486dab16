"""The checks of early removals, of reports of removals, of settings, and of heartbeats. Each case is a correct and a wrong
trace."""

from collections.abc import Callable

import pytest

from replicated_namesrv.chaos.checks.final import check_live_kept
from replicated_namesrv.chaos.checks.linear import check_registration
from replicated_namesrv.chaos.checks.node_promises import check_node_registrations
from replicated_namesrv.chaos.checks.removal_reports import check_removal_reports
from replicated_namesrv.chaos.checks.settings_changes import check_settings
from replicated_namesrv.chaos.checks.story import CheckResult, Story
from replicated_namesrv.chaos.mqadmin import OWN_SETTING, SHARED_SETTING
from replicated_namesrv.chaos.recorded_brokers import HEARTBEAT, HUNG_UP
from replicated_namesrv.verify import Verdict
from tests.chaos.test_checks import with_renewals
from tests.chaos.traces import Script

BROKER, HERE = "g1/0", [("g1/0", 1)]
LINKS = [f"{BROKER}>n{number}" for number in (1, 2, 3)]


def registered(at: float, mode: str = "cp") -> Script:
    """A broker with a time-out of 1 s registers at the first node, for the second time at ``at``. The time-out begins then."""
    script = Script(mode).truth(900, BROKER, "starting").truth(950, BROKER, "serving")
    for begin in (910, at):
        script.op(begin, begin + 10, BROKER, "register-copy", BROKER, "1")
    return script.op(910, 920, BROKER, "register", BROKER, "1")


def removed(at: float, state: str, *, mode: str = "ap", hung_up: bool = True) -> Script:
    """The broker dies at 2000, and the first node no longer lists it from ``at`` on."""
    script = registered(1950, mode).truth(2000, BROKER, state).saw(1980, "n1", HERE).saw(at, "n1", [])
    return script.op(at, at, BROKER, HUNG_UP, BROKER) if hung_up else script


def restarted() -> Script:
    """The first node is restarted. More than a second later, the broker dies without a further registration."""
    script = registered(1950, "ap").fault(2000, 2100, variant=None, name="restart", node="n1").saw(3400, "n1", HERE)
    return script.truth(3500, BROKER, "silent").saw(3600, "n1", []).dropped(3610, BROKER)


CASES: dict[str, tuple[Callable[[Story], CheckResult], Script, Script]] = {
    "a cluster lists a silent broker for its time-out": (
        check_registration,
        registered(1500).truth(2000, BROKER, "silent").op(2510, 2520, "c1", "route", "t", members=[]),
        registered(1500).truth(2000, BROKER, "silent").op(2480, 2490, "c1", "route", "t", members=[]),
    ),
    "unless a fault may have closed its connections": (
        check_registration,
        registered(1500).truth(2000, BROKER, "silent").fault(2200, 3000).op(2480, 2490, "c1", "route", "t", members=[]),
        registered(1500).truth(2000, BROKER, "silent").fault(2200, 3000).op(2180, 2190, "c1", "route", "t", members=[]),
    ),
    "and a broker whose connections closed for the grace period": (
        check_registration,
        registered(1900).truth(2000, BROKER, "dead").op(2510, 2520, "c1", "route", "t", members=[]),
        registered(1900).truth(2000, BROKER, "dead").op(2480, 2490, "c1", "route", "t", members=[]),
    ),
    "a look-up with the level lease is judged like others": (
        check_registration,
        registered(1500).op(1600, 1610, "lease-reader", "route", "t", members=HERE, level="lease"),
        registered(1500).op(1600, 1610, "lease-reader", "route", "t", members=[], level="lease"),
    ),
    "a cluster reports no early removal as silent": (
        check_live_kept,
        registered(1500).truth(2000, BROKER, "silent").dropped(2510, BROKER),
        registered(1500).truth(2000, BROKER, "silent").dropped(2490, BROKER),
    ),
    "not even of a broker that may be dropped": (
        check_live_kept,
        registered(1500)
        .truth(2000, BROKER, "exposed")
        .op(2300, 2310, BROKER, "register-copy", BROKER, "1")
        .dropped(2490, BROKER),
        registered(1500).truth(2000, BROKER, "exposed").dropped(2490, BROKER),
    ),
    "and none within the grace period": (
        check_live_kept,
        registered(1500).truth(2000, BROKER, "dead").dropped(2510, BROKER, cause="lost"),
        registered(1500).truth(2000, BROKER, "dead").dropped(2490, BROKER, cause="lost"),
    ),
    "an independent node lists a silent broker for its time-out": (
        check_node_registrations,
        registered(1500, "ap")
        .truth(2000, BROKER, "silent")
        .op(2100, 2110, "c1", "route", "t", members=HERE)
        .op(2490, 2510, "c1", "route", "t", members=[]),
        registered(1500, "ap").truth(2000, BROKER, "silent").op(2480, 2490, "c1", "route", "t", members=[]),
    ),
    "and reports no early removal, even if the link is cut": (
        check_node_registrations,
        registered(1500, "ap")
        .op(1600, 1610, "c1", "route", "t", members=HERE)
        .fault(1700, 4000, LINKS)
        .truth(1700, BROKER, "exposed")
        .dropped(2510, BROKER),
        registered(1500, "ap")
        .op(1600, 1610, "c1", "route", "t", members=HERE)
        .fault(1700, 4000, LINKS)
        .truth(1700, BROKER, "exposed")
        .dropped(2490, BROKER),
    ),
    "but may drop a broker at once whose connection closed": (
        check_node_registrations,
        registered(1500, "ap")
        .op(1600, 1610, "c1", "route", "t", members=HERE)
        .truth(2000, BROKER, "dead")
        .dropped(2010, BROKER, cause="lost"),
        registered(1500, "ap").op(1600, 1610, "c1", "route", "t", members=HERE).truth(2000, BROKER, "dead").dropped(2010, BROKER),
    ),
    "heartbeats keep a broker, once they have arrived": (
        check_node_registrations,
        registered(1500, "ap")
        .op(1600, 1610, "c1", "route", "t", members=HERE)
        .op(2300, 2301, BROKER, HEARTBEAT, BROKER, node="n2")
        .op(2300, 2301, BROKER, HEARTBEAT, BROKER, outcome="indeterminate")
        .op(2600, 2610, "c1", "route", "t", members=[]),
        Script("ap")
        .truth(900, BROKER, "serving", timeout_ms=2_000)
        .op(910, 920, BROKER, "register-copy", BROKER, "1")
        .op(2000, 2001, BROKER, HEARTBEAT, BROKER)
        .op(3100, 3110, "c1", "route", "t", members=[]),
    ),
    "a removal is reported, with its cause": (
        check_removal_reports,
        removed(3100, "silent").dropped(3110, BROKER),
        removed(3100, "silent").dropped(3110, BROKER, node="n2"),
    ),
    "the cause of a silent death is expired": (
        check_removal_reports,
        removed(3100, "silent").dropped(3110, BROKER),
        removed(3100, "silent").dropped(3110, BROKER, cause="lost"),
    ),
    "that of closed connections is lost, unless a fault is near": (
        check_removal_reports,
        removed(2600, "dead", mode="cp").dropped(2590, BROKER).fault(2300, 2500, ["n1>n2"]),
        removed(2600, "dead", mode="cp").dropped(2590, BROKER),
    ),
    "a node closes the connections of a silent broker": (
        check_removal_reports,
        removed(3100, "silent").dropped(3110, BROKER),
        removed(3100, "silent", hung_up=False).dropped(3110, BROKER),
    ),
    "but not those that ended when the node was restarted": (
        check_removal_reports,
        restarted(),
        restarted().op(2200, 2210, BROKER, "register-copy", BROKER, "1"),
    ),
    "a stopped node reports nothing": (
        check_removal_reports,
        removed(3100, "silent").dropped(3110, BROKER).fault(4000, 5000, variant=None, name="kill", node="n2"),
        removed(3100, "silent").fault(7000, 7500, variant=None, name="kill", node="n1"),
    ),
    "a setting is what it was set to last": (
        check_settings,
        Script().op(1000, 1010, "a", "set-config", OWN_SETTING, "1000").op(1020, 1030, "p", "config", OWN_SETTING, "1000"),
        Script().op(1000, 1010, "a", "set-config", OWN_SETTING, "1000").op(1020, 1030, "p", "config", OWN_SETTING, "3000"),
    ),
    "a setting of a node does not change others": (
        check_settings,
        Script().op(1000, 1010, "a", "set-config", OWN_SETTING, "1000").op(1, 2, "p", "config", OWN_SETTING, "3000", node="n2"),
        Script()
        .op(1000, 1010, "a", "set-config", OWN_SETTING, "1000")
        .op(1020, 1030, "p", "config", OWN_SETTING, "1000", node="n2"),
    ),
    "the nodes of a cluster share a setting": (
        check_settings,
        Script()
        .op(1, 9, "a", "set-config", SHARED_SETTING, "false")
        .op(20, 30, "p", "config", SHARED_SETTING, "false", node="n2"),
        Script()
        .op(1, 9, "a", "set-config", SHARED_SETTING, "false")
        .op(20, 30, "p", "config", SHARED_SETTING, "true", node="n2"),
    ),
    "and independent nodes do not": (
        check_settings,
        Script("ap")
        .op(1, 9, "a", "set-config", SHARED_SETTING, "false")
        .op(20, 30, "p", "config", SHARED_SETTING, "true", node="n2"),
        Script("ap").op(1, 9, "a", "set-config", SHARED_SETTING, "false").op(20, 30, "p", "config", SHARED_SETTING, "true"),
    ),
    "a node that lost its disk has the default": (
        check_settings,
        Script()
        .op(1000, 1010, "a", "set-config", OWN_SETTING, "1000")
        .fault(3000, 4000, name="join-empty", variant=None)
        .op(5000, 5010, "p", "config", OWN_SETTING, "3000"),
        Script()
        .op(1000, 1010, "a", "set-config", OWN_SETTING, "1000")
        .fault(3000, 4000, name="kill", variant=None)
        .op(5000, 5010, "p", "config", OWN_SETTING, "3000"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_bad_trace_is_found_and_the_good_one_is_not(case: str) -> None:
    check, good, bad = CASES[case]
    found = check(with_renewals(good))
    assert (found.verdict, found.count) == (Verdict.VALID, 0), found.findings
    found = check(with_renewals(bad))
    assert (found.verdict, found.count) == (Verdict.VIOLATED, 1), found.findings


def test_a_run_in_which_no_removal_was_seen_is_unknown() -> None:
    found = check_removal_reports(Script().story)
    assert (found.verdict, found.due) == (Verdict.UNKNOWN, True)
    assert not check_removal_reports(Script("java:5.5.0").story).due, "it does not report removals"


def test_answers_prove_nothing_if_no_setting_was_changed() -> None:
    script = Script().op(1020, 1030, "p", "config", OWN_SETTING, "3000")
    assert check_settings(script.story).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("script", "verdict"),
    [
        (removed(3100, "silent").dropped(3110, BROKER, cause="lost"), Verdict.VIOLATED),
        (removed(2100, "dead").dropped(2110, BROKER), Verdict.UNKNOWN),
        (removed(3100, "silent"), Verdict.UNKNOWN),
    ],
)
def test_on_a_slow_machine_a_silent_broker_does_not_look_lost(script: Script, verdict: Verdict) -> None:
    """The harness stalls. Then reports can be late, and a node can notice a closed connection after the time-out."""
    script.records = [one for one in script.records if not 4_000e6 < one.time_ns < 7_000e6]
    story = script.story
    assert story.stalled_s > story.stall_s
    assert check_removal_reports(story).verdict is verdict
