"""CP mode: the route state machine on top of Raft, silence in the log in place of heartbeats.

``DESIGN.md`` beside this file argues for every rule.
"""
