"""The check that ``/v1/watch`` reports every change of a node, and says what has changed."""

from collections.abc import Mapping

from replicated_namesrv.chaos.checks.story import CheckResult, Op, Promise, Story, result
from replicated_namesrv.chaos.watcher import BROKERS, CHANGES, KV, WATCHED

REPORTED = "changes are reported"


def check_reports(story: Story) -> CheckResult:
    """No event is missing in a stream. At the end, the last event about each KV key and broker says what the node has at the
    revision of the last event."""
    told = [op for op in story.of_kind(WATCHED) if op.ok]
    wrong: list[str] = []
    looked_at = left_out = 0
    until: dict[str | None, int] = {}
    for op in told:
        said = {member.name: member.version for member in op.members}
        if op.key == CHANGES:
            until[op.node] = int(said["to"])
            looked_at += int(str(op.value))
            if (missing := int(said["to"]) - int(said["after"]) - int(str(op.value))) != 0:
                wrong.append(f"{op.node} did not report {missing} of the changes after {said['after']} until {said['to']}")
        elif op.key in (KV, BROKERS):
            held = _held(story, op, until.get(op.node))
            if held is None:
                left_out += 1
                continue
            for name, version in said.items():
                if version != (f"={held[name]}" if name in held else ""):
                    what = f"with {version[1:]}" if version else "as removed"
                    wrong.append(f"at the end {op.node} has {name} otherwise than its last report, which has it {what}")
    compared = any(op.key != CHANGES for op in told) and left_out < sum(op.key != CHANGES for op in told)
    exempt = {"tables that were not seen at the revision of the last event": left_out}
    return result(REPORTED, Promise.BOTH, looked_at if compared else 0, wrong, exempt, due=bool(told))


def _held(story: Story, op: Op, revision: int | None) -> Mapping[str, str] | None:
    """What the node had at this revision. None: nobody looked at this revision."""
    for look in reversed(story.observations):
        if (look.node, look.key, look.revision) == (op.node, op.key, revision) and look.answered:
            return dict(look.members or ())
    return None
