"""Pages, readiness and loop lag, each by itself."""

import asyncio

import pytest

from replicated_namesrv.address_list import advertised_host, checked_list, is_member_name, unit_lists
from replicated_namesrv.admin.health import Layer, as_json, as_text, readiness
from replicated_namesrv.admin.json_views import host_for_brokers
from replicated_namesrv.admin.loop_lag import WINDOW_S, LoopLag
from replicated_namesrv.admin.paging import PageRequest, build_rows, cut
from replicated_namesrv.errors import SettingError
from replicated_namesrv.settings_sources import load_settings


async def test_pages_survive_that_their_last_row_vanishes() -> None:
    keys = [f"k{i}" for i in range(6)]
    first = await cut(keys, PageRequest(3, None, ""))
    assert (list(first.keys), first.next, first.total) == (["k0", "k1", "k2"], "k2", 6)
    keys.remove("k2")
    second = await cut(keys, PageRequest(3, "k2", ""))
    assert (list(second.keys), second.next) == (["k3", "k4", "k5"], None)


async def test_search_ignores_case_and_counts_what_matches() -> None:
    page = await cut(["Alpha", "beta", "alphabet"], PageRequest(10, None, "alpha"))
    assert (list(page.keys), page.total) == (["Alpha", "alphabet"], 2)


async def test_building_many_rows_lets_others_run_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicated_namesrv.admin.paging.SLICE_S", 0.0)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    rows = await build_rows([str(i) for i in range(100)], lambda key: None if key == "7" else int(key))
    task.cancel()
    assert rows == [i for i in range(100) if i != 7]
    assert turns >= 100


async def test_readiness_stops_at_the_first_layer_that_fails() -> None:
    asked: list[str] = []

    def layer(name: str, problem: str | None) -> Layer:
        def check() -> str | None:
            asked.append(name)
            return problem

        return Layer(name, check)

    found = await readiness([layer("one", None), layer("two", "broken"), layer("three", None)])
    assert asked == ["one", "two"]
    assert as_text(found, verbose=False) == "not ready: two: broken\n"
    assert as_text(found, verbose=True) == "[+] one: ok\n[-] two: broken\n"
    assert as_json(found)["failedLayer"] == "two"


async def test_a_check_that_raises_or_hangs_is_a_failed_layer() -> None:
    def broken() -> str | None:
        raise RuntimeError("why")

    async def hanging() -> str | None:
        await asyncio.Event().wait()
        return None

    assert (await readiness([Layer("a", broken)]))[0].problem == "RuntimeError: why"
    assert (await readiness([Layer("b", hanging)], timeout_s=0.01))[0].problem == "no answer within 0.01 s"


def test_recent_lag_is_forgotten_after_two_windows() -> None:
    lag = LoopLag()
    start = lag._window_began
    lag.note(0.2, start)
    lag.note(0.01, start + WINDOW_S)
    assert lag.recent_max_s == 0.2
    lag.note(0.03, start + 2 * WINDOW_S)
    assert lag.recent_max_s == 0.03
    assert sum(lag.histogram.counts) == 3


async def test_a_blocked_loop_shows_as_lag() -> None:
    lag = LoopLag()
    lag.start()
    blocked = asyncio.Event()

    def block() -> None:
        import time

        time.sleep(0.15)  # the test stalls the loop on purpose
        blocked.set()

    asyncio.get_running_loop().call_soon(block)
    await blocked.wait()
    while not sum(lag.histogram.counts):  # noqa: ASYNC110 - until the sampler had its turn
        await asyncio.sleep(0)
    lag.stop()
    assert lag.recent_max_s >= 0.05


@pytest.mark.parametrize("text", ["a", "a:", "a:0", "a:65536", "a:1 b:2", "a:1;b", "a:1;[::1", "a=b:1"])
def test_address_lists_that_are_none(text: str) -> None:
    with pytest.raises(SettingError, match="key="):
        checked_list("key", text)


def test_address_lists() -> None:
    assert checked_list("key", " a:1 ;; [::1]:2;10.0.0.1:3 ") == "a:1;[::1]:2;10.0.0.1:3"
    assert unit_lists("u=a:1;b:2, v = c:3") == {"u": "a:1;b:2", "v": "c:3"}
    assert unit_lists("") == {}


@pytest.mark.parametrize(
    ("settings", "is_named"),
    [
        ("listen=0.0.0.0:9876 mode=cp nodeId=n2 peers=n1=one:9896,n2=two.example:9896", True),
        ("listen=[::]:9876 mode=cp nodeId=n2 peers=n2=two.example:9896", True),
        ("listen=0.0.0.0:9876 mode=ap nodeId=n2", False),
        ("listen=0.0.0.0:9876 mode=cp nodeId=n2 peers=n2=192.0.2.7:9896", False),
        ("listen=0.0.0.0:9876 mode=cp nodeId=n2 peers=n1=localhost:9896,n2=localhost:9897", False),
        ("listen=0.0.0.0:9876 mode=cp nodeId=n2 join=one:9896 peerListen=192.0.2.7:9896", False),
    ],
)
def test_a_node_at_a_wildcard_is_listed_by_its_name(settings: str, is_named: bool) -> None:
    given = load_settings(flags=dict(pair.split("=", 1) for pair in settings.split()), environment={})
    assert host_for_brokers(given) == ("two.example" if is_named else advertised_host("0.0.0.0"))


@pytest.mark.parametrize("name", ["n1", "a.b", "...", "é", "x" * 200])
def test_names_of_members(name: str) -> None:
    assert is_member_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a,b", "a=b", "a\tb", "a\0b", "a\u2028b", "x" * 201])
def test_names_that_no_member_can_have(name: str) -> None:
    assert not is_member_name(name)


def test_advertised_host_is_never_a_wildcard() -> None:
    assert advertised_host("10.1.2.3") == "10.1.2.3"
    assert advertised_host("0.0.0.0") not in ("0.0.0.0", "")
