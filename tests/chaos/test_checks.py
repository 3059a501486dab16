"""Each checker accepts a correct history, and finds the violation in a wrong one."""

import random
from collections.abc import Callable

import pytest

from replicated_namesrv.chaos.checks import CHECKS, PREFIX_SAFE_CHECKS, judge
from replicated_namesrv.chaos.checks.acting_masters import ACTING, NOTIFICATIONS
from replicated_namesrv.chaos.checks.administration import check_write_perm
from replicated_namesrv.chaos.checks.agreeing_answers import AGREEMENT
from replicated_namesrv.chaos.checks.crashes import check_crashes
from replicated_namesrv.chaos.checks.fence import check_fence
from replicated_namesrv.chaos.checks.figures import figures
from replicated_namesrv.chaos.checks.final import (
    check_final_kv,
    check_final_registrations,
    check_ghosts,
    check_live_kept,
    check_resurrection,
)
from replicated_namesrv.chaos.checks.linear import check_kv, check_registration
from replicated_namesrv.chaos.checks.listed_brokers import LISTS
from replicated_namesrv.chaos.checks.node_promises import check_node_kv, check_node_registrations
from replicated_namesrv.chaos.checks.order import check_revisions, check_same_state, check_sessions
from replicated_namesrv.chaos.checks.story import CheckResult, Promise, Story
from replicated_namesrv.chaos.checks.timing import (
    check_availability,
    check_convergence,
    check_enough,
    convergence,
    convergence_s,
)
from replicated_namesrv.chaos.checks.whole_answers import ANSWERS, VERSIONS
from replicated_namesrv.chaos.records import FaultRecord, Invoke, RecordedTrace
from replicated_namesrv.chaos.run_report import described
from replicated_namesrv.chaos.scenario import ChaosScenario
from replicated_namesrv.verify import Verdict
from tests.chaos.traces import MS, NODES, Script, random_kv
from tests.support.places import assert_listed, assert_same_names

Check = Callable[[Story], CheckResult]
BOTH = [("g1/0", 1), ("g2/0", 2)]
ANY_SCENARIO = ChaosScenario("by hand", "by hand").as_json()


def registered(mode: str = "cp") -> Script:
    """Two live brokers whose registrations were acknowledged."""
    script = Script(mode)
    for name, version in BOTH:
        script.truth(900, name, "starting", version=version).truth(950, name, "serving", version=version)
        script.op(910, 950, name, "register", name, str(version))
    return script


def dead(at: float) -> Script:
    """The second broker dies without unregistering. Its time-out is 1 s, and an election adds a third of it. The scan interval is
    0.5 s, and the margin is 1 s."""
    return registered().truth(at, "g2/0", "silent", version=2)


def leaves_unanswered(asked: float) -> Script:
    """The second broker sends its registration to n3, which does not answer. The broker begins to leave at 1500, and another node
    acknowledges that."""
    script = registered().op(asked, 9_000, "g2/0", "register-copy", "g2/0", "2", node="n3", outcome="indeterminate")
    return script.truth(1500, "g2/0", "stopping", version=2).op(1500, 1510, "g2/0", "unregister", "g2/0", "2")


def handed_over(at: float, elected: float) -> Script:
    """The same, and the leader transfers leadership while the broker is dead."""
    return dead(1000).fault(at, at + 10, variant=None, name="hand-over").elected(elected, "n2")


def late_copy() -> Script:
    """A copy of registration 1 has no answer. Then the broker registers 2, a client reads it, and the broker leaves."""
    script = Script().truth(1000, "g1/0", "serving").op(1100, None, "g1/0", "register-copy", "g1/0", "1", node="n2")
    script.truth(2000, "g1/0", "serving", version=2).op(2100, 2110, "c1", "route", "t", members=[("g1/0", 2)])
    return script.truth(3000, "g1/0", "stopping", version=2)


def without_majority() -> Script:
    """From 3000 to 8000 the first node has no links to the other two, but to all its clients. Its fence is due from 5500 on."""
    script = Script().fault(3000, 8000, ["n1>n2", "n1>n3", "n2>n1", "n3>n1"], [["n2", "n3"], ["n1"]])
    return script.op(2000, 2010, "c1", "route", "t", members=[])


def at_one_node(at: float, version: int, outcome: str | None = None) -> Script:
    """The first broker, with a time-out of 1 s, registers at the first node, for the second time at ``at``."""
    script = registered("ap").op(910, 950, "g1/0", "register-copy", "g1/0", "1")
    return script.op(at, at + 10, "g1/0", "register-copy", "g1/0", str(version), outcome=outcome)


def paired() -> Script:
    """A third broker, of the group whose roles are switched, is the master."""
    script = registered().truth(900, "pair/0", "starting", version=4).truth(950, "pair/0", "serving", version=4)
    return script.op(910, 950, "pair/0", "register", "pair/0", "4")


def exposed_until(at: float) -> Script:
    """The second broker may be dropped from 1000 to ``at``. It registers again in this time and is acknowledged at its end."""
    script = registered().truth(1000, "g2/0", "exposed", version=2).op(1200, 1300, "g2/0", "register", "g2/0", "5")
    return script.truth(at, "g2/0", "safe", version=5)


V = [("k", "a")]


def read_before_written() -> Script:
    """The client of the first put did not learn the outcome, but the client of the second put had read its value."""
    script = Script().op(1000, None, "c1", "put", "k", "a").op(1005, 1010, "c2", "get", "k", "a")
    return script.op(1015, 1025, "c2", "put", "k", "b")


