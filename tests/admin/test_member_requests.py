"""Requests over HTTP that change members: what was done if a replacement is not finished, and typing errors."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from replicated_namesrv.admin import operations
from replicated_namesrv.compat.independent_node import IndependentNode
from replicated_namesrv.errors import UnavailableError
from tests.support.nodes import http, running_node


class Members:
    """A leader n1 that adds any member, and transfers leadership to n2 when it is asked to remove itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, new_role: str) -> None:
        self.rows: list[dict[str, Any]] = [self.row("n1", "leader")]
        self.changes: list[tuple[str, str]] = []
        self.new_role = new_role
        monkeypatch.setattr(IndependentNode, "members", lambda _: self.rows)
        monkeypatch.setattr(IndependentNode, "change_member", lambda _, action, name, *more: self.change(action, name))

    @staticmethod
    def row(name: str, role: str) -> dict[str, Any]:
        return {"nodeId": name, "role": role, "peerAddress": f"{name}:1", "connected": True, "lag": 0}

    def change(self, action: str, name: str) -> "asyncio.Future[None]":
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.changes.append((action, name))
        if action == "add":
            self.rows.append(self.row(name, self.new_role))
            done.set_result(None)
        else:
            done.set_exception(UnavailableError("n1 is not the leader, n2 is; ask the leader"))
        return done


@pytest.mark.parametrize(
    ("role", "error", "remedy"),
    [
        (
            "voter",
            "n2 was added and votes, and n1 was not removed: n1 is not the leader, n2 is; ask the leader",
            "remove n1 at the present leader with POST /v1/members/n1/remove",
        ),
        (
            "learner",
            "n2 was added and does not vote yet (learner, lag 0), so n1 was not removed",
            "start n2 if it does not run, and repeat the request",
        ),
    ],
)
async def test_an_unfinished_replacement_says_what_was_done_and_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str, error: str, remedy: str
) -> None:
    Members(monkeypatch, role)
    monkeypatch.setattr(operations, "REPLACE_WAIT_S", 0.0)
    async with running_node(tmp_path) as (_, port):
        answer = await http(port, "/v1/members/n1/replace?by=n2&address=n2:1", "POST")
    assert (answer.status, answer.json) == (503, {"error": error, "remedy": remedy, "outcome": "unknown"})


@pytest.mark.parametrize("query", ["add?address=n2:1&addres=x", "add?address=n2:1&observers=true", "remove?force=true"])
async def test_an_unknown_parameter_of_a_change_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: str) -> None:
    members = Members(monkeypatch, "voter")
    async with running_node(tmp_path) as (_, port):
        answer = await http(port, f"/v1/members/n2/{query}", "POST")
    unknown = query.rpartition("=")[0].replace("?", "&").rpartition("&")[2]
    assert answer.status == 400
    assert answer.json["error"] == f"unknown parameter '{unknown}'; the parameters are address, by, observer"
    assert not members.changes
