"""``namesrv drain``: takes one node out of service before a restart.

The node transfers leadership, leaves the list of ``/rocketmq/nsaddr`` on all nodes, stops listening, and closes each connection
when its requests are answered. Clients use another name server for their next request. A restart of the node ends the drain.
"""

import argparse
import os
import ssl
import sys
from dataclasses import replace

from replicated_namesrv.cli.admin import (
    BAD,
    DEFAULT_ADMIN,
    GOOD,
    UNKNOWN,
    AdminError,
    AdminRefusedError,
    AdminUnknownError,
    add_admin_arguments,
    admin_of,
    given_addresses,
    own_admin,
    reason_of,
)
from replicated_namesrv.cli.client import print_json, seconds
from replicated_namesrv.errors import SettingError
from replicated_namesrv.settings_sources import load_settings

HELP = "take one node out of service before a restart: clients move to the others"

WITHIN_S = 10

_EXAMPLES = """\
  namesrv drain && systemctl restart namesrv               the node on this machine
  namesrv drain -c /etc/namesrv/namesrv.properties         the same, also with another adminListen, and with HTTPS
  namesrv drain -a 10.0.0.2:9886 --within 30
  namesrv drain --undo                                     serve again without a restart
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "-c",
        "--config-file",
        metavar="FILE",
        help="properties file of the node on this machine: its adminListen is used, and its adminTlsCertPath is trusted",
    )
    parser.add_argument(
        "--within", type=seconds, default=WITHIN_S, metavar="SECONDS", help=f"time for all clients to move (default {WITHIN_S})"
    )
    parser.add_argument("--undo", action="store_true", help="end a drain: serve again")
    parser.add_argument("--force", action="store_true", help="drain even if no other node is known to serve")
    codes = "0 no connection is left; 1 refused: no other node serves; 2 usage, no answer, or outcome unknown"
    add_admin_arguments(parser, _EXAMPLES, codes)
    parser.set_defaults(usage_error=parser.error)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code."""
    admin = admin_of(arguments)
    addresses: tuple[str, ...]
    if arguments.config_file is None:
        addresses = given_addresses(arguments, admin) or (DEFAULT_ADMIN,)
    elif arguments.admin or arguments.ca:
        arguments.usage_error("-c names the node on this machine: leave out --admin and --ca, or leave out -c")
    else:
        own, tls = _own_node(arguments.config_file)
        addresses, admin = (own,), replace(admin, tls=tls)
    if len(addresses) > 1:
        arguments.usage_error(
            f"drain takes one node, and --admin or the environment names {len(addresses)}: give one with --admin"
        )
    (address,) = addresses
    patient = replace(admin, timeout_s=admin.timeout_s + arguments.within)
    path = f"/v1/drain?withinSeconds={arguments.within}" + ("&force=true" if arguments.force else "")
    try:
        done = admin.ask(address, "/v1/drain", "DELETE") if arguments.undo else patient.ask(address, path, "POST")
    except (AdminError, AdminRefusedError, AdminUnknownError) as error:
        print(str(error), file=sys.stderr)
        return BAD if isinstance(error, AdminRefusedError) else UNKNOWN
    if arguments.json:
        print_json({"admin": address, **done})
    elif arguments.undo:
        print(f"{address} serves again")
    else:
        cut = f", {done['cut']} of them were cut with an unanswered request" if done["cut"] else ""
        print(f"{address} is drained: {done['moved'] + done['cut']} connections were closed{cut}; others serve: {_list(done)}")
    return GOOD


def _own_node(file: str) -> tuple[str, ssl.SSLContext | None]:
    """The admin address of the node with this properties file, and the TLS context for it: only the certificate of the node is
    trusted, and its names are not checked. Raises SettingError, OSError."""
    settings = load_settings(file, {"dataDir": os.devnull})  # no dataDir: run-time changes cannot affect the admin port
    own = own_admin(settings)
    if own is None:
        raise SettingError(
            f"adminListen=off ({file}): the node has no admin port, so it cannot be drained; set adminListen and restart it"
        )
    if not settings.admin_tls_cert_path:
        return own, None
    path = settings.admin_tls_cert_path
    try:
        with open(path, encoding="latin-1") as chain:
            _, begin, rest = chain.read().partition(ssl.PEM_HEADER)
        tls = ssl.create_default_context(cadata=begin + rest.partition(ssl.PEM_FOOTER)[0] + ssl.PEM_FOOTER)
    except (OSError, ValueError) as cause:
        raise SettingError(f"adminTlsCertPath={path} ({file}): {reason_of(cause)}; give a certificate in PEM") from None
    tls.check_hostname = False
    tls.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return own, tls


def _list(done: dict[str, list[str]]) -> str:
    return ", ".join(done["othersServing"]) or "not known"
