"""docs/limits.md lists the limits of the code."""

import inspect
import re

import pytest

from replicated_namesrv.admin import operations, unread
from replicated_namesrv.model import TOPICS_MAX
from replicated_namesrv.process import OWN_MAPPING_BYTES
from replicated_namesrv.raft import snapshots
from replicated_namesrv.replication.liveness import attachments
from replicated_namesrv.replication.route_machine import UNREGISTERED_MAX
from replicated_namesrv.routes import quotas, sizes, snapshot, snapshot_checks
from replicated_namesrv.server import connection_limits, long_answers, registrations, turn_shares
from replicated_namesrv.settings import OWN, ROWS, Settings
from replicated_namesrv.settings_checks import AT_MOST
from replicated_namesrv.wire import (
    bodies,
    fastjson,
    frame,
    header,
    properties,
    proxy_protocol,
    registration_body,
)
from replicated_namesrv.wire import registration_compressed as compressed
from replicated_namesrv.wire import registration_values as values
from tests.packaging.tree import ROOT
from tests.support.places import assert_listed

DEFAULTS = Settings()
PAGE = (ROOT / "docs" / "limits.md").read_text()
WORDS = " ".join(PAGE.split())
"""The page without line breaks."""


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("frame |", f"{(frame.MAX_TOTAL + 4) >> 20} MiB"),
        ("header |", f"{frame.MAX_HEADER_BYTES >> 20} MiB"),
        ("members of a JSON header", f"{header.MAX_HEADER_FIELDS:,}"),
        ("nesting of JSON", f"{fastjson.MAX_DEPTH:,}; {fastjson.MAX_TEXT_DEPTH} for"),
        ("characters of a number", str(fastjson.MAX_NUMBER_CHARACTERS)),
        ("escapes in one string", f"{fastjson.MAX_ESCAPES:,}"),
        ("comments one after the other", f"{fastjson.MAX_COMMENTS:,}"),
        ("members of an object", f"{fastjson.MAX_OBJECT_MEMBERS:,}"),
        ("values of an object", f"{fastjson.MAX_TEXT_VALUES:,}"),
        ("PROXY protocol v1", f"{proxy_protocol.V1_MAX_BYTES} bytes"),
        ("topic route", f"{bodies.MAX_BODY_BYTES >> 10} KiB"),
        ("properties", f"{properties.MAX_BODY_BYTES >> 10} KiB"),
        ("one string in a compressed body", f"{compressed.MAX_TEXT_BYTES >> 20} MiB"),
        ("topics; static", f"{TOPICS_MAX:,} each"),
        ("topics of one broker name", f"{TOPICS_MAX:,}; {quotas.MAPPINGS_MAX:,}"),
        ("different topics", f"{quotas.ALL_TOPICS_MAX:,}"),
        ("brokers of one broker name", f"{quotas.MEMBERS_MAX:,}"),
        ("different combinations of perm", f"{quotas.QUEUE_SETTINGS_MAX:,}"),
        ("queues in one static", f"{values.MAX_MAPPED_QUEUES:,}"),
        ("filter servers", f"{values.MAX_FILTER_SERVERS:,}"),
        ("keys, items and closing brackets", f"{registration_body.MAX_MEMBERS:,}"),
        ("clusters;", f"{quotas.CLUSTERS_MAX:,}; {quotas.CLUSTERS_OF_NAME_MAX}"),
        ("broker names in one topic route", f"{quotas.TOPIC_BROKERS_MAX:,}"),
        ("broker names;", f"{quotas.BROKER_NAMES_MAX:,}; {quotas.BROKERS_MAX:,}"),
        (
            "static topic mappings of the broker's own name",
            f"{quotas.MAPPINGS_MAX:,}, with {quotas.MAPPED_QUEUES_MAX:,} queues",
        ),
        ("the namespace `ORDER_TOPIC_CONFIG`", f"{quotas.ORDER_TOPICS_BYTES_MAX >> 20} MiB"),
        ("disk space to keep free", f"`diskReserveBytes`, {DEFAULTS.disk_reserve_bytes >> 20} MiB"),
        ("inflated bytes of a compressed body", f"`maxInflatedBodyBytes`, {DEFAULTS.max_inflated_body_bytes >> 20} MiB"),
        ("bytes in memory for incomplete frames", f"`maxHeldBytes`, {DEFAULTS.max_held_bytes >> 20} MiB"),
        ("time until a frame", f"`frameTimeoutMillis`, {DEFAULTS.frame_timeout_millis // 1000} s"),
        ("time without traffic", f"`serverChannelMaxIdleTimeSeconds`, {DEFAULTS.server_channel_max_idle_time_seconds} s"),
        (
            "unread answers of one connection",
            f"`writeBufferHighWaterMark`, {connection_limits.DEFAULT_HIGH_WATER_BYTES >> 10} KiB",
        ),
        ("unanswered requests of one connection", f"`maxPendingPerConnection`, {DEFAULTS.max_pending_per_connection:,}"),
        ("waiting unregistrations", f"`unRegisterBrokerQueueCapacity`, {DEFAULTS.un_register_broker_queue_capacity:,}"),
        ("waiting pushes of", f"`serverOnewaySemaphoreValue`, {DEFAULTS.server_oneway_semaphore_value}"),
        ("large answers of one address", f"{long_answers.JOBS_MAX:,}"),
        ("one request in the log", f"{quotas.COMMAND_BYTES_MAX >> 20} MiB"),
        ("TLS handshakes per second", str(connection_limits.HANDSHAKES_PER_SECOND)),
        (
            "connections from one",
            "`maxConnectionsPerAddress`; if 0, `maxConnections` minus the smaller of "
            f"{connection_limits.KEPT_FOR_OTHER_ADDRESSES} and an eighth of it",
        ),
        ("uninterrupted time for the requests", f"{turn_shares.SHARE_NS // 1_000_000} ms"),
        ("cluster, broker and zone names", f"{quotas.NAME_BYTES_MAX:,} each"),
        ("value in the KV config", f"{quotas.VALUE_BYTES_MAX >> 20} MiB"),
        ("value of a setting", f"{quotas.SETTING_CHARACTERS_MAX:,} characters"),
        (
            "all registered and stored",
            f"`maxStateBytes`, {DEFAULTS.max_state_bytes >> 30} GiB; at most {AT_MOST['max_state_bytes'] >> 30} GiB can be set",
        ),
        ("the KV config", f"`maxKvBytes`, {DEFAULTS.max_kv_bytes >> 20} MiB"),
        ("one namespace of the KV", f"`maxKvNamespaceBytes`, {DEFAULTS.max_kv_namespace_bytes >> 20} MiB"),
        ("all data of one broker name", f"`maxBrokerBytes`, {DEFAULTS.max_broker_bytes >> 20} MiB"),
    ],
)
def test_fixed_limits(row: str, told: str) -> None:
    lines = [line for line in PAGE.splitlines() if line.startswith(f"| {row}")]
    assert len(lines) == 1, f"docs/limits.md has {len(lines)} rows that begin with '| {row}': write one, with the limit {told}"
    assert f"| {told}" in lines[0], f"docs/limits.md: the row '{row}' has to give the limit {told}: {lines[0]}"


