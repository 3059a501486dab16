"""The restore of a backup through the log, and the events that can prevent it."""

import contextlib
import json
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from replicated_namesrv.access.access_control import CheckedOrigin
from replicated_namesrv.errors import NoPermissionError, OutcomeUnknownError, UnavailableError
from replicated_namesrv.model import ChangeOrigin, DataVersion, QueueData
from replicated_namesrv.raft.raft_errors import UnknownCommandError
from replicated_namesrv.replication import cluster_restore as restore_module
from replicated_namesrv.replication.cluster_restore import (
    IDLE_MS_MAX,
    REVISIONS_SKIPPED,
    Leftovers,
    RestorableMachine,
    encode,
    restore,
)
from replicated_namesrv.replication.command_kinds import ABANDON, BEGIN, FINISH, OPERATION_VERSION, PIECE, version_of
from replicated_namesrv.replication.marks import Mark
from replicated_namesrv.replication.route_machine import (
    ProposalResult,
    RouteStateMachine,
    encode_lead,
    encode_plain,
    encode_register,
    encode_suspect,
)
from replicated_namesrv.routes import snapshot as snapshot_module
from replicated_namesrv.routes.commands import (
    ChangeWritePerm,
    Command,
    PutKVConfig,
    RegisterBroker,
    RegisterTopic,
    UpdateSettings,
)
from replicated_namesrv.routes.results import NOT_EMPTY
from replicated_namesrv.routes.snapshot import SnapshotReader
from replicated_namesrv.routes.state import RouteInfoManager, RouteSettings
from tests.support.replicated_cluster import live_cluster
from tests.support.routes import register
from tests.support.waiting import wait_until
from tests.support.work import Work, work_of

QUEUES = QueueData(6, 4, 0, 8)


def origin() -> RouteInfoManager:
    """A state worth keeping: brokers, topics of mixed permissions, KV, a setting."""
    state = RouteInfoManager(RouteSettings(order_message_enable=True))
    for number in range(3):
        topics = {f"topic-{number}-{each}": QUEUES for each in range(300)} | {"shared": QUEUES}
        version = DataVersion(0, 5, number)
        state.apply(
            RegisterBroker("C", f"b{number}", f"10.0.0.{number}:10911", 0, "", None, None, False, version, topics, {}, None), 5
        )
    state.apply(ChangeWritePerm("b1", False), 6)
    state.apply(PutKVConfig("ns", "k", "v"), 7)
    return state


def pieces(state: RouteInfoManager, size: int = 4_000) -> list[bytes]:
    whole = b"".join(state.snapshot())
    return [whole[start : start + size] for start in range(0, len(whole), size)]


def commands(state: RouteInfoManager, restore_id: str = "r") -> Iterator[bytes]:
    yield encode(BEGIN, restore_id)
    number = -1
    for number, piece in enumerate(pieces(state)):
        yield encode(PIECE, restore_id, number, piece)
    yield encode(FINISH, restore_id, number + 1)


def answers(state: RouteInfoManager) -> object:
    return (
        [(topic, state.route(topic)) for topic in sorted(state.topic_revisions)],
        [registration._replace(epoch=0) for registration in state.registrations()],
        {namespace: dict(table) for namespace, table in state.kv_table().items()},
        state.cluster_info(),
        state.settings,
    )


def fresh() -> RestorableMachine:
    return RestorableMachine(RouteStateMachine())


def test_the_state_is_that_of_the_backup_with_revisions_of_its_own() -> None:
    before, machine = origin(), fresh()
    results = [machine.apply(command).result for command in commands(before)]
    assert {result.code for result in results} == {0}
    state = machine.machine.state
    assert answers(state) == answers(before)
    assert state.revision == before.revision + REVISIONS_SKIPPED
    assert set(state.topic_revisions.values()) == {state.revision}
    assert {registration.epoch for registration in state.registrations()} == {state.revision}
    changes = machine.machine.history.after(state.revision - 1, 1)
    assert [change.kind for change in changes] == ["restored"]
    assert machine.machine.history.oldest == state.revision - 1, "nobody may go on from before"