def everywhere(script: Script, at: float, members: list[tuple[str, int]]) -> Script:
    """Every node answers the same."""
    for number, node in enumerate(NODES):
        script.saw(at + number, node, members)
    return script


def looked(script: Script, since: int, until: int, **others: list[tuple[str, int]] | None) -> Script:
    """Every node is asked twice a second; it lists both brokers, or what ``others`` says."""
    for at in range(since, until, 500):
        for number, node in enumerate(NODES):
            script.saw(at + number, node, others.get(node, BOTH))
    return script


def ended(how: str) -> Script:
    """A node ended although the run did not end it."""
    script = Script()
    script.records.append(FaultRecord(5000 * MS, 0, "start", 5000 * MS, how, None, ["n2"], [], [["n1", "n3"], ["n2"]]))
    return script


CASES: dict[str, tuple[Check, Script, Script]] = {
    "no node ends by itself": (check_crashes, Script().fault(3000, 8000), ended("crash: SIGSEGV")),
    "a get sees what was put": (
        check_kv,
        Script().op(1000, 1010, "c1", "put", "k", "a").op(1020, 1030, "c2", "get", "k", "a"),
        Script().op(1000, 1010, "c1", "put", "k", "a").op(1020, 1030, "c2", "get", "k", None),
    ),
    "an unknown put may show, and then stays": (
        check_kv,
        Script().op(1000, None, "c1", "put", "k", "a").op(1020, 1030, "c2", "get", "k", "a"),
        Script()
        .op(1000, None, "c1", "put", "k", "a")
        .op(1020, 1030, "c2", "get", "k", "a")
        .op(1040, 1050, "c2", "get", "k", None),
    ),
    "a failed put never shows": (
        check_kv,
        Script().op(1000, 1010, "c1", "put", "k", "a", outcome="fail").op(1020, 1030, "c2", "get", "k", None),
        Script().op(1000, 1010, "c1", "put", "k", "a", outcome="fail").op(1020, 1030, "c2", "get", "k", "a"),
    ),
    "a registration shows once acknowledged": (
        check_registration,
        registered().op(1000, 1010, "c1", "route", "t", members=BOTH),
        registered().op(1000, 1010, "c1", "route", "t", members=BOTH[:1]),
    ),
    "a dead broker goes when it goes, and not before it dies": (
        check_registration,
        registered().truth(1000, "g2/0", "silent", version=2).op(1500, 1510, "c1", "route", "t", members=BOTH[:1]),
        registered().truth(2000, "g2/0", "silent", version=2).op(1500, 1510, "c1", "route", "t", members=BOTH[:1]),
    ),
    "an exposed broker is judged no more": (
        check_registration,
        registered().truth(1000, "g2/0", "exposed", version=2).op(1500, 1510, "c1", "route", "t", members=BOTH[:1]),
        registered().truth(1000, "g2/0", "exposed", version=2).op(1500, 1510, "c1", "route", "t", members=BOTH[1:]),
    ),
    "but judged again once it is acknowledged": (
        check_registration,
        exposed_until(1300)
        .op(1250, 1290, "c1", "route", "t", members=BOTH[:1])
        .op(1500, 1510, "c1", "route", "t", members=[BOTH[0], ("g2/0", 5)]),
        exposed_until(1300).op(1500, 1510, "c1", "route", "t", members=BOTH[:1]),
    ),
    "and not by what it had registered before": (
        check_registration,
        exposed_until(1300).op(900, 960, "c1", "route", "t", members=BOTH[:1]),
        exposed_until(1300).op(1500, 1510, "c1", "route", "t", members=BOTH),
    ),
    "only brokers of the run are listed": (
        check_registration,
        registered().op(1000, 1010, "c1", "route", "t", members=[*BOTH, ("pair/2", 3)]),
        registered().op(1000, 1010, "c1", "route", "t", members=[*BOTH, ("stranger/0", 3)]),
    ),
    "a last request of unknown outcome may arrive late": (
        check_registration,
        registered()
        .op(960, 1700, "g2/0", "register-copy", "g2/0", "2", outcome="indeterminate")
        .truth(1000, "g2/0", "stopping", version=2)
        .op(1000, 1010, "g2/0", "unregister", "g2/0", "2")
        .truth(1011, "g2/0", "stopped", version=2)
        .op(1500, 1510, "c1", "route", "t", members=BOTH),
        registered()
        .truth(1000, "g2/0", "stopping", version=2)
        .op(1000, 1010, "g2/0", "unregister", "g2/0", "2")
        .truth(1011, "g2/0", "stopped", version=2)
        .op(1500, 1510, "c1", "route", "t", members=BOTH),
    ),
    "an acknowledged write is there at the end": (
        check_final_kv,
        Script().op(1000, 1010, "c1", "put", "k", "a").op(1020, 1030, "c1", "put", "k", "b").at_the_end("get", "k", "b"),
        Script().op(1000, 1010, "c1", "put", "k", "a").op(1020, 1030, "c1", "put", "k", "b").at_the_end("get", "k", "a"),
    ),
    "an acknowledged write is not gone at the end": (
        check_final_kv,
        Script().op(1000, 1010, "c1", "put", "k", "a").op(1005, None, "c2", "delete", "k").at_the_end("get", "k"),
        Script().op(1000, 1010, "c1", "put", "k", "a").at_the_end("get", "k"),
    ),
    "a living broker is listed at the end": (
        check_final_registrations,
        registered().at_the_end("route", "t", members=BOTH),
        registered().at_the_end("route", "t", members=BOTH[:1]),
    ),
    "and not as it was before": (
        check_final_registrations,
        registered().op(2000, 2010, "g1/0", "register", "g1/0", "7").at_the_end("route", "t", members=[("g1/0", 7), BOTH[1]]),
        registered().op(2000, 2010, "g1/0", "register", "g1/0", "7").at_the_end("route", "t", members=BOTH),
    ),
    "nor without the master of the pair, whatever its version": (
        check_final_registrations,
        paired().at_the_end("route", "t", members=[*BOTH, ("pair/0", 4)]),
        paired().at_the_end("route", "t", members=BOTH),
    ),
    "what was deleted does not come back": (
        check_resurrection,
        Script().op(1000, 1010, "c1", "put", "k", "a").op(1020, 1030, "c1", "delete", "k").op(1025, 1040, "c2", "get", "k", "a"),
        Script().op(1000, 1010, "c1", "put", "k", "a").op(1020, 1030, "c1", "delete", "k").op(1035, 1040, "c2", "get", "k", "a"),
    ),
    "nor what nobody knew of but those who read it": (
        check_resurrection,
        Script().op(1000, None, "c1", "put", "k", "a").op(1020, 1030, "c1", "delete", "k").op(1035, 1040, "c2", "get", "k", "a"),
        Script()
        .op(1000, None, "c1", "put", "k", "a")
        .op(1005, 1010, "c2", "get", "k", "a")
        .op(1020, 1030, "c1", "delete", "k")
        .op(1035, 1040, "c2", "get", "k", "a"),
    ),
    "nor a broker that left": (
        check_resurrection,
        registered().op(1000, 1010, "g2/0", "unregister", "g2/0", "2").op(1020, 1030, "c1", "route", "t", members=BOTH[:1]),
        registered().op(1000, 1010, "g2/0", "unregister", "g2/0", "2").op(1020, 1030, "c1", "route", "t", members=BOTH),
    ),
    "nor by a registration that a node had received before": (
        check_resurrection,
        leaves_unanswered(1300).op(1540, 1550, "c1", "route", "t", members=BOTH),
        leaves_unanswered(1100).op(1540, 1550, "c1", "route", "t", members=BOTH),
    ),
    "unless a fault may have delayed it": (
        check_resurrection,
        leaves_unanswered(1100).fault(1050, 1300, ["g2/0>n3"]).op(1540, 1550, "c1", "route", "t", members=BOTH),
        leaves_unanswered(1100).fault(1050, 1300, ["g1/0>n3"]).op(1540, 1550, "c1", "route", "t", members=BOTH),
    ),
    "nor a topic that its broker dropped and mqadmin deleted": (
        check_resurrection,
        registered().op(1000, 1010, "a", "delete-topic", "t").op(1005, 1020, "p", "topic", "t", "1"),
        registered().op(1000, 1010, "a", "delete-topic", "t").op(1015, 1020, "p", "topic", "t", "1"),
    ),
    "unless nobody knows whether it was deleted, or the broker may be registering anew": (
        check_resurrection,
        registered()
        .op(980, 990, "p", "topic", "t", "1")
        .truth(1000, "g1/0", "exposed")
        .op(1000, 1010, "a", "delete-topic", "t")
        .op(1015, 1020, "p", "topic", "t", "1"),
        registered()
        .op(1000, 1010, "a", "delete-topic", "t", outcome="indeterminate")
        .op(1011, 1012, "a", "delete-topic", "t")
        .op(1015, 1020, "p", "topic", "t", "1"),
    ),
    "nor is a topic missing that its broker registered and nobody deleted": (
        check_resurrection,
        registered().op(1000, None, "a", "delete-topic", "t").op(1015, 1020, "p", "topic", "t", None),
        registered().op(1015, 1020, "p", "topic", "t", None),
    ),
    "write permission is as it was set last": (
        check_write_perm,
        registered().op(1000, 1010, "a", "write-perm", "g1/0", "4").op(1015, 1020, "p", "perm", "g1/0", "4"),
        registered().op(1000, 1010, "a", "write-perm", "g1/0", "4").op(1015, 1020, "p", "perm", "g1/0", "6"),
    ),
    "a copy of an order may come late, at any time, and a registration gives the permission back": (
        check_write_perm,
        registered()
        .op(1000, 1400, "a", "write-perm", "g1/0", "4", outcome="indeterminate")
        .op(1500, 1510, "a", "write-perm", "g1/0", "6")
        .op(1600, 1610, "p", "perm", "g1/0", "4")
        .op(1700, 1710, "a", "write-perm", "g1/0", "4")
        .op(1800, 1810, "g1/0", "register", "g1/0", "7")
        .op(1900, 1910, "p", "perm", "g1/0", "6"),
        registered()
        .op(1000, 1400, "a", "write-perm", "g1/0", "4", outcome="fail")
        .op(1500, 1510, "a", "write-perm", "g1/0", "6")
        .op(1600, 1610, "p", "perm", "g1/0", "4"),
    ),
    "a broker whose permission is asked for is there": (
        check_write_perm,
        registered().op(1000, 1010, "a", "write-perm", "g1/0", "4").op(1000, 1005, "p", "perm", "g1/0", "6"),
        registered().op(1000, 1010, "a", "write-perm", "g1/0", "4").op(1015, 1020, "p", "perm", "g1/0", None),
    ),
    "what is not known to have been kept is not missed": (
        check_write_perm,
        registered()
        .op(1000, 1010, "a", "write-perm", "g1/0", "4")
        .truth(1100, "g1/0", "exposed")
        .op(1200, 1210, "p", "perm", "g1/0", "6"),
        registered()
        .op(1000, 1010, "a", "write-perm", "g1/0", "4")
        .truth(1100, "g1/0", "safe")
        .op(1200, 1210, "p", "perm", "g1/0", "6"),
    ),
    "a dead broker is listed no longer than promised": (
        check_ghosts,
        dead(1000).op(3800, 3810, "c1", "route", "t", members=BOTH).op(3900, 3910, "c1", "route", "t", members=BOTH[:1]),
        dead(1000).op(3900, 3910, "c1", "route", "t", members=BOTH),
    ),
    "and not even so long if its connections were closed": (
        check_ghosts,
        registered()
        .truth(1000, "g2/0", "dead", version=2)
        .op(2900, 2910, "c1", "route", "t", members=BOTH)
        .op(3100, 3110, "c1", "route", "t", members=BOTH[:1]),
        registered().truth(1000, "g2/0", "dead", version=2).op(3100, 3110, "c1", "route", "t", members=BOTH),
    ),
    "unless a fault hid from the nodes that they were": (
        check_ghosts,
        registered()
        .truth(1000, "g2/0", "dead", version=2)
        .fault(1900, 2500)
        .op(3700, 3710, "c1", "route", "t", members=BOTH)
        .op(3900, 3910, "c1", "route", "t", members=BOTH[:1]),
        registered().truth(1000, "g2/0", "dead", version=2).fault(1900, 2500).op(3900, 3910, "c1", "route", "t", members=BOTH),
    ),
    "what was held and arrives starts that time anew": (
        check_ghosts,
        dead(1000)
        .fault(3000, 5000, variant="held")
        .op(7800, 7810, "c1", "route", "t", members=BOTH)
        .op(7900, 7910, "c1", "route", "t", members=BOTH[:1]),
        dead(1000).fault(3000, 5000, variant="held").op(7900, 7910, "c1", "route", "t", members=BOTH),
    ),
    "also for an answer that was asked for before": (
        check_ghosts,
        dead(1000)
        .fault(3000, 8000, variant="held")
        .op(7000, 7010, "c1", "route", "t", members=BOTH[:1])
        .op(7900, 8100, "c1", "route", "t", members=BOTH),
        dead(1000).fault(3000, 8000, variant="held").op(7900, 7990, "c1", "route", "t", members=BOTH),
    ),
    "and so does a new leader, but not a silent cut": (
        check_ghosts,
        dead(1000)
        .elected(3000, "n2")
        .op(5800, 5810, "c1", "route", "t", members=BOTH)
        .op(5900, 5910, "c1", "route", "t", members=BOTH[:1]),
        dead(1000).fault(3000, 5000).op(3900, 3910, "c1", "route", "t", members=BOTH),
    ),
    "but a transfer of leadership adds only a third and the time that it took": (
        check_ghosts,
        handed_over(2000, 2050)
        .op(4200, 4210, "c1", "route", "t", members=BOTH)
        .op(4300, 4310, "c1", "route", "t", members=BOTH[:1]),
        handed_over(2000, 2050).op(4300, 4310, "c1", "route", "t", members=BOTH),
    ),
    "unless another fault was near": (
        check_ghosts,
        handed_over(2000, 2050)
        .fault(1500, 1900)
        .op(4800, 4810, "c1", "route", "t", members=BOTH)
        .op(4900, 4910, "c1", "route", "t", members=BOTH[:1]),
        handed_over(2000, 2050).fault(1500, 1900).op(4900, 4910, "c1", "route", "t", members=BOTH),
    ),
    "a copy that arrives after its broker left may be older than what was read": (
        check_sessions,
        late_copy().op(4000, 4010, "c1", "route", "t", members=[("g1/0", 1)]),
        late_copy().op(2500, 2510, "c1", "route", "t", members=[("g1/0", 1)]),
    ),
    "a node without a majority answers nothing": (
        check_fence,
        without_majority()
        .op(5400, 5410, "c1", "route", "t", members=[])
        .op(6000, 6010, "c1", "route", "t", outcome="indeterminate")
        .op(9000, 9010, "c1", "route", "t", members=[]),
        without_majority().op(6000, 6010, "c1", "route", "t", members=[]).op(9000, 9010, "c1", "route", "t", members=[]),
    ),
    "nor does it keep a connection": (
        check_fence,
        without_majority()
        .op(5400, 6900, "c1", "get", "k", outcome="indeterminate")
        .op(6950, 8500, "c1", "get", "k", outcome="indeterminate")
        .op(9000, 9010, "c1", "route", "t", members=[]),
        without_majority()
        .op(6000, 7500, "c1", "get", "k", outcome="indeterminate")
        .op(9000, 9010, "c1", "route", "t", members=[]),
    ),
    "nor does its status say that it is ready": (
        check_fence,
        without_majority().stands(5400, "n1", 1, "a").op(9000, 9010, "c1", "route", "t", members=[]),
        without_majority().stands(6000, "n1", 1, "a").op(9000, 9010, "c1", "route", "t", members=[]),
    ),
    "and it serves again after the heal": (
        check_fence,
        without_majority().op(9000, 9010, "c1", "route", "t", members=[]),
        without_majority().op(9000, 9010, "c1", "route", "t", outcome="indeterminate"),
    ),
    "a node answers what it acknowledged, whatever the others have": (
        check_node_kv,
        Script("ap")
        .op(1000, 1010, "c1", "put", "k", "a")
        .op(1020, 1030, "c1", "put", "k", "b", node="n2")
        .op(1040, 1050, "c1", "get", "k", "a")
        .op(1040, 1050, "c1", "get", "k", None, node="n3"),
        Script("ap").op(1000, 1010, "c1", "put", "k", "a").op(1040, 1050, "c1", "get", "k", None),
    ),
    "also after a restart, but not after the loss of its disk": (
        check_node_kv,
        Script("ap")
        .op(1000, 1010, "c1", "put", "k", "a")
        .fault(3000, 5000, variant=None, name="join-empty")
        .op(6000, 6010, "c1", "get", "k", None),
        Script("ap")
        .op(1000, 1010, "c1", "put", "k", "a")
        .fault(3000, 5000, variant=None, name="kill")
        .op(6000, 6010, "c1", "get", "k", None),
    ),
    "a node keeps a broker that registers in time": (
        check_node_registrations,
        at_one_node(1500, 1)
        .op(2400, 2410, "c1", "route", "t", members=BOTH)
        .op(2600, 2610, "c1", "route", "t", members=BOTH[1:])
        .op(2400, 2410, "c1", "route", "t", members=BOTH[1:], node="n2"),
        at_one_node(1500, 1).op(2400, 2410, "c1", "route", "t", members=BOTH[1:]),
    ),
    "with what it registered last": (
        check_node_registrations,
        at_one_node(1500, 7)
        .op(1505, 1600, "c1", "route", "t", members=BOTH)
        .op(1520, 1600, "c1", "route", "t", members=[("g1/0", 7)]),
        at_one_node(1500, 7).op(1520, 1600, "c1", "route", "t", members=BOTH),
    ),
    "unless an older registration may still arrive": (
        check_node_registrations,
        at_one_node(1500, 7, "indeterminate")
        .op(1400, 1410, "c1", "route", "t", members=BOTH)
        .op(1600, 1610, "g1/0", "register-copy", "g1/0", "8")
        .op(1700, 1710, "c1", "route", "t", members=[("g1/0", 7)]),
        at_one_node(1500, 7)
        .op(1600, 1610, "g1/0", "register-copy", "g1/0", "8")
        .op(1700, 1710, "c1", "route", "t", members=[("g1/0", 7)]),
    ),
    "or a fault touched its link or the node": (
        check_node_registrations,
        at_one_node(1500, 1)
        .op(1600, 1610, "c1", "route", "t", members=BOTH)
        .fault(2000, 2100, ["g1/0>n1"], variant="reset")
        .op(2400, 2410, "c1", "route", "t", members=BOTH[1:]),
        at_one_node(1500, 1).fault(2000, 2100, ["g1/0>n2"], variant="reset").op(2400, 2410, "c1", "route", "t", members=BOTH[1:]),
    ),
    "a living broker is not dropped": (
        check_live_kept,
        registered().truth(1000, "g2/0", "silent", version=2).dropped(3000, "g2/0"),
        registered().dropped(3000, "g2/0"),
    ),
    "a late report of a removal is not another removal": (
        check_live_kept,
        registered()
        .truth(1000, "g2/0", "dead", version=2)
        .dropped(1500, "g2/0")
        .truth(2000, "g2/0", "serving", life=2)
        .dropped(2500, "g2/0", "n3"),
        registered().truth(1000, "g2/0", "dead", version=2).truth(2000, "g2/0", "serving", life=2).dropped(2500, "g2/0", "n3"),
    ),
    "a client reads its own writes": (
        check_sessions,
        Script()
        .op(1000, 1010, "c2", "put", "k", "a")
        .op(1020, 1030, "c1", "put", "k", "b")
        .op(1040, 1050, "c1", "get", "k", "b"),
        Script()
        .op(1000, 1010, "c2", "put", "k", "a")
        .op(1020, 1030, "c1", "put", "k", "b")
        .op(1040, 1050, "c1", "get", "k", "a"),
    ),
    "and finds them": (
        check_sessions,
        Script().op(1020, 1030, "c1", "put", "k", "b").op(1035, 1036, "c2", "delete", "k").op(1040, 1050, "c1", "get", "k"),
        Script().op(1020, 1030, "c1", "put", "k", "b").op(1040, 1050, "c1", "get", "k"),
    ),
    "nor older than what somebody had read before he wrote what it read": (
        check_sessions,
        read_before_written().op(1030, 1040, "c3", "get", "k", "b").op(1050, 1060, "c2", "get", "k", "b"),
        read_before_written().op(1030, 1040, "c3", "get", "k", "b").op(1050, 1060, "c3", "get", "k", "a"),
    ),
    "nor older than what its writer wrote before": (
        check_sessions,
        Script()
        .op(1000, 1010, "c1", "put", "k", "a")
        .op(1005, 1100, "c1", "put", "k", "b")
        .op(1030, 1040, "c3", "get", "k", "b")
        .op(1050, 1060, "c3", "get", "k", "a"),
        Script()
        .op(1000, 1010, "c1", "put", "k", "a")
        .op(1020, 1100, "c1", "put", "k", "b")
        .op(1030, 1040, "c3", "get", "k", "b")
        .op(1050, 1060, "c3", "get", "k", "a"),
    ),
    "a client's routes never go back": (
        check_sessions,
        Script()
        .op(1000, 1010, "c1", "route", "t", members=[("g1/0", 3)])
        .op(1020, 1030, "c2", "route", "t", members=[("g1/0", 2)]),
        Script()
        .op(1000, 1010, "c1", "route", "t", members=[("g1/0", 3)])
        .op(1020, 1030, "c1", "route", "t", members=[("g1/0", 2)]),
    ),
    "revisions never go back": (
        check_revisions,
        Script().saw(1000, "n1", [], 5).saw(1000.5, "n2", [], 4),
        Script().saw(1000, "n1", [], 5).saw(1010, "n2", [], 4),
    ),
    "equal indexes have equal digests": (
        check_same_state,
        Script().stands(1000, "n1", 7, "aa").stands(1010, "n2", 7, "aa").stands(1020, "n2", 8, "bb"),
        Script().stands(1000, "n1", 7, "aa").stands(1010, "n2", 7, "bb"),
    ),
    "equal revisions have equal registrations": (
        check_same_state,
        Script().saw(1000, "n1", BOTH, 5).saw(1010, "n2", BOTH, 5).saw(1020, "n2", BOTH[:1], 6),
        Script().saw(1000, "n1", BOTH, 5).saw(1010, "n2", BOTH[:1], 5),
    ),
    "nodes agree soon after the last fault": (
        check_convergence,
        looked(looked(Script().fault(3000, 8000), 1000, 9000, n1=BOTH[:1]), 9000, 12_900),
        looked(Script().fault(3000, 8000), 1000, 12_900, n1=BOTH[:1]),
    ),
    "a node that answers nothing agrees with nobody": (
        check_convergence,
        everywhere(Script().fault(3000, 8000), 1000, BOTH).saw(8100, "n1", None).saw(9000, "n1", BOTH),
        everywhere(Script().fault(3000, 8000), 1000, BOTH).saw(8100, "n1", None),
    ),
    "and as to KV entries once nobody writes any more": (
        check_convergence,
        everywhere(Script(), 9000, BOTH)
        .op(11_900, 12_090, "c1", "put", "k", "a")
        .saw_kv(12_050, "n3", [], 4)
        .saw_kv(12_100, "n1", V, 5)
        .saw_kv(12_100, "n2", V, 5)
        .saw_kv(12_110, "n3", V, 5),
        everywhere(Script(), 9000, BOTH).saw_kv(12_100, "n1", [], 4).saw_kv(12_100, "n2", V, 5),
    ),
    "a client that reaches a majority is served": (
        check_availability,
        Script().busy("c1", 1000, 12000),
        Script().busy("c1", 1000, 3000).busy("c1", 9500, 12000),
    ),
    "who reaches none is not missed": (
        check_availability,
        Script().fault(3000, 9500, ["c1>n1", "c1>n2", "c1>n3"]).busy("c1", 1000, 3000).busy("c1", 9500, 12000),
        Script().fault(3000, 9500, ["c1>n1", "c1>n2"]).busy("c1", 1000, 3000).busy("c1", 9500, 12000),
    ),
    "nor is anybody while there is no majority": (
        check_availability,
        Script().fault(3000, 9500, sides=[["n1"], ["n2"], ["n3"]]).busy("c1", 1000, 3000).busy("c1", 9500, 12000),
        Script().fault(3000, 9500, sides=[["n1", "n2"], ["n3"]]).busy("c1", 1000, 3000).busy("c1", 9500, 12000),
    ),
}


