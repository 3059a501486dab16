"""Models: the effect of a history's operations on an object.

Every object is a map from *component* to value. A write sets one component, whatever its old value; a read returns the whole
map. A register and a key of a key-value store have the one component ""; a route has one component for each broker that is a
member of it. A *token* is a pair (component, value), value None being absence: each write produces one token, each read
demands one token of every component. The module ``search`` works on tokens only.

===============  ===========================  ============================================================================
model            operations                   value
===============  ===========================  ============================================================================
``register``     read, write, delete          any JSON value; null returned by a read is absence
``kv``           get, put, delete             as ``register``, in the words of a key-value store
``registration`` route, register, unregister  a member: a string, or [string, version]; a route returns a list of members
===============  ===========================  ============================================================================

The names of a key's operations determine its model. Values need not be unique, but unique values make the check stricter and
faster.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

from replicated_namesrv.verify.operation_history import HistoryError, Json, Operation


class Token(NamedTuple):
    """One value of one component; ``value`` is canonical JSON text, None for absent."""

    component: str
    value: str | None


class Action(NamedTuple):
    """An operation as tokens: either what it writes, or what it reads."""

    writes: Token | None
    reads: tuple[Token, ...] | None
    """The values of the components that the read found. All other components must be absent. None: the operation is not a
    read."""


class Model(NamedTuple):
    """Names of the three operations of one kind of object."""

    name: str
    read: str
    write: str
    delete: str
    members: bool
    """Whether a value names its component (registrations). False: a value is the value of the only component."""

    def action(self, operation: Operation) -> Action:
        """The action of ``operation``. Raises HistoryError for a value that this model does not have."""
        if operation.op == self.read:
            return Action(None, self._tokens_read(operation))
        if not self.members:
            return Action(Token("", None if operation.op == self.delete else _canonical(operation.value)), None)
        member = _member(operation.value, operation)
        return Action(Token(member.component, None) if operation.op == self.delete else member, None)

    def _tokens_read(self, operation: Operation) -> tuple[Token, ...]:
        if not self.members:
            return () if operation.value is None else (Token("", _canonical(operation.value)),)
        if operation.value is None:
            return ()
        if not isinstance(operation.value, list):
            raise HistoryError(f"{operation.describe()}: a {self.read} returns a list of members")
        tokens = tuple(_member(value, operation) for value in operation.value)
        if len({token.component for token in tokens}) != len(tokens):
            raise HistoryError(f"{operation.describe()}: a member is named twice")
        return tokens


def _canonical(value: Json) -> str | None:
    return None if value is None else json.dumps(value, sort_keys=True)


def _member(value: Json, operation: Operation) -> Token:
    match value:
        case str():
            return Token(value, "")
        case [str() as name, version]:
            return Token(name, json.dumps(version, sort_keys=True))
    raise HistoryError(f"{operation.describe()}: {value!r} is not a member; expected a string or [string, version]")


MODELS = (
    Model("register", "read", "write", "delete", False),
    Model("kv", "get", "put", "delete", False),
    Model("registration", "route", "register", "unregister", True),
)


def model_of(operations: Sequence[Operation]) -> Model:
    """The one model that has all these operations. Raises HistoryError if there is none."""
    names = {operation.op for operation in operations}
    for model in MODELS:
        if names <= {model.read, model.write, model.delete}:
            return model
    known = "; ".join(f"{model.name}: {model.read}, {model.write}, {model.delete}" for model in MODELS)
    raise HistoryError(f"key {operations[0].key!r} has operations {sorted(names)}, which no model has together ({known})")
