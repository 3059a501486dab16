"""Liveness of brokers: a node's knowledge of its brokers, its reports to the leader, and the leader's decisions."""
