"""The nemesis, which executes the faults of a schedule (``fault_schedule.py``).

The victim is chosen when the fault strikes, from a separate random stream, so a schedule without some of the faults chooses the
same victims for the others.
"""

from collections.abc import Callable, Iterable
from random import Random

from replicated_namesrv.raft.entry_log import Log
from replicated_namesrv.simulation.disk import SimulatedDisk
from replicated_namesrv.simulation.fault_schedule import ALONE, Fault
from replicated_namesrv.simulation.machine import Machine
from replicated_namesrv.simulation.network import Link, Network
from replicated_namesrv.simulation.network_faults import NetworkFaults
from replicated_namesrv.simulation.world import MS, SECOND, World

_RACE_NS = 500 * MS
"""Time for which stale answers are provoked on a machine."""
BURST_GAP_NS = 100 * MS
"""Time between two bursts of commands."""
STUCK_WRITES_NS = SECOND
"""How long clients write in bursts while a disk is stuck."""


class Nemesis(NetworkFaults):
    """Executes faults on machines and network."""

    def __init__(self, world: World, machines: list[Machine], network: Network, clock_drift_max: float) -> None:
        super().__init__(world, machines, network)
        self._drift = clock_drift_max
        self._by_name = {machine.name: machine for machine in machines}
        self.transfer: Callable[[Machine, str | None], None] = lambda machine, peer: None
        """Asks the leader on a machine to transfer leadership; set by the simulation."""
        self.provoke: Callable[[Machine, int], None] = lambda machine, duration_ns: None
        """Provokes stale answers on a machine; set by the application."""
        self.watch_joins: Callable[[Callable[[str, str], None]], None] = lambda watch: None
        """Registers a function. The function is called when a join is committed, with two names: the first node that knows this,
        and the node that joined."""
        self.voting: Callable[[], list[Machine]] = lambda: self._machines
        """The voters; set by the simulation if the members change."""
        self.may_vote: Callable[[], list[Machine]] = lambda: self._machines
        """The machines whose process may vote by the committed configuration; set by the simulation."""
        self.is_settled: Callable[[], bool] = lambda: True
        """True while no change of the members is in progress; set by the simulation if the members change."""
        self.burst: Callable[[Machine], None] = lambda machine: None
        """Proposes many commands on a machine; set by the application."""
        self.spared = frozenset(Nemesis.kinds()) - ALONE if len(machines) == 1 else frozenset[str]()
        """Kinds of faults that are disabled."""
        self.down: list[Machine] = []
        """Machines that stay down when everything else is healed."""
        self.copies: list[Machine] = []
        """Machines that run on copies of other machines' directories."""
        self.single_directories = False
        """True if the application cannot run two processes under one name."""
        self.down_for_good = False
        """Whether the run already has a minority of machines that stay down when everything else is healed."""
        self._whole: dict[str, dict[str, bytes]] = {}
        """Images of disks that were rolled back and have to be put back as they were, by machine."""
        self._sheltered_ns = 0
        """Time until which no other fault strikes. Raft survives one rolled-back disk only if the nodes that remember its data
        stay up."""

    @staticmethod
    def kinds() -> list[str]:
        """Names of all faults."""
        return sorted(name.removeprefix("_do_") for name in dir(Nemesis) if name.startswith("_do_"))

    def schedule(self, faults: Iterable[Fault]) -> None:
        """Schedule ``faults`` in the world."""
        for fault in faults:
            self._world.after(fault.at_ns - self._world.now_ns, self._strike, fault)

    def _strike(self, fault: Fault) -> None:
        if fault.kind in self.spared or self.is_sheltered():
            return
        rng = self._world.random(f"fault/{fault.number}")
        self._world.note(f"FAULT {fault.describe()}")
        self._world.trace.event(self._world.now_ns, "fault", fault.number)
        undo: Callable[[], None] | None = getattr(self, f"_do_{fault.kind}")(rng, fault)
        if undo is not None:
            self._later(fault.duration_ns, self._undo, fault, undo)

    def is_sheltered(self) -> bool:
        """Whether a fault is active during which all other nodes must be up and connected."""
        return self._world.now_ns < self._sheltered_ns

    def _undo(self, fault: Fault, undo: Callable[[], None]) -> None:
        self._world.note(f"fault #{fault.number} {fault.kind} ends")
        self._judge(fault.number)
        undo()

    def draw_clock_rates(self) -> None:
        """Give each machine a clock rate within the declared drift."""
        rng = self._world.random("clock")
        for machine in self._machines:
            machine.set_clock_rate(self._rate(rng))

    def _rate(self, rng: Random) -> float:
        """A clock rate. Two clock rates differ by at most the declared drift, which is a share of the slower rate. The extreme
        rates are drawn often."""
        return 1.0 + self._drift * 0.49 * rng.choice((-1.0, 0.0, 1.0, 2 * rng.random() - 1))

    def heal(self) -> None:
        """End all active faults."""
        self._world.note("everything is healed")
        self._over = True
        self.judge_all()
        self._remove_copies()
        for name in list(self._whole):
            self._put_back_whole(self._by_name[name])
        self._network.heal()
        if self.is_sheltered():  # a node that stops now may be the only one that remembers what a rolled-back disk has lost
            self.down = [machine for machine in self.down if not machine.is_up()]
        for machine in self._machines:
            machine.disk.full = machine.disk.failing = machine.out_of_memory = False
            machine.disk.slow_ms = 0
            machine.resume_disk()
            if machine in self.down:
                machine.crash(power_loss=False)
            else:
                machine.start()
            if machine.pauses:
                machine.pauses = 1
                machine.resume()

    def stop_minority(self) -> None:
        """In half of the runs, choose a minority of machines that stays down when everything else is healed."""
        rng = self._world.random("minority")
        if len(self._machines) > 1 and rng.random() < 0.5:
            self.down = rng.sample(self._machines, rng.randint(1, (len(self._machines) - 1) // 2))

    def start_minority(self) -> None:
        """Start the machines that stayed down."""
        for machine in self.down:
            machine.kept_down = False
            machine.start()
        self.down = []

    # Choosing victims

    def _voter(self, rng: Random) -> Machine:
        """A random voter, chosen like ``_victim``."""
        somebody = rng.choice(self.voting())
        return (self.leader() or somebody) if rng.random() < 0.5 else somebody

    # Processes

    def _count_if_up(self, fault: Fault, machine: Machine) -> None:
        if machine.process is not None:
            self._count(fault)

    def _do_pause(self, rng: Random, fault: Fault) -> Callable[[], None]:
        machine = self._victim(rng)
        self._world.note(f"  {machine.name} is paused")
        self._count_if_up(fault, machine)
        machine.pause()
        return machine.resume

    def _do_crash(self, rng: Random, fault: Fault) -> Callable[[], None]:
        machine = self._victim(rng)
        self._count_if_up(fault, machine)
        machine.crash(power_loss=False)
        return machine.start

    def _do_power_loss(self, rng: Random, fault: Fault) -> Callable[[], None]:
        machine = self._victim(rng)
        self._count_if_up(fault, machine)
        machine.crash(power_loss=True)
        return machine.start

    def _do_restart(self, rng: Random, fault: Fault) -> None:
        machine = self._victim(rng)
        self._count_if_up(fault, machine)
        machine.crash(power_loss=rng.random() < 0.5)
        machine.start()

    def _all(self, rng: Random, fault: Fault, power_loss: bool) -> None:
        for machine in self._machines:
            self._count_if_up(fault, machine)
            machine.crash(power_loss)
            self._later(rng.randrange(fault.duration_ns), machine.start)

    def _do_crash_all(self, rng: Random, fault: Fault) -> None:
        self._all(rng, fault, power_loss=False)

    def _do_power_loss_all(self, rng: Random, fault: Fault) -> None:
        self._all(rng, fault, power_loss=True)

    def _do_no_memory(self, rng: Random, fault: Fault) -> Callable[[], None]:
        """Applying the next command fails for lack of memory."""
        machine = self._victim(rng)
        machine.out_of_memory = True
        self._watch(fault, lambda: machine.memory_errors)

        def undo() -> None:
            machine.out_of_memory = False
            machine.start()

        return undo

    def _do_burst(self, rng: Random, fault: Fault) -> None:
        """Many commands are proposed on one machine at once, again and again."""
        machine = self._victim(rng)
        self._count_if_up(fault, machine)
        for start_ns in range(0, fault.duration_ns, BURST_GAP_NS):
            self._later(start_ns, self.burst, machine)

    def _do_transfer(self, rng: Random, fault: Fault) -> None:
        leader = self.leader()
        if leader is not None:
            self._count(fault)
            self.transfer(leader, rng.choice([None, *(name for name in self._by_name if name != leader.name)]))

    # Disks and clocks

    def _do_slow_disk(self, rng: Random, fault: Fault) -> Callable[[], None]:
        disk = self._victim(rng).disk
        self._watch_disk(fault, "slow", disk)
        disk.slow_ms = rng.choice((20, 100, 800))

        def undo() -> None:
            disk.slow_ms = 0

        return undo

    def _do_full_disk(self, rng: Random, fault: Fault) -> Callable[[], None]:
        machine = self._victim(rng)
        self._world.note(f"  the disk of {machine.name} is full")
        self._watch_disk(fault, "full", machine.disk)
        machine.disk.full = machine.disk_faulted = True

        def undo() -> None:
            machine.disk.full = False
            machine.start()

        return undo

    def _do_failing_disk(self, rng: Random, fault: Fault) -> Callable[[], None]:
        """Syncs fail. Until the power fails, the next process may still read the data from memory. The power often fails soon."""
        machine = self._victim(rng)
        self._world.note(f"  syncs of {machine.name} fail")
        self._watch_disk(fault, "failing", machine.disk)
        machine.disk.failing = machine.disk_faulted = True
        fails_soon, delay_ns = rng.random() < 0.7, int(rng.random() * SECOND)

        def undo() -> None:
            machine.disk.failing = False
            machine.start()
            if fails_soon:
                self._later(delay_ns, fail_power)

        def fail_power() -> None:
            if self.is_sheltered():
                return
            machine.crash(power_loss=True)
            machine.start()

        return undo

    def _do_hung_disk(self, rng: Random, fault: Fault) -> Callable[[], None]:
        """No sync completes. At the end all complete, or the power fails."""
        machine, fails = self._victim(rng), rng.random() < 0.3
        self._world.note(f"  the disk of {machine.name} hangs")
        self._watch_disk(fault, "hung", machine.disk)
        machine.disk.hung = True

        def undo() -> None:
            if fails:
                machine.crash(power_loss=True)
            machine.resume_disk()
            machine.start()

        return undo

    def _do_stuck_disk(self, rng: Random, fault: Fault) -> Callable[[], None]:
        """No sync of the leader's disk completes for longer than a leader may wait for one, and clients write meanwhile."""
        machine = self.leader() or self._victim(rng)
        self._world.note(f"  the disk of {machine.name} is stuck")
        self._watch_disk(fault, "hung", machine.disk)
        machine.disk.hung = True
        for start_ns in range(0, STUCK_WRITES_NS, BURST_GAP_NS):
            self._later(start_ns, self.burst, machine)

        def undo() -> None:
            machine.resume_disk()
            machine.start()

        return undo

    def _do_lost_disk(self, rng: Random, fault: Fault) -> Callable[[], None] | None:
        """A disk is lost. This happens only while all nodes count each other's present incarnations, because Raft survives only
        one lost disk at a time.
        """
        if not self._all_voters():
            return None
        machine = self._victim(rng)
        self._count(fault)
        self._lose_disk(machine)
        return machine.start

    def _all_voters(self) -> bool:
        """Whether all voters are up and know each other's incarnation, and a majority remains without one of them. The committed
        configuration is checked, too: after a restart of all nodes, possibly no node knows that a disk is older than a committed
        join."""
        machines = self.voting()
        if len(machines) <= 2:
            return False
        incarnations = {machine.name: machine.raft.incarnation for machine in machines if machine.raft is not None}
        views = [dict(getattr(machine.raft, "voters", {})) for machine in machines]
        agree = len(incarnations) == len(machines) > 0 and all(view == incarnations for view in views)
        return agree and self.is_settled() and all(machine in self.may_vote() for machine in machines)

    def _lose_disk(self, machine: Machine) -> None:
        self._world.note(f"  {machine.name} loses its disk")
        machine.crash(power_loss=True)
        machine.disk.wipe()
        machine.has_new_disk = True

    def may_lose_disk(self) -> bool:
        """Whether a disk may be lost now."""
        return not self.is_sheltered() and self._all_voters()

    def replace_disk(self, machine: Machine) -> None:
        """Start ``machine`` with a new disk."""
        self._lose_disk(machine)
        machine.start()

    def _shelter(self) -> bool:
        """Whether a disk may be rolled back now. All other nodes must be up and reachable. If they are, no other fault strikes
        for 4 s, because Raft survives no further fault at that time."""
        calm = self._network.is_whole and self._all_voters() and not any(machine.pauses for machine in self._machines)
        if calm:
            self._sheltered_ns = self._world.now_ns + 4 * SECOND
        return calm

    def _go_back(self, machine: Machine, image: dict[str, bytes]) -> None:
        self._world.note(f"  the disk of {machine.name} goes back")
        machine.crash(power_loss=False)
        machine.disk.restore(image)
        machine.restored = True

    def _do_old_image(self, rng: Random, fault: Fault) -> None:
        """A minority lags. Then the disk of a node that knew the missing entries is rolled back. The other nodes that knew them
        stay connected, or are cut off: from the minority, and in some runs also from that node. If the minority contains the
        leader, often the leader is deposed without noticing (``_depose_unnoticed``).

        The disk is rolled back only if a node that the victim can reach knows that the disk had more data than the image."""
        if len(self.voting()) == 1:
            self._roll_back_only_voter(fault, self.voting()[0])
            return
        if not self._shelter():
            return
        machines = list(self.voting())
        rng.shuffle(machines)
        minority = len(machines) // 2
        late, victim, knowing = machines[:minority], machines[minority], machines[minority + 1 :]
        lag = self._between({m.name for m in late}, {m.name for m in machines[minority:]})
        image = victim.disk.image()
        vote_too = rng.random() < 0.3
        unaware = late if rng.random() < 0.5 else machines[: minority + 1]
        apart = self._between({m.name for m in knowing}, {m.name for m in unaware})
        within_reach = machines if vote_too or victim not in unaware else late
        leader = self.leader()
        if leader in late and knowing and rng.random() < 0.7:
            self._depose_unnoticed(rng, fault, leader, victim, knowing, lag)
            return

        def part() -> None:
            self._network.cut(lag, hold=False)
            self.provoke(victim, _RACE_NS)

        def strike() -> None:
            self._network.mend(lag)
            if not vote_too:
                self._network.cut(apart, hold=False)
            if any(self._remembers(m, victim, image) for m in within_reach if m is not victim):
                self._count(fault)
                self._go_back(victim, image)
                victim.start()
            self._later(2 * SECOND, mend)

        def mend() -> None:
            if not vote_too:
                self._network.mend(apart)

        self.provoke(victim, _RACE_NS)
        self._later(SECOND, part)
        self._later(2 * SECOND, strike)

    def _roll_back_only_voter(self, fault: Fault, voter: Machine) -> None:
        """The disk of the only voter is rolled back, and all other members remember more. The process must not serve. Later the
        disk is put back as it was. (A member that remembered less would accept the process on the older image, and then refuse
        the newest directory until its boot number is higher: the known limit "put back" in raft/DESIGN.md.)"""
        if len(getattr(voter.raft, "voters", ())) > 1:
            return  # the other voters are down now
        if not self._network.is_whole or not self.is_settled() or any(machine.pauses for machine in self._machines):
            return
        self._sheltered_ns = self._world.now_ns + 4 * SECOND
        image = voter.disk.image()

        def strike() -> None:
            members = getattr(voter.raft, "members", [])
            others = [m for m in self._machines if m.name in members and m is not voter]
            if others and all(self._remembers(m, voter, image) for m in others):
                voter.crash(power_loss=False)
                self._whole[voter.name] = voter.disk.image()
                self._count(fault)
                self._go_back(voter, image)
                voter.start()
                self.provoke(voter, _RACE_NS)
                self._later(2 * SECOND, self._put_back_whole, voter)

        self.provoke(voter, _RACE_NS)
        self._later(SECOND, strike)

    def _put_back_whole(self, machine: Machine) -> None:
        self._world.note(f"  the disk of {machine.name} is put back as it was")
        machine.crash(power_loss=False)
        machine.disk.restore(self._whole.pop(machine.name))
        machine.restored = False
        machine.start()

    def _depose_unnoticed(
        self, rng: Random, fault: Fault, leader: Machine, victim: Machine, knowing: list[Machine], lag: list[Link]
    ) -> None:
        """``leader`` transfers leadership to one of ``knowing``. The links ``lag`` are cut before ``leader`` has the new term.
        The disk of ``victim`` is rolled back to a time before the election. Then the deposed leader reaches the victim at once,
        and the new leader reaches it soon afterwards."""
        image, successor = victim.disk.image(), knowing[0]
        term = leader.raft.term if leader.raft is not None else 0
        late = {name for link in lag for name in link} - {victim.name} - {m.name for m in knowing}
        to_victim = self._between(late, {victim.name})
        to_knowing = self._between({m.name for m in knowing}, {victim.name})

        def wait_for_election(left: int) -> None:
            if successor.raft is not None and successor.raft.term > term:
                self._network.cut(lag, hold=False)
                self._later(2 * SECOND, self._network.mend, [link for link in lag if link not in to_victim])
                wait_for_commit(300)
            elif left:
                self._later(MS // 10, wait_for_election, left - 1)

        def wait_for_commit(left: int) -> None:
            new = successor.raft
            is_elected = new is not None and new.role == "leader" and new.term_at(new.commit_index) == new.term
            if is_elected and self._remembers(successor, victim, image):
                self.provoke(leader, _RACE_NS)
                self._later(20 * MS, strike)
            elif left:
                self._later(MS, wait_for_commit, left - 1)
            else:
                self._network.mend(to_victim)

        def strike() -> None:
            self._count(fault)
            self._go_back(victim, image)
            self._network.mend(to_victim)
            self._network.cut(to_knowing, hold=False)
            victim.start()
            self._later(rng.randrange(60) * MS, self._network.mend, to_knowing)

        self.transfer(leader, successor.name)
        wait_for_election(3_000)

    def _remembers(self, machine: Machine, victim: Machine, image: dict[str, bytes]) -> bool:
        """Whether ``machine`` knows that the disk of ``victim`` had more than ``image`` has."""
        remembered = getattr(machine.raft, "remembered_records", None)
        if remembered is None or victim.raft is None:
            return False
        return bool(remembered(victim.name, victim.raft.incarnation) > records_in(image))

    def _do_orphaned_join(self, rng: Random, fault: Fault) -> None:
        """A node loses its disk. The first node that knows that its new join is committed, usually the leader, is killed. It
        stays down when everything else is healed."""
        leader = self.leader()
        if leader is None or self.down_for_good or not self._shelter():
            return
        machine = rng.choice([m for m in self.voting() if m is not leader])

        def committed(name: str, joined: str) -> None:
            known = self._by_name[name]
            if joined == machine.name and known is not machine and not self.down_for_good and not self._over:
                self._count(fault)
                self.down_for_good = True
                self.down = [known]
                known.kept_down = True
                self._world.after(1, known.crash, False)

        self.watch_joins(committed)
        self._lose_disk(machine)
        machine.start()

    def _do_copied_directory(self, rng: Random, fault: Fault) -> None:
        """A second process runs on a copy of a directory, and messages of both reach all nodes. Then the leader is restarted."""
        if self.single_directories or not self._shelter():
            return
        machine, leader = self._victim(rng), self.leader()
        copy = machine.copied()
        copy.start()
        self._count_if_up(fault, copy)
        self._network.add_copy(machine.name, copy)
        self.copies.append(copy)

        def restart_leader() -> None:
            if leader is not None:
                leader.crash(power_loss=False)
                leader.start()

        self._later(SECOND, restart_leader)
        self._later(3 * SECOND, self._remove_copies)

    def _remove_copies(self) -> None:
        for copy in self.copies:
            copy.crash(power_loss=False)
            self._network.copies.pop(copy.speaks_as, None)
        self.copies.clear()

    def _do_put_back(self, rng: Random, fault: Fault) -> None:
        """A node loses its disk and is promoted with a new one. Then its old disk is put back."""
        if not self._shelter():
            return
        machine = self._voter(rng)
        image = machine.disk.image()
        self._lose_disk(machine)
        machine.start()
        knowing = rng.choice([m for m in self.voting() if m is not machine])
        apart = [link for link in self._network.links if knowing.name in link]

        def strike(left: int) -> None:
            incarnation = machine.raft.incarnation if machine.raft else 0
            promoted = any(getattr(m.raft, "voters", {}).get(machine.name) == incarnation for m in self._machines if m.raft)
            if not promoted and left:
                self._later(5 * MS, strike, left - 1)
            elif promoted:
                self._count(fault)
                self._network.cut(apart, hold=False)
                self._go_back(machine, image)
                machine.start()
                self.provoke(machine, _RACE_NS)
                self._later(2 * SECOND, self._network.mend, apart)

        strike(600)

    def _do_clock(self, rng: Random, fault: Fault) -> None:
        machine = self._victim(rng)
        self._count_if_up(fault, machine)
        machine.set_clock_rate(self._rate(rng))

    # Races between a deposed leader, which may still answer, and the new one

    def _into(self, name: str) -> list[Link]:
        return [link for link in self._network.links if link[1] == name]

    def _do_slow_leader(self, rng: Random, fault: Fault) -> None:
        """The leader's clock runs slowest and all others fastest, and the leader is cut off."""
        leader = self.leader()
        if leader is None:
            return
        for machine in self._machines:
            machine.set_clock_rate(1.0 + self._drift * (-0.49 if machine is leader else 0.49))
        links = [link for link in self._network.links if leader.name in link] if rng.random() < 0.5 else self._into(leader.name)
        self._watch_links(fault, "cut", links)
        self._network.cut(links, hold=rng.random() < 0.5)
        self._later(fault.duration_ns + SECOND, self._judge, fault.number)
        self._later(fault.duration_ns + SECOND, self._network.mend, links)
        self.provoke(leader, _RACE_NS)

    def _do_abandoned(self, rng: Random, fault: Fault) -> None:
        """The leader is cut off while it writes. Then it returns and its successor is cut off, and so on.

        This leaves uncommitted entries of several terms at equal indexes, some of them on one follower."""

        def strike(cut: list[Link], left: int) -> None:
            self._network.mend(cut)
            leader = self.leader()
            if leader is None or left == 0 or self.is_sheltered():
                return
            links = [link for link in self._network.links if leader.name in link]
            if rng.random() < 0.3:
                links.remove(rng.choice([link for link in links if link[0] == leader.name]))
            self._count(fault)
            self._network.cut(links, hold=rng.random() < 0.5)
            self.provoke(leader, _RACE_NS)
            self._later(int((0.6 + 0.8 * rng.random()) * SECOND), strike, links, left - 1)

        strike([], rng.randint(1, 4))

    def _do_deaf_hand_over(self, rng: Random, fault: Fault) -> None:
        """The leader transfers leadership, and soon afterwards no message reaches it."""
        leader = self.leader()
        if leader is None:
            return
        self.transfer(leader, rng.choice([name for name in self._by_name if name != leader.name] or [None]))
        links = self._into(leader.name)
        self._watch_links(fault, "cut", links)
        self._later(fault.duration_ns + SECOND, self._judge, fault.number)
        self._later(int(rng.choice((1, 3, 10)) * rng.random() * MS), self._network.cut, links, False)
        self._later(fault.duration_ns + SECOND, self._network.mend, links)
        self.provoke(leader, _RACE_NS)

    def _do_forgetful_voter(self, rng: Random, fault: Fault) -> None:
        """One node has had no contact with the leader for long. Then the leader is cut off and the others are restarted."""
        leader = self.leader()
        others = [machine for machine in self._machines if machine is not leader]
        if leader is None or not others:
            return
        waiting = rng.choice(others)
        links = self._between({leader.name}, {machine.name for machine in others})
        early = self._between({leader.name}, {waiting.name})
        self.quiet(SECOND)  # wait, so that the waiting node has the whole log when it is cut off
        self._later(20 * MS, self._network.cut, early, False)

        def strike() -> None:
            if self.is_sheltered():
                return
            self._count(fault)
            self._network.cut(links, hold=False)
            self.provoke(leader, _RACE_NS)
            for machine in others:
                if machine is not waiting:
                    machine.crash(power_loss=False)
                    machine.start()

        self._later(int((0.25 + 0.4 * rng.random()) * SECOND), strike)
        self._later(fault.duration_ns + 2 * SECOND, self._network.mend, links)
        self._later(fault.duration_ns + 2 * SECOND, self._network.mend, early)

    def _do_amnesia(self, rng: Random, fault: Fault) -> None:
        """A minority lags. Then a node that knew the missing entries loses its disk, and the others that knew them are cut
        off.
        """
        if not self._all_voters():
            return
        machines = list(self.voting())
        rng.shuffle(machines)
        minority = len(machines) // 2
        late, forgetful, knowing = machines[:minority], machines[minority], machines[minority + 1 :]
        lag = self._between({m.name for m in late}, {m.name for m in machines[minority:]})
        apart = self._between({m.name for m in knowing}, {m.name for m in machines[: minority + 1]})
        self._network.cut(lag, hold=False)

        def strike() -> None:
            self._network.mend(lag)
            if self.is_sheltered():
                return
            self._network.cut(apart, hold=False)
            if self._all_voters():
                self._count(fault)
                self._lose_disk(forgetful)
                forgetful.start()

        self._later(SECOND, strike)
        self._later(2 * SECOND + fault.duration_ns, self._network.mend, apart)


def records_in(image: dict[str, bytes]) -> int:
    """Number of log records in an image of a disk."""
    disk = SimulatedDisk(Random(0))
    disk.restore(image)
    return Log(disk).number
