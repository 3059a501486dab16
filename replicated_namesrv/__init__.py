"""A name service for RocketMQ whose nodes agree (CP, through Raft) or stand alone (AP), one flag apart."""

__version__ = "0.2.0"
