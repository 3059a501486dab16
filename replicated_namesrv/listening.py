"""Loopback addresses, comparison of hosts, and closing a listening socket without losing accepted connections."""

import asyncio
import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach ``host``."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def is_same_host(one: str, other: str) -> bool:
    """Whether two hosts are the same machine, as far as this is known without DNS: the name of loopback is each of its usual
    addresses, and an IP address can be written in several ways."""
    return not _meanings(one).isdisjoint(_meanings(other))


def _meanings(host: str) -> set[str]:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return {"127.0.0.1", "::1"} if is_loopback(host.lower()) else {host.lower()}
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return {str(mapped or address)}


def stop_listening(server: asyncio.AbstractServer) -> None:
    """Close ``server`` one turn of the event loop later; it accepts nothing from now on.

    asyncio accepts a socket in one turn and makes its transport in the next. If the server is closed in between, the transport
    cannot be made, and nobody closes the socket (CPython, ``BaseSelectorEventLoop._accept_connection2``). A connection that was
    accepted before this call is therefore still handed to its protocol, which has to close it.
    """
    loop = asyncio.get_running_loop()
    for listening in getattr(server, "sockets", ()):
        loop.remove_reader(listening)
    loop.call_soon(server.close)
