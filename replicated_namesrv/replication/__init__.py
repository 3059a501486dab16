"""CP mode: the route state machine on top of Raft.

Every change of the state is in the log. Heartbeats are not: the log only records that a broker is silent, that it makes contact
again, and that it is removed. ``DESIGN.md`` beside this file gives the reasons for every rule.
"""
