"""Everything that the limits allow to be written can be read back: by this version, and by the previous one, whose rules are
frozen here.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast
from zlib import crc32

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replicated_namesrv.access.identities import NAME_CHARACTERS_MAX
from replicated_namesrv.compat.kv_file import read_kv_file, write_kv_file
from replicated_namesrv.model import ChangeOrigin
from replicated_namesrv.raft.entry_log import Log
from replicated_namesrv.raft.interfaces import Committed
from replicated_namesrv.raft.raft_config import RaftConfig
from replicated_namesrv.raft.snapshots import WRITING, Metadata, Reader, Writer
from replicated_namesrv.replication import marks
from replicated_namesrv.replication.cluster_restore import RestorableMachine
from replicated_namesrv.replication.liveness import leader_messages as messages
from replicated_namesrv.replication.route_machine import (
    RouteStateMachine,
    Suspect,
    content_of,
    encode_lead,
    encode_plain,
    encode_register,
    encode_suspect,
    encode_unregister,
)
from replicated_namesrv.routes import snapshot
from replicated_namesrv.routes.backup import BackupReader
from replicated_namesrv.routes.backup import encode as encode_backup
from replicated_namesrv.routes.commands import (
    BrokerRemoval,
    Command,
    PutKVConfig,
    RegisterBroker,
    UnregisterBrokers,
    UpdateSettings,
)
from replicated_namesrv.routes.encoding import decode_command, encode_command
from replicated_namesrv.routes.quotas import BROKER, KV, NAME_BYTES_MAX, NAMESPACE, STATE, VALUE_BYTES_MAX, Quotas
from replicated_namesrv.routes.sizes import text_bytes
from replicated_namesrv.routes.state import RouteInfoManager, RouteSettings
from tests.raft.test_snapshots import filled
from tests.replication import earlier_version
from tests.support.raft_world import Disk, Machine, World
from tests.support.routes import granted, mapping, queues, register, unregister

METADATA = Metadata("c", (6, 1), (7, 2), {"n1": 5}, [["n1", 5, 1, 0, 3, [4]]])
CHARACTERS = ["x", "\x00", '"', "\\", "\n", "\u00e4", "\u20ac", "\ud800", "\U0001f600"]
PLENTY = 1 << 40


def filling(size: int, character: str, distinct: str = "") -> str:
    """Text of at most ``size`` bytes, as near to it as the character allows, that begins with ``distinct``."""
    return distinct + character * ((size - len(distinct)) // text_bytes(character))


around_names = st.sampled_from((1, NAME_BYTES_MAX // 2, NAME_BYTES_MAX - 1, NAME_BYTES_MAX))
around_values = st.sampled_from((0, 1, 60_000, 70_000, VALUE_BYTES_MAX // 6, VALUE_BYTES_MAX - 1, VALUE_BYTES_MAX))
characters = st.sampled_from(CHARACTERS)


@st.composite
def commands_at_limits(draw: st.DrawFn) -> list[Command]:
    """A few registrations and KV entries of the longest texts."""
    found: list[Command] = []
    for number in range(draw(st.integers(1, 4))):
        character, size = draw(characters), draw(around_names)

        def name(begin: str, size: int = size, character: str = character, number: int = number) -> str:
            return filling(size, character, f"{begin}{number}"[:size])

        count = draw(st.sampled_from((2, 30, 200)))
        topics = {filling(size, character, f"{each}"[:size]): queues(each % 8) for each in range(count)}
        infos = {topic: mapping(topic, name("b"))._replace(dirty=draw(st.booleans())) for topic in list(topics)[:3]}
        servers = tuple(filling(size, character, f"{each}f"[:size]) for each in range(draw(st.sampled_from((0, 2, 120)))))
        texts = {"cluster": name("c"), "ha": name("h"), "zone": name("z"), "filters": draw(st.sampled_from((servers, None)))}
        others = {"timeout_ms": draw(st.sampled_from((None, 7))), "acting_master": draw(st.sampled_from((None, False, True)))}
        first = register(name("b"), 0, name("a"), topics=topics, mappings=infos, **texts, **others)  # type: ignore[arg-type]  # values of the right fields
        found.append(first)
        if draw(st.booleans()):
            found.append(replace(first, broker_id=1, broker_addr=name("s"), topics=None))
            found.append(unregister(name("b"), 1, name("s"), cluster=name("c"), epoch=draw(st.sampled_from((None, 2, 9)))))
        found.append(UpdateSettings({"support_acting_master": draw(st.booleans())}))
        for each in range(draw(st.sampled_from((1, 3)))):
            value = draw(st.sampled_from((filling(draw(around_values), character), None)))
            found.append(PutKVConfig(name("n"), filling(size, character, f"{each}k"[:size]), value))
    return found


def admitted(state: RouteInfoManager) -> Quotas:
    """Room for everything whose texts are short enough."""
    return Quotas(dict.fromkeys((STATE, KV, NAMESPACE, BROKER), lambda: PLENTY), state.needs)


def logged(command: Command, time_ms: int) -> bytes:
    """The command as it stands in the log."""
    if isinstance(command, RegisterBroker):
        return encode_register(command, time_ms, 0, 0, content_of(command))
    if isinstance(command, UnregisterBrokers):
        return encode_unregister(command, time_ms, 0)
    return encode_plain(command, time_ms)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(commands_at_limits())
def test_states_at_their_limits_come_back(commands: list[Command]) -> None:
    machine, direct = RestorableMachine(RouteStateMachine()), RouteInfoManager()
    direct.compares_content = machine.machine.state.compares_content
    for time_ms, command in enumerate(commands):
        granted(admitted(direct), command).release()
        assert decode_command(encode_command(command, time_ms)) == (command, time_ms)
        direct.apply(command, time_ms)
        machine.apply(logged(command, time_ms))
    assert machine.machine.state.digest() == direct.digest()

    disk = Disk()
    writer = Writer(disk, METADATA)
    for chunk in machine.snapshot():
        assert len(chunk) <= 1 << 20
        writer.write(chunk)
    writer.finish()
    twin = RestorableMachine(RouteStateMachine())
    restoration = twin.restore()
    for chunk in Reader(disk, WRITING).chunks():
        restoration.feed(chunk)
    restoration.finish()
    assert twin.digest() == machine.digest()
    assert twin.machine.state.sizes == direct.sizes
    assert as_the_version_before_reads_it(bytes(disk.files[WRITING].data)) == facts(direct)

    backup, state = BackupReader(), RouteInfoManager()
    parts = [backup.feed(part) for part in encode_backup({"revision": direct.revision}, direct.snapshot())]
    assert backup.finish().revision == direct.revision
    state.restore(parts)
    assert state.digest() == direct.digest()
    assert state.sizes == direct.sizes

    for registration in direct.registrations():
        key = registration.cluster_name, registration.broker_addr
        report = messages.NodeReport(1, 2, 3, True, (messages.ReportEntry(key, 1, True, 4, 5, 6),), 7)
        assert messages.decode(messages.encode(report)) == report
        inquiry = messages.decode(messages.encode(messages.Inquiry(1, 2, 3, 0, 4, 5, key, "c")))
        assert isinstance(inquiry, messages.Inquiry)
        assert inquiry.key == key
    for registration in direct.registrations()[:1]:
        assert_messages_have_bounds(registration.broker_name, (registration.cluster_name, registration.broker_addr))

    table = {
        name: {key: value for key, value in entries.items() if value is not None} for name, entries in direct.kv_table().items()
    }
    if "\\ud800" not in json.dumps(table):  # peers cannot send it: it becomes a question mark
        with TemporaryDirectory() as folder:
            write_kv_file(Path(folder) / "kvConfig.json", table)
            assert read_kv_file(Path(folder) / "kvConfig.json") == table


def assert_messages_have_bounds(broker_name: str, key: marks.Key) -> None:
    """As many entries as a report can have, a refusal for each, and every question about the broker, with the longest texts."""
    room, entry = messages.Room(may_be_old=False), messages.ReportEntry(key, messages.HELD, True, 1 << 63, 1 << 63, 6)
    entries = [entry]
    assert room.take(key)
    while room.take(key):
        entries.append(entry)
    origin = ChangeOrigin(*("\U0001f600" * NAME_CHARACTERS_MAX for _ in ChangeOrigin._fields))
    removal = messages.encode_removal(BrokerRemoval(*key, broker_name, 1 << 62, 1 << 62), origin)
    for message in (
        messages.NodeReport(1, 2, 3, False, tuple(entries), 7, messages.LAST),
        messages.ReportAnswer(1, 2, 3, True, 4, tuple((at, messages.REMOVING) for at in range(len(entries)))),
        messages.Inquiry(1, 2, 3, messages.REMOVE, 4, 5, key, removal),
        messages.Inquiry(1, 2, 3, messages.REGISTER, 4, 5, key, "f" * 64),
        messages.Decision(1, 2, messages.LATE),
    ):
        data = messages.encode(message)
        assert len(data) <= messages.MESSAGE_BYTES_MAX
        assert messages.decode(data) == message
    if len(entries) < messages.PART_ENTRIES_MAX:
        longer = messages.encode(messages.NodeReport(1, 2, 3, False, (*entries, entry), 7))
        assert len(longer) > messages.MESSAGE_BYTES_MAX


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from((1, 2, 7, 40)), st.sampled_from((0, 1, 30)), st.sampled_from((1, 5, 5_000)), st.integers(1, 70_000))
def test_a_state_of_many_lines_comes_back_from_parts_cut_anywhere(brokers: int, gone: int, entries_max: int, part: int) -> None:
    """Few entries in a line, so that each table continues in several lines."""
    machine = RouteStateMachine()
    machine.apply(encode_lead(RouteSettings(support_acting_master=True), 1, 7))
    for number in range(brokers + gone):
        cluster = f"C{number % 3}"
        machine.apply(logged(register(f"b{number}", 0, f"b{number}:1", cluster=cluster), 10 + number))
        held = machine.state.registration(cluster, f"b{number}:1")
        assert held is not None
        suspect = Suspect((cluster, f"b{number}:1"), held.epoch, 1 + number % 2)
        machine.apply(encode_suspect([suspect], 20 + number, 7, machine.serial))
        if number >= brokers:
            machine.apply(encode_unregister(unregister(f"b{number}", 0, f"b{number}:1", cluster=cluster), 90, 7))
    machine.apply(encode_plain(UpdateSettings({"notify_min_broker_id_changed": True}), 99))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(marks, "ROWS_MAX", entries_max)
        patch.setattr(snapshot, "SLICE", entries_max)
        patch.setattr(snapshot, "CLUSTER_CHARACTERS", 4 * entries_max)
        written = b"".join(machine.snapshot())
    twin = RouteStateMachine()
    restoration = twin.restore()
    for start in range(0, len(written), part):
        restoration.feed(written[start : start + part])
    restoration.finish()
    assert (twin.serial, twin.time_ms, twin.led_term) == (machine.serial, machine.time_ms, machine.led_term)
    assert (list(twin.marks.items()), twin.suspected) == (list(machine.marks.items()), machine.suspected)
    assert len(twin.suspected) == brokers
    assert twin.digest() == machine.digest()
    assert b"".join(twin.snapshot()) == b"".join(machine.snapshot())


@pytest.mark.parametrize(("brokers", "size"), [(600, 1_000), (6_000, 20)])
def test_large_clusters_are_written_as_the_version_before_reads_them_until_all_nodes_are_upgraded(
    brokers: int, size: int
) -> None:
    machine = RestorableMachine(RouteStateMachine())
    machine.apply(encode_lead(RouteSettings(), 1, 1))
    for number in range(brokers):
        machine.apply(logged(register(filling(size, "n", f"b{number}-"), 0, f"a{number}:1", topics=["t"]), 10))
    for is_upgraded in (False, True):
        if is_upgraded:
            machine.apply(encode_suspect([], 20, 1, machine.machine.serial))
        disk = Disk()
        writer = Writer(disk, METADATA)
        for chunk in machine.snapshot():
            writer.write(chunk)
        writer.finish()
        data = bytes(disk.files[WRITING].data)
        if is_upgraded:
            assert b'\n["listed"' in b"".join(machine.snapshot())
            with pytest.raises(AssertionError):
                as_the_version_before_reads_it(data)
        else:
            assert as_the_version_before_reads_it(data) == facts(machine.machine.state)
        twin = RestorableMachine(RouteStateMachine())
        restoration = twin.restore()
        for chunk in Reader(disk, WRITING).chunks():
            restoration.feed(chunk)
        restoration.finish()
        assert twin.digest() == machine.digest()
        assert b"".join(twin.snapshot()) == b"".join(machine.snapshot())


# The rules by which the previous version reads. They never change.

OLD_BLOCK_BYTES_MAX = 64 << 20
OLD_FIELDS = {"topics": 2, "group": 5, "queues": 3, "clusters": 1, "live": 1, "mappings": 2, "namespace": 1, "kv": 2}


def old_blocks(data: bytes) -> Iterator[bytes]:
    """Blocks of a snapshot file; each was read as a whole, and none above 64 MiB."""
    assert data[:12] == b"RAFTSNAP\x01\x00\x00\x00"
    offset = 12
    while True:
        length, checksum = (int.from_bytes(data[offset + each : offset + each + 4], "little") for each in (0, 4))
        if not length:
            assert checksum == crc32(data[:offset])
            assert offset + 8 == len(data)
            return
        assert length <= OLD_BLOCK_BYTES_MAX
        block = data[offset + 8 : offset + 8 + length]
        assert crc32(block) == checksum
        yield block
        offset += 8 + length


def as_the_version_before_reads_it(data: bytes) -> dict[str, Any]:
    """The content of a snapshot file as the previous version reads it: metadata, the head of a restore, its own line, and lines
    of routes cut anywhere.
    """
    metadata, restore, *rest = old_blocks(data)
    assert set(json.loads(metadata)) == {"cluster", "previous", "last", "voters", "sessions"}
    assert json.loads(restore) == [1, None, 0]
    own, *lines = b"".join(rest).split(b"\n")
    assert len(json.loads(own)) == 5
    assert lines.pop() == b""
    topics: list[str] = []
    found: dict[str, Any] = {"revisions": {}, "topics": {}, "clusters": {}, "live": [], "mappings": {}, "kv": {}}
    group = ""
    for number, line in enumerate(lines):
        kind, *fields = json.loads(line)
        if kind == "end":
            assert (number, fields) == (len(lines) - 1, [number])
            break
        assert (number == 0) == (kind == "head")
        if kind == "head":
            assert (fields[0], len(fields)) == (1, 4)
            found["revision"] = fields[1]
            continue
        assert len(fields) == OLD_FIELDS[kind]
        match kind:
            case "topics":
                topics += fields[0]
                found["revisions"] |= dict(zip(*fields, strict=True))
            case "group":
                group = fields[0]
                found["topics"][group] = {}
            case "queues":
                numbers, table, each = fields
                kinds = [each] * len(numbers) if isinstance(each, int) else each
                assert len(kinds) == len(numbers)
                found["topics"][group] |= {topics[n]: table[k] for n, k in zip(numbers, kinds, strict=True)}
            case "clusters":
                found["clusters"] |= dict(fields[0])
            case "live":
                found["live"] += fields[0]
            case "mappings":
                found["mappings"].setdefault(fields[0], {}).update(dict(fields[1]))
            case "namespace":
                found["kv"][fields[0]] = {}
            case "kv":
                found["kv"][fields[0]] |= dict(fields[1])
    else:
        raise AssertionError("there is no end")
    return found


def facts(state: RouteInfoManager) -> dict[str, Any]:
    """The content of a state, in JSON's types."""
    plain: dict[str, Any] = json.loads(json.dumps(earlier_version.facts(state)))
    return plain


