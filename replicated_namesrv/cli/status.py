"""``namesrv status``: shows every node of a deployment and whether the deployment is healthy.

All nodes are asked at once, because the verdict needs all of them. Two digests can be compared only if both nodes have applied
the same entries, so under load the nodes are asked several times.
"""

import argparse
import time
from typing import Any, NamedTuple

from replicated_namesrv.admin.diagnosis import REFUSED_REMEDY, refusal_by_peers
from replicated_namesrv.cli.admin import (
    BAD,
    GOOD,
    UNKNOWN,
    Admin,
    AdminRefusedError,
    add_admin_arguments,
    admin_addresses,
    admin_of,
    ask_all,
    neighbours,
)
from replicated_namesrv.cli.client import print_json, print_table
from replicated_namesrv.errors import NamesrvError, SettingError

HELP = "show every node's mode, leader, term, log, lag, quorum and digest"

VOTING = ("leader", "candidate", "follower")
"""Roles of voters. Learners, observers and removed nodes do not count for a majority."""
LOOKS, LOOK_PAUSE_S = 10, 0.1
"""Maximum number of times that the nodes are asked until two digests can be compared, and the pause in between."""

_EXAMPLES = """\
  namesrv status                                          the cluster of 'namesrv cluster' on this machine
  namesrv status -a http://10.0.0.1:9886                  the cluster of this node
  namesrv status -a '10.0.0.1:9886;10.0.0.2:9886;10.0.0.3:9886' --json
  watch -n1 namesrv status
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_admin_arguments(parser, _EXAMPLES, "0 healthy; 1 problems, listed in the last lines; 2 no node answered")


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code."""
    admin = admin_of(arguments)
    addresses, nodes = look_at_cluster(admin, admin_addresses(arguments, admin))
    for look in range(LOOKS):
        report = assess(nodes if look == 0 else look_at(admin, addresses))
        if report.facts["digestsEqual"] is not None or look == LOOKS - 1 or not report.comparable:
            break
        time.sleep(LOOK_PAUSE_S)
    if arguments.json:
        print_json(report.facts)
    else:
        _print(report.facts)
    if not any(node["answers"] for node in report.facts["nodes"]):
        return UNKNOWN
    return BAD if report.facts["problems"] else GOOD


def look_at_cluster(admin: Admin, addresses: tuple[str, ...]) -> tuple[tuple[str, ...], list[dict[str, Any]]]:
    """The addresses that were asked, and the status of each node. If ``addresses`` contains only one node, and this node belongs
    to a CP cluster, all nodes that it names are asked, because another one may lead."""
    answers = _ask(admin, addresses)
    nodes = _rows(addresses, answers)
    if len(nodes) == 1 and len(nodes[0].get("members") or ()) > 1:
        addresses = neighbours(addresses[0], answers[0])
        if others := addresses[1:]:
            nodes += _rows(others, _ask(admin, others))
    return addresses, nodes


def look_at(admin: Admin, addresses: tuple[str, ...]) -> list[dict[str, Any]]:
    """The status of each node, one row each."""
    return _rows(addresses, _ask(admin, addresses))


def of_one_cluster(nodes: list[dict[str, Any]], given: tuple[str, ...]) -> list[dict[str, Any]]:
    """The nodes of the cluster that the addresses ``given`` belong to. After 'namesrv recover --force-new-cluster', old nodes can
    still name a node of the new cluster. Raises SettingError if ``given`` has nodes of several clusters."""
    clusters = _clusters([node for node in nodes if node["admin"] in given])
    if len(clusters) > 1:
        raise SettingError(
            f"these nodes belong to different clusters ({_listed(clusters)}); give with --admin those of one cluster"
        )
    others = {name for name in _clusters(nodes) if clusters and name not in clusters}
    return [node for node in nodes if node.get("clusterId") not in others]


