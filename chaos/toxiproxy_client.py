"""A Toxiproxy server and its control through toxiproxy-python 0.1.1, with corrections.

- The library keeps host and port in attributes of a class that all users share. Here each server has its own subclass.
- The library cannot change a toxic or create many proxies at once. Here both are one request to the server.
- In the library, creating a proxy on a used port raises ``KeyError: 'name'``, and most other refusals are ignored, because the
  status is checked in three cases only. Here every answer but success raises ToxiproxyError with the server's text.
- The library's requests have no time-out and use the proxy that the environment names. Here they have one and go directly.

The server draws toxicity once per connection and ignores its seed, so nothing random is left to it. Calls block for some
milliseconds: call them from a thread.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from toxiproxy.api import APIConsumer
from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists

from replicated_namesrv.errors import NamesrvError

TIMEOUT_S = 10.0
_DIRECT: dict[str, None] = {"http": None, "https": None}


class ToxiproxyError(NamesrvError):
    """The server refused or did not answer; the text has the request and its reason."""


class ProxyPlan(NamedTuple):
    """A planned proxy: connections to ``listen`` reach ``upstream`` (both ``host:port``)."""

    name: str
    listen: str
    upstream: str


@dataclass(frozen=True, slots=True)
class Toxic:
    """What a proxy does to the bytes of one direction."""

    type: str
    """timeout, bandwidth, latency, reset_peer, …"""
    stream: str = "upstream"
    """upstream: from the dialler to the listener; downstream: the answers."""
    attributes: Mapping[str, int] = field(default_factory=dict)
    toxicity: float = 1.0

    @property
    def name(self) -> str:
        """Name of the toxic; a proxy has one per type and direction."""
        return f"{self.type}_{self.stream}"


class ToxiproxyClient:
    """Control of one server. All methods raise ToxiproxyError."""

    def __init__(self, host: str, port: int) -> None:
        self._api: type[APIConsumer] = type("ServerAPI", (APIConsumer,), {"host": host, "port": port})

    def version(self) -> str:
        """Version of the server."""
        return str(self._call("GET", "/version")["version"])

    def populate(self, plans: Sequence[ProxyPlan]) -> None:
        """Create these proxies: all, or ToxiproxyError."""
        body = [{**plan._asdict(), "enabled": True} for plan in plans]
        made = self._call("POST", "/populate", body)["proxies"]
        if len(made) != len(plans):
            raise ToxiproxyError(f"toxiproxy made {len(made)} of {len(plans)} proxies")

    def set_enabled(self, proxy: str, enabled: bool) -> None:
        """Enable or disable a proxy. A disabled one ends connections and refuses new ones."""
        self._call("POST", f"/proxies/{proxy}", {"enabled": enabled})

    def add_toxic(self, proxy: str, toxic: Toxic) -> None:
        """Add a toxic. Names are unique per proxy."""
        self._call("POST", f"/proxies/{proxy}/toxics", {**asdict(toxic), "name": toxic.name})

    def update_toxic(self, proxy: str, toxic: Toxic) -> None:
        """Change the attributes of the toxic with this name; connections stay."""
        self._call("POST", f"/proxies/{proxy}/toxics/{toxic.name}", {**asdict(toxic), "name": toxic.name})

    def remove_toxic(self, proxy: str, name: str) -> None:
        """Remove a toxic. Raises if it does not exist."""
        self._call("DELETE", f"/proxies/{proxy}/toxics/{name}")

    def toxics(self) -> dict[str, list[str]]:
        """Names of toxics by proxy, without proxies that have none."""
        proxies = self._call("GET", "/proxies")
        return {name: [toxic["name"] for toxic in proxy["toxics"]] for name, proxy in proxies.items() if proxy["toxics"]}

    def reset(self) -> None:
        """Remove all toxics, enable all proxies."""
        self._call("POST", "/reset")

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        send: Any = {"GET": self._api.get, "POST": self._api.post, "DELETE": self._api.delete}[method]
        arguments: dict[str, Any] = {} if body is None else {"json": body}
        try:
            response = send(path, **arguments, timeout=TIMEOUT_S, proxies=_DIRECT)
            if not 200 <= response.status_code < 300:
                raise ToxiproxyError(f"toxiproxy: {method} {path} answered {response.status_code}: {response.text.strip()}")
            return response.json() if response.text.strip() else None
        except (ProxyExists, NotFound, InvalidToxic) as refusal:
            raise ToxiproxyError(f"toxiproxy: {method} {path} refused: {refusal}") from refusal
        except (OSError, ValueError) as failure:  # every error of the HTTP library is an OSError
            raise ToxiproxyError(f"toxiproxy: {method} {path} failed: {failure}") from failure
