"""Mutated real frames against a server process: it continues to serve, keeps all registrations, and its memory stays small."""

import json
import os
import random
import re
import selectors
import socket
import struct
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.nodes import running_command
from tests.support.remoting_server import Peer, broker_fields, request, rss_bytes, topic_table

DATA = Path(__file__).parents[1] / "data"
CHECK_EVERY = 2000
AT_ONCE = 64
CLOSED_WITHIN_S = 60
RSS_GROWTH_MAX_BYTES = 120_000_000
NUMBERS = (b"-1", b"0", b"99999999999999999999", b"1e400", b"null", b"2147483648", b'""', b"{}", b"[" * 2000)
LENGTHS = (0, 1, 4, 255, 65_536, 16_777_212, 16_777_213, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def recorded_frames() -> list[bytes]:
    frames = []
    for name in ("frames_5.3.3.jsonl", "frames_4.9.8.jsonl"):
        records = [json.loads(line) for line in (DATA / name).read_text().splitlines()]
        frames += [bytes.fromhex(record["hex"]) for record in records if record["dir"] == "c2s"]
    for line in (DATA / "remoting_cases.jsonl").read_text().splitlines():
        case = json.loads(line)
        frames += [bytes.fromhex(step["send_hex"]) for step in case["steps"] if "send_hex" in step and case["version"] == "5.3.3"]
    return [frame for frame in frames if len(frame) < 100_000]


def mutated(rng: random.Random, frames: list[bytes]) -> bytes:
    data = bytearray(rng.choice(frames))
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        place = rng.randrange(len(data) + 1)
        match rng.randrange(9):
            case 0 if data:
                data[place % len(data)] = rng.randrange(256)
            case 1 if data:
                data[place % len(data)] ^= 1 << rng.randrange(8)
            case 2:
                del data[place:]
            case 3:
                data[place:place] = rng.randbytes(rng.randrange(1, 40))
            case 4:
                data[place:place] = data[rng.randrange(len(data) + 1) :][:500]
            case 5:
                position = rng.choice((0, 4, 8, place))
                data[position : position + 4] = struct.pack(">I", rng.choice(LENGTHS))
            case 6:
                numbers = list(re.finditer(rb"\d+", data))
                if numbers:
                    number = rng.choice(numbers)
                    data[number.start() : number.end()] = rng.choice(NUMBERS)
                    fix_lengths(data, rng)
            case 7:
                data += rng.choice(frames)[rng.randrange(20) :]
            case _:
                del data[place : place + rng.randrange(1, 30)]
                fix_lengths(data, rng)
    return bytes(data)


def fix_lengths(data: bytearray, rng: random.Random) -> None:
    """Correct the length fields in most cases, so that the content is read."""
    if len(data) > 12 and rng.random() < 0.9:
        grown = len(data) - 4 - int.from_bytes(data[:4])
        data[:4] = struct.pack(">I", len(data) - 4)
        header = int.from_bytes(data[5:8]) + grown
        if 0 <= header < 1 << 24:
            data[5:8] = header.to_bytes(3)


class Conversation:
    """Sends all its bytes, closes its sending side, and reads until the server closes. The server must close."""

    def __init__(self, port: int, data: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), CLOSED_WITHIN_S)
        self.socket.setblocking(False)
        self._unsent = memoryview(data)
        self._has_said_all = False

    def goes_on(self) -> bool:
        """Send and read as much as is possible now; False: the server has closed."""
        try:
            if self._unsent:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
            if not self._unsent and not self._has_said_all:
                self.socket.shutdown(socket.SHUT_WR)
                self._has_said_all = True
            while self.socket.recv(1 << 18):
                pass
        except BlockingIOError:
            return True
        except ConnectionError:
            pass
        self.socket.close()
        return False

    @property
    def waits_for(self) -> int:
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)


def converse(port: int, frames: Iterable[bytes]) -> None:
    """Send each of ``frames`` over a connection of its own, because the node never reads the bytes after a malformed frame. Many
    connections are open at once, because one after the other would take too long."""
    with selectors.DefaultSelector() as selector:
        waiting = iter(frames)
        exhausted = False
        while not exhausted or selector.get_map():
            while not exhausted and len(selector.get_map()) < AT_ONCE:
                data = next(waiting, None)
                if data is None:
                    exhausted = True
                else:
                    begun = Conversation(port, data)
                    if begun.goes_on():
                        selector.register(begun.socket, begun.waits_for, begun)
            ready = selector.select(CLOSED_WITHIN_S)
            assert ready or not selector.get_map(), f"{len(selector.get_map())} connections were not closed"
            for key, _ in ready:
                descriptor = key.fd
                if key.data.goes_on():
                    selector.modify(descriptor, key.data.waits_for, key.data)
                else:
                    selector.unregister(descriptor)


def check_health(port: int, guard: Peer) -> None:
    assert guard.call(105, {"topic": "guarded-topic-1"}).code == 0, "what was registered is gone"
    with Peer(port) as fresh:
        answer = fresh.call(105, {"topic": "guarded-topic-2"})
        assert answer.code == 0
        assert b"10.255.255.1:10911" in answer.body


def fuzz(rng: random.Random, count: int, folder: Path) -> None:
    frames = recorded_frames()
    arguments = ("serve", "--listen", "127.0.0.1:0", "--admin", "off", "--data-dir", str(folder / "data"))
    with running_command(*arguments, stderr=folder / "stderr") as command:
        port = int(command.wait_line("boot success").rpartition(":")[2])
        pid = command.process.pid
        with Peer(port) as guard:
            fields = broker_fields("guard", "10.255.255.1:10911")
            guard.call(103, fields, topic_table("guarded-topic-1", "guarded-topic-2"))
            converse(port, [b"".join(frames)])
            before = rss_bytes(pid)
            for done in range(0, count, CHECK_EVERY):
                converse(port, (mutated(rng, frames) for _ in range(min(CHECK_EVERY, count - done))))
                assert command.process.poll() is None, "the process ended"
                guard.send(request(904, {"clusterName": "C", "brokerAddr": "10.255.255.1:10911"}, flag=2))
                check_health(port, guard)
            assert rss_bytes(pid) - before < RSS_GROWTH_MAX_BYTES
        command.process.terminate()
        assert command.process.wait(20) == 0
    unexpected = [line for line in (folder / "stderr").read_text().splitlines() if "unexpectedly" in line or "Traceback" in line]
    assert not unexpected, f"handlers raised what nobody expected: {unexpected[:5]}"


def test_mutated_frames(rng: random.Random, tmp_path: Path) -> None:
    fuzz(rng, 1_000, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_many_mutated_frames(rng: random.Random, tmp_path: Path) -> None:
    fuzz(rng, int(os.environ.get("FUZZ_FRAMES", "100000")), tmp_path)
