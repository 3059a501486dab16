"""Ports for processes that have to be told theirs: drawn from many, so that runs beside each other hardly ever meet.

They lie below the range from which Linux gives local ports to outgoing connections: one of those could take a port between
the look and the use, or while a killed process is away from it.
"""

import contextlib
import random
import socket

FIRST, END = 10_000, 32_000


def free_port(*neighbours: int) -> int:
    """A port of 127.0.0.1 that nobody listens on, and nobody at the given offsets from it."""
    for _ in range(1000):
        base = random.SystemRandom().randrange(FIRST, END)
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for offset in (0, *neighbours):
                probe = stack.enter_context(socket.socket())
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", base + offset))
            return base
    raise AssertionError(f"no free port between {FIRST} and {END}")


def free_ports(count: int) -> list[int]:
    """Different free ports."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return sorted(found)
