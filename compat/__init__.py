"""AP mode: an independent node that learns only from its own connections, like RocketMQ's name server.

It answers from memory and does not communicate with other nodes. After a restart it is empty until brokers register again;
only the KV config is kept in a file. Server and admin side are the same code as in CP.
"""

from replicated_namesrv.compat.independent_node import IndependentNode

__all__ = ["IndependentNode"]
