"""The remoting server: everything between a TCP connection and the service that keeps the state.

One event loop, one thread. ``RemotingServer`` is the entry point; DESIGN.md beside this file describes the parts.
"""