def with_renewals(script: Script) -> Story:
    """Add records four times a second, so that the harness does not look stalled. A second call adds none."""
    script.records = [record for record in script.records if not (isinstance(record, Invoke) and record.client == "other")]
    for at in range(0, 13_000, 250):
        script.records.append(Invoke(at * MS, 1_000_000 + at, "other", "get", "other", None, None, None, None, None))
    return script.story


@pytest.mark.parametrize("name", CASES)
def test_a_good_history_is_valid_and_a_bad_one_is_not(name: str) -> None:
    check, good, bad = CASES[name]
    assert check(with_renewals(good)).verdict is Verdict.VALID, check(with_renewals(good)).findings
    found = check(with_renewals(bad))
    assert found.verdict is Verdict.VIOLATED
    assert found.findings


def test_every_checker_has_a_good_and_a_bad_history() -> None:
    elsewhere = {"check_enough", "check_node_orders", "check_roles", "check_operator"}  # the first is tested below
    elsewhere |= {"check_removal_reports", "check_settings", "check_quiet_requests"}
    elsewhere |= {"check_acting", "check_notifications", "check_agreement"}
    elsewhere |= {"check_lists", "check_answers", "check_versions", "check_reports"}
    elsewhere |= {"check_leaders", "check_durability", "check_takeovers"}
    tried = {check.__name__ for check, _, _ in CASES.values()}
    assert_same_names(tried | elsewhere, "CASES or 'elsewhere' of this file", {check.__name__ for check in CHECKS}, "CHECKS")
    assert not tried & elsewhere, f"in CASES and in 'elsewhere': {', '.join(sorted(tried & elsewhere))}"


