"""Each alert of deploy/prometheus fires because of a real fault, and none fires without one.

One cluster of processes gets one fault after the other. Before and after each fault, all nodes are scraped. promtool evaluates
the shipped rules on these samples. A fault may cause several alerts; every other alert has to stay silent.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.support.alert_rules import NAMES, RULES, WAITS
from tests.support.authority import Authority
from tests.support.faulty_node import DISK_FULL, SLOW_SYNCS, WRONG_STATE, FaultyNode
from tests.support.nodes import http
from tests.support.places import assert_same_names
from tests.support.promtool import TEST_TIMEOUT_S, promtool, run_promtool
from tests.support.recorded_metrics import SCRAPE_S, Scrape, input_series, parsed, rule_test
from tests.support.replicated_processes import ReplicatedProcesses, eventually
from tests.support.replicated_traffic import agent

NAMESPACE_BYTES = 65_536
BROKER_TIMEOUT_MS = 20_000
"""heartbeatTimeoutMillis of the brokers. A closed connection is not evidence that a broker left if a node's event loop stalled,
as on a busy machine. Then a killed broker is removed after this time."""
BEFORE = 22
"""Number of scrapes before a fault: longer than five minutes, so that Prometheus can know that a series is new."""
HOLD = 40
"""Number of scrapes for which the state after a fault lasts: ten minutes, longer than the longest ``for``."""


class Recording:
    """The cluster, its faults, and the scrapes."""

    def __init__(self, cluster: ReplicatedProcesses, authority: Authority) -> None:
        self.cluster, self.authority = cluster, authority
        self.steady: list[Scrape] = []
        self.tests: list[dict[str, Any]] = []
        self.fired: list[tuple[str, str, float]] = []
        """Alert, fault, and the seconds from the fault to the first scrape that shows it."""
        self.began_s = time.time()

    async def scrape(self) -> Scrape:
        """All nodes, once."""
        return dict(zip(self.cluster.names, await asyncio.gather(*map(self._scrape, self.cluster.names)), strict=True))

    async def _scrape(self, name: str) -> dict[str, float] | None:
        if not self.cluster.is_running(name):
            return None
        return parsed((await http(self.cluster.nodes[name].plan.admin[1], "/metrics")).text, NAMES)

    async def until(self, what: str, condition: Callable[[dict[str, dict[str, float]]], object]) -> Scrape:
        """The first scrape for which ``condition`` is true."""

        async def look() -> Scrape | None:
            scrape = await self.scrape()
            return scrape if condition({name: dict(samples or {}) for name, samples in scrape.items()}) else None

        found = await eventually(look, what)
        assert found is not None
        return found

    @contextlib.asynccontextmanager
    async def fault(self, name: str, *alerts: str, tolerated: str = "") -> AsyncIterator[list[Scrape]]:
        """Check the alerts of a fault. The caller causes the fault, and appends the scrapes during it to the list. ``tolerated``:
        pattern of other alerts that may fire."""
        before, found = await self.scrape(), list[Scrape]()
        began = time.monotonic()
        yield found
        took_s = time.monotonic() - began
        scrapes = [*[before] * BEFORE, *found]
        at_s = {alert: (len(scrapes) - 1) * SCRAPE_S + WAITS[alert] + SCRAPE_S for alert in alerts}
        checks: list[tuple[str, float, Any]] = [('count(ALERTS{alertstate="firing"})', SCRAPE_S, None)]
        checks += [(f'max(ALERTS{{alertname="{a}", alertstate="firing"}})', at_s[a], 1) for a in alerts]
        others = "|".join(filter(None, [*alerts, tolerated]))
        checks.append((f'count(ALERTS{{alertname!~"{others}", alertstate="firing"}})', max(at_s.values()), None))
        self.tests.append(rule_test(name, input_series(scrapes, self.began_s, HOLD), checks))
        self.fired += [(alert, name, took_s) for alert in alerts]

    async def put(self, node: str, namespace: str, key: str, value: bytes) -> int:
        """Status of a change of the KV config."""
        return (await http(self.cluster.nodes[node].plan.admin[1], f"/v1/kv/{namespace}/{key}", "PUT", value)).status

    async def change(self, node: str, path: str, value: bytes | None) -> None:
        """Put a value into the KV config, or delete it (None). On a busy machine the leader may change, so repeat it until it is
        accepted."""

        async def is_accepted() -> bool:
            port, method = self.cluster.nodes[node].plan.admin[1], "DELETE" if value is None else "PUT"
            return (await http(port, f"/v1/kv/{path}", method, value or b"")).status == 200

        await eventually(is_accepted, f"the change of {path}")

    def give(self, node: str, fault: str, text: str = "") -> None:
        (self.cluster.nodes[node].plan.data_dir / fault).write_text(text)

    def take(self, node: str, fault: str) -> None:
        (self.cluster.nodes[node].plan.data_dir / fault).unlink()


Fault = Callable[[Recording], Coroutine[Any, Any, None]]


async def quota(recording: Recording) -> None:
    leader = await recording.cluster.leader()
    async with recording.fault("KV entry of 60 kB in 64 kB", "NamesrvQuotaNearlyUsed") as found:
        await recording.change(leader, "full/key", b"x" * 60_000)
        key = 'namesrv_bounded_bytes{limit="maxKvNamespaceBytes"}'
        found.append(await recording.until("bytes used on all nodes", lambda s: all(v[key] > 60_000 for v in s.values())))
    async with recording.fault("KV entries beyond the limit", "NamesrvLimitHit", tolerated="NamesrvQuotaNearlyUsed") as found:
        for _ in range(30):  # all of them between two scrapes, the first of which has no sample of this limit
            assert await recording.put(leader, "full", "other", b"x" * 10_000) != 200
        found.append(await recording.scrape())
    await recording.change(leader, "full/key", None)


async def certificate(recording: Recording) -> None:
    key = 'namesrv_certificate_expiry_timestamp_seconds{port="remoting"}'
    limit = time.time() + 14 * 86_400
    async with recording.fault("certificate of 5 days", "NamesrvCertificateExpires") as found:
        recording.authority.files("namesrv", days=5)
        found.append(await recording.until("the new certificate", lambda s: all(v[key] < limit for v in s.values())))
    recording.authority.files("namesrv", days=25)
    await recording.until("the former certificate", lambda s: all(v[key] > limit for v in s.values()))
    files = recording.authority.files("namesrv", days=25)
    failed = 'namesrv_tls_reloads_total{outcome="failed"}'
    async with recording.fault("certificate and key are garbage", "NamesrvCertificateUnusable") as found:
        files.certificate.write_text("garbage")
        files.key.write_text("garbage")
        found.append(await recording.until("failed reloads", lambda s: all(v[failed] >= 1 for v in s.values())))
    recording.authority.files("namesrv", days=25)


async def brokers(recording: Recording) -> None:
    flapping = agent("flapping", recording.cluster.addresses, heartbeat_timeout_ms=BROKER_TIMEOUT_MS)
    await flapping.start()

    def registered(count: int) -> Callable[[dict[str, dict[str, float]]], bool]:
        return lambda s: all(v["namesrv_brokers"] == count for v in s.values())

    await recording.until("both brokers", registered(2))
    async with recording.fault("broker killed and started five times", "NamesrvBrokersFlap") as found:
        for _ in range(5):
            await flapping.kill()
            await recording.until("the broker is removed", registered(1))
            await flapping.start()
            found.append(await recording.until("the broker is back", registered(2)))
    await flapping.stop()


async def no_brokers(recording: Recording, living: Any) -> None:
    async with recording.fault("all brokers killed", "NamesrvNoBrokers") as found:
        await living.kill()
        found.append(await recording.until("no broker", lambda s: all(v["namesrv_brokers"] == 0 for v in s.values())))
    await living.start()
    await recording.until("the broker", lambda s: all(v["namesrv_brokers"] == 1 for v in s.values()))


async def cut_follower(recording: Recording) -> None:
    cluster = recording.cluster
    leader = await cluster.leader()
    victim = cluster.others(leader)[0]
    contact, lag = (f'namesrv_raft_peer_{kind}{{peer="{victim}"}}' for kind in ("last_contact_seconds", "lag_entries"))
    alerts = ("NamesrvPeerUnreachable", "NamesrvFollowerLags", "NamesrvFenced")
    async with recording.fault("follower cut off, 250 writes", *alerts) as found:
        cluster.cut(victim)
        for number in range(250):
            await recording.change(leader, f"lag/{number % 10}", b"%d" % number)
        found.append(
            await recording.until(
                "no contact, lag and fence",
                lambda s: s[leader][contact] > 5 and s[leader][lag] > 200 and s[victim]["namesrv_fenced"] == 1,
            )
        )
    cluster.heal()
    await cluster.all_serve()
    await recording.until("the follower caught up", lambda s: s[leader].get(lag, 0) < 10)


async def disk(recording: Recording) -> None:
    cluster = recording.cluster
    leader = await cluster.leader()
    victim = cluster.others(leader)[0]
    syncs = "namesrv_raft_fsync_duration_seconds_bucket"
    fast, every = f'{syncs}{{le="0.25"}}', f'{syncs}{{le="+Inf"}}'
    before = (await recording.scrape())[victim] or {}
    slow_before = before[every] - before[fast]
    async with recording.fault("each sync waits 400 ms", "NamesrvDiskSlow") as found:
        recording.give(victim, SLOW_SYNCS, "400")
        number = 0
        while True:
            number += 1
            await recording.change(leader, "disk/key", b"%d" % number)
            scrape = await recording.scrape()
            samples = scrape[victim] or {}
            if samples[every] - samples[fast] >= slow_before + 5:
                found.append(scrape)
                break
    recording.take(victim, SLOW_SYNCS)
    async with recording.fault("a sync hangs", "NamesrvDiskHangs", tolerated="NamesrvDiskSlow") as found:
        recording.give(victim, SLOW_SYNCS, "600000")
        await recording.change(leader, "disk/key", b"hangs")
        found.append(await recording.until("a hanging sync", lambda s: s[victim]["namesrv_unsynced_seconds"] > 5))
    recording.take(victim, SLOW_SYNCS)
    await cluster.all_serve()
    async with recording.fault("disk full", "NamesrvDiskShort", tolerated="NamesrvDiskSlow") as found:
        recording.give(victim, DISK_FULL)
        found.append(await recording.until("the alarm", lambda s: s[victim]["namesrv_disk_short"] == 1))
    recording.take(victim, DISK_FULL)
    await recording.until("no alarm", lambda s: all(v["namesrv_disk_short"] == 0 for v in s.values()))


async def leaders(recording: Recording) -> None:
    cluster = recording.cluster
    async with recording.fault("leader paused five times", "NamesrvLeaderFlapping", tolerated="NamesrvDiskSlow") as found:
        for _ in range(5):
            leader = await cluster.leader()
            cluster.pause(leader)
            await cluster.leader(cluster.others(leader))
            cluster.resume(leader)
            await cluster.all_serve()
            found.append(await recording.scrape())
    leader = await cluster.leader()
    victims = cluster.others(leader)
    async with recording.fault("two of three nodes killed", "NamesrvNoLeader", "NamesrvNodeDown", "NamesrvFenced") as found:
        await cluster.kill(*victims)
        role = 'namesrv_raft_role{role="leader"}'
        found.append(await recording.until("the fence", lambda s: s[leader]["namesrv_fenced"] == 1 and s[leader][role] == 0))
    await cluster.restore()


async def wrong_state(recording: Recording) -> None:
    cluster = recording.cluster
    leader = await cluster.leader()
    victim = cluster.others(leader)[0]
    mismatches = "namesrv_raft_digest_mismatches_total"
    async with recording.fault("a node applies a command wrongly", "NamesrvDigestMismatch", tolerated="NamesrvNodeDown") as found:
        recording.give(victim, WRONG_STATE)
        await recording.change(leader, "digest/key", b"value")
        found.append(await recording.until("a mismatch", lambda s: any(v.get(mismatches, 0) > 0 for v in s.values())))
    await cluster.ended(victim)


@pytest.mark.slow
@pytest.mark.timeout(TEST_TIMEOUT_S)
async def test_each_alert_fires_because_of_a_real_fault_and_none_without(tmp_path: Path) -> None:
    await asyncio.to_thread(promtool)
    (tmp_path / "tls").mkdir()
    authority = Authority(tmp_path / "tls")
    files = authority.files("namesrv", days=25)
    tls = ("tls.test.mode.enable=false", f"tls.server.certPath={files.certificate}", f"tls.server.keyPath={files.key}")
    own = (f"maxKvNamespaceBytes={NAMESPACE_BYTES}", "connectionLossGraceMs=0", *tls)
    cluster = ReplicatedProcesses(tmp_path, 3, own)
    cluster.plan_kind = FaultyNode
    living = None
    try:
        await cluster.start()
        living = agent("living", cluster.addresses, heartbeat_timeout_ms=BROKER_TIMEOUT_MS)
        await living.start()
        recording = Recording(cluster, authority)
        await recording.until("the broker", lambda s: all(v["namesrv_brokers"] == 1 for v in s.values()))
        steady = [await recording.scrape() for _ in range(5)]
        recording.tests.append(
            rule_test(
                "steady",
                input_series(steady, recording.began_s, 2 * HOLD),
                [('count(ALERTS{alertstate=~"firing|pending"})', at_s, None) for at_s in (60, 600, 1200)],
            )
        )
        await quota(recording)
        await certificate(recording)
        await brokers(recording)
        await no_brokers(recording, living)
        await cut_follower(recording)
        await disk(recording)
        await leaders(recording)
        await wrong_state(recording)
    finally:
        if living is not None:
            await living.kill()
        await cluster.close()
    file = tmp_path / "recorded.yaml"
    rules = {"rule_files": [str(RULES)], "evaluation_interval": f"{SCRAPE_S}s", "tests": recording.tests}
    file.write_text(json.dumps(rules), encoding="utf-8")
    await asyncio.to_thread(run_promtool, "test", "rules", str(file))
    for alert, fault, took_s in recording.fired:
        print(f"{alert}: {fault}; shown after {took_s:.1f} s, fires {WAITS[alert]:.0f} s later")
    assert_same_names((alert for alert, _, _ in recording.fired), "the alerts that fired here", WAITS, "alerts.yaml")
