"""Common parts of the commands that ask name servers: address list, time-out, table or JSON output, exit codes.

0: found, or done everywhere. 1: not found, refused, or the servers differ. 2: usage error, or no name server answered.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from replicated_namesrv.client.credentials import Credentials, read_access_key
from replicated_namesrv.client.nameservers import NameServers, RequestOutcome, parse_addresses
from replicated_namesrv.client.queries import RefusedError
from replicated_namesrv.client.remoting import DEFAULT_TIMEOUT_MS, RemotingClient, RemotingCommand, client_tls_context
from replicated_namesrv.errors import NamesrvError, SettingError

FOUND, BAD, USAGE = 0, 1, 2
NUMBER_MAX, SECONDS_MAX = 1_000_000_000, 1_000_000
"""Largest number, and largest number of seconds, in an option. Sockets accept no time-out of more than 24 days."""
DEFAULT_ADDRESSES = "127.0.0.1:9876"
READ_CONSISTENCIES = ("linearizable", "lease", "stale")
ADDRESSES_VARIABLE = "NAMESRV_ADDR"


EXIT_CODES = "0 good; 1 not found or refused; 2 usage, or no name server answered"


def add_client_arguments(parser: argparse.ArgumentParser, examples: str, exit_codes: str = EXIT_CODES) -> None:
    """Add the options that every such command has, and its examples and exit codes at the end of its help."""
    parser.epilog = f"examples:\n{examples}\nexit codes: {exit_codes}"
    parser.add_argument(
        "-n",
        "--namesrv-addr",
        metavar="ADDRS",
        type=addresses_argument,
        default=None,
        help=f"name servers, 'host:port;host:port' or with commas (default: {ADDRESSES_VARIABLE}, else {DEFAULT_ADDRESSES})",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    parser.add_argument(
        "--timeout-ms",
        type=positive,
        default=DEFAULT_TIMEOUT_MS,
        metavar="MS",
        help=f"time-out for each server, milliseconds (default {DEFAULT_TIMEOUT_MS})",
    )
    add_credentials_arguments(parser)


def add_credentials_arguments(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the options that say how to speak TLS, and who the caller is."""
    parser.add_argument("--tls", action="store_true", help="speak TLS; certificates are not verified unless --tls-ca is given")
    parser.add_argument("--tls-ca", metavar="FILE", help="speak TLS and accept only certificates signed by these CAs (PEM)")
    parser.add_argument(
        "--tls-cert", metavar="FILE", help="speak TLS and present this certificate (PEM), for accessPolicy=enforce"
    )
    parser.add_argument("--tls-key", metavar="FILE", help="key of --tls-cert, if that file does not have it")
    parser.add_argument(
        "--access-key-file",
        metavar="FILE",
        help="sign requests, for accessPolicy=enforce; the file has accessKey and secretKey, as in mqadmin's conf/tools.yml",
    )


def credentials_of(arguments: argparse.Namespace) -> Credentials:
    """The credentials in these options. Raises SettingError."""
    wants_tls = arguments.tls or arguments.tls_ca or arguments.tls_cert
    tls = client_tls_context(arguments.tls_ca, arguments.tls_cert, arguments.tls_key) if wants_tls else None
    key, secret = read_access_key(arguments.access_key_file) if arguments.access_key_file else (None, b"")
    return Credentials(tls, key, secret)


def add_consistency_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the commands that read the state of name servers."""
    group = parser.add_argument_group("how fresh the answer must be (servers of mode=cp)")
    group.add_argument(
        "--read-consistency",
        choices=READ_CONSISTENCIES,
        help="linearizable: includes every write that was acknowledged before; lease: the same, cheaper on the leader; "
        "stale: at once, with its age (default: the server's setting)",
    )
    group.add_argument(
        "--max-staleness-ms", type=whole, metavar="MS", help="refuse a stale answer from a state that may be older than this"
    )


def refuse_consistency(arguments: argparse.Namespace) -> None:
    """Report a usage error if an action that writes was given options for reads."""
    if arguments.read_consistency is not None or arguments.max_staleness_ms is not None:
        arguments.usage_error("--read-consistency and --max-staleness-ms are for reading: leave them out here")


def with_consistency(request: RemotingCommand, arguments: argparse.Namespace) -> RemotingCommand:
    """``request`` with the read consistency and maximum staleness of the options."""
    wanted = {"readConsistency": arguments.read_consistency, "maxStalenessMs": arguments.max_staleness_ms}
    fields = {name: str(value) for name, value in wanted.items() if value is not None}
    return request._replace(ext_fields={**(request.ext_fields or {}), **fields}) if fields else request


def freshness_of(response: RemotingCommand, arguments: argparse.Namespace) -> dict[str, Any]:
    """``{"freshness": …}`` for JSON output if an option asked for it. None: the server does not report its
    freshness. A Java name server does not."""
    if arguments.read_consistency is None and arguments.max_staleness_ms is None:
        return {}
    fields = response.ext_fields or {}
    if "readLevel" not in fields:
        return {"freshness": None}
    numbers = {name: int(fields[name]) for name in ("revision", "raftTerm", "stalenessMs")}
    return {"freshness": {"readLevel": fields["readLevel"], **numbers, "leader": fields.get("leader") or None}}


def print_answer(value: dict[str, Any], response: RemotingCommand, arguments: argparse.Namespace) -> None:
    """Print ``value`` and its freshness as one JSON document."""
    print_json(value | freshness_of(response, arguments))


def print_freshness(response: RemotingCommand, arguments: argparse.Namespace) -> None:
    """Print the freshness on stderr, so that the format of stdout does not change."""
    for found in freshness_of(response, arguments).values():
        if found is None:
            print("the server does not say how fresh its answer is", file=sys.stderr)
            return
        age = "of unknown age" if found["stalenessMs"] < 0 else f"at most {found['stalenessMs']} ms old"
        leader = f", term {found['raftTerm']}, leader {found['leader'] or 'unknown'}" if found["raftTerm"] else ""
        print(f"{found['readLevel']} answer, {age}, revision {found['revision']}{leader}", file=sys.stderr)


def whole(text: str) -> int:
    """A whole number of at least 0, for argparse."""
    return positive(text) if text.strip() != "0" else 0


def addresses_argument(text: str) -> tuple[str, ...]:
    """A name server list, for argparse."""
    try:
        return parse_addresses(text)
    except SettingError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def positive(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    return _number(text, NUMBER_MAX)


def seconds(text: str) -> int:
    """A number of seconds of at least 1, for argparse."""
    return _number(text, SECONDS_MAX)


def _number(text: str, most: int) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    if number > most:
        raise argparse.ArgumentTypeError(f"{number} is more than {most}")
    return number


def chosen_addresses(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The addresses of -n, else of the environment, else of this machine. Raises SettingError for a malformed environment."""
    if arguments.namesrv_addr is not None:
        given: tuple[str, ...] = arguments.namesrv_addr
        return given
    return parse_addresses(os.environ.get(ADDRESSES_VARIABLE) or DEFAULT_ADDRESSES)


