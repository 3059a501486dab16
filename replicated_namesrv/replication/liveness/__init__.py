"""Liveness of brokers: what a node knows of its brokers, what it reports to the leader, and what the leader decides."""
