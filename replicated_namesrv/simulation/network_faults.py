"""Faults of the network, and the parts that all faults share: their victims, and the count of those that had an effect."""

from collections.abc import Callable, Iterable
from itertools import permutations
from random import Random

from replicated_namesrv.simulation.disk import SimulatedDisk
from replicated_namesrv.simulation.fault_schedule import Fault
from replicated_namesrv.simulation.machine import Machine
from replicated_namesrv.simulation.network import Link, Network
from replicated_namesrv.simulation.world import MS, SECOND, World

_QUIET_NS, _ACTIVE_NS = 10 * SECOND, SECOND // 2
"""In the minutes of a long fault, the clients send requests only for ``_ACTIVE_NS`` in each ``_QUIET_NS``, to keep runs short."""


class FaultExecutor:
    """Chooses the victims of faults, and counts the faults that had an effect."""

    def __init__(self, world: World, machines: list[Machine], network: Network) -> None:
        self._world, self._machines, self._network = world, machines, network
        self.struck: dict[str, int] = {}
        """Number of faults that had an effect, by kind."""
        self._counted: set[int] = set()
        """Numbers of the faults that are counted in ``struck``."""
        self._watched: dict[int, tuple[Fault, Callable[[], int], int]] = {}
        """By number: active faults, functions that return how often a fault of the kind had an effect, and the values that they
        returned when the fault began."""
        self._over = False

    # Effects

    def _count(self, fault: Fault) -> None:
        """The fault has an effect."""
        if fault.number not in self._counted:
            self._counted.add(fault.number)
            self.struck[fault.kind] = self.struck.get(fault.kind, 0) + 1

    def _watch(self, fault: Fault, effects: Callable[[], int]) -> None:
        """Count the fault when it ends, if ``effects`` has grown by then."""
        self._watched[fault.number] = fault, effects, effects()

    def _watch_links(self, fault: Fault, what: str, links: Iterable[Link]) -> None:
        affected, watched = self._network.affected, list(links)
        self._watch(fault, lambda: sum(affected[what, link] for link in watched))

    def _watch_disk(self, fault: Fault, what: str, disk: SimulatedDisk) -> None:
        self._watch(fault, lambda: disk.affected[what])

    def _judge(self, number: int) -> None:
        if number in self._watched:
            fault, effects, before = self._watched.pop(number)
            if effects() > before:
                self._count(fault)

    def judge_all(self) -> None:
        """Count the active faults that have had an effect."""
        for number in list(self._watched):
            self._judge(number)

    def _later(self, delay_ns: int, call: Callable[..., None], *arguments: object) -> None:
        """Call after ``delay_ns``, unless everything has been healed by then."""

        def strike() -> None:
            if not self._over:
                call(*arguments)

        self._world.after(delay_ns, strike)

    # Choosing victims

    def leader(self) -> Machine | None:
        """The machine that leads the newest term, if there is one."""
        leaders = [machine for machine in self._machines if machine.raft is not None and machine.raft.role == "leader"]
        return max(leaders, key=lambda machine: machine.raft.term if machine.raft else 0, default=None)

    def _victim(self, rng: Random) -> Machine:
        """A random machine; the leader with probability one half."""
        somebody = rng.choice(self._machines)
        return (self.leader() or somebody) if rng.random() < 0.5 else somebody


