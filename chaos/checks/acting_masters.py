"""Checks of the group with an acting master: its routes, and the notifications of a new smallest broker id (905).

The group ``deputy`` has a master (id 0) and a slave (id 1), and the nodes run with ``supportActingMaster``. Nothing changes the
permission of the group's topic. So these are the right answers:

    the master is registered   the slave is registered   the route lists                  permission
    yes                        yes                       master as 0, slave as 1          read and write
    yes                        no                        master as 0                      read and write
    no                         yes                       slave as 0: it acts as master    read
    no                         no                        nothing

Any other answer is wrong at any time. An answer is also wrong if it comes from the wrong row:

- The node listed a broker that had unregistered (CP: at any node; AP: at this node) and had not begun to register again.
- The node did not list a broker that had registered, and nothing since allowed the node to drop it. In CP its state was always
  one in which a correct cluster keeps it. In AP it registered at this node in time, over a link without faults.

If the smallest id of the group changes, the other broker is notified. A notification is oneway and is not repeated, so it must
arrive only if there is no fault. In CP only the leader sends it, in AP each node. It is wrong if it names a broker that had
unregistered and had not begun to register again, or a slave whose master had not begun to leave.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from replicated_namesrv.chaos.checks.listed_brokers import changes_of, must_be_listed
from replicated_namesrv.chaos.checks.story import (
    KEPT,
    NEVER_NS,
    CheckResult,
    Op,
    Promise,
    Story,
    despite_slowness,
    result,
    unless_stalled,
)
from replicated_namesrv.chaos.recorded_brokers import DEPUTY, NOTIFIED
from replicated_namesrv.chaos.records import READ_ONLY, READ_WRITE

ACTING, NOTIFICATIONS = "acting master", "notifications of a new smallest id"
MASTER, SLAVE = f"{DEPUTY}/0", f"{DEPUTY}/1"
RIGHT = {
    ((MASTER, "0"), (SLAVE, "1")): READ_WRITE,
    ((MASTER, "0"),): READ_WRITE,
    ((SLAVE, "0"),): READ_ONLY,
    (): None,
}
"""The right answers: the brokers with their ids, and the permission."""
NOTIFIED_NS = 1_000_000_000
"""Longest time from the answer to a registration until the notification that it causes."""
LEFT_NS = 5_000_000_000
"""Time after a fault in which a node may still notify of changes that it learned late."""


def check_acting(story: Story) -> CheckResult:
    """No answer mixes master and acting master, lists a broker that had left, or lacks one that the node must list."""
    asked = [op for op in story.of_kind("roles") if op.key == DEPUTY]
    changes = {broker: changes_of(story, broker) for broker in (MASTER, SLAVE)}
    wrong: list[str] = []
    missing: list[str] = []
    looked_at = left_out = 0
    for read in (op for op in asked if op.ok):
        listed = tuple(sorted((member.name, member.version) for member in read.members))
        shown = ", ".join(f"{name} as {broker_id}" for name, broker_id in listed) or "nothing"
        when = f"{story.ms(read.start_ns)}: {read.node} lists {shown} with permission {read.value}"
        if listed not in RIGHT or RIGHT[listed] != read.value:
            looked_at += 1
            wrong.append(when)
            continue
        for broker in (MASTER, SLAVE):
            must = must_be_listed(story, broker, changes[broker], read)
            is_listed = any(name == broker for name, _ in listed)
            looked_at += must is not None
            left_out += must is None
            if must is not None and is_listed != must:
                (missing if must else wrong).append(f"{when}; {broker} had {'registered' if must else 'unregistered'}")
    exempt = {"answers about a broker that the node may list or not": left_out}
    judged = result(ACTING, Promise.BOTH, looked_at, [*wrong, *missing], exempt, due=bool(asked))
    return judged if wrong else unless_stalled(story, judged)  # only a missing broker can be an effect of slowness


def check_notifications(story: Story) -> CheckResult:
    """Without a fault, the slave is notified when its master leaves and when it returns. No notification names a wrong broker."""
    return despite_slowness(story, lambda patience: _judged_notifications(story, int(NOTIFIED_NS * patience)))


def _judged_notifications(story: Story, notified_ns: int) -> CheckResult:
    # the brokers close their connections when the run ends, and a node may then notify brokers that are still connected
    told = [op for op in story.of_kind(NOTIFIED) if op.key == DEPUTY and op.end_ns <= story.judged.end_ns]
    wrong: list[str] = []
    missing: list[str] = []
    looked_at = left_out = 0
    of_master, of_slave = changes_of(story, MASTER), changes_of(story, SLAVE)
    for notice in told:
        if story.faults_in(notice.start_ns - LEFT_NS, notice.end_ns):
            left_out += 1
            continue
        wrong += _wrong_in(story, notice, of_master)
    for since_ns, change in _steps(of_master, of_slave):
        is_there = change.kind == "register-copy"
        until_ns = change.end_ns + notified_ns
        expected = (MASTER, "0") if is_there else (SLAVE, "1")
        heard = any(
            (member.name, member.version) == expected and since_ns <= notice.end_ns <= until_ns
            for notice in told
            if notice.client == SLAVE
            for member in notice.members
        )
        # later faults of links do not matter: nodes reach these brokers without a proxy
        near = story.faults_in(change.start_ns - NOTIFIED_NS, change.end_ns + NOTIFIED_NS)
        near += [fault for fault in story.faults_in(change.start_ns, until_ns) if not fault.links]
        if not heard and (near or until_ns > story.judged.end_ns):
            left_out += 1
            continue
        looked_at += 1
        if not heard:
            what = "returned" if is_there else "had left"
            missing.append(f"{story.ms(change.start_ns)}: {MASTER} {what}, and no name server notified {SLAVE}")
    due = any(op.key == DEPUTY for op in story.of_kind("roles"))
    exempt = {"notifications near a fault": left_out}
    return result(NOTIFICATIONS, Promise.BOTH, looked_at, [*wrong, *missing], exempt, due=due)


def _wrong_in(story: Story, notice: Op, of_master: Sequence[Op]) -> Iterator[str]:
    when = f"{story.ms(notice.end_ns)}: {notice.client} was notified that"
    for name, broker_id in notice.members:
        if (name, broker_id) not in ((MASTER, "0"), (SLAVE, "1")):
            yield f"{when} {name} has the smallest id, {broker_id}"
        elif name == MASTER and _has_left(of_master, notice.end_ns):
            yield f"{when} {name} has the smallest id, after it had unregistered"
        elif name == SLAVE and not _was_away(story, notice.end_ns):
            yield f"{when} {name} has the smallest id, while {MASTER} was there"
    if notice.value not in (None, MASTER, SLAVE):
        yield f"{when} {notice.value} left the group"


def _has_left(of_master: Sequence[Op], at_ns: int) -> bool:
    """Whether the master had unregistered LEFT_NS before this time, and had not begun to register again."""
    begun = [op for op in of_master if op.start_ns < at_ns]
    return bool(begun) and begun[-1].kind == "unregister-copy" and begun[-1].end_ns < at_ns - LEFT_NS


def _was_away(story: Story, at_ns: int) -> bool:
    """Whether the master was not there at some time in the LEFT_NS before this time."""
    life = story.life_at(MASTER, at_ns - LEFT_NS)
    since = [one.state for one in story.lives[MASTER] if at_ns - LEFT_NS < one.start_ns <= at_ns]
    return life is None or any(state not in KEPT for state in (life.state, *since))


def _steps(of_master: Sequence[Op], of_slave: Sequence[Op]) -> Iterator[tuple[int, Op]]:
    """The first acknowledged request of each return or departure of the master after the slave had registered, with the beginning
    of the acknowledged request before it."""
    registered = next((op.end_ns for op in of_slave if op.ok and op.kind == "register-copy"), NEVER_NS)
    for before, op in pairwise(op for op in of_master if op.ok):
        if op.kind != before.kind and registered < op.start_ns:
            yield before.start_ns, op
