"""Address lists for ``/rocketmq/nsaddr``, by which brokers and clients without a configured list find the name servers.

RocketMQ's ``DefaultTopAddressing`` reads the first line of the answer, ``host:port;host:port``. ``nsaddr-UNIT`` has the list
of a unit. With ``zoneAwareAddresses``, the list has the nodes of one zone.
"""

import re
import socket
from ipaddress import ip_address

from replicated_namesrv.errors import SettingError

WILDCARD_HOSTS = frozenset({"0.0.0.0", "::", ""})
_HOST = re.compile(r"[\w.:%-]+")
_ZONE = re.compile(r"[A-Za-z0-9._-]{0,100}")
_MEMBER_NAME = re.compile(r"(?!\.{1,2}$)[^\s,=]{1,200}")
_ENTRY = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:;,=\[\]]+):([0-9]{1,5})")


def advertised_host(bind_host: str) -> str:
    """A host under which others reach an address bound to ``bind_host``: itself, or this machine's address for a wildcard."""
    if bind_host not in WILDCARD_HOSTS:
        return bind_host
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as chooser:
            chooser.connect(("192.0.2.1", 9))  # a documentation address: connecting only selects a route, and no packet is sent
            return str(chooser.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def is_numeric(host: str) -> bool:
    """Whether ``host`` is an IP address, so that it is not looked up."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def is_host(text: str) -> bool:
    """Whether ``text`` can be a host name or address. For other texts, connecting can raise ValueError instead of OSError."""
    try:
        text.encode("idna")
    except UnicodeError:  # a part between dots is empty, or longer than 63 characters
        return False
    return _HOST.fullmatch(text) is not None


def checked_list(key: str, text: str) -> str:
    """``text`` without blanks, as host:port;host:port. Raises SettingError with the malformed entry."""
    entries = [entry.strip() for entry in text.split(";") if entry.strip()]
    for entry in entries:
        match = _ENTRY.fullmatch(entry)
        if match is None or not 0 < int(match.group(1)) <= 65535:
            raise SettingError(f"{key}={text}: '{entry}' is not HOST:PORT; give HOST:PORT;HOST:PORT")
    return ";".join(entries)


def is_entry(text: str) -> bool:
    """Whether ``text`` is HOST:PORT."""
    match = _ENTRY.fullmatch(text)
    return match is not None and text.isascii() and 0 < int(match.group(1)) <= 65535


def is_member_name(text: str) -> bool:
    """Whether ``text`` can be the name of a member in ``join=NAME=HOST:PORT,…`` and in the path of a request. URLs lose the
    segments ``.`` and ``..``."""
    return _MEMBER_NAME.fullmatch(text) is not None and text.isprintable()


def is_zone(text: str) -> bool:
    """Whether ``text`` can be the zone of a node."""
    return _ZONE.fullmatch(text) is not None


def check_change(name: str, text: str) -> None:
    """Check the value of the setting ``name``, if it has address lists. Raises ValueError."""
    try:
        if name == "nameServerAddresses":
            checked_list(name, text)
        if name == "unitNameServerAddresses":
            unit_lists(text)
    except SettingError as cause:
        raise ValueError(str(cause)) from None


def checked_zone(zone: str) -> str:
    """The value of the setting ``zone``. Raises SettingError."""
    if not is_zone(zone):
        raise SettingError(f"zone={zone[:200]}: give at most 100 letters, digits, '.', '_' and '-'")
    return zone


def unit_lists(text: str) -> dict[str, str]:
    """Address list by unit, from ``unit=host:port;host:port,unit=…``. Raises SettingError."""
    lists: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        unit, equals, addresses = part.partition("=")
        if not equals or not unit.strip():
            raise SettingError(
                f"unitNameServerAddresses={text}: '{part}' is not UNIT=HOST:PORT;HOST:PORT; give for example u1=10.0.0.1:9876"
            )
        lists[unit.strip()] = checked_list("unitNameServerAddresses", addresses)
    return lists
