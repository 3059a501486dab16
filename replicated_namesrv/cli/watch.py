"""``namesrv watch``: prints changes as they happen, and continues at another node when one fails.

The stream is ``GET /v1/watch``. All nodes of a CP cluster report the same changes with the same revisions, so the command
continues at the next node without duplicates or gaps. Independent nodes have separate histories, so only one of them is
watched.
"""

import argparse
import http.client
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from replicated_namesrv.cli.admin import (
    BAD,
    GOOD,
    UNKNOWN,
    Admin,
    AdminRefusedError,
    add_admin_arguments,
    admin_addresses,
    admin_of,
)
from replicated_namesrv.cli.client import positive
from replicated_namesrv.errors import NamesrvError

HELP = "print changes as they happen: brokers, topics, KV config, settings, leaders"

RECONNECT_PAUSE_S = 0.2
SILENCE_S = 30.0
"""Time limit for the next bytes of a stream. A node sends a comment every ten seconds."""
GIVE_UP_S = 30.0
FORBIDDEN = (401, 403)
"""Status of a node that needs another token or identity. If every node answers so, waiting does not help."""

_EXAMPLES = """\
  namesrv watch                            from now on, until Ctrl-C
  namesrv watch --from 1200                from the first change after revision 1200
  namesrv watch --from 0 --count 10 --json | jq .kind
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("--from", dest="position", metavar="REVISION", help="start after this revision or event id")
    parser.add_argument("--count", type=positive, metavar="N", help="stop after this many changes")
    codes = "0 --count reached; 1 the revision is no longer kept, or refused; 2 usage, or no node answers; 130 Ctrl-C"
    add_admin_arguments(parser, _EXAMPLES, codes)


class Event(NamedTuple):
    """One server-sent event."""

    id: str | None
    kind: str
    data: dict[str, Any]


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code."""
    admin = admin_of(arguments)
    addresses = admin_addresses(arguments, admin)
    position: str | None = arguments.position
    left = arguments.count
    answered = time.monotonic()
    turn, failed, forbidden = 0, set[str](), set[str]()
    while True:
        address = addresses[turn % len(addresses)]
        try:
            for event in _stream(admin, address, position):
                answered = time.monotonic()
                failed.discard(address)
                forbidden.clear()
                position = event.id or position
                _show(event, address, arguments.json)
                if event.data.get("mode") == "ap":
                    addresses = (address,)
                left = left - 1 if left and event.id is not None and event.kind != "hello" else left
                if left == 0:
                    return GOOD
        except AdminRefusedError as error:
            if error.status in (400, 410):
                print(str(error), file=sys.stderr)
                return BAD if error.status == 410 else UNKNOWN
            reason = str(error)
            if error.status in FORBIDDEN:
                forbidden.add(address)
                if forbidden.issuperset(addresses):
                    print(reason, file=sys.stderr)
                    return BAD
        except NamesrvError as error:
            reason = str(error)
        else:
            reason = f"{address}: the stream ended"
        if time.monotonic() - answered > max(GIVE_UP_S, admin.timeout_s):
            _tell(f"no node sends a stream; stopped; the last reason: {reason}")
            return UNKNOWN
        if address not in failed:  # once, and not at each of the next attempts
            failed.add(address)
            next_step = f"trying for {GIVE_UP_S:.0f} s" if failed.issuperset(addresses) else "trying the next node"
            _tell(f"{reason}; {next_step}")
        turn += 1
        if turn % len(addresses) == 0:
            time.sleep(RECONNECT_PAUSE_S)


def _tell(text: str) -> None:
    """Print a line about the stream itself, with the time, on stderr."""
    print(f"{_time_of(time.time())}  {text}", file=sys.stderr, flush=True)


def _time_of(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).isoformat(" ", "milliseconds")


def _stream(admin: Admin, address: str, position: str | None) -> Iterator[Event]:
    headers = {} if position is None else {"Last-Event-ID": position}
    with replace(admin, timeout_s=max(admin.timeout_s, SILENCE_S)).open(address, "/v1/watch", headers=headers) as response:
        fields: dict[str, str] = {}
        while line := _line(response):
            name, _, value = line.rstrip("\n").partition(":")
            if name:
                fields[name] = value.strip()
            elif "event" in fields:
                yield Event(fields.get("id"), fields["event"], json.loads(fields["data"]))
                fields = {}


def _line(response: http.client.HTTPResponse) -> str:
    """The next line; empty at the end of the stream, even after an error."""
    try:
        return response.readline().decode()
    except (OSError, http.client.HTTPException):
        return ""


def _show(event: Event, address: str, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"event": event.kind, "id": event.id, "node": address, **event.data}), flush=True)
        return
    if event.kind == "hello":
        leader = f", leader {event.data['leader']} of term {event.data['term']}" if "leader" in event.data else ""
        _tell(f"watching {event.data['nodeId']} ({address}) after revision {event.data['from']}{leader}")
        return
    when_s = event.data.get("timeMs", time.time() * 1000) / 1000  # without timeMs: a change of the leader has no time of its own
    print(
        f"{event.id or '-'}  {_time_of(when_s)}  {event.kind}  {_words(event)}".rstrip(),
        flush=True,
    )


def _words(event: Event) -> str:
    data = event.data
    words = [
        f"{broker['clusterName']}/{broker['brokerName']}:{broker['brokerId']} {broker['brokerAddr']}"
        for broker in data.get("brokers", ())
    ]
    words += [f"instead of {broker['brokerAddr']}" for broker in data.get("replaced", ())]
    for field in ("brokerName", "namespace", "key", "value", "leader", "term", "reason", "error"):
        if field in data:
            words.append(f"{field}={data[field]}")
    if data.get("settings"):
        words += [f"{name}={value}" for name, value in data["settings"].items()]
    if "topics" in data and data["topics"] != []:
        words.append("topics=(many)" if data["topics"] is None else f"topics={','.join(data['topics'])}")
    return " ".join(words)
