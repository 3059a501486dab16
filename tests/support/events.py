"""A reader of server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp

DEADLINE_S = 60.0


class Event(NamedTuple):
    """One event as it came."""

    id: str | None
    kind: str
    data: dict[str, Any]


class EventStream:
    """An open stream, or the answer if the node opened none."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.status = response.status

    async def next(self) -> Event:
        """The next event; fails if the stream ends or no event comes."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(DEADLINE_S):
            while True:
                line = (await self.response.content.readline()).decode()
                assert line, "the stream has ended"
                name, _, value = line.rstrip("\n").partition(":")
                if name:
                    fields[name] = value.strip()
                elif fields:
                    return Event(fields.get("id"), fields["event"], json.loads(fields["data"]))

    async def until(self, kind: str) -> Event:
        """The next event of ``kind``; events before it are skipped."""
        while (event := await self.next()).kind != kind:
            pass
        return event

    async def ended(self) -> bool:
        """Whether the stream ends next."""
        async with asyncio.timeout(DEADLINE_S):
            return await self.response.content.readline() == b""


@asynccontextmanager
async def watching(
    port: int, query: str = "", last_event_id: str | None = None, token: str | None = None
) -> AsyncIterator[EventStream]:
    """``GET /v1/watch`` of a node on this machine."""
    headers = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
    headers |= {} if token is None else {"Authorization": f"Bearer {token}"}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=DEADLINE_S)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(f"http://127.0.0.1:{port}/v1/watch{query}", headers=headers) as response,
    ):
        yield EventStream(response)
