"""Turns the lines about requests without permission in audit logs into a draft of an access file."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from replicated_namesrv.access.access_file import ANONYMOUS, AccessFileError, parse_access_file
from replicated_namesrv.access.identities import CUT_OFF
from replicated_namesrv.access.roles import Role

CLAIMED = "claimed"
CALLERS_MAX = 1_000
"""Maximum number of callers in a draft. Callers after that are only counted."""
_CERTIFICATE = re.compile(r"certificate (.+?)(?:(?<!\\), access key .*)?", re.DOTALL)
"""A caller recognised by its certificate. In the subject, each comma within a value has a backslash."""
_KEY = re.compile(r"access key (.*)", re.DOTALL)
_CLAIMED_KEY = re.compile(r"\w+, access key (.*?) (?:unknown or wrongly signed|without TLS)", re.DOTALL)
"""An access key that the caller claims without proof: unknown, wrongly signed, or sent without TLS."""


@dataclass(slots=True)
class DraftCaller:
    """One caller, and what it sent without permission."""

    kind: str
    """``certificates``, ``access_keys``, ``networks``, or ``CLAIMED`` for an access key that is not verified."""
    value: str
    """Certificate rule, access key or address."""
    identity: str
    """The identity that the caller had when the line was written."""
    roles: set[Role] = field(default_factory=set)
    brokers: set[str] = field(default_factory=set)
    requests: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """A name for the new identity."""
        common = re.search(r"CN=([^,]+)", self.value) if self.kind == "certificates" else None
        return re.sub(r"[^A-Za-z0-9_-]", "-", common[1] if common else self.value).strip("-") or "caller"


class AccessDraft:
    """Collects callers from lines of audit logs."""

    def __init__(self) -> None:
        self.callers: dict[tuple[str, str], DraftCaller] = {}
        self.left_out = 0
        """Number of lines about callers beyond ``CALLERS_MAX``."""
        self.unreadable = 0
        """Number of lines that are not JSON objects."""

    def read(self, lines: Iterable[bytes]) -> None:
        """Add the lines of one log."""
        for line in lines:
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                found = None
            if not isinstance(found, dict):
                self.unreadable += bool(line.strip())
            elif found.get("event") in ("observed", "refused"):
                self._add(found)

    def _add(self, line: dict[str, object]) -> None:
        by, address = str(line.get("by", "")), str(line.get("address", "?"))
        kinds = (("certificates", _CERTIFICATE), ("access_keys", _KEY), (CLAIMED, _CLAIMED_KEY))
        found = ((kind, match[1]) for kind, pattern in kinds if (match := pattern.fullmatch(by)))
        kind, value = next(found, ("networks", address))
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
        """The draft as the text of an access file."""
        parts = ["# Draft made from audit logs. Remove callers that must not have these roles.\n"]
        names = {ANONYMOUS}
        for caller in self.callers.values():
            parts.append(_entry(caller, names))
        if self.left_out:
            parts.append(f"# {self.left_out} lines about further callers are left out.\n")
        return "\n".join(parts)


def _least(needs: list[object]) -> Role:
    """The role with the fewest rights that would allow a request."""
    return next((role for role in (Role.READ, Role.BROKER, Role.OPERATOR) if role in needs), Role.ADMIN)


def _entry(caller: DraftCaller, names: set[str]) -> str:
    """The entry for a caller; commented out if it is not certain who the caller is, or if the entry is not complete. ``names``:
    names already in use.
    """
    roles = set(caller.roles)
    if len(roles) > 1:
        roles.discard(Role.READ)
    if Role.ADMIN in roles:
        roles = {Role.ADMIN}
    name, number = caller.name, 1
    while name in names:
        number += 1
        name = f"{caller.name}-{number}"
    names.add(name)
    counts = ", ".join(f"{request} {count}" for request, count in sorted(caller.requests.items()))
    notes = [f"# {_plain(counts)}"]
    if caller.identity != ANONYMOUS:
        notes.append(f"# This caller is already the identity {_plain(caller.identity)}: add the roles there.")
    lines = [f"[identities.{name}]", f"roles = {_list(roles)}"]
    if Role.BROKER in roles:
        inexact = sorted(filter(_is_inexact, caller.brokers))
        notes += [f"# left out, because it would be a pattern, or is cut off: {_plain(name)}" for name in inexact]
        lines.append(f"brokers = {_list(caller.brokers.difference(inexact))}")
    if caller.kind == "networks":
        lines.append(f"networks = {_list([caller.value])}  # weak: matches every caller at this address")
    elif caller.kind == "certificates":
        lines.append(f"certificates = {_list([caller.value])}")
    else:
        lines.append(f"access_keys = {{ {_quoted(caller.value)} = [] }}  # fill in its secret")
    why = _why_not(caller, "\n".join(lines))
    if why is not None:
        notes.append(f"# Not in force: {_plain(why)}")
        lines = [f"# {line}" for line in lines]
    return "\n".join([*notes, *lines]) + "\n"


def _why_not(caller: DraftCaller, text: str) -> str | None:
    """Why the operator has to decide about the entry of a caller; None: it can be used as it is."""
    if caller.kind == CLAIMED:
        return "the caller named this access key without proof; check that the key is its own"
    if caller.kind == "certificates" and _is_inexact(caller.value):
        return "the subject would be a pattern, or is cut off; give a rule that names this caller alone"
    try:
        parse_access_file("draft", text.encode())
    except AccessFileError as error:
        return str(error).removeprefix("access file draft: ")
    return None


def _is_inexact(name: str) -> bool:
    """Whether a name from the log, used as a pattern, could match other names too (it has ``*`` or ``?``) or matches nothing (it
    was cut off).
    """
    plain = _plain(name)
    return bool({"*", "?"} & set(plain)) or plain.endswith(CUT_OFF)


def _list(values: Iterable[str]) -> str:
    return f"[{', '.join(_quoted(value) for value in sorted(values))}]"


def _quoted(text: str) -> str:
    return json.dumps(_plain(text), ensure_ascii=False)


def _plain(text: str) -> str:
    """The text without characters that TOML does not allow."""
    return "".join(character if character.isprintable() else "?" for character in text)
