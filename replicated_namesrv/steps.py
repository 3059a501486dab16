"""Computations in steps, so that the event loop can do other work in between."""

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]
"""A computation that yields after each of its steps and returns its result."""


def finish(steps: Steps[T]) -> T:
    """Do all steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