def test_a_node_whose_kv_entries_were_not_seen_at_the_end_is_unknown() -> None:
    script = everywhere(Script(), 9000, BOTH).saw_kv(9000, "n3", V, 5).saw_kv(12_100, "n1", V, 5)
    assert check_convergence(with_renewals(script)).verdict is Verdict.UNKNOWN


def test_too_little_is_unknown_and_not_passed() -> None:
    assert check_enough(Script().busy("c1", 1000, 2000).story).verdict is Verdict.UNKNOWN
    assert check_enough(Script().busy("c1", 1000, 12500, every=50).story).verdict is Verdict.VALID
    assert judge(Script().story, "cp").verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(("how", "verdict"), [("crash: exit status 1", Verdict.VIOLATED), ("killed: SIGKILL", Verdict.UNKNOWN)])
def test_a_crash_is_held_against_the_run_that_it_ends(how: str, verdict: Verdict) -> None:
    story = ended(how).busy("c1", 1000, 5000).story
    story.trace.records.pop()
    judgement = judge(story, "ap")
    assert judgement.verdict is verdict
    assert judgement.complete is (verdict is Verdict.VIOLATED), "another run would say more of the other"


def test_a_run_cut_short_is_unknown() -> None:
    story = Script().busy("c1", 1000, 12500, every=50).story
    story.trace.records.pop()
    assert check_enough(story).verdict is Verdict.UNKNOWN


