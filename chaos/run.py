"""Executes one run in an empty folder: start the processes, run the workload, inject faults, remove them, read everything at
the end.

However the run ends, by a verdict, an error, Ctrl-C or a kill, none of its processes remains: the kernel ends those that the
harness can no longer stop. The folder keeps what was recorded until then.
"""

import asyncio
import hashlib
import json
import os
import platform
import random
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import replicated_namesrv
from replicated_namesrv.chaos.clients import NAMESPACE
from replicated_namesrv.chaos.effects import Effect
from replicated_namesrv.chaos.fault_plans import expand
from replicated_namesrv.chaos.fault_plans import plan as draw_plan
from replicated_namesrv.chaos.foreign_servers import ForeignServer, prepare
from replicated_namesrv.chaos.machine_load import MachineLoad
from replicated_namesrv.chaos.metrics_recorder import METRICS_FILE, MetricsRecorder
from replicated_namesrv.chaos.nemesis import ClusterNemesis
from replicated_namesrv.chaos.node_disk import has_disk
from replicated_namesrv.chaos.node_looks import AdminLooks, RemotingLooks
from replicated_namesrv.chaos.observer import ClusterObserver
from replicated_namesrv.chaos.process_cluster import ProcessCluster
from replicated_namesrv.chaos.recorder import Recorder
from replicated_namesrv.chaos.records import (
    MANIFEST_FILE,
    SCHEMA_VERSION,
    TRACE_FILE,
    End,
    Header,
    Phase,
    TraceError,
    TraceWriter,
)
from replicated_namesrv.chaos.run_access import OPEN, enforced
from replicated_namesrv.chaos.run_modes import foreign, in_file_name, promises_of
from replicated_namesrv.chaos.run_operator import RunOperator
from replicated_namesrv.chaos.sample_group import SETTINGS as SAMPLE_SETTINGS
from replicated_namesrv.chaos.scenario import ChaosScenario, FaultKind
from replicated_namesrv.chaos.warm_up import warm_up
from replicated_namesrv.chaos.watcher import WATCHED, EventWatcher
from replicated_namesrv.chaos.workload import DEPUTY_SETTINGS, Cast, Workload
from replicated_namesrv.child_process import SERVE
from replicated_namesrv.client.broker_requests import BrokerVersion
from replicated_namesrv.errors import SettingError
from replicated_namesrv.files import write_atomically
from replicated_namesrv.settings_sources import load_settings

OBSERVE_INTERVAL_MS = 250
HEAL_MIN_S, AGREED_S = 3.0, 1.5
LOAD_INTERVAL_S = 0.25
LISTED_S = 5.0
NODE_SETTINGS = ("scanNotActiveBrokerInterval=500",)
"""Settings of all nodes: they look for silent brokers often, so that short time-outs are exact."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """All parameters of a run."""

    scenario: ChaosScenario
    mode: str
    """ap, cp, or a foreign name server (``run_modes``)."""
    nodes: int
    seed: int
    suite: str = "single"
    read_consistency: str = "linearizable"
    variant: str | None = None
    """How cut links behave: silent or held. None: the parity of the seed decides."""
    duration_s: float | None = None
    """Length of the phase ``fault``. None: the length in the scenario."""
    judged_as: str | None = None
    """The mode, ap or cp, whose promises are checked. None: the promises of the mode itself."""
    node_command: Sequence[str] = SERVE
    enforces_access: bool = False
    """Whether the nodes have ``accessPolicy=enforce``, and brokers and clients send credentials."""
    metrics_s: float | None = None
    """Time between two scrapes of each node's metrics, which are then recorded. None: no scrapes."""
    looks_by_remoting: bool = False
    """Whether AP nodes are observed in the same way as foreign ones, so that both can be compared."""

    @property
    def cut(self) -> Effect:
        """The effect of a cut link in this run."""
        return Effect(self.variant) if self.variant else (Effect.SILENT, Effect.HELD)[self.seed % 2]

    @property
    def node_names(self) -> list[str]:
        """The names of all nodes, spares last."""
        return [f"n{number + 1}" for number in range(self.nodes + self.scenario.spares)]

    @property
    def name(self) -> str:
        """Folder name without the time."""
        return f"{self.seed}-{self.scenario.name}-{in_file_name(self.mode)}-{self.nodes}"

    def timed(self) -> ChaosScenario:
        """The scenario with ``duration_s`` applied. Faults keep their share of the phase."""
        if self.duration_s is None:
            return self.scenario
        timing, factor = self.scenario.timing, self.duration_s / self.scenario.timing.fault_s
        faults = tuple(
            replace(one, at_s=one.at_s * factor, for_s=None if one.for_s is None else one.for_s * factor)
            for one in self.scenario.fault
        )
        return replace(self.scenario, timing=replace(timing, fault_s=self.duration_s), fault=faults)


