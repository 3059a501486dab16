"""OtherNodes: asks the admin ports of the other nodes, for pages that show all nodes.

The hosts are those of the present members (CP), or come from ``nameServerAddresses`` (AP). Members report their admin ports.
Otherwise, the difference between a node's admin port and its listed port is assumed to be the same as here. Nodes are asked on
request only. A slow node does not delay an answer: the last answer is kept with its age. A path is requested only if this node
has checked that the caller may request it. Requests carry the caller's ``Authorization``, unless ``nameServerAddresses`` was
changed at run time: a caller who may change settings must not direct the token of an administrator to another host. The
addresses of members are safe, because only administrators can change members. A caller's certificate cannot be passed on; this
node presents its own one (``admin_client_context``).
"""

import asyncio
import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from replicated_namesrv.server.tls import TlsContexts, admin_client_context
from replicated_namesrv.settings import Settings

WAIT_S = 0.25
"""How long an answer about all nodes waits for the answers of the others."""
TIMEOUT_S = 1.0
"""A node that has not answered for this long is reported as not answering."""
READY_WAIT_MS = 500
"""Time limit, in another node, for the check of its readiness."""
VIEW_TIMEOUT_S = 5.0
ANSWER_BYTES_MAX = 16 << 20
NODES_MAX = 16
"""Maximum number of name servers that are asked. Further ones are left out."""
NAME_CHARACTERS = 200
"""Maximum length of a node's name in a notification: any program can listen at its address."""
FRESH_S = 0.3
"""Maximum age at which an answer is used again, so that several open pages cost no more than one."""


class NodeAnswerError(Exception):
    """A node gave no usable answer. ``status`` is the HTTP status if the node refused."""

    def __init__(self, reason: str, status: int | None = None) -> None:
        super().__init__(reason)
        self.status = status


class OtherNode:
    """One other node and its last answer."""

    def __init__(self, name: str | None, address: str) -> None:
        self.listed = name, address
        self.name = name
        """Node id. None until an independent node has answered."""
        self.address = address
        self.status: dict[str, Any] | None = None
        self.answered_s: float | None = None
        """Time at which the newest received status was requested, on the monotonic clock."""
        self.error: NodeAnswerError | None = None
        self.failing_since_s: float | None = None
        self.is_lost = False
        """Whether the node answered before, and its failure was notified."""
        self.task: asyncio.Task[None] | None = None
        self.contents: dict[str, Any] | None = None
        self.contents_of: tuple[int, int] | None = None
        """The process and the revision to which ``contents`` belongs."""

    @property
    def shown_name(self) -> str:
        """Node id of the node, or its address while the id is unknown."""
        return self.name or self.address


def addresses(
    settings: Settings, members: Sequence[Mapping[str, Any]] | None, admin_port: int, remoting_port: int, advertised: str
) -> list[tuple[str | None, str]]:
    """(node id if known, admin address) of the other nodes. ``members``: the rows of ``/v1/members``; None: this node belongs to
    no cluster."""
    if members is not None:
        peers = {row["nodeId"]: row for row in members}
        own = peers.pop(settings.node_id, None)  # None: this node was removed
        distance = admin_port - _port("" if own is None else own["peerAddress"])
        # a node that joins may know the name of a member before its address
        found: list[tuple[str | None, str]] = [
            (name, _admin_of(row, distance)) for name, row in peers.items() if own and _port(row["peerAddress"])
        ]
    else:
        listed = [address.strip() for address in settings.name_server_addresses.split(";") if address.strip()]
        distance = admin_port - remoting_port
        found = [(None, _moved(address, distance)) for address in listed if address != advertised]
    return found[:NODES_MAX]


def _port(address: str) -> int:
    text = address.rpartition(":")[2]
    return int(text) if text.isascii() and text.isdigit() else 0


def _admin_of(row: Mapping[str, Any], distance: int) -> str:
    """The admin address of a member. Its host is that of the peer address, which administrators have given. The host that the
    member reports may be an address without a certificate, or that of another machine by now."""
    told = _port(row["adminAddress"] or "")
    return f"{row['peerAddress'].rpartition(':')[0]}:{told}" if told else _moved(row["peerAddress"], distance)


def _moved(address: str, distance: int) -> str:
    return f"{address.rpartition(':')[0]}:{_port(address) + distance}"


class TlsToOthers:
    """The context for connections to the other nodes; a new one when the files of the own port were reloaded."""

    def __init__(self, settings: Settings, own: TlsContexts) -> None:
        self._settings, self._own = settings, own
        self._of, self._context = own.context, admin_client_context(settings)

    @property
    def context(self) -> ssl.SSLContext:
        """The context for a new connection."""
        if self._of is not self._own.context:
            self._of = self._own.context
            with suppress(OSError):  # the files have changed again, and will be reloaded again
                self._context = admin_client_context(self._settings)
        return self._context


