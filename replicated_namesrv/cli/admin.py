"""Common parts of the commands that operate nodes: the addresses of admin ports, the requests, and the meaning of an answer.

The addresses come from ``--admin``, else from NAMESRV_ADMIN, else from the node at 127.0.0.1:9886 and its address list. The admin
ports of the other nodes in that list are derived: the distance from RocketMQ port to admin port is assumed to be the same on all
nodes. ``namesrv cluster`` assigns its ports in this way. The HTTP client is that of the standard library, because it loads in a
tenth of the time of a larger one.
"""

import argparse
import contextlib
import http.client
import json
import os
import ssl
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from replicated_namesrv.cli.client import positive
from replicated_namesrv.client.nameservers import parse_addresses
from replicated_namesrv.errors import NamesrvError, SettingError
from replicated_namesrv.settings import Settings

T = TypeVar("T")
GOOD, BAD, UNKNOWN = 0, 1, 2
DEFAULT_ADMIN = "127.0.0.1:9886"
ADMIN_VARIABLE, TOKEN_VARIABLE, CA_VARIABLE = "NAMESRV_ADMIN", "NAMESRV_ADMIN_TOKEN_FILE", "NAMESRV_ADMIN_CA"
CERT_VARIABLE, KEY_VARIABLE = "NAMESRV_ADMIN_CERT", "NAMESRV_ADMIN_KEY"
SYSTEM_CA = "system"
LOOPBACK_OF = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
"""Address on this machine of a node that listens on all addresses."""
TIMEOUT_MS = 5_000
ANSWER_BYTES_MAX = 64 << 20


class AdminError(NamesrvError):
    """A node gave no usable answer. The requested change, if any, was not made."""

    definite = True


class AdminUnknownError(NamesrvError):
    """The outcome of a request is unknown: the connection broke, the answer cannot be read, or the node does not know the
    outcome."""

    definite = False


class AdminRefusedError(NamesrvError):
    """A node answered with an error status."""

    def __init__(self, address: str, status: int, answer: dict[str, Any]) -> None:
        error, remedy = answer.get("error", f"HTTP status {status}"), answer.get("remedy")
        super().__init__(f"{address}: {error}" + (f"; {remedy}" if remedy else ""))
        self.status, self.answer = status, answer


def add_admin_arguments(parser: argparse.ArgumentParser, examples: str, exit_codes: str) -> None:
    """Add the options that every such command has, and the end of its help."""
    parser.epilog = f"examples:\n{examples}\nexit codes: {exit_codes}"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_admin_options(parser, f"{DEFAULT_ADMIN} and the nodes it names")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument(
        "--timeout-ms",
        type=positive,
        default=TIMEOUT_MS,
        metavar="MS",
        help=f"how long to wait for a node (default {TIMEOUT_MS})",
    )


def add_admin_options(parser: argparse._ActionsContainer, default: str) -> None:
    """Add the options that name the admin ports and give access to them."""
    parser.add_argument(
        "-a",
        "--admin",
        metavar="ADDRS",
        help=f"admin addresses, 'host:port;host:port' (default: {ADMIN_VARIABLE}, else {default})",
    )
    add_admin_access(parser)


def add_admin_access(parser: argparse._ActionsContainer) -> None:
    """Add the options that give access to admin ports."""
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help=f"file with the nodes' admin token (default: {TOKEN_VARIABLE}); needed if the nodes have a token",
    )
    parser.add_argument(
        "--ca",
        metavar="FILE",
        help=f"use HTTPS and verify the nodes with the CA certificates in FILE; '{SYSTEM_CA}' means those of the operating "
        f"system (default: {CA_VARIABLE}); needed if the nodes have adminTlsCertPath",
    )
    parser.add_argument(
        "--cert",
        metavar="FILE",
        help=f"present this certificate (PEM), for accessPolicy=enforce; needs --ca (default: {CERT_VARIABLE})",
    )
    parser.add_argument("--key", metavar="FILE", help=f"key of --cert, if that file does not have it (default: {KEY_VARIABLE})")


