"""The Toxiproxy server under our client: each gap of its Python library is shown to be mended."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from replicated_namesrv import provision
from replicated_namesrv.chaos.effects import Effect, Link
from replicated_namesrv.chaos.links import Impairment, Links
from replicated_namesrv.chaos.processes import ChildProcess, Ports
from replicated_namesrv.chaos.toxiproxy_client import ProxyPlan, Toxic, ToxiproxyClient, ToxiproxyError

pytestmark = pytest.mark.slow  # the server may have to be built first
DEADLINE_S = 60.0


@asynccontextmanager
async def server(folder: Path, port: int) -> AsyncIterator[ToxiproxyClient]:
    program = await asyncio.to_thread(provision.toxiproxy_server, print)
    process = ChildProcess("toxiproxy", [str(program), "-host", "127.0.0.1", "-port", str(port)], folder / "toxiproxy.log")
    await process.start()
    client = ToxiproxyClient("127.0.0.1", port)
    try:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    client.version()
                    break
                except ToxiproxyError:
                    await asyncio.sleep(0.05)
        yield client
    finally:
        await process.kill()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while line := await reader.readline():
            writer.write(line)
    except ConnectionError:
        pass
    finally:
        writer.close()


async def test_refusals_are_errors_and_each_server_has_its_own_client(tmp_path: Path) -> None:
    first, second, listen = Ports(3, random.SystemRandom()).numbers
    async with server(tmp_path, first) as one, server(tmp_path, second) as two:
        one.populate([ProxyPlan("a", f"127.0.0.1:{listen}", "127.0.0.1:9")])
        with pytest.raises(ToxiproxyError, match="address already in use"):
            two.populate([ProxyPlan("b", f"127.0.0.1:{listen}", "127.0.0.1:9")])
        toxic = Toxic("latency", attributes={"latency": 5})
        one.add_toxic("a", toxic)
        one.update_toxic("a", Toxic("latency", attributes={"latency": 7}))
        with pytest.raises(ToxiproxyError, match="toxic already exists"):
            one.add_toxic("a", toxic)
        with pytest.raises(ToxiproxyError, match="toxic not found"):
            one.remove_toxic("a", "none")
        with pytest.raises(ToxiproxyError, match="proxy not found"):
            two.add_toxic("a", toxic)
        assert one.toxics() == {"a": ["latency_upstream"]}
        one.reset()
        assert one.toxics() == {}
    with pytest.raises(ToxiproxyError, match="failed"):
        one.version()


async def test_held_bytes_arrive_afterwards_and_silent_ones_do_not(tmp_path: Path) -> None:
    control, *listens = Ports(3, random.SystemRandom()).numbers
    upstream = await asyncio.start_server(echo, "127.0.0.1", 0)
    target = upstream.sockets[0].getsockname()[1]
    async with server(tmp_path, control) as client:
        links = Links(client, ["n1"])
        held, silent = Link("c1", "n1"), Link("c2", "n1")
        await links.create(
            {link: (f"127.0.0.1:{port}", f"127.0.0.1:{target}") for link, port in zip((held, silent), listens, strict=True)}
        )
        streams = [await asyncio.open_connection("127.0.0.1", port) for port in listens]
        for reader, writer in streams:
            writer.write(b"before\n")
            assert await asyncio.wait_for(reader.readline(), DEADLINE_S) == b"before\n"
        await links.impair(1, [held], Impairment(Effect.HELD))
        await links.impair(2, [silent], Impairment(Effect.SILENT))
        assert links.broken() == {held, silent}
        for _, writer in streams:
            writer.write(b"during\n")
            await writer.drain()
        await links.relieve(1)
        assert await asyncio.wait_for(streams[0][0].readline(), DEADLINE_S) == b"during\n"
        await links.relieve(2)
        assert await asyncio.wait_for(streams[1][0].read(), DEADLINE_S) == b"", "the end of silence ends the connection"
        assert links.broken() == set()
        await links.impair(3, [held], Impairment(Effect.REFUSED))
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", listens[0])
        await links.reset()
        _, writer = await asyncio.open_connection("127.0.0.1", listens[0])
        writer.close()
        for _, writer in streams:
            writer.close()
    upstream.close()


@pytest.mark.parametrize("first", [Effect.SLOW, Effect.HELD])
@pytest.mark.parametrize("ends_first", [Effect.SLOW, Effect.HELD, None])
async def test_faults_on_one_link_begin_and_end_in_any_order(tmp_path: Path, first: Effect, ends_first: Effect | None) -> None:
    """A hold lets no byte out, whatever else begins or ends meanwhile, and hinders nothing from ending. None: both at once."""
    control, listen = Ports(2, random.SystemRandom()).numbers
    upstream = await asyncio.start_server(echo, "127.0.0.1", 0)
    target = upstream.sockets[0].getsockname()[1]
    order = [Effect.SLOW, Effect.HELD] if first is Effect.SLOW else [Effect.HELD, Effect.SLOW]
    async with server(tmp_path, control) as client:
        links = Links(client, ["n1"])
        link = Link("c1", "n1")
        await links.create({link: (f"127.0.0.1:{listen}", f"127.0.0.1:{target}")})
        reader, writer = await asyncio.open_connection("127.0.0.1", listen)
        said: list[bytes] = []

        async def say(phase: str) -> None:
            for number in range(200):  # so many packets that a toxic has to hand on what it has
                said.append(f"{phase} {number}\n".encode())
                writer.write(said[-1])
                await writer.drain()

        await say("before")
        await links.impair(0, [link], Impairment(order[0]))
        await say("one fault")
        await links.impair(1, [link], Impairment(order[1]))
        await say("both")
        if ends_first is not None:
            await links.relieve(order.index(ends_first))
            await say("the other")
            assert ends_first is Effect.HELD or b"both" not in reader._buffer, "it was held"  # type: ignore[attr-defined]
        await links.reset()
        await say("none")
        assert [await asyncio.wait_for(reader.readline(), DEADLINE_S) for _ in said] == said
        assert client.toxics() == {}
        writer.close()
    upstream.close()
