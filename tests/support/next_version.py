"""``namesrv serve`` of a version to come, to upgrade to: its nodes have one kind of command more.

python -m tests.support.next_version [options of namesrv serve]

It is this version plus what a newer one would bring: a command of version 2, which writes the KV entries of one namespace, and
which it proposes as such. A node of this version does not know the kind.
"""

import sys
from functools import partial

from replicated_namesrv.cli.main import run_command
from replicated_namesrv.errors import OutcomeUnknownError, UnavailableError
from replicated_namesrv.raft.config import RaftConfig
from replicated_namesrv.raft.interfaces import Committed, Rejected
from replicated_namesrv.replication import machine
from replicated_namesrv.replication import node as node_module
from replicated_namesrv.replication.machine import Applied, RouteStateMachine
from replicated_namesrv.replication.node import ReplicatedNode
from replicated_namesrv.routes.commands import Command, PutKVConfig
from replicated_namesrv.routes.results import Result

VERSION = 2
NEW_KIND = 99
NAMESPACE = "written-by-the-next-version"


class NextNode(ReplicatedNode):
    """Writes the namespace by the new command, everything else as before."""

    async def _plain(self, command: Command) -> Result:
        if not (isinstance(command, PutKVConfig) and command.namespace == NAMESPACE):
            return await super()._plain(command)
        data = machine._encode([NEW_KIND], command, self.signs.leader_time_ms)
        outcome = await self._raft.propose(data, None, VERSION)  # type: ignore[call-arg]  # no version needs it so far
        if isinstance(outcome, Committed):
            assert isinstance(outcome.result, Applied)
            return outcome.result.result
        raise (UnavailableError if isinstance(outcome, Rejected) else OutcomeUnknownError)(outcome.reason)


if __name__ == "__main__":
    machine._HANDLERS[NEW_KIND] = (RouteStateMachine._plain, 0)
    setattr(node_module, "RaftConfig", partial(RaftConfig, command_version=VERSION))  # noqa: B010 - a name of another module
    setattr(node_module, "ReplicatedNode", NextNode)  # noqa: B010
    sys.exit(run_command("serve", sys.argv[1:]))
