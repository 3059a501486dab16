"""Which part of a node takes which message. Greetings come before all others and are not in the table."""

from collections.abc import Callable
from typing import Any

from replicated_namesrv.raft.messages import (
    Append,
    AppendReply,
    ApplicationData,
    DigestReport,
    Forward,
    ForwardReply,
    HigherTerm,
    PreVote,
    PreVoteReply,
    ReadAck,
    ReadProbe,
    ReadReply,
    ReadRequest,
    SnapshotAck,
    SnapshotChunk,
    TimeoutNow,
    Vote,
    VoteReply,
)

HANDLERS: dict[type, Callable[[Any, str, Any], None]] = {
    Append: lambda node, peer, message: node.replication.on_append(peer, message),
    AppendReply: lambda node, peer, message: node.replication.on_append_reply(peer, message),
    PreVote: lambda node, peer, message: node.elections.on_pre_vote(peer, message),
    PreVoteReply: lambda node, peer, message: node.elections.on_pre_vote_reply(peer, message),
    Vote: lambda node, peer, message: node.elections.on_vote(peer, message),
    VoteReply: lambda node, peer, message: node.elections.on_vote_reply(peer, message),
    HigherTerm: lambda node, peer, message: node.elections.on_higher_term(peer, message),
    TimeoutNow: lambda node, peer, message: node.elections.on_timeout_now(peer, message),
    SnapshotChunk: lambda node, peer, message: node.receiving.on_chunk(peer, message),
    SnapshotAck: lambda node, peer, message: node.replication.on_snapshot_ack(peer, message),
    ReadProbe: lambda node, peer, message: node.reads.on_probe(peer, message),
    ReadAck: lambda node, peer, message: node.reads.on_ack(peer, message),
    ReadRequest: lambda node, peer, message: node.reads.on_request(peer, message),
    ReadReply: lambda node, peer, message: node.reads.on_reply(peer, message),
    Forward: lambda node, peer, message: node.proposals.on_forward(peer, message),
    ForwardReply: lambda node, peer, message: node.proposals.on_forward_reply(message),
    DigestReport: lambda node, peer, message: node.digests.on_report(peer, message),
    ApplicationData: lambda node, peer, message: node.observer.received(peer, message.data),
}
"""Called with the RaftNode, the sending peer and the message."""
