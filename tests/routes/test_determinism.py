"""The same commands give the same bytes: in another process, with another hash seed, with a restore in between."""

import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from replicated_namesrv.routes.commands import (
    BrokerRemoval,
    ChangeWritePerm,
    Command,
    DeleteTopic,
    PutKVConfig,
    UnregisterBrokers,
)
from replicated_namesrv.routes.state import RouteInfoManager, RouteSettings
from tests.support.routes import mapping, queues, register

ROOT = Path(__file__).resolve().parents[2]
FLAGS = RouteSettings(support_acting_master=True, notify_min_broker_id_changed=True)


def random_history(seed: int, length: int) -> list[Command]:
    """Commands drawn from a seed, over a handful of brokers and topics."""
    draw = random.Random(seed)
    history: list[Command] = []
    for _ in range(length):
        name, addr = f"b{draw.randrange(4)}", f"10.0.0.{draw.randrange(6)}:10911"
        topics = {f"topic-{draw.randrange(40)}": queues(draw.choice((4, 6, 7))) for _ in range(draw.randrange(2, 12))}
        kind = draw.randrange(10)
        if kind < 6:
            infos = {topic: mapping(topic, name) for topic in topics} if kind == 0 else None
            history.append(
                register(
                    name,
                    draw.randrange(3),
                    addr,
                    topics=topics,
                    mappings=infos,
                    acting_master=draw.choice((None, False, True)),
                    version=draw.randrange(4),
                    cluster=draw.choice("CCD"),
                )
            )
        elif kind == 6:
            epoch = draw.choice((None, draw.randrange(length)))
            history.append(UnregisterBrokers((BrokerRemoval("C", addr, name, draw.randrange(3), epoch),)))
        elif kind == 7:
            history.append(DeleteTopic(draw.choice(list(topics)), draw.choice((None, "C"))))
        elif kind == 8:
            history.append(ChangeWritePerm(name, draw.choice((True, False))))
        else:
            history.append(PutKVConfig("ORDER_TOPIC_CONFIG", draw.choice(list(topics)), addr))
    return history


def trace(history: list[Command], restore_at: set[int]) -> str:
    """Hash over every result, effect and digest, and the snapshot at the end."""
    state = RouteInfoManager(FLAGS)
    total = hashlib.sha256()
    for time_ms, command in enumerate(history):
        if time_ms in restore_at:
            data = list(state.snapshot())
            state = RouteInfoManager()
            state.restore(data)
        applied = state.apply(command, time_ms)
        total.update(repr(applied).encode())
        total.update(state.digest())
        total.update(repr([state.all_topics(), state.system_topics(), state.registrations(), state.route("topic-1")]).encode())
    for line in state.snapshot():
        total.update(line)
    return total.hexdigest()


def test_a_restore_anywhere_changes_nothing() -> None:
    for seed in range(3):
        history = random_history(seed, 200)
        draw = random.Random(seed)
        expected = trace(history, set())
        for times in (1, 5, 50):
            restore_at = {draw.randrange(len(history)) for _ in range(times)}
            assert trace(history, restore_at) == expected, f"seed {seed}, restored before commands {sorted(restore_at)}"


@pytest.mark.parametrize("hash_seed", ["0", "1", "4711"])
def test_another_process_with_another_hash_seed(hash_seed: str) -> None:
    code = "from tests.routes.test_determinism import *; print(trace(random_history(7, 300), {100}))"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    printed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
    assert printed.stdout.strip() == trace(random_history(7, 300), set())
