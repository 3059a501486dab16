"""The Toxiproxy server under our client: a test for each gap of its Python library shows that the client fills it."""

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from replicated_namesrv import provision
from replicated_namesrv.chaos.effects import Effect, Link, Stream
from replicated_namesrv.chaos.links import Links
from replicated_namesrv.chaos.ports import Ports
from replicated_namesrv.chaos.toxiproxy_client import ProxyPlan, Toxic, ToxiproxyClient, ToxiproxyError
from replicated_namesrv.child_process import ChildProcess

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
        await links.impair(1, {held: Stream.BOTH}, Effect.HELD)
        await links.impair(2, {silent: Stream.BOTH}, Effect.SILENT)
        assert links.broken() == {held, silent}
        for _, writer in streams:
            writer.write(b"during\n")
            await writer.drain()
        async with links._changing:  # the proxies cannot be changed yet
            ending = asyncio.ensure_future(links.relieve(1))
            await asyncio.sleep(0)
            assert links.broken() == {held, silent}, "the fault is ending and has not ended"
        await ending
        assert await asyncio.wait_for(streams[0][0].readline(), DEADLINE_S) == b"during\n"
        assert links.broken() == {silent}
        await links.relieve(2)
        assert await asyncio.wait_for(streams[1][0].read(), DEADLINE_S) == b"", "the end of silence ends the connection"
        assert links.broken() == set()
        await links.impair(3, {held: Stream.BOTH}, Effect.REFUSED)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", listens[0])
        await links.reset()
        _, writer = await asyncio.open_connection("127.0.0.1", listens[0])
        writer.close()
        for _, writer in streams:
            writer.close()
    upstream.close()


async def test_links_whose_removals_block_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """The server tries for five seconds to pass on held bytes of a connection whose other end is closed. One link after the other
    would take longer than the time limit of this test."""
    control, *listens = Ports(17, random.SystemRandom()).numbers
    accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    upstream = await asyncio.start_server(lambda *connection: accepted.put_nowait(connection), "127.0.0.1", 0)
    target = upstream.sockets[0].getsockname()[1]
    async with server(tmp_path, control) as client, asyncio.timeout(DEADLINE_S):
        links = Links(client, ["n1"])
        made = [Link(f"c{number}", "n1") for number in range(len(listens))]
        await links.create({link: (f"127.0.0.1:{port}", f"127.0.0.1:{target}") for link, port in zip(made, listens, strict=True)})
        writers = [(await asyncio.open_connection("127.0.0.1", port))[1] for port in listens]
        ends = [(await accepted.get())[1] for _ in listens]
        await links.impair(1, dict.fromkeys(made, Stream.UPSTREAM), Effect.HELD)
        for writer in writers:
            writer.write(bytes(1 << 20))  # more than one chunk of the server
        for end in ends:
            end.transport.abort()
        await links.relieve(1)
        assert client.toxics() == {}
        for writer in writers:
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for writer in (*writers, *ends)), return_exceptions=True)
    upstream.close()


async def test_the_delay_of_a_link_survives_faults(tmp_path: Path) -> None:
    control, *listens = Ports(3, random.SystemRandom()).numbers
    upstream = await asyncio.start_server(echo, "127.0.0.1", 0)
    target = upstream.sockets[0].getsockname()[1]
    async with server(tmp_path, control) as client, asyncio.timeout(DEADLINE_S):
        links = Links(client, ["n1", "n2"])
        far, near = Link("c1", "n1"), Link("n2", "n1")
        await links.delay([far, near], 160)
        await links.create(
            {link: (f"127.0.0.1:{port}", f"127.0.0.1:{target}") for link, port in zip((far, near), listens, strict=True)}
        )
        delayed = {far.proxy: ["latency_downstream", "latency_upstream"], near.proxy: ["latency_upstream"]}
        assert {name: sorted(toxics) for name, toxics in client.toxics().items()} == delayed
        reader, writer = await asyncio.open_connection("127.0.0.1", listens[0])

        async def round_trip_s() -> float:
            asked = time.monotonic()
            writer.write(b"ping\n")
            assert await reader.readline() == b"ping\n"
            return time.monotonic() - asked

        assert await round_trip_s() >= 0.16
        await links.impair(1, {far: Stream.BOTH}, Effect.HELD)
        await links.relieve(1)
        await links.impair(2, {far: Stream.BOTH}, Effect.SLOW)
        await links.reset()
        assert {name: sorted(toxics) for name, toxics in client.toxics().items()} == delayed
        assert await round_trip_s() >= 0.16
        writer.close()
    upstream.close()


@pytest.mark.parametrize("first", [Effect.SLOW, Effect.HELD])
@pytest.mark.parametrize("ends_first", [Effect.SLOW, Effect.HELD, None])
async def test_faults_on_one_link_begin_and_end_in_any_order(tmp_path: Path, first: Effect, ends_first: Effect | None) -> None:
    """While one fault stops all bytes, other faults can begin and end. ``ends_first`` None: both end at the same time."""
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
            for number in range(200):  # so many packets that a toxic has to pass on some of its bytes
                said.append(f"{phase} {number}\n".encode())
                writer.write(said[-1])
                await writer.drain()

        await say("before")
        await links.impair(0, {link: Stream.BOTH}, order[0])
        await say("one fault")
        await links.impair(1, {link: Stream.BOTH}, order[1])
        await say("both")
        if ends_first is not None:
            await links.relieve(order.index(ends_first))
            await say("the other")
            assert ends_first is Effect.HELD or b"both" not in reader._buffer, "it was held"  # type: ignore[attr-defined]  # no public access to the buffer
        await links.reset()
        await say("none")
        assert [await asyncio.wait_for(reader.readline(), DEADLINE_S) for _ in said] == said
        assert client.toxics() == {}
        writer.close()
    upstream.close()