def broken_off(story: Story, records: int) -> Story:
    """The trace of a harness that was interrupted after this many records."""
    return Story(RecordedTrace(story.trace.records[:records], 0, []), story.manifest)


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name][0] is not check_crashes])
def test_nothing_but_wrong_answers_is_held_against_a_run_that_was_broken_off(name: str) -> None:
    """Every checker is tried with the trace cut off at many places. None of them fails on an incomplete trace."""
    story = with_renewals(CASES[name][2])
    for records in (*range(1, len(story.trace.records) - 1, 9), len(story.trace.records) - 1):
        judgement = judge(broken_off(story, records), "cp")
        violated = {check.name for check in judgement.checks if check.verdict is Verdict.VIOLATED}
        assert_listed(violated, f"the violated checks of {records} records", PREFIX_SAFE_CHECKS, "PREFIX_SAFE_CHECKS")
        assert judgement.verdict is (Verdict.VIOLATED if violated else Verdict.UNKNOWN)
        assert not judgement.complete
    described = {check.name for check in judgement.checks if any("was interrupted" in finding for finding in check.findings)}
    assert violated or described, "it is told, and why not held"


def test_wrong_answers_are_held_against_a_run_that_was_broken_off_unless_lines_are_missing() -> None:
    """No later record can justify a wrong answer, but the put of a value may have been in a line that cannot be read."""
    story = CASES["a get sees what was put"][2].story
    records = story.trace.records[:-1]
    assert judge(Story(RecordedTrace(records, 1, []), story.manifest), "cp").verdict is Verdict.VIOLATED
    judgement = judge(Story(RecordedTrace(records, 0, ["line 7: no JSON"]), story.manifest), "cp")
    assert judgement.verdict is Verdict.UNKNOWN
    enough = next(check for check in judgement.checks if check.name == "enough to judge")
    assert enough.findings[0] == "1 corrupt lines, the first: line 7: no JSON"


