"""AP mode: an independent node that learns only from its own connections, like RocketMQ's name server.

It answers from memory and does not communicate with other nodes. After a restart it has no routes until brokers register again;
only the KV config and run-time settings are kept in files. Server and admin side are the same code as in CP.
"""

from replicated_namesrv.compat.independent_node import IndependentNode

__all__ = ["IndependentNode"]
