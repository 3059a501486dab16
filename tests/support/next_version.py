"""``namesrv serve`` of a later version, for tests of upgrades: its nodes know one more kind of command.

python -m tests.support.next_version [options of namesrv serve]

It is this version plus a command of the next command version, as a newer version would have. The command writes the KV entries
of one namespace. A node of this version does not know the kind.
"""

import sys

from replicated_namesrv.cli.main import run_command
from replicated_namesrv.model import ChangeOrigin
from replicated_namesrv.replication import replicated_node as node_module
from replicated_namesrv.replication import route_machine as machine
from replicated_namesrv.replication.command_kinds import COMMAND_KINDS, ENVELOPE_FORMAT, CommandKind, newest_version
from replicated_namesrv.replication.replicated_node import ReplicatedNode
from replicated_namesrv.replication.route_machine import RouteStateMachine
from replicated_namesrv.routes.commands import Command, PutKVConfig
from replicated_namesrv.routes.quotas import Grant
from replicated_namesrv.routes.results import Result
from replicated_namesrv.service import Connection

VERSION = newest_version() + 1
NEW_KIND = 99
NAMESPACE = "written-by-the-next-version"


def encode_new(command: Command, time_ms: int) -> bytes:
    """The new kind of command, which has the same effect as a plain one."""
    return machine._encode([NEW_KIND], command, time_ms)


class NextNode(ReplicatedNode):
    """Writes entries of the namespace with the new command, and all others as before."""

    async def _propose_plain(
        self,
        command: Command,
        origin: ChangeOrigin | None = None,
        connection: Connection | None = None,
        grant: Grant | None = None,
    ) -> Result:
        if not (isinstance(command, PutKVConfig) and command.namespace == NAMESPACE):
            return await super()._propose_plain(command, origin, connection, grant)
        return (await self.proposer.propose(encode_new(command, self.liveness.client.leader_time_ms))).result


if __name__ == "__main__":
    COMMAND_KINDS[ENVELOPE_FORMAT, NEW_KIND] = CommandKind("next", VERSION)
    machine._HANDLERS[NEW_KIND] = (RouteStateMachine._plain, 0)
    setattr(node_module, "ReplicatedNode", NextNode)  # noqa: B010 - a name of another module
    sys.exit(run_command("serve", sys.argv[1:]))
