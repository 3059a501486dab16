"""``unchanged_result`` finds exactly the registrations that would change nothing, and their answers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicated_namesrv.routes.commands import Command, RegisterBroker
from replicated_namesrv.routes.state import RouteInfoManager
from tests.routes.strategies import commands, registrations


@pytest.mark.slow
@settings(max_examples=200)
@given(st.lists(commands, max_size=8), st.lists(registrations, min_size=1, max_size=3), st.data())
def test_it_says_what_applying_does(before: list[Command], others: list[RegisterBroker], data: st.DataObject) -> None:
    state = RouteInfoManager()
    for command in before:
        state.apply(command, 1)
    known = [command for command in before if isinstance(command, RegisterBroker)]
    for _ in range(4):
        registration = data.draw(st.sampled_from(known + others))
        expected, digest, revision = state.unchanged_result(registration), state.digest(), state.revision
        applied = state.apply(registration, 2)
        if expected is None:
            assert applied.result.changed or applied.effects, "it would have been a renewal"
        else:
            assert (applied.result, applied.effects) == (expected, ())
            assert (state.digest(), state.revision) == (digest, revision)
        known.append(registration)