def _clusters(nodes: list[dict[str, Any]]) -> dict[str, list[str]]:
    """The names of the nodes that answer, by the id of their cluster. A node that still reads its disk has none."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        if node.get("clusterId") is not None:
            found.setdefault(node["clusterId"], []).append(node["nodeId"])
    return dict(sorted(found.items()))


def _listed(clusters: dict[str, list[str]]) -> str:
    return "; ".join(f"{cluster}: {', '.join(names)}" for cluster, names in clusters.items())


def _ask(admin: Admin, addresses: tuple[str, ...]) -> list[Any]:
    return ask_all(addresses, lambda address: admin.ask(address, "/v1/status"))


def _rows(addresses: tuple[str, ...], answers: list[Any]) -> list[dict[str, Any]]:
    return [_row(address, answer) for address, answer in zip(addresses, answers, strict=True)]


def _row(address: str, answer: Any) -> dict[str, Any]:
    if isinstance(answer, NamesrvError):
        refused = isinstance(answer, AdminRefusedError)
        return {"admin": address, "answers": False, "refused": refused, "problem": str(answer).removeprefix(f"{address}: ")}
    replication = answer["replication"] or {}
    raft = replication.get("raft", {})
    problem = raft.get("problem") or (None if answer["ready"] else f"not ready: {_failed(answer)}")
    if replication.get("role") == "removed":
        problem = "it was removed from the cluster and does not serve; stop its process, or add it again (namesrv members add)"
    elif refusal := refusal_by_peers(answer):
        problem = f"does not serve: {refusal}. {REFUSED_REMEDY}"
    elif replication.get("fenced"):
        problem = f"{raft['problem']}; fenced" if raft.get("problem") else "fenced: it reaches no leader that has a majority"
    return {
        "admin": address,
        "answers": True,
        "nodeId": answer["nodeId"],
        "mode": answer["mode"],
        "version": answer["version"],
        "clusterId": raft.get("cluster"),
        "ready": answer["ready"],
        "revision": answer["revision"],
        "role": replication.get("role"),
        "leader": replication.get("leader"),
        "term": replication.get("term"),
        "commitIndex": replication.get("commitIndex"),
        "appliedIndex": replication.get("appliedIndex"),
        "members": replication.get("members"),
        "quorum": replication.get("quorum"),
        "digest": replication.get("digest"),
        "problem": problem,
    }


def _failed(answer: dict[str, Any]) -> str:
    """The part of a node that is not ready, and why."""
    layer = next((layer for layer in answer.get("layers", ()) if not layer["ok"]), None)
    return f"{layer['name']}: {layer['problem']}" if layer else str(answer["failedLayer"])


class Report(NamedTuple):
    """The facts to print, and whether asking again may make digests comparable."""

    facts: dict[str, Any]
    comparable: bool


def assess(nodes: list[dict[str, Any]]) -> Report:
    """Assess the deployment from the nodes' rows."""
    answering = [node for node in nodes if node["answers"]]
    members = sorted({member for node in answering for member in node["members"] or ()})
    missing = sorted(set(members) - {node["nodeId"] for node in answering})
    # If all members were asked, those that are missing have the addresses that do not answer. So each node is reported once.
    silent = " or ".join(missing) if len(missing) == len(nodes) - len(answering) else ""
    problems = [f"{_name(node, silent)}: {node['problem']}" for node in nodes if node["problem"]]
    problems += [f"{name}: was not asked or did not answer" for name in missing if not silent]
    modes = sorted({node["mode"] for node in answering})
    if len(modes) > 1:
        of_nodes = ", ".join(f"{node['nodeId']} {node['mode']}" for node in answering)
        problems.append(f"nodes run in different modes: {of_nodes}")
    if len(clusters := _clusters(answering)) > 1:
        problems.append(
            f"nodes belong to different clusters ({_listed(clusters)}), so they give different answers: stop those of the wrong "
            "cluster, then correct clusterId in their settings, and start them with join and an empty disk"
        )
    facts: dict[str, Any] = {"mode": modes[0] if len(modes) == 1 else None, "leader": None, "term": None, "digestsEqual": None}
    facts["revision"] = max((node["revision"] for node in answering), default=None)
    comparable = False
    if modes == ["cp"]:
        started = [node for node in answering if node["term"] is not None]  # a node answers while it reads its disk
        comparable = bool(started) and _assess_group(facts, started, members, problems)
        if not started:
            facts |= {"members": [], "quorum": 1, "serving": 0, "mayFail": 0}
            problems.append("no node leads")
    return Report(facts | {"nodes": nodes, "problems": problems}, comparable)


