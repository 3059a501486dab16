"""Registrations: three decoders give equal values, limits are enforced, and only BodyError is raised."""

import struct
import zlib
from random import Random
from string import ascii_letters, digits
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicated_namesrv.errors import BodyError
from replicated_namesrv.model import TOPICS_MAX, DataVersion, QueueData, TopicQueueMappingInfo
from replicated_namesrv.steps import Steps, finish
from replicated_namesrv.wire import registration_body, registration_compressed, registration_values
from replicated_namesrv.wire.fastjson import MalformedJsonError
from replicated_namesrv.wire.registration_body import (
    RegisterBrokerBody,
    decode_canonical,
    decode_general,
    decode_register_body,
)
from tests.support.work import work_of
from tests.wire.data import lines, recorded_frames
from tests.wire.strategies import NAMES, PLAIN_NAMES, damaged, registration

ENDED = object()
COMPRESSED_VECTOR = bytes.fromhex(
    "78da2d8ec10ac2301044a39fe1a9ec3942ab35dadc7a10115410c58b4848e3aac5b629697a90e2d9df762bb22ccb0ec39b618cf10e8c6d2b8f0e64c8a1f1"
    "dae3095d93dbea27f8bc4412cb1a64f4668c0d6847475be7260d16342238ac77abcd521dd355d0f58ee1f9f2f77d3ac82a5d2248c89c7da21b6be0605ae7"
    "d6d7ad26621752c494c01caeb9f32f90375d34c8016b6b1e9418cd26c9249a85b108c52216c95c504563eb1ea9d4bdb0992e9422a8ef1b9148f7f7795dec"
    "5b6cb10119bfbfe37741e3"
)


def decode(body: bytes, version: int = 479, compressed: bool = False) -> RegisterBrokerBody:
    return finish(decode_register_body(body, version, compressed))


def general(body: bytes) -> RegisterBrokerBody | None:
    """The result of the general decoder alone; None if it is an error."""
    try:
        return finish(decode_general(body))
    except MalformedJsonError:
        return None


def canonical(body: bytes) -> RegisterBrokerBody | None:
    """The result of the canonical decoder alone; None if the body is not canonical, or wrong. It is the same whether the table is
    cut into parts after each topic or rarely, and whether its parts were decoded before or not."""
    results: list[RegisterBrokerBody | None] = []
    for part_bytes in (1, 1, 8_192, 8_192):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(registration_body, "PART_BYTES", part_bytes)
            try:
                results.append(finish(decode_canonical(body)))
            except MalformedJsonError:
                results.append(None)
    found = [result for result in results if result is not None]
    assert found.count(found[0]) == len(found) if found else True
    return found[0] if found else None


def in_slices(steps: Steps[RegisterBrokerBody]) -> tuple[RegisterBrokerBody, int]:
    """The result and the number of slices."""
    slices = 1
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: RegisterBrokerBody = stop.value
            return result, slices
        slices += 1


def body_of(names: list[str], perm: int = 6) -> bytes:
    """The body that a 5.x broker with these topics sends."""
    topics = ",".join(
        f'"{name}":{{"attributes":{{}},"order":false,"perm":{perm},"readQueueNums":8,"topicFilterType":"SINGLE_TAG",'
        f'"topicName":"{name}","topicSysFlag":0,"writeQueueNums":8}}'
        for name in names
    )
    version = '{"counter":0,"stateVersion":0,"timestamp":1}'
    return (
        f'{{"filterServerList":[],"topicConfigSerializeWrapper":{{"dataVersion":{version},"mappingDataVersion":{version},'
        f'"topicConfigTable":{{{topics}}},"topicQueueMappingDetailMap":{{}},"topicQueueMappingInfoMap":{{}}}}}}'
    ).encode()


def deflated(*pieces: int | bytes) -> bytes:
    """The compressed form: numbers as they are, texts with their length."""
    return zlib.compress(
        b"".join(struct.pack(">i", p) + b"" if isinstance(p, int) else struct.pack(">i", len(p)) + p for p in pieces), 9
    )


VERSION_JSON, LINE = b'{"counter":0,"timestamp":1}', b"T 8 4 6 SINGLE_TAG"

# -- recorded


def test_recorded_registrations_are_canonical_and_mean_the_same_in_general() -> None:
    seen = 0
    for recorded in recorded_frames():
        if recorded.decoded["code"] != 103 or not recorded.from_client:
            continue
        seen += 1
        compressed = recorded.body[:1] == b"x"
        decoded = decode(recorded.body, recorded.decoded["version"], compressed)
        assert decoded.topics
        if not compressed:
            assert decoded == canonical(recorded.body) == general(recorded.body)
    assert seen > 20


