"""One defect of the lists of sabotages, and the names of files and scenarios that the lists use."""

from typing import NamedTuple


class Sabotage(NamedTuple):
    """One defect: in ``file`` (a path in the package), ``new`` replaces the only line ``old``. Neither is indented."""

    name: str
    mode: str
    file: str
    old: str
    new: str
    breaks: str
    """How the nodes behave wrongly with this defect."""
    likely: tuple[str, ...]
    """The scenarios that are most likely to find the defect, in the order in which they are tried."""


CP, AP = "cp", "ap"
ISOLATE, RESTART, NOFAULT = "isolate-leader", "rocketmq-5322-empty-after-restart", "no-fault"
LEASES, WIPED, FIRST = "etcd-15247-leases-gone", "rocketmq-11043-live-broker-wiped", "nacos-12160-empty-first-sync"
SLOW, SLOWF, DRAIN, MEMBERS = "slow-links", "trickle", "drain-under-load", "member-changes"
JOIN_EMPTY, RESTART_ALL, SNAPSHOT = "join-empty", "restart-all", "routes/snapshot.py"
BARRIER, SILENCE = "replication/read_barrier.py", "replication/liveness/silence.py"
DEPARTURES, MACHINE = "replication/liveness/departures.py", "replication/route_machine.py"
NODE, CALLS, AP_NODE = "replication/replicated_node.py", "replication/broker_calls.py", "compat/independent_node.py"
REGISTRATION, REMOVAL, KV = "routes/registration.py", "routes/removal.py", "routes/kv.py"
LOOKUPS, LIVE, QUERIES = "routes/lookups.py", "compat/live_table.py", "server/query_handlers.py"
HISTORY, JSON_VIEWS, REGISTRATIONS, SLOW_DISKS = (
    "routes/history.py",
    "admin/json_views.py",
    "server/registrations.py",
    "slow-disks",
)
CONFIG, STATE, CACHE, DISPATCH = "config_writer.py", "routes/state.py", "server/route_answers.py", "server/dispatch.py"
