"""Plain PySyncObj as a target of the same load, with its own threads, sockets and journal.

The target ``plain tuned`` has no batching delay. Plain PySyncObj does not sync its journal, has no linearizable read, and can
lose acknowledged writes. Its figures only show the order of magnitude to expect; the guarantees differ.
"""

import asyncio
from pathlib import Path
from typing import Any

from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.batteries import ReplDict

DEFAULTS: dict[str, object] = {}
TUNED: dict[str, object] = {"appendEntriesUseBatch": False, "dnsCacheTime": 60.0}


class Plain:
    """A SyncObj with its own tick thread, used from an asyncio loop."""

    def __init__(self, settings: dict[str, Any]) -> None:
        addresses = {name: f"{host}:{port}" for name, (host, port) in settings["addresses"].items()}
        directory = Path(settings["directory"])
        directory.mkdir(parents=True, exist_ok=True)
        tuning = TUNED if settings["target"] == "plain tuned" else DEFAULTS
        conf = SyncObjConf(journalFile=str(directory / "journal"), fullDumpFile=str(directory / "dump"), **tuning)
        self._values = ReplDict()
        me = addresses.pop(settings["node"])
        self._sync_obj = SyncObj(me, list(addresses.values()), conf, consumers=[self._values])

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    def status(self) -> dict[str, object]:
        leader = self._sync_obj._getLeader()
        return {"role": "leader" if self._sync_obj._isLeader() else "follower", "leader": str(leader)}

    async def commit(self, command: bytes) -> bool:
        future: asyncio.Future[bool] = self._loop.create_future()

        def done(_: object, error: int) -> None:
            self._loop.call_soon_threadsafe(future.set_result, error == 0)

        self._values.set(command[:8], command, callback=done)
        return await future

    async def read(self) -> bool:
        """There is no linearizable read."""
        return False

    async def stop(self) -> None:
        self._sync_obj.destroy()
