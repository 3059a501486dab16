"""clusterTest: on a route miss, ask the name servers of another environment, as RocketMQ's test clusters did.

The other environment's address list comes from the HTTP address server, under the unit ``productEnvName`` (``TopAddressing``:
``http://HOST:PORT/PATH-<unit>?nofix=1``, one line ``host:port;host:port``). It is read again every two minutes while it is
needed. Requests that need the first list wait for one read of it; later reads delay no request, and the old list is used until
they succeed. The route is requested in the dialect of the asking client and passed on unchanged. Every failure counts as a miss
here; problems are logged at most every 10 s.
"""

import asyncio
import random
import time
from collections.abc import Callable

from aiohttp import ClientError, ClientSession, ClientTimeout

from replicated_namesrv.client.nameservers import NameServers, parse_addresses
from replicated_namesrv.client.remoting import RemotingClient, RemotingCommand
from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.server.problems import Problems
from replicated_namesrv.settings import Settings
from replicated_namesrv.wire.codes import RequestCode, ResponseCode

LIST_MAX_AGE_S = 120.0
LIST_MAX_BYTES = 65_536
TIMEOUT_S = 3.0


class ClusterTestRoutes:
    """Routes of the environment ``productEnvName``."""

    def __init__(self, settings: Settings, problems: Problems, now_s: Callable[[], float] = time.monotonic) -> None:
        self._url = f"{settings.address_server}-{settings.product_env_name}?nofix=1"
        self._problems = problems
        self._now_s = now_s
        self._client = RemotingClient()
        self._servers: NameServers | None = None
        self._read_at_s = 0.0
        """When the last read of the list ended, also if it failed."""
        self._reading: asyncio.Task[None] | None = None

    async def route(self, topic: str, version: int, standard: bool) -> bytes | None:
        """Encoded route of ``topic`` in that environment; None if there is none or no server answers."""
        fields = {"topic": topic, "acceptStandardJsonOnly": "true" if standard else "false"}
        command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC.value, fields, version=version)
        servers = await self._name_servers()
        if servers is None:
            return None
        try:
            answer = (await servers.query(command)).response
        except NamesrvError as error:
            self._report(error)
            return None
        return answer.body if answer.code == ResponseCode.SUCCESS and answer.body else None

    async def close(self) -> None:
        """Close all connections."""
        if self._reading is not None:
            self._reading.cancel()
        await self._client.close()

    async def _name_servers(self) -> NameServers | None:
        """None: no list has been read yet, and this read failed, too."""
        if self._reading is None and (self._servers is None or self._now_s() - self._read_at_s > LIST_MAX_AGE_S):
            self._reading = asyncio.create_task(self._read())
        if self._servers is None and self._reading is not None:
            await asyncio.shield(self._reading)
        return self._servers

    async def _read(self) -> None:
        try:
            addresses = parse_addresses(await self._address_list())
            if self._servers is None:
                self._servers = NameServers(addresses, self._client, rng=random.Random())
            else:
                self._servers.update_addresses(addresses)
        except (NamesrvError, ClientError, OSError, TimeoutError, ValueError) as error:
            self._report(error)
        finally:
            self._read_at_s = self._now_s()
            self._reading = None

    def _report(self, error: Exception) -> None:
        self._problems.report("clusterTest", "the other environment could not be asked", url=self._url, why=repr(error))

    async def _address_list(self) -> str:
        async with ClientSession(timeout=ClientTimeout(total=TIMEOUT_S)) as session, session.get(self._url) as response:
            response.raise_for_status()
            content = await response.content.read(LIST_MAX_BYTES)
            lines = content.decode().strip().splitlines()
            return lines[0].strip() if lines else ""
