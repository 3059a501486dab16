"""The checkers: they turn a trace into verdicts. ``judge`` runs them all."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from replicated_namesrv.chaos.checks.acting_masters import check_acting, check_notifications
from replicated_namesrv.chaos.checks.administration import check_write_perm
from replicated_namesrv.chaos.checks.agreeing_answers import check_agreement
from replicated_namesrv.chaos.checks.crashes import CRASHES, check_crashes
from replicated_namesrv.chaos.checks.durability import check_durability, has_slow_disks
from replicated_namesrv.chaos.checks.fence import check_fence
from replicated_namesrv.chaos.checks.figures import Figures, figures
from replicated_namesrv.chaos.checks.final import (
    check_final_kv,
    check_final_registrations,
    check_ghosts,
    check_live_kept,
    check_resurrection,
)
from replicated_namesrv.chaos.checks.linear import KV, check_kv, check_registration
from replicated_namesrv.chaos.checks.listed_brokers import check_lists
from replicated_namesrv.chaos.checks.node_promises import check_node_kv, check_node_orders, check_node_registrations
from replicated_namesrv.chaos.checks.operator_actions import check_operator
from replicated_namesrv.chaos.checks.order import check_leaders, check_revisions, check_same_state, check_sessions
from replicated_namesrv.chaos.checks.quiet_requests import check_quiet_requests
from replicated_namesrv.chaos.checks.removal_reports import check_removal_reports
from replicated_namesrv.chaos.checks.reported_changes import check_reports
from replicated_namesrv.chaos.checks.role_switches import check_roles
from replicated_namesrv.chaos.checks.settings_changes import check_settings
from replicated_namesrv.chaos.checks.story import CheckResult, Promise, Story, unjudged
from replicated_namesrv.chaos.checks.takeovers import check_takeovers
from replicated_namesrv.chaos.checks.timing import check_availability, check_convergence, check_enough
from replicated_namesrv.chaos.checks.whole_answers import check_answers, check_versions
from replicated_namesrv.verify import Verdict

PREFIX_SAFE_CHECKS = (KV, "session guarantees", "revisions never go back", "one state for one revision")
"""Checks that later records cannot turn from violated into valid. So they also judge an interrupted run."""

CHECKS: tuple[Callable[[Story], CheckResult], ...] = (
    check_enough,
    check_crashes,
    check_kv,
    check_registration,
    check_final_kv,
    check_final_registrations,
    check_resurrection,
    check_write_perm,
    check_roles,
    check_takeovers,
    check_acting,
    check_notifications,
    check_agreement,
    check_lists,
    check_answers,
    check_versions,
    check_live_kept,
    check_ghosts,
    check_removal_reports,
    check_reports,
    check_settings,
    check_fence,
    check_operator,
    check_node_kv,
    check_node_registrations,
    check_node_orders,
    check_sessions,
    check_revisions,
    check_same_state,
    check_leaders,
    check_durability,
    check_convergence,
    check_availability,
    check_quiet_requests,
)
OF_INDEPENDENT_NODES = (check_node_kv, check_node_registrations, check_node_orders)
"""Checks that do not apply to a replicated cluster, because its nodes answer what other nodes acknowledged."""


@dataclass(frozen=True, slots=True)
class RunJudgement:
    """All verdicts on one run."""

    verdict: Verdict
    """VIOLATED if one promised check is violated, else UNKNOWN if one is unknown."""
    judged_as: str
    checks: tuple[CheckResult, ...]
    figures: Figures
    complete: bool
    """Whether the run ended normally or by a node's crash. If not, another run may give more verdicts."""

    def promised(self, check: CheckResult) -> bool:
        """Whether this check tests a promise of the mode by whose promises the run is judged."""
        return _is_promised(check, self.judged_as)

    def as_json(self) -> dict[str, Any]:
        """Content of verdict.json, without the run's name and parameters."""
        return {
            "verdict": self.verdict.value,
            "judged_as": self.judged_as,
            "checks": [
                {
                    "check": check.name,
                    "promised": self.promised(check),
                    "verdict": check.verdict.value,
                    "due": check.due,
                    "looked_at": check.looked_at,
                    "left_out": dict(check.left_out),
                    "wrong": check.count,
                    "findings": list(check.findings),
                }
                for check in self.checks
            ],
            "figures": self.figures.as_json(),
        }


def _is_promised(check: CheckResult, judged_as: str) -> bool:
    return check.promise is Promise.BOTH or check.promise.value == judged_as


def judge(story: Story, judged_as: str) -> RunJudgement:
    """Run all checkers. ``judged_as``, ap or cp, selects the promises that count.

    For an interrupted run only a crash and PREFIX_SAFE_CHECKS count, because the harness itself stopped the clients and brokers.
    If lines in the middle of the trace are corrupt, only a crash counts, because these lines may have contained anything.
    """
    left_out = [] if story.mode == "ap" else [*OF_INDEPENDENT_NODES]
    left_out += [] if story.has_pair else [check_roles]
    left_out += [] if story.has_heirs else [check_takeovers]
    left_out += [] if story.has_deputy else [check_acting, check_notifications]
    left_out += [] if story.has_zones else [check_agreement, check_lists]
    left_out += [] if story.has_reports else [check_reports]
    left_out += [] if has_slow_disks(story) else [check_durability]
    left_out += [] if story.has_sample else [check_answers, check_versions]
    left_out += [] if story.has_operator else [check_operator]
    left_out += [] if story.has_mqadmin else [check_write_perm, check_node_orders]
    left_out += [] if story.sets_settings else [check_settings]
    checks = tuple(check(story) for check in CHECKS if check not in left_out)
    if not story.trace.complete:
        why = "the run was interrupted, or its trace has corrupt lines"
        held = (CRASHES,) if story.trace.corrupt else (CRASHES, *PREFIX_SAFE_CHECKS)
        checks = tuple(found if found.name in held else unjudged(found, why) for found in checks)
    counted = [check for check in checks if _is_promised(check, judged_as) and not check.idle]
    verdicts = {check.verdict for check in counted}
    worst = next((verdict for verdict in (Verdict.VIOLATED, Verdict.UNKNOWN) if verdict in verdicts), Verdict.VALID)
    crashed = any(found.name == CRASHES and found.verdict is Verdict.VIOLATED for found in checks)
    return RunJudgement(worst, judged_as, checks, figures(story), story.trace.complete or crashed)