def test_time_of_an_address_that_is_alone() -> None:
    assert f"the address may use {turn_shares.ALONE_NS // 1_000_000} ms of each turn of the event loop" in WORDS


def test_answers_of_the_admin_port() -> None:
    assert f"at most {operations.BACKUPS_MAX} backups at the same time" in WORDS
    assert f"reads no byte of an answer for {unread.UNREAD_TIMEOUT_S:g} s" in WORDS
    assert f"use more than {unread.UNREAD_BYTES_MAX >> 20} MiB" in WORDS
    assert f"{unread.UNREAD_BYTES_MAX >> 20} MiB for unread answers" in WORDS
    assert f"A connection with at most {unread.SMALL_BYTES >> 10} KiB of unread answers does not count" in WORDS
    assert (operations.RESTORES_MAX, unread.COPIES) == (1, 2), "the page says one, and twice"


def test_what_a_node_remembers_of_brokers() -> None:
    assert f"at most {attachments.REGISTERED_MAX:,} for one connection" in WORDS
    assert f"After {attachments.REGISTERED_TOTAL_MAX:,} in total" in WORDS
    assert f"it remembers {attachments.CONNECTIONS_MAX} connections" in WORDS
    assert f"`routeCacheBytes` ({DEFAULTS.route_cache_bytes >> 20} MiB)" in WORDS


