"""Access rules of the admin port.

======================================  ==============================  =====================================
request                                 ``adminTokenFile`` is set       not set
======================================  ==============================  =====================================
health, metrics, nsaddr, console page   anyone                          anyone: balancers, Prometheus, brokers
KV, backup, settings, watch, time line  with the token                  from loopback
other reads                             with the token                  anyone
changes                                 with the token                  from loopback
======================================  ==============================  =====================================

The token is also needed on loopback, because the machine may have other users, and a proxy on it may forward requests from
other machines. "From loopback" excludes requests that a proxy says it forwarded. A web page can make a browser send requests to
this port. Therefore a request without a token must name this node in ``Host`` (DNS rebinding), and a change with an ``Origin``
must come from the console.

With ``accessPolicy=enforce`` the roles of the caller decide instead, by certificate, token or source address. The token of
``adminTokenFile`` then has the role admin. With ``observe`` the table decides, and requests that the roles would refuse are
recorded. A token of the access file then has no effect on whether a request is allowed.
"""

import hmac
import logging
import socket
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web

from replicated_namesrv.access.access_control import AccessControl, CheckedOrigin
from replicated_namesrv.access.identities import AccessRules, NamedIdentity, refusal, subject_of
from replicated_namesrv.access.roles import Role
from replicated_namesrv.address_list import is_numeric
from replicated_namesrv.errors import NoPermissionError, SettingError
from replicated_namesrv.listening import is_loopback
from replicated_namesrv.model import ChangeOrigin

log = logging.getLogger(__name__)

TOKEN_BYTES_MIN, TOKEN_BYTES_MAX = 16, 4096
ADMIN_TOKEN = NamedIdentity("adminTokenFile", frozenset({Role.ADMIN}))
"""The caller that sends the token of ``adminTokenFile``."""
_FORWARDED = ("forwarded", "via", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "true-client-ip", "cf-connecting-ip")
"""Headers that proxies add, in lower case, besides those that begin with x-forwarded."""


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
    """Decides about requests by the table above. The token file is read at each use, so that a new token needs no restart."""

    def __init__(self, token_file: str, own_hosts: Collection[str], control: AccessControl | None = None) -> None:
        """``own_hosts``: names of this node in addition to its addresses, localhost and the machine's name. ``control`` None: the
        table alone decides."""
        self._token_file, self._control = token_file, control
        self._own_hosts = {"localhost", socket.gethostname().lower(), *(host.lower() for host in own_hosts)}

    def check(self, request: web.Request, allowed: frozenset[Role], by_table: Callable[[web.Request], None]) -> None:
        """Check that the caller has one of the roles ``allowed``. ``by_table``: the check without roles. Raises AccessError."""
        control = self._control
        if control is None:
            by_table(request)
            return
        rules = control.rules
        identity, by, denied = self._judge(request, rules, allowed)
        if not control.enforces:
            by_table(request)
            request[ORIGIN] = ChangeOrigin(identity, request.remote or "?", control.node)
        elif denied is None:
            request[ORIGIN] = origin = CheckedOrigin(identity, request.remote or "?", control.node)
            origin.recheck = partial(self._check_waiting, request, allowed, rules)
        if denied is None:
            return
        self._refused(request, identity, by, denied, allowed)
        if control.enforces:
            raise denied

    def _refused(self, request: web.Request, identity: str, by: str, denied: "AccessError", allowed: frozenset[Role]) -> None:
        assert self._control is not None
        name = f"{request.method} {pattern_of(request)}"
        self._control.refused(name, request.path, identity, by, request.remote or "?", denied.error, {"needs": sorted(allowed)})

    def _check_waiting(self, request: web.Request, allowed: frozenset[Role], rules: AccessRules) -> None:
        """Check a request again, by the present rules. It was allowed by ``rules`` and has waited since then. Raises
        NoPermissionError."""
        control = self._control
        if control is None or control.rules is rules:
            return
        identity, by, denied = self._judge(request, control.rules, allowed)
        if denied is not None:
            self._refused(request, identity, by, denied, allowed)
            raise NoPermissionError(f"{denied.error}; the access file changed while the request waited")

    def check_again(self, request: web.Request, allowed: frozenset[Role], by_table: Callable[[web.Request], None]) -> None:
        """Check the caller of an open stream once more. Raises the same errors as ``check``, but records no observed request."""
        control = self._control
        if control is not None and control.enforces:
            self.check(request, allowed, by_table)
        else:
            by_table(request)

    def done(self, request: web.Request, status: int) -> None:
        """Record an operation; changes of KV config and topics are recorded when they are applied."""
        origin = request.get(ORIGIN)
        recorded = (request.method, pattern_of(request)) in OPERATIONS
        if self._control is not None and origin is not None and recorded:
            target = request.get(TARGET) or request.query_string or None
            self._control.requested(f"{request.method} {request.path}", target, origin, status)

    def why_not(self, request: web.Request, allowed: frozenset[Role], by_table: Callable[[web.Request], None]) -> str | None:
        """Why ``check`` would refuse such a request from this caller; None: it would accept it. Nothing is recorded."""
        if self._control is not None and self._control.enforces:
            denied = self._judge(request, self._control.rules, allowed)[2]
            return None if denied is None else f"{denied.error}; {denied.remedy}"
        try:
            by_table(request)
        except AccessError as error:
            return f"{error.error}; {error.remedy}"
        return None

    def caller(self, request: web.Request) -> str:
        """Identity (if roles are in use) and address of the caller of a request that was allowed."""
        origin: ChangeOrigin | None = request.get(ORIGIN)
        return request.remote or "" if origin is None else f"{origin.identity} at {origin.address}"

    def _judge(self, request: web.Request, rules: AccessRules, allowed: frozenset[Role]) -> tuple[str, str, AccessError | None]:
        """Identity of the caller, how it was recognised, and why the request is refused; None: it is allowed."""
        try:
            identity, by = self._recognised(request, rules)
        except AccessError as denied:
            return "anonymous", denied.error, denied
        why = refusal(identity, allowed)
        if why is None:
            return identity.name, by, None
        status, remedy = 403, "give this identity one of the needed roles in the access file, or use another identity"
        if identity is rules.anonymous:
            status, remedy = 401, "send 'Authorization: Bearer TOKEN', or a client certificate that the access file knows"
        return identity.name, by, AccessError(status, f"no permission: {why}", remedy)

    def _recognised(self, request: web.Request, rules: AccessRules) -> tuple[NamedIdentity, str]:
        """The caller's identity, and how it was recognised. Raises AccessError: wrong token, or a web page of another origin."""
        certificate = None if request.transport is None else request.transport.get_extra_info("peercert")
        if (identity := rules.by_certificate(certificate)) is not None:
            self._check_origin(request)
            return identity, f"certificate {subject_of(certificate or {})}"
        if "Authorization" in request.headers:
            token = given_token(request)
            if (identity := rules.by_token(token)) is not None:
                return identity, "token"
            if not self._token_file:
                raise AccessError(401, "wrong token", "send a token whose hash is in the access file")
            self._check_token(request)
            return ADMIN_TOKEN, "token"
        self._check_host(request)
        self._check_origin(request)
        if not is_forwarded(request) and (identity := rules.by_network(request.remote or "")) is not None:
            return identity, "network"
        return rules.anonymous, "anonymous"

    def check_view(self, request: web.Request) -> None:
        """Check a request for an ordinary view. Raises AccessError."""
        if self._token_file or self._sends_token(request):
            self._check_token(request)
            return
        self._check_host(request)

    def check_secret_view(self, request: web.Request) -> None:
        """Check a request for a view that not everyone may read. Raises AccessError."""
        if not self._token_file and not is_local(request):
            raise AccessError(403, "this is readable from this machine only", "set adminTokenFile and send its token")
        self.check_view(request)

    def check_change(self, request: web.Request) -> None:
        """Check a request that changes something. Raises AccessError."""
        if self._token_file or self._sends_token(request):
            self._check_token(request)
            return
        if not is_local(request):
            raise AccessError(403, "changes are accepted from this machine only", "set adminTokenFile and send its token")
        self._check_host(request)
        self._check_origin(request)

    def _sends_token(self, request: web.Request) -> bool:
        """Whether the request has ``Authorization`` with something else than a token of the access file."""
        if "Authorization" not in request.headers:
            return False
        return self._control is None or self._control.rules.by_token(given_token(request)) is None

    def _check_origin(self, request: web.Request) -> None:
        origin = request.headers.get("Origin")
        if request.method not in ("GET", "HEAD") and origin is not None and _host_of(origin) != request.host:
            raise AccessError(403, f"a page of {origin} may not change anything here", "use the console of this node")

    def _check_host(self, request: web.Request) -> None:
        try:
            host = urlsplit(f"//{request.host}").hostname or ""
        except ValueError:
            host = request.host
        if host not in self._own_hosts and not is_numeric(host):
            remedy = "use the node's address, localhost or a name in nameServerAddresses, or send the token of adminTokenFile"
            raise AccessError(403, f"a request without a token was sent to the name '{host}'", remedy)

    def _check_token(self, request: web.Request) -> None:
        given = given_token(request)
        if not self._token_file:
            raise AccessError(401, "this node has no token", "set adminTokenFile")
        try:
            expected = read_token(self._token_file)
        except SettingError as error:
            log.error("the token file cannot be used, so every token is refused", extra={"cause": str(error)})
            raise AccessError(401, "the token cannot be checked at present", "see the log of the node") from error
        if not hmac.compare_digest(given, expected):
            log.warning("refused: wrong token", extra={"peer": request.remote, "path": request.path})
            raise AccessError(401, "wrong token", "send the first line of the node's adminTokenFile")


