"""A command of a newer version waits until every node applies it, and from then on needs no check."""

import pytest

from replicated_namesrv.errors import UnavailableError
from replicated_namesrv.replication import route_machine as machine
from replicated_namesrv.replication.cluster_restore import encode as encode_restore
from replicated_namesrv.replication.command_kinds import (
    BASE_VERSION,
    COMMAND_KINDS,
    ENVELOPE_FORMAT,
    LEAD,
    PLAIN,
    CommandKind,
    newest_version,
    version_of,
)
from replicated_namesrv.replication.route_machine import RouteStateMachine, encode_lead, encode_plain
from replicated_namesrv.routes.commands import PutKVConfig
from replicated_namesrv.routes.state import RouteSettings
from tests.replication.virtual import Cluster, virtual_cluster
from tests.support.next_version import NEW_KIND, VERSION, encode_new

PUT = PutKVConfig("n", "k", "v")


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """``all``: the program version of nodes that start from now on; 1 if it is not set. Programs of version 1 apply the new
    command, too, so that the test sees a command that was proposed too early."""
    versions: dict[str, int] = {}
    monkeypatch.setitem(COMMAND_KINDS, (ENVELOPE_FORMAT, NEW_KIND), CommandKind("next", VERSION))
    monkeypatch.setitem(machine._HANDLERS, NEW_KIND, (RouteStateMachine._plain, 0))
    monkeypatch.setattr(
        "replicated_namesrv.replication.replicated_node.newest_version", lambda: versions.get("all", BASE_VERSION)
    )
    return versions


def restart(cluster: Cluster, name: str) -> None:
    cluster.machines[name].crash(power_loss=False)
    cluster.machines[name].start()
    cluster.until(lambda: cluster.servers.servers[name].serving, f"{name} serves")
    cluster.run(1)


def propose_new(cluster: Cluster, name: str) -> str | None:
    """Have a node propose the new command: None if it was applied, else the error's text."""
    node = cluster.node(name)
    found: list[str | None] = []

    async def attempt() -> None:
        try:
            await node.proposer.propose(encode_new(PUT, 0))
            found.append(None)
        except UnavailableError as error:
            found.append(str(error))

    server = cluster.servers.servers[name]
    with server.loop.running():
        server.loop.create_task(attempt())
        server.loop.run()
    server.machine.enqueue(lambda process: None)
    cluster.until(lambda: bool(found), "an outcome")
    return found[0]


def test_a_newer_command_waits_for_the_last_node_and_then_for_nobody(programs: dict[str, int]) -> None:
    with virtual_cluster() as cluster:
        programs["all"] = VERSION
        *upgraded, last = cluster.machines
        for name in upgraded:
            restart(cluster, name)
            refused = propose_new(cluster, name)
            assert refused is not None
            assert refused.startswith(f"commands of version {VERSION} have to wait: ")
            assert refused.endswith(" is known to apply none newer than 1; upgrade every member first")
            assert cluster.node(name).consensus.command_version == BASE_VERSION
        assert all(node.state.kv_get("n", "k") is None for node in cluster.nodes)
        restart(cluster, last)
        assert propose_new(cluster, last) is None
        assert cluster.node(last).consensus.command_version == VERSION
        cluster.machines[last].crash(power_loss=False)
        restart(cluster, upgraded[0])
        assert propose_new(cluster, upgraded[0]) is None, "its state says that every node applies it"


def test_commands_of_the_base_version_need_nobody(programs: dict[str, int]) -> None:
    """Nodes of version 1: one that was restarted while others are down proposes at once."""
    assert programs == {}
    with virtual_cluster() as cluster:
        one, _, three = cluster.machines
        cluster.machines[three].crash(power_loss=False)
        restart(cluster, one)
        assert cluster.node(one).consensus.command_version == BASE_VERSION
        assert cluster.propose(cluster.wire(one), PUT).code == 0


def test_every_kind_has_a_version() -> None:
    assert version_of(encode_plain(PUT, 0)) == COMMAND_KINDS[ENVELOPE_FORMAT, PLAIN].since
    assert version_of(encode_lead(RouteSettings(), 0, 1)) == COMMAND_KINDS[ENVELOPE_FORMAT, LEAD].since
    assert [version_of(encode_restore(kind, "id", 3, b"\n")) for kind in range(4)] == [BASE_VERSION] * 4
    assert newest_version() == max(kind.since for kind in COMMAND_KINDS.values())


def test_the_version_travels_with_the_state_once_it_is_not_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMMAND_KINDS, (ENVELOPE_FORMAT, NEW_KIND), CommandKind("next", VERSION))
    monkeypatch.setitem(machine._HANDLERS, NEW_KIND, (RouteStateMachine._plain, 0))
    before, after = RouteStateMachine(), RouteStateMachine()
    before.apply(encode_plain(PUT, 0))
    after.apply(encode_new(PUT, 0))
    assert before.digest() != after.digest()
    for original, version in ((before, BASE_VERSION), (after, VERSION)):
        copy = RouteStateMachine()
        restoring = copy.restore()
        for chunk in original.snapshot():
            restoring.feed(chunk)
        restoring.finish()
        assert copy.command_version == version
        assert copy.digest() == original.digest()