@pytest.mark.parametrize("row", lines("fastjson_registrations.jsonl"), ids=lambda row: str(row.get("text", row.get("hex")))[:60])
def test_bodies_mean_what_they_mean_to_rocketmq(row: dict[str, Any]) -> None:
    """Each row was given to RegisterBrokerBody.decode of 5.3.3; null: it fails."""
    body = row["text"].encode() if "text" in row else bytes.fromhex(row["hex"])
    if row["java"] is None:
        with pytest.raises(BodyError):
            decode(body, row["version"], row["compressed"])
        return
    decoded = decode(body, row["version"], row["compressed"])
    java = row["java"]
    assert decoded.data_version == (DataVersion(*java["dv"]) if java["dv"] is not None else None)
    assert decoded.topics == (None if java["t"] is None else {name: QueueData(*queues) for name, queues in java["t"].items()})
    assert {
        key: [list(map(list, m)) if isinstance(m, tuple) else m for m in info]
        for key, info in decoded.topic_queue_mapping_infos.items()
    } == java["m"]
    assert decoded.filter_servers == (None if java["f"] is None else tuple(java["f"]))


def test_the_vector_of_the_java_encoder() -> None:
    mapping = TopicQueueMappingInfo("broker-a", ((0, 0), (3, 1)), False, 1152921504606846976, "__global__", "top", 4)
    expected = RegisterBrokerBody(DataVersion(0, 0, 1), {"TopicA": QueueData(6, 8, 0, 8)}, {"top": mapping}, ())
    assert decode(COMPRESSED_VECTOR, 479, True) == expected
    assert decode(COMPRESSED_VECTOR, 479, False) == expected, "brokers of 5.x do not say that they compress"
    assert decode(COMPRESSED_VECTOR, 409, True) == expected._replace(topic_queue_mapping_infos={})


# -- the canonical way against the general one


@given(registration(PLAIN_NAMES))
def test_what_brokers_write_is_canonical(text: str) -> None:
    body = text.encode()
    assert canonical(body) == general(body) is not None
    assert canonical(body) == general(body), "and again, now that its topics are known"


@given(registration(NAMES))
def test_names_with_brackets_and_escapes_never_mislead(text: str) -> None:
    body = text.encode()
    expected = general(body)
    assert expected is not None
    assert canonical(body) in (None, expected)
    assert decode(body) == expected


@pytest.mark.slow
@settings(max_examples=400)
@given(damaged(registration(PLAIN_NAMES) | registration(NAMES)))
def test_damaged_bodies_mean_the_same_both_ways(body: bytes) -> None:
    found = canonical(body)
    assert found is None or found == general(body)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"b":{"attributes"', b'"a":{"attributes"'),  # the key of another topic
        (b'"topicName":"b"', b'"topicName":"c"'),
        (b'"attributes":{},', b'"attributes":{"}":"{"},'),
        (b'"attributes":{},', b'"attributes":{"a":"b\xff"},'),
        (b'"perm":6', b'"perm":06'),
        (b'"perm":6', b'"perm":-0'),
        (b'"perm":6', b'"perm":9999999999'),
        (b'"perm":6', b'"perm":"6"'),
        (b'"order":false', b'"order":0'),
        (b"SINGLE_TAG", b"OTHER"),
        (b'"topicSysFlag":0,', b""),
        (b'"order"', b'"Order"'),
        (b'{"counter":0', b'{"counter":00'),
        (b'"filterServerList":[]', b'"filterServerList":["a\\u0062"]'),
        (b'"filterServerList":[]', b'"filterServerList":null'),
        (b'InfoMap":{}}}', b'InfoMap":{}//}}'),
        (b'InfoMap":{}}}', b'InfoMap":{},"topicConfigTable":{}}}'),
        (b'InfoMap":{}}}', b'InfoMap":null}}'),
        (b'InfoMap":{}}}', b'InfoMap":{}}} '),
        (b'InfoMap":{}}}', b'InfoMap":{"a":{"bname":"b"}}}}'),
        (b'InfoMap":{}}}', b'InfoMap":{"a":{"bname":"}},","topic":"//"}}}}'),
    ],
)
def test_near_misses_of_the_canonical_form(old: bytes, new: bytes) -> None:
    body = body_of(["a", "b"])
    assert old in body
    for changed in (body.replace(old, new), body.replace(old, new, 1), new.join(body.rsplit(old, 1))):
        found = canonical(changed)
        assert found is None or found == general(changed)


