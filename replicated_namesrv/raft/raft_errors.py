"""Errors of one Raft node: reasons to stop, reasons not to start, and messages that are dropped."""


class RaftError(Exception):
    """Base of errors that stop a node or keep it from starting."""


class InvariantError(RaftError):
    """An invariant of Raft would have been broken: the node has stopped instead."""


class CorruptionError(RaftError):
    """A durable part of a file is damaged. The text has file, offset and remedy."""


class AcknowledgedLossError(CorruptionError):
    """The log lacks entries that the leader knows this node to have acknowledged."""


class RolledBackError(RaftError):
    """The data directory was rolled back to an older image. Started again, the node rejoins as a new incarnation. The only voter
    cannot, and needs its directory back."""


class IdentityError(RaftError):
    """The data directory belongs to another node, cluster or set of peers. The text has both."""


class MalformedError(RaftError):
    """Bytes or a message that no node of this version sends. It is dropped and counted."""


class TransportError(RaftError):
    """The transport cannot be started as configured; the text says what to change."""


class PeerRefusalError(TransportError):
    """A peer refuses this node. The text has the peer and its reason."""


class UnknownCommandError(RaftError):
    """A state machine raises it from ``apply`` for a command of a newer version. The node stops before the command counts as
    applied, and continues from there when it runs the newer version. The ``version`` of a proposal prevents this during a
    rolling upgrade."""