def test_a_backup_may_have_more_objects() -> None:
    assert quotas.RESTORED_FACTOR == 7, "the page says seven times"
    assert "seven times the limits on numbers of objects" in WORDS


def test_every_name_in_the_metric_is_on_the_page() -> None:
    kinds = [value.bound for value in vars(quotas).values() if isinstance(value, quotas.ObjectKind)]
    bounds = [quotas.STATE, quotas.KV, quotas.NAMESPACE, quotas.BROKER, quotas.ORDER_TOPICS, quotas.COMMAND, quotas.DISK]
    source = "".join(path.read_text() for path in sorted((ROOT / "replicated_namesrv").rglob("*.py")))
    direct = re.findall(r'(?:hit_limit|LimitError)\(\s*"(\w+)"', source)
    closed = re.findall(r'close_at_limit\("(\w+)"', source)
    fields = re.findall(r'yield "(\w+)", ', inspect.getsource(quotas))
    assert min(map(len, (kinds, direct, closed, fields))) > 2
    missing = [name for name in {*kinds, *bounds, *direct, *closed, *fields} if f"`{name}`" not in PAGE]
    assert not missing, f"docs/limits.md does not say what is counted as {missing}"


def test_waiting_registrations() -> None:
    assert f"use at most {registrations.QUEUED_BYTES_MAX >> 20} MiB in total" in WORDS
    assert f"uses {registrations.TURN_BUDGET_NS // 1_000_000} ms of each turn" in WORDS
    assert f"more than {registrations.SMALL_BYTES >> 20} MiB have a separate queue" in WORDS
    assert f"more than {OWN_MAPPING_BYTES >> 20} MiB are mapped separately" in WORDS


def test_every_setting_that_is_a_limit_is_on_the_page() -> None:
    missing = [
        f"{row.name} is a limit, but docs/limits.md does not mention it: add a row, or name the setting without 'max'"
        for row in ROWS.values()
        if row.kind is int and row.group == OWN and row.name.startswith("max") and f"`{row.name}`" not in PAGE
    ]
    assert not missing, "\n".join(missing)


def test_settings_are_those_there_are() -> None:
    mentioned = set(re.findall(r"`((?:max|frame|server|client|default|write|route)[A-Z]\w+)`", PAGE))
    assert len(mentioned) > 8
    of_metric = {"frameTimeout"}
    assert_listed(mentioned - of_metric, "docs/limits.md", ROWS, "the settings")


def test_numbers_of_the_kv_config() -> None:
    assert f"at most {quotas.KV_NAMESPACES_MAX:,} namespaces, and a namespace has at most {quotas.KV_KEYS_MAX:,} keys" in WORDS
    assert f"`{quotas.KV_NAMESPACES.bound}` or `{quotas.KV_KEYS.bound}`" in WORDS


def test_how_bytes_are_counted_and_blocks_are_bounded() -> None:
    assert f"counts as {sizes.ENTRY_BYTES} bytes plus the bytes of its strings" in WORDS
    assert f"A queue of a static topic mapping counts as {sizes.QUEUE_BYTES} bytes" in WORDS
    assert f"blocks of at most {snapshots.BLOCK_BYTES_MAX >> 20} MiB" in WORDS
    assert f"lines of up to {snapshot.LINE_BYTES_MAX >> 30} GiB" in WORDS
    assert f"a line can have at most {snapshot.BACKUP_LINE_BYTES_MAX >> 20} MiB" in WORDS
    assert f"a text at most {snapshot_checks.TEXT_CHARACTERS_MAX:,} characters" in WORDS
    unregistrations = UNREGISTERED_MAX * 2 * (sizes.ENTRY_BYTES + quotas.NAME_BYTES_MAX)
    assert f"{UNREGISTERED_MAX:,}, so at most {(unregistrations >> 20) + 1} MiB; the oldest is forgotten" in WORDS
    assert snapshot.PART_BYTES_MAX == snapshots.BLOCK_BYTES_MAX