def run_with_servers(arguments: argparse.Namespace, command: Callable[[NameServers, argparse.Namespace], Awaitable[int]]) -> int:
    """Run ``command`` with the chosen list; errors become one line and an exit code."""
    try:
        return asyncio.run(_with_servers(arguments, command))
    except RefusedError as error:
        print(f"the name server {error}", file=sys.stderr)
        return BAD
    except NamesrvError as error:
        print(str(error), file=sys.stderr)
        return USAGE


async def _with_servers(
    arguments: argparse.Namespace, command: Callable[[NameServers, argparse.Namespace], Awaitable[int]]
) -> int:
    client = RemotingClient(credentials=credentials_of(arguments))
    servers = NameServers(chosen_addresses(arguments), client, rng=random.Random(), timeout_ms=arguments.timeout_ms)
    try:
        return await command(servers, arguments)
    finally:
        await client.close()


class ProgressLine:
    """A progress line on stderr. It appears only on a terminal, and only after the command has run for two seconds."""

    def __init__(self) -> None:
        self._shown_at = time.monotonic() + 2.0
        self._enabled = sys.stderr.isatty()

    def show(self, text: str) -> None:
        """Show ``text``, at most five times a second."""
        now = time.monotonic()
        if self._enabled and now >= self._shown_at:
            self._shown_at = now + 0.2
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Remove the line."""
        if self._enabled:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """Print one JSON document, indented, so that people can read it, too."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Left-aligned columns; numbers to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(line[index]) for line in [list(header), *cells]) for index in range(len(header))]
    for line in [list(header), *cells]:
        aligned = [
            cell.rjust(width) if cell.lstrip("-").isdigit() else cell.ljust(width)
            for cell, width in zip(line, widths, strict=True)
        ]
        print("  ".join(aligned).rstrip())


def perm_text(perm: int) -> str:
    """``RW-``, ``R--``, … with ``X`` for INHERIT, as RocketMQ's PermName prints it."""
    return ("R" if perm & 4 else "-") + ("W" if perm & 2 else "-") + ("X" if perm & 1 else "-")


def report_writes(outcomes: Sequence[RequestOutcome], read: Callable[[Any], object], arguments: argparse.Namespace) -> int:
    """Print the outcome of a write at each server. Returns 0 if all servers did it, 2 if no server answered, else 1."""
    rows: list[dict[str, object]] = []
    for outcome in outcomes:
        row: dict[str, object] = {"nameServer": outcome.address}
        try:
            if outcome.error is not None:
                raise outcome.error
            value = read(outcome.response)
            row |= {"outcome": "done"} if value is None else {"outcome": "done", "value": value}
        except RefusedError as error:
            row |= {"outcome": "refused", "code": error.code, "detail": error.remark or ""}
        except NamesrvError as error:
            row |= {"outcome": "not done" if error.definite else "unknown", "detail": str(error)}
        rows.append(row)
    if arguments.json:
        print_json(rows)
    else:
        print_table(("name server", "outcome", "detail"), [_report_line(row) for row in rows])
    answered = [row for row in rows if row["outcome"] in ("done", "refused")]
    if not answered:
        return USAGE
    return FOUND if all(row["outcome"] == "done" for row in rows) else BAD


def _report_line(row: dict[str, object]) -> tuple[object, object, object]:
    return row["nameServer"], row["outcome"], row.get("value", row.get("detail", ""))
