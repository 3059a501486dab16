"""CP mode: the route state machine on top of Raft, leases in place of heartbeats in the log.

``DESIGN.md`` beside this file argues for every rule.
"""
