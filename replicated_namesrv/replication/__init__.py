"""CP mode: the route state machine on top of Raft. The log has no heartbeats, only recorded silence, its end, and removals.

``DESIGN.md`` beside this file gives the reasons for every rule.
"""