async def run(plan: RunPlan, folder: Path, toxiproxy: Path, begun: Callable[[], None], say: Callable[[str], None]) -> None:
    """Execute the plan in the empty folder ``folder``. SIGTERM and SIGHUP cancel it.

    ``begun`` is called when everything has started and the first record is written. Before that the folder contains logs, data
    and the manifest. Raises NamesrvError if the run cannot be made or fails. Even then there may be a trace.
    """
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # if nohup made this process ignore the signal, go on ignoring it
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    asyncio.get_running_loop().set_exception_handler(_quietly)
    scenario = plan.timed()
    rng = random.Random(f"{scenario.name} {plan.seed} {plan.nodes}")
    mode = foreign(plan.mode)
    if mode is not None and not mode.has_deputies:
        scenario = replace(scenario, workload=replace(scenario.workload, deputy=False, zones=False))
    if mode is not None:
        scenario = replace(scenario, workload=replace(scenario.workload, sample=False))
    workload = scenario.workload
    settings = [*NODE_SETTINGS, *(DEPUTY_SETTINGS if workload.deputy else ()), *(SAMPLE_SETTINGS if workload.sample else ())]
    settings += scenario.settings
    if plan.mode == "cp":
        settings.append(f"readConsistency={plan.read_consistency}")
    server = None if mode is None else await asyncio.to_thread(prepare, mode, settings, say)
    if server is not None:
        if server.left_out:
            say(f"{plan.mode} has no such setting, left out: {', '.join(server.left_out)}")
        settings = list(server.settings)
    cast = Cast(scenario.workload, plan.node_names, scenario.spares)
    system_rng = random.SystemRandom()
    access = enforced(folder) if plan.enforces_access else OPEN
    promises, links = promises_of(plan.mode), cast.links()
    made = ProcessCluster(
        folder,
        plan.nodes,
        promises,
        settings,
        links,
        system_rng,
        toxiproxy,
        plan.node_command,
        server,
        access,
        scenario.spares,
        len(cast.listening),
        scenario.sync_ms if has_disks(plan) else None,
        scenario.has_certificates,
    )
    if scenario.has_disks and not has_disks(plan):
        say("the nodes are not started with namesrv serve, so their disks do not fail, and are not slow")
    async with made as cluster:
        say(f"starting {plan.nodes} nodes, mode {plan.mode}, in {folder}")
        if scenario.round_trip_ms:
            sites = [[name] for name in plan.node_names]
            await cluster.links.delay(cast.topology().crossing(sites, "sites"), scenario.round_trip_ms)
        await cluster.start()
        if server is not None and server.is_warmed_up:
            say("warming up the nodes")
            await warm_up([cluster.nodes[name].listen for name in cluster.founders], server.brokers)
        manifest = _manifest(plan, scenario, folder, cast, cluster, settings, server)
        write_atomically(folder / MANIFEST_FILE, json.dumps(manifest, indent=1).encode())
        writer = TraceWriter(folder / TRACE_FILE)
        try:
            recorder = Recorder(writer)
            recorder.write(Header(recorder.now_ns(), SCHEMA_VERSION, folder.name, time.time_ns()))
            begun()
            await _Stage(plan, scenario, cast, cluster, server, recorder, rng, say, folder).play()
            recorder.write(End(recorder.now_ns(), writer.count))
        finally:
            writer.close()


def has_disks(plan: RunPlan) -> bool:
    """Whether the nodes get disks that can fail (``node_disk``). Foreign nodes, and those of another command, cannot."""
    return plan.scenario.has_disks and foreign(plan.mode) is None and has_disk(plan.node_command)


