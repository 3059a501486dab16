"""Liveness and readiness.

Live means that the event loop runs; any answer proves it. It never depends on other nodes, so that no supervisor restarts a
healthy node because its cluster has no majority. Ready means that a broker or client that connects to this node would be
served. Readiness is checked layer by layer. Each layer depends on the ones below, so the check stops at the first that fails.

A layer that works may have a warning, which leaves the node ready. For example, a nearly full disk stops neither reads nor
renewals nor deletions. These would stop if load balancers removed all such nodes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

LAYER_TIMEOUT_S = 2.0
"""Time limit of a layer's check. A layer whose check takes longer has failed."""


class Layer(NamedTuple):
    """One layer: its name, and a check that returns None or the problem."""

    name: str
    check: Callable[[], "str | Awaitable[str | None] | None"]
    warning: Callable[[], str | None] = lambda: None
    """Returns a problem to report to operators although brokers and clients are served, or None."""


class LayerHealth(NamedTuple):
    """Result of a check. ``problem`` None: healthy."""

    name: str
    problem: str | None
    warning: str | None = None


async def readiness(layers: Sequence[Layer], timeout_s: float = LAYER_TIMEOUT_S) -> list[LayerHealth]:
    """Health of the layers from the lowest up. The result ends with the first failure."""
    found = []
    for layer in layers:
        problem = await _problem_of(layer, timeout_s)
        found.append(LayerHealth(layer.name, problem, layer.warning()))
        if problem is not None:
            break
    return found


async def _problem_of(layer: Layer, timeout_s: float) -> str | None:
    try:
        answer = layer.check()
        if answer is None or isinstance(answer, str):
            return answer
        async with asyncio.timeout(timeout_s):
            return await answer
    except TimeoutError:
        return f"no answer within {timeout_s:g} s"
    except Exception as error:  # any exception of a check counts as a problem of its layer
        return f"{type(error).__name__}: {error}"


def as_text(found: Sequence[LayerHealth], *, verbose: bool) -> str:
    """``ok`` or the first problem, and one line per warning. With ``verbose``, one line per layer."""
    if verbose:
        return "".join(map(_line, found))
    failed = next((h for h in found if h.problem is not None), None)
    warnings = "".join(f"warning: {h.name}: {h.warning}\n" for h in found if h.warning is not None)
    return ("ok\n" if failed is None else f"not ready: {failed.name}: {failed.problem}\n") + warnings


def _line(health: LayerHealth) -> str:
    if health.problem is not None:
        return f"[-] {health.name}: {health.problem}\n"
    return f"[+] {health.name}: ok\n" if health.warning is None else f"[!] {health.name}: {health.warning}\n"


def as_json(found: Sequence[LayerHealth]) -> dict[str, object]:
    """The health of all layers as JSON, for programs."""
    failed = next((h for h in found if h.problem is not None), None)
    return {
        "ready": failed is None,
        "failedLayer": failed.name if failed else None,
        "layers": [{"name": h.name, "ok": h.problem is None, "problem": h.problem, "warning": h.warning} for h in found],
    }
