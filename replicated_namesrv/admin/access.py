"""Access rules of the admin port.

======================================  ==============================  =====================================
request                                 ``adminTokenFile`` is set       not set
======================================  ==============================  =====================================
health, metrics, nsaddr, console page   anyone                          anyone: balancers, Prometheus, brokers
KV, backup, configuration, watch        with the token                  from loopback
other reads                             with the token                  anyone
changes                                 with the token                  from loopback
======================================  ==============================  =====================================

The token is also needed on loopback, because the machine may have other users, and a proxy on it may forward requests from
other machines. "From loopback" excludes requests that a proxy says it forwarded. A web page may have a browser send requests
here. Therefore a request without a token must name this node in ``Host`` (DNS rebinding), and a change that names an origin
must name the console.
"""

import hmac
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web

from replicated_namesrv.errors import SettingError

log = logging.getLogger(__name__)

TOKEN_BYTES_MIN, TOKEN_BYTES_MAX = 16, 4096
_FORWARDED = ("Forwarded", "X-Forwarded-For", "X-Real-IP")


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AccessError(Exception):
    """The request is not allowed. ``status`` is 401 (give a token) or 403."""

    def __init__(self, status: int, error: str, remedy: str) -> None:
        super().__init__(error)
        self.status, self.error, self.remedy = status, error, remedy


def read_token(path: str) -> bytes:
    """First line of the token file. Raises SettingError: unreadable, or too short to be a secret."""
    try:
        with Path(path).expanduser().open("rb") as file:
            token = file.readline(TOKEN_BYTES_MAX + 1).strip()
    except OSError as cause:
        raise SettingError(f"adminTokenFile={path}: {cause.strerror}; make it readable for this user") from cause
    if not TOKEN_BYTES_MIN <= len(token) <= TOKEN_BYTES_MAX:
        raise SettingError(
            f"adminTokenFile={path}: the first line has {len(token)} bytes; give {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX}"
        )
    return token


class Access:
    """Decides by the table above. The token file is read at each use, so that a new token needs no restart."""

    def __init__(self, token_file: str, own_hosts: Collection[str]) -> None:
        """``own_hosts``: names of this node besides its addresses, localhost and the machine's name."""
        self._token_file = token_file
        self._own_hosts = {"localhost", socket.gethostname().lower(), *(host.lower() for host in own_hosts)}

    def check_view(self, request: web.Request) -> None:
        """Raises AccessError."""
        if self._token_file or "Authorization" in request.headers:
            self._check_token(request)
            return
        self._check_host(request)

    def check_secret_view(self, request: web.Request) -> None:
        """For views that not everyone may read. Raises AccessError."""
        if not self._token_file and not is_local(request):
            raise AccessError(403, "this is readable from this machine only", "set adminTokenFile and send its token")
        self.check_view(request)

    def check_change(self, request: web.Request) -> None:
        """Raises AccessError."""
        if self._token_file or "Authorization" in request.headers:
            self._check_token(request)
            return
        if not is_local(request):
            raise AccessError(403, "changes are accepted from this machine only", "set adminTokenFile and send its token")
        self._check_host(request)
        origin = request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != request.host:
            raise AccessError(403, f"a page of {origin} may not change anything here", "use the console of this node")

    def _check_host(self, request: web.Request) -> None:
        try:
            host = urlsplit(f"//{request.host}").hostname or ""
        except ValueError:
            host = request.host
        if host not in self._own_hosts and not _is_address(host):
            remedy = "use the node's address, localhost or a name in nameServerAddresses, or send the token of adminTokenFile"
            raise AccessError(403, f"a request without a token was sent to the name '{host}'", remedy)

    def _check_token(self, request: web.Request) -> None:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not given:
            raise AccessError(401, "this needs a token", "send 'Authorization: Bearer TOKEN' with the token of adminTokenFile")
        if not self._token_file:
            raise AccessError(401, "this node has no token", "set adminTokenFile")
        try:
            expected = read_token(self._token_file)
        except SettingError as error:
            log.error("the token file cannot be used, every token is refused", extra={"cause": str(error)})
            raise AccessError(401, "the token cannot be checked at present", "see the log of the node") from error
        if not hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), expected):
            log.warning("refused: wrong token", extra={"peer": request.remote, "path": request.path})
            raise AccessError(401, "wrong token", "send the first line of the node's adminTokenFile")


ACCESS = web.AppKey("access", Access)


def is_local(request: web.Request) -> bool:
    """Whether the request was made on this machine and not forwarded by a proxy on it."""
    if any(header in request.headers for header in _FORWARDED):
        return False
    return request.remote is not None and _is_loopback(request.remote)


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
