"""The subjects of a simulation: the shipped Raft core (possibly without one defence), or plain PySyncObj.

A run draws its settings from its seed. Small limits are drawn often, so that snapshots, chunked messages and full windows are
frequent.
"""

from collections.abc import Collection
from dataclasses import replace
from random import Random
from typing import NamedTuple

from replicated_namesrv.raft.raft_config import Defences, RaftConfig
from replicated_namesrv.raft.raft_node import RaftNode
from replicated_namesrv.replication.liveness.defences import LivenessDefences
from replicated_namesrv.simulation.application import Application, RegisterApplication, RegisterStateMachine
from replicated_namesrv.simulation.brokers import Brokers
from replicated_namesrv.simulation.machine import Machine
from replicated_namesrv.simulation.plain import build_plain
from replicated_namesrv.simulation.process_views import Process
from replicated_namesrv.simulation.route_cluster import NameServer, RouteCluster, silenced
from replicated_namesrv.simulation.simulation import RunResult, Scenario, Simulation
from replicated_namesrv.simulation.world import MS, SECOND, World

_CATCH_UP_ELECTION_TIMES = 5
_SLOWEST = 1.2
"""Upper bound of the duration of a second of the slowest clock, in seconds of the world."""
_SLACK_MS = 500
_SMALL_BOUNDS_SHARE = 0.2
"""Share of the runs with small bounds of memory."""
LATE_COPY_MS = 450
"""``lateCopyMs``, less than the shortest period of the simulated brokers."""


