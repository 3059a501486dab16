"""Finds the problems of a node from the statuses of all nodes. Each is one sentence with a remedy. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

LAG_ENTRIES = 1_000
"""A follower that lags by more entries than this is reported as a problem."""
LOOP_LAG_MS = 500
QUOTA_SHARE = 0.9
REFUSED_REMEDY = "If it was removed, stop it or add it again (namesrv members add). Otherwise correct what the peer names."


class NodeProblem(NamedTuple):
    """One problem. ``level``: "bad" if the node or cluster does not work, "warn" if it may soon stop working."""

    level: str
    problem: str
    remedy: str


@dataclass(frozen=True, slots=True)
class NodeView:
    """What this node knows about one of the nodes, itself included. ``status`` None: the node has never answered."""

    name: str
    address: str
    status: dict[str, Any] | None
    error: str | None = None
    """Why the node does not answer now; None: it answers."""
    http_status: int | None = None
    runs: bool = False
    """Whether messages over Raft prove that the node runs, although it does not answer."""
    silent_ms: int | None = None
    """How long nothing has arrived over the node's open Raft connection, if that is too long. Otherwise, and in AP: None."""


def findings(view: NodeView) -> list[NodeProblem]:
    """The problems of one node, the worst first."""
    if view.error is not None:
        return [_unanswered(view)]
    status = view.status
    return [] if status is None else [*_service(status), *_silence(view), *_resources(status)]


def _unanswered(view: NodeView) -> NodeProblem:
    problem = f"{view.name} does not answer at {view.address}: {view.error}."
    if view.http_status in (401, 403):
        return NodeProblem("warn", problem, "Give all nodes the same token in adminTokenFile, and enter it here.")
    if view.runs:
        remedy = "It sends messages over Raft, so it runs: set its adminListen to an address that this node reaches."
        return NodeProblem("warn", problem, remedy)
    return NodeProblem("bad", problem, "Check that its process runs and that this node reaches its address; read its log.")


def _service(status: dict[str, Any]) -> Iterable[NodeProblem]:
    replication = status.get("replication") or {}
    if replication.get("role") == "removed":
        remedy = "Stop its process, or add it again (namesrv members add)."
        yield NodeProblem("bad", "It was removed from the cluster and does not serve.", remedy)
    elif refusal := refusal_by_peers(status):
        yield NodeProblem("bad", f"It does not serve: {refusal}.", REFUSED_REMEDY)
    elif (problem := (replication.get("raft") or {}).get("problem")) or replication.get("fenced"):
        if problem:  # first: it may be the reason of the fence
            yield NodeProblem(
                "bad", f"{str(problem)[:1].upper()}{str(problem)[1:]}.", "See docs/recovery.md and the log of the node."
            )
        if replication.get("fenced"):
            yield NodeProblem(
                "bad",
                "It is fenced: it reaches no leader that has a majority, so brokers and clients use other nodes.",
                "Start the nodes that do not answer, or restore the network between the nodes.",
            )
    elif status.get("drained"):
        yield NodeProblem("warn", "It is drained, so brokers and clients use other nodes.", "Let it serve again, or restart it.")
    elif not status["ready"]:
        layer = next((layer for layer in status.get("layers", ()) if not layer["ok"]), None)
        failed = f"{layer['name']}: {layer['problem']}" if layer else status.get("failedLayer")
        yield NodeProblem("bad", f"It is not ready ({failed}).", "Wait if it is starting; otherwise read its log.")
    lag = replication.get("commitIndex", 0) - replication.get("appliedIndex", 0)
    if lag > LAG_ENTRIES:
        yield NodeProblem(
            "warn", f"It is {lag} entries behind.", "Check its CPU and disk; it catches up by itself when they suffice."
        )


def even_size_warning(members: Iterable[Mapping[str, Any]]) -> str | None:
    """A warning if the cluster has, or will have once its learners vote, an even number of voters. ``members``: the rows of
    ``/v1/members``."""
    voters = sum(row["role"] in ("leader", "voter", "learner") for row in members)
    if voters % 2:
        return None
    return f"{voters} voters tolerate no more failures than {voters - 1}, and need a larger majority; add or remove one more"


def refusal_by_peers(status: dict[str, Any]) -> str | None:
    """Why a peer refuses a node that does not serve: for example, the node was removed while it did not run. None: it serves, or
    no peer has refused it."""
    replication = status.get("replication") or {}
    if status["ready"] and not replication.get("fenced"):
        return None
    peers = ((replication.get("raft") or {}).get("transport") or {}).get("peers") or {}
    return next((peer["refusal"] for peer in peers.values() if peer.get("refusal")), None)  # versions before 0.2.0 lack it


def _silence(view: NodeView) -> Iterable[NodeProblem]:
    if view.silent_ms is not None:
        yield NodeProblem(
            "warn",
            f"Nothing has arrived from it over Raft for {view.silent_ms // 1000} s, although its connection is open.",
            "Restore the network from it to the node of this page.",
        )


def _resources(status: dict[str, Any]) -> Iterable[NodeProblem]:
    if warning := status.get("diskWarning"):
        yield NodeProblem("warn", f"{warning[:1].upper()}{warning[1:]}.", "Make room on the disk of dataDir.")
    for quota in status.get("quotas", ()):
        if quota["limit"] and quota["used"] > QUOTA_SHARE * quota["limit"]:
            share = round(100 * quota["used"] / quota["limit"])
            yield NodeProblem(
                "warn", f"{share} % of {quota['name']} is used.", "Remove what is not needed, or raise the setting."
            )
    if status.get("loopLagRecentMaxMs", 0) > LOOP_LAG_MS:
        yield NodeProblem(
            "warn",
            f"Its event loop was delayed by {status['loopLagRecentMaxMs']:.0f} ms.",
            "Give the machine more CPU, or move other programs to another machine.",
        )


def digests_equal(views: Sequence[NodeView]) -> bool | None:
    """Whether nodes at the same log position have the same state; None if no two nodes can be compared. Digests of different
    versions are not compared: 0.1.0 computes them in another way."""
    by_index: dict[tuple[int, str | None], list[str]] = {}
    for view in views:
        status = view.status or {}
        replication = status.get("replication") or {}
        if view.error is None and replication.get("digest"):
            by_index.setdefault((replication["appliedIndex"], status.get("version")), []).append(replication["digest"])
    comparable = [digests for digests in by_index.values() if len(digests) > 1]
    if any(len(set(digests)) > 1 for digests in comparable):
        return False
    return True if comparable else None


def leader_of(views: Sequence[NodeView]) -> tuple[str | None, int | None]:
    """(leader, newest term) according to the nodes that answer. A node that says it leads an older term does not count.

    A node that was asked for the first time and has not answered yet leads if the others say so.
    """
    standings = [
        (view.status["replication"], view.name)
        for view in views
        if view.error is None and view.status is not None and view.status.get("replication")
    ]
    if not standings:
        return None, None
    term = max(standing["term"] for standing, _ in standings)
    leads = [name for standing, name in standings if standing["term"] == term and standing["role"] == "leader"]
    if not leads:
        unknown = {view.name for view in views if view.status is None and view.error is None}
        leads = [
            standing["leader"] for standing, _ in standings if standing["term"] == term and standing.get("leader") in unknown
        ]
    return (leads[0] if leads else None), term
