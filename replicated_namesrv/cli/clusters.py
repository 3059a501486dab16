"""``namesrv clusters``: clusters and how many brokers each has."""

import argparse

from replicated_namesrv.cli.client import (
    FOUND,
    add_client_arguments,
    add_consistency_arguments,
    print_answer,
    print_freshness,
    print_table,
    run_with_servers,
    with_consistency,
)
from replicated_namesrv.client.nameservers import NameServers
from replicated_namesrv.client.queries import cluster_info_request, read_cluster_info

HELP = "list clusters with their brokers"

_EXAMPLES = """\
  namesrv clusters
  namesrv clusters --json -n 10.0.0.1:9876
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_consistency_arguments(parser)
    add_client_arguments(parser, _EXAMPLES)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code."""
    return run_with_servers(arguments, _clusters)


async def _clusters(servers: NameServers, arguments: argparse.Namespace) -> int:
    address, response = await servers.query(with_consistency(cluster_info_request(), arguments))
    info = read_cluster_info(response)
    groups = {data.broker_name: data for data in info.broker_addr_table}
    if arguments.json:
        print_answer(
            {"nameServer": address, "clusters": dict(info.cluster_addr_table)},
            response,
            arguments,
        )
        return FOUND
    print_freshness(response, arguments)
    if not info.cluster_addr_table:
        print(f"{address} has no cluster")
    else:
        rows = []
        for name, members in info.cluster_addr_table:
            known = [groups[member] for member in members if member in groups]
            masters = sum(data.master_addr is not None for data in known)
            rows.append((name, len(members), masters, sum(len(data.broker_addrs) for data in known) - masters, " ".join(members)))
        print_table(("cluster", "groups", "masters", "slaves", "broker names"), rows)
    return FOUND
