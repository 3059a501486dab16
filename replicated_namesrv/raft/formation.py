"""How blank nodes form a cluster, and how a blank node finds one that exists.

When all configured peers of a blank node have reported that they are blank, it durably promises to found a cluster with exactly
these incarnations. It founds the cluster once all of them have promised the same. A node promises only once. So if two different
sets of founders have a data directory in common, at most one of them can be complete. Therefore no second cluster is founded
beside an existing one.

``next_step`` decides by the first row that matches what peers have said in greetings since this process started; "ours" are
the founders that we have promised, or founded with. Only configured peers can be founders. A hint names other peers, too: they
count in row F1 only.

| row | we are   | peers                                              | outcome              | reason                            |
|-----|----------|----------------------------------------------------|----------------------|-----------------------------------|
| F1  | blank    | one is a member                                    | member, its founders | join as a learner                 |
| F12 | blank    | we join a cluster (a problem if all are blank)     | wait                 | we never found a new cluster      |
| F2  | blank    | not all configured ones have greeted               | wait                 | one may be a member               |
| F3  | blank    | one has promised with other data directories       | wait; problem        | a disk was lost while founding    |
| F4  | blank    | all are blank, or have promised the same nodes     | promise              |                                   |
| F5  | promised | one is a member of ours                            | member, ours         | all have promised                 |
| F6  | promised | one of ours is a member with other founders        | member, its founders | ours can never be complete        |
| F7  | promised | all have promised our set of founders              | member, ours         | no other set can be complete      |
| F8  | promised | one is of another incarnation than in ours         | wait; problem        | a disk was lost while founding    |
| F9  | promised | otherwise                                          | wait                 | a promise may be on its way       |

A member judges each member that greets (``judge_member``):

| row | we are   | the peer                                           | outcome              | reason                            |
|-----|----------|----------------------------------------------------|----------------------|-----------------------------------|
| F10 | member   | is a member of others                              | ignore it; problem   | another cluster of the same name  |
| F11 | member   | is a member of ours                                | listen to it         |                                   |

The tests have the names of the rows: ``tests/raft/test_formation.py``.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from replicated_namesrv.raft.identity import BLANK, MEMBER, PROMISED, Identity
from replicated_namesrv.raft.raft_messages import Greeting

ROWS = tuple(f"F{number}" for number in range(1, 13))
NOBODY_FOUNDS = (
    "no node that answers belongs to a cluster, and this node has join, so it does not found one: start a member, or found a new "
    "cluster with peers in place of join"
)
REMEDY = "if the cluster was never formed, nothing is stored yet: remove the data directories of all nodes. Otherwise keep them"


Greetings = Mapping[str, Greeting]
"""The newest greeting of each peer since this process started."""


class FormationStep(NamedTuple):
    """The outcome of a row of the table."""

    row: str
    state: int | None = None
    """The new state, to be stored durably. None: the node waits."""
    founders: dict[str, int] | None = None
    problem: str | None = None
    """A note for the operator; None: there is none."""


def next_step(
    identity: Identity, members: Sequence[str], greetings: Greetings, promises_needed: int, joins: bool = False
) -> FormationStep:
    """The next step of a node that is not a member. ``promises_needed``: all members, or fewer without
    ``Defences.blank_formation``. ``joins``: it was started to join a cluster."""
    if identity.state == BLANK:
        return _step_of_blank(identity, members, greetings, promises_needed, joins)
    return _step_of_promised(identity, greetings, promises_needed)


def _step_of_blank(
    identity: Identity, members: Sequence[str], greetings: Greetings, promises_needed: int, joins: bool
) -> FormationStep:
    for greeting in greetings.values():
        if greeting.state == MEMBER:
            return FormationStep("F1", MEMBER, dict(greeting.founders))
    if joins:
        found = bool(greetings) and all(greeting.state == BLANK for greeting in greetings.values())
        return FormationStep("F12", problem=NOBODY_FOUNDS if found else None)
    greetings = {peer: greeting for peer, greeting in greetings.items() if peer in members}
    if 1 + len(greetings) < promises_needed:
        return FormationStep("F2")
    founders = dict.fromkeys(members, 0) | {peer: greeting.source for peer, greeting in greetings.items()}
    founders[identity.node] = identity.incarnation
    for peer, greeting in greetings.items():
        if greeting.state == PROMISED and dict(greeting.founders) != founders:
            return FormationStep("F3", problem=f"{peer} has promised to found the cluster with another data directory: {REMEDY}")
    return FormationStep("F4", PROMISED, dict(sorted(founders.items())))


def _step_of_promised(identity: Identity, greetings: Greetings, promises_needed: int) -> FormationStep:
    ours = identity.founders
    promised, problem = 1, None
    for peer, greeting in greetings.items():
        if peer not in ours:
            continue
        agrees = greeting.state != BLANK and dict(greeting.founders) == ours
        if greeting.state == MEMBER and agrees:
            return FormationStep("F5", MEMBER, ours)
        if greeting.state == MEMBER and greeting.source == ours[peer]:
            return FormationStep("F6", MEMBER, dict(greeting.founders))
        if agrees and greeting.source == ours[peer]:
            promised += 1
        elif greeting.source != ours[peer]:
            problem = f"{peer} has lost its data directory while the cluster was being founded: {REMEDY}"
    if promised >= promises_needed:
        return FormationStep("F7", MEMBER, ours)
    return FormationStep("F9") if problem is None else FormationStep("F8", problem=problem)


def judge_member(identity: Identity, peer: str, greeting: Greeting) -> FormationStep:
    """Whether ``peer``, a member, belongs to another cluster; called by members only."""
    if dict(greeting.founders) != identity.founders:
        return FormationStep(
            "F10", problem=f"{peer} belongs to another cluster of the same name: remove the data directory of one of them"
        )
    return FormationStep("F11")