class OtherNodes:
    """The other nodes of this deployment."""

    def __init__(self) -> None:
        self.nodes: list[OtherNode] = []
        self._find: Callable[[], list[tuple[str | None, str]]] = list
        self._tls: TlsToOthers | None = None
        self._sends_tokens = True
        self._session: aiohttp.ClientSession | None = None
        self.on_change: Callable[[str, float, str | None], None] | None = None
        """Called when a node is lost, and when it answers again. Arguments: the node's name, the seconds since its last answer,
        and the reason of the loss (None: it answers again)."""

    def begin(
        self,
        find: Callable[[], list[tuple[str | None, str]]],
        tls: TlsToOthers | None,
        sends_tokens: bool = True,
    ) -> None:
        """``find``: the names and addresses of the nodes at this moment. ``tls``: None for plain HTTP. ``sends_tokens``: whether
        the addresses are trusted with tokens of callers."""
        self._find, self._tls, self._sends_tokens = find, tls, sends_tokens

    def _update(self) -> None:
        """Update the list of nodes, because members may have been added, moved or removed."""
        known = {node.listed: node for node in self.nodes}
        self.nodes = [known.pop(listed) if listed in known else OtherNode(*listed) for listed in self._find()]
        for gone in known.values():
            if gone.task is not None:
                gone.task.cancel()

    def trusted_addresses(self) -> list[str]:
        """The admin addresses of the nodes; empty if they are not trusted with tokens of callers."""
        return [address for _, address in self._find()] if self._sends_tokens else []

    async def stop(self) -> None:
        """Close all connections."""
        for node in self.nodes:
            if node.task is not None:
                node.task.cancel()
                with suppress(asyncio.CancelledError):
                    await node.task
        if self._session is not None:
            await self._session.close()

    async def look(self, authorization: str | None) -> None:
        """Request the status of every node whose last answer is too old. Return when all have answered, or after ``WAIT_S``."""
        self._update()
        now = monotonic()
        for node in self.nodes:
            if node.task is None and (node.answered_s is None or now - node.answered_s > FRESH_S):
                node.task = asyncio.ensure_future(self._look_at(node, authorization))
        tasks = [node.task for node in self.nodes if node.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=WAIT_S)

    async def _look_at(self, node: OtherNode, authorization: str | None) -> None:
        asked_s = monotonic()
        try:
            status = await self.ask(node, f"/v1/status?waitMs={READY_WAIT_MS}", authorization, TIMEOUT_S)
            name = str(status["nodeId"])
            if node.listed[0] not in (None, name):
                raise NodeAnswerError(f"node {name[:NAME_CHARACTERS]} answers at this address")
            node.name = name
            if node.is_lost:
                self._notify(node, None)
            node.status, node.answered_s, node.error, node.failing_since_s = status, asked_s, None, None
        except (NodeAnswerError, KeyError, TypeError) as error:
            node.error = error if isinstance(error, NodeAnswerError) else NodeAnswerError("not an answer of a name server")
            self._judge(node, node.error, failed_before=node.failing_since_s is not None)
            node.failing_since_s = node.failing_since_s or asked_s
        finally:
            node.task = None

    def _judge(self, node: OtherNode, error: NodeAnswerError, failed_before: bool) -> None:
        """Notify that a node is lost. One missing answer is no loss: this node may have been paused. A refusal is an answer."""
        if failed_before and error.status is None and node.answered_s is not None and not node.is_lost:
            self._notify(node, str(error))

    def _notify(self, node: OtherNode, why: str | None) -> None:
        node.is_lost = why is not None
        if self.on_change is not None and node.answered_s is not None:
            self.on_change(node.shown_name[:NAME_CHARACTERS], monotonic() - node.answered_s, why)

    async def ask(
        self, node: OtherNode, path: str, authorization: str | None, timeout_s: float = VIEW_TIMEOUT_S
    ) -> dict[str, Any]:
        """The JSON object with which ``node`` answers a request for ``path``. Raises NodeAnswerError."""
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit_per_host=4))
        scheme, tls = ("http", True) if self._tls is None else ("https", self._tls.context)
        headers = {} if authorization is None or not self._sends_tokens else {"Authorization": authorization}
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._session.get(
                    f"{scheme}://{node.address}{path}", headers=headers, allow_redirects=False, ssl=tls
                ) as response,
            ):
                body = await _limited(response.content)
                if response.status != 200:
                    raise NodeAnswerError(_error_in(body) or f"HTTP status {response.status}", response.status)
                answer = orjson.loads(body)
        except TimeoutError:
            raise NodeAnswerError(f"no answer within {timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as cause:
            raise NodeAnswerError(_reason(cause)) from None
        if not isinstance(answer, dict):
            raise NodeAnswerError("not an answer of a name server")
        return answer

    def named(self, name: str) -> OtherNode | None:
        """The node with this id or address."""
        return next((node for node in self.nodes if name in (node.name, node.address)), None)


async def _limited(content: aiohttp.StreamReader) -> bytes:
    body = bytearray()
    while part := await content.readany():
        body += part
        if len(body) > ANSWER_BYTES_MAX:
            raise NodeAnswerError(f"the answer has more than {ANSWER_BYTES_MAX} bytes")
    return bytes(body)


def _error_in(body: bytes) -> str | None:
    try:
        found: Mapping[str, Any] = orjson.loads(body)
        return str(found["error"])
    except (ValueError, KeyError, TypeError):
        return None


def _reason(cause: Exception) -> str:
    if isinstance(cause, aiohttp.ClientConnectorCertificateError):
        return "its certificate is not trusted"
    if isinstance(cause, aiohttp.ClientConnectorError):
        number = cause.os_error.errno
        return os.strerror(number) if number and number > 0 else cause.os_error.strerror or str(cause.os_error)
    return str(cause) or type(cause).__name__


OTHER_NODES = web.AppKey("other_nodes", OtherNodes)