def test_what_was_refused_once_is_not_remembered() -> None:
    topic = (
        '"%s":{"order":false,"perm":6,"readQueueNums":8,"topicFilterType":"SINGLE_TAG","topicName":"%s",'
        '"topicSysFlag":0,"writeQueueNums":8}'
    )
    head = '{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":0,"timestamp":1},"topicConfigTable":{'
    wrong_keys = (head + topic % ("k1", "n1") + "," + topic % ("k1", "n2") + "}}}").encode()
    for _ in range(2):
        assert canonical(wrong_keys) is None
        assert decode(wrong_keys).topics == {"n2": QueueData(6, 8, 0, 8)}


def test_equal_values_are_one_object() -> None:
    ways = [
        decode(body_of(["same"])),
        decode(body_of(["same"]).replace(b'"order"', b' "order"')),
        decode(deflated(VERSION_JSON, 1, b"same 8 8 6 SINGLE_TAG", b"[]", 0), 479, True),
    ]
    names = {id(next(iter(way.topics or {}))) for way in ways}
    queue_datas = {id((way.topics or {})["same"]) for way in ways}
    assert len(names) == len(queue_datas) == 1


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration_body, "MAX_REMEMBERED", 100)
    for start in range(0, 1000, 60):
        names = [f"bounded{n}" for n in range(start, start + 60)]
        assert list(decode(body_of(names)).topics or {}) == names
        assert len(registration_body._known) <= 100
    long_name = "x" * 2000
    assert decode(body_of([long_name])).topics == {long_name: QueueData(6, 8, 0, 8)}
    assert not any(long_name.encode() in piece for piece in registration_body._known)


def test_decoded_parts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration_body, "MAX_PARTS_BYTES", 100_000)
    for start in range(10):
        names = [f"part{start}-{n}" for n in range(200)]
        assert list(decode(body_of(names)).topics or {}) == names
        assert registration_body._parts_bytes == sum(map(len, registration_body._parts)) <= 100_000
    long_names = [f"{n}{'x' * 20_000}" for n in range(3)]
    assert list(decode(body_of(long_names)).topics or {}) == long_names
    assert max(map(len, registration_body._parts)) < 20_000


def test_a_topic_that_is_added_or_removed_changes_few_parts() -> None:
    """Names of 1 to 40 characters; with cuts at equal distances, half of all parts would change."""
    rng = Random(4)
    names = ["".join(rng.choices(ascii_letters + digits, k=rng.randint(1, 40))) for _ in range(1_000)]
    decode(body_of(names))
    before, most = set(registration_body._parts), 0
    for number in rng.sample(range(1_000), 40):
        decode(body_of([*names[:number], "a new topic", *names[number:]]))
        decode(body_of([*names[:number], *names[number + 1 :]]))
        new = set(registration_body._parts) - before
        before, most = before | new, most + len(new)
    assert most < 80 * 5


def test_a_changed_topic_changes_only_its_part() -> None:
    body = body_of([f"Only{n:04}" for n in range(1_000)])
    decode(body)
    before = set(registration_body._parts)
    for number in (0, 500, 999):
        changed = body.replace(
            b'"topicName":"Only%04d","topicSysFlag":0' % number, b'"topicName":"Only%04d","topicSysFlag":12' % number
        )
        assert decode(changed).topics != decode(body).topics
    assert len(set(registration_body._parts) - before) == 3


# -- slices


@pytest.mark.parametrize("change", [lambda body: body, lambda body: body.replace(b'"order"', b"order"), lambda body: b" " + body])
def test_a_large_body_is_decoded_in_slices(change: Any) -> None:
    names = [f"Large{n:05}" for n in range(12_000)]
    result, slices = in_slices(decode_register_body(change(body_of(names)), 479, False))
    assert list(result.topics or {}) == names
    assert slices >= 8


@pytest.mark.parametrize(
    "table",
    [
        b",".join(b'"%d":{topicName:"T%d",%b}' % (n, n, b",".join(b"k%d:1" % k for k in range(9000))) for n in range(12)),
        b",".join(b'"%d":{topicName:[%d%b]}' % (n, n, b",1" * 4000) for n in range(24)),
    ],
    ids=["members", "nested names"],
)
def test_topics_that_take_much_work_are_taken_in_slices(table: bytes) -> None:
    body = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{%b}}}' % table
    _, reading = in_slices(decode_register_body(body.replace(b"topicConfigTable", b"x"), 479, False))
    result, slices = in_slices(decode_register_body(body, 479, False))
    assert len(result.topics or {}) in (12, 24)
    assert slices - reading >= 4


