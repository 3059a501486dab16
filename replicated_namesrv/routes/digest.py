"""Digest of the whole state, cheap enough to be compared between nodes every second whatever the state holds.

Every table counts as a sum over its entries that each change corrects (sums.py), so a digest is a hash over one number per table.
Groups alone are hashed here, those that changed since the last digest: many commands between two digests change the same ones.
A state without ``keeps_sums`` keeps no sums over topics: the digest takes those of the groups that changed anew.

Of the revisions of topics the plain sum is taken: a command moves those of all topics of a group at once, and they decide about
cached answers only. Nodes that gave different topics of a group a revision pass unnoticed if the sums are equal; nodes that gave
one of them none do not.
"""

import json
from hashlib import blake2b

from replicated_namesrv.routes.tables import Tables

DIGEST_VERSION = 2
"""Digests of different versions are not comparable. 1: the KV config and the static topic mappings were hashed as a whole."""


def digest(tables: Tables) -> bytes:
    """16 bytes, equal on equal states, whatever the process."""
    tables.count_groups()
    revisions_sum = tables.revisions_sum if tables.keeps_sums else sum(tables.topic_revisions.values())
    settings = [getattr(tables.settings, name) for name in sorted(tables.settings.__dataclass_fields__)]
    parts = [
        [tables.revision, tables.settings_revision, settings],
        [len(tables.topic_revisions), revisions_sum],
        [len(tables.groups), tables.groups_sum],
        [len(tables.live), tables.live_sum],
        [tables.clusters_sum, tables.mappings_sum, tables.kv_sum],
    ]
    return blake2b(json.dumps([DIGEST_VERSION, *parts]).encode(), digest_size=16).digest()
