"""Fault plans: the links and nodes that a fault of a scenario affects in the current cluster. Pure.

Brokers and clients are assigned to the nodes in turn: each node with its brokers and clients is a *site*. A partition of scope
``sites`` separates sites, as when a data centre is cut off: the isolated node keeps its brokers and clients, and they lose all
other nodes. A partition of scope ``peers`` separates nodes only.
"""

import dataclasses
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from replicated_namesrv.chaos.effects import Effect, Link, Stream
from replicated_namesrv.chaos.records import majority_side
from replicated_namesrv.chaos.scenario import PROCESS_KINDS, FaultKind, FaultSpec
from replicated_namesrv.errors import SettingError


@dataclass(frozen=True, slots=True)
class Topology:
    """The participants of a run and their sites."""

    nodes: tuple[str, ...]
    homes: Mapping[str, str]
    """The node to whose site each broker and client belongs. Partitions do not affect clients of no site (probes)."""
    brokers: frozenset[str]
    links: tuple[Link, ...]
    spares: tuple[str, ...] = ()
    """Those of ``nodes`` that start when a fault adds them."""

    @property
    def founders(self) -> tuple[str, ...]:
        """The nodes that run from the beginning."""
        return _without(self.nodes, self.spares)

    def peer_links(self) -> list[Link]:
        """Links between nodes."""
        return [link for link in self.links if link.source in self.nodes]

    def crossing(self, sides: Sequence[Collection[str]], scope: str) -> list[Link]:
        """Links between different sides. A node that is on none of the sides reaches all nodes."""
        side = {node: number for number, members in enumerate(sides) for node in members}
        found = []
        for link in self.links:
            home = link.source if link.source in self.nodes else self.homes.get(link.source) if scope == "sites" else None
            if home in side and link.target in side and side[home] != side[link.target]:
                found.append(link)
        return found


class RunMembers(NamedTuple):
    """The nodes that take part in the cluster."""

    nodes: tuple[str, ...]
    """The members, with or without a vote. While a change is in progress, also the node that it adds or removes."""
    voters: tuple[tuple[str, ...], ...]
    """The voters. While a change is in progress: each set of voters that may be in force."""

    @classmethod
    def of(cls, nodes: Iterable[str]) -> "RunMembers":
        """The members ``nodes``, which all vote."""
        found = tuple(nodes)
        return cls(found, (found,))


class FaultPlan(NamedTuple):
    """The current effect of a fault."""

    nodes: tuple[str, ...]
    """The target nodes; for faults of processes, the nodes to kill, stop or restart."""
    links: Mapping[Link, Stream]
    effect: Effect | None
    """The effect on links. None: the fault changes processes."""


def plan(
    spec: FaultSpec,
    topology: Topology,
    leader: str | None,
    variant: Effect,
    rng: random.Random,
    members: Sequence[str] | None = None,
) -> FaultPlan:
    """The links and nodes of ``spec``. ``leader`` None: there is no leader (AP). ``members``: the present ones, None for the
    founders. Raises SettingError for an unknown node."""
    targets = _targets(spec.target, topology, leader, rng, topology.founders if members is None else tuple(members))
    if spec.kind in PROCESS_KINDS:
        return FaultPlan(topology.nodes if spec.kind is FaultKind.ROLLING_RESTART else targets, {}, None)
    aimed, links = _links(spec, topology, targets, rng)
    return FaultPlan(
        tuple(aimed), _streams(spec, topology, targets, links), variant if spec.effect == "cut" else Effect(spec.effect)
    )


def _targets(
    target: str, topology: Topology, leader: str | None, rng: random.Random, members: tuple[str, ...]
) -> tuple[str, ...]:
    drawn = rng.choice(members)
    first = leader if leader is not None else drawn
    match target:
        case "leader":
            return (first,)
        case "follower":
            return (rng.choice([node for node in members if node != first] or [first]),)
        case "random":
            return (drawn,)
        case "all":
            return members
        case "spare" if topology.spares:
            return ([*topology.spares[:1], *(node for node in members if node in topology.spares)][-1],)
    if target not in topology.nodes:
        known = ", ".join(("leader", "follower", "random", "all", *(["spare"] if topology.spares else []), *topology.nodes))
        raise SettingError(f"target = {target!r}: one of {known} is expected")
    return (target,)


