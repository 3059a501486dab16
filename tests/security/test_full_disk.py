"""A disk that is nearly full: growth is refused before it is proposed, and everything else goes on."""

from pathlib import Path

import pytest

from replicated_namesrv.files import DISK_LOOK_S, DiskReserve
from tests.security.attacked import MODES, attacked, started
from tests.support.waiting import wait_until

MORE_THAN_ANY_DISK = 1 << 60


@pytest.mark.parametrize("mode", MODES)
def test_below_the_reserve_growth_is_refused_and_the_rest_goes_on(tmp_path: Path, mode: str) -> None:
    with attacked(tmp_path, mode) as node:
        assert node.http("/v1/kv/n/old", "PUT", b"v" * 1000).status == 200
        node.stop()
    with node.file.open("a") as file:
        file.write(f"diskReserveBytes={MORE_THAN_ANY_DISK}\n")
    with started(tmp_path, node.file, node.port) as full:
        for _ in range(40):
            refused = full.http("/v1/kv/n/new", "PUT", b"v" * 100_000)
            assert (refused.status, "the disk is nearly full" in refused.json["error"]) == (413, True)
        assert full.http("/v1/kv").json["entries"] == [{"namespace": "n", "key": "old", "value": "v" * 1000}]
        assert full.http("/v1/kv/n/old", "PUT", b"w" * 999).json["changed"] is True, "it adds nothing"
        assert full.http("/v1/kv/n/old", "DELETE").json["changed"] is True
        assert full.http("/readyz").status == 200
        assert 'namesrv_limits_hit_total{limit="diskReserveBytes"} 40.0' in full.http("/metrics").text
        wait_until(lambda: "disk below diskReserveBytes" in full.log, "the log says so")
        full.stop()


def test_room_is_what_is_free_beyond_the_reserve_and_a_copy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now_s, free = [0.0], [1000]
    disk = DiskReserve(tmp_path / "missing", 100, lambda folder: free[0], lambda: now_s[0])
    assert disk.room(beside=50) == 850
    free[0] = 120
    assert disk.room(beside=50) == 850, "looked up once a second at most"
    now_s[0] += DISK_LOOK_S
    assert (disk.room(beside=50), disk.room(beside=0)) == (0, 20)
    assert [record.message for record in caplog.records] == [
        "disk below diskReserveBytes: refusing what adds to the state",
        "disk has room again",
    ]
    assert DiskReserve(tmp_path / "missing", 0).room(0) > 0
