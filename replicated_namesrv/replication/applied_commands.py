"""AppliedCommands: performs the effects of applied commands, and reports registrations and removals to ``BrokerLiveness``.

when                                    effects given to ``perform``
replay of the log known at the start    none
entry of the term that this node leads  all: notifications of brokers (905), ended registrations
any other entry                         ended registrations

In all three cases, this node drops its records about the connections and contacts of ended registrations, and closes the
connections of expired brokers.
"""

import asyncio
from collections.abc import Callable

from replicated_namesrv.replication.consensus import Consensus
from replicated_namesrv.replication.liveness.broker_liveness import BrokerLiveness
from replicated_namesrv.replication.marks import Key
from replicated_namesrv.replication.route_machine import RouteStateMachine
from replicated_namesrv.routes.results import BrokerRemoved, Effect


class AppliedCommands:
    """The applied commands of one node, on its event loop. Sets the callbacks of ``machine``."""

    def __init__(
        self,
        machine: RouteStateMachine,
        liveness: BrokerLiveness,
        removed: Callable[[BrokerRemoved, bool], None],
        consensus: Consensus,
    ) -> None:
        """``removed(effect, is_expired)``: a registration ended."""
        self._machine, self._liveness, self._removed, self._consensus = machine, liveness, removed, consensus
        self.is_live = False
        """Whether the log known at the start has been applied. Commands after that are new."""
        self.perform: Callable[[tuple[Effect, ...]], None] = lambda effects: None
        machine.on_registered = self._on_registered
        machine.on_backup = self._on_backup
        machine.on_lead = self._on_lead

    def _on_registered(self, key: Key, epoch: int | None, content: str) -> None:
        """Report a registration in a later turn. During replay, a node reports it only if it leads: other nodes may already wait
        for the leader's decision on a copy. It counts as a contact only after this leader's LEAD is applied. Registrations before
        LEAD are part of the state with which ``Silence`` begins.
        """
        role = self._liveness.role
        if self.is_live or role is not None:
            asyncio.get_running_loop().call_soon(self._liveness.registered, key, epoch if self._is_new() else None, content)

    def _is_new(self) -> bool:
        role = self._liveness.role
        return self.is_live or (role is not None and role.silence is not None)

    def _on_backup(self, epoch: int) -> None:
        """Report all registrations of a backup at once, because they may be many."""
        if self._is_new():
            asyncio.get_running_loop().call_soon(self._liveness.backup_restored, epoch)

    def _on_lead(self, term: int) -> None:
        asyncio.get_running_loop().call_soon(self._liveness.lead_applied, term)

    def applied(self, term: int) -> None:
        """An entry of ``term`` was applied: perform the effects of its commands."""
        effects, self._machine.effects = self._machine.effects, []
        if not effects:
            return
        expired, self._machine.expired = self._machine.expired, {}
        for effect in effects:
            if isinstance(effect, BrokerRemoved):
                key = effect.cluster_name, effect.broker_addr
                self._liveness.removed(key, effect.epoch)
                self._removed(effect, expired.get(key) == effect.epoch)
        if self.is_live:
            pushes = self._consensus.led_term == term
            self.perform(tuple(e for e in effects if pushes or isinstance(e, BrokerRemoved)))
