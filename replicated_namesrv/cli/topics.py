"""``namesrv topics``: lists topics and deletes them from the name servers."""

import argparse

from replicated_namesrv.cli.client import (
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
    delete_topic_request,
    read_done,
    read_topics,
    topic_list_request,
    topics_of_cluster_request,
    topics_request,
)
from replicated_namesrv.wire.codes import RequestCode

HELP = "list topics, or delete one from the name servers"

_EXAMPLES = """\
  namesrv topics                                       every topic that has a route
  namesrv topics --cluster DefaultCluster              topics of one cluster's brokers
  namesrv topics --system                              cluster and broker names, which are system topics
  namesrv topics delete Old --cluster DefaultCluster   the request that `mqadmin deleteTopic` sends to every name server
"""

_LISTS = {
    "unit": RequestCode.GET_UNIT_TOPIC_LIST,
    "unit-sub": RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
    "unit-sub-ununit": RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    "system": RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("action", nargs="?", choices=("list", "delete"), default="list", help="default: list")
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help="topic to delete, at every name server of the list")
    parser.add_argument(
        "--cluster",
        metavar="C",
        help="list: only topics of this cluster's brokers; delete: only the topic's queues on these brokers",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--unit", dest="which", action="store_const", const="unit", help="only topics of a unit")
    which.add_argument(
        "--unit-sub", dest="which", action="store_const", const="unit-sub", help="only topics with unit subscriptions"
    )
    which.add_argument(
        "--unit-sub-ununit",
        dest="which",
        action="store_const",
        const="unit-sub-ununit",
        help="only topics that have unit subscriptions but belong to no unit",
    )
    which.add_argument(
        "--system", dest="which", action="store_const", const="system", help="only system topics known to the server"
    )
    add_consistency_arguments(parser)
    add_client_arguments(parser, _EXAMPLES)
    parser.set_defaults(usage_error=parser.error)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code."""
    if (arguments.action == "delete") != (arguments.topic is not None):
        arguments.usage_error("'delete' needs a TOPIC, 'list' takes none: namesrv topics delete TOPIC")
    if arguments.which and (arguments.cluster or arguments.action == "delete"):
        arguments.usage_error(f"--{arguments.which} lists topics of all clusters: leave out --cluster and 'delete'")
    if arguments.action == "delete":
        refuse_consistency(arguments)
    return run_with_servers(arguments, _delete if arguments.action == "delete" else _list)


async def _list(servers: NameServers, arguments: argparse.Namespace) -> int:
    if arguments.which:
        request = topic_list_request(_LISTS[arguments.which])
    elif arguments.cluster:
        request = topics_of_cluster_request(arguments.cluster)
    else:
        request = topics_request()
    address, response = await servers.query(with_consistency(request, arguments))
    topics = read_topics(response)
    if arguments.json:
        print_answer(
            {"nameServer": address, "topics": list(topics.topic_list), "brokerAddr": topics.broker_addr}, response, arguments
        )
    else:
        for topic in topics.topic_list:
            print(topic)
        print_freshness(response, arguments)
    return FOUND


async def _delete(servers: NameServers, arguments: argparse.Namespace) -> int:
    outcomes = await servers.send_to_all(delete_topic_request(arguments.topic, arguments.cluster))
    return report_writes(outcomes, read_done, arguments)
