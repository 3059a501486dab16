"""Raft in Python: PySyncObj's consensus rules behind a guard, with a durable log and an authenticated transport.

It does not depend on routes. ``DESIGN.md`` beside this file argues why the parts together are Raft.
"""
