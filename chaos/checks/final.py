"""Checks of the final state: which values and brokers must be present, which must not return, and which brokers must be removed.

These checks use real time only: a write that ended before another began is older. So they need no search. Each finding names one
operation. They also serve as a control of the linearizability checker.
"""

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace

from replicated_namesrv.chaos.checks.administration import misjudged_topics
from replicated_namesrv.chaos.checks.real_time import overtaken, read_writes, written_once
from replicated_namesrv.chaos.checks.registration_history import Late, has_slave, late_copies, topics_of
from replicated_namesrv.chaos.checks.removal_times import early_removals
from replicated_namesrv.chaos.checks.story import (
    ALIVE,
    FINDINGS_MAX,
    KEPT,
    NEVER_NS,
    BrokerState,
    CheckResult,
    Op,
    Promise,
    Story,
    is_slow,
    result,
    unless_stalled,
)
from replicated_namesrv.chaos.effects import Effect
from replicated_namesrv.chaos.recorded_brokers import DEPUTY, HEIR
from replicated_namesrv.chaos.records import Election, ExpiryRecord, FaultRecord
from replicated_namesrv.chaos.scenario import FaultKind
from replicated_namesrv.verify import Verdict

DUE_NS = 1_000_000_000
"""If a scenario leaves a broker dead for this long after the last time at which the broker may be listed, ``check_ghosts`` must
have something to judge."""
QUIET_NS = 1_000_000_000
"""Minimum time without a fault before the end of a broker. After it, all nodes are known to be in contact with the broker and
with each other."""
RECEIVED_NS = 300_000_000
"""Time after which a request has arrived, over a link without a fault."""
GONE = ("stopped", "dead", "silent")


def final_reads(story: Story, kind: str) -> list[Op]:
    """The answered reads of the probe in the phase ``final``, in which it asks each node."""
    span = story.phases.get("final")
    if span is None:
        return []
    return [
        op for op in story.of_kind(kind) if op.ok and op.client == "probe" and op.probe is None and op.start_ns > span.start_ns
    ]


def check_final_kv(story: Story) -> CheckResult:
    """At the end every node has for each key a value that no later acknowledged write has replaced."""
    writes, reads = read_writes(story), final_reads(story, "get")
    wrong = [
        f"at the end {read.node} answers {read.key} = {read.value or 'absent'}, though a later write was acknowledged"
        for read in reads
        if overtaken(read, writes.get(read.key, ()))
    ]
    found = result("acknowledged KV writes at the end", Promise.CP, len(reads), wrong)
    return _unless_unread(story, found, story.manifest["kv_keys"], reads)


def _unless_unread(story: Story, found: CheckResult, keys: Iterable[str], reads: Sequence[Op]) -> CheckResult:
    """The result ``found``, but unknown instead of valid if a node never answered for a key at the end."""
    answered = {(read.key, read.node) for read in reads}
    unread = [
        f"{node} did not answer for {key} at the end" for key in keys for node in story.final_nodes if (key, node) not in answered
    ]
    if found.verdict is not Verdict.VALID or not unread:
        return found
    return replace(found, verdict=Verdict.UNKNOWN, findings=tuple(unread[:FINDINGS_MAX]))


def check_final_registrations(story: Story) -> CheckResult:
    """At the end every node lists each live broker with a registration not older than the last acknowledged one."""
    acknowledged: defaultdict[str, list[Op]] = defaultdict(list)
    for op in story.of_kind("register"):
        if op.ok and op.value is not None:
            acknowledged[op.key].append(op)
    wrong: list[str] = []
    looked_at = left_out = 0
    reads = final_reads(story, "route")
    for read in reads:
        listed = {member.name: int(member.version) for member in read.members}
        for broker, registrations in acknowledged.items():
            life = story.life_at(broker, read.start_ns)
            ends = [
                one.start_ns for one in story.lives.get(broker, ()) if one.state not in ALIVE and one.start_ns < read.start_ns
            ]
            mine = [op for op in registrations if op.end_ns < read.start_ns and read.key in op.topics]
            if life is None or life.state not in ALIVE or not any(op.end_ns > max(ends, default=0) for op in mine):
                continue
            if life.state not in KEPT:
                left_out += 1
                continue
            looked_at += 1
            newest = 0 if has_slave(broker) else max(int(str(op.value)) for op in mine)
            if listed.get(broker, -1) < newest:
                seen = f"only as of registration {listed[broker]}" if broker in listed else "not at all"
                wrong.append(f"at the end {read.node} lists {broker} in {read.key} {seen}; {newest or 'it'} was acknowledged")
    exempt = {"answers about a broker while it was exposed": left_out}
    found = result("acknowledged registrations at the end", Promise.CP, looked_at, wrong, exempt)
    return _unless_unread(story, found, story.manifest["topics"], reads)


