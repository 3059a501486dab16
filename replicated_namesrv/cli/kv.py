"""``namesrv kv``: the key-value configuration of the name servers."""

import argparse
import sys

from replicated_namesrv.cli.admin import add_admin_options
from replicated_namesrv.cli.client import (
    BAD,
    FOUND,
    add_client_arguments,
    add_consistency_arguments,
    print_answer,
    print_freshness,
    refuse_consistency,
    report_writes,
    run_with_servers,
    with_consistency,
)
from replicated_namesrv.client.nameservers import NameServers
from replicated_namesrv.client.queries import (
    delete_kv_request,
    get_kv_request,
    list_kv_request,
    put_kv_request,
    read_done,
    read_kv,
    read_kv_table,
)

HELP = "read and write the key-value configuration"

_EXAMPLES = """\
  namesrv kv put ORDER_TOPIC_CONFIG TopicTest 'broker-a:8;broker-b:8'   write to every name server of the list, as mqadmin does
  namesrv kv get ORDER_TOPIC_CONFIG TopicTest                           ask the first that answers
  namesrv kv list ORDER_TOPIC_CONFIG
  namesrv kv delete ORDER_TOPIC_CONFIG TopicTest
  namesrv kv import kvConfig.json                                       put every entry of a RocketMQ or AP name server's file,
                                                                        or of a file made by 'namesrv backup'
  namesrv kv export kvConfig.json -n 10.0.0.1:9876                      write all entries of one name server to such a file
"""

_OPERANDS = {"get": ("KEY",), "put": ("KEY", "VALUE"), "delete": ("KEY",), "list": (), "import": (), "export": ()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("action", choices=tuple(_OPERANDS))
    parser.add_argument(
        "namespace", metavar="NAMESPACE|FILE", help="FILE for import and export ('-': export to stdout), else a namespace"
    )
    parser.add_argument(
        "operands", nargs="*", metavar="KEY [VALUE]", help="KEY for get and delete, KEY VALUE for put, none for the others"
    )
    export = parser.add_argument_group("export")
    export.add_argument(
        "--namespace",
        dest="only",
        action="append",
        default=[],
        metavar="NS",
        help="only this namespace; may be given several times",
    )
    export.add_argument("--force", action="store_true", help="replace FILE if it exists")
    add_admin_options(export, "the name server's port plus 10")
    add_consistency_arguments(parser)
    add_client_arguments(parser, _EXAMPLES)
    parser.set_defaults(usage_error=parser.error)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code."""
    expected = _OPERANDS[arguments.action]
    if len(arguments.operands) != len(expected):
        wanted = "FILE" if arguments.action in ("import", "export") else " ".join(("NAMESPACE", *expected))
        arguments.usage_error(
            f"'kv {arguments.action}' needs {wanted}, got {1 + len(arguments.operands)} of {1 + len(expected)} words"
        )
    if arguments.action not in ("get", "list"):
        refuse_consistency(arguments)
    of_access = (arguments.token_file, arguments.ca, arguments.cert, arguments.key)
    if arguments.action != "export" and any((arguments.only, arguments.force, arguments.admin, *of_access)):
        options = "--namespace, --force, --admin, --token-file, --ca, --cert and --key"
        arguments.usage_error(f"{options} are for 'kv export': leave them out here")
    if arguments.action == "export":
        from replicated_namesrv.cli.kv_export import run_export  # imported here because the other actions do not need this module

        return run_export(arguments)
    if arguments.action == "import":
        from replicated_namesrv.cli.kv_import import run_import  # imported here because the other actions do not need this module

        return run_import(arguments)
    return run_with_servers(arguments, {"get": _get, "list": _list}.get(arguments.action, _write))


async def _get(servers: NameServers, arguments: argparse.Namespace) -> int:
    (key,) = arguments.operands
    address, response = await servers.query(with_consistency(get_kv_request(arguments.namespace, key), arguments))
    value = read_kv(response)
    if arguments.json:
        print_answer(
            {"nameServer": address, "namespace": arguments.namespace, "key": key, "found": value is not None, "value": value},
            response,
            arguments,
        )
        return BAD if value is None else FOUND
    print_freshness(response, arguments)
    if value is None:
        print(f"{address} has no key {key} in namespace {arguments.namespace}", file=sys.stderr)
    else:
        print(value)
    return BAD if value is None else FOUND


async def _list(servers: NameServers, arguments: argparse.Namespace) -> int:
    address, response = await servers.query(with_consistency(list_kv_request(arguments.namespace), arguments))
    table = read_kv_table(response)
    if arguments.json:
        print_answer(
            {"nameServer": address, "namespace": arguments.namespace, "found": table is not None, "table": table},
            response,
            arguments,
        )
        return BAD if table is None else FOUND
    print_freshness(response, arguments)
    if table is None:
        print(f"{address} has no namespace {arguments.namespace}", file=sys.stderr)
    else:
        for key, value in table.items():
            print(f"{key}={value}")
    return BAD if table is None else FOUND


async def _write(servers: NameServers, arguments: argparse.Namespace) -> int:
    key, *values = arguments.operands
    if values:
        outcomes = await servers.send_to_all(put_kv_request(arguments.namespace, key, values[0]))
    else:
        outcomes = await servers.send_to_all(delete_kv_request(arguments.namespace, key))
    return report_writes(outcomes, read_done, arguments)
