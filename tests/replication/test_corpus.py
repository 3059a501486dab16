"""Recorded answers of RocketMQ's own name server 5.3.3, replayed against three nodes, through the leader and a follower."""

from pathlib import Path
from typing import Any

import pytest

from tests.server.test_corpus import DEVIATIONS, Replay, load_cases
from tests.support.remoting_server import Peer, request
from tests.support.replicated_cluster import live_cluster
from tests.support.waiting import wait_until


def replay(case: dict[str, Any], folder: Path, through: str) -> None:
    with live_cluster(folder, bindAddress="0.0.0.0", fenceAfterMs="20000") as cluster:
        wait_until(lambda: all(m.service.state.compares_content for m in cluster.members), "the rules of this version")
        member = cluster.leader() if through == "leader" else cluster.follower()
        if not case.get("fresh"):  # recorded on a server that had known this namespace
            with Peer(member.server.port) as peer:
                for code in (100, 102):
                    peer.send(request(code, {"namespace": "ORDER_TOPIC_CONFIG", "key": "x", "value": "y"}))
                    assert peer.answers(1)[0].code == 0
        run = Replay(member.server.port)
        try:
            for step in case["steps"]:
                run.run(step)
        finally:
            run.close()
        wait_until(lambda: len({cluster.do(m.service._machine.digest) for m in cluster.members}) == 1, "equal digests")


@pytest.mark.slow
@pytest.mark.parametrize("through", ["leader", "follower"])
@pytest.mark.parametrize("case", load_cases(), ids=lambda case: case["name"])
def test_recorded_case(case: dict[str, Any], through: str, tmp_path: Path) -> None:
    if case["name"] in DEVIATIONS:
        with pytest.raises(AssertionError):
            replay(case, tmp_path, through)
    else:
        replay(case, tmp_path, through)
