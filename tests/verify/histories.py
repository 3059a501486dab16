"""Histories for tests of the checker: parsed from a small notation, generated from a sequential object, judged by brute force."""

import random
from collections.abc import Sequence
from itertools import permutations

from replicated_namesrv.verify import Operation, Outcome
from replicated_namesrv.verify.models import Model, Token, model_of
from replicated_namesrv.verify.operation_history import Json


def history(*lines: str) -> list[Operation]:
    """Lines "start end op value": value "-" is absent, end "?" is indeterminate, "!" a sure failure; a comma makes a list."""
    operations = []
    for number, line in enumerate(lines):
        start, end, op, text = line.split()
        value: Json = None if text == "-" else text
        if op == "route":
            value = [_member(member) for member in text.split(",") if member and member != "-"]
        elif op in ("register", "unregister"):
            value = _member(text)
        outcome = {"?": Outcome.INDETERMINATE, "!": Outcome.FAIL}.get(end, Outcome.OK)
        end_ns = int(end) if outcome is Outcome.OK else None if outcome is Outcome.INDETERMINATE else int(start)
        operations.append(Operation(f"c{number}", op, "k", value, int(start), end_ns, outcome))
    return operations


def _member(text: str) -> Json:
    name, _, version = text.partition(":")
    return [name, int(version)] if version else name


def is_linearizable(operations: Sequence[Operation]) -> bool:
    """Brute force: every subset of the indeterminate writes, every order, against a plain dictionary."""
    model = model_of(operations)
    sure = [operation for operation in operations if operation.outcome is Outcome.OK]
    maybe = [operation for operation in operations if operation.outcome is Outcome.INDETERMINATE and operation.op != model.read]
    for chosen in range(1 << len(maybe)):
        taken = sure + [operation for number, operation in enumerate(maybe) if chosen >> number & 1]
        if any(_legal(model, order) for order in permutations(taken)):
            return True
    return False


def _legal(model: Model, order: Sequence[Operation]) -> bool:
    latest_start = min(operation.start_ns for operation in order) if order else 0
    state: dict[str, Token] = {}
    for operation in order:
        if operation.outcome is Outcome.OK and operation.end_ns is not None and operation.end_ns < latest_start:
            return False
        latest_start = max(latest_start, operation.start_ns)
        action = model.action(operation)
        if action.reads is not None and set(action.reads) != set(state.values()):
            return False
        if action.writes is not None:
            state.pop(action.writes.component, None)
            if action.writes.value is not None:
                state[action.writes.component] = action.writes
    return True


def generate(rng: random.Random, size: int, clients: int, *, unique: bool = True, registration: bool = False) -> list[Operation]:
    """A linearizable history: operations take effect one after the other, each at a moment inside its widened interval.

    A client's operations do not overlap. About one write in ten is indeterminate (in half of these cases it has no effect),
    one in twenty failed.
    """
    free_at = [0] * clients
    state: dict[str, Json] = {}
    operations = []
    now = 0
    for number in range(size):
        now += rng.randrange(1, 20)
        client = rng.choice([index for index, at in enumerate(free_at) if at < now] or [-1])
        if client < 0:
            now = min(free_at) + 1
            client = free_at.index(min(free_at))
        start = rng.randint(max(free_at[client] + 1, now - 60), now)
        end = now + rng.randrange(0, 60)
        free_at[client] = end
        outcome = rng.choices((Outcome.OK, Outcome.INDETERMINATE, Outcome.FAIL), (85, 10, 5))[0]
        member = rng.choice("xyz") if registration else ""
        value = number if unique else rng.randrange(3)
        kind = rng.choices(("read", "write", "delete"), (50, 40, 10))[0]
        if kind != "read" and (outcome is Outcome.OK or (outcome is Outcome.INDETERMINATE and rng.random() < 0.5)):
            state.pop(member, None)
            if kind == "write":
                state[member] = value
        operations.append(_operation(f"c{client}", kind, member, value, state, (start, end), outcome, registration))
    return operations


def _operation(
    client: str,
    kind: str,
    member: str,
    value: int,
    state: dict[str, Json],
    interval: tuple[int, int],
    outcome: Outcome,
    registration: bool,
) -> Operation:
    name, shown = kind, value if kind == "write" else state.get("") if kind == "read" else None
    result: Json = shown
    if registration:
        name = {"read": "route", "write": "register", "delete": "unregister"}[kind]
        result = [[key, state[key]] for key in sorted(state)] if kind == "read" else [member, value]
    return Operation(client, name, "k", result, interval[0], interval[1], outcome)


def mutate(rng: random.Random, operations: Sequence[Operation]) -> list[Operation]:
    """The history with one small error: a read returns the value of another read, or an interval moves."""
    changed = list(operations)
    at = rng.randrange(len(changed))
    operation = changed[at]
    reads = [other for other in changed if other.op in ("read", "route")]
    if operation in reads:
        changed[at] = operation._replace(value=rng.choice(reads).value)
    elif operation.end_ns is not None:
        shift = rng.randrange(-150, 150)
        changed[at] = operation._replace(start_ns=operation.start_ns + shift, end_ns=operation.end_ns + shift)
    return changed
