"""Whether nodes ended that nothing in the run had ended: a name server that crashes is a finding, whatever clients saw of it."""

from replicated_namesrv.chaos.checks.story import CheckResult, Promise, Story
from replicated_namesrv.chaos.records import CRASH, KILLED, FaultRecord
from replicated_namesrv.verify import Verdict

CRASHES = "nodes keep running"


def check_crashes(story: Story) -> CheckResult:
    """No node ends by itself. One that somebody else ended (SIGKILL, SIGTERM) proves nothing, and nor does its run."""
    ended = [fault for fault in story.trace.records if isinstance(fault, FaultRecord) and fault.name.startswith((CRASH, KILLED))]
    told = tuple(f"{story.ms(one.time_ns)}: {', '.join(one.nodes)} ended unasked, {one.name}; see its log" for one in ended)
    crashed = sum(fault.name.startswith(CRASH) for fault in ended)
    verdict = Verdict.VIOLATED if crashed else Verdict.UNKNOWN if ended else Verdict.VALID
    return CheckResult(CRASHES, Promise.BOTH, verdict, len(story.nodes), told, crashed)
