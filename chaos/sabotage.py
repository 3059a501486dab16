"""Sabotages: one-line defects of the product that the chaos suite has to find.

    python -m replicated_namesrv.chaos.sabotage                       all of them, each by the smoke suite
    python -m replicated_namesrv.chaos.sabotage never-fences          one of them
    python -m replicated_namesrv.chaos.sabotage --suite full --all    every scenario, also after one has found it

Each sabotage is made in a copy of the package. The nodes of a run are started from the copy; the harness and the checks are those
of this package. The scenario that is expected to find it runs first. A test keeps the table applicable to the source.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import replicated_namesrv
from replicated_namesrv.chaos.run import RunPlan
from replicated_namesrv.chaos.suite import Done, execute, full_plans, smoke_plans
from replicated_namesrv.child_process import ProcessError
from replicated_namesrv.errors import SettingError
from replicated_namesrv.verify import Verdict

PACKAGE = Path(replicated_namesrv.__file__).parent


class Sabotage(NamedTuple):
    """One defect: the only line ``old`` of ``file`` (a path in the package) is replaced by ``new``, without its indentation."""

    name: str
    mode: str
    file: str
    old: str
    new: str
    expected: str
    """The scenario of the suite that is most likely to find it."""


_CP, _AP = "cp", "ap"
_ISOLATE, _RESTART = "isolate-leader", "rocketmq-5322-empty-after-restart"
_LEASES, _WIPED, _FIRST = "etcd-15247-leases-gone", "rocketmq-11043-live-broker-wiped", "nacos-12160-empty-first-sync"
_BARRIER, _SILENCE = "replication/read_barrier.py", "replication/liveness/silence.py"
_DEPARTURES, _MACHINE = "replication/liveness/departures.py", "replication/route_machine.py"
_NODE, _CALLS, _AP_NODE = "replication/replicated_node.py", "replication/broker_calls.py", "compat/independent_node.py"
_REGISTRATION, _REMOVAL, _KV = "routes/registration.py", "routes/removal.py", "routes/kv.py"
_LOOKUPS, _LIVE = "routes/lookups.py", "compat/live_table.py"

SABOTAGES: tuple[Sabotage, ...] = (
    # the fence and reads
    Sabotage(
        "never-fences",
        _CP,
        _BARRIER,
        "self._fence()  # F4",
        "pass",
        _ISOLATE,
    ),
    Sabotage(
        "reads-stale",
        _CP,
        _BARRIER,
        "wanted = level or self._default",
        "wanted = STALE",
        _ISOLATE,
    ),
    Sabotage(
        "answers-looked-up-before-the-index",
        _CP,
        "server/confirmed.py",
        "if batch.revision != self._state.revision or self._answers.is_off:",
        "if self._answers.is_off:",
        _ISOLATE,
    ),
    Sabotage(
        "reads-ask-no-majority",
        _CP,
        "raft/read_index.py",
        "if self._context.quorum == 1 or not self._defences.read_index:",
        "if True:",
        _ISOLATE,
    ),
    # expiry and connections
    Sabotage(
        "never-expires",
        _CP,
        _SILENCE,
        "share = min(SHARES, int((now_ms - watched.since_ms) / lease.third_ms))",
        "share = 0",
        _WIPED,
    ),
    Sabotage(
        "expires-four-times-too-late",
        _CP,
        _SILENCE,
        "return max(1, self.timeout_ms) / SHARES",
        "return 4 * self.timeout_ms / SHARES",
        _WIPED,
    ),
    Sabotage(
        "expires-eight-times-too-early",
        _CP,
        _SILENCE,
        "return max(1, self.timeout_ms) / SHARES",
        "return max(1, self.timeout_ms) / SHARES / 8",
        _WIPED,
    ),
    Sabotage(
        "connection-loss-never-removes",
        _CP,
        _DEPARTURES,
        "moment_ms = word.told_ms + self._grace_ms",
        "moment_ms = math.inf",
        _WIPED,
    ),
    Sabotage(
        "one-lost-connection-removes",
        _CP,
        _DEPARTURES,
        "moment_ms = math.inf",
        "moment_ms = -math.inf",
        _WIPED,
    ),
    Sabotage(
        "own-closing-counts-as-leaving",
        _CP,
        _CALLS,
        "by_peer = reason is not CloseReason.OURS and not self._is_leaving()",
        "by_peer = True",
        _ISOLATE,
    ),
    Sabotage(
        "new-leader-removes-all",
        _CP,
        "replication/liveness/leader_role.py",
        "self.silence = Silence((lease for lease in leases if lease is not None), self._now_ms())",
        "self.silence = Silence((lease for lease in leases if lease is not None), self._now_ms() - 1e9)",
        _LEASES,
    ),
    Sabotage(
        "renewals-stay-at-the-follower",
        _CP,
        _CALLS,
        "if await self._leader.renew(key, result.epoch, generation) == ACCEPTED:",
        "if True:",
        _WIPED,
    ),
    Sabotage(
        "expiry-overtakes-registration",
        _CP,
        _MACHINE,
        "due = tuple(r for r in command.removals if self._last_sign(r) <= serial)",
        "due = command.removals",
        _LEASES,
    ),
    # late copies
    Sabotage(
        "late-copies-replace-newer",
        _CP,
        _MACHINE,
        "return is_older(command.data_version, held.data_version)",
        "return False",
        _ISOLATE,
    ),
    Sabotage(
        "late-copies-revive",
        _CP,
        _MACHINE,
        "if before is None and self._unregistered.get(key, -1) > received:",
        "if False:",
        _ISOLATE,
    ),
    # the state
    Sabotage(
        "puts-acknowledged-unproposed",
        _CP,
        _NODE,
        "return within(self.quotas, command, lambda: self._tasks.keep(self._propose_plain(command)))",
        "return (self._tasks.keep(self._propose_plain(command)), Result())[1]",
        _ISOLATE,
    ),
    Sabotage(
        "puts-differ-by-node",
        _CP,
        _KV,
        "tables.put_kv(command.namespace, {command.key: command.value})",
        "tables.put_kv(command.namespace, {command.key: command.value} if hash(command.value) % 4 else {})",
        _ISOLATE,
    ),
    Sabotage(
        "deletes-ignored",
        _CP,
        _KV,
        "tables.delete_kv(command.namespace, command.key)",
        "pass",
        _ISOLATE,
    ),
    Sabotage(
        "permission-ignored",
        _CP,
        _REMOVAL,
        "_change_perm(tables, group, command.writable)",
        "pass",
        _ISOLATE,
    ),
    Sabotage(
        "topic-deletion-ignored",
        _CP,
        _REMOVAL,
        "tables.drop_topic(groups, command.topic)",
        "pass",
        _ISOLATE,
    ),
    Sabotage(
        "unregistering-ignored",
        _CP,
        _REMOVAL,
        "tables.end_registration(member)",
        "pass",
        _ISOLATE,
    ),
    Sabotage(
        "topic-changes-ignored",
        _CP,
        _REGISTRATION,
        "tables.put_topics(group, differing)",
        "pass",
        _ISOLATE,
    ),
    Sabotage(
        "route-lacks-a-broker",
        _CP,
        _LOOKUPS,
        "for group in groups:",
        "for group in groups[:-1] or groups:",
        _ISOLATE,
    ),
    Sabotage(
        "digests-differ",
        _CP,
        "routes/state.py",
        "self._digested = tables.revision, digest(tables)",
        "self._digested = tables.revision, __import__('os').urandom(16)",
        _ISOLATE,
    ),
    # the log
    Sabotage(
        "forwards-applied-twice",
        _CP,
        "raft/proposals.py",
        "machine_apply, at_most_once = self._state_machine.apply, self._defences.at_most_once",
        "machine_apply, at_most_once = self._state_machine.apply, False",
        "trickle",
    ),
    Sabotage(
        "acknowledges-unsynced-entries",
        _CP,
        "raft/appending.py",
        "if not self._defences.durable_acks or (match <= log.durable_index and log.vote_number <= log.durable_number):",
        "if True or (match <= log.durable_index and log.vote_number <= log.durable_number):",
        _RESTART,
    ),
    # independent nodes
    Sabotage(
        "drops-all-each-four-seconds",
        _AP,
        _LIVE,
        "if attachment.last_update_ms + attachment.timeout_ms < now_ms:",
        "if attachment.last_update_ms + attachment.timeout_ms < now_ms or now_ms % 4000 < 500:",
        _FIRST,
    ),
    Sabotage(
        "renewals-do-not-count",
        _AP,
        _LIVE,
        "present.last_update_ms, present.timeout_ms = now_ms, timeout_ms",
        "pass",
        _FIRST,
    ),
    Sabotage(
        "expires-eight-times-too-early-alone",
        _AP,
        _AP_NODE,
        "self.live.attach(key, connection, self._monotonic_ms(), timeout_ms)",
        "self.live.attach(key, connection, self._monotonic_ms(), timeout_ms // 8)",
        _FIRST,
    ),
    Sabotage(
        "expires-three-times-too-late-alone",
        _AP,
        _AP_NODE,
        "self.live.attach(key, connection, self._monotonic_ms(), timeout_ms)",
        "self.live.attach(key, connection, self._monotonic_ms(), timeout_ms * 3)",
        _FIRST,
    ),
    Sabotage(
        "never-expires-alone",
        _AP,
        _AP_NODE,
        "silent = list(islice(self.live.silent_since(now_ms), REMOVALS_PER_TURN))",
        "silent = []",
        _FIRST,
    ),
    Sabotage(
        "connection-loss-never-removes-alone",
        _AP,
        _AP_NODE,
        "brokers = self.live.brokers_of(connection)",
        "brokers = []",
        _FIRST,
    ),
    Sabotage(
        "unregistering-ignored-alone",
        _AP,
        _REMOVAL,
        "tables.end_registration(member)",
        "pass",
        _FIRST,
    ),
    Sabotage(
        "topic-changes-ignored-alone",
        _AP,
        _REGISTRATION,
        "tables.put_topics(group, differing)",
        "pass",
        _FIRST,
    ),
    Sabotage(
        "quarter-of-puts-lost",
        _AP,
        _KV,
        "tables.put_kv(command.namespace, {command.key: command.value})",
        "tables.put_kv(command.namespace, {command.key: command.value} if hash(command.value) % 4 else {})",
        _FIRST,
    ),
    Sabotage(
        "kv-deletes-ignored-alone",
        _AP,
        _KV,
        "tables.delete_kv(command.namespace, command.key)",
        "pass",
        _FIRST,
    ),
    Sabotage(
        "kv-file-not-written",
        _AP,
        "compat/kv_writer.py",
        "self._ballast.fill(write_kv_file(self._path, table, self._ballast) + BALLAST_MARGIN_BYTES)",
        "pass",
        _RESTART,
    ),
    Sabotage(
        "kv-file-not-loaded",
        _AP,
        _AP_NODE,
        "self._apply(PutKVConfig(namespace, key, value))",
        "pass",
        _RESTART,
    ),
    Sabotage(
        "deletes-not-in-the-kv-file",
        _AP,
        "compat/kv_writer.py",
        "table.get(command.namespace, {}).pop(command.key, None)",
        "pass",
        _RESTART,
    ),
    Sabotage(
        "route-lacks-a-broker-alone",
        _AP,
        _LOOKUPS,
        "for group in groups:",
        "for group in groups[:-1] or groups:",
        _FIRST,
    ),
)


def sabotaged(text: str, sabotage: Sabotage) -> str:
    """The source with the defect. Raises SettingError if it does not apply."""
    lines = text.splitlines(keepends=True)
    found = [number for number, line in enumerate(lines) if line.strip() == sabotage.old]
    if len(found) != 1:
        raise SettingError(
            f"sabotage {sabotage.name}: its line occurs {len(found)} times in {sabotage.file}, once is expected; "
            "correct the row in chaos/sabotage.py"
        )
    lines[found[0]] = lines[found[0]].replace(sabotage.old, sabotage.new)
    return "".join(lines)


def copy_with(sabotage: Sabotage, folder: Path) -> tuple[str, ...]:
    """Copy the package to ``folder`` with the defect. Returns the command that runs a node of the copy."""
    copy = folder / PACKAGE.name
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "scenarios"))
    path = copy / sabotage.file
    path.write_text(sabotaged(path.read_text(encoding="utf-8"), sabotage), encoding="utf-8")
    return "env", f"PYTHONPATH={folder}", sys.executable, "-P", "-m", PACKAGE.name, "serve"


def plans(sabotage: Sabotage, suite: str) -> list[RunPlan]:
    """The runs of a suite in the mode of the sabotage, the expected scenario first."""
    every = smoke_plans() if suite == "smoke" else full_plans((3,))
    mine = [plan for plan in every if plan.mode == sabotage.mode]
    return sorted(mine, key=lambda plan: plan.scenario.name != sabotage.expected)


class SabotageOutcome(NamedTuple):
    """What one run said of a sabotage."""

    scenario: str
    verdict: str
    found: list[str]
    """Promised checks that are violated."""
    suspected: list[str]
    """Promised checks with findings that other load of the machine made unknown."""


def outcome_of(done: Done) -> SabotageOutcome:
    """By the promises of the mode."""
    judgement = done.judgement
    promised = [check for check in judgement.checks if judgement.promised(check)]
    found = [check.name for check in promised if check.verdict is Verdict.VIOLATED]
    suspected = [check.name for check in promised if check.verdict is Verdict.UNKNOWN and len(check.findings) > 1]
    return SabotageOutcome(done.verdict["scenario"], judgement.verdict.value, found, suspected)


def tried(sabotage: Sabotage, suite: str, runs: Path, *, every: bool) -> Iterator[SabotageOutcome]:
    """The runs of a sabotage. Without ``every`` until one has found it; a suspicion may be due to the machine alone."""
    with tempfile.TemporaryDirectory(prefix="sabotage-") as folder:
        command = copy_with(sabotage, Path(folder))
        for plan in plans(sabotage, suite):
            sabotaged_plan = replace(plan, suite=f"sabotage-{sabotage.name}", node_command=command)
            try:
                outcome = outcome_of(execute(sabotaged_plan, runs, lambda line: None))
            except ProcessError:  # its nodes never become ready
                outcome = SabotageOutcome(plan.scenario.name, "not started", ["nodes do not start"], [])
            yield outcome
            if outcome.found and not every:
                return


def told(outcomes: Sequence[SabotageOutcome]) -> str:
    """The scenarios and checks that found it; with a question mark those that suspected it."""
    parts = [
        f"{one.scenario}: {', '.join([*one.found, *(f'{check}?' for check in one.suspected)])}"
        for one in outcomes
        if one.found or one.suspected
    ]
    return "; ".join(parts) or f"nothing ({', '.join(f'{one.scenario} {one.verdict}' for one in outcomes)})"


def main(arguments: Sequence[str] | None = None) -> int:
    """0: all were found. 1: at least one was not."""
    parser = argparse.ArgumentParser(prog="python -m replicated_namesrv.chaos.sabotage", description="Which defects are found.")
    parser.add_argument("name", nargs="*", help="a sabotage (default: all)")
    parser.add_argument("--suite", choices=("smoke", "full"), default="smoke")
    parser.add_argument("--all", action="store_true", help="run every scenario, also after one has found it")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="where runs go (default runs)")
    given = parser.parse_args(arguments)
    known = {sabotage.name: sabotage for sabotage in SABOTAGES}
    if unknown := [name for name in given.name if name not in known]:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
    missed = 0
    print("| sabotage | mode | runs | found by (?: unknown, because the machine was busy) |\n|---|---|---|---|", flush=True)
    for sabotage in [known[name] for name in given.name] or SABOTAGES:
        outcomes = list(tried(sabotage, given.suite, given.out, every=given.all))
        missed += not any(outcome.found for outcome in outcomes)
        print(f"| {sabotage.name} | {sabotage.mode} | {len(outcomes)} | {told(outcomes)} |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
