"""The remoting server: everything between a TCP connection and the ``NameService``.

One event loop, one thread. ``RemotingServer`` is the entrance; DESIGN.md beside this file tells how the parts fit.
"""
