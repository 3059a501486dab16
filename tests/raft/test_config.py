"""Settings that contradict each other are refused with both values."""

from pathlib import Path

import pytest

from replicated_namesrv.raft.raft_config import RaftConfig
from replicated_namesrv.raft.raft_errors import TransportError
from replicated_namesrv.raft.raft_service import RaftService
from replicated_namesrv.raft.transport import TransportSettings
from tests.support.raft_world import Machine


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"election_min_ms": 200}, "election_min_ms is 200 and heartbeat_ms 50"),
        ({"election_max_ms": 300}, "election_max_ms is 300 and election_min_ms 300"),
        ({"clock_drift_max": 0.5}, "clock_drift_max is 0.5"),
        ({"clock_drift_max": -0.1}, "clock_drift_max is -0.1"),
        ({"compact_margin_entries": 50_000}, "compact_margin_entries is 50000 and compact_entries 50000"),
        ({"inflight_messages_max": 0}, "inflight_messages_max is 0"),
        ({"compact_margin_entries": -1}, "compact_margin_entries is -1"),
    ],
)
def test_contradictions_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RaftConfig(**settings)  # type: ignore[arg-type]  # wrong on purpose


def test_messages_that_no_frame_can_hold_are_refused(tmp_path: Path) -> None:
    """Otherwise the first large command would repeatedly close every connection."""
    transport = TransportSettings("n1", "test", {"n1": ("127.0.0.1", 1)}, ("127.0.0.1", 0))
    with pytest.raises(TransportError, match="frame_bytes_max is 20971520"):
        RaftService(transport, tmp_path, Machine(), RaftConfig(command_bytes_max=20 << 20))
