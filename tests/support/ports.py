"""Ports for processes that do not choose their own, drawn from many, so that concurrent runs rarely conflict."""

import contextlib
import random
import socket

from replicated_namesrv.chaos.ports import PORT_END, PORT_FIRST

FIRST, END = 10_000, 32_000
RECORDED = range(21_100, 21_200)
"""Where the brokers of the recorded cases listen (tests/data/remoting_cases.jsonl)."""
OF_CHAOS = range(PORT_FIRST, PORT_END)
"""Reserved by chaos runs and demonstrations, seconds before their processes listen there."""


def free_port(*neighbours: int) -> int:
    """A port of 127.0.0.1 on which no process listens, also not at the given offsets from it."""
    for _ in range(1000):
        base = random.SystemRandom().randrange(FIRST, END)
        if any(base + offset in RECORDED or base + offset in OF_CHAOS for offset in (0, *neighbours)):
            continue
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
