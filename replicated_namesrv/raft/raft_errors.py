"""Errors of one Raft node: what stops it, what keeps it from starting, and what it drops."""


class RaftError(Exception):
    """Base of what stops a node or keeps it from starting."""


class InvariantError(RaftError):
    """An invariant of Raft would have been broken: the node has stopped instead."""


class CorruptionError(RaftError):
    """A file is damaged where it had been durable; the text names file, offset and what to do."""


class RolledBackError(RaftError):
    """The data directory went back to an older image; started again, the node rejoins as a new incarnation."""


class IdentityError(RaftError):
    """The data directory belongs to another node, cluster or set of peers; the text gives both."""


class MalformedError(RaftError):
    """Bytes or a message that no node of this version sends: dropped and counted."""


class UnknownCommandError(RaftError):
    """A state machine raises it from ``apply`` for a command that only a newer version of it knows: the node stops before the
    command counts as applied, and goes on from there once it runs the newer version. That this stops nobody while nodes are
    upgraded one by one is what the ``version`` of a proposal is for."""
