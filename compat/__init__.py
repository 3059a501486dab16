"""AP mode: a node that knows only what peers tell it, as RocketMQ's own name server.

It answers from memory, exchanges no word with other nodes, comes back empty from a restart (brokers register again) and
keeps the KV config in a file. The server and the admin side are the same code as in CP.
"""

from replicated_namesrv.compat.independent_node import IndependentNode

__all__ = ["IndependentNode"]
