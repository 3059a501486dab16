"""Runs of a correct cluster: every operation takes effect between its start and its end, through any node. All checks pass.

Three brokers serve one topic: one changes its topics, one is exposed for a while, dropped and taken back, one dies and returns. A
fourth loses its write permission and gets it back. A topic that was dropped is deleted, and settings change. Three clients use
few KV keys, and ask where brokers are. Another one asks with the level lease. Every node is looked at, and asked at the end. One
node has no majority for a while, and refuses the requests of the client that uses only this node.

``TrueNodes`` are independent nodes: each keeps the data that it received itself. One of them is killed and returns without
brokers.
"""

import random
from collections.abc import Callable
from functools import partial

from replicated_namesrv.chaos.mqadmin import OWN_SETTING, SETTINGS, SHARED_SETTING
from replicated_namesrv.chaos.recorded_brokers import HUNG_UP
from tests.chaos.traces import NODES, Script

END_MS = 12_000.0
KEYS, CLIENTS = ("k1", "k2"), ("c1", "c2", "c3")
TOPIC, FICKLE = "t", "t-fickle"
DEAD_NODE, DEAD_MS, BACK_MS = "n2", 4_000.0, 5_000.0
CUT_NODE, CUT_MS, HEAL_MS = "n3", 5_500.0, 10_500.0


class _Cluster:
    """The state that all nodes share: KV entries, the version of each broker, a permission, a temporary topic, a revision."""

    def __init__(self) -> None:
        self.kv: dict[str, str] = {}
        self.brokers: dict[str, int] = {}
        self.perm: str | None = None
        self.settings = {(node, key): value for node in NODES for key, value in SETTINGS.items()}
        self.fickle: str | None = None
        self.revision = 0

    def set(self, change: Callable[["_Cluster"], object]) -> None:
        change(self)
        self.revision += 1