ACCESS = web.AppKey("access", Access)
ORIGIN = web.RequestKey("origin", ChangeOrigin)
"""The caller of a request, if accessPolicy is not open."""
TARGET = web.RequestKey("target", str)
"""The object of a request, for the audit log. Without a target, the log has the query string."""
OPERATIONS = {
    *(("POST", "/v1/config"), ("GET", "/v1/backup"), ("POST", "/v1/restore"), ("POST", "/v1/leader/transfer")),
    *(("POST", "/v1/drain"), ("DELETE", "/v1/drain"), ("POST", "/v1/members/{node}/{action}")),
}
"""Requests that the audit log records as operations."""


def pattern_of(request: web.Request) -> str:
    """The pattern that the path of a request matches. Empty: it matches none."""
    resource = request.match_info.route.resource
    return "" if resource is None else resource.canonical


def is_forwarded(request: web.Request) -> bool:
    """Whether headers of the request show that a proxy forwarded it."""
    return any(name.lower() in _FORWARDED or name.lower().startswith("x-forwarded") for name in request.headers)


def given_token(request: web.Request) -> bytes:
    """The token in the request. Raises AccessError: the request has none."""
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not given:
        raise AccessError(401, "this needs a token", "send 'Authorization: Bearer TOKEN' with the token of adminTokenFile")
    return given.strip().encode("utf-8", "surrogateescape")


def is_local(request: web.Request) -> bool:
    """Whether the request was made on this machine, and not forwarded by a proxy on this machine."""
    if is_forwarded(request):
        return False
    return request.remote is not None and is_loopback(request.remote)


def _host_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""
