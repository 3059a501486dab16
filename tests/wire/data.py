"""Recorded frames and recorded results of fastjson, as the tests of this folder read them."""

import json
from pathlib import Path
from typing import Any, NamedTuple

DATA = Path(__file__).parent.parent / "data"
SERVER_VERSIONS = ("5.3.3", "4.9.8")


class RecordedFrame(NamedTuple):
    """A frame between real peers, split into its parts by code that is not under test."""

    name: str
    header: bytes
    body: bytes
    serialize_type: int
    decoded: dict[str, Any]
    whole: bytes
    from_client: bool


def lines(name: str) -> list[dict[str, Any]]:
    """Objects of a file with one JSON object a line."""
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


def recorded_frames() -> list[RecordedFrame]:
    """Frames of brokers, producers, consumers and mqadmin, and the answers they got."""
    frames = []
    for version in SERVER_VERSIONS:
        for row in lines(f"frames_{version}.jsonl"):
            whole = bytes.fromhex(row["hex"])
            body_start = 8 + int.from_bytes(whole[5:8])
            name = f"{version}-{row['n']}-{row['dir']}-{row['request_code']}"
            frames.append(
                RecordedFrame(name, whole[8:body_start], whole[body_start:], whole[4], row["header"], whole, row["dir"] == "c2s")
            )
    return frames


def recorded_answers() -> list[tuple[str, str]]:
    """(header text, body text) of all answers (not the pushes) in the recorded cases of the 5.3.3 name server."""
    answers = []
    for case in lines("remoting_cases.jsonl"):
        for step in case["steps"]:
            expected = step.get("expect")
            for answer in expected if isinstance(expected, list) else [expected]:
                if isinstance(answer, dict) and answer["header"]["flag"] == 1:
                    answers.append((answer["header_text"], answer.get("body_text", "")))
    return answers
