"""Commands in the form that they have in the log, for tests and benchmarks that apply them without a leader."""

from replicated_namesrv.replication.route_machine import (
    RouteStateMachine,
    content_of,
    encode_plain,
    encode_register,
    encode_unregister,
)
from replicated_namesrv.routes.commands import Command, RegisterBroker, UnregisterBrokers


def encoded(machine: RouteStateMachine, command: Command, time_ms: int) -> bytes:
    """``command`` in the form that it has in the log of a node with the state of ``machine``."""
    if isinstance(command, RegisterBroker):
        revision = machine.state.revision
        return encode_register(command, time_ms, revision, revision, content_of(command))
    if isinstance(command, UnregisterBrokers):
        return encode_unregister(command, time_ms, machine.led_term)
    return encode_plain(command, time_ms)
