"""Random conversations: our name server answers, pushes and closes connections as RocketMQ's does. ``fidelity.py`` makes them;
``python -m tests.interop.fidelity`` makes more."""

from pathlib import Path

import pytest

from replicated_namesrv.chaos.sabotage import chosen, copy_with
from tests.interop.fidelity import STEPS_MAX, conversation, fuzz, servers
from tests.support.provision import require_rocketmq_jars

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
CONVERSATIONS, STEPS = 12, 60
SABOTAGED = "permission-ignored-alone"


def test_a_conversation_is_that_of_its_seed() -> None:
    first, second = conversation(1, STEPS), conversation(2, STEPS)
    assert first == conversation(1, STEPS) != second
    assert {step.kind for step in (*first, *second)} >= {
        "register",
        "renew",
        "unregister",
        "heartbeat",
        "query",
        "close",
        "request",
    }
    assert STEPS <= STEPS_MAX, "data versions of two conversations differ"


async def test_random_conversations_do_not_differ(tmp_path: Path, seed: int) -> None:
    require_rocketmq_jars("5.3.3")
    said: list[str] = []
    async with servers(tmp_path) as pair:
        first = seed * CONVERSATIONS
        found = await fuzz(pair, range(first, first + CONVERSATIONS), STEPS, said.append)
        assert found is None, found
    assert any(" 0 pushes" not in line for line in said), "NOTIFY_MIN_BROKER_ID_CHANGE was compared, too"


async def test_a_difference_is_found_and_shrunk(tmp_path: Path) -> None:
    """Ours ignores WIPE_WRITE_PERM_OF_BROKER (205). Two steps show it: a registration with a topic, and the request."""
    require_rocketmq_jars("5.3.3")
    (sabotage,) = chosen([SABOTAGED])
    program = copy_with(sabotage, tmp_path / "copy")
    async with servers(tmp_path, program=program) as pair:
        small = await fuzz(pair, range(20), STEPS, lambda text: None)
    assert small is not None
    assert [step.code or step.kind for step in small.steps] == ["register", 205]
    assert any(question.startswith("route of ") for question in small.found)
