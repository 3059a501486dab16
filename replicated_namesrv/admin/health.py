"""Liveness and readiness.

Live means that the event loop turns: whoever reads the answer knows. It never depends on other nodes, so that nobody
restarts a healthy node because its cluster has no majority. Ready means that a peer sent here would be served. It is
checked layer by layer, from the ground up, and stops at the first that fails, because what stands on it says nothing new.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

LAYER_TIMEOUT_S = 2.0
"""A layer that does not answer in time has failed."""


class Layer(NamedTuple):
    """One layer: its name and a check that returns None where all is well, else what is wrong."""

    name: str
    check: Callable[[], "str | Awaitable[str | None] | None"]


class LayerHealth(NamedTuple):
    """What a check found; ``problem`` None: it is well."""

    name: str
    problem: str | None


async def readiness(layers: Sequence[Layer]) -> list[LayerHealth]:
    """Health of the layers from the ground up, ending with the first that fails."""
    found = []
    for layer in layers:
        problem = await _problem_of(layer)
        found.append(LayerHealth(layer.name, problem))
        if problem is not None:
            break
    return found


async def _problem_of(layer: Layer) -> str | None:
    try:
        answer = layer.check()
        if answer is None or isinstance(answer, str):
            return answer
        return await asyncio.wait_for(answer, LAYER_TIMEOUT_S)
    except TimeoutError:
        return f"no answer within {LAYER_TIMEOUT_S:g} s"
    except Exception as error:  # whatever a check raises is what is wrong with its layer
        return f"{type(error).__name__}: {error}"


def as_text(found: Sequence[LayerHealth], *, verbose: bool) -> str:
    """``ok``, or the first problem; verbose: a line a layer."""
    if verbose:
        return "".join(f"[{'+' if h.problem is None else '-'}] {h.name}: {h.problem or 'ok'}\n" for h in found)
    failed = next((h for h in found if h.problem is not None), None)
    return "ok\n" if failed is None else f"not ready: {failed.name}: {failed.problem}\n"


def as_json(found: Sequence[LayerHealth]) -> dict[str, object]:
    """The same for programs."""
    failed = next((h for h in found if h.problem is not None), None)
    return {
        "ready": failed is None,
        "failedLayer": failed.name if failed else None,
        "layers": [{"name": h.name, "ok": h.problem is None, "problem": h.problem} for h in found],
    }
