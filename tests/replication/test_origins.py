"""Commands that name their caller: they have the same effect, and are used only when every node knows them."""

import asyncio
from asyncio import Future
from pathlib import Path

import pytest

from replicated_namesrv.errors import UnavailableError
from replicated_namesrv.model import ChangeOrigin
from replicated_namesrv.raft.interfaces import Committed, Outcome
from replicated_namesrv.raft.raft_errors import UnknownCommandError
from replicated_namesrv.replication.command_kinds import OPERATION_VERSION, ORIGIN_VERSION, SUSPICION_VERSION, version_of
from replicated_namesrv.replication.consensus import CommandProposer, RaftConsensus
from replicated_namesrv.replication.liveness.leader_messages import decode_removal, encode_removal
from replicated_namesrv.replication.route_machine import (
    ProposalResult,
    RouteStateMachine,
    encode_attributed,
    encode_operation,
    encode_plain,
    encode_suspect,
)
from replicated_namesrv.replication.tasks import Tasks
from replicated_namesrv.routes.commands import BrokerRemoval, Command, PutKVConfig
from replicated_namesrv.routes.quotas import Quotas
from replicated_namesrv.routes.results import Result
from tests.replication.virtual import virtual_cluster
from tests.support.replicated_cluster import Member

ORIGIN = ChangeOrigin("tools", "10.0.0.9", "n2")
PUT = PutKVConfig("n", "k", "v")


def test_the_origin_has_no_effect_on_the_state() -> None:
    plain, attributed = RouteStateMachine(), RouteStateMachine()
    seen: list[tuple[Command, str, ChangeOrigin | None]] = []
    attributed.on_changed = lambda command, removal, origin: seen.append((command, removal, origin))
    for machine, data in ((plain, encode_plain(PUT, 7)), (attributed, encode_attributed(encode_plain(PUT, 7), ORIGIN))):
        assert machine.apply(data).result.changed
    assert plain.state.digest() == attributed.state.digest()
    assert plain.serial == attributed.serial
    assert [(command, origin) for command, _, origin in seen] == [(PUT, ORIGIN)]
    attributed.apply(encode_plain(PutKVConfig("n", "k", "w"), 8))
    assert seen[-1][2] is None, "the next command has no origin"


def test_the_version_is_the_newest_that_it_needs() -> None:
    assert version_of(encode_plain(PUT, 0)) == 1
    assert version_of(encode_attributed(encode_plain(PUT, 0), ORIGIN)) == ORIGIN_VERSION
    assert version_of(encode_suspect((), 0, 1, 0)) == SUSPICION_VERSION < ORIGIN_VERSION
    machine = RouteStateMachine()
    machine.apply(encode_attributed(encode_plain(PUT, 0), ORIGIN))
    assert machine.command_version == ORIGIN_VERSION


def test_an_operation_is_reported_on_every_node_and_has_no_effect() -> None:
    machine, seen = RouteStateMachine(), list[tuple[str, str, ChangeOrigin | None]]()
    machine.on_operation = lambda request, target, origin: seen.append((request, target, origin))
    before = machine.state.digest(), machine.state.revision
    command = encode_attributed(encode_operation("POST /v1/drain", "force=true", 7), ORIGIN)
    assert not machine.apply(command).result.changed
    assert (machine.state.digest(), machine.state.revision) == before
    assert seen == [("POST /v1/drain", "force=true", ORIGIN)]
    assert version_of(command) == OPERATION_VERSION > ORIGIN_VERSION


def test_an_operation_is_announced_only_when_every_member_knows_such_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    with virtual_cluster(1) as cluster:
        node, seen = cluster.node("n1"), list[str]()
        node._machine.on_operation = lambda request, target, origin: seen.append(request)

        def announce(origin: ChangeOrigin | None) -> None:
            cluster.ask(
                cluster.wire("n1"), lambda server, c: server.node._tasks.keep(node.announce("POST /v1/drain", None, origin))
            )

        announce(None)
        monkeypatch.setattr(RaftConsensus, "command_version", property(lambda consensus: ORIGIN_VERSION))
        announce(ORIGIN)
        assert seen == []
        monkeypatch.setattr(RaftConsensus, "command_version", property(lambda consensus: OPERATION_VERSION))
        announce(ORIGIN)
        assert seen == ["POST /v1/drain"]