def test_a_node_that_never_answers_at_the_end_leaves_unknown_what_is_there() -> None:
    """The answers of the other nodes do not prove the state of this node."""
    for check, script in (
        (check_final_kv, Script().op(1000, 1010, "c1", "put", "k", "a").at_the_end("get", "k", "a")),
        (check_final_registrations, registered().at_the_end("route", "t", members=BOTH)),
    ):
        assert check(script.story).verdict is Verdict.VALID
        script.records.pop()  # the answer of the last node
        found = check(script.story)
        assert found.verdict is Verdict.UNKNOWN
        assert [finding.partition(" ")[0] for finding in found.findings] == ["n3"]


def test_convergence_counts_from_the_heal_to_the_end_of_the_last_difference() -> None:
    late = looked(looked(Script().fault(3000, 8000), 1000, 9000, n1=BOTH[:1]), 9000, 12_900)
    found = convergence(late.story)
    assert found is not None
    assert (found.after_ns, found.agreed_ns) == (499 * MS, 1_000 * MS), (
        "n1 was asked at 8500 for the last time, and agreed at 9000"
    )
    assert figures(late.story).convergence_s == 0.499
    assert convergence(looked(Script(), 1000, 12_900).story) is None, "nodes that never differed do not converge in no time"
    found = convergence(looked(Script(), 1000, 12_900, n1=BOTH[:1]).story)
    assert found is not None
    assert found.after_ns is None
    silent = looked(looked(Script(), 1000, 9000, n1=BOTH[:1]), 9000, 12_900, n1=None)
    assert convergence_s(silent.story) is None, "a node that stops answering does not agree"