class _Stage:
    """The phases of one run."""

    def __init__(
        self,
        plan: RunPlan,
        scenario: ChaosScenario,
        cast: Cast,
        cluster: ProcessCluster,
        server: ForeignServer | None,
        recorder: Recorder,
        rng: random.Random,
        say: Callable[[str], None],
        folder: Path,
    ) -> None:
        self._scenario, self._recorder, self._rng, self._say = scenario, recorder, rng, say
        by_remoting = RemotingLooks(cluster, cast.all_topics(), NAMESPACE)
        looks = by_remoting if _looks_by_remoting(plan) else AdminLooks(cluster)
        self._observer = ClusterObserver(cluster, looks, recorder, OBSERVE_INTERVAL_MS)
        self._watcher = EventWatcher(cluster, recorder) if server is None else None
        nemesis_rng, workload_rng = random.Random(rng.random()), random.Random(rng.random())
        brokers = BrokerVersion.V5_3 if server is None else server.brokers
        self._workload = Workload(scenario.workload, cast, cluster, recorder, workload_rng, brokers, sets=server is None)
        self._operator = RunOperator(cluster, recorder, folder, self._workload.use_nodes)
        self._nemesis = ClusterNemesis(
            cluster, cast.topology(), recorder, self._operator, nemesis_rng, plan.cut, self._at_edge, say
        )
        self._cluster = cluster
        self._metrics = None
        if plan.metrics_s is not None:
            self._metrics = MetricsRecorder(cluster, folder / METRICS_FILE, plan.metrics_s, recorder.now_ns)
        self._load = MachineLoad(lambda: [pid for node in cluster.nodes.values() if (pid := node.process.pid) is not None])

    def _at_edge(self, exposed: set[str], dead: set[str]) -> None:
        self._workload.at_edge(exposed, dead)
        self._observer.at_edge()

    async def play(self) -> None:
        """Run all phases, from the first registration to the last read."""
        works = [self._phases(), self._nemesis.watch_processes(), self._observer.run()]
        works += [self._workload.watch_own_pauses(), self._sample_load()]
        works += [] if self._watcher is None else [self._watcher.run()]
        works += [] if self._metrics is None else [self._metrics.run()]
        works += [self._operator.follow_list()] if self._scenario.has_operator and self._cluster.has_members else []
        tasks = [asyncio.create_task(work) for work in works]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            self._nemesis.check_processes()  # a process that has ended explains any other error, so report it first
            for task in done:
                await task
        except ExceptionGroup as group:
            raise _first(group) from group
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._workload.close()

    async def _phases(self) -> None:
        timing, workload = self._scenario.timing, self._workload
        faults = expand(self._scenario.fault, timing.fault_s, self._rng)
        self._phase("settle")
        await workload.start()
        await self._look_at_all_brokers()
        workload.begin(timing.steady_s)
        self._phase("steady")
        await asyncio.sleep(timing.steady_s)
        self._phase("fault")
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nemesis.run(faults, timing.fault_s))
            group.create_task(workload.during_fault(timing.fault_s))
            group.create_task(asyncio.sleep(timing.fault_s))
        await self._cluster.links.reset()
        self._phase("heal")
        workload.complain()
        await workload.calm()
        await self._settle(timing.heal_s)
        self._phase("final")
        workload.complain()
        await workload.end()
        members = sorted(self._nemesis.members.nodes)
        await workload.final_reads(timing.final_s, members)
        if self._scenario.has_operator:
            await self._operator.look(members)
        self._observer.at_edge()
        await asyncio.sleep(2 * OBSERVE_INTERVAL_MS / 1000)
        if self._watcher is not None:
            self._watcher.report(members)
        self._phase("end")

    async def _look_at_all_brokers(self) -> None:
        """Wait until a look at each node has shown all brokers, at most LISTED_S. Some brokers die as soon as the clients begin.
        Checks judge the removal of a broker only if the node was seen to list it."""
        loop = asyncio.get_running_loop()
        until = loop.time() + LISTED_S
        self._observer.at_edge()
        while loop.time() < until:
            alive = [broker.name for broker in self._workload.brokers.values() if broker.alive]
            if self._observer.shows(self._cluster.founders, alive):
                return
            await asyncio.sleep(0.02)

    async def _sample_load(self) -> None:
        while True:
            self._load.sample()
            await asyncio.sleep(LOAD_INTERVAL_S)

    async def _settle(self, longest_s: float) -> None:
        """Wait until all nodes have answered the same for AGREED_S: at least HEAL_MIN_S, at most ``longest_s``."""
        loop = asyncio.get_running_loop()
        began = agreed_from = loop.time()
        while (now := loop.time()) < began + longest_s:
            agreed_from = agreed_from if self._observer.agree(self._nemesis.members.nodes) else now
            if now - began >= HEAL_MIN_S and now - agreed_from >= AGREED_S:
                return
            await asyncio.sleep(0.05)

    def _phase(self, name: str) -> None:
        self._recorder.write(Phase(self._recorder.now_ns(), name, self._load.take()))
        self._say(f"phase {name}: {self._recorder.succeeded} of {self._recorder.issued} operations succeeded so far")


