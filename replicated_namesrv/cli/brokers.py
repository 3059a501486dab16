"""``namesrv brokers``: lists registered brokers and changes their write permission."""

import argparse

from replicated_namesrv.cli.client import (
    BAD,
    FOUND,
    add_client_arguments,
    add_consistency_arguments,
    print_answer,
    print_freshness,
    print_table,
    refuse_consistency,
    report_writes,
    run_with_servers,
    with_consistency,
)
from replicated_namesrv.cli.route import broker_as_json
from replicated_namesrv.client.nameservers import NameServers
from replicated_namesrv.client.queries import (
    change_write_perm_request,
    cluster_info_request,
    read_cluster_info,
    read_write_perm_count,
)

HELP = "list registered brokers, or remove and restore their write permission"

_EXAMPLES = """\
  namesrv brokers                                      name, id, address, cluster of every registered broker
  namesrv brokers --cluster DefaultCluster --json
  namesrv brokers wipe-write broker-a                  producers stop sending to broker-a, before maintenance
  namesrv brokers add-write broker-a                   they send to it again
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("action", nargs="?", choices=("list", "wipe-write", "add-write"), default="list", help="default: list")
    parser.add_argument("name", nargs="?", metavar="NAME", help="broker to change at every name server of the list")
    parser.add_argument("--cluster", metavar="C", help="only brokers of this cluster")
    add_consistency_arguments(parser)
    add_client_arguments(parser, _EXAMPLES)
    parser.set_defaults(usage_error=parser.error)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code."""
    if (arguments.action == "list") != (arguments.name is None):
        arguments.usage_error(
            "'wipe-write' and 'add-write' need a broker NAME, 'list' takes none: namesrv brokers wipe-write NAME"
        )
    if arguments.action != "list":
        refuse_consistency(arguments)
    return run_with_servers(arguments, _list if arguments.action == "list" else _change_perm)


async def _list(servers: NameServers, arguments: argparse.Namespace) -> int:
    address, response = await servers.query(with_consistency(cluster_info_request(), arguments))
    info = read_cluster_info(response)
    members = dict(info.cluster_addr_table).get(arguments.cluster, ()) if arguments.cluster else None
    groups = [data for data in info.broker_addr_table if members is None or data.broker_name in members]
    if arguments.json:
        print_answer({"nameServer": address, "brokers": [broker_as_json(data) for data in groups]}, response, arguments)
        return FOUND if groups or not arguments.cluster else BAD
    print_freshness(response, arguments)
    if not groups:
        print(f"{address} has no registered broker" + (f" of cluster {arguments.cluster}" if arguments.cluster else ""))
    else:
        rows = [
            (data.broker_name, broker_id, addr, data.cluster, "yes" if data.enable_acting_master else "no", data.zone_name or "-")
            for data in groups
            for broker_id, addr in data.broker_addrs or (("-", "(no address)"),)
        ]
        print_table(("broker", "id", "address", "cluster", "acting master", "zone"), rows)
    return FOUND if groups or not arguments.cluster else BAD


async def _change_perm(servers: NameServers, arguments: argparse.Namespace) -> int:
    writable = arguments.action == "add-write"
    outcomes = await servers.send_to_all(change_write_perm_request(arguments.name, writable=writable))
    return report_writes(outcomes, lambda response: f"{read_write_perm_count(response)} topics", arguments)
