"""Recorded answers of RocketMQ's own name server 5.3.3: each case is replayed, over sockets, against a fresh server.

An answer must have the recorded code, flag, opaque, remark, extFields (absent or empty as recorded) and, byte for byte, the
recorded body; only names in it may come in another order than Java's hash order. Deliberate differences are listed with their
reason and must differ.
"""

import base64
import fcntl
import itertools
import json
import re
import socket
import ssl
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from replicated_namesrv.steps import finish
from replicated_namesrv.wire.fastjson import MalformedJsonError, parse_steps
from tests.support.remoting_server import Answer, Peer, live_server, request

CASES = Path(__file__).parents[1] / "data" / "remoting_cases.jsonl"
DEVIATIONS = {
    "c10d-compressed-with-false-flag": "a deflated body is recognised whatever the header says; 5.x brokers send it so",
    "c14b-changed-config-same-version": "other content under the same version is stored (split registration, RocketMQ 10425)",
    "c21-unregister-variants": "a removed name leaves every cluster, whatever cluster the removal names",
    "c25c-missing-register-fields": "a registration without its mandatory fields is refused instead of half done",
}
DEVIATING_STEPS = {"c21-unregister-variants": 10}
"""For each of these cases, the step that is answered differently. The other steps alone are answered as recorded, and are a case
of their own."""
SERIALIZE_TYPES = {"JSON": 0, "ROCKETMQ": 1}


def load_cases() -> list[dict[str, Any]]:
    cases = [json.loads(line) for line in CASES.read_text().splitlines()]
    cases = [case for case in cases if case["version"] == "5.3.3"]
    for case in [case for case in cases if case["name"] in DEVIATING_STEPS]:
        at = DEVIATING_STEPS[case["name"]]
        cases.append({**case, "name": f"{case['name']}-rest", "steps": [*case["steps"][:at], *case["steps"][at + 1 :]]})
    return cases


def canonical(value: Any) -> Any:
    """The value with its lists as multisets, because Java's order is that of a hash."""
    if isinstance(value, dict):
        return {key: canonical(member) for key, member in value.items()}
    if isinstance(value, list):
        return sorted((canonical(item) for item in value), key=repr)
    return value


def parsed(body: bytes) -> Any:
    return canonical(finish(parse_steps(body.decode())))


def check_body(expected: dict[str, Any], body: bytes) -> None:
    if expected["body_kind"] == "none":
        assert body == b""
        return
    wanted = base64.b64decode(expected["body_b64"]) if "body_b64" in expected else expected["body_text"].encode()
    if expected["body_kind"] == "props":
        pairs, given = (dict(re.findall(r"^([^=\n]+)=(.*)$", text.decode(), re.M)) for text in (wanted, body))
        differing = {key for key, value in pairs.items() if given.get(key) != value}
        assert differing <= set(expected["volatile_keys"])
        return
    if body != wanted:
        try:
            assert parsed(body) == parsed(wanted)
        except MalformedJsonError:
            pytest.fail(f"want {wanted!r}, got {body!r}")
        assert sorted(body) == sorted(wanted), "equal but for the order of names, yet written differently"


def check(expected: dict[str, Any], answer: Answer | None, sent: bytes) -> None:
    assert answer is not None, "the connection was closed"
    wanted, header = expected["header"], answer.header
    assert (header.code, header.flag, header.opaque) == (wanted["code"], wanted["flag"], wanted["opaque"])
    if expected.get("remark") == "any":
        assert header.remark
    else:
        assert (header.remark or None) == (wanted.get("remark") or None)
    if answer.serialize_type == 0:
        assert header.ext_fields == wanted.get("extFields")
    else:
        assert (header.ext_fields or {}) == (wanted.get("extFields") or {})
    if sent:
        assert answer.serialize_type == sent[4], "answers mirror the request's header encoding"
    check_body(expected, answer.body)


