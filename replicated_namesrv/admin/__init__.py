"""The admin side of a node: HTTP API, health, metrics, console and logs.

It is not on the path of RocketMQ requests. Listings are divided into pages and slices of time, so that they do not delay RocketMQ
requests.
"""