def test_clients_of_five_nodes_may_wait_for_two_more_time_outs() -> None:
    """With three nodes 6 s are promised, so 6.5 s are too long."""
    story = with_renewals(Script().busy("c1", 1000, 3000).busy("c1", 9500, 12000))
    assert check_availability(story).verdict is Verdict.VIOLATED
    story.founders += ["n4", "n5"]
    assert check_availability(story).verdict is Verdict.VALID


def test_a_client_that_caches_routes_may_wait_for_its_next_poll() -> None:
    """Such a client may wait for 6 s plus 1.5 s, and the finding says so."""
    waited = with_renewals(Script().busy("c1", 1000, 3000).busy("c1", 9500, 12000))
    waited.kinds["c1"] = "cache"
    assert check_availability(waited).verdict is Verdict.VALID
    too_long = with_renewals(Script().busy("c1", 1000, 3000).busy("c1", 10_600, 12_000))
    too_long.kinds["c1"] = "cache"
    found = check_availability(too_long)
    assert found.verdict is Verdict.VIOLATED
    assert "7.5 s are promised" in found.findings[0]


def test_ap_is_judged_by_what_it_promises() -> None:
    """Different views at one revision violate no promise of AP, but one of CP."""
    script = Script("ap").saw(1000, "n1", BOTH, 5).saw(1010, "n2", BOTH[:1], 5)
    checks = {check.name: check for check in judge(script.story, "ap").checks}
    broken = checks["one state for one revision"]
    assert broken.verdict is Verdict.VIOLATED
    assert broken.promise is Promise.CP
    assert judge(script.story, "cp").verdict is Verdict.VIOLATED
    assert judge(script.story, "ap").verdict is not Verdict.VIOLATED


