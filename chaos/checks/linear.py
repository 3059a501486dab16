"""Checks that KV entries and broker registrations are linearizable, with the checker of ``replicated_namesrv.verify``.

``registration_history`` converts registrations to a history.
"""

from collections.abc import Mapping

from replicated_namesrv.chaos.checks.real_time import kv_reads
from replicated_namesrv.chaos.checks.registration_history import operation, registrations
from replicated_namesrv.chaos.checks.story import NOTHING, CheckResult, Promise, Story
from replicated_namesrv.verify import HistoryVerdict, Operation, SearchLimits, Verdict, check_history

KV, REGISTRATION = "linearizable KV", "linearizable registration"
LIMITS = SearchLimits(steps=1_500_000, configurations=100_000)


def check_kv(story: Story) -> CheckResult:
    """Check every key of the KV config."""
    return _judge(KV, check_history(kv_history(story), LIMITS), {})


def check_registration(story: Story) -> CheckResult:
    """Check every topic."""
    history, left_out = registrations(story)
    return _judge(REGISTRATION, check_history(history, LIMITS), left_out)


def _judge(name: str, verdict: HistoryVerdict, left_out: Mapping[str, int]) -> CheckResult:
    bad = [key.describe() for key in verdict.keys if key.verdict is not Verdict.VALID]
    found = verdict.verdict if verdict.operations else Verdict.UNKNOWN
    told = tuple(bad) if verdict.operations else (NOTHING,)
    return CheckResult(name, Promise.CP, found, verdict.operations, told, len(bad), left_out)


def kv_history(story: Story) -> list[Operation]:
    """The puts, reads and deletes as a history for the checker."""
    ops = [*story.of_kind("put", "delete"), *(read for read in kv_reads(story) if read.level is None)]
    return [operation(op, op.kind, op.key, op.value) for op in ops]