class NetworkFaults(FaultExecutor):
    """Faults of links."""

    def __init__(self, world: World, machines: list[Machine], network: Network) -> None:
        super().__init__(world, machines, network)
        self.quiet: Callable[[int], None] = lambda duration_ns: None
        """Pauses the clients; set by the application."""
        self.busy_until_ns = 0
        """Until then, long faults do not slow down the clients; set by the simulation."""
        self._has_lasting_cut = False

    def _cut(self, rng: Random, fault: Fault, links: list[Link]) -> Callable[[], None]:
        self._watch_links(fault, "cut", links)
        self._world.note(f"  cut: {', '.join(f'{source}>{target}' for source, target in links)}")
        self._network.cut(links, hold=rng.random() < 0.5)
        if rng.random() < 0.3:
            for link in links:
                self._network.reset(link)
        return lambda: self._network.mend(links)

    def _between(self, one: set[str], other: set[str]) -> list[Link]:
        return [
            link for link in self._network.links if (link[0] in one and link[1] in other) or (link[0] in other and link[1] in one)
        ]

    def _do_halves(self, rng: Random, fault: Fault) -> Callable[[], None]:
        names = [machine.name for machine in self._machines]
        rng.shuffle(names)
        size = rng.randint(1, len(names) - 1)
        return self._cut(rng, fault, self._between(set(names[:size]), set(names[size:])))

    def _do_isolate(self, rng: Random, fault: Fault) -> Callable[[], None]:
        name = self._victim(rng).name
        return self._cut(rng, fault, [link for link in self._network.links if name in link])

    def _one_direction(self, rng: Random) -> list[Link]:
        """One direction of all links of a machine, or of one of them."""
        name, side = self._victim(rng).name, rng.randrange(2)
        links = [link for link in self._network.links if link[side] == name]
        return links if rng.random() < 0.5 else [rng.choice(links)]

    def _do_one_way(self, rng: Random, fault: Fault) -> Callable[[], None]:
        return self._cut(rng, fault, self._one_direction(rng))

    def _do_bridge(self, rng: Random, fault: Fault) -> Callable[[], None]:
        names = [machine.name for machine in self._machines]
        rng.shuffle(names)
        middle = len(names) // 2
        return self._cut(rng, fault, self._between(set(names[:middle]), set(names[middle + 1 :])))

    def _do_ring(self, rng: Random, fault: Fault) -> Callable[[], None]:
        """Each node is connected only to its two neighbours on a random ring. With three nodes, one random link is cut."""
        names = [machine.name for machine in self._machines]
        rng.shuffle(names)
        ring = {frozenset(pair) for pair in zip(names, names[1:] + names[:1], strict=True)}
        lost = [link for link in permutations(names, 2) if frozenset(link) not in ring]
        return self._cut(rng, fault, lost or [rng.choice(self._network.links)])

    def _do_flapping(self, rng: Random, fault: Fault) -> None:
        """All links of one machine are cut and mended again and again."""
        name = self._victim(rng).name
        links = [link for link in self._network.links if name in link]
        period_ns = rng.choice((50, 200, 400)) * MS
        self._watch_links(fault, "cut", links)
        self._later(fault.duration_ns, self._judge, fault.number)
        for start_ns in range(0, fault.duration_ns, period_ns):
            self._later(start_ns, self._network.cut, links, False)
            self._later(start_ns + period_ns // 2, self._network.mend, links)

    def _do_resets(self, rng: Random, fault: Fault) -> None:
        for _ in range(rng.randint(1, 8)):
            self._later(rng.randrange(fault.duration_ns), self._reset, fault, rng.choice(self._network.links))

    def _reset(self, fault: Fault, link: Link) -> None:
        if self._network.reset(link):
            self._count(fault)

    def _some_links(self, rng: Random) -> list[Link]:
        if rng.random() < 0.3:
            return list(self._network.links)
        name = self._victim(rng).name
        return [link for link in self._network.links if name in link]

    def _do_slow_link(self, rng: Random, fault: Fault) -> Callable[[], None]:
        links, delay_ms = self._some_links(rng), rng.choice((5, 50, 200, 600))
        self._watch_links(fault, "slow", links)
        self._network.slow_ms.update(dict.fromkeys(links, delay_ms))
        return lambda: _forget(self._network.slow_ms, links)

    def _do_loss(self, rng: Random, fault: Fault) -> Callable[[], None]:
        links, share = self._some_links(rng), rng.choice((0.02, 0.1, 0.4))
        self._watch_links(fault, "loss", links)
        self._network.loss.update(dict.fromkeys(links, share))
        return lambda: _forget(self._network.loss, links)

    def _do_one_sided_latency(self, rng: Random, fault: Fault) -> Callable[[], None]:
        """One direction of a machine's links is slow, with a constant delay."""
        name, side, delay_ms = self._victim(rng).name, rng.randrange(2), rng.choice((5, 10, 40, 120))
        links = [link for link in self._network.links if link[side] == name]
        self._watch_links(fault, "late", links)
        self._network.late_ms.update(dict.fromkeys(links, delay_ms))
        return lambda: _forget(self._network.late_ms, links)

    def _do_lasting_one_way(self, rng: Random, fault: Fault) -> None:
        """One direction of one link, or of all links of a machine, is cut until everything is healed; once in a run."""
        if self._has_lasting_cut:
            return
        self._has_lasting_cut = True
        cut = self._one_direction(rng)
        self._watch_links(fault, "cut", cut)
        self._network.cut(cut, hold=False)

    def _do_one_way_for_minutes(self, rng: Random, fault: Fault) -> Callable[[], None]:
        """One direction of one link, or of all links of a machine, is cut for minutes."""
        cut = self._one_direction(rng)
        self._world.note(f"  cut: {', '.join(f'{source}>{target}' for source, target in cut)}")
        self._watch_links(fault, "cut", cut)
        self._network.cut(cut, hold=False)
        first_ns = max(self.busy_until_ns, fault.at_ns)
        for quiet_ns in range(first_ns, fault.end_ns, _QUIET_NS):
            self._later(quiet_ns - self._world.now_ns, self.quiet, min(_QUIET_NS - _ACTIVE_NS, fault.end_ns - quiet_ns))
        return lambda: self._network.mend(cut)

    def _do_echoes(self, rng: Random, fault: Fault) -> Callable[[], None]:
        links, share = self._some_links(rng), rng.choice((0.05, 0.3, 1.0))
        self._watch_links(fault, "echoes", links)
        self._network.echoes.update(dict.fromkeys(links, share))
        return lambda: _forget(self._network.echoes, links)

    def _do_split_votes(self, rng: Random, fault: Fault) -> Callable[[], None]:
        """The leader is cut off. Candidates reach one voter only, and its votes for earlier terms arrive again and again. So
        elections fail, and votes for several terms are under way at the same time."""
        leader = self.leader() or self._victim(rng)
        others = [machine.name for machine in self._machines if machine is not leader]
        asked = rng.choice(others)
        apart = [link for link in self._network.links if leader.name in link]
        lost = [link for link in self._network.links if link[1] != asked and leader.name not in link]
        echoed = [link for link in self._network.links if link[0] == asked and leader.name not in link]
        self._watch_links(fault, "votes", lost)
        self._network.cut(apart, hold=False)
        self._network.lost_votes.update(lost)
        self._network.echoed_votes.update(echoed)

        def undo() -> None:
            self._network.mend(apart)
            self._network.lost_votes.difference_update(lost)
            self._network.echoed_votes.difference_update(echoed)

        return undo

    def _do_repeats(self, rng: Random, fault: Fault) -> Callable[[], None]:
        links, share = self._some_links(rng), rng.choice((0.05, 0.3, 1.0))
        self._watch_links(fault, "repeats", links)
        self._network.repeats.update(dict.fromkeys(links, share))
        return lambda: _forget(self._network.repeats, links)


def _forget(table: dict[Link, object] | dict[Link, int] | dict[Link, float], links: list[Link]) -> None:
    for link in links:
        table.pop(link, None)
