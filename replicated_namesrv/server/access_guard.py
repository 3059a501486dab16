"""AccessGuard: decides which requests of a connection are allowed (``accessPolicy=observe`` or ``enforce``).

The identity of a caller is the first of these that the access file knows:

1. its verified client certificate, once for each connection;
2. the access key that signed the request, over TLS or with ``accessKeysInPlainText``;
3. its source address, from a PROXY header if that is trusted, once for each connection;
4. anonymous.

Once a read was allowed on a connection, further reads are allowed until the rules change. So a connection whose first read was
signed need not sign the others, and route queries from prepared answers cost the same as without access control.

A change may wait: for its turn, for the leader, for the disk. With ``enforce`` it is checked again right before it is proposed
(``ChangeOrigin.check``), by the rules and registrations of that moment.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from replicated_namesrv.access.access_control import AccessControl, CheckedOrigin
from replicated_namesrv.access.identities import (
    NAME_CHARACTERS_MAX,
    AccessRules,
    NamedIdentity,
    PeerCertificate,
    is_limited,
    refusal,
    shown,
)
from replicated_namesrv.access.roles import READERS, REQUEST_ROLES, Role
from replicated_namesrv.access.signatures import ACCESS_KEY
from replicated_namesrv.errors import BodyError, NoPermissionError
from replicated_namesrv.model import ChangeOrigin
from replicated_namesrv.routes.state import RouteInfoManager
from replicated_namesrv.server.connection import Prepared, nothing_prepared
from replicated_namesrv.server.connection_access import ConnectionAccess
from replicated_namesrv.server.request import Answer, Request
from replicated_namesrv.wire.bodies import decode_queue_datas
from replicated_namesrv.wire.codes import RequestCode, ResponseCode
from replicated_namesrv.wire.properties import MAX_BODY_BYTES, string_to_properties

TARGET_FIELDS = ("brokerName", "topic", "namespace")
"""Header fields that name the object of a request. The audit log records the first one that the request has."""


class Claims(NamedTuple):
    """The brokers for which a request speaks."""

    names: Sequence[str | None]
    """Broker names in the request; None: the request gives none."""
    cluster_name: str | None = None
    broker_addr: str | None = None


class Admitted(NamedTuple):
    """A request that was allowed when it arrived."""

    code: int
    allowed: frozenset[Role]
    rules: AccessRules
    """The access rules in force when the request arrived."""
    identity: NamedIdentity
    by: str
    proof: tuple[str, bytes] | None
    """Access key, and the secret that signed the request. None: the connection identified the caller."""
    address: str
    certificate: PeerCertificate | None
    claims: Claims | None
    """The brokers for which the request speaks. None: the identity is not limited to its own brokers."""


class AccessGuard:
    """Decides about the requests to one server."""

    def __init__(self, access: AccessControl, state: RouteInfoManager) -> None:
        self._access, self._state = access, state
        self.prepared: Prepared = nothing_prepared
        """Answers prepared queries; given to each connection on which a read was allowed."""

    def refuse(self, request: Request) -> Answer | None:
        """The answer that refuses a request; None: the request is allowed. Raises BodyError."""
        access, connection = self._access, request.connection
        code = request.header.code
        allowed = REQUEST_ROLES.get(code, frozenset())
        known = connection.access
        if known is None or known.rules is not access.rules:
            known = connection.access = ConnectionAccess(access.rules, connection.source_host, connection.certificate)
            connection.prepared = nothing_prepared
        if allowed is READERS and connection.prepared is not nothing_prepared:
            return None
        identity, by, proof = self._caller(request, known)
        claims = _claims_of(request) if identity.may(allowed) and is_limited(identity, allowed) else None
        why = refusal(identity, allowed, self._brokers(claims))
        if why is None or not access.enforces:
            if allowed is READERS:
                connection.prepared = self.prepared
            else:
                request.origin = connection.origin = self._origin(
                    Admitted(code, allowed, access.rules, identity, by, proof, known.address, known.certificate, claims)
                )
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

    def _origin(self, admitted: Admitted) -> ChangeOrigin:
        """The caller of a change. With ``enforce``, the caller's permission is checked again after the request has waited."""
        fields = admitted.identity.name, admitted.address, self._access.node
        if not self._access.enforces:
            return ChangeOrigin(*fields)
        origin = CheckedOrigin(*fields)
        origin.recheck = partial(self._check_again, admitted)
        return origin

    def _check_again(self, admitted: Admitted) -> None:
        """Raises NoPermissionError if the request is no longer allowed, because access file or registrations have changed."""
        access, allowed = self._access, admitted.allowed
        identity, by = admitted.identity, admitted.by
        if admitted.rules is not access.rules:
            now = ConnectionAccess(access.rules, admitted.address, admitted.certificate)
            signer = None if now.is_certain or admitted.proof is None else access.rules.by_key(*admitted.proof)
            identity, by = (now.identity, now.by) if signer is None else (signer, by)
        why = refusal(identity, allowed, self._brokers(admitted.claims))
        if why is None and admitted.claims is None and is_limited(identity, allowed):
            why = f"{identity.name} is limited to its brokers by the new access file"
        if why is None:
            return
        name = None if admitted.claims is None else next(iter(admitted.claims.names), None)
        more = {"needs": sorted(allowed), "brokerName": name and shown(name), "hadWaited": True}
        access.refused(RequestCode(admitted.code).name, name, identity.name, by, admitted.address, why, more)
        raise NoPermissionError(f"no permission: {why} ({by}); this changed while the request waited")

    def _caller(self, request: Request, known: ConnectionAccess) -> tuple[NamedIdentity, str, tuple[str, bytes] | None]:
        """The identity of the caller, how it was recognised, and the access key and secret if the caller was recognised by
        these.
        """
        fields = request.fields
        key = fields.get(ACCESS_KEY)
        if known.is_certain or key is None:
            return known.identity, known.by, None
        if not (request.connection.is_encrypted or self._access.keys_in_plain_text):
            return known.identity, f"{known.by}, access key {key[:100]} without TLS", None
        signer = known.rules.by_signature(fields, request.body)
        if signer is None:
            return known.identity, f"{known.by}, access key {key[:100]} unknown or wrongly signed", None
        return signer[0], f"access key {key[:100]}", (key, signer[1])

    def _brokers(self, claims: Claims | None) -> Iterable[tuple[str | None, str | None, str | None]]:
        """For each broker that a request registers, renews or removes: its name, its address, and a broker name registered for
        this address in any cluster."""
        if claims is None:
            return
        for name in claims.names:
            yield name, claims.broker_addr, None
        if claims.cluster_name is None or claims.broker_addr is None:
            return
        (name,) = claims.names
        registered = self._state.registration(claims.cluster_name, claims.broker_addr)
        if registered is not None and registered.broker_name == name:
            return  # a renewal
        for held in self._state.registrations_at(claims.broker_addr):
            yield name, claims.broker_addr, held.broker_name


def _claims_of(request: Request) -> Claims:
    """The brokers for which a request speaks. Raises BodyError."""
    if request.header.code == RequestCode.REGISTER_TOPIC_IN_NAMESRV:
        return Claims([announced for announced, _ in decode_queue_datas(request.body)] if request.body else [])
    get = request.fields.get
    return Claims((get("brokerName"),), get("clusterName"), get("brokerAddr"))


def _changed_settings(body: bytes) -> str | None:
    """Names of the settings in the body of ``UPDATE_NAMESRV_CONFIG``, without their values; None: no setting can be read
    there.
    """
    if len(body) > MAX_BODY_BYTES:
        return None
    try:
        return shown(", ".join(sorted(string_to_properties(body))), NAME_CHARACTERS_MAX) or None
    except BodyError:
        return None
