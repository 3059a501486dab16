"""PROXY protocol versions 1 and 2 (HAProxy's ``proxy-protocol.txt``), as RocketMQ 5.1.4 and later accept it at the start of a
connection.

Only the source address is used, for logs. The first 12 bytes show whether there is a header; every remoting frame and every TLS
greeting is at least 12 bytes long. The size of the header is bounded: 107 bytes in version 1, 65,551 in version 2.
"""

import ipaddress
from struct import Struct
from typing import Final, NamedTuple

from replicated_namesrv.errors import FrameError
from replicated_namesrv.wire.frame import FIRST_JUDGED_BYTES, Buffer

V1_MAX_BYTES: Final = 107
"""Maximum length of a version 1 header, with its line end."""
_V1_PREFIX: Final = b"PROXY"
_V2_SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_V2_FIXED = Struct(">12sBBH")
_V2_ADDRESS_BYTES = {0x1: 12, 0x2: 36}


class ProxyHeader(NamedTuple):
    """The result of looking for a PROXY header."""

    size: int
    """Number of bytes to skip. 0: there is no header."""
    source: str | None
    """host:port of the real peer, an IPv6 host in brackets. None: unknown, or the proxy itself is the peer."""


NO_PROXY_HEADER: Final = ProxyHeader(0, None)


def parse_proxy_header(buffer: Buffer, start: int, end: int) -> ProxyHeader | None:
    """The PROXY header at the beginning of a connection; None while more bytes are needed.

    Raises FrameError if the bytes begin like a header and are not a valid one.
    """
    if end - start < FIRST_JUDGED_BYTES:
        return None
    head = bytes(buffer[start : start + FIRST_JUDGED_BYTES])
    if head == _V2_SIGNATURE:
        return _parse_v2(buffer, start, end)
    if head.startswith(_V1_PREFIX):
        return _parse_v1(bytes(buffer[start : min(end, start + V1_MAX_BYTES)]))
    return NO_PROXY_HEADER


def _parse_v1(data: bytes) -> ProxyHeader | None:
    line, line_end, _ = data.partition(b"\r\n")
    if not line_end:
        if len(data) >= V1_MAX_BYTES:
            raise FrameError(f"PROXY header without a line end within {V1_MAX_BYTES} bytes")
        return None
    size = len(line) + 2
    parts = line.split(b" ")
    if parts[:2] == [b"PROXY", b"UNKNOWN"]:
        return ProxyHeader(size, None)
    if len(parts) != 6 or parts[0] != b"PROXY" or parts[1] not in (b"TCP4", b"TCP6"):
        raise FrameError(f"PROXY header is not 'PROXY TCP4|TCP6|UNKNOWN …': {line[:60]!r}")
    version = 4 if parts[1] == b"TCP4" else 6
    _v1_address(parts[3], parts[5], version)
    return ProxyHeader(size, _v1_address(parts[2], parts[4], version))


def _v1_address(host: bytes, port: bytes, version: int) -> str:
    try:
        address = ipaddress.ip_address(host.decode("ascii"))
    except ValueError:
        raise FrameError(f"PROXY header: {host!r} is not an IP address") from None
    if address.version != version or not port.isdigit() or len(port) > 5 or int(port) > 65_535:
        raise FrameError(f"PROXY header: {host!r} and {port!r} are not an address and port of IPv{version}")
    return f"{address}:{int(port)}" if version == 4 else f"[{address}]:{int(port)}"


def _parse_v2(buffer: Buffer, start: int, end: int) -> ProxyHeader | None:
    if end - start < _V2_FIXED.size:
        return None
    _, version_command, family_transport, length = _V2_FIXED.unpack_from(buffer, start)
    version, command = version_command >> 4, version_command & 0xF
    family = family_transport >> 4
    if version != 2 or command > 1 or family > 3 or family_transport & 0xF > 2:
        raise FrameError(f"PROXY header: version and command {version_command:#x}, family {family_transport:#x} are unknown")
    address_bytes = _V2_ADDRESS_BYTES.get(family, 0) if command == 1 else 0
    if length < address_bytes:
        raise FrameError(f"PROXY header: {length} bytes of addresses where {address_bytes} are needed")
    size = _V2_FIXED.size + length
    if end - start < size:
        return None
    if not address_bytes:
        return ProxyHeader(size, None)
    addresses = bytes(buffer[start + _V2_FIXED.size : start + _V2_FIXED.size + address_bytes])
    host_bytes = 4 if family == 1 else 16
    host = ipaddress.ip_address(addresses[:host_bytes])
    port = int.from_bytes(addresses[2 * host_bytes : 2 * host_bytes + 2])
    return ProxyHeader(size, f"{host}:{port}" if family == 1 else f"[{host}]:{port}")
