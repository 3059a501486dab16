"""One node of the benchmark as a process of its own.

``python -m benchmarks.raft.node SETTINGS`` (JSON). Then it reads one JSON request per line on standard input and writes one
JSON answer per line on standard output. ``load`` runs clients inside the process, so their cost is counted as ours. Each has
one operation in flight.
"""

import asyncio
import gc
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

VALUE = b"x" * 100


class Target(Protocol):
    """A target of the load: our node, or plain PySyncObj."""

    async def start(self) -> None: ...

    def status(self) -> dict[str, object]: ...

    async def commit(self, command: bytes) -> bool: ...

    async def read(self) -> bool: ...

    async def stop(self) -> None: ...


class Store:
    """A map of the last value per key, with a snapshot in chunks of 512 values."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.applied = 0

    def apply(self, command: bytes) -> object:
        self.values[command[:8]] = command
        self.applied += 1
        return None

    def snapshot(self) -> Iterator[bytes]:
        values = list(self.values.values())
        return (self._chunk(values[start : start + 512]) for start in range(0, len(values), 512))

    @staticmethod
    def _chunk(values: list[bytes]) -> bytes:
        return b"".join(len(v).to_bytes(4, "little") + v for v in values)

    def restore(self) -> "Restoration":
        return Restoration(self)

    def digest(self) -> bytes:
        return blake2b(b"%d" % self.applied, digest_size=16).digest()


class Restoration:
    def __init__(self, store: Store) -> None:
        self._store, self._values = store, dict[bytes, bytes]()

    def feed(self, chunk: bytes) -> None:
        offset = 0
        while offset < len(chunk):
            stop = offset + 4 + int.from_bytes(chunk[offset : offset + 4], "little")
            value = chunk[offset + 4 : stop]
            self._values[value[:8]] = value
            offset = stop

    def finish(self) -> None:
        self._store.values = self._values


class Ours:
    """A RaftService."""

    def __init__(self, settings: dict[str, Any]) -> None:
        from replicated_namesrv.raft.raft_config import RaftConfig
        from replicated_namesrv.raft.raft_service import RaftService
        from replicated_namesrv.raft.transport import TransportSettings

        addresses = {name: (host, port) for name, (host, port) in settings["addresses"].items()}
        transport = TransportSettings(settings["node"], "bench", addresses, addresses[settings["node"]], b"benchmark")
        self.store = Store()
        self.service = RaftService(transport, Path(settings["directory"]), self.store, RaftConfig(**settings.get("config", {})))

    async def start(self) -> None:
        await self.service.start()

    def status(self) -> dict[str, object]:
        status = self.service.status()
        return {key: status[key] for key in ("role", "term", "leader", "applied_index", "counters", "snapshots_taken")}

    async def commit(self, command: bytes) -> bool:
        from replicated_namesrv.raft.interfaces import Committed

        return isinstance(await self.service.propose(command), Committed)

    async def read(self) -> bool:
        from replicated_namesrv.raft.interfaces import ReadReady

        return isinstance(await self.service.read_index(), ReadReady)

    async def stop(self) -> None:
        await self.service.stop()


async def load(operation: Callable[[], Awaitable[bool]], clients: int, seconds: float) -> dict[str, object]:
    """Operations per second and latencies of ``clients`` that each have one operation in flight."""
    latencies: list[float] = []
    failures = 0
    end = time.perf_counter() + seconds

    async def client() -> None:
        nonlocal failures
        while (before := time.perf_counter()) < end:
            if await operation():
                latencies.append(time.perf_counter() - before)
            else:
                failures += 1

    started, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(client() for _ in range(clients)))
    took = time.perf_counter() - started
    latencies.sort()
    count = len(latencies)
    return {
        "operations": count,
        "failures": failures,
        "seconds": took,
        "cpu_seconds": time.process_time() - cpu,
        "p50_ms": latencies[count // 2] * 1e3 if count else None,
        "p99_ms": latencies[count * 99 // 100] * 1e3 if count else None,
        "max_ms": latencies[-1] * 1e3 if count else None,
    }


async def handle(target: Target, request: dict[str, Any]) -> dict[str, object]:
    kind = request["do"]
    if kind == "status":
        return {**target.status(), "cpu_seconds": time.process_time()}
    if kind == "load":
        number = iter(range(10**12))
        operations: dict[str, Callable[[], Awaitable[bool]]] = {
            "commit": lambda: target.commit((next(number) % 1_000_003).to_bytes(8, "little") + VALUE),
            "read": target.read,
        }
        return await load(operations[request["kind"]], request["clients"], request["seconds"])
    if kind == "first":
        started = time.perf_counter()
        committed = False
        while not committed:
            committed = await target.commit(b"first   " + VALUE)
        return {"ms": (time.perf_counter() - started) * 1e3}
    if kind == "fill":
        done = 0
        while done < request["count"]:
            size = min(1000, request["count"] - done)
            numbers = range(done, done + size)
            done += sum(await asyncio.gather(*(target.commit(n.to_bytes(8, "little") + VALUE) for n in numbers)))
        return {"committed": done}
    raise ValueError(f"unknown request {kind!r}")


async def main(settings: dict[str, Any]) -> None:
    gc.freeze()
    target: Target
    if settings["target"] == "ours":
        target = Ours(settings)
    else:
        from benchmarks.raft.plain import Plain

        target = Plain(settings)
    await target.start()
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print(json.dumps({"ready": True}), flush=True)
    while line := await reader.readline():
        print(json.dumps(await handle(target, json.loads(line))), flush=True)
    await target.stop()


if __name__ == "__main__":
    import uvloop

    uvloop.run(main(json.loads(sys.argv[1])))
