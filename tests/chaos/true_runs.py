"""Runs of a cluster that really is one: every operation takes effect between its ends, on whichever node. All checks hold.

Three brokers serve one topic: one changes its topics, one is exposed for a while, dropped and taken back, one dies and returns. A
fourth loses its write permission and gets it back; a topic that was dropped is deleted. Three clients use few KV keys, and ask
where brokers are; every node is looked at and asked once more at the end.
"""

import random
from collections.abc import Callable

from tests.chaos.traces import NODES, Script

END_MS = 12_000.0
KEYS, CLIENTS = ("k1", "k2"), ("c1", "c2", "c3")
TOPIC, FICKLE = "t", "t-fickle"


class _Cluster:
    """What all nodes know: KV entries, the version of each broker, a permission, a topic that comes and goes, a revision."""

    def __init__(self) -> None:
        self.kv: dict[str, str] = {}
        self.brokers: dict[str, int] = {}
        self.perm: str | None = None
        self.fickle: str | None = None
        self.revision = 0

    def set(self, change: Callable[["_Cluster"], object]) -> None:
        change(self)
        self.revision += 1


class TrueRun:
    """Makes one; ``script`` is what was recorded of it."""

    def __init__(self, rng: random.Random) -> None:
        self.script = Script()
        self._rng, self._steps = rng, list[tuple[float, int, Callable[[_Cluster], None]]]()
        self._version = 0
        self._brokers()
        self._mqadmin()
        for client in CLIENTS:
            self._client(client)
        self._looks()
        cluster = _Cluster()
        for _, _, step in sorted(self._steps, key=lambda step: step[:2]):
            step(cluster)

    def _at(self, begin: float, end: float, step: Callable[[_Cluster], None]) -> None:
        """Something takes effect between ``begin`` and ``end``."""
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
        self._at(begin, end, lambda cluster: cluster.set(lambda state: state.brokers.pop(broker, None)))

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

    def _ask(self, begin: float, end: float, client: str, kind: str, key: str, node: str | None = None) -> None:
        node = node or self._rng.choice(NODES)
        if kind == "get":
            self._read(begin, end, client, "get", key, lambda cluster: cluster.kv.get(key), node)
        else:
            self._at(begin, end, lambda cluster: self._listed(begin, end, client, node, cluster))

    def _listed(self, begin: float, end: float, client: str, node: str, cluster: _Cluster) -> None:
        self.script.op(begin, end, client, "route", TOPIC, node=node, members=sorted(cluster.brokers.items()))

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
        self.script.saw(at, node, sorted(cluster.brokers.items()), cluster.revision)
        self.script.stands(at, node, cluster.revision, f"digest of {cluster.revision}")
