"""TLS between peers: the files of a node, and the contexts that are made of them."""

import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from replicated_namesrv.raft.raft_errors import TransportError


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files for mutual TLS. To renew them, replace them in place: they are checked before every handshake."""

    certificate: Path
    key: Path
    authority: Path
    """File with the authorities that may sign certificates of peers."""
    password: str = field(default="", repr=False)
    """Password of the private key."""


class Tls:
    """SSL contexts of the files of a node.

    If the files change, ``refresh`` makes new contexts: a context never forgets an authority, and after a failed load a context
    may hold a part of the old files and a part of the new ones.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._seen: tuple[tuple[int, int, int], ...] = ()
        self.refresh()
        self.server = self._load(ssl.PROTOCOL_TLS_SERVER)
        """The context for listening; each handshake continues with the newest context."""
        self.server.sni_callback = self._choose

    def _load(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        if protocol == ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 0  # no session tickets, because a resumed session would not show its certificate again
        context.load_cert_chain(self._files.certificate, self._files.key, password=self._files.password)
        context.load_verify_locations(self._files.authority)
        return context

    def _choose(self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._newest_server

    def refresh(self) -> None:
        """Load the files if they have changed. TransportError if they cannot be used."""
        files = self._files
        try:
            states = [os.stat(path) for path in (files.certificate, files.key, files.authority)]
            seen = tuple((state.st_mtime_ns, state.st_ino, state.st_size) for state in states)
            if seen == self._seen:
                return
            server, client = self._load(ssl.PROTOCOL_TLS_SERVER), self._load(ssl.PROTOCOL_TLS_CLIENT)
        except (OSError, ssl.SSLError) as error:
            raise TransportError(f"TLS files {files.certificate}, {files.key}, {files.authority}: {error}") from None
        self._seen, self._newest_server, self.client = seen, server, client

    def nameless_client(self) -> ssl.SSLContext:
        """A context for a server whose certificate may have any name. Its authority is checked."""
        context = self._load(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        return context

    def check(self, node_id: str) -> None:
        """Make a handshake of ``node_id`` with itself, in memory. ssl.SSLError: its peers would refuse its certificate, too."""
        client_side, server_side = (ssl.MemoryBIO(), ssl.MemoryBIO()), (ssl.MemoryBIO(), ssl.MemoryBIO())
        client = self.client.wrap_bio(*client_side, server_side=False, server_hostname=node_id)
        server = self._newest_server.wrap_bio(*server_side, server_side=True)
        waiting = [client, server]
        while waiting:
            for end in tuple(waiting):
                try:
                    end.do_handshake()
                    waiting.remove(end)
                except ssl.SSLWantReadError:
                    pass
                server_side[0].write(client_side[1].read())
                client_side[0].write(server_side[1].read())
