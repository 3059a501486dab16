"""Reports the requests of operators with the address of the caller, for the time line of a node without access control.

With access control, the log names the identity of the caller. Without it, only the node that receives a request knows the caller.
"""

from collections.abc import Callable

from replicated_namesrv.access.roles import OPERATORS, REQUEST_ROLES
from replicated_namesrv.server.request import Outcome, Request
from replicated_namesrv.wire.codes import RequestCode

OPERATOR_CODES = tuple(code for code, roles in REQUEST_ROLES.items() if roles is OPERATORS)
"""Requests that only operators send."""
TARGET_FIELDS = ("namespace", "key", "topic", "brokerName")
TARGET_CHARACTERS_MAX = 200
"""Longer names are cut off."""

Handler = Callable[[Request], Outcome]
Note = Callable[[str, str, str], None]
"""Receives the name of a request, its target and the host of the caller."""


def noted(code: int, handler: Handler, note: Note) -> Handler:
    """A handler that calls ``note``, then ``handler``."""
    name = RequestCode(code).name

    def handle(request: Request) -> Outcome:
        target = "/".join(request.fields[field][:TARGET_CHARACTERS_MAX] for field in TARGET_FIELDS if field in request.fields)
        note(name, target, request.connection.source_host)
        return handler(request)

    return handle
