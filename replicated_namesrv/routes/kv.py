"""KV config (``KVConfigManager.java``): namespace -> key -> value. Its main practical use is order topics.

An emptied namespace continues to exist, and a value of None is stored but read as "not found", because both are visible in
answers. Changes are reported to ``Tables.sizes``.
"""

from replicated_namesrv.routes.commands import DeleteKVConfig, PutKVConfig
from replicated_namesrv.routes.results import Result
from replicated_namesrv.routes.sizes import ORDER_TOPIC_CONFIG
from replicated_namesrv.routes.tables import Tables


def put_kv_config(tables: Tables, command: PutKVConfig) -> Result:
    """``PUT_KV_CONFIG`` (100)."""
    entries = tables.kv.get(command.namespace)
    if entries is None or command.key not in entries or entries[command.key] != command.value:
        tables.put_kv(command.namespace, {command.key: command.value})
        _moved(tables, command.namespace, command.key)
    return Result()


def delete_kv_config(tables: Tables, command: DeleteKVConfig) -> Result:
    """``DELETE_KV_CONFIG`` (102). A missing key is not an error."""
    if command.key in tables.entries_of(command.namespace):
        tables.delete_kv(command.namespace, command.key)
        _moved(tables, command.namespace, command.key)
    return Result()


def _moved(tables: Tables, namespace: str, key: str) -> None:
    tables.changed = True
    tables.kv_revision = tables.next_revision
    tables.kv_index.moved(namespace, key, tables.next_revision)
    if namespace == ORDER_TOPIC_CONFIG:
        tables.touch_topics((key,))