# The log


@pytest.mark.parametrize("character", CHARACTERS)
def test_the_longest_texts_go_through_the_log_and_a_restart(character: str) -> None:
    """Escaped, a value of 1 MiB is up to 6 MiB long: it fits into a command, an entry and a message."""
    value = filling(VALUE_BYTES_MAX, character)
    command = encode_plain(PutKVConfig("n", "k", value), 1)
    assert len(command) <= RaftConfig().command_bytes_max
    world = World(3)
    world.start_all()
    leader = world.elect()
    follower = next(node.node_id for node in world.nodes if node is not leader)
    outcome = world.propose(follower, command)
    world.run_until(lambda: outcome)
    assert isinstance(outcome[0], Committed)
    world.run_until(lambda: all(host.machine.commands == [command] for host in world.hosts.values()))
    for host in world.hosts.values():
        host.crash()
    world.start_all()
    world.elect()
    world.run_until(lambda: all(host.machine.commands == [command] for host in world.hosts.values()))


log_steps = st.sampled_from(("add", "add", "term", "cut", "commit", "clear", "release", "open"))


def entries_of(log: Log, first: int) -> list[tuple[bytes, int, int]]:
    """Entries from index ``first``, without the payloads that a snapshot replaces."""
    found = [cast("tuple[bytes, int, int]", log[position]) for position in range(len(log))]
    return [(payload if index > log.base_index else b"", index, term) for payload, index, term in found if index >= first]


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from((100, 400, 16 << 20)), st.lists(st.tuples(log_steps, st.integers(1, 300)), max_size=40))
def test_a_log_is_opened_as_it_was_written(segment_bytes: int, steps: list[tuple[str, int]]) -> None:
    """Every kind of record, in segments of any length, of which a snapshot replaces the first."""
    disk = Disk()
    log = Log(disk, segment_bytes)
    log.add(b"\x01", 1, 0)
    replaced: tuple[tuple[int, int], tuple[int, int]] | None = None
    for what, number in [*steps, ("open", 0)]:
        first, commit = log.first_index, log.getRaftCommitIndex()
        match what:
            case "add":
                log.add(bytes([number % 256]) * number, log.last_index + 1, max(log.last_term, log.getCurrentTerm()))
            case "term":
                log.setCurrentTerm(log.getCurrentTerm() + 1, f"n{number}" if number % 3 else None)
            case "cut":
                log.deleteEntriesFrom(max(len(log) - number % 4, commit - first + 1))
            case "commit":
                log.setRaftCommitIndex(min(log.last_index, commit + number % 4))
            case "clear":
                index, term = log.last_index + number, max(log.last_term, log.getCurrentTerm())
                log.clear()
                log.add(b"", index, term)
                log.add(b"", index + 1, term)
                log.setRaftCommitIndex(index + 1)
                replaced = (index, term), (index + 1, term)
            case "release" if log.last_index > log.base_index + 1:
                commit = log.last_index  # otherwise few segments could be released
                log.setRaftCommitIndex(commit)
                log.sync_now()
                before, last = log.term_at(commit - 1), log.term_at(commit)
                assert before is not None
                assert last is not None
                replaced = (commit - 1, before), (commit, last)
                log.deleteEntriesTo(commit - 1 - first)
                log.release(commit)
            case "open":
                log.sync_now()
                while log.dirty:
                    log.sync_now()
                opened = Log(disk, segment_bytes)
                if replaced is not None:
                    opened.align(*replaced)
                base = max(log.base_index, opened.base_index)
                assert entries_of(opened, base + 1) == entries_of(log, base + 1)
                assert opened.last_index == log.last_index
                vote = log.getCurrentTerm(), log.getVotedForNodeId()
                assert (opened.getCurrentTerm(), opened.getVotedForNodeId()) == vote
                assert opened.getRaftCommitIndex() == commit
                log = opened


