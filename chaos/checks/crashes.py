"""Checks that no node ended unless the run ended it. A crash is a finding even if no client noticed it."""

from replicated_namesrv.chaos.checks.story import CheckResult, Promise, Story
from replicated_namesrv.chaos.records import CRASH, KILLED, FaultRecord
from replicated_namesrv.verify import Verdict

CRASHES = "nodes keep running"


def check_crashes(story: Story) -> CheckResult:
    """No node ends by itself. If something outside the run ended a node (SIGKILL, SIGTERM), the verdict is unknown."""
    ended = [fault for fault in story.trace.records if isinstance(fault, FaultRecord) and fault.name.startswith((CRASH, KILLED))]
    told = tuple(f"{story.ms(one.time_ns)}: {', '.join(one.nodes)} ended by itself, {one.name}; see its log" for one in ended)
    crashed = sum(fault.name.startswith(CRASH) for fault in ended)
    verdict = Verdict.VIOLATED if crashed else Verdict.UNKNOWN if ended else Verdict.VALID
    return CheckResult(CRASHES, Promise.BOTH, verdict, len(story.nodes), told, crashed)
