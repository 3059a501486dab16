"""TLS records that contain no data: changes of the key (KeyUpdate of TLS 1.3), which cost their receiver much more than their 27
bytes cost the sender."""

import ctypes
import socket
import ssl
import sys

POINTER_OFFSET = object.__basicsize__ + ctypes.sizeof(ctypes.c_void_p)
"""Offset of ``SSL *`` in CPython's object of a connection: after the head of the object and one pointer."""
UPDATE_REQUESTED = 1


class KeyUpdater:
    """A TLS client that can send any number of KeyUpdates at once."""

    def __init__(self, port: int, source: str) -> None:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(incoming, self._outgoing)
        self.socket = socket.create_connection(("127.0.0.1", port), 30, (source, 0))
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.socket.sendall(self._outgoing.read())
                incoming.write(self.socket.recv(65_536))
        self.socket.sendall(self._outgoing.read())

    def records(self, count: int) -> bytes:
        """``count`` KeyUpdates, each of which requests one in return."""
        library = ctypes.CDLL(sys.modules["_ssl"].__file__)
        connection = ctypes.c_void_p.from_address(id(self._tls._sslobj) + POINTER_OFFSET)  # type: ignore[attr-defined]  # private
        found = bytearray()
        for _ in range(count):
            assert library.SSL_key_update(connection, UPDATE_REQUESTED) == 1
            assert library.SSL_do_handshake(connection) == 1
            found += self._outgoing.read()
        return bytes(found)
