"""Whether a node must list a broker, and the check of the answers that list brokers without their registrations."""

from collections.abc import Sequence

from replicated_namesrv.chaos.checks.node_promises import kept
from replicated_namesrv.chaos.checks.registration_history import topics_of
from replicated_namesrv.chaos.checks.story import KEPT, NEVER_NS, CheckResult, Op, Promise, Story, result, unless_stalled
from replicated_namesrv.chaos.recorded_brokers import HEARTBEAT, HEIR, PAIR

LISTS = "lists of brokers"


def check_lists(story: Story) -> CheckResult:
    """The list of all brokers (106) and the members of a group (901) contain each broker that a node must list, and none that has
    unregistered. The groups whose brokers change their ids are left out."""
    asked = list(story.of_kind("cluster", "member-group"))
    brokers = [broker for broker in topics_of(story) if not broker.startswith((f"{PAIR}/", HEIR))]
    changes = {broker: changes_of(story, broker) for broker in brokers}
    wrong: list[str] = []
    missing: list[str] = []
    looked_at = left_out = 0
    for read in (op for op in asked if op.ok):
        listed = {member.name for member in read.members}
        for broker in brokers:
            if read.kind == "member-group" and not broker.startswith(f"{read.key}/"):
                continue
            must = must_be_listed(story, broker, changes[broker], read)
            looked_at += must is not None
            left_out += must is None
            if must is None or must == (broker in listed):
                continue
            what = "the list of all brokers" if read.kind == "cluster" else f"the members of {read.key}"
            how = "without" if must else "with"
            why = "had registered" if must else "had unregistered"
            (missing if must else wrong).append(
                f"{story.ms(read.start_ns)}: {read.node} answers {what} {how} {broker}, which {why}"
            )
    exempt = {"brokers that the node may list or not": left_out}
    judged = result(LISTS, Promise.BOTH, looked_at, [*wrong, *missing], exempt, due=bool(asked))
    return judged if wrong else unless_stalled(story, judged)  # only a missing broker can be an effect of slowness


def must_be_listed(story: Story, broker: str, changes: Sequence[Op], read: Op) -> bool | None:
    """Whether the node must list the broker (True), must not (False), or may do either (None)."""
    mine = [op for op in changes if op.start_ns < read.end_ns and (story.mode == "cp" or op.node == read.node)]
    last = max((op for op in mine if op.end_ns < read.start_ns), key=lambda op: op.end_ns, default=None)
    if last is None or any(op.kind != last.kind and op.end_ns > last.start_ns for op in mine):
        return None
    if last.kind == "unregister-copy":
        return False
    if story.mode == "ap":
        beats = [op for op in story.of_kind(HEARTBEAT) if op.ok and op.node == read.node and op.key == broker]
        beats += [op for op in story.queries_of(broker) if op.ok and op.node == read.node]
        return True if kept(story, broker, last, beats, read) else None
    first = story.life_at(broker, last.start_ns)
    later = [life.state for life in story.lives[broker] if last.start_ns < life.start_ns < read.end_ns]
    stays = first is not None and first.state in (*KEPT, "starting") and all(state in KEPT for state in later)
    return True if stays else None


def changes_of(story: Story, broker: str) -> list[Op]:
    """The registrations and unregistrations of the broker that may have happened, sorted by their ends."""
    kinds = ("register-copy", "unregister-copy")
    found = [op for op in story.ops if op.kind in kinds and op.key == broker and op.outcome != "fail"]
    return sorted((op if op.ok else op._replace(end_ns=NEVER_NS) for op in found), key=lambda op: op.end_ns)