@pytest.mark.parametrize("case", range(30))
def test_random_histories_of_a_true_register_pass_every_check_and_mutated_ones_do_not(case: int, rng: random.Random) -> None:
    script = random_kv(rng, 60)
    for check in (check_kv, check_resurrection, check_sessions):
        assert check(script.story).verdict is Verdict.VALID, check(script.story).findings
    put = "value-nobody-else-writes"
    script.op(5000, 5010, "c1", "put", "k", put).op(5020, 5030, "c1", "put", "k", "newer")
    script.op(5040, 5050, "c1", "get", "k", put)
    for check in (check_kv, check_sessions):
        assert check(script.story).verdict is Verdict.VIOLATED
    assert figures(script.story).stale_kv_reads == 1


def test_differences_shorter_than_a_look_are_not_counted() -> None:
    short = everywhere(everywhere(Script(), 2000, BOTH).saw(3000, "n1", BOTH[:1]), 3300, BOTH[:1])
    assert figures(short.story).diverged_s == 0
    assert figures(short.story).diverged_possible_s == pytest.approx(1.3, abs=0.01)
    twice = everywhere(Script(), 2000, BOTH).saw(3000, "n1", BOTH[:1]).saw(4500, "n1", BOTH[:1])
    long = everywhere(twice, 5000, BOTH)
    assert figures(long.story).diverged_s == pytest.approx(1.499), "from the first answer to the last question"
    assert figures(long.story).divergence_max == 0.5
    silent = everywhere(Script(), 2000, BOTH).saw(2500, "n1", BOTH[:1]).saw(3000, "n1", None).saw(9000, "n1", BOTH)
    assert figures(silent.story).diverged_s == 0, "a node that does not answer differs from nobody"


LATER_CHECKS = [ACTING, NOTIFICATIONS, AGREEMENT, LISTS, ANSWERS, VERSIONS]
"""Checks of questions that runs of earlier versions do not ask."""


def test_a_check_with_nothing_to_judge_says_so_and_passes_nothing() -> None:
    """No broker died, so ghosts cannot be judged. The verdict of the run is not unknown for this reason, and the check does not
    count as passed."""
    story = Script().busy("c1", 1000, 12500, every=50).story
    ghosts = check_ghosts(story)
    assert (ghosts.verdict, ghosts.looked_at, ghosts.idle) == (Verdict.UNKNOWN, 0, True)
    judgement = judge(story, "ap")
    idle = [check.name for check in judgement.checks if check.idle]
    assert f"of {len(judgement.checks) - len(idle)} checks hold" in described(judgement)
    assert idle == ["roles of a pair", *LATER_CHECKS, "no ghosts", "fence"]
    assert all(f"nothing to judge: {name}" in described(judgement) for name in idle)
    assert not check_kv(story).idle, "a run without KV operations proves nothing"


def test_a_check_that_must_have_something_to_judge_and_has_not_leaves_the_run_unknown() -> None:
    """A broker was dead for a long time, or a node had no majority for a long time, and no client asked."""
    unasked = without_majority()
    unasked.records = [record for record in unasked.records if not (isinstance(record, FaultRecord) and record.edge == "end")]
    for check, script in ((check_ghosts, dead(1000)), (check_fence, unasked)):
        found = check(script.story)
        assert (found.due, found.idle, found.verdict) == (True, False, Verdict.UNKNOWN)
    brief = Script().fault(3000, 5000, sides=[["n2", "n3"], ["n1"]])
    assert check_fence(brief.story).due is False, "the fault ended before the fence was due"
    stale = with_settings(without_majority().story, ["noQuorumPolicy=serve-stale"])
    assert check_fence(stale).idle, "its operators do not want the fence"
    asked = dead(1000).op(1500, 1510, "c1", "route", "t", members=BOTH).truth(4000, "g2/0", "starting", life=2).story
    assert check_ghosts(asked).idle, "it came back before it had to be gone"


def with_settings(story: Story, settings: list[str]) -> Story:
    return Story(story.trace, {**story.manifest, "settings": settings})


def test_the_limit_of_a_dead_broker_follows_the_settings() -> None:
    story = dead(1000).op(3900, 3910, "c1", "route", "t", members=BOTH).story
    assert check_ghosts(with_settings(story, [])).looked_at == 0, "nodes look for silent brokers each 5 s"
    assert check_ghosts(with_settings(story, ["scanNotActiveBrokerInterval=500"])).looked_at == 1


def test_an_independent_node_need_not_keep_a_broker_whose_connection_it_closed_because_it_was_idle() -> None:
    script = Script("ap").truth(900, "g1/0", "serving", timeout_ms=5_000).op(1000, 1010, "g1/0", "register-copy", "g1/0", "1")
    missing = with_renewals(script.op(2100, 2110, "c1", "route", "t", members=[]))
    assert check_node_registrations(missing).verdict is Verdict.VIOLATED
    assert check_node_registrations(with_settings(missing, ["serverChannelMaxIdleTimeSeconds=1"])).looked_at == 0


def test_what_is_left_out_is_counted() -> None:
    script = exposed_until(1300).op(1250, 1290, "c1", "route", "t", members=BOTH[:1])
    check = check_registration(script.op(1500, 1510, "c1", "route", "t", members=[BOTH[0], ("g2/0", 5)]).story)
    assert check.left_out == {"answers about a group with a slave": 2, "answers about a broker while it was exposed": 1}
    verdict = {
        check["check"]: check for check in judge(dead(1000).op(1500, 1510, "c1", "route", "t").story, "cp").as_json()["checks"]
    }
    assert verdict["no ghosts"]["left_out"] == {"answers within the time that is promised": 1}