class TrueRun:
    """Makes a run of a correct cluster; ``script`` is its trace."""

    def __init__(self, rng: random.Random) -> None:
        self.script = Script()
        self._rng, self._steps = rng, list[tuple[float, int, Callable[[_Cluster], None]]]()
        self._version = 0
        self._brokers()
        self._mqadmin()
        for client in CLIENTS:
            self._client(client)
        self._cut()
        self._lease_reader()
        self._looks()
        cluster = _Cluster()
        for _, _, step in sorted(self._steps, key=lambda step: step[:2]):
            step(cluster)

    def _at(self, begin: float, end: float, step: Callable[[_Cluster], None]) -> None:
        """``step`` takes effect at a random time between ``begin`` and ``end``."""
        self._steps.append((self._rng.uniform(begin, end), len(self._steps), step))

    def _write(self, begin: float, end: float, client: str, kind: str, key: str, value: str | None, change: object) -> None:
        self.script.op(begin, end, client, kind, key, value)
        self._at(begin, end, lambda cluster: cluster.set(change))  # type: ignore[arg-type]  # the result is not used

    def _register(self, begin: float, broker: str) -> int:
        version = self._version = self._version + 1
        end = begin + self._rng.uniform(5, 40)
        self._write(
            begin, end, broker, "register", broker, str(version), lambda cluster: cluster.brokers.update({broker: version})
        )
        return version

    def _drop(self, begin: float, end: float, broker: str) -> None:
        at = self._rng.uniform(begin, end)
        self._at(at, at, lambda cluster: cluster.set(lambda state: state.brokers.pop(broker, None)))
        for node in NODES:
            self.script.dropped(at + 1, broker, node).op(at + 1, at + 1, broker, HUNG_UP, broker, node=node)

    def _start(self, at: float, broker: str, life: int = 1) -> int:
        version = self._register(at + 1, broker)
        self.script.truth(at, broker, "starting", life=life, version=version)
        self.script.truth(at + 50, broker, "serving", life=life, version=version)
        return version

    def _brokers(self) -> None:
        first = {broker: self._start(500, broker) for broker in ("g1/0", "g2/0", "g3/0")}
        at = 700.0
        while at < END_MS - 500:
            self._register(at, "g1/0")
            at += self._rng.uniform(200, 700)
        self.script.truth(3_000, "g2/0", "exposed", version=first["g2/0"])
        self._drop(3_500, 4_500, "g2/0")
        version = self._register(6_000, "g2/0")
        self.script.truth(6_050, "g2/0", "safe", version=version)
        self.script.truth(2_000, "g3/0", "silent", version=first["g3/0"])
        self.script.op(1_850, 1_860, "g3/0", "register-copy", "g3/0", str(first["g3/0"]))
        self._drop(3_000, 3_500, "g3/0")
        self._start(9_000, "g3/0", life=2)

    def _mqadmin(self) -> None:
        self._write(800, 840, "g4/0", "register", "g4/0", "900", lambda cluster: self._is_there(cluster))
        at = 1_000.0
        for number in range(12):
            perm = "46"[number % 2]
            self._write(
                at, at + 30, "mqadmin", "write-perm", "g4/0", perm, lambda cluster, perm=perm: setattr(cluster, "perm", perm)
            )
            at += self._rng.uniform(300, 700)
        self._write(5_000, 5_040, "mqadmin", "delete-topic", FICKLE, None, lambda cluster: setattr(cluster, "fickle", None))
        for number in range(30):
            at = 900 + number * 370.0
            self._read(at, at + 20, "probe", "perm", "g4/0", lambda cluster: cluster.perm)
            self._read(at, at + 20, "probe", "topic", FICKLE, lambda cluster: cluster.fickle)
            place = (NODES[number % 2], (OWN_SETTING, SHARED_SETTING)[number % 4 // 2])
            setting = f"{1_000 + number}" if place[1] == OWN_SETTING else "true" if number % 8 < 4 else "false"
            self._set(at + 50, *place, setting)
            for node in NODES[:2]:
                for key in SETTINGS:
                    self._at(at + 200, at + 220, partial(self._set_to, at + 200, node, key))

    def _set_to(self, at: float, node: str, key: str, cluster: _Cluster) -> None:
        self.script.op(at, at + 20, "probe", "config", key, cluster.settings[node, key], node=node)

    def _set(self, at: float, node: str, key: str, value: str) -> None:
        self.script.op(at, at + 20, "mqadmin", "set-config", key, value, node=node)
        places = [(one, key) for one in NODES] if key == SHARED_SETTING else [(node, key)]
        self._at(at, at + 20, lambda cluster: cluster.settings.update(dict.fromkeys(places, value)))

    @staticmethod
    def _is_there(cluster: _Cluster) -> None:
        cluster.perm, cluster.fickle = "6", "900"

    def _client(self, client: str) -> None:
        rng, at, number = self._rng, 1_000.0, 0
        while at < END_MS - 200:
            end, key = at + rng.uniform(2, 60), rng.choice(KEYS)
            kind = rng.choice(("put", "put", "delete", "get", "get", "get", "route", "route"))
            number += 1
            if kind == "put":
                value = f"{client}.{number}"
                self._write(at, end, client, kind, key, value, lambda cluster, k=key, v=value: cluster.kv.update({k: v}))
            elif kind == "delete":
                self._write(at, end, client, kind, key, None, lambda cluster, k=key: cluster.kv.pop(k, None))
            else:
                self._ask(at, end, client, kind, key)
            at = end + rng.uniform(5, 60)

    def _cut(self) -> None:
        links = [f"{a}>{b}" for a in NODES for b in NODES if a != b and CUT_NODE in (a, b)]
        self.script.fault(CUT_MS, HEAL_MS, links, [["n1", "n2"], [CUT_NODE]], node=CUT_NODE)
        at = 1_000.0
        while at < END_MS - 200:
            if CUT_MS - 50 < at < HEAL_MS + 50:
                self.script.op(at, at + 2, "pinned", "route", TOPIC, outcome="indeterminate", node=CUT_NODE)
            else:
                self._ask(at, at + 10, "pinned", "route", TOPIC, CUT_NODE)
            at += 100

    def _lease_reader(self) -> None:
        for number in range(100):
            at = 1_000 + number * 100.0
            self._at(at, at + 10, partial(self._listed, at, at + 10, "lease-reader", "n1", level="lease"))

    def _ask(self, begin: float, end: float, client: str, kind: str, key: str, node: str | None = None) -> None:
        serving = [one for one in NODES if one != CUT_NODE or not CUT_MS - 100 < end < HEAL_MS + 100]
        node = node or self._rng.choice(serving)
        if kind == "get":
            self._read(begin, end, client, "get", key, lambda cluster: cluster.kv.get(key), node)
        else:
            self._at(begin, end, lambda cluster: self._listed(begin, end, client, node, cluster))

    def _listed(self, begin: float, end: float, client: str, node: str, cluster: _Cluster, level: str | None = None) -> None:
        members = sorted(cluster.brokers.items())
        self.script.op(begin, end, client, "route", TOPIC, node=node, members=members, level=level)

    def _read(
        self,
        begin: float,
        end: float,
        client: str,
        kind: str,
        key: str,
        value: Callable[[_Cluster], str | None],
        node: str = "n1",
    ) -> None:
        self._at(begin, end, lambda cluster: self._read_now(begin, end, client, kind, key, value(cluster), node))

    def _read_now(self, begin: float, end: float, client: str, kind: str, key: str, value: str | None, node: str) -> None:
        self.script.op(begin, end, client, kind, key, value, node=node)

    def _looks(self) -> None:
        for number in range(48):
            for node in NODES:
                at = 1_000 + number * 250.0
                self._at(at - 1, at, lambda cluster, at=at, node=node: self._saw(at, node, cluster))  # type: ignore[misc]  # defaults in a lambda
        for place, node in enumerate(NODES):
            for key in KEYS:
                self._ask(12_100 + 20 * place, 12_110 + 20 * place, "probe", "get", key, node)
            self._ask(12_400 + 20 * place, 12_410 + 20 * place, "probe", "route", TOPIC, node)

    def _saw(self, at: float, node: str, cluster: _Cluster) -> None:
        if node == CUT_NODE and CUT_MS <= at <= HEAL_MS:
            self.script.saw(at, node, None)
            return
        self.script.saw(at, node, sorted(cluster.brokers.items()), cluster.revision)
        self.script.stands(at, node, cluster.revision, f"digest of {cluster.revision}")


class TrueNodes:
    """A run of independent nodes; ``script`` is its trace."""

    def __init__(self, rng: random.Random) -> None:
        self.script = Script("ap")
        self._rng, self._steps = rng, list[tuple[float, int, Callable[[], None]]]()
        self._kv: dict[str, dict[str, str]] = {node: {} for node in NODES}
        self._brokers: dict[str, dict[str, int]] = {node: {} for node in NODES}
        self.script.fault(DEAD_MS, BACK_MS, [], [["n1", "n3"], [DEAD_NODE]], None, name="kill", node=DEAD_NODE)
        self._at(DEAD_MS, DEAD_MS, self._brokers[DEAD_NODE].clear)
        for number, broker in enumerate(("g1/0", "g2/0"), 1):
            self.script.truth(500, broker, "starting", version=number).truth(560, broker, "serving", version=number)
            self._registrations(broker, 500 + rng.uniform(0, 10), 12_500, number)
        self.script.truth(500, "g3/0", "starting", version=3).truth(560, "g3/0", "serving", version=3)
        self._registrations("g3/0", 500, 1_900, 3)
        self.script.truth(2_000, "g3/0", "silent", version=3)
        for node in NODES:
            at = rng.uniform(2_800, 3_400)
            self._at(at, at, lambda node=node: self._brokers[node].pop("g3/0", None))  # type: ignore[misc]  # defaults in a lambda
            self.script.dropped(at + 1, "g3/0", node).op(at + 1, at + 1, "g3/0", HUNG_UP, "g3/0", node=node)
        self._mqadmin()
        for client in CLIENTS:
            self._client(client)
        self._looks()
        for _, _, step in sorted(self._steps, key=lambda step: step[:2]):
            step()

    def _mqadmin(self) -> None:
        self.script.truth(500, "g4/0", "starting", version=4).truth(560, "g4/0", "serving", version=4)
        perms = dict.fromkeys(NODES, "6")
        for number in range(40):
            for node in NODES:
                at = 500 + number * 300.0
                dead = self._is_dead(node, at, at + 10)
                outcome = "fail" if dead else "ok"
                self.script.op(at, at + 10, "g4/0", "register-copy", "g4/0", "4", node=node, outcome=outcome)
                if number % 2 and not dead:
                    perms[node] = "46"[number // 2 % 2]
                    self.script.op(at + 50, at + 60, "mqadmin", "write-perm", "g4/0", perms[node], node=node)
                    self.script.op(at + 50, at + 60, "mqadmin", "delete-topic", f"t-{number}", node=node)
                    self.script.op(at + 70, at + 80, "probe", "perm", "g4/0", perms[node], node=node)
                    self.script.op(at + 70, at + 80, "probe", "topic", f"t-{number}", None, node=node)
                    self.script.op(at + 50, at + 60, "mqadmin", "set-config", OWN_SETTING, f"{number}", node=node)
                    self.script.op(at + 70, at + 80, "probe", "config", OWN_SETTING, f"{number}", node=node)

    def _at(self, begin: float, end: float, step: Callable[[], object]) -> None:
        self._steps.append((self._rng.uniform(begin, end), len(self._steps), lambda: (step(), None)[1]))

    def _registrations(self, broker: str, at: float, until: float, version: int) -> None:
        while at < until:
            for node in NODES:
                end = at + self._rng.uniform(2, 20)
                dead = self._is_dead(node, at, end)
                outcome = "fail" if dead else "ok"
                self.script.op(at, end, broker, "register-copy", broker, str(version), node=node, outcome=outcome)
                if not dead:
                    self._at(at, end, lambda node=node, version=version: self._brokers[node].update({broker: version}))  # type: ignore[misc]  # defaults in a lambda
            at += 300
            version += 10 * (self._rng.random() < 0.3 and at < 8_000)

    @staticmethod
    def _is_dead(node: str, begin: float, end: float) -> bool:
        return node == DEAD_NODE and begin < BACK_MS and end > DEAD_MS

    def _client(self, client: str) -> None:
        rng, at, number = self._rng, 1_000.0, 0
        while at < END_MS - 200:
            end, key, node = at + rng.uniform(2, 60), rng.choice(KEYS), rng.choice(NODES)
            kind = rng.choice(("put", "put", "delete", "get", "get", "route", "route"))
            number += 1
            if not self._is_dead(node, at, end):
                self._one(at, end, client, kind, key, f"{client}.{number}", node)
            at = end + rng.uniform(5, 60)

    def _one(self, begin: float, end: float, client: str, kind: str, key: str, value: str, node: str) -> None:
        if kind == "put":
            self.script.op(begin, end, client, kind, key, value, node=node)
            self._at(begin, end, lambda: self._kv[node].update({key: value}))
        elif kind == "delete":
            self.script.op(begin, end, client, kind, key, node=node)
            self._at(begin, end, lambda: self._kv[node].pop(key, None))
        elif kind == "get":
            self._at(begin, end, lambda: self.script.op(begin, end, client, kind, key, self._kv[node].get(key), node=node))
        else:
            self._at(begin, end, lambda: self._listed(begin, end, client, node))

    def _listed(self, begin: float, end: float, client: str, node: str) -> None:
        self.script.op(begin, end, client, "route", TOPIC, node=node, members=sorted(self._brokers[node].items()))

    def _looks(self) -> None:
        for number in range(48):
            for node in NODES:
                self._at(1_000 + number * 250.0, 1_000 + number * 250.0, partial(self._saw, 1_000 + number * 250.0, node))
        for place, node in enumerate(NODES):
            for key in KEYS:
                self._one(12_100 + 20 * place, 12_110 + 20 * place, "probe", "get", key, "", node)
            self._one(12_400 + 20 * place, 12_410 + 20 * place, "probe", "route", TOPIC, "", node)

    def _saw(self, at: float, node: str) -> None:
        self.script.saw(at, node, None if self._is_dead(node, at - 1, at) else sorted(self._brokers[node].items()))
