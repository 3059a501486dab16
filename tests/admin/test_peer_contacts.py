"""What the contacts over Raft show about the peers, and when a peer counts as lost."""

from typing import Any

import pytest

from replicated_namesrv.admin.peer_contacts import CLOSED, SILENT, PeerChange, PeerWatch, contact_of, peers_of


def raft_peers(silent_s: float | None, protocol: int = 2) -> dict[str, Any]:
    """The Raft status of a node whose peer n2 has been silent for this long."""
    n2 = {"connected": True, "error": "", "silent_s": silent_s}
    return {"transport": {"peers": {"n2": n2}}, "peers": {"n2": {"protocol": protocol}}}


@pytest.mark.parametrize(
    ("silent_s", "protocol", "failing_ms", "is_silent", "contact"),
    [
        (0.1, 2, None, False, (False, None)),
        (0.1, 2, 5_000, False, (True, None)),  # its bytes arrived after the first request without an answer
        (1.9, 2, 2_000, False, (False, None)),  # paused: no bytes after that request
        (2.1, 2, 60_000, True, (False, 2_100)),
        (2.1, 2, None, True, (False, 2_100)),
        (2.1, 0, None, False, (False, None)),  # a follower of 0.1.0 sends nothing to another follower
        (None, 2, 60_000, False, (False, None)),
    ],
)
def test_silence_over_raft_shows_what_an_open_connection_does_not(
    silent_s: float | None, protocol: int, failing_ms: int | None, is_silent: bool, contact: tuple[bool, int | None]
) -> None:
    peer = peers_of(raft_peers(silent_s, protocol), 2_000)["n2"]
    assert peer["connected"]
    assert peer["silentMs"] == (None if silent_s is None else int(1000 * silent_s))
    assert peer["silent"] == is_silent
    assert contact_of(peer, failing_ms) == contact


def peers(silent_s: float | None) -> dict[str, dict[str, Any]]:
    return peers_of(raft_peers(silent_s), 2_000)


@pytest.mark.parametrize(("silent_s", "why"), [(None, CLOSED), (2.1, SILENT)], ids=["closed", "silent"])
def test_peer_is_lost_and_comes_back(silent_s: float | None, why: str) -> None:
    watch = PeerWatch()
    assert watch.look(peers(0.1), False, 10_000) == []
    assert watch.look(peers(silent_s), False, 12_000) == [PeerChange("n2", 9_900, why)]
    assert watch.look(peers(silent_s), False, 13_000) == []
    assert watch.look(peers(0.0), False, 14_000) == [PeerChange("n2", 9_900, None)]
    assert watch.look(peers(0.0), False, 15_000) == []
    assert watch.look(peers(None), False, 16_000) == [PeerChange("n2", 15_000, CLOSED)]


def test_peer_without_a_first_contact_is_not_lost() -> None:
    """A node that starts with a cluster, or is added to it, waits for its peers."""
    watch = PeerWatch()
    assert watch.look(peers(None), False, 10_000) == []
    assert watch.look(peers(2.1), False, 10_500) == []
    assert watch.look(peers(0.0), False, 11_000) == []
    assert watch.look(peers(None), False, 12_000) == [PeerChange("n2", 11_000, CLOSED)]


def test_paused_node_blames_no_peer() -> None:
    watch = PeerWatch()
    assert watch.look(peers(0.0), False, 10_000) == []
    assert watch.look(peers(9.0), True, 20_000) == []
    assert watch.look(peers(0.1), False, 20_500) == []
    assert watch.look(peers(9.0), False, 30_000) == [PeerChange("n2", 20_400, SILENT)]


def test_removed_member_is_forgotten() -> None:
    watch = PeerWatch()
    watch.look(peers(0.0), False, 10_000)
    assert watch.look({}, False, 11_000) == []
    assert watch.look(peers(None), False, 12_000) == []
