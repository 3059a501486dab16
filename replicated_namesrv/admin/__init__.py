"""Everything for people and their tools: HTTP API, health, metrics, console and logs. Nothing here is on the path of a request
of RocketMQ's; listings are cut into pages and slices of time so that they do not delay one either.
"""
