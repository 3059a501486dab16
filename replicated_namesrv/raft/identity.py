"""The identity of a data directory: its node, cluster and incarnation, and the progress of founding."""

import json
from collections.abc import Mapping
from hashlib import blake2b
from zlib import crc32

from replicated_namesrv.raft.interfaces import Storage
from replicated_namesrv.raft.raft_errors import CorruptionError, IdentityError

BLANK, PROMISED, MEMBER = 0, 1, 2
STATES = ("blank", "promised", "member")
IDENTITY = "identity"
VERSION = 1
MEMBERS_VERSION = 2
"""Format of the file after a MEMBERS entry is in the log. A program that does not know these entries does not start on this
directory."""


def is_member_on(storage: Storage) -> bool:
    """Whether the node of this directory has been part of a cluster. True for a damaged file: ``Identity`` reports the damage."""
    if IDENTITY not in storage.list_names():
        return False
    try:
        return bool(json.loads(storage.read(IDENTITY).rsplit(b"\n", 2)[0])["state"] == MEMBER)
    except (ValueError, KeyError, TypeError):
        return True


def group_of(founders: Mapping[str, int]) -> str:
    """The id of the cluster with these founders, node -> incarnation. Two clusters of the same name have different ids. Empty if
    there are no founders."""
    return blake2b(repr(sorted(founders.items())).encode(), digest_size=4).hexdigest() if founders else ""


class Identity:
    """The file with the identity of a data directory. It is replaced atomically and synced on every change.

    Raises IdentityError if the directory belongs to something else, CorruptionError if the file is damaged, or is missing
    although there are other files.
    """

    def __init__(
        self, storage: Storage, node: str, cluster: str, members: list[str], incarnation: int, joins: bool = False
    ) -> None:
        """``incarnation``: the number to use if the directory is blank. ``joins``: ``members`` are only the nodes that this node
        contacts first, and if the directory is blank, the node joins their cluster."""
        self._storage = storage
        self.node, self.cluster, self.members = node, cluster, members
        self.incarnation, self.boot, self.state = incarnation, 0, BLANK
        self.founders: dict[str, int] = {}
        self.members_in_log = joins
        """Whether the members are in the log. If not, the members are those of the configuration, which must not change."""
        self.removed_at = 0
        """Index of the entry that removed this node from the cluster; 0 while this node is a member, or is about to become
        one."""
        if IDENTITY in storage.list_names():
            self._load(storage.read(IDENTITY), joins)
        elif others := [n for n in storage.list_names() if n.startswith(("log-", "snapshot-"))]:
            raise CorruptionError(
                f"there is {others[0]} but no file {IDENTITY}: this is not a complete data directory. "
                "Restore the file, or move the directory away so that the node returns as a learner"
            )
        self.boot += 1
        self.save()

    def _load(self, data: bytes, joins: bool) -> None:
        try:
            text, checksum = data.rsplit(b"\n", 2)[:2]
            if int(checksum) != crc32(text):
                raise ValueError("the checksum does not match")
            known = json.loads(text)
            if known["version"] not in (VERSION, MEMBERS_VERSION):
                raise ValueError(f"format version {known['version']}, this program reads versions up to {MEMBERS_VERSION}")
            self.incarnation, self.boot, self.state = int(known["incarnation"]), int(known["boot"]), int(known["state"])
            self.founders = {str(name): int(number) for name, number in known["founders"].items()}
            self.members_in_log = known["version"] == MEMBERS_VERSION
            self.removed_at = int(known.get("removed_at", 0))
            members = list(map(str, known["members"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptionError(
                f"file {IDENTITY}: {error}. Move the data directory away: the node returns as a learner"
            ) from None
        if joins and self.state == MEMBER and members != [self.node]:
            self.members = members
        elif joins and self.state == MEMBER and not self.members_in_log:
            raise IdentityError(
                f"the data directory belongs to members {members!r}, a cluster of its own, but join names another one; give the "
                "node an empty data directory, or set peers in place of join"
            )
        for name in ("cluster", "node") if self.members_in_log else ("cluster", "node", "members"):
            if known[name] != getattr(self, name):
                raise IdentityError(
                    f"the data directory belongs to {name} {known[name]!r} but the configuration says {getattr(self, name)!r}; "
                    "correct the configuration, or give the node an empty data directory"
                )

    def renew(self, incarnation: int) -> None:
        """Durably make this directory a new incarnation, which votes again after it has been promoted."""
        self.incarnation = incarnation
        self.save()

    def note_members(self, removed_at: int) -> None:
        """Durably note that the members are in the log. ``removed_at``: index of the applied MEMBERS entry if it removed this
        node; 0: it did not."""
        if not self.members_in_log or removed_at != self.removed_at:
            self.members_in_log, self.removed_at = True, removed_at
            self.save()

    def save(self) -> None:
        text = json.dumps(
            {
                "version": MEMBERS_VERSION if self.members_in_log else VERSION,
                **({"removed_at": self.removed_at} if self.removed_at else {}),
                "cluster": self.cluster,
                "node": self.node,
                "members": self.members,
                "incarnation": self.incarnation,
                "boot": self.boot,
                "state": self.state,
                "founders": self.founders,
            },
            sort_keys=True,
        ).encode()
        aside = IDENTITY + ".writing"
        self._storage.remove(aside)
        self._storage.append(aside, text + b"\n%d\n" % crc32(text))
        self._storage.sync([aside], False)
        self._storage.rename(aside, IDENTITY)
        self._storage.sync([], True)