def check_resurrection(story: Story) -> CheckResult:
    """These objects do not return: a deleted KV value, a broker that was stopped cleanly, a deleted topic that its
    broker had dropped."""
    wrong, looked_at = [], 0
    writes = read_writes(story)
    source = {key: written_once(found) for key, found in writes.items()}
    for read in story.of_kind("get"):
        put = source.get(read.key, {}).get(read.value) if read.ok else None
        if put is None:
            continue
        looked_at += 1
        for write in writes[read.key]:
            if write.kind == "delete" and write.ok and put.end_ns < write.start_ns and write.end_ns < read.start_ns:
                wrong.append(f"{story.ms(read.start_ns)}: {read.client} reads {read.key} = {read.value}, deleted before")
                break
    left = _left_versions(story)
    for read in story.of_kind("route"):
        for member in read.members:
            left_ns = left.get((member.name, member.version))
            looked_at += 1
            if left_ns is not None and read.ok and left_ns < read.start_ns:
                wrong.append(
                    f"{story.ms(read.start_ns)}: {read.client} learns from {read.node} that {member.name} serves {read.key}; "
                    f"it left at {story.ms(left_ns)}"
                )
    topics_looked_at, left_out, topics = misjudged_topics(story)
    exempt = {"answers about topics after their broker was exposed": left_out}
    return result("no resurrection", Promise.CP, looked_at + topics_looked_at, [*wrong, *topics], exempt)


def _left_versions(story: Story) -> dict[tuple[str, str], int]:
    """From (broker, version) to the time when the broker's unregistration was acknowledged. Versions whose registrations may
    still arrive are left out. A registration without an outcome may still arrive, unless its node had received it
    (``is_received``): a cluster does not accept a registration that was received before the unregistration.
    """
    late = {one.copy.value for copies in late_copies(story).values() for one in copies if not is_received(story, one)}
    found: dict[tuple[str, str], int] = {}
    for leave in story.of_kind("unregister"):
        life = story.life_at(leave.key, leave.start_ns)
        if not leave.ok or life is None or has_slave(leave.key):
            continue
        versions = [op.value for op in story.of_kind("register") if op.key == leave.key and op.end_ns < leave.start_ns]
        for version in versions:
            if version is not None and version not in late:
                found.setdefault((leave.key, version), leave.end_ns)
    return found


def is_received(story: Story, late: Late) -> bool:
    """Whether the node certainly received this registration before the broker began to leave: it was sent long before that, over
    a link without a fault, to a node that ran."""
    copy = late.copy
    if copy.node is None or late.end_ns < copy.start_ns + RECEIVED_NS or is_slow(story):
        return False
    faults = story.faults_in(copy.start_ns, late.end_ns)
    return not any(f"{copy.client}>{copy.node}" in one.links or (not one.links and copy.node in one.nodes) for one in faults)


def check_ghosts(story: Story) -> CheckResult:
    """A broker that is gone is listed no longer than promised (``_listed_until_ns``)."""
    wrong: list[str] = []
    looked_at = left_out = 0
    serving: defaultdict[str, list[str]] = defaultdict(list)
    for broker, topics in topics_of(story).items():
        for topic in topics:
            serving[topic].append(broker)
    until_ns = {(broker, life.life): _listed_until_ns(story, broker, life) for broker, life in _gone(story)}
    backs = [(_back_ns(story, broker, life), until_ns[broker, life.life]) for broker, life in _gone(story)]
    due = any(back_ns - listed_until_ns(back_ns) > DUE_NS for back_ns, listed_until_ns in backs)
    for read in story.of_kind("route"):
        for broker in serving[read.key] if read.ok else ():
            life = story.life_at(broker, read.start_ns)
            back = story.life_at(broker, read.end_ns)
            if life is None or life.state not in GONE or (back is not None and back.state in ALIVE):
                continue
            if read.start_ns <= until_ns[broker, life.life](read.end_ns):
                left_out += 1
                continue
            looked_at += 1
            if broker in {member.name for member in read.members}:
                wrong.append(
                    f"{story.ms(read.start_ns)}: {read.node} still lists {broker} in {read.key}, "
                    f"{life.state} since {story.ms(life.start_ns)}"
                )
    exempt = {"answers within the time that is promised": left_out}
    return unless_stalled(story, result("no ghosts", Promise.BOTH, looked_at, wrong, exempt, due=due))


def _gone(story: Story) -> list[tuple[str, BrokerState]]:
    """Each end of the life of a broker whose topics clients look up."""
    found = [(broker, lives) for broker, lives in story.lives.items() if not broker.startswith((f"{DEPUTY}/", HEIR))]
    return [(broker, life) for broker, lives in found for life in lives if life.state in GONE]


