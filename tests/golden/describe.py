"""Messages, entries and incarnations as text.

An entry is named ``index@term``. An incarnation is named after its node with a letter: ``n3b`` is the second disk of ``n3``.
"""

import re
from collections.abc import Sequence

from replicated_namesrv.raft.identity import STATES
from replicated_namesrv.raft.members import MEMBERS_ENTRY, Kind, unpack_members
from replicated_namesrv.raft.payloads import JOIN, NO_OP, PROPOSALS, unpack_entries, unpack_groups, unpack_join
from replicated_namesrv.raft.raft_errors import MalformedError
from replicated_namesrv.raft.raft_messages import (
    Append,
    AppendReply,
    ApplicationData,
    Confirmation,
    ConfirmationRequest,
    DigestReport,
    Forward,
    Greeting,
    Introduction,
    MemberHint,
    Message,
    SnapshotAck,
    SnapshotChunk,
)
from replicated_namesrv.raft.standing import Standing

ROUTINE = (
    Greeting, Introduction, MemberHint, AppendReply, SnapshotAck, DigestReport, ApplicationData,
    ConfirmationRequest, Confirmation,
)  # fmt: skip  # items grouped by line
"""Kinds of messages whose repetitions are left out."""
_HIDDEN = ("source", "destination", "sequence")
_LONG_NUMBER = re.compile(r"\d{12,}")


class Names:
    """Short names for the large numbers that stand for incarnations and processes."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {0: "none"}
        self._counts: dict[str, int] = {}
        self.newest: dict[str, int] = {}
        """Node -> the incarnation seen last."""

    def note(self, node: str, incarnation: int) -> None:
        """Note that ``node`` has this incarnation now."""
        self.newest[node] = incarnation
        self.of(incarnation, node)

    def of(self, number: int, node: str) -> str:
        """The name of an incarnation."""
        if number not in self._names:
            self._counts[node] = self._counts.get(node, 0) + 1
            self._names[number] = node + chr(ord("a") + self._counts[node] - 1)
        return self._names[number]

    def process(self, number: int, node: str) -> str:
        """The name of a process."""
        if number not in self._names:
            key = node + " process"
            self._counts[key] = self._counts.get(key, 0) + 1
            self._names[number] = f"{node}p{self._counts[key]}"
        return self._names[number]

    def replaced(self, text: str) -> str:
        """``text`` with names instead of numbers."""
        return _LONG_NUMBER.sub(lambda found: self._names.get(int(found[0]), found[0]), text)


def is_routine(message: Message) -> bool:
    """Whether repetitions of the message are left out, for example of heartbeats, their answers and introductions."""
    if isinstance(message, Append):
        return not message.entries
    if isinstance(message, SnapshotChunk):
        return not message.data
    return isinstance(message, ROUTINE)


def describe(message: Message, names: Names, link: tuple[str, str]) -> str:
    """Kind and content; incarnations only if they are not the newest ones."""
    source, target = link
    parts = [type(message).__name__]
    if isinstance(message, Greeting):
        founders = ",".join(names.of(number, node) for node, number in message.founders)
        parts += [
            f"from={names.of(message.source, source)} state={STATES[message.state]} founders={founders or 'none'}",
            f"knows={names.of(message.echo, target)} command_version={message.command_version}",
        ]
        return " ".join(parts)
    if message.source != names.newest.get(source):
        parts.append(f"from={names.of(message.source, source)}")
    if message.destination != names.newest.get(target):
        parts.append(f"to={names.of(message.destination, target)}")
    if isinstance(message, Introduction):
        remembered = f"{message.remembered_number} records,{message.remembered_index}@{message.remembered_term}"
        parts += [
            f"process={names.process(message.process, source)} boot={message.boot}",
            f"opened={message.opened_index}@{message.opened_term}",
            f"knows={names.process(message.echo_process, target)} standing={Standing(message.standing).name.lower()}",
        ]
        if message.standing == Standing.REGRESSED:
            parts.append(f"remembers={remembered}")
    elif isinstance(message, Append):
        entries = _entries(message.entries, message.previous_index + 1)
        parts.append(f"term={message.term} prev={message.previous_index}@{message.previous_term} commit={message.commit_index}")
        parts += [f"entries=[{'; '.join(entries)}]"] if entries else []
    elif isinstance(message, AppendReply):
        parts.append(f"term={message.term} {'match' if message.success else 'conflict next'}={message.log_index}")
    elif isinstance(message, SnapshotChunk):
        upto = f"snapshot={message.snapshot_index}@{message.snapshot_term}"
        parts.append(f"term={message.term} {upto} bytes={message.offset}+{len(message.data)}/{message.total}")
    elif isinstance(message, Forward):
        parts.append(f"term={message.term} proposals={_proposals(message.proposals)}")
    elif isinstance(message, DigestReport):
        parts.append(f"index={message.log_index}")
    elif isinstance(message, MemberHint):
        parts.append(f"index={message.log_index} {payload_text(message.members)}")
    elif isinstance(message, ApplicationData):
        parts.append(f"{len(message.data)} bytes")
    else:
        fields = [f for f in message._fields if f not in _HIDDEN]
        parts += [f"{field.replace('log_index', 'index')}={_plain(getattr(message, field))}" for field in fields]
    return " ".join(parts)


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _entries(data: bytes, first: int) -> list[str]:
    try:
        return [f"{index}@{term} {payload_text(payload)}" for payload, index, term in unpack_entries(data, first)]
    except MalformedError as error:
        return [str(error)]


def payload_text(payload: bytes) -> str:
    """The content of an entry."""
    if payload == NO_OP:
        return "no-op"
    if payload[:2] == JOIN:
        node, incarnation = unpack_join(payload)
        return f"join {node} {incarnation}" if incarnation else f"vacancy {node}"
    if payload[:2] == MEMBERS_ENTRY:
        members = unpack_members(payload)
        return "members " + ",".join(n if m.kind is Kind.VOTER else f"{n}:{m.kind.name.lower()}" for n, m in members.items())
    return _proposals(payload[2:]) if payload[:2] == PROPOSALS else f"{len(payload)} bytes"


def _proposals(data: bytes) -> str:
    return ",".join(short(command) for _, _, proposals in unpack_groups(data) for _, command in proposals)


def short(command: bytes) -> str:
    """A command as scripts give it; of a long one, the first 8 characters and its length."""
    text = command.decode(errors="backslashreplace")
    return text if len(text) <= 20 else f"{text[:8]}…({len(command)} bytes)"


def voters_text(voters: dict[str, int], names: Names) -> str:
    """A configuration."""
    return ",".join(names.of(number, node) if number else f"{node}:vacant" for node, number in sorted(voters.items()))


def joined(words: Sequence[str]) -> str:
    """The words that are not empty, separated by spaces."""
    return " ".join(word for word in words if word)