class Listener:
    """Listens like a broker and collects the frames that are pushed to it."""

    def __init__(self, port: int) -> None:
        self.turn = (Path(tempfile.gettempdir()) / f"namesrv-test-port-{port}.lock").open("w")
        fcntl.flock(self.turn, fcntl.LOCK_EX)  # other test processes replay the same recordings
        self.listening = socket.create_server(("127.0.0.1", port))
        self.frames: list[bytes] = []
        self.arrived = threading.Condition()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self.listening.accept()
            except OSError:
                return
            threading.Thread(target=self._read, args=(accepted,), daemon=True).start()

    def _read(self, accepted: socket.socket) -> None:
        with accepted, accepted.makefile("rb") as stream:
            while prefix := stream.read(4):
                frame = prefix + stream.read(int.from_bytes(prefix))
                with self.arrived:
                    self.frames.append(frame)
                    self.arrived.notify_all()

    def take(self, timeout_s: float) -> Answer:
        with self.arrived:
            assert self.arrived.wait_for(lambda: self.frames, timeout_s), "no push arrived"
            return Answer(self.frames.pop(0))

    def close(self) -> None:
        self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        self.turn.close()


class Replay:
    """Connections and listeners of one case."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.peers: dict[str, Peer] = {}
        self.listeners: dict[str, Listener] = {}

    def peer(self, name: str, tls: bool = False) -> Peer:
        if name not in self.peers:
            context = None
            if tls:
                context = ssl.create_default_context()
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            self.peers[name] = Peer(self.port, context)
        return self.peers[name]

    def run(self, step: dict[str, Any]) -> None:
        getattr(self, f"do_{step['op']}")(step)

    def do_connect(self, step: dict[str, Any]) -> None:
        self.peer(step["conn"], step.get("tls", False))

    def do_call(self, step: dict[str, Any]) -> None:
        deadline = time.monotonic() + step.get("within_ms", 0) / 1000
        sent = bytes.fromhex(step["send_hex"])
        while True:
            peer = self.peer(step["conn"])
            peer.send(sent)
            answer = peer.receive()
            try:
                check(step["expect"], answer, sent)
                return
            except AssertionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def do_send(self, step: dict[str, Any]) -> None:
        data = bytes.fromhex(step["send_hex"])
        places = [0, *step.get("split", []), len(data)]
        for start, end in itertools.pairwise(places):
            self.peer(step["conn"]).send(data[start:end])

    def do_recv(self, step: dict[str, Any]) -> None:
        check(step["expect"], self.peer(step["conn"]).receive(), b"")

    def do_recv_set(self, step: dict[str, Any]) -> None:
        wanted = {expected["header"]["opaque"]: expected for expected in step["expect"]}
        for answer in self.peer(step["conn"]).answers(len(wanted)):
            check(wanted.pop(answer.header.opaque), answer, b"")

    def do_silence(self, step: dict[str, Any]) -> None:
        with pytest.raises(TimeoutError):
            self.peer(step["conn"]).receive(step["ms"] / 1000)

    def do_closed(self, step: dict[str, Any]) -> None:
        assert self.peer(step["conn"]).is_closed()

    def do_close(self, step: dict[str, Any]) -> None:
        self.peers.pop(step["conn"]).close()

    def do_sleep(self, step: dict[str, Any]) -> None:
        """Java needs time for some steps. Our server has completed them when the next answer arrives, or the next step waits for
        them.
        """

    def do_listen(self, step: dict[str, Any]) -> None:
        self.listeners[step["name"]] = Listener(step["port"])

    def do_push(self, step: dict[str, Any]) -> None:
        push, wanted = self.listeners[step["name"]].take(5), step["expect"]["header"]
        header = push.header
        assert (header.code, header.flag, header.ext_fields) == (wanted["code"], wanted["flag"], wanted["extFields"])

    def close(self) -> None:
        for peer in self.peers.values():
            peer.close()
        for listener in self.listeners.values():
            listener.close()


def replay(case: dict[str, Any], folder: Path) -> None:
    with live_server(folder, bindAddress="0.0.0.0") as server:  # as in the recording, because the answer to code 319 shows it
        if not case.get("fresh"):  # recorded on a server that had known this namespace
            with Peer(server.port) as peer:
                for code in (100, 102):
                    peer.send(request(code, {"namespace": "ORDER_TOPIC_CONFIG", "key": "x", "value": "y"}))
                    assert peer.answers(1)[0].code == 0
        run = Replay(server.port)
        try:
            for step in case["steps"]:
                run.run(step)
        finally:
            run.close()


@pytest.mark.parametrize("case", load_cases(), ids=lambda case: case["name"])
def test_recorded_case(case: dict[str, Any], tmp_path: Path) -> None:
    if case["name"] in DEVIATIONS:
        with pytest.raises(AssertionError):
            replay(case, tmp_path)
    else:
        replay(case, tmp_path)