def _back_ns(story: Story, broker: str, gone: BrokerState) -> int:
    """When the broker began its next life, or the judged part of the run ended."""
    later = [life.start_ns for life in story.lives[broker] if life.life > gone.life]
    return min([*later, story.judged.end_ns])


def _listed_until_ns(story: Story, broker: str, gone: BrokerState) -> Callable[[int], int]:
    """A function of a time. It returns the end of the period in which a gone broker may be listed, according to the events
    before the given time.

    The time-out runs from the broker's end, or from the last moment that extends it (``_renewing_ns``), whichever is later. A new
    leader may add a third of the time-out. So each transfer of leadership adds this third plus the time that the transfer took.
    Nodes look for silent brokers once per ``scanNotActiveBrokerInterval``. A broker whose connections closed while no fault was
    active is removed after ``connectionLossGraceMs``, even if a fault begins later."""
    margin_ns = int(story.manifest["scenario"]["promises"]["ghost_margin_s"] * 1e9)
    look_ns = story.setting_ms("scanNotActiveBrokerInterval", 5_000) * 1_000_000 + margin_ns
    quick_ns = gone.start_ns + story.setting_ms("connectionLossGraceMs", 500) * 1_000_000 + look_ns
    if gone.state == "dead" and not story.faults_in(gone.start_ns - QUIET_NS, quick_ns):
        return lambda _: quick_ns
    transfers = _transfers(story)
    renewing_ns = _renewing_ns(story, transfers)
    third_ns = gone.timeout_ns // 3 if story.mode == "cp" else 0

    def until_ns(known_ns: int) -> int:
        since_ns = max([gone.start_ns, *(at_ns for at_ns in renewing_ns if at_ns < known_ns)])
        added = [third_ns + took_ns for at_ns, took_ns in transfers.items() if since_ns <= at_ns < known_ns]
        return since_ns + gone.timeout_ns + third_ns + sum(added) + look_ns

    return until_ns


def _transfers(story: Story) -> dict[int, int]:
    """How long each transfer of leadership took, by the time of its election. Transfers near another fault are left out."""
    elections = [record.time_ns for record in story.trace.records if isinstance(record, Election)]
    found = {}
    for fault, _ in story.faults:
        if fault.name != FaultKind.HAND_OVER:
            continue
        elected_ns = next((at_ns for at_ns in elections if at_ns >= fault.began_ns), NEVER_NS)
        near = story.faults_in(fault.began_ns - QUIET_NS, elected_ns)
        if elected_ns <= fault.began_ns + QUIET_NS and all(one.name == FaultKind.HAND_OVER for one in near):
            found[elected_ns] = elected_ns - fault.began_ns
    return found


def _renewing_ns(story: Story, transfers: Container[int]) -> list[int]:
    """Moments at which the time-out of a broker that is gone may be extended. A new leader restarts the count, unless its
    election is one of ``transfers``. Bytes that a link or node held back may arrive when the fault begins or ends. Nothing
    arrives through a cut link while it is cut, and later only the bytes that it held."""
    elections = (record.time_ns for record in story.trace.records if isinstance(record, Election))
    found = [at_ns for at_ns in elections if at_ns not in transfers]
    for record in story.trace.records:
        if isinstance(record, FaultRecord) and record.name != FaultKind.HAND_OVER:
            cut = record.variant is not None and Effect(record.variant).breaks
            if not cut or (record.edge == "end" and record.variant == Effect.HELD):
                found += [record.began_ns, record.time_ns]
    return found


def check_live_kept(story: Story) -> CheckResult:
    """The cluster drops no broker that is alive and has a link to a majority, and no other broker before its time
    (``removal_times.py``).

    Each node of a cluster reports the same removal at its own time. The earliest report counts.
    """
    if not story.reports_removals:
        why = ("foreign name servers do not report that they remove a broker",)
        return replace(result("live brokers are kept", Promise.CP, 0, []), findings=why)
    wrong = []
    kept = {
        (broker, life.life, life.start_ns)
        for broker, lives in story.lives.items()
        for life in lives
        if life.state in KEPT and not has_slave(broker)
    }
    first: dict[tuple[str, int | str], ExpiryRecord] = {}
    for told in sorted(story.expiries, key=lambda told: told.time_ns):
        first.setdefault((told.broker, told.revision if story.mode == "cp" else f"{told.node} {told.revision}"), told)
    for expiry in first.values():
        life = story.life_at(expiry.broker, expiry.time_ns)
        if life is not None and life.state in KEPT and not has_slave(expiry.broker):
            wrong.append(f"{story.ms(expiry.time_ns)}: {expiry.node} dropped {expiry.broker} ({expiry.cause}), which lives")
    early = list(early_removals(story, first.values()))
    judged = result("live brokers are kept", Promise.CP, len(kept), [*early, *wrong])
    return judged if early else unless_stalled(story, judged)  # slowness cannot make a removal early