@dataclass(frozen=True, slots=True)
class Admin:
    """Sends requests to nodes."""

    timeout_s: float
    token: bytes | None
    tls: ssl.SSLContext | None = None
    """TLS context for the admin ports. None: plain HTTP."""

    @contextlib.contextmanager
    def open(
        self,
        address: str,
        path: str,
        method: str = "GET",
        body: Iterable[bytes] | bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Iterator[http.client.HTTPResponse]:
        """Return the response; its body is not read yet. Raises AdminError, AdminUnknownError, AdminRefusedError."""
        host, _, port = address.rpartition(":")
        connection = self._connection(host.strip("[]"), int(port))
        fields: dict[str, str | bytes] = dict(headers or {})
        if self.token is not None:
            fields["Authorization"] = b"Bearer " + self.token
        try:
            try:
                connection.connect()
            except OSError as cause:
                raise AdminError(f"{address}: {_no_connection(cause)}") from None
            try:
                # the node may answer and close before it has read the whole request; its answer says why
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    connection.request(method, path, body, fields)
                response = connection.getresponse()
                if response.status != 200:
                    raise _refusal(address, response.status, _object(response.read(ANSWER_BYTES_MAX)))
            except (OSError, http.client.HTTPException) as cause:
                late = isinstance(cause, TimeoutError)
                why = f"no answer within {self.timeout_s:g} s" if late else f"the connection broke ({reason_of(cause)})"
                if method == "GET":
                    remedy = "check that the node is neither paused nor overloaded" if late else "repeat the command"
                    raise AdminError(f"{address}: {why}; {remedy}{self._other_protocol(cause)}") from None
                raise AdminUnknownError(
                    f"{address}: {why}; whether the change was applied is unknown; run 'namesrv status' and repeat the command"
                    f"{self._other_protocol(cause)}"
                ) from None
            yield response
        finally:
            connection.close()

    def _other_protocol(self, cause: Exception) -> str:
        """Advice if the peer reset the connection or did not answer in HTTP: the port may speak another protocol."""
        if not isinstance(cause, http.client.BadStatusLine | ConnectionResetError):
            return ""
        tls = "" if self.tls else "; give --ca FILE if the nodes have adminTlsCertPath"
        return f". If this happens again, check that --admin names an admin port (adminListen){tls}"

    def _connection(self, host: str, port: int) -> http.client.HTTPConnection:
        if self.tls is None:
            return http.client.HTTPConnection(host, port, timeout=self.timeout_s)
        return http.client.HTTPSConnection(host, port, timeout=self.timeout_s, context=self.tls)

    def ask(self, address: str, path: str, method: str = "GET", body: Iterable[bytes] | bytes | None = None) -> Any:
        """The JSON answer. Raises the errors of ``open``."""
        with self.open(address, path, method, body) as response:
            try:
                return json.loads(response.read(ANSWER_BYTES_MAX))
            except (OSError, http.client.HTTPException, ValueError) as cause:
                raise AdminUnknownError(f"{address}: the answer cannot be read ({reason_of(cause)})") from None


def admin_of(arguments: argparse.Namespace) -> Admin:
    """The Admin that --timeout-ms and the options of ``add_admin_access`` describe. Raises SettingError."""
    return Admin(arguments.timeout_ms / 1000, token_of(arguments), tls_of(arguments))


def token_of(arguments: argparse.Namespace) -> bytes | None:
    """The first line of the file of --token-file, as bytes, because a node compares bytes. Raises SettingError."""
    path = arguments.token_file or os.environ.get(TOKEN_VARIABLE)
    if not path:
        return None
    try:
        with open(path, "rb") as file:
            token = file.readline().strip()
    except OSError as cause:
        raise SettingError(f"--token-file {path}: {reason_of(cause)}") from None
    if not token or any(byte < 0x20 or byte == 0x7F for byte in token):
        what = "has a control character" if token else "is empty"
        raise SettingError(f"--token-file {path}: its first line {what}; give the file with the token of the node")
    return token


def tls_of(arguments: argparse.Namespace) -> ssl.SSLContext | None:
    """The TLS context that --ca, --cert and --key ask for. Raises SettingError if a file cannot be used."""
    ca = arguments.ca or os.environ.get(CA_VARIABLE)
    certificate, key = arguments.cert or os.environ.get(CERT_VARIABLE), arguments.key or os.environ.get(KEY_VARIABLE)
    if not ca:
        if certificate:
            raise SettingError(f"--cert {certificate}: a certificate is presented over HTTPS only; give --ca FILE too")
        return None
    try:
        context = ssl.create_default_context(cafile=None if ca == SYSTEM_CA else ca)
    except OSError as cause:  # includes ssl.SSLError, which is an OSError
        raise SettingError(f"--ca {ca}: {reason_of(cause)}; give a file with certificates in PEM, or '{SYSTEM_CA}'") from None
    if certificate:
        try:
            context.load_cert_chain(certificate, key or None, password=lambda: b"")  # without a password OpenSSL would ask for it
        except (OSError, ValueError) as cause:
            reason = reason_of(cause)
            raise SettingError(
                f"--cert {certificate}: {reason}; give certificate and key in PEM, the key without a password"
            ) from None
    return context


def admin_addresses(arguments: argparse.Namespace, admin: Admin) -> tuple[str, ...]:
    """The nodes to ask. Raises SettingError for a malformed list."""
    given = given_addresses(arguments, admin)
    if given is not None:
        return given
    try:
        return neighbours(DEFAULT_ADMIN, admin.ask(DEFAULT_ADMIN, "/v1/status"))
    except NamesrvError:
        return (DEFAULT_ADMIN,)


def given_addresses(arguments: argparse.Namespace, admin: Admin) -> tuple[str, ...] | None:
    """The list of --admin or the environment; None if there is none. Raises SettingError for a malformed list."""
    given = arguments.admin or os.environ.get(ADMIN_VARIABLE)
    if not given:
        return None
    return parse_addresses(";".join(_without_scheme(part, admin) for part in given.replace(",", ";").split(";")))


def own_admin(settings: Settings) -> str | None:
    """Admin address at which a node with these settings answers on its own machine. None: it has no admin port."""
    if settings.admin_address is None:
        return None
    host, port = settings.admin_address
    return f"{LOOPBACK_OF.get(host, host)}:{port}"


def _without_scheme(address: str, admin: Admin) -> str:
    """``host:port`` of a URL such as `namesrv cluster` prints. Raises SettingError if its scheme differs from the one in use."""
    scheme, separator, rest = address.strip().partition("://")
    if not separator:
        return address
    if scheme not in ("http", "https"):
        raise SettingError(f"--admin {address.strip()}: give host:port, or a URL that begins with http:// or https://")
    if (scheme == "https") != (admin.tls is not None):
        remedy = f"give --ca FILE or --ca {SYSTEM_CA}" if scheme == "https" else "give https://, or leave out --ca"
        raise SettingError(f"--admin {address.strip()}: {remedy}")
    return rest.partition("/")[0]


def neighbours(address: str, status: dict[str, Any]) -> tuple[str, ...]:
    """Admin addresses that the node at ``address`` knows, its own first. A node of version 0.1.0 reports only its own address."""
    return (address, *status.get("otherAdminAddresses", ()))


def ask_all(addresses: Sequence[str], ask: Callable[[str], T]) -> list[T | NamesrvError]:
    """``ask`` every address at the same time. An error takes the place of an answer."""

    def one(address: str) -> T | NamesrvError:
        try:
            return ask(address)
        except NamesrvError as error:
            return error

    with ThreadPoolExecutor(max_workers=max(1, len(addresses))) as pool:
        return list(pool.map(one, addresses))


def reason_of(cause: BaseException) -> str:
    """A short text for an error of the operating system or of HTTP."""
    if isinstance(cause, TimeoutError):
        return "time-out"
    if isinstance(cause, http.client.BadStatusLine) and not isinstance(cause, http.client.RemoteDisconnected):
        return "the answer is not HTTP"  # its bytes may contain control characters
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__


def _no_connection(cause: OSError) -> str:
    """Why there is no connection to an admin port, and what to do."""
    if isinstance(cause, ssl.SSLCertVerificationError):
        return (
            f"the certificate of the node was not accepted ({cause.verify_message}); give with --ca the authority that signed "
            "it, and with --admin a host name or address that it contains"
        )
    if isinstance(cause, ssl.SSLError):
        return f"the port does not speak TLS ({cause.reason or cause}); leave out --ca if the nodes have no adminTlsCertPath"
    return (
        f"no answer ({reason_of(cause)}); check that the node runs, and that --admin names its admin address (adminListen, which "
        "is on loopback by default)"
    )


def _refusal(address: str, status: int, answer: dict[str, Any]) -> NamesrvError:
    if status == http.client.UNAUTHORIZED:
        remedy = f"give the node's token with --token-file FILE or {TOKEN_VARIABLE}, or a certificate with --cert FILE"
        answer = answer | {"remedy": remedy}
    if status == http.client.NOT_FOUND and "error" not in answer:
        answer = {"remedy": "check that --admin names the admin port of a node (adminListen)"}
    refused = AdminRefusedError(address, status, answer)
    return AdminUnknownError(str(refused)) if answer.get("outcome") == "unknown" else refused


def _object(body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
