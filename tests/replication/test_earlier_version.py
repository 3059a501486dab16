"""Version 0.1.0 reads what this version writes as long as not all nodes are upgraded: log, snapshot, backup, KV file, messages.

The code that reads is that of 0.1.0, from the repository's history (earlier_version.py).
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from replicated_namesrv.compat.kv_file import write_kv_file
from replicated_namesrv.raft import raft_messages
from replicated_namesrv.raft.entry_log import Log
from replicated_namesrv.raft.file_storage import FileStorage
from replicated_namesrv.raft.snapshots import PREFIX, WRITING, Writer
from replicated_namesrv.replication.cluster_restore import RestorableMachine
from replicated_namesrv.replication.liveness import leader_messages
from replicated_namesrv.replication.route_machine import RouteStateMachine, encode_lead
from replicated_namesrv.routes.backup import encode as encode_backup
from replicated_namesrv.routes.commands import Command
from replicated_namesrv.routes.state import RouteSettings
from tests.raft.test_messages import any_message
from tests.replication import earlier_version
from tests.replication.test_upgrade import VERSION_0_1_0, checkout
from tests.replication.test_write_read import METADATA, admitted, commands_at_limits, facts, logged
from tests.support.routes import granted

numbers = st.integers(0, 2**64 - 1)
ages = st.integers(0, leader_messages.AGE_MAX)
keys = st.tuples(st.text(max_size=300), st.text(max_size=300))
small = st.integers(0, 255)
entries = st.builds(leader_messages.ReportEntry, keys, st.integers(1, 3), st.booleans(), numbers, numbers, ages)
to_earlier_nodes = any_message().filter(lambda message: type(message) not in raft_messages.SINCE)
replication_messages = st.one_of(
    st.builds(
        leader_messages.NodeReport,
        numbers,
        numbers,
        numbers,
        st.booleans(),
        st.lists(entries, max_size=5).map(tuple),
        ages,
        st.sampled_from((leader_messages.ALONE, leader_messages.MORE, leader_messages.LAST)),
    ),
    st.builds(
        leader_messages.ReportAnswer,
        numbers,
        numbers,
        numbers,
        st.booleans(),
        numbers,
        st.lists(st.tuples(st.integers(0, 2**32 - 1), small), max_size=5).map(tuple),
    ),
    st.builds(leader_messages.Inquiry, numbers, numbers, numbers, st.integers(0, 1), numbers, ages, keys, st.text(max_size=300)),
    st.builds(leader_messages.Decision, numbers, numbers, st.integers(0, 3)),
)


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("0.1.0")
    checkout(VERSION_0_1_0, folder)
    return folder


def read_by(program: Path, folder: Path) -> dict[str, Any]:
    """The content of ``folder`` as the earlier version reads it."""
    command = [sys.executable, earlier_version.__file__, str(program), str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def write_log(folder: Path, commands: list[bytes]) -> None:
    storage = FileStorage(folder)
    log = Log(storage, 1 << 20)
    log.add(b"\x01", 1, 0)
    log.setCurrentTerm(7, "n2")
    for number, command in enumerate(commands):
        log.add(command, 2 + number, min(1 + number, 7))
    log.setRaftCommitIndex(log.last_index)
    log.sync_now()
    storage.close()


def write_snapshot(folder: Path, machine: RestorableMachine) -> None:
    storage = FileStorage(folder)
    writer = Writer(storage, METADATA)
    for chunk in machine.snapshot():
        writer.write(chunk)
    writer.finish()
    storage.rename(WRITING, f"{PREFIX}1")
    storage.close()


def in_hexadecimal(messages: list[bytes]) -> str:
    return "\n".join(map(bytes.hex, messages))


def known_earlier(message: leader_messages.Message) -> list[Any]:
    """The class and fields as 0.1.0 has them. Of a report, without its times and places, which have another meaning there."""
    names = {leader_messages.NodeReport: "Report", leader_messages.ReportAnswer: "Answer"}
    fields = list(message)
    if isinstance(message, leader_messages.NodeReport):
        fields = [*message[:4], [entry[:5] for entry in message.entries]]
    return [names.get(type(message), type(message).__name__), json.loads(json.dumps(fields))]


def without_times(read: list[Any]) -> list[Any]:
    kind, fields = read
    return [kind, [*fields[:4], [entry[:5] for entry in fields[4]]]] if kind == "Report" else read


@pytest.mark.slow
@pytest.mark.timeout(600)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), phases=(Phase.generate,))
@given(commands_at_limits(), st.lists(to_earlier_nodes, max_size=40), st.lists(replication_messages, max_size=40))
def test_0_1_0_reads_what_this_version_writes(
    old: Path,
    tmp_path_factory: pytest.TempPathFactory,
    commands: list[Command],
    raft: list[raft_messages.Message],
    replication: list[leader_messages.Message],
) -> None:
    folder = tmp_path_factory.mktemp("written")
    machine = RestorableMachine(RouteStateMachine())
    state = machine.machine.state
    log = [encode_lead(RouteSettings(), 1, 1)]
    machine.apply(log[0])
    for time_ms, command in enumerate(commands):
        granted(admitted(state), command).release()
        log.append(logged(command, time_ms))
        machine.apply(log[-1])
    write_log(folder / "log", log)
    write_snapshot(folder / "snapshots", machine)
    (folder / "backup").write_bytes(b"".join(encode_backup({"revision": state.revision}, state.snapshot())))
    table = {name: {key: value for key, value in held.items() if value is not None} for name, held in state.kv_table().items()}
    if "\\ud800" in json.dumps(table):  # peers cannot send it: it becomes a question mark
        table = {}
    write_kv_file(folder / "kvConfig.json", table)
    (folder / "raft").write_text(in_hexadecimal([raft_messages.encode(message) for message in raft]))
    (folder / "replication").write_text(in_hexadecimal([leader_messages.encode(message) for message in replication]))

    found = read_by(old, folder)
    assert found["term and vote"] == [7, "n2"]
    assert found["metadata"] == json.loads(json.dumps(METADATA[:5]))
    for source in ("log", "snapshot", "backup"):
        assert found[source] == facts(state), source
    assert found["revision of the backup"] == state.revision
    assert found["kv file"] == table
    sent = [[type(message).__name__, earlier_version.plain(message)] for message in raft]
    assert found["raft"] == json.loads(json.dumps(sent))
    assert list(map(without_times, found["replication"])) == list(map(known_earlier, replication))
