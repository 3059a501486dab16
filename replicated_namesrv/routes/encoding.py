"""Commands as bytes, for a log that outlives the process, and the JSON format that commands and snapshots share.

A command is one byte of format version and a JSON array: kind (RocketMQ's request code), stamped time, fields in the order of
the command's class. Queue settings, which thousands of topics have in common, are written once each and referred to by number.
An unknown version raises an error, because guessing would make the states differ.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import repeat
from typing import Any

import orjson

from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.model import DataVersion, QueueData, TopicQueueMappingInfo
from replicated_namesrv.routes.commands import (
    BrokerRemoval,
    ChangeWritePerm,
    Command,
    DeleteKVConfig,
    DeleteTopic,
    PutKVConfig,
    RegisterBroker,
    RegisterTopic,
    UnregisterBrokers,
    UpdateSettings,
)

COMMAND_FORMAT = 1


class RouteFormatError(NamesrvError):
    """Bytes that are not a command or snapshot, or of a version that this node does not know."""


def encode_command(command: Command, time_ms: int) -> bytes:
    """Encode the command and its time. Equal commands have equal bytes."""
    kind = type(command)
    return bytes((COMMAND_FORMAT,)) + dump([_KINDS[kind], time_ms, *_FIELDS_OF[kind](command)])


def decode_command(data: bytes) -> tuple[Command, int]:
    """Inverse of ``encode_command``: the command and its time. Raises RouteFormatError."""
    if not data or data[0] != COMMAND_FORMAT:
        version = data[0] if data else None
        raise RouteFormatError(
            f"command format {version} is not supported here, only {COMMAND_FORMAT}: use a release that supports it"
        )
    try:
        kind, time_ms, *fields = load(data[1:])
        command = _COMMAND_FROM[kind](*fields)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise RouteFormatError(f"command of format {COMMAND_FORMAT} cannot be decoded: {error!r}") from error
    if type(time_ms) is not int:
        raise RouteFormatError(f"command of format {COMMAND_FORMAT} cannot be decoded: its time is {time_ms!r}")
    return command, time_ms


def dump(value: Any) -> bytes:
    """JSON without white space or line breaks. Values that orjson refuses (a lone surrogate) are written by ``json`` in ASCII,
    after a blank that marks this form.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        return b" " + json.dumps(value, separators=(",", ":")).encode()


def load(line: bytes) -> Any:
    """Inverse of ``dump``. Raises ValueError, and MemoryError if this machine lacks memory."""
    if line[:1] == b" ":
        return json.loads(line)
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        if "memory" in error.msg:  # orjson reports a failed allocation as a malformed text, which other nodes would not find
            raise MemoryError(error.msg) from error
        raise


def number_queue_datas(queue_datas: Collection[QueueData]) -> tuple[list[list[int]], list[int] | int]:
    """The distinct values, and the position of each of ``queue_datas`` among them. If there is only one distinct value, the
    positions are a single 0."""
    numbers = {queue_data: number for number, queue_data in enumerate(dict.fromkeys(queue_datas))}
    table = [list(queue_data) for queue_data in numbers]
    return table, 0 if len(table) == 1 else list(map(numbers.__getitem__, queue_datas))


def queue_datas_of(table: list[list[int]], numbers: list[int] | int) -> Iterable[QueueData]:
    """Inverse of ``number_queue_datas``. If ``numbers`` is a single number, its value is repeated without end."""
    distinct = [QueueData(*fields) for fields in table]
    return repeat(distinct[numbers]) if isinstance(numbers, int) else map(distinct.__getitem__, numbers)


def mapping_fields(info: TopicQueueMappingInfo) -> list[Any]:
    """A static topic mapping as JSON values."""
    return list(info)


def mapping_of(fields: list[Any]) -> TopicQueueMappingInfo:
    """Inverse of ``mapping_fields``."""
    bname, curr_id_map, *rest = fields
    return TopicQueueMappingInfo(bname, tuple(map(tuple, curr_id_map)), *rest)


def _register_broker_fields(command: RegisterBroker) -> list[Any]:
    topics = None if command.topics is None else [list(command.topics), *number_queue_datas(command.topics.values())]
    mappings = {topic: mapping_fields(info) for topic, info in command.topic_queue_mapping_infos.items()}
    return [
        command.cluster_name,
        command.broker_name,
        command.broker_addr,
        command.broker_id,
        command.ha_server_addr,
        command.zone_name,
        command.heartbeat_timeout_ms,
        command.enable_acting_master,
        list(command.data_version),
        topics,
        mappings,
        command.filter_servers,
    ]


def _register_broker(*fields: Any) -> RegisterBroker:
    *plain, data_version, topics, mappings, filter_servers = fields
    decoded: Mapping[str, QueueData] | None = None
    if topics is not None:
        names, table, numbers = topics
        decoded = dict(zip(names, queue_datas_of(table, numbers), strict=False)) if names else {}
    infos = {topic: mapping_of(info) for topic, info in mappings.items()}
    servers = None if filter_servers is None else tuple(filter_servers)
    arguments = [*plain, DataVersion(*data_version), decoded, infos, servers]
    return RegisterBroker(*arguments)


_KINDS: dict[type, int] = {
    RegisterBroker: 103,
    UnregisterBrokers: 104,
    RegisterTopic: 217,
    DeleteTopic: 216,
    ChangeWritePerm: 205,
    PutKVConfig: 100,
    DeleteKVConfig: 102,
    UpdateSettings: 318,
}
_FIELDS_OF: dict[type, Callable[[Any], list[Any]]] = {
    RegisterBroker: _register_broker_fields,
    UnregisterBrokers: lambda c: [
        [[r.cluster_name, r.broker_addr, r.broker_name, r.broker_id, r.epoch] for r in c.removals],
    ],
    RegisterTopic: lambda c: [c.topic, [[name, list(queue_data)] for name, queue_data in c.queue_datas]],
    DeleteTopic: lambda c: [c.topic, c.cluster_name],
    ChangeWritePerm: lambda c: [c.broker_name, c.writable],
    PutKVConfig: lambda c: [c.namespace, c.key, c.value],
    DeleteKVConfig: lambda c: [c.namespace, c.key],
    UpdateSettings: lambda c: [dict(c.values)],
}
_COMMAND_FROM: dict[int, Callable[..., Command]] = {
    103: _register_broker,
    104: lambda removals: UnregisterBrokers(tuple(BrokerRemoval(*fields) for fields in removals)),
    217: lambda topic, entries: RegisterTopic(topic, tuple((name, QueueData(*fields)) for name, fields in entries)),
    216: DeleteTopic,
    205: ChangeWritePerm,
    100: PutKVConfig,
    102: DeleteKVConfig,
    318: UpdateSettings,
}
