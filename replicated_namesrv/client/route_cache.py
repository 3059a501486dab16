"""A client's cache of routes (``MQClientInstance``).

A topic is looked up when it is first needed and then every ``poll_interval_ms``. Neither a failure nor "no route" removes a
cached route: a running client keeps using it. A client also keeps a server that answers with errors. Therefore a name server that
cannot serve must not answer: its clients would keep outdated routes.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from replicated_namesrv.client.nameservers import NameServers
from replicated_namesrv.client.queries import read_route, route_request
from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.model import TopicRouteData

POLL_INTERVAL_MS = 30_000
"""``pollNameServerInterval``."""
TOPICS_MAX = 10_000
"""Maximum number of cached topics; the least recently used one is evicted."""


class RouteUpdate(NamedTuple):
    """One look-up and its effect on the cache."""

    topic: str
    address: str | None
    """The server that answered; None if no server did."""
    route: TopicRouteData | None
    """The route in the answer. None: the topic has no route, or no server answered."""
    changed: bool
    """Whether the look-up changed the cached route."""
    error: NamesrvError | None
    """Why there is no usable answer; None if there is one."""


class RouteCache:
    """Routes of the topics in use by one client."""

    def __init__(
        self,
        servers: NameServers,
        *,
        poll_interval_ms: int = POLL_INTERVAL_MS,
        observe: Callable[[RouteUpdate], None] | None = None,
    ) -> None:
        """``observe`` is called with every look-up."""
        self._servers = servers
        self._poll_interval_ms = poll_interval_ms
        self._observe = observe
        self._routes: dict[str, TopicRouteData | None] = {}
        self._polling: asyncio.Task[None] | None = None

    def known(self, topic: str) -> TopicRouteData | None:
        """The cached route, without a look-up."""
        return self._routes.get(topic)

    async def route(self, topic: str) -> TopicRouteData | None:
        """The cached route, else the result of a look-up. Raises the look-up's error if nothing is cached."""
        if topic in self._routes:
            route = self._routes[topic] = self._routes.pop(topic)
            if route is not None:
                return route
        update = await self.refresh(topic)
        if update.error is not None:
            raise update.error
        return update.route

    async def refresh(self, topic: str) -> RouteUpdate:
        """Look up the route now. A NamesrvError is not raised; it is in the update."""
        address, answered, error = None, None, None
        try:
            address, response = await self._servers.query(route_request(topic))
            answered = read_route(response)
        except NamesrvError as failure:
            error = failure
        held = self._routes.pop(topic, None)
        self._routes[topic] = held if answered is None else answered
        if len(self._routes) > TOPICS_MAX:
            del self._routes[next(iter(self._routes))]
        update = RouteUpdate(topic, address, answered, answered is not None and answered != held, error)
        if self._observe is not None:
            self._observe(update)
        return update

    def start_polling(self) -> None:
        """Refresh every topic in use each ``poll_interval_ms``, one after the other as Java does."""
        assert self._polling is None, "polling already"
        self._polling = asyncio.create_task(self._poll())

    async def stop_polling(self) -> None:
        """End what ``start_polling`` began."""
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)
            self._polling = None

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._poll_interval_ms / 1000)
            for topic in list(self._routes):
                await self.refresh(topic)