def test_unknown_commands_inside_stop_the_node() -> None:
    twice = encode_attributed(encode_attributed(encode_plain(PUT, 0), ORIGIN), ORIGIN)
    for data in (
        twice,
        twice.replace(b",[6,", b",[77,", 1),
        encode_attributed(encode_plain(PUT, 0), ORIGIN).replace(b"[0]", b"[0,1]"),
    ):
        with pytest.raises(UnknownCommandError):
            RouteStateMachine().apply(data)


class _Consensus:
    """Commits everything, and reports the command version that every member knows."""

    def __init__(self, command_version: int) -> None:
        self.command_version = command_version
        self.proposed: list[bytes] = []

    def propose(self, command: bytes, version: int, timeout_ms: int | None = None) -> "Future[Outcome]":
        self.proposed.append(command)
        done: Future[Outcome] = asyncio.get_running_loop().create_future()
        done.set_result(Committed(ProposalResult(Result()), 1, 1))
        return done


@pytest.mark.parametrize("version", [SUSPICION_VERSION, ORIGIN_VERSION])
async def test_an_origin_is_proposed_only_when_every_member_knows_such_commands(version: int) -> None:
    consensus = _Consensus(version)
    proposer = CommandProposer(consensus, Tasks(), 1_000, lambda: False, Quotas({}, lambda command: ()))  # type: ignore[arg-type]  # the part that it uses
    data = encode_plain(PUT, 0)
    await proposer.propose(data, origin=ORIGIN)
    await proposer.propose(data)
    wanted = encode_attributed(data, ORIGIN) if version == ORIGIN_VERSION else data
    assert consensus.proposed == [wanted, data]


@pytest.mark.parametrize("differ", [False, True])
async def test_an_operation_is_recorded_unless_the_states_differ(tmp_path: Path, differ: bool) -> None:
    """Nothing can be written then. But members can be changed, and this may be the only way to decide whose state is right."""
    service = Member("n1", tmp_path, "n1=127.0.0.1:1", {}).service
    service._applied.is_live = True
    refused = UnavailableError("the nodes' states differ")

    class Differing:
        states_differ, command_version = differ, OPERATION_VERSION

    class Refusing:
        async def propose(self, data: bytes, origin: ChangeOrigin) -> None:
            raise refused

    service.consensus, service.proposer = Differing(), Refusing()  # type: ignore[assignment]  # the parts that it uses
    if differ:
        await service.announce("POST /v1/members/n2/remove", None, ORIGIN)
    else:
        with pytest.raises(UnavailableError):
            await service.announce("POST /v1/members/n2/remove", None, ORIGIN)


def test_a_removal_may_name_its_origin() -> None:
    removal = BrokerRemoval("c", "a:1", "a", 0, 7)
    assert decode_removal(("c", "a:1"), encode_removal(removal)) == (removal, None)
    assert decode_removal(("c", "a:1"), encode_removal(removal, ORIGIN)) == (removal, ORIGIN)


async def test_a_node_that_opens_its_log_rejects_changes(tmp_path: Path) -> None:
    """The admin port answers before the log is open. In an earlier version, a change with a caller, and a change of shared and
    local settings, failed with AttributeError there. The answer was 500, with an unknown outcome."""
    service = Member("n1", tmp_path, "n1=127.0.0.1:1", {}).service
    both_kinds = {"orderMessageEnable": "true", "waitSecondsForService": "7"}
    for change in (service.propose(PUT, None, ORIGIN), service.update_config(both_kinds)):
        assert isinstance(change, Future)
        with pytest.raises(UnavailableError, match="is starting, and reads its log"):
            await change
