"""A Toxiproxy server, controlled through toxiproxy-python 0.1.1.

The library's classes do the work: ``Toxiproxy`` (proxies, reset), ``Proxy`` (enable, disable, add and remove toxics). This module
works around the following:

- The library keeps host and port in a class that all users share. ``_CheckedRequests`` replaces them by the server that the
  thread calls.
- It ignores most refusals: it only looks for the statuses 400, 404 and 409. ``_CheckedRequests`` raises for all of them.
- Its requests have no time-out, and use the HTTP proxy that the environment names. ``_CheckedRequests`` has a time-out and uses
  no HTTP proxy.
- It creates proxies one by one, and cannot change a toxic. In the server's API, each of these is one request.

The server draws toxicity once for each connection and ignores its seed. Therefore every toxic has toxicity 1. Calls block for
some milliseconds: call them from a thread. The removal of a toxic blocks for five seconds for each chunk that the toxic holds for
a connection whose other end is closed. Usually this is one chunk. Threads may call at the same time, so that such removals do not
wait for each other.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, TypeVar

import requests
import toxiproxy.api
from requests.adapters import HTTPAdapter
from toxiproxy.api import APIConsumer
from toxiproxy.proxy import Proxy
from toxiproxy.server import Toxiproxy

from replicated_namesrv.errors import NamesrvError

TIMEOUT_S = 30.0
CALLS_AT_ONCE = 16
"""Maximum number of calls at the same time, for which connections are kept open."""
_T = TypeVar("_T")


class ToxiproxyError(NamesrvError):
    """The server refused or did not answer; the text names the request and the reason."""


class ProxyPlan(NamedTuple):
    """A planned proxy: connections to ``listen`` reach ``upstream`` (both ``host:port``)."""

    name: str
    listen: str
    upstream: str


@dataclass(frozen=True, slots=True)
class Toxic:
    """The effect of a proxy on the bytes of one direction."""

    type: str
    """Kind of toxic: timeout, bandwidth, latency, reset_peer and so on."""
    stream: str = "upstream"
    """upstream: what the dialler sends to the listener; downstream: the answers."""
    attributes: Mapping[str, int] = field(default_factory=dict)
    toxicity: float = 1.0

    @property
    def name(self) -> str:
        """Name of the toxic; a proxy has one per type and direction."""
        return f"{self.type}_{self.stream}"


class _CheckedRequests:
    """Replaces the module ``requests`` in ``toxiproxy.api``: every answer except success is an error."""

    def __init__(self) -> None:
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.mount("http://", HTTPAdapter(pool_maxsize=CALLS_AT_ONCE))

    def get(self, **arguments: Any) -> requests.Response:
        return self._checked("GET", **arguments)

    def post(self, **arguments: Any) -> requests.Response:
        return self._checked("POST", **arguments)

    def delete(self, **arguments: Any) -> requests.Response:
        return self._checked("DELETE", **arguments)

    def _checked(self, method: str, url: str, **arguments: Any) -> requests.Response:
        path = url.partition("://")[2].partition("/")[2]
        try:
            response = self._session.request(method, f"http://{_calling.server}/{path}", timeout=TIMEOUT_S, **arguments)
        except OSError as failure:  # every exception of the package requests is an OSError
            raise ToxiproxyError(f"toxiproxy: {method} /{path} failed: {failure}") from failure
        if not response.ok:
            raise ToxiproxyError(f"toxiproxy: {method} /{path} answered {response.status_code}: {response.text.strip()}")
        return response


class _Calling(threading.local):
    """The server (``host:port``) that this thread calls."""

    server = ""


toxiproxy.api.requests = _CheckedRequests()
_calling = _Calling()


class ToxiproxyClient:
    """Control of one server. All methods raise ToxiproxyError."""

    def __init__(self, host: str, port: int) -> None:
        self._address = f"{host}:{port}"
        self._server = Toxiproxy()
        self._proxies: dict[str, Proxy] = {}

    def version(self) -> str:
        """Version of the server."""
        return str(self._call(lambda: APIConsumer.get("/version").json())["version"])

    def populate(self, plans: Sequence[ProxyPlan]) -> None:
        """Create these proxies with one request. It is an error if one of them is not created."""
        body = [{**plan._asdict(), "enabled": True} for plan in plans]
        made = self._call(lambda: APIConsumer.post("/populate", json=body).json())["proxies"]
        if len(made) != len(plans):
            raise ToxiproxyError(f"toxiproxy made {len(made)} of {len(plans)} proxies")
        self._proxies.update({found["name"]: Proxy(**found) for found in made})

    def set_enabled(self, proxy: str, enabled: bool) -> None:
        """Enable or disable a proxy. Disabling ends its connections, and new ones are refused."""
        found = self._proxy(proxy)
        self._call(found.enable if enabled else found.disable)

    def add_toxic(self, proxy: str, toxic: Toxic) -> None:
        """Add a toxic. A proxy can have only one toxic of a name."""
        found = self._proxy(proxy)
        self._call(lambda: found.add_toxic(**asdict(toxic), name=toxic.name))

    def update_toxic(self, proxy: str, toxic: Toxic) -> None:
        """Give the toxic of this name other attributes. Connections stay."""
        body = {**asdict(toxic), "name": toxic.name}
        self._call(lambda: APIConsumer.post(f"/proxies/{self._proxy(proxy).name}/toxics/{toxic.name}", json=body))

    def remove_toxic(self, proxy: str, name: str) -> None:
        """Remove a toxic. It is an error if there is none of this name."""
        found = self._proxy(proxy)
        self._call(lambda: found.destroy_toxic(name))

    def toxics(self) -> dict[str, list[str]]:
        """Names of toxics by proxy, for proxies that have any."""
        found = {name: sorted(self._call(proxy.toxics)) for name, proxy in self._call(self._server.proxies).items()}
        return {name: toxics for name, toxics in found.items() if toxics}

    def reset(self) -> None:
        """Remove all toxics, enable all proxies."""
        self._call(self._server.reset)

    def _proxy(self, name: str) -> Proxy:
        if name not in self._proxies:
            raise ToxiproxyError(f"toxiproxy: proxy not found: this client created none named {name}")
        return self._proxies[name]

    def _call(self, work: Callable[[], _T]) -> _T:
        _calling.server = self._address
        try:
            return work()
        except ValueError as failure:
            raise ToxiproxyError(f"toxiproxy: not JSON: {failure}") from failure
