"""Digest of the whole state, cheap enough to compare between nodes every second at any size of the state.

Every table counts as a sum over its entries, which each change updates (sums.py), so a digest is a hash over one number per
table. The digest hashes only groups, and of these only the ones that changed since the last digest. They are not hashed at each
change, because many commands between two digests change the same groups. A state without ``keeps_sums`` keeps no sums over
topics: the digest recomputes those of the changed groups.

The revisions of topics are added without hashing, because a command changes those of all topics of a group at once, and they only
affect cached answers. So a difference is not detected if two nodes gave a revision to different topics of a group and the sums
are equal. It is detected if one of them gave the revision to no topic.
"""

import json
from hashlib import blake2b

from replicated_namesrv.routes.tables import Tables

DIGEST_VERSION = 2
"""Digests of different versions are not comparable. 1: the KV config and the static topic mappings were hashed as a whole."""


def digest(tables: Tables) -> bytes:
    """16 bytes, equal for equal states in every process."""
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