def _links(
    spec: FaultSpec, topology: Topology, targets: tuple[str, ...], rng: random.Random
) -> tuple[Collection[str], list[Link]]:
    nodes = topology.nodes
    match spec.kind:
        case FaultKind.ISOLATE:
            return targets, topology.crossing([targets, _without(nodes, targets)], spec.scope)
        case FaultKind.HALVES:
            minority = rng.sample(nodes, (len(nodes) - 1) // 2)
            return minority, topology.crossing([minority, _without(nodes, minority)], spec.scope)
        case FaultKind.ONE_WAY | FaultKind.ACKS:
            scope = "peers" if spec.kind is FaultKind.ACKS else spec.scope
            return targets, topology.crossing([targets, _without(nodes, targets)], scope)
        case FaultKind.BRIDGE:
            middle, *rest = rng.sample(nodes, len(nodes))
            half = len(rest) // 2
            return (middle,), topology.crossing([rest[:half], rest[half:]], spec.scope)
        case FaultKind.PARTIAL:
            pairs = [(a, b) for a in nodes for b in nodes if a < b]
            cut = [pair for pair in pairs if rng.random() < 0.4] or rng.sample(pairs, min(1, len(pairs)))
            return nodes, [link for link in topology.peer_links() if tuple(sorted(link)) in cut]
        case FaultKind.DEGRADE:
            touching = [link for link in topology.links if link.target in targets or link.source in targets]
            return targets, [link for link in touching if spec.scope == "sites" or link.source in nodes]
        case FaultKind.CUT_BROKERS | FaultKind.CUT_CLIENTS:
            chosen = _chosen_nodes(spec.nodes, nodes, targets)
            return chosen, _outside_links(spec, topology, chosen, rng)
    raise AssertionError(f"{spec.kind} has no plan of its own")


def _streams(spec: FaultSpec, topology: Topology, targets: Collection[str], links: Iterable[Link]) -> dict[Link, Stream]:
    """The streams of these links that ``spec`` affects: all streams, or those in the direction of the fault. The direction is
    seen from the targets, or from the brokers and clients that are cut off. A link between nodes that carries no traffic in this
    direction is left out."""
    direction = "in" if spec.kind is FaultKind.ACKS else spec.direction or ("out" if spec.kind is FaultKind.ONE_WAY else "both")
    if direction == "both":
        return dict.fromkeys(links, Stream.BOTH)
    inwards = direction == "in"
    found = {}
    for link in links:
        if link.source in topology.nodes:
            if (link.target if inwards else link.source) in targets:
                found[link] = Stream.BOTH
        elif spec.kind in (FaultKind.CUT_BROKERS, FaultKind.CUT_CLIENTS):
            found[link] = Stream.DOWNSTREAM if inwards else Stream.UPSTREAM
        else:
            found[link] = Stream.UPSTREAM if (link.target in targets) is inwards else Stream.DOWNSTREAM
    return found


def _chosen_nodes(which: str, nodes: tuple[str, ...], targets: tuple[str, ...]) -> tuple[str, ...]:
    match which:
        case "one":
            return targets[:1]
        case "all-but-one":
            return _without(nodes, targets[:1])
    return nodes


def _outside_links(spec: FaultSpec, topology: Topology, chosen: Collection[str], rng: random.Random) -> list[Link]:
    brokers = sorted(topology.brokers)
    if spec.kind is FaultKind.CUT_BROKERS:
        sources = {rng.choice(brokers)} if spec.brokers == "one" else set(brokers)
    else:
        sources = set(topology.homes) - topology.brokers
    return [link for link in topology.links if link.source in sources and link.target in chosen]


def _without(nodes: Iterable[str], some: Collection[str]) -> tuple[str, ...]:
    return tuple(node for node in nodes if node not in some)


def expand(specs: Sequence[FaultSpec], fault_s: float, rng: random.Random) -> list[FaultSpec]:
    """``specs`` with each random fault replaced by faults that the seed draws. They may overlap."""
    found: list[FaultSpec] = []
    for spec in specs:
        if spec.kind is not FaultKind.RANDOM:
            found.append(spec)
            continue
        for _ in range(rng.randint(2, 4)):
            start_s = rng.uniform(0, fault_s * 0.6)
            found.append(dataclasses.replace(_draw(rng), at_s=start_s, for_s=rng.uniform(0.2, 1.0) * (fault_s - start_s)))
    return found


def _draw(rng: random.Random) -> FaultSpec:
    target = rng.choice(("leader", "follower", "random"))
    scope = rng.choice(("peers", "sites"))
    return rng.choice(
        (
            FaultSpec(FaultKind.ISOLATE, target, scope=scope),
            FaultSpec(FaultKind.ISOLATE, target, scope="peers", flap_s=rng.uniform(0.3, 1.5)),
            FaultSpec(FaultKind.HALVES, scope=scope),
            FaultSpec(FaultKind.ONE_WAY, target, direction=rng.choice(("in", "out")), scope=scope),
            FaultSpec(FaultKind.ACKS),
            FaultSpec(FaultKind.BRIDGE, scope="peers"),
            FaultSpec(FaultKind.PARTIAL),
            FaultSpec(FaultKind.DEGRADE, target, effect=rng.choice(("slow", "trickle")), scope="peers"),
            FaultSpec(FaultKind.DEGRADE, target, effect="reset", flap_s=0.4),
            FaultSpec(
                FaultKind.CUT_BROKERS, target, nodes=rng.choice(("one", "all-but-one")), brokers=rng.choice(("one", "all"))
            ),
            FaultSpec(FaultKind.KILL, target),
            FaultSpec(FaultKind.PAUSE, target),
            FaultSpec(FaultKind.RESTART, target),
            FaultSpec(FaultKind.JOIN_EMPTY, "follower"),
        )
    )


def sides(nodes: Sequence[str], broken: Collection[Link], gone: Collection[str]) -> list[list[str]]:
    """Groups of nodes that can communicate in both directions, directly or through others; the largest first, then by name."""
    left = [node for node in nodes if node not in gone]
    found = [[node] for node in nodes if node in gone]
    while left:
        side, front = {left[0]}, [left[0]]
        while front:
            node = front.pop()
            near = [other for other in left if other not in side and connected(node, other, broken)]
            side.update(near)
            front.extend(near)
        left = [node for node in left if node not in side]
        found.append(sorted(side))
    return sorted(found, key=lambda side: (-len(side), side))


def connected(one: str, other: str, broken: Collection[Link]) -> bool:
    """Whether both links between two nodes are intact."""
    return Link(one, other) not in broken and Link(other, one) not in broken


def exposed(topology: Topology, broken: Collection[Link], gone: Collection[str], members: RunMembers | None = None) -> set[str]:
    """Brokers that a correct CP cluster may drop although they are alive. ``members``: None for the founders.

    On a side with a majority whose nodes are all connected to each other, a link to any of these nodes keeps a broker. If some
    nodes of the side are connected only through others, the leader may receive reports from some of them only, so the broker
    needs links to all. Without a majority no broker can be dropped. While the voters change, a broker needs these links in each
    set of voters. A link to a node without a vote does not count.
    """
    members = RunMembers.of(topology.founders) if members is None else members
    parts = sides(members.nodes, broken, gone)
    found: set[str] = set()
    for voters in members.voters:
        side = [node for node in majority_side(parts, [voters]) if node in voters]
        if not side or side[0] in gone:
            continue
        clique = all(connected(a, b, broken) for a in side for b in side if a < b)
        enough = any if clique else all
        found |= {broker for broker in topology.brokers if not enough(Link(broker, node) not in broken for node in side)}
    return found
