"""A name service for RocketMQ. Nodes are a Raft group (CP) or independent (AP), selected by one flag."""

__version__ = "0.2.0"
