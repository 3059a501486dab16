"""The proxies of a run, one for each link, and the faults that act on them.

Several faults may affect one link at the same time: requests, answers, or both. Each link keeps all of them. The proxy's state
is derived from all of them, and only differences are sent, so ending one fault never ends another.

The toxics of the two streams of a link are independent. The following holds for each stream:

- While bytes are held or trickle, toxics that only delay are left as they are.
- A removed toxic first passes on the bytes that it has. This never ends if a toxic behind it blocks.
- An added toxic makes the toxics before it pass on one chunk, unless the added toxic blocks.
- A toxic that resets connections stops reading after it has reset one. While it exists, toxics before it are not changed, and it
  is removed first.
"""

import asyncio
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import NamedTuple

from replicated_namesrv.chaos.effects import Effect, Link, Stream
from replicated_namesrv.chaos.toxiproxy_client import CALLS_AT_ONCE, ProxyPlan, Toxic, ToxiproxyClient


class Strength(NamedTuple):
    """Parameters of the effects that slow a link."""

    latency_ms: int = 300
    jitter_ms: int = 200
    rate_kb_s: int = 2


DEFAULT_STRENGTH = Strength()
RESET, HOLD, DELAY, SILENCE = "reset_peer", "bandwidth", "latency", "timeout"
REMOVED_FIRST = (RESET, HOLD, DELAY, SILENCE)
"""Order in which toxics are removed. In this order, no remaining toxic stops a removed one from passing on its bytes."""
ENDINGS = (RESET, SILENCE)
"""Toxics that pass no bytes once they are added."""


@dataclass(frozen=True, slots=True)
class Impairment:
    """The effect of one fault on one link."""

    effect: Effect
    stream: Stream = Stream.BOTH
    """The affected stream. Effects that end connections end both streams, whichever is named."""
    strength: Strength = DEFAULT_STRENGTH


def toxics_of(impairment: Impairment, *, one_way: bool) -> list[Toxic]:
    """The toxics of an effect. REFUSED needs none. ``one_way``: no bytes ever return over the link."""
    attributes: Mapping[str, int]
    strength = impairment.strength
    match impairment.effect:
        case Effect.REFUSED:
            return []
        case Effect.SILENT:
            kind, attributes = SILENCE, {"timeout": 0}
        case Effect.HELD:
            kind, attributes = HOLD, {"rate": 0}
        case Effect.RESET:
            kind, attributes = RESET, {"timeout": 0}
        case Effect.SLOW:
            kind, attributes = DELAY, {"latency": strength.latency_ms, "jitter": strength.jitter_ms}
        case Effect.TRICKLE:
            kind, attributes = HOLD, {"rate": strength.rate_kb_s}
    both = impairment.stream is Stream.BOTH or impairment.effect.ends_connections
    streams = (Stream.UPSTREAM, Stream.DOWNSTREAM) if both else (impairment.stream,)
    return [Toxic(kind, stream.value, attributes) for stream in streams if not (one_way and stream is Stream.DOWNSTREAM)]


def wanted(impairments: Iterable[Impairment], *, one_way: bool) -> tuple[dict[str, Toxic], bool]:
    """(toxics by name, whether the proxy is enabled) for all effects on a link. A cut takes precedence over a delay."""
    toxics: dict[str, Toxic] = {}
    enabled = True
    for impairment in sorted(impairments, key=lambda one: one.effect.breaks):
        enabled = enabled and impairment.effect is not Effect.REFUSED
        for toxic in toxics_of(impairment, one_way=one_way):
            toxics[toxic.name] = toxic
    return toxics, enabled


def possible(applied: Mapping[str, Toxic], toxics: Mapping[str, Toxic]) -> dict[str, Toxic]:
    """The toxics to set next on a proxy that has ``applied``: those in ``toxics``, except where the rules above forbid a change
    now."""
    frozen = _streams_with(RESET, applied) & _streams_with(RESET, toxics)
    held = _streams_with(HOLD, applied) & _streams_with(HOLD, toxics)

    def stays(toxic: Toxic) -> bool:
        return toxic.stream in frozen or (toxic.stream in held and toxic.type == DELAY)

    kept = {name: toxic for name, toxic in applied.items() if stays(toxic)}
    return kept | {name: toxic for name, toxic in toxics.items() if not stays(toxic)}


def _stops(toxic: Toxic) -> bool:
    return toxic.type in ENDINGS or (toxic.type == HOLD and toxic.attributes["rate"] == 0)


def _streams_with(kind: str, toxics: Mapping[str, Toxic]) -> set[str]:
    return {toxic.stream for toxic in toxics.values() if toxic.type == kind}