def _name(node: dict[str, Any], silent: str) -> str:
    """Name of a node in a problem. ``silent``: the names of the nodes that do not answer."""
    if node["answers"]:
        return str(node["nodeId"])
    return f"{silent} at {node['admin']}" if silent else str(node["admin"])


def _assess_group(facts: dict[str, Any], answering: list[dict[str, Any]], members: list[str], problems: list[str]) -> bool:
    newest = max(answering, key=lambda node: int(node["term"]))
    leaders = [node["nodeId"] for node in answering if node["role"] == "leader" and node["term"] == newest["term"]]
    working = sum(bool(node["ready"]) for node in answering if node["role"] in VOTING)
    most_recent = max(answering, key=lambda node: (int(node["term"]), node["role"] == "leader", int(node["appliedIndex"])))
    quorum = most_recent["quorum"] or len(members) // 2 + 1  # version 0.1.0 does not report it, and has no observers
    named = newest["leader"] if newest["ready"] else None
    leads = bool(working) or quorum == 1  # an only voter that is drained leads without a majority that serves
    facts["term"], facts["leader"] = newest["term"], leaders[0] if leaders and leads else named
    facts |= {"members": members, "quorum": quorum, "serving": working, "mayFail": max(0, working - quorum)}
    commit = max(node["commitIndex"] for node in answering)
    for node in answering:
        node["lag"] = commit - node["appliedIndex"]
    if facts["leader"] is None:
        problems.append("no node leads")
    if len(leaders) > 1 and len(_clusters(answering)) < 2:
        problems.append(
            f"{' and '.join(leaders)} lead in the same term, so they are two clusters: stop the nodes of the wrong one, and "
            "start them with join and an empty disk"
        )
    comparable: dict[tuple[int, str], dict[str, str]] = {}
    for node in answering:  # versions can compute digests in different ways
        comparable.setdefault((node["appliedIndex"], node["version"]), {})[node["nodeId"]] = node["digest"]
    for (index, _), digests in comparable.items():
        if len(set(digests.values())) > 1:
            facts["digestsEqual"] = False
            problems.append(f"states differ at entry {index}: {', '.join(f'{n} {d[:12]}' for n, d in sorted(digests.items()))}")
    if facts["digestsEqual"] is None and len(comparable) == 1 and len(answering) > 1:
        facts["digestsEqual"] = True
    return len(answering) > 1


def _print(facts: dict[str, Any]) -> None:
    is_group = facts["mode"] == "cp"
    header = ("node", "admin", "mode", "ready", "revision")
    more = ("role", "term", "commit", "applied", "lag", "digest") if is_group else ()
    print_table((*header, *more), [_line(node, is_group) for node in facts["nodes"]])
    print()
    if is_group:
        leader = "no leader is known" if facts["leader"] is None else f"leader {facts['leader']}"
        print(f"{leader}, term {facts['term']}; {len(facts['members'])} nodes, quorum {facts['quorum']}: {_spare(facts)}")
        words = {
            True: "equal",
            False: "DIFFERENT",
            None: "not comparable at this moment: nodes are at different entries or have different versions, or only one answers",
        }
        print(f"revision {facts['revision']}, digests {words[facts['digestsEqual']]}")
    elif facts["mode"] == "ap":
        print("independent nodes: 'namesrv diff' compares their answers")
    for problem in facts["problems"]:
        print(f"problem: {problem}")


def _spare(facts: dict[str, Any]) -> str:
    count = facts["mayFail"]
    if facts["serving"] < facts["quorum"]:
        return f"only {facts['serving']} of the asked nodes serve"
    return "no further node may fail" if count == 0 else f"{count} more may fail" if count > 1 else "one more may fail"


def _line(node: dict[str, Any], is_group: bool) -> list[object]:
    if not node["answers"]:
        return ["?", node["admin"], "", "no", "", *[""] * (6 if is_group else 0)]
    line = [node["nodeId"], node["admin"], node["mode"], "yes" if node["ready"] else "no", node["revision"]]
    if not is_group:
        return line
    digest = (node["digest"] or "")[:12]
    raft = (node.get(name) for name in ("role", "term", "commitIndex", "appliedIndex", "lag"))
    return [*line, *("" if value is None else value for value in raft), digest]
