"""CP mode: the route state machine on top of Raft. The log records silence of brokers, not heartbeats.

``DESIGN.md`` beside this file gives the reasons for every rule.
"""
