"""RocketMQ remoting from the client's side: a client library, the choice of a name server from an address list, and simulated
brokers.

It works with our name servers and Java's, and imports nothing of the server.
"""
