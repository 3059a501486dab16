"""AccessGuard: decides which requests of a connection are allowed (``accessPolicy=observe`` or ``enforce``).

The identity of a caller is the first of these that the access file knows:

1. its verified client certificate, once for each connection;
2. the access key that signed the request, over TLS or with ``accessKeysInPlainText``;
3. its source address, from a PROXY header if that is trusted, once for each connection;
4. anonymous.

Route queries from prepared answers pass one comparison: once a read was allowed on a connection, further reads are allowed until
the rules change. So a connection whose first read was signed need not sign the others.
"""

from collections.abc import Callable, Iterable

from replicated_namesrv.access.access_control import AccessControl
from replicated_namesrv.access.identities import NAME_CHARACTERS_MAX, NamedIdentity, refusal, shown
from replicated_namesrv.access.roles import READERS, REQUEST_ROLES
from replicated_namesrv.access.signatures import ACCESS_KEY
from replicated_namesrv.errors import BodyError
from replicated_namesrv.model import ChangeOrigin
from replicated_namesrv.routes.state import RouteInfoManager
from replicated_namesrv.server.connection import RemotingConnection
from replicated_namesrv.server.connection_access import ConnectionAccess
from replicated_namesrv.server.request import Answer, Request
from replicated_namesrv.wire.bodies import decode_queue_datas
from replicated_namesrv.wire.codes import RequestCode, ResponseCode
from replicated_namesrv.wire.properties import MAX_BODY_BYTES, string_to_properties

TARGET_FIELDS = ("brokerName", "topic", "namespace")
"""Header fields that name the object of a request. The first one that the request has is recorded."""


class AccessGuard:
    """Decides about the requests to one server."""

    def __init__(self, access: AccessControl, state: RouteInfoManager) -> None:
        self._access, self._state = access, state

    def refuse(self, request: Request) -> Answer | None:
        """The answer to a request that is not allowed; None: it is. Raises BodyError."""
        access, connection = self._access, request.connection
        code = request.header.code
        allowed = REQUEST_ROLES.get(code, frozenset())
        known = connection.access
        if known is None or known.rules is not access.rules:
            known = connection.access = ConnectionAccess(access.rules, connection.source_host, connection.certificate)
        if known.may_read and allowed is READERS:
            return None
        identity, by = self._caller(request, known)
        why = refusal(identity, allowed, self._brokers(request))
        if allowed is READERS:
            known.may_read = why is None or not access.enforces
        if allowed is not READERS and (why is None or not access.enforces):
            request.origin = connection.origin = ChangeOrigin(identity.name, known.address, access.node)
            if code == RequestCode.UPDATE_NAMESRV_CONFIG:
                request.target = _changed_settings(request.body)
        if why is None:
            return None
        fields = request.fields
        target = next((fields[name] for name in TARGET_FIELDS if name in fields), None)
        name = fields.get("brokerName")
        more = {"needs": sorted(allowed), "brokerName": name and shown(name)}
        access.refused(RequestCode(code).name, target, identity.name, by, known.address, why, more)
        return Answer(ResponseCode.NO_PERMISSION.value, f"no permission: {why} ({by})") if access.enforces else None

    def done(self, request: Request, code: int) -> None:
        """Record a request that changes settings; the other changes are recorded when they are applied."""
        if request.header.code == RequestCode.UPDATE_NAMESRV_CONFIG and request.origin is not None:
            self._access.requested("UPDATE_NAMESRV_CONFIG", request.target, request.origin, code)

    def _caller(self, request: Request, known: ConnectionAccess) -> tuple[NamedIdentity, str]:
        """The identity, and how it was recognised."""
        fields = request.fields
        key = fields.get(ACCESS_KEY)
        if known.is_certain or key is None:
            return known.identity, known.by
        if not (request.connection.is_encrypted or self._access.keys_in_plain_text):
            return known.identity, f"{known.by}, access key {key[:100]} without TLS"
        signer = known.rules.by_signature(fields, request.body)
        if signer is None:
            return known.identity, f"{known.by}, access key {key[:100]} unknown or wrongly signed"
        return signer, f"access key {key[:100]}"

    def _brokers(self, request: Request) -> Iterable[tuple[str | None, str | None, str | None]]:
        """For each broker that the request registers, renews or removes: its name, its address, and a name registered for the
        address, in whatever cluster."""
        if request.header.code == RequestCode.REGISTER_TOPIC_IN_NAMESRV:
            for announced, _ in decode_queue_datas(request.body) if request.body else ():
                yield announced, None, None
            return
        get = request.fields.get
        name, cluster_name, broker_addr = get("brokerName"), get("clusterName"), get("brokerAddr")
        yield name, broker_addr, None
        if cluster_name is None or broker_addr is None:
            return
        registered = self._state.registration(cluster_name, broker_addr)
        if registered is not None and registered.broker_name == name:
            return  # a renewal: no search through all brokers
        for held in self._state.registrations():
            if held.broker_addr == broker_addr:
                yield name, broker_addr, held.broker_name


def _changed_settings(body: bytes) -> str | None:
    """Names of the settings in the body of ``UPDATE_NAMESRV_CONFIG``, without their values; None: there are none."""
    if len(body) > MAX_BODY_BYTES:
        return None
    try:
        return shown(", ".join(sorted(string_to_properties(body))), NAME_CHARACTERS_MAX) or None
    except BodyError:
        return None


class GuardedAnswers:
    """Prepared answers for connections on which a read was allowed."""

    def __init__(self, access: AccessControl, answer: Callable[[RemotingConnection, bytes, int, list[bytes]], int]) -> None:
        self._access, self._answer = access, answer

    def answer(self, connection: RemotingConnection, data: bytes, start: int, pieces: list[bytes]) -> int:
        """Like ``RouteAnswers.answer``."""
        known = connection.access
        if known is None or not known.may_read or known.rules is not self._access.rules:
            return start
        return self._answer(connection, data, start, pieces)
