"""Speaking RocketMQ remoting from the other side: a client library, the rules by which clients use an address list, and agents
that behave towards name servers as brokers do. It works against ours and Java's alike and knows nothing of the server.
"""
