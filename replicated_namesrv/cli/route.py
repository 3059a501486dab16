"""``namesrv route TOPIC``: shows the route that a client would receive."""

import argparse
from typing import Any

from replicated_namesrv.cli.client import (
    BAD,
    FOUND,
    add_client_arguments,
    add_consistency_arguments,
    perm_text,
    print_answer,
    print_freshness,
    print_table,
    run_with_servers,
    with_consistency,
)
from replicated_namesrv.client.nameservers import NameServers
from replicated_namesrv.client.queries import read_route, route_request
from replicated_namesrv.model import BrokerData, TopicRouteData

HELP = "show the route of a topic: brokers, addresses, queues, permissions"

_EXAMPLES = """\
  namesrv route TopicTest                              ask the local name server
  namesrv route TopicTest -n '10.0.0.1:9876;10.0.0.2:9876'   ask the first of these that answers
  namesrv route TopicTest --json | jq .brokers
  namesrv route TopicTest --read-consistency stale --max-staleness-ms 5000   from any node without waiting, at most 5 s old
  namesrv diff                                         do all servers give the same answer?
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("topic", metavar="TOPIC")
    add_consistency_arguments(parser)
    add_client_arguments(parser, _EXAMPLES)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code."""
    return run_with_servers(arguments, _route)


async def _route(servers: NameServers, arguments: argparse.Namespace) -> int:
    address, response = await servers.query(with_consistency(route_request(arguments.topic), arguments))
    route = read_route(response)
    if arguments.json:
        print_answer(
            {"topic": arguments.topic, "nameServer": address, "found": route is not None} | (as_json(route) if route else {}),
            response,
            arguments,
        )
        return BAD if route is None else FOUND
    print_freshness(response, arguments)
    if route is None:
        print(f"{address} has no route for topic {arguments.topic}")
    else:
        print(f"topic {arguments.topic}, answered by {address}\n")
        _print(route)
    return BAD if route is None else FOUND


def _print(route: TopicRouteData) -> None:
    rows = []
    for data in route.broker_datas:
        for broker_id, addr in data.broker_addrs:
            rows.append(
                (data.broker_name, broker_id, addr, "master" if broker_id == 0 else "slave", data.cluster, data.zone_name or "-")
            )
    print_table(("broker", "id", "address", "role", "cluster", "zone"), rows)
    print()
    print_table(
        ("broker", "perm", "read queues", "write queues", "flag"),
        (
            (name, perm_text(queues.perm), queues.read_queue_nums, queues.write_queue_nums, queues.topic_sys_flag)
            for name, queues in route.queue_datas
        ),
    )
    if route.order_topic_conf is not None:
        print(f"\norder configuration: {route.order_topic_conf}")
    if route.topic_queue_mapping_by_broker:
        print("\nstatic mapping:")
        print_table(
            ("broker", "epoch", "scope", "global queue:local queue", "of"),
            (
                (name, info.epoch, info.scope, " ".join(f"{here}:{there}" for here, there in info.curr_id_map), info.total_queues)
                for name, info in route.topic_queue_mapping_by_broker or ()
            ),
        )
    for addr, filter_servers in route.filter_server_table:
        print(f"\nfilter servers of {addr}: {' '.join(filter_servers)}")


def as_json(route: TopicRouteData) -> dict[str, Any]:
    """A route for scripts, in RocketMQ's field names."""
    return {
        "brokers": [broker_as_json(data) for data in route.broker_datas],
        "queues": [
            {
                "brokerName": name,
                "perm": queues.perm,
                "readQueueNums": queues.read_queue_nums,
                "writeQueueNums": queues.write_queue_nums,
                "topicSysFlag": queues.topic_sys_flag,
            }
            for name, queues in route.queue_datas
        ],
        "orderTopicConf": route.order_topic_conf,
        "filterServers": {addr: list(filter_servers) for addr, filter_servers in route.filter_server_table},
        "staticMappings": {
            name: {
                "bname": info.bname,
                "currIdMap": {str(here): there for here, there in info.curr_id_map},
                "dirty": info.dirty,
                "epoch": info.epoch,
                "scope": info.scope,
                "topic": info.topic,
                "totalQueues": info.total_queues,
            }
            for name, info in route.topic_queue_mapping_by_broker or ()
        },
    }


def broker_as_json(data: BrokerData) -> dict[str, Any]:
    """A broker group for scripts."""
    return {
        "brokerName": data.broker_name,
        "cluster": data.cluster,
        "brokerAddrs": {str(broker_id): addr for broker_id, addr in data.broker_addrs},
        "enableActingMaster": data.enable_acting_master,
        "zoneName": data.zone_name,
    }
