"""Members that change, with real sockets and files."""

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from replicated_namesrv.raft import raft_service
from replicated_namesrv.raft.interfaces import Committed, Outcome, ReadReady, Rejected
from replicated_namesrv.raft.member_changes import MemberChange
from replicated_namesrv.raft.members import Kind
from replicated_namesrv.raft.raft_config import RaftConfig
from replicated_namesrv.raft.raft_errors import IdentityError
from replicated_namesrv.raft.raft_service import RaftService
from replicated_namesrv.raft.transport import TransportSettings
from tests.raft.test_transport import pair_of_settings, started
from tests.support.authority import Authority
from tests.support.ports import free_ports
from tests.support.raft_world import Machine
from tests.support.waiting import until

SECRET = b"a secret of some bytes"


class Group:
    """Services of one cluster on loopback."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.folder, self.founders = folder, names[:3]
        self.addresses = {name: ("127.0.0.1", port) for name, port in zip(names, free_ports(len(names)), strict=True)}
        self.services: dict[str, RaftService] = {}
        self.machines: dict[str, Machine] = {}
        self.leaving_ms = 1_000

    async def start(self, name: str) -> RaftService:
        joins = name not in self.founders
        known = [*self.founders, name] if joins else self.founders
        settings = TransportSettings(name, "test", {n: self.addresses[n] for n in known}, self.addresses[name], SECRET)
        self.machines[name] = Machine()
        config = RaftConfig(leaving_ms=self.leaving_ms)
        service = RaftService(settings, self.folder / name, self.machines[name], config, joins=joins)
        await service.start()
        self.services[name] = service
        return service

    async def found(self) -> None:
        """Start the founders, and wait until one leads."""
        for name in self.founders:
            await self.start(name)
        await until(lambda: self.leader is not None, "a leader")

    async def join(self, name: str, unnamed: Sequence[tuple[str, int]], *named: str) -> RaftService:
        """Start a founder again with ``join``: the addresses ``unnamed``, and members with a name."""
        own = self.addresses[name]
        known = {each: self.addresses[each] for each in (name, *named)}
        settings = TransportSettings(name, "test", known, own, SECRET, unnamed=tuple(unnamed))
        self.machines[name] = Machine()
        service = RaftService(settings, self.folder / name, self.machines[name], RaftConfig(), joins=True)
        self.services[name] = service
        await service.start()
        return service

    async def stop(self) -> None:
        for service in self.services.values():
            await service.stop()

    @property
    def leader(self) -> RaftService | None:
        found = [s for s in self.services.values() if s.node.role == "leader" and not s.node.stopped]
        return max(found, key=lambda s: s.node.term, default=None)

    async def change(self, change: MemberChange) -> None:
        outcome: Outcome | None = None
        async with asyncio.timeout(30):
            while not isinstance(outcome, Committed):
                if self.leader is not None:
                    outcome = await self.leader.change_member(change)
                await asyncio.sleep(0.05)

    async def wait_for(self, name: str, kind: Kind) -> None:
        def is_known() -> bool:
            tables = [s.node.member_table for s in self.services.values() if s.node.role != "removed"]
            return all(name in table and table[name].kind is kind and table[name].incarnation for table in tables)

        await until(is_known, f"{name} as {kind.name}")

    async def add(self, name: str, *, observer: bool = False) -> None:
        await self.start(name)
        await self.change(MemberChange("add", name, self.addresses[name], observer=observer))
        await self.wait_for(name, Kind.OBSERVER if observer else Kind.VOTER)


def followers_of(leader: RaftService) -> dict[str, dict[str, object]]:
    return cast("dict[str, dict[str, object]]", leader.status()["followers"])


@pytest.mark.slow
async def test_a_cluster_grows_to_five_and_a_dead_node_and_the_leader_are_removed(tmp_path: Path) -> None:
    group = Group(tmp_path, ["n1", "n2", "n3", "n4", "n5"])
    try:
        await group.found()
        await group.add("n4")
        await group.add("n5")
        proposed = await group.services["n5"].propose(b"from a new node")
        assert isinstance(proposed, Committed)
        dead = next(name for name in group.founders if group.services[name] is not group.leader)
        await group.services.pop(dead).stop()
        await group.change(MemberChange("remove", dead))
        leader = group.leader
        assert leader is not None
        gone = leader.node.node_id
        await group.change(MemberChange("remove", gone))
        await until(lambda: group.services[gone].node.role == "removed", "the removed node's knowledge")
        refused = await group.services[gone].read_index()
        assert isinstance(refused, Rejected)
        assert "was removed" in refused.reason
        for name in sorted(group.services.keys() - {gone}):
            read = await group.services[name].read_index()
            assert isinstance(read, ReadReady)
            assert group.machines[name].commands == [b"from a new node"]
        rest = group.services[next(iter(sorted(group.services.keys() - {gone})))]
        await until(lambda: gone not in rest.transport.peers, "the end of its connections")
        errors = group.services[gone].transport.peers.values()
        await until(lambda: any("is not a member" in state.error for state in errors), "the reason that it is refused")
    finally:
        await group.stop()


async def test_a_restarted_node_misses_no_address_of_a_member_that_its_log_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, warnings = Group(tmp_path, ["n1", "n2", "n3", "n4"]), list[str]()
    group.leaving_ms = 60_000
    try:
        await group.found()
        await group.change(MemberChange("add", "n4", group.addresses["n4"], observer=True))
        await group.change(MemberChange("remove", "n4"))
        leader = group.leader
        assert leader is not None
        name = next(name for name in group.founders if name != leader.node.node_id)
        await group.services.pop(name).stop()
        monkeypatch.setattr(raft_service, "_warn", warnings.append)
        started = await group.start(name)
        await until(lambda: "n4" in started.node.peers and "n4" in started.node.group.leaving, "the removal from its log")
        started._follow_members()
        assert started.status()["problem"] is None
        assert not [each for each in warnings if "no address of n4" in each]
        assert "n4" in started.node.peers, "it still learns of its removal"
    finally:
        await group.stop()


async def test_a_founder_with_a_new_disk_learns_the_name_of_a_member_that_starts_later(tmp_path: Path) -> None:
    """The members were never changed, so the log has no addresses. Without the address of n2, n3 could not answer it."""
    group = Group(tmp_path, ["n1", "n2", "n3"])
    try:
        await group.found()
        for name in ("n3", "n2"):
            await group.services.pop(name).stop()
        shutil.rmtree(tmp_path / "n3")
        service = await group.join("n3", [group.addresses["n1"], group.addresses["n2"]])
        await until(lambda: "start the nodes at these addresses" in str(service.status()["problem"]), "the problem")
        await group.start("n2")
        await until(lambda: service.node.membership.is_voter, "the vote of n3")
        await until(lambda: service.status()["problem"] is None, "the end of the problem")
        await group.services.pop("n1").stop()
        await until(lambda: group.leader is not None, "a leader without n1")
    finally:
        await group.stop()


async def test_a_blank_founder_contacts_members_that_are_named_after_its_start(tmp_path: Path) -> None:
    """It knows the name of a dead node only, and both founders start later. They have no hint to give: no member was changed."""
    group = Group(tmp_path, ["n1", "n2", "n3", "n9"])
    try:
        await group.found()
        for name in group.founders:
            await group.services.pop(name).stop()
        shutil.rmtree(tmp_path / "n3")
        service = await group.join("n3", [group.addresses["n1"], group.addresses["n2"]], "n9")
        for name in ("n1", "n2"):
            await group.start(name)
        await until(lambda: service.node.membership.is_voter, "the vote of n3")
    finally:
        await group.stop()


async def test_a_member_does_not_wait_for_a_silent_contact_before_it_listens(tmp_path: Path) -> None:
    group = Group(tmp_path, ["n1", "n2", "n3"])
    asked: list[bool] = []
    questions: list[asyncio.StreamWriter] = []

    async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(hasattr(group.services["n3"], "node"))
        questions.append(writer)

    silent = await asyncio.start_server(never_answer, "127.0.0.1", 0)
    try:
        await group.found()
        await group.services.pop("n3").stop()
        contact = silent.sockets[0].getsockname()
        service = await group.join("n3", [contact, group.addresses["n1"], group.addresses["n2"]])
        await until(lambda: asked == [True], "the question, after the start")
        await until(lambda: service.node.leader_id is not None, "a leader for n3")
    finally:
        await group.stop()
        silent.close()
        for writer in questions:
            writer.close()


async def test_a_founder_of_a_cluster_of_one_does_not_join_with_its_disk(tmp_path: Path) -> None:
    """It would lead its own cluster again, and acknowledge writes."""
    group = Group(tmp_path, ["n1", "n2", "n3", "n4"])
    try:
        await group.found()
        own = {"n4": group.addresses["n4"]}
        alone = RaftService(TransportSettings("n4", "test", own, own["n4"], SECRET), tmp_path / "n4", Machine(), RaftConfig())
        await alone.start()
        await until(lambda: alone.node.role == "leader", "a cluster of one")
        await alone.stop()
        for known, unnamed in ((own, (group.addresses["n1"],)), (own | {"n1": group.addresses["n1"]}, ())):
            settings = TransportSettings("n4", "test", known, own["n4"], SECRET, unnamed=unnamed)
            joining = RaftService(settings, tmp_path / "n4", Machine(), RaftConfig(), joins=True)
            with pytest.raises(IdentityError, match=r"belongs to members \['n4'\]"):
                await joining.start()
    finally:
        await group.stop()


async def test_a_dead_voter_is_shown_as_voter_by_a_leader_that_never_met_it(tmp_path: Path) -> None:
    group = Group(tmp_path, ["n1", "n2", "n3"])
    try:
        await group.found()
        for name in group.founders:
            await group.services.pop(name).stop()
        for name in ("n1", "n2"):
            await group.start(name)
        await until(lambda: group.leader is not None, "a leader of two nodes")
        leader = group.leader
        assert leader is not None
        follower = followers_of(leader)["n3"]
        assert (follower["connected"], follower["votes"]) == (False, True)
    finally:
        await group.stop()


async def test_an_observer_moves_to_another_address(tmp_path: Path) -> None:
    group = Group(tmp_path, ["n1", "n2", "n3", "n4"])
    try:
        await group.found()
        await group.add("n4", observer=True)
        await group.services.pop("n4").stop()
        group.addresses["n4"] = ("127.0.0.1", free_ports(1)[0])
        await group.change(MemberChange("move", "n4", group.addresses["n4"]))
        await group.start("n4")
        committed = await group.services["n1"].propose(b"a")
        assert isinstance(committed, Committed)
        await until(lambda: group.machines["n4"].commands == [b"a"], "the entry at the new address")
    finally:
        await group.stop()


@pytest.mark.parametrize("secret", [None, SECRET])
def test_a_certificate_alone_lets_no_stranger_in(tmp_path: Path, secret: bytes | None) -> None:
    """This holds even while strangers are accepted, because the authority may have signed certificates of clients, too."""
    authority = Authority(tmp_path)

    async def scenario() -> None:
        good, other = pair_of_settings(secret=secret)
        addresses = {**other.addresses, "z": other.addresses["b"]}
        async with started(replace(good, tls=authority.files("a"))) as (a,):
            a.transport.accepts_strangers = lambda: True
            async with started(replace(other, node_id="z", addresses=addresses, tls=authority.files("z"))) as (z,):
                if secret is None:
                    await until(lambda: any("z is not a member" in w for w in a.warnings), "the refusal of z")
                    assert not z.connected("a")
                else:
                    await until(lambda: z.connected("a"), "the connection of z")

    asyncio.run(scenario())