@pytest.mark.parametrize("effect", [Effect.SILENT, Effect.HELD])
@pytest.mark.parametrize("stream", [Stream.UPSTREAM, Stream.DOWNSTREAM])
async def test_one_stream_of_a_link_is_cut_and_the_other_goes_on(tmp_path: Path, effect: Effect, stream: Stream) -> None:
    """Both ends send. One direction is never interrupted. The bytes of the other one arrive after the fault ends, or never."""
    control, listen = Ports(2, random.SystemRandom()).numbers
    accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    upstream = await asyncio.start_server(lambda *connection: accepted.put_nowait(connection), "127.0.0.1", 0)
    target = upstream.sockets[0].getsockname()[1]
    async with server(tmp_path, control) as client, asyncio.timeout(DEADLINE_S):
        links = Links(client, ["n1"])
        link = Link("g1/0", "n1")
        await links.create({link: (f"127.0.0.1:{listen}", f"127.0.0.1:{target}")})
        source = await asyncio.open_connection("127.0.0.1", listen)
        ends = [source, await accepted.get()]
        for (_, writer), (reader, _) in (ends, reversed(ends)):
            writer.write(b"before\n")
            assert await reader.readline() == b"before\n"
        sender, hearer = ends if stream is Stream.UPSTREAM else reversed(ends)
        await links.impair(1, {link: stream}, effect)
        assert links.broken() == {link}, "no answer comes back, whichever direction is cut"
        kind = "timeout" if effect is Effect.SILENT else "bandwidth"
        assert client.toxics() == {link.proxy: [f"{kind}_{stream}"]}
        sender[1].write(b"into the cut\n")
        for number in range(200):  # bytes that were sent during the cut would have arrived long before the last of them
            hearer[1].write(b"%d\n" % number)
            assert await sender[0].readline() == b"%d\n" % number
        assert not hearer[0]._buffer  # type: ignore[attr-defined]  # no public access to the buffer
        await links.relieve(1)
        assert await hearer[0].readline() == (b"into the cut\n" if effect is Effect.HELD else b"")
        assert (links.broken(), client.toxics()) == (set(), {})
        for _, writer in ends:
            writer.close()
    upstream.close()


@pytest.mark.parametrize("first_to_end", [1, 2, 3])
async def test_faults_on_the_two_streams_of_a_link_do_not_disturb_each_other(tmp_path: Path, first_to_end: int) -> None:
    """One fault stops requests, others slow requests and answers. Every fault ends at once, and bytes that were not stopped
    arrive meanwhile."""
    control, listen = Ports(2, random.SystemRandom()).numbers
    upstream = await asyncio.start_server(echo, "127.0.0.1", 0)
    target = upstream.sockets[0].getsockname()[1]
    async with server(tmp_path, control) as client, asyncio.timeout(DEADLINE_S):
        links = Links(client, ["n1"])
        link = Link("c1", "n1")
        await links.create({link: (f"127.0.0.1:{listen}", f"127.0.0.1:{target}")})
        reader, writer = await asyncio.open_connection("127.0.0.1", listen)
        await links.impair(1, {link: Stream.UPSTREAM}, Effect.HELD)
        await links.impair(2, {link: Stream.BOTH}, Effect.SLOW)
        assert client.toxics() == {link.proxy: ["bandwidth_upstream", "latency_downstream"]}, "delays of what is held wait"
        await links.impair(3, {link: Stream.DOWNSTREAM}, Effect.TRICKLE)
        writer.write(b"said\n")
        await links.relieve(first_to_end)
        assert (links.broken() == {link}) is (first_to_end != 1)
        await links.reset()
        assert await reader.readline() == b"said\n"
        assert client.toxics() == {}
        writer.close()
    upstream.close()


@pytest.mark.parametrize("stream", list(Stream))
@pytest.mark.parametrize("other", [Effect.HELD, Effect.TRICKLE, Effect.SLOW, Effect.SILENT])
async def test_resets_and_other_faults_of_a_link_begin_and_end_in_any_order(
    tmp_path: Path, other: Effect, stream: Stream
) -> None:
    """A toxic that has reset a connection stops reading, so bytes in toxics before it would never leave."""
    control, listen = Ports(2, random.SystemRandom()).numbers
    upstream = await asyncio.start_server(echo, "127.0.0.1", 0)
    target = upstream.sockets[0].getsockname()[1]
    async with server(tmp_path, control) as client, asyncio.timeout(DEADLINE_S):
        links = Links(client, ["n1"])
        link = Link("c1", "n1")
        await links.create({link: (f"127.0.0.1:{listen}", f"127.0.0.1:{target}")})
        for (first, second), ends in itertools.product(((1, 2), (2, 1)), (1, 2, None)):
            reader, writer = await asyncio.open_connection("127.0.0.1", listen)
            for fault in (first, second):
                await links.impair(fault, {link: stream}, other if fault == 1 else Effect.RESET)
                writer.writelines([b"many packets, so that a toxic has to hand on what it has\n"] * 40)
                await asyncio.sleep(0)
            if ends is not None:
                await links.relieve(ends)
            await links.reset()
            assert client.toxics() == {}
            writer.transport.abort()
        reader, writer = await asyncio.open_connection("127.0.0.1", listen)
        writer.write(b"after it all\n")
        assert await reader.readline() == b"after it all\n"
        writer.close()
    upstream.close()
