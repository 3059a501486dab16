"""A backup that somebody edited is refused, or gives a state in which everything works. No edit may stop a node.

A longer run: ``REPEATS=100 ./namesrv test tests/routes/test_edited_backups.py``.
"""

import copy
import json
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from replicated_namesrv.replication.cluster_restore import RestorableMachine, encode
from replicated_namesrv.replication.command_kinds import BEGIN, FINISH, PIECE
from replicated_namesrv.replication.route_machine import RouteStateMachine
from replicated_namesrv.routes.commands import (
    BrokerRemoval,
    ChangeWritePerm,
    DeleteKVConfig,
    DeleteTopic,
    PutKVConfig,
    RegisterTopic,
    UnregisterBrokers,
    UpdateSettings,
)
from replicated_namesrv.routes.encoding import RouteFormatError, decode_command, encode_command
from replicated_namesrv.routes.sizes import Sizes
from replicated_namesrv.routes.snapshot import SnapshotReader
from replicated_namesrv.routes.snapshot_checks import TEXT_CHARACTERS_MAX
from replicated_namesrv.routes.state import RouteInfoManager
from tests.routes.test_snapshot import populated
from tests.support.routes import measured, queues, register

EDITS = 400
ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 99, 1 << 31, 1 << 62, 1 << 63, 1 << 64, 1 << 200, -(1 << 63) - 1, 0.5, 1.0),
    *(float("nan"), float("inf"), "", "x", "T", "b", "C", "1", [], [[]], [None], [0], [""], {}, {"a": 1}, [[[[[]]]]]),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value at which something can be put."""
    if isinstance(value, list | dict):
        for key in range(len(value)) if isinstance(value, list) else value:
            yield (*path, key)
            yield from places(value[key], (*path, key))


def edited(lines: list[Any], draw: random.Random) -> list[Any]:
    """A copy with one to three edits anywhere."""
    lines = copy.deepcopy(lines)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        *path, last = draw.choice(list(places(lines)))
        parent: Any = lines
        for key in path:
            parent = parent[key]
        kind = draw.randrange(6)
        if kind == 0:
            del parent[last]
        elif kind == 1 and isinstance(parent, list):
            parent.insert(last, copy.deepcopy(draw.choice([*ODD, parent[last]])))
        elif kind == 2 and isinstance(parent, list):
            other = draw.randrange(len(parent))
            parent[last], parent[other] = parent[other], parent[last]
        elif kind == 3:
            parent[last] = [parent[last]]
        elif kind == 4 and isinstance(parent, list):
            parent.append(copy.deepcopy(draw.choice(ODD)))
        else:
            parent[last] = copy.deepcopy(draw.choice(ODD))
    return lines


def as_bytes(lines: list[Any]) -> bytes:
    """JSON lines. A value that orjson cannot write comes after a blank, as in a snapshot. The count in the last line is put
    right."""
    if lines and isinstance(lines[-1], list) and lines[-1][:1] == ["end"]:
        lines[-1] = ["end", len(lines) - 1]
    return b"".join(b" " + json.dumps(line).encode() + b"\n" for line in lines)


def use_everything(state: RouteInfoManager, machine: RestorableMachine | None = None) -> None:
    """Queries, digests, snapshots, further commands, and the removal of all there is."""
    time_ms = 10

    def apply(command: Any) -> None:
        nonlocal time_ms
        time_ms += 1
        decoded, _ = decode_command(encode_command(command, time_ms))
        state.apply(decoded, time_ms)
        state.digest()
        assert state.sizes == measured(state._tables)

    def look() -> None:
        for topic in state.all_topics():
            assert state.route(topic) is not None
            assert state.topic_queues(topic)
        state.cluster_info(), state.system_topics(), state.unit_topics(), state.has_unit_sub_topics()
        state.has_unit_sub_un_unit_topics()
        for cluster in list(state._tables.cluster_names):
            state.topics_by_cluster(cluster)
        for registration in state.registrations():
            assert state.member_group(registration.broker_name)
            assert state.renewal_result(registration.cluster_name, registration.broker_addr) is not None
        for namespace, entries in state.kv_table().items():
            assert state.kv_view(namespace) == dict(entries)
        twin = RouteInfoManager()
        lines = list(state.snapshot())
        twin.restore(lines)
        assert list(twin.snapshot()) == lines
        assert twin.digest() == state.digest()
        assert twin.sizes == state.sizes == measured(state._tables)

    state.digest()
    look()
    for name in list(state._tables.groups):
        apply(ChangeWritePerm(name, False))
        apply(ChangeWritePerm(name, True))
        apply(RegisterTopic("T", ((name, queues(4)),)))
        apply(register(name, 0, "new:1", version=77, topics=["T", "New", name]))
        apply(register(name, 1, "new:2", version=78, acting_master=True))
    apply(UpdateSettings({"support_acting_master": True, "order_message_enable": True}))
    apply(PutKVConfig("n", "k", "again"))
    look()
    if machine is not None:
        machine.digest()
        assert list(machine.snapshot())
    for registration in state.registrations():
        removal = BrokerRemoval(
            registration.cluster_name,
            registration.broker_addr,
            registration.broker_name,
            registration.broker_id,
            registration.epoch,
        )
        apply(UnregisterBrokers((removal,)))
    for name in list(state._tables.groups):
        apply(UnregisterBrokers((BrokerRemoval("C", "none:1", name, 0, None),)))
    for topic in state.all_topics():
        apply(DeleteTopic(topic, None))
    for namespace, entries in list(state.kv_table().items()):
        for key in list(entries):
            apply(DeleteKVConfig(namespace, key))
    assert not state.registrations()
    assert not state.all_topics()
    assert not state._tables.groups
    assert not any(state.kv_table().values())


REPEATS = range(int(os.environ.get("REPEATS", "1")))


@pytest.mark.parametrize("repeat", REPEATS)
def test_any_edit_is_refused_or_works(repeat: int, seed: int) -> None:
    draw = random.Random(f"{seed} {repeat}")
    original = [json.loads(line) for line in populated().snapshot()]
    loaded = 0
    for number in range(EDITS):
        lines = edited(original, draw)
        state = RouteInfoManager()
        try:
            state.restore([as_bytes(lines)])
        except RouteFormatError:
            assert state.sizes == Sizes()
            continue
        loaded += 1
        try:
            use_everything(state)
        except Exception as error:
            raise AssertionError(f"seed {seed}, repeat {repeat}, edit {number}: {as_bytes(lines)!r}") from error
    assert 0 < loaded < EDITS / 2


@pytest.mark.parametrize("repeat", REPEATS)
def test_the_same_through_the_log(repeat: int, seed: int) -> None:
    draw = random.Random(f"{seed} {repeat}")
    original = [json.loads(line) for line in populated().snapshot()]
    for number in range(EDITS // 4):
        lines = edited(original, draw)
        machine = RestorableMachine(RouteStateMachine())
        commands = [encode(BEGIN, "r"), encode(PIECE, "r", 0, as_bytes(lines)), encode(FINISH, "r", 1)]
        try:
            codes = [machine.apply(command).result.code for command in commands]
            machine.digest()
            if codes == [0, 0, 0]:
                use_everything(machine.machine.state, machine)
        except Exception as error:
            raise AssertionError(f"seed {seed}, repeat {repeat}, edit {number}: {as_bytes(lines)!r}") from error


HEAD = b'["head",1,9,0,{}]\n'
GROUP = b'["topics",["T"],[1]]\n["group","b","C",null,false,1]\n["queues",[0],[[6,8,0,8]],0]\n'
LONG = b"x" * (TEXT_CHARACTERS_MAX + 1)
MEMBER = b'["live",[["C","m:1","b",0,1,[0,0,1],1,"",[],1]]]\n'


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b'["topics",["T",7],[1,1]]\n', "line 2: an item of topics is 7: expected a text"),
        (b'["topics",["T"],[true]]\n', "line 2: an item of topic revisions is True: expected a whole number from 0 to 9"),
        (b'["topics",["T"],[10]]\n', "line 2: an item of topic revisions is 10"),
        (b' ["topics",["T"],[NaN]]\n', "line 2: an item of topic revisions is nan"),
        (b'["topics",["T","T"],[1,1]]\n', "line 2: a topic is 'T': expected a value that has not occurred before"),
        (b'["topics",["T"],[1]]\n["end",2]\n', "topics that no broker serves"),
        (b'["group","b","C",1,false,1]\n', "line 2: zoneName is 1: expected a text"),
        (b'["group","b","C",null,0,1]\n', "line 2: enableActingMaster is 0: expected true or false"),
        (GROUP.replace(b"[6,8,0,8]", b"[6,8,0,8.0]"), "line 4: an item of queue settings is 8.0"),
        (GROUP.replace(b"]],0]", b"]],-1]"), "line 4: number of queue settings is -1"),
        (GROUP.replace(b"[0],[[", b"[-1],[["), "line 4: an item of topic numbers is -1"),
        (GROUP + MEMBER.replace(b'"b",0', b'"c",0'), "line 5: brokerName is 'c'"),
        (GROUP + MEMBER.replace(b'"b",0', b'"b",' + b"9" * 30), "line 5: brokerId is"),
        (GROUP + MEMBER + MEMBER.replace(b"m:1", b"n:1"), "line 6: brokerId or brokerAddr at b is 0"),
        (GROUP + MEMBER.replace(b'1,"",[]', b'1,"",["f",{}]'), "line 5: an item of filter servers is {}: expected a text"),
        (GROUP + MEMBER.replace(b'"C","m:1"', b'"","m:1"'), "line 5: clusterName is ''"),
        (GROUP + MEMBER.replace(b"m:1", b"m" * 10_001), "line 5: clusterName, brokerAddr and brokerName have more than 10000"),
        (b'["clusters",[["C",[]]]]\n', "line 2: broker names of a cluster is []"),
        (b'["listed","C",["b"]]\n', "line 2: clusterName is 'C': expected a value from a line of kind clusters"),
        (b'["clusters",[["C",["b"]]]]\n["listed","C",["b"]]\n', "line 3: a broker name of a cluster is 'b'"),
        (b'["mappings","b",[["T",["c",[],false,1,"","T",1]]]]\n', "line 2: bname is 'c'"),
        (b'["mappings","b",[["T",["b",[[0,"0"]],false,1,"","T",1]]]]\n', "line 2: an item of currIdMap is '0'"),
        (b'["mappings","b",[["T",["b",[[0,1],[0,2]],false,1,"","T",1]]]]\n', "line 2: a key of currIdMap is 0"),
        (b'["namespace",{}]\n', "line 2: namespace is {}"),
        (b'["kv","n",[["k","v"]]]\n', "line 2: namespace is 'n'"),
        (b'["namespace","n"]\n["kv","n",[["k",5]]]\n', "line 3: value is 5"),
        (b'["namespace","n"]\n["kv","n",[["k","v"],["k","w"]]]\n', "line 3: key is 'k'"),
        pytest.param(
            b'["namespace","n"]\n["kv","n",[["k","' + LONG + b'"]]]\n',
            "line 3: value has 16,777,217 characters: at most 16,777,216",
            id="long value",
        ),
        pytest.param(
            b'["topics",["T","' + LONG + b'"],[1,1]]\n', "line 2: an item of topics has 16,777,217 characters", id="long topic"
        ),
        pytest.param(
            b'["topics",["' + 4 * LONG + b'"],[1]]\n', "line 2 has more than 67108864 bytes, the most allowed", id="long line"
        ),
        (b'["group","b"]\n', "line 2: a line of kind group has 1 fields: expected 5"),
        (b"[[]]\n", "line 2: the kind of the line is []"),
        (b'["x"]\n', "line 2: the kind of the line is 'x'"),
        (b" " + b"[" * 100_000 + b"\n", "line 2"),
        (b"{}\n", "line 2"),
        (b"7\n", "line 2"),
    ],
)
def test_a_refusal_names_line_and_field(line: bytes, told: str) -> None:
    with pytest.raises(RouteFormatError) as refused:
        RouteInfoManager().restore([HEAD + line])
    assert told in str(refused.value)


@pytest.mark.parametrize(
    "head", ['["head",1,true,0,{}]', '["head",1,9,10,{}]', '["head",1,9,0,{"x":true}]', '["head",1.0,9,0,{}]']
)
def test_wrong_heads_are_refused(head: str) -> None:
    with pytest.raises(RouteFormatError, match="snapshot"):
        SnapshotReader().feed(head.encode() + b"\n")