def _quietly(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """The first disk error ends the run and is reported. Later disk errors of other tasks are ignored."""
    if not isinstance(context.get("exception"), TraceError):
        loop.default_exception_handler(context)


def check_fits(plan: RunPlan) -> None:
    """Raise SettingError if a fault names a node that this cluster size does not have, if it has no effect at this size, or if
    the product's own nodes do not know a setting."""
    names = plan.node_names
    topology, rng = Cast(plan.scenario.workload, names, plan.scenario.spares).topology(), random.Random(0)
    for number, spec in enumerate(plan.scenario.fault, 1):
        if spec.kind is FaultKind.RANDOM and plan.nodes > 1:
            continue
        try:
            made = draw_plan(spec, topology, names[0], plan.cut, rng) if spec.kind is not FaultKind.RANDOM else None
        except SettingError as cause:
            raise SettingError(f"scenario {plan.scenario.name}: fault {number}: {cause}") from cause
        if made is None or (made.effect is not None and not made.links):
            raise SettingError(
                f"scenario {plan.scenario.name}: fault {number}: {spec.kind} of {spec.target} touches nothing in a cluster of "
                f"{plan.nodes}; take more nodes or another fault"
            )
    if plan.node_command == SERVE and foreign(plan.mode) is None:
        try:
            load_settings(flags=dict(setting.split("=", 1) for setting in plan.scenario.settings), environment={})
        except SettingError as cause:
            raise SettingError(f"scenario {plan.scenario.name}: settings: {cause}") from cause


def _first(group: ExceptionGroup) -> Exception:
    """The first error of a group; this is the error to report."""
    error: Exception = group
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _looks_by_remoting(plan: RunPlan) -> bool:
    """CP nodes are always observed at their admin port, because the checks of revisions need it."""
    return foreign(plan.mode) is not None or (plan.mode == "ap" and plan.looks_by_remoting)


def _manifest(
    plan: RunPlan,
    scenario: ChaosScenario,
    folder: Path,
    cast: Cast,
    cluster: ProcessCluster,
    settings: Sequence[str],
    server: ForeignServer | None,
) -> dict[str, Any]:
    workload = scenario.workload
    return {
        "schema": SCHEMA_VERSION,
        "run": folder.name,
        "suite": plan.suite,
        "scenario": scenario.as_json(),
        "seed": plan.seed,
        "mode": plan.mode,
        "read_consistency": plan.read_consistency if plan.mode == "cp" else None,
        "judged_as": plan.judged_as or promises_of(plan.mode),
        "cut": plan.cut.value,
        "settings": [*settings, *cluster.access.settings],
        "nodes": [
            {"node": node.name, "listen": node.listen, "admin": node.admin, "spare": node.name in cast.spares}
            for node in cluster.nodes.values()
        ],
        "clients": [
            {"client": name, "kind": kind, "node": name.removeprefix("pinned-") if kind == "pinned" else None}
            for name, kind in cast.clients.items()
        ],
        "brokers": [
            {"broker": name, "topics": topics, "timeout_ms": workload.broker_timeout_ms} for name, topics in cast.brokers.items()
        ],
        "topics": cast.all_topics(),
        "kv_keys": cast.kv_keys,
        "asks": [*cast.asks(), WATCHED] if server is None else [],
        "observe_interval_ms": OBSERVE_INTERVAL_MS,
        "deadline_ms": workload.operation_timeout_ms,
        "clock": {
            "source": "CLOCK_MONOTONIC",
            "offsets": {node: {"offset_ns": 0, "uncertainty_ns": 0} for node in cluster.nodes},
        },
        "versions": {
            "product": replicated_namesrv.__version__,
            "python": platform.python_version(),
            "toxiproxy": cluster.toxiproxy_version,
            "toxiproxy_python": metadata.version("toxiproxy-python"),
            "commit": _commit(),
            "source_sha256": _source_sha256(),
            **({} if server is None else server.versions),
        },
        "node_command": list(plan.node_command),
        "sets_settings": workload.mqadmin and server is None,
        "looks": (RemotingLooks if _looks_by_remoting(plan) else AdminLooks).name,
        "settings_left_out": [] if server is None else list(server.left_out),
        "machine": {"system": platform.platform(), "cores": os.cpu_count(), "memory_bytes": _memory_bytes()},
        "started_wall_ns": time.time_ns(),
    }


def _commit() -> str | None:
    """Commit of the checkout that runs; None outside of a checkout."""
    folder = Path(__file__).resolve().parent
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, timeout=10, check=True)
        changed = subprocess.run(
            ["git", "status", "--porcelain", "-uno"], cwd=folder, capture_output=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return commit.stdout.strip() + (" and changes" if changed.stdout else "")


def _source_sha256() -> str:
    """Hash of all code and scenarios of this package, by path. It identifies the code even without git."""
    root, digest = Path(replicated_namesrv.__file__).parent, hashlib.sha256()
    files = [Path(folder, name) for folder, _, names in os.walk(root, followlinks=True) for name in names]
    for path in sorted(path for path in files if path.suffix in (".py", ".toml")):
        digest.update(f"{path.relative_to(root).as_posix()}\n{path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
