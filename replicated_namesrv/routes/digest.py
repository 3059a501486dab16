"""Digest of the whole state, cheap enough to compare between nodes every second at any size of the state.

Each table has a sum over the hashes of its entries (sums.py), and each change updates this sum. The digest is a hash of the sums,
of the revision, the numbers of entries and the settings. Groups are the exception: a group is hashed when the digest is computed,
and only if it changed since the last digest. Many commands between two digests change the same groups, so this costs less than a
hash at each change. A state without ``keeps_sums`` keeps no sums over topics: the digest recomputes those of the changed groups.

The revisions of topics are added without hashing, because one command gives the same revision to all topics of a group, and
revisions only affect cached answers. Therefore the digest does not show every difference. Example: two topics of a group have
equal revisions. One node gives a new revision to the first topic, another node gives it to the second topic. The sums of the two
nodes are equal. The sums would differ if one of the nodes gave the new revision to neither topic.
"""

import json
from hashlib import blake2b

from replicated_namesrv.routes.tables import Tables, split_settings

DIGEST_VERSION = 2
"""Digests of different versions are not comparable. 1: the KV config and the static topic mappings were hashed as a whole."""


def digest(tables: Tables) -> bytes:
    """16 bytes, equal for equal states in every process."""
    tables.count_groups()
    revisions_sum = tables.revisions_sum if tables.keeps_sums else sum(tables.topic_revisions.values())
    released, later = split_settings(tables.settings)
    settings: list[object] = [released[name] for name in sorted(released)]
    settings += map(list, sorted(later.items()))  # with names, because the same values can belong to different settings
    parts = [
        [tables.revision, tables.settings_revision, settings],
        [len(tables.topic_revisions), revisions_sum],
        [len(tables.groups), tables.groups_sum],
        [len(tables.live), tables.live_sum],
        [tables.clusters_sum, tables.mappings_sum, tables.kv_sum],
    ]
    return blake2b(json.dumps([DIGEST_VERSION, *parts]).encode(), digest_size=16).digest()
