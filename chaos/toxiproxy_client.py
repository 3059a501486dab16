"""A Toxiproxy server and its control, through toxiproxy-python 0.1.1, mended where it has to be.

- Its host and port are attributes of one class that all users share. Here each server has a subclass with its own.
- It has no call that changes a toxic, nor one that creates many proxies at once: both are one request of the server's.
- Creating a proxy on a taken port ends in ``KeyError: 'name'``, and most other refusals in nothing at all: the answer's status
  is looked at in three cases only. Here every answer but success raises ToxiproxyError with what the server said.
- Its requests have no time-out and go through whatever proxy the environment names; these have one and go straight.

The server's own API is documented with it; toxicity is drawn once per connection there and its seed does nothing, so nothing
random is left to it. Calls block for some milliseconds: call them from a thread.
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
    """A proxy to be: whoever connects to ``listen`` reaches ``upstream`` (both ``host:port``)."""

    name: str
    listen: str
    upstream: str


@dataclass(frozen=True, slots=True)
class Toxic:
    """What a proxy does to the bytes of one direction."""

    type: str
    """timeout, bandwidth, latency, reset_peer, …"""
    stream: str = "upstream"
    """upstream: from who connects to who listens; downstream: back."""
    attributes: Mapping[str, int] = field(default_factory=dict)
    toxicity: float = 1.0

    @property
    def name(self) -> str:
        """One of a type and direction per proxy."""
        return f"{self.type}_{self.stream}"


class ToxiproxyClient:
    """Control of one server. All methods raise ToxiproxyError."""

    def __init__(self, host: str, port: int) -> None:
        self._api: type[APIConsumer] = type("ServerAPI", (APIConsumer,), {"host": host, "port": port})

    def version(self) -> str:
        """Of the server."""
        return str(self._call("GET", "/version")["version"])

    def populate(self, plans: Sequence[ProxyPlan]) -> None:
        """Create these proxies, all or an error."""
        body = [{**plan._asdict(), "enabled": True} for plan in plans]
        made = self._call("POST", "/populate", body)["proxies"]
        if len(made) != len(plans):
            raise ToxiproxyError(f"toxiproxy made {len(made)} of {len(plans)} proxies")

    def set_enabled(self, proxy: str, enabled: bool) -> None:
        """Off: connections end, new ones are refused."""
        self._call("POST", f"/proxies/{proxy}", {"enabled": enabled})

    def add_toxic(self, proxy: str, toxic: Toxic) -> None:
        """There may be one of its name only."""
        self._call("POST", f"/proxies/{proxy}/toxics", {**asdict(toxic), "name": toxic.name})

    def update_toxic(self, proxy: str, toxic: Toxic) -> None:
        """Give the toxic of this name other attributes; connections stay."""
        self._call("POST", f"/proxies/{proxy}/toxics/{toxic.name}", {**asdict(toxic), "name": toxic.name})

    def remove_toxic(self, proxy: str, name: str) -> None:
        """Raises if it is not there."""
        self._call("DELETE", f"/proxies/{proxy}/toxics/{name}")

    def toxics(self) -> dict[str, list[str]]:
        """Names of toxics by proxy, for those that have any."""
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
