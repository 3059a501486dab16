"""The check that nodes keep the settings that mqadmin changed (``UPDATE_NAMESRV_CONFIG``, 318).

A node keeps a setting of its own in a file of its data directory. In CP a shared setting belongs to the replicated state, so the
changes through all nodes count, and an answer of any node shows the last one. Like KV entries, settings are judged by real time.
"""

from collections import defaultdict

from replicated_namesrv.chaos.checks.node_promises import lost_disks
from replicated_namesrv.chaos.checks.real_time import overtaken
from replicated_namesrv.chaos.checks.story import CheckResult, Op, Promise, Story, result
from replicated_namesrv.chaos.mqadmin import SETTINGS, SHARED_SETTING

SETTINGS_KEPT = "settings are kept"


def check_settings(story: Story) -> CheckResult:
    """No node answers with a value of a setting that an acknowledged change had replaced, not even after a restart. The loss of
    its disk sets the default again."""
    reads = [op for op in story.of_kind("config") if op.ok]
    writes: defaultdict[tuple[str, str], list[Op]] = defaultdict(list)
    for op in story.of_kind("set-config"):
        if op.outcome != "fail":
            writes[_place(story, op)].append(op)
    wrong = []
    for read in reads:
        default = read._replace(kind="set-config", value=SETTINGS.get(read.key), start_ns=0, end_ns=0)
        found = [default, *writes[_place(story, read)]]
        if _is_of_node(story, read.key):
            lost = (disk for disk in lost_disks(story) if read.node in disk.nodes)
            found += [default._replace(start_ns=disk.began_ns, end_ns=disk.time_ns) for disk in lost]
        if overtaken(read, found):
            wrong.append(f"{story.ms(read.start_ns)}: {read.node} answers {read.key} = {read.value}, changed before")
    changed = any(op.ok for found in writes.values() for op in found)
    return result(SETTINGS_KEPT, Promise.BOTH, len(reads) if changed else 0, wrong)


def _is_of_node(story: Story, key: str) -> bool:
    return story.mode == "ap" or key != SHARED_SETTING


def _place(story: Story, op: Op) -> tuple[str, str]:
    """The setting, with its node if it belongs to a node."""
    return (str(op.node), op.key) if _is_of_node(story, op.key) else ("", op.key)
