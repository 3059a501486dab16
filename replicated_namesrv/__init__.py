"""A name service for RocketMQ. Its nodes replicate every change with Raft (CP), or are independent (AP): see ``mode``."""

__version__ = "0.2.0"
