"""The nemesis: applies the planned faults at the planned times and records what it did.

The seed determines the schedule and all random choices, but not which node is the leader when a fault begins. A fault ends at
its planned end. Without one, it ends with the phase, or after the operator's last command if that is later. After an interruption
the cluster is stopped, and no fault is removed.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence

from replicated_namesrv.chaos.effects import Effect, Link
from replicated_namesrv.chaos.fault_plans import FaultPlan, RunMembers, Topology, exposed, plan, sides
from replicated_namesrv.chaos.node_disk import DiskFault
from replicated_namesrv.chaos.node_tls import CertificateFault
from replicated_namesrv.chaos.process_cluster import DIGEST_MISMATCH, ClusterNode, ProcessCluster
from replicated_namesrv.chaos.process_holds import Hold, ProcessHolds
from replicated_namesrv.chaos.recorder import Recorder
from replicated_namesrv.chaos.records import CRASH, KILLED, FaultRecord
from replicated_namesrv.chaos.run_operator import RunOperator
from replicated_namesrv.chaos.scenario import OPERATOR_KINDS, FaultKind, FaultSpec
from replicated_namesrv.chaos.wrong_state import alter, snapshots
from replicated_namesrv.child_process import ProcessError, UnexpectedExit
from replicated_namesrv.client.queries import delete_kv_request, put_kv_request, read_done
from replicated_namesrv.client.remoting import RemotingCommand
from replicated_namesrv.errors import NamesrvError

WATCH_S = 0.1
SNAPSHOT_S = 10.0
"""How long the fault ``wrong-state`` waits for the first snapshot of its node."""
DISK_FAULTS = {FaultKind.DISK_HANGS: DiskFault.HANGS, FaultKind.DISK_FULL: DiskFault.FULL}
FILLER, FILLER_BYTES = ("filler", "filler"), 62_000
"""Namespace and key of the KV entry of ``kv-fills``, and its size."""
KV_ATTEMPTS, KV_TIMEOUT_S = 5, 1.0
CERTIFICATE_FAULTS = {
    FaultKind.CERTIFICATE_EXPIRES: CertificateFault.EXPIRES,
    FaultKind.CERTIFICATE_UNUSABLE: CertificateFault.UNUSABLE,
}


class ClusterNemesis:
    """Faults of one run."""

    def __init__(
        self,
        cluster: ProcessCluster,
        topology: Topology,
        recorder: Recorder,
        operator: RunOperator,
        rng: random.Random,
        variant: Effect,
        at_edge: Callable[[set[str], set[str]], None],
        say: Callable[[str], None],
    ) -> None:
        """``at_edge`` is called before and after each change with the brokers that nodes may remove although they live, and the
        dead nodes.

        ``variant``: the effect of "cut" in this run.
        """
        self._cluster, self._topology, self._recorder = cluster, topology, recorder
        self._rng, self._variant, self._at_edge, self._say = rng, variant, at_edge, say
        self._holds = ProcessHolds()
        self._operator, self._operating = operator, asyncio.Lock()
        self._commands_left = 0
        self._commands_ended = asyncio.Event()
        self._spares = iter(topology.spares)
        self.members = RunMembers.of(topology.founders)
        """The members. The outcome of each command of the operator updates them."""
        self._lost_disks: set[str] = set()
        """Dead nodes whose data must be deleted before they start again."""
        self._wrong: dict[str, bool] = {}
        """Nodes whose state a fault has altered, and whether they have stopped because of that."""

    async def run(self, specs: Sequence[FaultSpec], fault_s: float) -> None:
        """Run all faults of the schedule. Returns when the last has ended."""
        rngs = [random.Random(self._rng.random()) for _ in specs]
        self._commands_left = sum(spec.kind in OPERATOR_KINDS for spec in specs)
        if not self._commands_left:
            self._commands_ended.set()
        async with asyncio.TaskGroup() as group:
            for number, (spec, rng) in enumerate(zip(specs, rngs, strict=True), 1):
                group.create_task(self._one(number, spec, fault_s, rng))

    async def _one(self, number: int, spec: FaultSpec, fault_s: float, rng: random.Random) -> None:
        await asyncio.sleep(spec.at_s)
        if spec.kind in OPERATOR_KINDS or spec.target == "spare":
            async with self._operating:
                made = await self._planned(spec, rng)
                if spec.kind in OPERATOR_KINDS:
                    await self._operate(number, spec, made)
                    self._commands_left -= 1
                    if not self._commands_left:
                        self._commands_ended.set()
                    return
        else:
            made = await self._planned(spec, rng)
        for_s = spec.for_s if spec.for_s is not None else fault_s - spec.at_s
        if spec.kind in DISK_FAULTS.keys() | CERTIFICATE_FAULTS.keys() | {FaultKind.KV_FILLS}:
            await self._lasting_fault(number, spec, made, for_s)
        elif spec.kind is FaultKind.WRONG_STATE and self._cluster.has_members:
            await self._wrong_state(number, spec, made, for_s)
        elif made.effect is None:
            await self._process_fault(number, spec, made, for_s)
        elif spec.flap_s is None:
            await self._cut(number, spec, made)
            await self._last(spec, for_s)
            await self._heal(number, spec, made)
        else:
            await self._flap(number, spec, made, for_s)

    async def _last(self, spec: FaultSpec, for_s: float) -> None:
        """Wait until the end of a fault."""
        await asyncio.sleep(for_s)
        if spec.for_s is None:
            await self._commands_ended.wait()

    async def _planned(self, spec: FaultSpec, rng: random.Random) -> FaultPlan:
        return plan(spec, self._topology, await self._cluster.leader(), self._variant, rng, self.members.nodes)

    async def _operate(self, number: int, spec: FaultSpec, made: FaultPlan) -> None:
        """Perform one action of the operator: change the members, or drain nodes."""
        if spec.kind is FaultKind.DRAIN:
            for name in made.nodes:
                await self._drain(number, spec, made._replace(nodes=(name,)))
            return
        old = self.members
        leaving = () if spec.kind is FaultKind.ADD_NODE else made.nodes
        added = () if spec.kind is FaultKind.REMOVE_NODE else (next(self._spares),)
        voters, voting = old.voters[-1], () if spec.observer else added
        changed = _changed(voters, voting, leaving)
        after = RunMembers(_changed(old.nodes, added, leaving), (changed,))
        made, began_ns = made._replace(nodes=(*leaving, *added)), self._recorder.now_ns()
        in_force = dict.fromkeys((voters, _changed(voters, voting, ()), changed))
        self.members = RunMembers((*old.nodes, *added), tuple(in_force))
        self._forewarn()
        self._edge(number, "start", began_ns, spec, made)
        if spec.kind is FaultKind.REPLACE_NODE:
            is_done = await self._operator.replace(*leaving, *added)
        elif spec.kind is FaultKind.ADD_NODE:
            is_done = await self._operator.add(*added, observer=spec.observer)
        else:
            is_done = await self._operator.remove(*leaving)
        began_ns = self._recorder.now_ns()
        if is_done:
            self.members = after
            for name in () if self._cluster.has_members else leaving:
                await self._hold(number, name, Hold.DEAD, spec.kind)
        self._edge(number, "end", began_ns, spec, made)

    async def _drain(self, number: int, spec: FaultSpec, made: FaultPlan) -> None:
        (name,) = made.nodes
        began_ns = self._recorder.now_ns()
        self._forewarn(dead=made.nodes)
        self._edge(number, "start", began_ns, spec, made)
        await self._operator.drain(name)

        async def restart() -> None:
            self._forewarn(dead=made.nodes)
            await self._hold(number, name, Hold.DEAD, spec.kind)
            await self._release(number, name, spec.kind)

        await self._operator.restart(name, restart)
        self._edge(number, "end", self._recorder.now_ns(), spec, made)

    async def _flap(self, number: int, spec: FaultSpec, made: FaultPlan, for_s: float) -> None:
        assert spec.flap_s is not None
        end = asyncio.get_running_loop().time() + for_s
        while (left_s := end - asyncio.get_running_loop().time()) > 0:
            await self._cut(number, spec, made)
            await asyncio.sleep(min(spec.flap_s, left_s))
            await self._heal(number, spec, made)
            await asyncio.sleep(max(0.0, min(spec.flap_s, end - asyncio.get_running_loop().time())))

    async def _cut(self, number: int, spec: FaultSpec, made: FaultPlan) -> None:
        assert made.effect is not None
        began_ns = self._recorder.now_ns()
        self._forewarn(links=made.links if made.effect.breaks else ())
        await self._cluster.links.impair(number, made.links, made.effect)
        self._edge(number, "start", began_ns, spec, made)

    async def _heal(self, number: int, spec: FaultSpec, made: FaultPlan) -> None:
        began_ns = self._recorder.now_ns()
        await self._cluster.links.relieve(number, made.links)
        self._edge(number, "end", began_ns, spec, made)

    async def _process_fault(self, number: int, spec: FaultSpec, made: FaultPlan, for_s: float) -> None:
        began_ns = self._recorder.now_ns()
        hold = {FaultKind.PAUSE: Hold.PAUSED, FaultKind.HAND_OVER: None}.get(spec.kind, Hold.DEAD)
        in_turn = spec.kind is FaultKind.ROLLING_RESTART
        self._forewarn(stopped=made.nodes if hold is Hold.PAUSED else (), dead=made.nodes if hold is Hold.DEAD else ())
        if spec.kind is FaultKind.HAND_OVER:
            await asyncio.gather(*(self._cluster.hand_over(name) for name in made.nodes))
        elif hold is not None and not in_turn:
            await asyncio.gather(*(self._hold(number, name, hold, spec.kind) for name in made.nodes))
        self._edge(number, "start", began_ns, spec, made)
        if spec.kind in (FaultKind.PAUSE, FaultKind.KILL, FaultKind.POWER_LOSS, FaultKind.JOIN_EMPTY):
            await self._last(spec, for_s)
        for name in made.nodes if in_turn else ():
            await self._hold(number, name, Hold.DEAD, spec.kind)
            await self._release(number, name, spec.kind)
            if self._holds.state(name) == "running":
                await self._cluster.wait_ready(name)
        began_ns = self._recorder.now_ns()
        for name in made.nodes if hold is not None and not in_turn else ():
            await self._release(number, name, spec.kind)
        self._edge(number, "end", began_ns, spec, made)

    async def _wrong_state(self, number: int, spec: FaultSpec, made: FaultPlan, for_s: float) -> None:
        """Let a node run with a wrong state, until the fault ends or the node stops by itself. Then give it an empty disk."""
        (name,) = made.nodes
        node, loop = self._cluster.nodes[name], asyncio.get_running_loop()
        ends = loop.time() + for_s
        latest = loop.time() + SNAPSHOT_S
        while not snapshots(node.data_dir) and loop.time() < latest:  # noqa: ASYNC110 - no event is set when a node writes a file
            await asyncio.sleep(WATCH_S)
        began_ns = self._recorder.now_ns()
        self._forewarn(dead=made.nodes)
        await self._hold(number, name, Hold.DEAD, spec.kind)
        alter(node.data_dir)
        self._wrong[name] = False
        await self._release(number, name, spec.kind)
        self._edge(number, "start", began_ns, spec, made)
        while loop.time() < ends:
            if not self._wrong[name] and (ended := node.process.ended) and self._is_expected(node):
                self._wrong[name] = True
                self._holds.add(number, name, Hold.DEAD)
                self._record_end(number, node, ended)
                self._forewarn(dead=made.nodes)
                self._say(f"{name} has stopped because of its wrong state")
            await asyncio.sleep(WATCH_S)
        await self._last(spec, 0)
        began_ns = self._recorder.now_ns()
        self._wrong[name] = True  # a start empties the output that says why the node stopped
        await self._hold(number, name, Hold.DEAD, FaultKind.JOIN_EMPTY)
        await self._release(number, name, FaultKind.JOIN_EMPTY)
        self._wrong.pop(name, None)
        self._edge(number, "end", began_ns, spec, made)

    def _is_expected(self, node: ClusterNode) -> bool:
        """Whether a fault causes the end of ``node``, which has ended by itself."""
        has_stopped = self._wrong.get(node.name)
        return has_stopped or (has_stopped is False and node.stop_reason() == DIGEST_MISMATCH)

    def _unexpected(self) -> list[tuple[ClusterNode, UnexpectedExit]]:
        """The nodes that have ended, although this run neither ended them nor caused it."""
        return [(node, ended) for node, ended in self._cluster.ended() if not self._is_expected(node)]

    async def _lasting_fault(self, number: int, spec: FaultSpec, made: FaultPlan, for_s: float) -> None:
        """A fault that changes the environment of running nodes until it ends: a node's disk, its files, or its stored data."""
        began_ns = self._recorder.now_ns()
        await self._turn(spec.kind, made.nodes, begins=True)
        self._edge(number, "start", began_ns, spec, made)
        await self._last(spec, for_s)
        began_ns = self._recorder.now_ns()
        await self._turn(spec.kind, made.nodes, begins=False)
        self._edge(number, "end", began_ns, spec, made)

    async def _turn(self, kind: FaultKind, names: Iterable[str], *, begins: bool) -> None:
        """Begin or end such a fault at the nodes ``names``."""
        request = put_kv_request(*FILLER, "x" * FILLER_BYTES) if begins else delete_kv_request(*FILLER)
        for name in names:
            if kind is FaultKind.KV_FILLS:
                await self._change_kv(name, request)
            else:
                (_begin if begins else _end)(kind, self._cluster.nodes[name])

    async def _change_kv(self, name: str, request: RemotingCommand) -> None:
        """Send ``request`` to a node until it is accepted, for some seconds."""
        for _ in range(KV_ATTEMPTS):
            answer = await self._cluster.ask(name, request, KV_TIMEOUT_S)
            try:
                if answer is not None:
                    read_done(answer)
                    return
            except NamesrvError as error:
                self._say(f"{name} refuses a change of the KV config: {error}")
            await asyncio.sleep(WATCH_S)

    async def _hold(self, number: int, name: str, hold: Hold, kind: FaultKind) -> None:
        process = self._cluster.nodes[name].process
        self._holds.add(number, name, hold)
        if hold is Hold.PAUSED:
            if process.state == "running":
                process.pause()
        elif process.running:
            await (process.kill() if kind in (FaultKind.KILL, FaultKind.POWER_LOSS, FaultKind.JOIN_EMPTY) else process.stop())
            if kind is FaultKind.POWER_LOSS:
                self._cluster.nodes[name].lose_unsynced()

    async def _release(self, number: int, name: str, kind: FaultKind) -> None:
        """End the hold of one fault on the node's process; holds of other faults on the same node stay in force."""
        node = self._cluster.nodes[name]
        self._holds.remove(number, name)
        wanted = self._holds.state(name)
        if kind is FaultKind.JOIN_EMPTY:
            self._lost_disks.add(name)
        if wanted != "dead" and not node.process.running:
            if name in self._lost_disks:
                node.wipe()
                self._lost_disks.discard(name)
            await node.process.start()
        if wanted == "paused" and node.process.state == "running":
            node.process.pause()
        elif wanted == "running" and node.process.state == "paused":
            node.process.resume()

    async def watch_processes(self) -> None:
        """Wait until a process ends that this run did not end. ``check_processes`` then names it."""
        while not self._unexpected() and self._cluster.toxiproxy_runs:  # noqa: ASYNC110 - no event is set when a process ends
            await asyncio.sleep(WATCH_S)

    def check_processes(self) -> None:
        """Raise ProcessError if a node has ended that this run did not end, or if Toxiproxy has ended. The end of a node is
        recorded as a fault without an end.
        """
        for node, ended in self._unexpected():
            self._record_end(0, node, ended)
        for node, ended in self._unexpected():
            why = "by itself" if ended.by_itself else "though nothing in this run ended it"
            said = " | ".join(node.process.last_lines())
            how = node.stop_reason() or ended.how
            raise ProcessError(f"{node.name} ended {why} ({how}), see {node.log_file}: {said}")
        self._cluster.check_toxiproxy()

    def _record_end(self, number: int, node: ClusterNode, ended: UnexpectedExit) -> None:
        """Record that a node has ended. ``number``: the fault that caused it, 0 for none."""
        now_ns = self._recorder.now_ns()
        what = f"{CRASH if ended.by_itself else KILLED}: {node.stop_reason() or ended.how}"
        now = sides(self.members.nodes, self._cluster.links.broken(), self._in_state("paused", "dead"))
        voters = [list(one) for one in self.members.voters]
        self._recorder.write(FaultRecord(now_ns, number, "start", now_ns, what, None, [node.name], [], now, [], voters))

    def _forewarn(self, links: Iterable[Link] = (), stopped: Iterable[str] = (), dead: Iterable[str] = ()) -> None:
        """Mark brokers as exposed from the moment when their first link changes, because links do not change at one instant."""
        now, gone = self._cluster.links.broken(), self._in_state("paused", "dead")
        soon = exposed(self._topology, now.union(links), gone.union(stopped, dead), self.members)
        self._at_edge(soon | exposed(self._topology, now, gone, self.members), self._in_state("dead").union(dead))

    def _in_state(self, *states: str) -> set[str]:
        return {name for name, node in self._cluster.nodes.items() if node.process.state in states}

    def _edge(self, number: int, edge: str, began_ns: int, spec: FaultSpec, made: FaultPlan) -> None:
        broken = self._cluster.links.broken()
        gone = self._in_state("paused", "dead")
        voters = [list(one) for one in self.members.voters]
        variant = None if made.effect is None else made.effect.value
        links, streams = [str(link) for link in made.links], [str(stream) for stream in made.links.values()]
        now = sides(self.members.nodes, broken, gone)
        self._recorder.write(
            FaultRecord(
                self._recorder.now_ns(), number, edge, began_ns, spec.kind, variant, list(made.nodes), links, now, streams, voters
            )
        )
        what = f"{spec.kind}{f' ({variant})' if variant else ''} of {', '.join(made.nodes)}"
        self._say(f"{'begins' if edge == 'start' else 'ends'}: {what}; sides {_shown(now)}")
        self._at_edge(exposed(self._topology, broken, gone, self.members), self._in_state("dead"))


def _begin(kind: FaultKind, node: ClusterNode) -> None:
    if kind in DISK_FAULTS:
        DISK_FAULTS[kind].begin(node.synced_file)
    elif node.tls is not None:
        node.tls.begin(CERTIFICATE_FAULTS[kind])


def _end(kind: FaultKind, node: ClusterNode) -> None:
    if kind in DISK_FAULTS:
        DISK_FAULTS[kind].end(node.synced_file)
    elif node.tls is not None:
        node.tls.end()


def _changed(nodes: Sequence[str], added: Sequence[str], leaving: Sequence[str]) -> tuple[str, ...]:
    return tuple(node for node in (*nodes, *added) if node not in leaving)


def _shown(found: Iterable[Sequence[str]]) -> str:
    return " | ".join(" ".join(side) for side in found)
