"""Fuzzing of every parser (12,000 inputs each) and connection (1,500 each): 220,500 in all.

Longer: ``python -m tests.fuzz --inputs 10000000``.
"""

from collections.abc import Iterator

import pytest

from replicated_namesrv.admin import json_views
from replicated_namesrv.raft.transport import SEAL_BYTES, FrameSeal
from replicated_namesrv.server.connection import RemotingConnection
from tests.fuzz.connections import stop_nodes
from tests.fuzz.engine import CORPUS, FuzzError, fuzz
from tests.fuzz.targets import TARGETS, Target

INPUTS = 12_000


@pytest.fixture(scope="module", autouse=True)
def _nodes() -> Iterator[None]:
    yield
    stop_nodes()


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_parser(name: str, seed: int) -> None:
    fuzz(name, TARGETS[name], seed, INPUTS // TARGETS[name].cost)


def test_each_target_has_a_corpus() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} == set(TARGETS)


@pytest.mark.parametrize("name", [name for name in TARGETS if TARGETS[name].errors])
def test_a_defect_is_found_and_its_command_is_shown(name: str) -> None:
    """The engine sees an error that the target does not document."""
    target = TARGETS[name]
    with pytest.raises(FuzzError, match=rf"repeat: python -m tests\.fuzz --target {name} --seed 7 --inputs-per-target 500"):
        fuzz(name, Target(target.run, ()), 7, 500)


def accept_any_mac(seal: FrameSeal, frame: bytes) -> bytes:
    return frame[:-SEAL_BYTES]


def fail(*_: object) -> None:
    raise KeyError("limit")


@pytest.mark.parametrize(
    ("name", "owner", "broken", "instead"),
    [
        ("first-bytes", RemotingConnection, "_refuse", lambda connection, why: None),
        ("peer-handshake", FrameSeal, "opened", accept_any_mac),
        ("admin-request", json_views, "page_request", fail),
    ],
)
def test_a_broken_connection_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, owner: object, broken: str, instead: object
) -> None:
    monkeypatch.setattr(owner, broken, instead)
    with pytest.raises(FuzzError, match=f"repeat: python -m tests.fuzz --target {name}"):
        fuzz(name, TARGETS[name], 7, 500)