class Whole(Machine):
    """A machine whose chunks may be cut anywhere, as those of the routes may."""

    def restore(self) -> "Whole._Restoring":  # type: ignore[override]  # a narrower type
        return Whole._Restoring(self)

    class _Restoring:
        def __init__(self, machine: "Whole") -> None:
            self.machine, self.data = machine, b""

        def feed(self, chunk: bytes) -> None:
            self.data += chunk

        def finish(self) -> None:
            self.machine.commands, start = [], 0
            while start < len(self.data):
                end = start + 4 + int.from_bytes(self.data[start : start + 4], "little")
                self.machine.commands.append(self.data[start + 4 : end])
                start = end


@pytest.mark.parametrize("is_old", [False, True])
def test_a_follower_without_a_disk_gets_a_snapshot_of_any_size(is_old: bool) -> None:
    """The snapshot may also be one that the previous version wrote, with blocks of any length."""
    config = RaftConfig(compact_entries=20, compact_margin_entries=3, entry_bytes_max=1)
    world = World(3, config)
    for host in world.hosts.values():
        host.start(Whole())
    world.elect()
    commands = [bytes([number]) * (3 << 20) for number in range(1, 5)]
    for command in commands:
        outcome = world.propose("n1", command)
        world.run_until(lambda: outcome)  # noqa: B023 - called within this turn of the loop
        assert isinstance(outcome[0], Committed)
    commands += filled(world, 40)
    world.run_until(lambda: all(node.taking.taken and not node.taking.running for node in world.nodes))
    world.run_until(lambda: all(host.machine.commands == commands for host in world.hosts.values()))
    for host in world.hosts.values():
        host.crash()
        if is_old:
            for name in [name for name in host.disk.list_names() if name.startswith("snapshot-")]:
                rewrite_as_before(host.disk, name)
    *_, empty = world.hosts.values()
    empty.disk = Disk()
    for host in world.hosts.values():
        host.start(Whole())
    world.elect()
    assert empty.node is not None
    node = empty.node
    world.run_until(lambda: node.receiving.installed and node.role == "follower")
    world.run_until(lambda: empty.machine.commands == commands)


def rewrite_as_before(disk: Disk, name: str) -> None:
    """All chunks of a snapshot file in one block."""
    data = bytes(disk.files[name].data)
    metadata, *chunks = old_blocks(data)
    whole = data[:12]
    for block in (metadata, b"".join(chunks)):
        whole += len(block).to_bytes(4, "little") + crc32(block).to_bytes(4, "little") + block
    whole += bytes(4) + crc32(whole).to_bytes(4, "little")
    disk.files[name] = disk.durable[name] = type(disk.files[name])(whole)
