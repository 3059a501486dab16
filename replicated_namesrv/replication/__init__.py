"""CP mode: the route state machine on top of Raft. The log has no heartbeats, only the removals of silent brokers.

``DESIGN.md`` beside this file gives the reasons for every rule.
"""
