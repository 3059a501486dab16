"""Turns the lines about requests without permission in audit logs into a draft of an access file."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from replicated_namesrv.access.access_file import ANONYMOUS
from replicated_namesrv.access.roles import Role

CALLERS_MAX = 1_000
"""Callers in a draft. Those that come later are only counted."""
_KEY = re.compile(r"access key (\S+)")
_CERTIFICATE = re.compile(r"certificate (.+?)(?:, access key .*)?$")


@dataclass(slots=True)
class DraftCaller:
    """One caller, and what it sent without permission."""

    kind: str
    """``certificates``, ``access_keys`` or ``networks``."""
    value: str
    """Certificate rule, access key or address."""
    identity: str
    """Its identity at that time."""
    roles: set[Role] = field(default_factory=set)
    brokers: set[str] = field(default_factory=set)
    requests: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """A name for the identity."""
        common = re.search(r"CN=([^,]+)", self.value) if self.kind == "certificates" else None
        return re.sub(r"[^A-Za-z0-9_-]", "-", common[1] if common else self.value).strip("-") or "caller"


class AccessDraft:
    """Collects callers from lines."""

    def __init__(self) -> None:
        self.callers: dict[tuple[str, str], DraftCaller] = {}
        self.left_out = 0
        """Lines about callers beyond ``CALLERS_MAX``."""
        self.unreadable = 0
        """Lines that are no JSON objects."""

    def read(self, lines: Iterable[bytes]) -> None:
        """Add the lines of one log."""
        for line in lines:
            try:
                found = json.loads(line)
            except ValueError:
                found = None
            if not isinstance(found, dict):
                self.unreadable += bool(line.strip())
            elif found.get("event") in ("observed", "refused"):
                self._add(found)

    def _add(self, line: dict[str, object]) -> None:
        by, address = str(line.get("by", "")), str(line.get("address", "?"))
        key, certificate = _KEY.search(by), _CERTIFICATE.match(by)
        kind, value = (
            ("access_keys", key[1]) if key else ("certificates", certificate[1]) if certificate else ("networks", address)
        )
        caller = self.callers.get((kind, value))
        if caller is None:
            if len(self.callers) >= CALLERS_MAX:
                self.left_out += 1
                return
            caller = self.callers[kind, value] = DraftCaller(kind, value, str(line.get("identity", ANONYMOUS)))
        left_out = line.get("leftOut", 0)
        request = str(line.get("request"))
        caller.requests[request] = caller.requests.get(request, 0) + 1 + (left_out if isinstance(left_out, int) else 0)
        needs = line.get("needs")
        role = _least(needs if isinstance(needs, list) else [])
        caller.roles.add(role)
        if role is Role.BROKER and "brokerName" in line:
            caller.brokers.add(str(line["brokerName"]))

    def text(self) -> str:
        """The draft."""
        parts = ["# Draft made from audit logs. Remove callers that must not have these roles.\n"]
        names: dict[str, int] = {}
        for caller in self.callers.values():
            parts.append(_entry(caller, names))
        if self.left_out:
            parts.append(f"# {self.left_out} lines about more callers are left out.\n")
        return "\n".join(parts)


def _least(needs: list[object]) -> Role:
    """The role with the fewest rights that would allow a request."""
    return next((role for role in (Role.READ, Role.BROKER, Role.OPERATOR) if role in needs), Role.ADMIN)


def _entry(caller: DraftCaller, names: dict[str, int]) -> str:
    roles = set(caller.roles)
    if len(roles) > 1:
        roles.discard(Role.READ)
    if Role.ADMIN in roles:
        roles = {Role.ADMIN}
    names[caller.name] = names.get(caller.name, 0) + 1
    name = caller.name if names[caller.name] == 1 else f"{caller.name}-{names[caller.name]}"
    counts = ", ".join(f"{request} {count}" for request, count in sorted(caller.requests.items()))
    known = (
        "" if caller.identity == ANONYMOUS else f"# It is the identity {_plain(caller.identity)} already: add the roles there.\n"
    )
    lines = [f"# {_plain(counts)}", f"{known}[identities.{name}]", f"roles = {_list(roles)}"]
    if Role.BROKER in roles:
        patterns = sorted(name for name in caller.brokers if set("*?") & set(name))
        lines += [f"# left out, because it would be a pattern: {_plain(name)}" for name in patterns]
        lines.append(f"brokers = {_list(caller.brokers.difference(patterns))}")
    if caller.kind == "access_keys":
        lines.append(f"access_keys = {{ {_quoted(caller.value)} = [] }}  # fill in its secret")
    elif caller.kind == "networks":
        lines.append(f"networks = {_list([caller.value])}  # weak: everyone at this address")
    else:
        lines.append(f"certificates = {_list([caller.value])}")
    return "\n".join(lines) + "\n"


def _list(values: Iterable[str]) -> str:
    return f"[{', '.join(_quoted(value) for value in sorted(values))}]"


def _quoted(text: str) -> str:
    return json.dumps(_plain(text))


def _plain(text: str) -> str:
    """Without characters that TOML does not take."""
    return "".join(character if character.isprintable() else "?" for character in text)