@pytest.mark.parametrize("marks_max", [1, 2, 2_000])
@pytest.mark.parametrize("position", [None, 1, -4, -1])
def test_all_brokers_of_a_backup_have_the_mark_of_its_last_command(
    position: int | None, marks_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Marks are made while pieces arrive. A command at ``position`` invalidates the marks that exist then. ``marks_max``: number
    of marks made with each piece."""
    monkeypatch.setattr(restore_module, "MARKS_MAX", marks_max)
    before, machine, twin = origin(), at_version_2(), fresh()
    log = list(commands(before))
    if position is not None:
        log.insert(position, encode_lead(RouteSettings(), 1, 2))
    for command in log:
        machine.apply(command)
    state = machine.machine.state
    mark = Mark(state.revision, machine.machine.serial, "")
    keys = [(registration.cluster_name, registration.broker_addr) for registration in before.registrations()]
    assert list(machine.machine.marks.items()) == [(key, mark) for key in keys]
    restoring = twin.restore()
    for chunk in machine.snapshot():
        restoring.feed(chunk)
    restoring.finish()
    assert machine.digest() == twin.digest(), "the sum of the marks is that of marks which are put one by one"


@pytest.mark.parametrize("position", [1, -1])
def test_a_state_that_changes_meanwhile_gives_the_same_revisions(position: int) -> None:
    """While pieces arrive, the revision at the end is estimated. These changes make the estimate wrong."""
    settings = [encode_plain(UpdateSettings({"support_acting_master": on}), 1) for on in (True, False) * 50]
    before, expected, machine = origin(), fresh(), fresh()
    for command in [*settings, *commands(before)]:
        expected.apply(command)
    log = list(commands(before))
    for command in [*log[:position], *settings, *log[position:]]:
        machine.apply(command)
    assert machine.machine.state.revision == len(settings) + REVISIONS_SKIPPED
    assert answers(machine.machine.state) == answers(before)
    assert machine.digest() == expected.digest()
    assert list(machine.snapshot()) == list(expected.snapshot())


@pytest.mark.parametrize("is_upgraded", [False, True])
def test_the_end_of_a_restore_takes_few_steps_for_each_broker(is_upgraded: bool) -> None:
    works = []
    for count in (100, 200):
        before, machine = RouteInfoManager(), at_version_2() if is_upgraded else fresh()
        for number in range(count):
            before.apply(register(f"b{number}", 0, f"b{number}:1", topics=["shared", f"own-{number}"]), 1)
        *log, last = commands(before)
        for command in log:
            machine.apply(command)
        works.append(work_of(partial(machine.apply, last)))
        assert answers(machine.machine.state) == answers(before)
        works.append(work_of(machine.digest))
    one, digest_of_one, twice, digest_of_twice = works
    assert twice.lines - one.lines <= 5 * 100, works
    assert digest_of_twice.lines <= digest_of_one.lines + 10, works


def test_the_end_of_a_restore_makes_no_marks() -> None:
    works = []
    for count in (200, 400):
        before, machine = RouteInfoManager(), fresh()
        for number in range(count):
            before.apply(register("b", number, f"b{number}:1"), 1)
        *log, last = commands(before)
        for command in log:
            machine.apply(command)
        works.append(work_of(partial(machine.apply, last)))
        assert len(machine.machine.marks) == count
    one, twice = works
    assert twice.lines <= one.lines, works
    assert twice.bytes <= one.bytes + 1_000, works


def test_a_node_that_comes_in_the_middle_ends_up_alike() -> None:
    whole, late = fresh(), None
    log = list(commands(origin()))
    for position, command in enumerate(log):
        whole.apply(command)
        if position == len(log) // 2:
            late = fresh()
            restoring = late.restore()
            for chunk in whole.snapshot():
                restoring.feed(chunk)
            restoring.finish()
        elif late is not None:
            late.apply(command)
        if late is not None:
            assert late.digest() == whole.digest()
    assert late is not None
    assert answers(late.machine.state) == answers(origin())


def at_version_2() -> RestorableMachine:
    machine = fresh()
    machine.apply(encode_lead(RouteSettings(), 0, 1))
    machine.apply(encode_suspect([], 0, 1, machine.machine.serial))
    assert machine.machine.state.compares_content
    return machine


OVERRIDES = (ChangeWritePerm("b", False), RegisterTopic("T", (("b", QUEUES._replace(perm=4)),)))


def of_version_0_1(override: Command) -> RouteInfoManager:
    """The state of a cluster of 0.1.0, which left no record of ``override``."""
    state = RouteInfoManager()
    state.compares_content = False
    state.apply(register("b", 0, "m:1"), 1)
    state.apply(override, 2)
    assert b"overridden" not in b"".join(state.snapshot())
    return state


def after_the_next_round(machine: RestorableMachine) -> int:
    """Permission of topic T after its broker has registered again without a change."""
    machine.apply(encode_register(register("b", 0, "m:1"), 3, machine.machine.state.revision, 0, "same"))
    queues = machine.machine.state.topic_queues("T")
    assert queues is not None
    return queues["b"].perm


@pytest.mark.parametrize("override", OVERRIDES)
@pytest.mark.parametrize("upgraded", ["before", "during", "after"])
def test_what_requests_of_version_0_1_changed_stays_after_a_restore(override: Command, upgraded: str) -> None:
    """The node that restores has read the whole file before, and sends the lines in its own form."""
    machine, read = fresh() if upgraded != "before" else at_version_2(), RouteInfoManager()
    read.restore(of_version_0_1(override).snapshot())
    read.compares_content = machine.machine.state.compares_content
    *log, last = commands(read)
    for command in log:
        assert machine.apply(command).result.code == 0
    machine.machine.apply(encode_lead(RouteSettings(), 0, 2))
    version_2 = encode_suspect([], 0, 2, machine.machine.serial)
    if upgraded == "during":
        machine.apply(version_2)
    assert machine.apply(last).result.code == 0
    machine.apply(version_2)
    assert after_the_next_round(machine) == 4
    twin = at_version_2()
    restoring = twin.restore()
    for chunk in machine.snapshot():
        restoring.feed(chunk)
    restoring.finish()
    assert twin.digest() == machine.digest()


@pytest.mark.parametrize("override", OVERRIDES)
def test_what_requests_of_version_0_1_changed_stays_in_a_directory_that_a_newer_version_opens(override: Command) -> None:
    old, machine = fresh(), fresh()
    old.apply(encode_lead(RouteSettings(), 0, 1))
    old.apply(encode_register(register("b", 0, "m:1"), 1, 0, 0, "same"))
    old.apply(encode_plain(override, 2))
    restoring = machine.restore()
    for chunk in old.snapshot():
        restoring.feed(chunk)
    restoring.finish()
    machine.apply(encode_suspect([], 0, 1, machine.machine.serial))
    assert after_the_next_round(machine) == 4


def test_nodes_of_version_0_1_can_read_what_a_restore_sends() -> None:
    state = origin()
    assert b"overridden" in b"".join(state.snapshot())
    state.compares_content = False
    assert b"overridden" not in b"".join(state.snapshot())


def test_what_is_on_its_way_is_part_of_the_digest() -> None:
    machine = fresh()
    digests = [machine.digest()]
    for command in commands(origin()):
        machine.apply(command)
        digests.append(machine.digest())
    assert all(one != other for one, other in pairwise(digests))
    assert all(len(digest) <= 64 for digest in digests)


def test_only_a_fresh_cluster_takes_a_backup_also_at_the_end() -> None:
    put = encode_plain(PutKVConfig("n", "k", "v"), 1)
    machine = fresh()
    machine.apply(put)
    refused = machine.apply(encode(BEGIN, "r")).result
    assert refused.code == NOT_EMPTY
    assert "not fresh, it contains 1 KV entries" in (refused.remark or "")
    machine = fresh()
    *first, last = commands(origin())
    for command in first:
        machine.apply(command)
    machine.apply(put)
    refused = machine.apply(last).result
    assert "not fresh" in (refused.remark or "")
    assert machine.incoming is None
    assert machine.machine.state.kv_get("n", "k") == "v"


def test_pieces_out_of_turn_of_another_restore_or_damaged_change_nothing() -> None:
    begin, first, second, *_ = commands(origin())
    machine = fresh()
    assert machine.apply(first).result.code == 1, "nothing has begun"
    machine.apply(begin)
    assert machine.apply(second).result.code == 1
    assert machine.apply(encode(PIECE, "other", 0, b"x")).result.code == 1
    assert machine.apply(first).result.code == 0
    machine.apply(encode(BEGIN, "other"))
    assert "another one has replaced it" in (machine.apply(second).result.remark or "")
    refused = machine.apply(encode(PIECE, "other", 0, b"no snapshot\n")).result
    assert "cannot be read" in (refused.remark or "")
    assert machine.incoming is None
    machine.apply(begin)
    machine.apply(first)
    assert "cut off" in (machine.apply(encode(FINISH, "r", 1)).result.remark or "")
    assert machine.machine.state.revision == 0
    machine.apply(begin)
    machine.apply(encode(ABANDON, "r"))
    assert machine.incoming is None


@pytest.mark.parametrize("data", [b"R", b"R[]\n", b'R[2,0,"r",0]\n', b'R[1,9,"r",0]\n'])
def test_a_newer_form_stops_the_node(data: bytes) -> None:
    with pytest.raises(UnknownCommandError):
        fresh().apply(data)


async def test_a_backup_that_breaks_off_is_abandoned() -> None:
    machine = fresh()

    async def propose(data: bytes) -> ProposalResult:
        return machine.apply(data)

    def breaking() -> Iterator[bytes]:
        yield b"".join(origin().snapshot())[:100_000]
        assert machine.incoming is not None
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        await restore(propose, breaking())
    assert machine.incoming is None

    assert (await restore(propose, origin().snapshot())).changed
    assert answers(machine.machine.state) == answers(origin())
    assert json.loads(machine.machine.history.after(machine.machine.state.revision - 1, 1)[0].data)["kind"] == "restored"


def left_over(machine: RestorableMachine) -> None:
    """A restore whose node dies after some pieces; then the cluster is used."""
    begin, first, second, *_ = commands(origin(), "dead")
    for command in (begin, first, second, encode_plain(PutKVConfig("n", "k", "v"), 1)):
        assert machine.apply(command).result.code == 0
    assert machine.incoming is not None


async def test_a_restore_ends_when_its_caller_loses_the_right() -> None:
    """A large backup takes long. The commands name the caller if every node knows such commands."""
    machine, seen = fresh(), list[tuple[str, ChangeOrigin | None]]()
    machine.machine.on_restore = lambda step, restore_id, origin: seen.append((step, origin))
    caller, left = CheckedOrigin("ops", "10.0.0.9", "n2"), [1]

    def recheck() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise NoPermissionError("no permission")

    async def propose(command: bytes) -> ProposalResult:
        return machine.apply(command)

    caller.recheck = recheck
    with pytest.raises(NoPermissionError):
        await restore(propose, pieces(origin()), caller, is_named=True)
    assert (seen, machine.incoming) == ([("restore-begin", caller), ("restore-abandon", None)], None)
    left[0] = 2
    assert (await restore(propose, pieces(origin()), caller, is_named=True)).code == 0
    assert seen[2:] == [("restore-begin", caller), ("restore-finish", caller)]
    assert version_of(encode(BEGIN, "r", origin=caller)) == OPERATION_VERSION > version_of(encode(BEGIN, "r"))


async def test_a_restore_that_is_refused_drops_what_a_dead_node_left() -> None:
    machine = fresh()
    left_over(machine)

    async def propose(data: bytes) -> ProposalResult:
        return machine.apply(data)

    refused = await restore(propose, origin().snapshot())
    assert "not fresh" in (refused.remark or "")
    assert machine.incoming is None
    used = fresh()
    used.apply(encode_plain(PutKVConfig("n", "k", "v"), 1))
    assert b"".join(machine.snapshot()) == b"".join(used.snapshot())


def test_a_leader_abandons_a_restore_of_which_nothing_comes() -> None:
    machine, now_ms = fresh(), 0.0
    leftovers = Leftovers(machine, lambda: now_ms)
    assert leftovers.tick(True) is None
    left_over(machine)
    assert leftovers.tick(True) is None
    now_ms += IDLE_MS_MAX
    assert leftovers.tick(True) is None, "not longer than allowed"
    now_ms += 1
    assert leftovers.tick(False) is None, "another node leads"
    abandon = leftovers.tick(True)
    assert abandon == encode(ABANDON, "dead")
    assert leftovers.tick(True) is None, "asked once, until it may have been lost"
    machine.apply(abandon)
    assert machine.incoming is None


def test_a_restore_that_goes_on_is_not_abandoned() -> None:
    machine, now_ms = fresh(), 0.0
    leftovers = Leftovers(machine, lambda: now_ms)
    for command in commands(origin()):
        machine.apply(command)
        now_ms += IDLE_MS_MAX - 1
        assert leftovers.tick(True) is None
    assert machine.machine.state.registrations()


def test_received_pieces_need_less_memory_than_the_state() -> None:
    """This holds also if the backup is several times as long as the state, and its texts are random."""
    state, draw = RouteInfoManager(), Random(1)
    for number in range(5):
        state.apply(PutKVConfig("n", f"{number}", "".join(draw.choices([chr(i) for i in range(1, 8)], k=60_000))), 0)
    machine, size = RestorableMachine(RouteStateMachine()), 0
    for command in list(commands(state))[:-1]:
        machine.apply(command)
        size += len(command)
    assert machine.incoming is not None
    assert sum(map(len, machine.incoming.pieces)) < state.sizes.total < size / 2
    twin = RestorableMachine(RouteStateMachine())
    copy = twin.restore()
    for chunk in machine.snapshot():
        copy.feed(chunk)
    copy.finish()
    assert twin.digest() == machine.digest()


def test_a_cluster_rids_itself_of_what_a_dead_node_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(restore_module, "IDLE_MS_MAX", 300.0)
    with live_cluster(tmp_path) as cluster:
        nodes: list[Any] = [member.service for member in cluster.members]
        begin, first, *_ = commands(origin(), "dead")

        async def leave() -> None:
            for command in (begin, first, encode_plain(PutKVConfig("n", "k", "v"), 1)):
                done = False
                while not done:  # on a heavily loaded machine, a leader may be lost
                    with contextlib.suppress(OutcomeUnknownError, UnavailableError):
                        await nodes[0].proposer.propose(command)
                        done = True

        cluster.wait_for(leave())
        machines = [node._leftovers._machine for node in nodes]
        wait_until(lambda: all(node.state.kv_get("n", "k") == "v" for node in nodes), "all nodes have applied it")
        wait_until(lambda: all(machine.incoming is None for machine in machines), "no node has a piece")


async def test_no_step_of_a_restore_grows_with_the_length_of_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backup of an earlier version has a whole namespace in one line. The state in it is encoded again and proposed."""
    most = []
    for count in (200, 400):
        before = RouteInfoManager()
        for number in range(count):
            before.apply(PutKVConfig("n", f"k{number}", "v" * 10_000), 1)
        with monkeypatch.context() as earlier:
            for bound in ("SLICE_CHARACTERS", "PART_BYTES_MAX"):  # earlier versions had none
                earlier.setattr(snapshot_module, bound, 1 << 40)
            lines = list(before.snapshot())
        assert max(map(len, lines)) > 10_000 * count
        read = RouteInfoManager()
        read.restore(lines)
        machine = fresh()
        steps: list[Work] = []

        async def propose(data: bytes, machine: RestorableMachine = machine, steps: list[Work] = steps) -> ProposalResult:
            results = []
            steps.append(work_of(lambda: results.append(machine.apply(data))))
            return results[0]

        assert (await restore(propose, read.snapshot())).changed
        assert answers(machine.machine.state) == answers(before)
        most.append((max(step.lines for step in steps), max(step.bytes for step in steps)))
    (work, size), (work_of_twice, size_of_twice) = most
    assert work_of_twice <= work + 10, most
    assert size_of_twice <= 1.2 * size, most


def test_a_part_of_the_line_before_the_routes_costs_the_part_alone() -> None:
    machine, twin = fresh().machine, fresh().machine
    for number in range(500):
        machine.marks.put(("C", f"{number}:{'x' * 1_000}"), Mark(1, number, "content"))
    data = b"".join(machine.snapshot())
    restoring = twin.restore()
    for start in range(0, 500_000, 10_000):
        assert work_of(partial(restoring.feed, data[start : start + 10_000])).bytes < 100_000
    restoring.feed(data[500_000:])
    restoring.finish()
    assert twin.digest() == machine.digest()
    assert b"".join(twin.snapshot()) == data


def test_parts_of_a_long_line_are_joined_once() -> None:
    line = json.dumps(["kv", "n", [[f"k{number}", "v" * 10_000] for number in range(100)]]).encode()
    reader = SnapshotReader()
    parts = [line[start : start + 10_000] for start in range(0, len(line), 10_000)]
    works = [work_of(partial(reader.feed, part)) for part in parts]
    assert max(work.bytes for work in works) < 50_000