class Links:
    """All links of a run and their proxies."""

    def __init__(self, client: ToxiproxyClient, nodes: Iterable[str]) -> None:
        self._client = client
        self._nodes = frozenset(nodes)
        self._impairments: dict[Link, dict[int, Impairment]] = {}
        self._delays: dict[Link, Impairment] = {}
        self._applied: dict[Link, tuple[dict[str, Toxic], bool]] = {}
        self._changing = asyncio.Lock()

    async def create(self, routes: Mapping[Link, tuple[str, str]], unused: Iterable[Link] = ()) -> None:
        """Create the proxies; values are (listen, upstream). ``unused`` links get none. Raises ToxiproxyError."""
        plans = [ProxyPlan(link.proxy, listen, upstream) for link, (listen, upstream) in routes.items()]
        await asyncio.to_thread(self._client.populate, plans)
        self._impairments.update({link: {} for link in (*routes, *unused)})
        self._applied.update({link: ({}, True) for link in routes})
        await self._bring_about()

    @property
    def all(self) -> list[Link]:
        """Every link."""
        return list(self._impairments)

    def broken(self) -> set[Link]:
        """Links that pass nothing in at least one direction, so that no answer returns over them. While a fault begins or ends,
        its links count as broken. This can take seconds."""
        wanted = {link for link, held in self._impairments.items() if any(one.effect.breaks for one in held.values())}
        applied = self._applied.items()
        return wanted | {link for link, (toxics, enabled) in applied if not enabled or any(map(_stops, toxics.values()))}

    async def delay(self, links: Iterable[Link], round_trip_ms: int) -> None:
        """Delay each stream of these links by half of the round trip, from now on or from their creation on. A fault that slows a
        link replaces the delay while it lasts. Raises ToxiproxyError."""
        strength = Strength(latency_ms=round_trip_ms // 2, jitter_ms=0)
        self._delays = {link: Impairment(Effect.SLOW, strength=strength) for link in links}
        await self._bring_about()

    async def impair(self, fault: int, links: Mapping[Link, Stream], effect: Effect) -> None:
        """Add the effect of ``fault`` to these streams of ``links``. Raises ToxiproxyError."""
        for link, stream in links.items():
            self._impairments[link][fault] = Impairment(effect, stream)
        await self._bring_about()

    async def relieve(self, fault: int, links: Iterable[Link] | None = None) -> None:
        """Remove the effect of ``fault`` from ``links``, by default from all. Raises ToxiproxyError."""
        for link in self._impairments if links is None else links:
            self._impairments[link].pop(fault, None)
        await self._bring_about()

    async def reset(self) -> None:
        """End all effects of faults. Delays stay. Raises ToxiproxyError."""
        for held in self._impairments.values():
            held.clear()
        # First remove the toxics in an order in which no removal blocks. The server's own reset could block.
        await self._bring_about()
        async with self._changing:
            await asyncio.to_thread(self._client.reset)
            self._applied = {link: ({}, True) for link in self._applied}
        await self._bring_about()

    async def _bring_about(self) -> None:
        async with self._changing:
            changes = {}
            for link in self._applied:
                delay = self._delays.get(link)
                held = [*([] if delay is None else [delay]), *self._impairments[link].values()]
                one_way = link.source in self._nodes
                desired = wanted(held, one_way=one_way)
                if desired != self._applied[link]:
                    changes[link] = desired
            await asyncio.to_thread(self._apply_all, changes)

    def _apply_all(self, changes: Mapping[Link, tuple[dict[str, Toxic], bool]]) -> None:
        with ThreadPoolExecutor(CALLS_AT_ONCE) as threads:
            applied = [threads.submit(self._apply, link, *desired) for link, desired in changes.items()]
            try:
                for one in as_completed(applied):
                    one.result()
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)  # changes in progress still end
                raise

    def _apply(self, link: Link, desired: dict[str, Toxic], enabled: bool) -> None:
        applied, was_enabled = self._applied[link]
        toxics = possible(applied, desired)
        if was_enabled and not enabled:
            self._client.set_enabled(link.proxy, False)
        new = [toxic for name, toxic in toxics.items() if name not in applied]
        for toxic in new:  # add these toxics before others are removed, because a removal releases held bytes
            if toxic.type in ENDINGS:
                self._client.add_toxic(link.proxy, toxic)
        gone = [toxic for name, toxic in applied.items() if name not in toxics]
        for toxic in sorted(gone, key=lambda toxic: REMOVED_FIRST.index(toxic.type)):
            self._client.remove_toxic(link.proxy, toxic.name)
        for toxic in new:
            if toxic.type not in ENDINGS:
                self._client.add_toxic(link.proxy, toxic)
        for name in applied.keys() & toxics.keys():
            if applied[name] != toxics[name]:
                self._client.update_toxic(link.proxy, toxics[name])
        if enabled and not was_enabled:
            self._client.set_enabled(link.proxy, True)
        self._applied[link] = (toxics, enabled)
