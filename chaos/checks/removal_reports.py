"""The check that nodes report on ``/v1/watch`` that they removed a broker, and why, and that they close its connections.

Operators and other checks rely on these reports: the check "live brokers are kept" finds nothing if no removal is reported. A
broker whose heartbeats are lost does not know that it was removed. Therefore nodes close its connections, as in RocketMQ.
"""

from bisect import bisect_left
from collections import defaultdict

from replicated_namesrv.chaos.checks.removal_times import last_contact
from replicated_namesrv.chaos.checks.seen_removals import SeenRemoval, seen_removals
from replicated_namesrv.chaos.checks.story import CheckResult, Promise, Story, result, unless_stalled
from replicated_namesrv.chaos.recorded_brokers import HUNG_UP

REPORTED_NS = 3_000_000_000
"""Time in which a report arrives."""
QUIET_NS = 1_000_000_000
"""Minimum time without a fault before the death. After it, all nodes are known to be in contact with the broker."""
CAUSES = {"silent": "expired", "dead": "lost"}
"""The cause of a removal, by the state of the dead broker. Valid if no fault is active near that time."""


def check_removal_reports(story: Story) -> CheckResult:
    """If a node no longer lists a broker that died, it has reported the removal with its cause.

    A removal without a report is left out if the process of the node was stopped near it, because its stream of reports ended."""
    reports: defaultdict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for one in sorted(story.expiries, key=lambda one: one.time_ns):
        reports[one.node, one.broker].append((one.time_ns, one.cause))
    hung_up = {
        (op.node, op.key, life.life) for op in story.of_kind(HUNG_UP) if (life := story.life_at(op.key, op.start_ns)) is not None
    }
    wrong: list[str] = []
    wrong_causes: list[str] = []
    looked_at = left_out = 0
    for seen in seen_removals(story) if story.reports_removals else ():
        if seen.life.state not in CAUSES or not _was_listed_in_this_life(story, seen):
            continue
        until_ns = seen.after.time_ns + REPORTED_NS
        mine = reports[seen.node, seen.broker]
        first = bisect_left(mine, (seen.before.asked_ns, ""))
        causes = [cause for time_ns, cause in mine[first:] if time_ns <= until_ns]
        is_cut_short = until_ns > story.judged.end_ns or _was_stopped(story, seen.node, seen.before.asked_ns, until_ns)
        if not causes and is_cut_short:
            left_out += 1
            continue
        looked_at += 1
        due = CAUSES[seen.life.state]
        when = f"{story.ms(seen.after.time_ns)}: {seen.node} no longer lists {seen.broker}, {seen.life.state} since"
        if not causes:
            wrong.append(f"{when} {story.ms(seen.life.start_ns)}, and did not report its removal")
        elif due not in causes and not _is_idle(story, seen) and not _is_touched(story, seen, seen.after.time_ns):
            told = f"{when} {story.ms(seen.life.start_ns)}, and reported the cause {causes[0]} instead of {due}"
            (wrong_causes if due == "expired" else wrong).append(told)
        elif (
            due == "expired"
            and (seen.node, seen.broker, seen.life.life) not in hung_up
            and not _is_touched(story, seen, until_ns)
            and _was_connected(story, seen)
        ):
            wrong.append(f"{when} {story.ms(seen.life.start_ns)}, and did not close its connection")
    exempt = {"removals without a report near the stop of the node, or at the end of the run": left_out}
    due_here = story.reports_removals and story.manifest["scenario"]["workload"].get("early_deaths", False)
    found = result("removals are reported", Promise.BOTH, looked_at, [*wrong_causes, *wrong], exempt, due=due_here)
    # the connections of a silent broker stay open, so slowness cannot make a node see them close
    return found if wrong_causes else unless_stalled(story, found)


def _was_listed_in_this_life(story: Story, seen: SeenRemoval) -> bool:
    before = story.life_at(seen.broker, seen.before.asked_ns)
    return before is not None and before.life == seen.life.life


def _is_idle(story: Story, seen: SeenRemoval) -> bool:
    """Whether an independent node may have closed the connection of a silent broker, because it was idle, before the time-out."""
    return story.mode == "ap" and seen.life.timeout_ns == story.idle_ns


def _is_touched(story: Story, seen: SeenRemoval, until_ns: int) -> bool:
    """Whether a fault may have changed why or how the broker was removed. In CP this can be any fault, because the leader
    decides from the reports of all nodes."""
    link = f"{seen.broker}>{seen.node}"
    return any(
        story.mode == "cp" or link in fault.links or (not fault.links and seen.node in fault.nodes)
        for fault in story.faults_in(seen.life.start_ns - QUIET_NS, until_ns)
    )


def _was_connected(story: Story, seen: SeenRemoval) -> bool:
    """Whether the broker had a connection to the node when it died: it registered there after the last fault of the node. A
    restarted node has none of its former connections, and may begin to listen after the broker's last registration."""
    died_ns = seen.life.start_ns
    restarted_ns = max((until for fault, until in story.faults if seen.node in fault.nodes and until <= died_ns), default=0)
    contact = last_contact(story, seen.broker, died_ns, seen.node)
    return contact is not None and contact.start_ns >= restarted_ns


def _was_stopped(story: Story, node: str, start_ns: int, end_ns: int) -> bool:
    return any(node in fault.nodes and not fault.links for fault in story.faults_in(start_ns, end_ns))