def draw_config(world: World, defences: Defences) -> RaftConfig:
    """Draw the settings of one run."""
    rng = world.random("config")
    compact_entries = rng.choice((20, 60, 300, 2_000))
    append_bytes_max = rng.choice((512, 2_048, 256 << 10))
    return RaftConfig(
        clock_drift_max=rng.choice((0.05, 0.25)),
        lease_reads=rng.random() < 0.7,
        proposal_timeout_ms=2_000,
        read_timeout_ms=1_000,
        command_bytes_max=4_096,
        entry_bytes_max=rng.choice((64, 1_024, 128 << 10)),
        append_bytes_max=append_bytes_max,
        inflight_bytes_max=rng.choice((2_048, 4 << 20)),
        # with fewer messages in flight, a node would not catch up over slow disks in the allowed time
        inflight_messages_max=rng.choice((8, 64) if append_bytes_max == 512 else (1, 3, 64)),
        apply_entries_max=rng.choice((16, 512)),
        compact_entries=compact_entries,
        compact_margin_entries=rng.choice((0, compact_entries // 4)),
        segment_bytes=rng.choice((512, 4_096, 1 << 20)),
        snapshot_slice_bytes=rng.choice((64, 512, 4_096)),
        digest_interval_entries=rng.choice((8, 64)),
        defences=defences,
    )


def has_small_bounds(world: World) -> bool:
    """Whether a run of the Raft core has bounds of memory that are so small that the load reaches them."""
    return _are_small(world.random("bounds"))


def _are_small(rng: Random) -> bool:
    return rng.random() >= 1 - _SMALL_BOUNDS_SHARE


_LARGE_COMMANDS_SHARE, _LARGE_BYTES = 0.03, 150_000
"""Share of the runs with bursts of long commands, which reach the bound of the encoded entries; length of these commands."""


class _Bounds(NamedTuple):
    """Settings with small bounds, and the load that reaches them."""

    config: RaftConfig
    burst_commands: int
    burst_bytes: int
    faults: tuple[str, ...]


def _draw_bounds(world: World, config: RaftConfig, may_be_long: bool) -> _Bounds | None:
    """Settings with small bounds of one kind of memory, or long commands. None: the run has the usual bounds. ``may_be_long``:
    whether commands may be long. A new member would need more than the time limit of its promotion to receive a long log."""
    if may_be_long and world.random("large commands").random() < _LARGE_COMMANDS_SHARE:
        return _Bounds(replace(config, command_bytes_max=_LARGE_BYTES + 1_024), 12, _LARGE_BYTES, ("burst",))
    rng = world.random("bounds")
    if not _are_small(rng):
        return None
    config = replace(config, uncommitted_bytes_max=256, forwarded_bytes_max=256, apply_entries_max=16)
    match rng.choice(("log", "buffer", "proposals")):
        case "log":  # the number of entries in memory
            config = replace(config, compact_entries=20, compact_margin_entries=0, entry_bytes_max=64)
            # without a wide window, no node would catch up before the log is dropped
            config = replace(config, transfer_log_entries_max=100, inflight_messages_max=64, snapshot_slice_bytes=4_096)
            return _Bounds(config, 40, 0, ("burst", "stuck_disk"))
        case "buffer":  # the bytes that wait for the disk
            config = replace(config, append_bytes_max=512, inflight_messages_max=8, entry_bytes_max=64, snapshot_slice_bytes=512)
            config = replace(config, unsynced_bytes_max=2_048, command_bytes_max=1_024)
            return _Bounds(config, 20, 500, ("burst", "stuck_disk"))
        case _:  # the proposals of callers and of other nodes
            config = replace(config, pending_proposals_max=64, pending_proposals_bytes_max=2_048)
            return _Bounds(config, 100, 100, ("burst",))


def build_raft(simulation: Simulation) -> Application:
    """The shipped core, with registers on top."""
    off = simulation.scenario.off
    config = draw_config(simulation.world, Defences() if off is None else Defences.without(off))
    bounds = _draw_bounds(simulation.world, config, not simulation.scenario.spares)
    config = config if bounds is None else bounds.config
    rng = simulation.world.random("load")

    def boot(machine: Machine, state: RegisterStateMachine) -> tuple[RaftNode, RaftNode, RaftNode]:
        assert machine.life is not None
        name = machine.speaks_as
        # As docs/members.md says, a node with a new disk joins if the members have changed: the founder of a cluster of one
        # would otherwise found a second one.
        returns = machine.has_new_disk and simulation.scenario.nodes == 1
        joins = returns or name not in simulation.names
        known = sorted({name, *simulation.names, *(other.name for other in simulation.machines if returns)})
        node = RaftNode(name, known, "simulated", machine.life, machine.disk, state, config, machine.observer, joins)
        return node, node, node

    def transfer(machine: Machine, peer: str | None) -> None:
        def ask(process: Process) -> None:
            end = simulation.ledger.begin("transfer", machine, (config.election_max_ms + _SLACK_MS) * MS)

            def done(handed_over: bool) -> None:
                end(handed_over)

            assert isinstance(process, RaftNode)
            process.transfer_leadership(peer, done)

        machine.enqueue(ask)

    simulation.may_be_far = _may_be_far(simulation, config)
    simulation.nemesis.transfer = transfer
    simulation.invariants.quorum = len(simulation.names) // 2 + 1 if len(simulation.names) > 1 else 0
    simulation.invariants.deposed_ns = 2 * config.election_max_ms * MS
    application = RegisterApplication(
        simulation.world,
        simulation.invariants,
        simulation.ledger,
        boot,
        clients=simulation.scenario.clients or rng.choice((2, 4, 8)),
        catch_up_ns=_CATCH_UP_ELECTION_TIMES * config.election_max_ms * MS,
        drain_ns=(config.proposal_timeout_ms + 2_000) * MS,
        proposal_limit_ns=int(config.proposal_timeout_ms * _SLOWEST * MS) + _SLACK_MS * MS,
        read_limit_ns=int(config.read_timeout_ms * _SLOWEST * MS) + _SLACK_MS * MS,
        lease_share=0.5 if config.lease_reads else 0.1,
        ballast=rng.choice((0, 1_000, 20_000)),
        slice_bytes=config.snapshot_slice_bytes,
    )
    simulation.may_rejoin = True
    application.machines, application.members = simulation.machines, simulation.members
    if bounds is not None:
        application.burst_commands, application.burst_bytes = bounds.burst_commands, bounds.burst_bytes
        simulation.always = bounds.faults
    if simulation.scenario.spares:
        by_name = {machine.name: machine for machine in simulation.machines}

        def voters_of(name: str) -> tuple[Collection[str], int] | None:
            node = by_name[name].raft if name in by_name else None
            return (node.context.voters, node.context.quorum) if isinstance(node, RaftNode) else None

        simulation.invariants.voters_of = voters_of
    return application


def build_routes(simulation: Simulation) -> Application:
    """The shipped core, with name servers and brokers on top."""
    off = simulation.scenario.off
    is_ours = off in LivenessDefences.names()
    config = draw_config(simulation.world, Defences() if off is None or is_ours else Defences.without(off))
    rng = simulation.world.random("load")
    flags = {"connectionLossGraceMs": str(rng.choice((100, 500))), "lateCopyMs": str(LATE_COPY_MS)}
    cluster = RouteCluster(simulation.world, simulation.names, config, flags)
    if off is not None and is_ours:
        cluster.defences = LivenessDefences.without(off)
    cluster.clock_skew_s = {name: rng.uniform(-30, 30) for name in simulation.names}
    brokers = simulation.scenario.clients or rng.choice((2, 4, 6))
    catch_up_ns = _CATCH_UP_ELECTION_TIMES * config.election_max_ms * MS
    application = Brokers(simulation.world, simulation.invariants, cluster, catch_up_ns, brokers, readers=2)
    application.machines = simulation.machines
    simulation.nemesis.single_directories = True
    simulation.nemesis.spared |= {"burst"}

    def transfer(machine: Machine, peer: str | None) -> None:
        def ask(process: Process) -> None:
            assert isinstance(process, NameServer)
            with process.loop.running():
                process.raft.transfer_leadership(peer)

        machine.enqueue(ask)

    simulation.may_be_far = _may_be_far(simulation, config)
    simulation.nemesis.transfer = application.transfer = transfer
    application.is_sheltered = simulation.nemesis.is_sheltered
    application.chase_until_ns = int(simulation.scenario.duration_s * SECOND)
    simulation.invariants.quorum = len(simulation.names) // 2 + 1 if len(simulation.names) > 1 else 0
    simulation.invariants.deposed_ns = 2 * config.election_max_ms * MS
    return application


def _may_be_far(simulation: Simulation, config: RaftConfig) -> bool:
    wide = config.inflight_messages_max >= 64 and config.snapshot_slice_bytes >= 512 and config.inflight_bytes_max > 4_096
    return wide and len(simulation.names) > 1


def declared_drift(world: World) -> float:
    """The drift that the drawn settings declare."""
    return draw_config(world, Defences()).clock_drift_max


def run(scenario: Scenario, *, readable: bool = False) -> RunResult:
    """Run one scenario."""
    if scenario.subject == "plain":
        return Simulation(scenario, build_plain, lambda world: 0.05, readable=readable).run()
    if scenario.application == "routes":
        with silenced():
            return Simulation(scenario, build_routes, declared_drift, readable=readable).run()
    return Simulation(scenario, build_raft, declared_drift, readable=readable).run()