def test_a_very_long_topic_is_not_canonical_and_means_the_same() -> None:
    body = body_of(["T"] + [f"After{n}" for n in range(3000)])
    attributes = b",".join(b'"+%d":"%d"' % (n, n) for n in range(60_000))
    long = body.replace(b'"attributes":{}', b'"attributes":{%b}' % attributes, 1)
    assert canonical(long) is None
    assert decode(long) == decode(body)


def test_a_large_compressed_body_is_decoded_in_slices() -> None:
    topic_lines = [b"T%d 8 4 6 SINGLE_TAG" % n for n in range(5000)]
    result, slices = in_slices(decode_register_body(deflated(VERSION_JSON, 5000, *topic_lines, b"[]", 0), 479, True))
    assert len(result.topics or {}) == 5000
    assert slices >= 3


def test_a_slice_of_new_topic_lines_takes_no_longer_than_one_of_cached_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in executed lines of Python. A new line takes four times as many as a cached one."""
    monkeypatch.setattr(registration_compressed, "_lines", {})
    body = deflated(VERSION_JSON, 3000, *[b"New%d 8 4 6 SINGLE_TAG" % n for n in range(3000)], b"[]", 0)
    longest = []
    for _ in ("new", "cached"):
        steps, yielded, lines_of_slices = decode_register_body(body, 479, True), list[object](), list[int]()
        while ENDED not in yielded:
            lines_of_slices.append(work_of(lambda: yielded.append(next(steps, ENDED))).lines)  # noqa: B023 - called at once
        longest.append(max(lines_of_slices))
    assert longest[0] <= longest[1], longest


# -- the other forms


def test_no_body_is_an_empty_table() -> None:
    assert decode(b"") == RegisterBrokerBody(DataVersion(0, 0, 0), {}, {}, ())
    assert decode(b"", 36) == RegisterBrokerBody(DataVersion(0, 0, 0), {}, {}, None)


def test_before_3_0_11_the_body_is_the_wrapper_itself() -> None:
    wrapper = b'{"dataVersion":{"counter":1,"timestamp":2},"topicConfigTable":{"x":{"topicName":"T"}}}'
    expected = RegisterBrokerBody(DataVersion(1, 0, 2), {"T": QueueData(6, 16, 0, 16)}, {}, None)
    assert decode(wrapper, 36) == decode(wrapper, 0, True) == expected
    assert decode(body_of(["T"]), 36).topics == {}
    with pytest.raises(BodyError, match="version -1"):
        decode(wrapper, -1)


@pytest.mark.parametrize(
    "body",
    [
        b"x",
        b"xx",
        b"not zlib",
        zlib.compress(b""),
        deflated(-1),
        deflated(VERSION_JSON),
        deflated(VERSION_JSON, 1),
        deflated(VERSION_JSON, 2, LINE, b"[]", 0),
        deflated(VERSION_JSON, 2_000_000_000, LINE),
        deflated(VERSION_JSON, 1, LINE, b"[]"),
        deflated(VERSION_JSON, 1, LINE, b"[]", 2_000_000_000),
        deflated(VERSION_JSON, 1, LINE, 2**31 - 1),
        deflated(VERSION_JSON, 1, -5),
        deflated(VERSION_JSON, 1, b"T 8 4 6", b"[]", 0),
        deflated(VERSION_JSON, 1, b"T 8 4 6 OTHER", b"[]", 0),
        deflated(VERSION_JSON, 1, b"T 8 x 6 SINGLE_TAG", b"[]", 0),
        deflated(VERSION_JSON, 1, b"T 8 99999999999 6 SINGLE_TAG", b"[]", 0),
        deflated(b"[" * 100_000, 0, b"[]", 0),
        deflated(VERSION_JSON, 1, LINE, b"[]", 1, b'{"topic":"t"}'),
        deflated(VERSION_JSON, 1, LINE, b"[]", 0)[:20],
        deflated(b"a" * (2 << 20), 0, b"[]", 0),
    ],
    ids=range(21),
)
def test_bad_compressed_bodies(body: bytes) -> None:
    with pytest.raises(BodyError):
        decode(body, 479, True)


def test_a_bomb_is_not_inflated_beyond_the_limit() -> None:
    head = struct.pack(">i", len(VERSION_JSON)) + VERSION_JSON + struct.pack(">i", TOPICS_MAX)
    bomb = zlib.compress(head + (struct.pack(">i", len(LINE)) + LINE) * 400_000, 9)
    assert len(bomb) < 100_000
    with pytest.raises(BodyError, match="inflates to more"):
        finish(decode_register_body(bomb, 479, True, max_inflated_bytes=1_000_000))


def with_keys(value: bytes, count: int) -> bytes:
    """Members of an object with ``count`` different keys."""
    return b",".join(b'"%d":%b' % (key, value) for key in range(count))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (deflated(VERSION_JSON, TOPICS_MAX + 1, LINE), "60001 topics are more than 60000"),
        (deflated(VERSION_JSON, 0, b"[]", TOPICS_MAX + 1), "60001 topic queue mappings are more than 60000"),
        (b'{"topicConfigSerializeWrapper":{"topicConfigTable":{%b}}}' % with_keys(b"{}", TOPICS_MAX + 1), "60001 topics are"),
        (
            deflated(VERSION_JSON, 0, b"[]", 1, b'{"topic":"T","bname":"b","currIdMap":{%b}}' % with_keys(b"0", 16_385)),
            "16385 queues in a topic queue mapping are more than 16384",
        ),
    ],
    ids=["topics", "mappings", "topics as JSON", "queues"],
)
def test_counts_are_bounded(body: bytes, words: str) -> None:
    with pytest.raises(BodyError, match=words):
        decode(body, 479, body[:1] == b"x")


@given(st.binary(max_size=80), st.sampled_from([0, 36, 37, 409, 479]), st.booleans())
def test_any_bytes_are_a_body_or_an_error(data: bytes, version: int, compressed: bool) -> None:
    for body in (data, b"x\xda" + data, zlib.compress(data), deflated(VERSION_JSON, 1) + data):
        try:
            decode(body, version, compressed)
        except BodyError:
            continue


@given(damaged(registration(NAMES)), st.sampled_from([0, 479]))
def test_any_damaged_body_is_a_body_or_an_error(body: bytes, version: int) -> None:
    try:
        decode(body, version)
    except BodyError:
        return


@pytest.mark.parametrize(
    "body",
    [
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":' + b'{"a":' * 100_000,
        b'{"filterServerList":' + b"[" * 1_000_000,
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"x":{"topicName":' + b"[" * 900 + b"]" * 900 + b"}}}}",
        b'{"topicConfigSerializeWrapper":{"dataVersion":{"timestamp":' + b"9" * 100_000 + b"}}}",
        b'{"filterServerList":[' + b'"a",' * 1001 + b"]}",
        body_of([]).replace(b"[]", b"[" + b",".join([b'"a"'] * 1001) + b"]"),
        b'{"topicConfigSerializeWrapper":{},"zzz":[' + b"1," * 1_500_000 + b"]}",
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"x":{"topicName":[' + b"1," * 5000 + b"]}}}}",
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"x":{"topicName":"x","perm":"' + b".0" * 1_000_000 + b'"}}}}',
        b'{"topicConfigSerializeWrapper":{%b"zzz":0}}' % b"".join(b'"k%d":0,' % n for n in range(10_000)),
    ],
    ids=[
        "objects",
        "arrays",
        "text of arrays",
        "digits",
        "filter servers",
        "canonical filter servers",
        "members",
        "text of values",
        "quoted digits",
        "members of an object",
    ],
)
def test_hostile_bodies_are_errors(body: bytes) -> None:
    with pytest.raises(BodyError):
        decode(body)


@pytest.mark.parametrize("is_compressed", [True, False])
def test_as_many_topics_as_allowed_are_taken_and_one_more_is_not(monkeypatch: pytest.MonkeyPatch, is_compressed: bool) -> None:
    for module in (registration_body, registration_compressed, registration_values):
        monkeypatch.setattr(module, "TOPICS_MAX", 3)

    def body(topics: int, mappings: int) -> bytes:
        info = b'{"topic":"T%d","bname":"b","currIdMap":{}}'
        if is_compressed:
            table_lines = [b"T%d%b" % (number, LINE[1:]) for number in range(topics)]
            infos = [info % number for number in range(mappings)]
            return deflated(VERSION_JSON, topics, *table_lines, b"[]", mappings, *infos)
        table = b",".join(b'"T%d":{"topicName":"T%d"}' % (number, number) for number in range(topics))
        infos_text = b",".join(b'"T%d":' % number + info % number for number in range(mappings))
        wrapper = b'{"topicConfigTable":{%b},"topicQueueMappingInfoMap":{%b}}' % (table, infos_text)
        return b'{"topicConfigSerializeWrapper":%b}' % wrapper

    taken = decode(body(3, 3), 479, is_compressed)
    assert (len(taken.topics or {}), len(taken.topic_queue_mapping_infos)) == (3, 3)
    for counts in ((4, 0), (0, 4)):
        with pytest.raises(BodyError, match="are more than 3"):
            decode(body(*counts), 479, is_compressed)
