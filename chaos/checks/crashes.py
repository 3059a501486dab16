"""Checks that no node ended unless the run ended it or caused its end. A crash is a finding even if no client noticed it.

The fault ``wrong-state`` causes one end: that of its node, because its digest differs from that of a majority. Nodes compare
digests only when they have applied the same entries. So if this node does not end, the verdict is unknown.
"""

from collections.abc import Iterator, Sequence

from replicated_namesrv.chaos.checks.story import CheckResult, Promise, Story
from replicated_namesrv.chaos.process_cluster import DIGEST_MISMATCH
from replicated_namesrv.chaos.records import CRASH, KILLED, FaultRecord
from replicated_namesrv.chaos.scenario import FaultKind
from replicated_namesrv.verify import Verdict

CRASHES = "nodes keep running"
CAUSED = "ends that the fault wrong-state causes"


def check_crashes(story: Story) -> CheckResult:
    """No node ends by itself, except one with a wrong state. If something outside the run ended a node (SIGKILL, SIGTERM), the
    verdict is unknown."""
    faults = [fault for fault in story.trace.records if isinstance(fault, FaultRecord)]
    every = [fault for fault in faults if fault.name.startswith((CRASH, KILLED))]
    caused = [end for end in every if any(_causes(fault, end) for fault in faults)]
    ended = [end for end in every if end not in caused]
    told = tuple(f"{story.ms(one.time_ns)}: {', '.join(one.nodes)} ended by itself, {one.name}; see its log" for one in ended)
    crashed = sum(fault.name.startswith(CRASH) for fault in ended)
    left_out = {CAUSED: len(caused)} if caused else {}
    if not ended and (survived := tuple(_survived(story, faults, caused))):
        return CheckResult(CRASHES, Promise.BOTH, Verdict.UNKNOWN, len(story.nodes), survived, 0, left_out)
    verdict = Verdict.VIOLATED if crashed else Verdict.UNKNOWN if ended else Verdict.VALID
    return CheckResult(CRASHES, Promise.BOTH, verdict, len(story.nodes), told, crashed, left_out)


def _causes(fault: FaultRecord, end: FaultRecord) -> bool:
    """Whether ``fault`` is the beginning of a wrong state of the node that ended because of it."""
    is_wrong = fault.name == FaultKind.WRONG_STATE and fault.edge == "start"
    is_its_end = (fault.fault, fault.nodes) == (end.fault, end.nodes) and fault.time_ns <= end.time_ns
    return is_wrong and is_its_end and end.name == f"{CRASH}: {DIGEST_MISMATCH}"


def _survived(story: Story, faults: Sequence[FaultRecord], caused: Sequence[FaultRecord]) -> Iterator[str]:
    """The nodes that ran with a wrong state until the fault ended."""
    found = {end.fault for end in caused}
    for end in faults if story.mode == "cp" else ():
        if end.name == FaultKind.WRONG_STATE and end.edge == "end" and end.fault not in found:
            yield f"{story.ms(end.began_ns)}: {', '.join(end.nodes)} still ran with a wrong state"
