"""``namesrv switch --to cp|ap --walk COMMAND``: switches running nodes to the other mode, one at a time, while the others serve.

The command takes backups. If the nodes have different KV entries or shared settings and --prefer names no winner, it changes
nothing. COMMAND switches one node (``namesrv switch --to MODE DIR --backup …`` on its machine). For each node:

1. It waits until the name servers that serve list the same brokers and topics. Otherwise a later difference could not be
   attributed to the switch.
2. ``--to ap``: it removes the node from the cluster, unless it is the last member. So the remaining members keep a majority.
3. It runs COMMAND.
4. ``--to cp``: the first node founds a cluster of one, which gets the KV entries and settings of the winner. Each further node is
   added to this cluster and votes.
5. It waits until all name servers list the same brokers and topics again.

If it stops, the remaining nodes stay in their mode and serve. Run again, it continues. What it has to do follows from the present
modes and members, and from the file ``walk.json`` in the folder of the backups. The file names the winner and says whether its
values are stored in the cluster. From then on, the values of the cluster win over those of AP nodes. A node in the wrong place
counts as follows:

    --to  the node runs in   and                      it is
    cp    AP                                          switched, and added
    cp    CP                 is not a member          added: a former run ended before that
    ap    CP                 is a member              removed, unless it is the last member, and switched
    ap    CP                 is not a member          switched: a former run has removed it
"""

import argparse
import asyncio
import json
import re
import sys
import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

from replicated_namesrv.cli.admin import GOOD, Admin, admin_of, ask_all, given_addresses
from replicated_namesrv.cli.backup import fetch
from replicated_namesrv.cli.client import BAD, ProgressLine, print_json, run_with_servers, seconds
from replicated_namesrv.cli.diff import (
    Comparison,
    add_comparison_arguments,
    admin_port_of,
    known_namespaces,
    print_comparison,
)
from replicated_namesrv.cli.members import UnfinishedError, change_members
from replicated_namesrv.cli.operator_script import ScriptError, address_values, filled, run_script, words_of
from replicated_namesrv.cli.restore import merge
from replicated_namesrv.cli.status import look_at
from replicated_namesrv.cli.switch_sides import DisagreementError, Side, conflict_text, conflicts_of, listed, side_of
from replicated_namesrv.client.nameservers import NameServers
from replicated_namesrv.client.queries import config_request, read_config
from replicated_namesrv.errors import NamesrvError, SettingError
from replicated_namesrv.files import write_atomically
from replicated_namesrv.replication.peer_settings import parse_peers

WITHIN_S = 180
LOOK_PAUSE_S = 0.5
ELECTION_S = 10.0
"""A cluster that has no leader for this time does not get one by itself."""
DIFFERENCES_SHOWN = 10
STATE_FILE = "walk.json"
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_KNOWN = ("host", "port", "address", "name", "peer", "setting", "backups")
_NEEDED = {"cp": ("setting", "backups"), "ap": ("backups",)}


class WalkError(NamesrvError):
    """A node was not switched."""


class _Node(NamedTuple):
    """A node as it is now."""

    address: str
    """RocketMQ address."""
    admin: str
    name: str
    mode: str
    peer: str
    """Peer address for ``--to cp``."""


class _Members(NamedTuple):
    """The members of the cluster."""

    admins: tuple[str, ...]
    """Admin addresses of those that are in the list of name servers."""
    names: frozenset[str]
    """All members, observers included."""


NO_MEMBERS = _Members((), frozenset())


def add_walk_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of a walk."""
    parser.add_argument("--walk", metavar="COMMAND", help="switch running nodes one after the other; COMMAND switches one")
    parser.add_argument(
        "--save", type=Path, metavar="FOLDER", help="--walk: folder for the backups; keep it until all are switched"
    )
    parser.add_argument(
        "--peers", default="", metavar="NAME=HOST:PORT,…", help="--walk --to cp: node ids and peer addresses, in the order of -n"
    )
    parser.add_argument(
        "--within", type=seconds, default=WITHIN_S, metavar="SECONDS", help=f"--walk: time for each node (default {WITHIN_S})"
    )
    add_comparison_arguments(parser)


def run_walk(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code."""
    return run_with_servers(arguments, _run)


async def _run(servers: NameServers, arguments: argparse.Namespace) -> int:
    """Raises SettingError, StorageError."""
    walk = _Walk(servers, arguments)
    try:
        return await walk.run()
    except (WalkError, ScriptError, DisagreementError) as error:
        print(f"namesrv switch: {error}", file=sys.stderr)
        walk.report(is_equal=False)
        return BAD


class _Walk:
    """One run of the command."""

    def __init__(self, servers: NameServers, arguments: argparse.Namespace) -> None:
        """Raises SettingError."""
        self._servers, self._arguments, self._to = servers, arguments, arguments.to
        self._admin: Admin = admin_of(arguments)
        self._words = words_of("--walk", arguments.walk)
        _check_words(self._words, self._to)
        addresses = servers.addresses
        self._admins = given_addresses(arguments, self._admin) or tuple(map(admin_port_of, addresses))
        if arguments.save is None:
            raise SettingError("--walk needs --save FOLDER, a folder for the backups")
        if len(self._admins) != len(addresses):
            raise SettingError(f"-n has {len(addresses)} addresses and --admin {len(self._admins)}; give one for each node")
        self._peers = parse_peers("--peers", arguments.peers)
        if self._to == "ap" and self._peers:
            raise SettingError("--peers is for --to cp only; leave it out")
        if self._to == "cp" and len(self._peers) != len(addresses):
            raise SettingError(
                f"--peers has {len(self._peers)} nodes; give one for each address of -n, in the same order, for example "
                "n1=10.0.0.1:9896,n2=10.0.0.2:9896"
            )
        self._prefer = None if arguments.prefer is None else str(arguments.prefer)
        if self._prefer is not None and self._prefer not in addresses:
            raise SettingError(f"--prefer {self._prefer}: with --walk, give one of {', '.join(addresses)}")
        self._folder: Path = arguments.save
        self._winner = ""
        """File whose values are kept; empty before the backups."""
        self._conflicts: list[dict[str, Any]] = []
        self._switched: list[dict[str, Any]] = []
        self._left: list[str] = []

    async def run(self) -> int:
        """Raises SettingError, StorageError, WalkError, ScriptError, DisagreementError."""
        nodes, members = await self._look()
        await self._check_places(nodes, members)
        files = await self._compare_values(nodes, members)
        todo = [node for node in nodes if self._is_due(node, members)]
        self._left = [node.address for node in todo]
        if not self._arguments.json:
            for conflict in self._conflicts:
                print(conflict_text(conflict))
        for node in () if self._arguments.dry_run else todo:
            await self._switch(node, files)
            self._left.pop(0)
        comparison = await self._comparison(namespaces=await self._namespaces())
        is_equal = not comparison.differs and not comparison.unreachable
        if not self._arguments.json:
            for address in self._left:
                print(f"would: switch {address} to {self._to}")
            print_comparison(comparison, DIFFERENCES_SHOWN)
        self.report(is_equal=is_equal)
        return GOOD if is_equal else BAD

    def report(self, *, is_equal: bool) -> None:
        """Print what was done as JSON, if asked."""
        if self._arguments.json and self._winner:
            found = {"to": self._to, "winner": self._winner, "conflicts": self._conflicts, "switched": self._switched}
            print_json({**found, "left": self._left, "equal": is_equal})

    # What is there

    async def _look(self) -> tuple[list[_Node], _Members]:
        """All nodes, and the members of the cluster. Raises WalkError if a node does not answer, or the members are unknown, for
        longer than an election takes."""
        deadline = time.monotonic() + ELECTION_S
        while True:
            try:
                nodes = await self._nodes()
                return nodes, await self._members_of(nodes)
            except WalkError:
                if time.monotonic() >= deadline:
                    raise
            await asyncio.sleep(LOOK_PAUSE_S)

    async def _nodes(self) -> list[_Node]:
        """Raises WalkError."""
        rows = await asyncio.to_thread(look_at, self._admin, self._admins)
        for row in rows:
            if not row["answers"]:
                raise WalkError(f"{row['admin']} does not answer: {row['problem']}; start it, and repeat the command")
        peers = [_joined(address) for address in self._peers.values()] or [""] * len(rows)
        return [
            _Node(address, row["admin"], str(row["nodeId"]), row["mode"], peer)
            for address, row, peer in zip(self._servers.addresses, rows, peers, strict=True)
        ]

    async def _members_of(self, nodes: Collection[_Node]) -> _Members:
        """Raises WalkError."""
        in_cp = {node.admin: node.name for node in nodes if node.mode == "cp"}
        if not in_cp:
            return NO_MEMBERS
        asked = tuple(in_cp)
        answers = await asyncio.to_thread(ask_all, asked, lambda admin: self._admin.ask(admin, "/v1/members"))
        leading = [answer for answer in answers if not isinstance(answer, NamesrvError) and answer["leader"] == answer["nodeId"]]
        if len(leading) != 1:
            problem = f"{len(leading)} of {', '.join(asked)} lead a cluster" + "".join(
                f"; {answer}" for answer in answers if isinstance(answer, NamesrvError)
            )
            raise WalkError(
                f"{problem}; the members must be known: wait until one node leads ('namesrv status'), and repeat the command"
            )
        rows = leading[0]["members"]
        names = frozenset(str(row["nodeId"]) for row in rows)
        return _Members(tuple(admin for admin, name in in_cp.items() if name in names), names)

    async def _check_places(self, nodes: list[_Node], members: _Members) -> None:
        """Check that -n, --admin, --peers and the cluster name the same nodes. Raises WalkError before anything is changed."""
        for node, wanted in zip(nodes, self._peers, strict=False):
            if node.name != wanted:
                raise WalkError(
                    f"nothing was switched: {node.address} has nodeId={node.name}, and --peers names it {wanted}; give --peers "
                    "in the order of -n, or set nodeId in the file of the node and restart it"
                )
        if self._to == "ap" and (unlisted := members.names - {node.name for node in nodes}):
            raise WalkError(
                f"nothing was switched: the cluster has members that -n does not name: {', '.join(sorted(unlisted))}; give "
                "all, or remove these ('namesrv members remove')"
            )
        for outcome in await self._servers.ask_all(config_request()):
            try:
                name = read_config(outcome.answer()).get("nodeId")
            except NamesrvError:
                continue  # a removed or starting node serves no requests
            node = next(node for node in nodes if node.address == outcome.address)
            if name != node.name:
                raise WalkError(
                    f"nothing was switched: {node.address} is {name}, and the admin port {node.admin} is of {node.name}; give "
                    "--admin in the order of -n"
                )

    def _is_due(self, node: _Node, members: _Members) -> bool:
        return node.mode != self._to or (self._to == "cp" and node.name not in members.names)

    # Values

    async def _compare_values(self, nodes: list[_Node], members: _Members) -> list[str]:
        """Take backups and find the winner. Returns the files for COMMAND, the winner's first. Raises SettingError, StorageError,
        WalkError, DisagreementError."""
        await asyncio.to_thread(self._folder.mkdir, parents=True, exist_ok=True)
        state = await asyncio.to_thread(self._read_state)
        is_founded = self._to == "cp" and bool(members.admins)
        if is_founded and state is not None and not state["stored"] and not self._arguments.dry_run:
            state = await self._store(members.admins[0], state)
        sides: dict[str, Side] = {}
        for node in nodes:
            if node.mode == "cp" and node.name not in members.names:
                continue  # its state is that of the members, or it has none yet
            file = self._folder / f"{node.address.replace(':', '-').strip('[]')}.{node.mode}.backup"
            try:
                await asyncio.to_thread(fetch, self._admin, node.admin, file)
            except NamesrvError as error:
                raise WalkError(f"nothing was switched: {error}") from None
            sides[node.address] = await asyncio.to_thread(side_of, file)
        in_cp = [node.address for node in nodes if node.mode == "cp" and node.address in sides]
        first = in_cp[0] if in_cp else self._prefer or next(iter(sides))
        winner = sides[first]
        self._winner, self._conflicts = winner.name, conflicts_of(list(sides.values()), winner)
        if self._conflicts:
            self._check_choice(in_cp, state)
        if self._to == "cp" and not in_cp and not self._arguments.dry_run:
            await asyncio.to_thread(self._write_state, {"winner": winner.name, "prefer": self._prefer, "stored": False})
        others = [side.name for side in sides.values() if side is not winner] if self._to == "cp" else []
        return [winner.name, *others]

    def _check_choice(self, in_cp: list[str], state: dict[str, Any] | None) -> None:
        """Check that --prefer has chosen whose values are kept. Those of a cluster are kept in any case. Raises
        DisagreementError."""
        is_chosen = self._prefer is not None
        if in_cp:
            is_chosen &= self._prefer in in_cp if self._to == "ap" else _has_chosen(state, self._prefer)
        if is_chosen:
            return
        remedy = "or name with --prefer ADDRESS the name server whose values are kept"
        if in_cp and self._to == "ap":
            remedy = f"or keep the values of the cluster with --prefer {in_cp[0]}"
        elif in_cp:
            remedy = "for example with 'namesrv restore --merge' or 'namesrv kv'. The values of the cluster would win"
        raise DisagreementError(
            f"no node was switched: {listed(self._conflicts)}; make the nodes equal while they run ('namesrv diff' compares "
            f"them, 'namesrv kv' changes them), {remedy}"
        )

    async def _store(self, founder: str, state: dict[str, Any]) -> dict[str, Any]:
        """Store the winner's values in the cluster that was founded for them. Returns the new state. Raises WalkError."""
        try:
            await asyncio.to_thread(merge, self._admin, (founder,), Path(state["winner"]))
        except NamesrvError as error:
            raise WalkError(f"the values of {state['winner']} were not stored in the cluster: {error}") from None
        stored = {**state, "stored": True}
        await asyncio.to_thread(self._write_state, stored)
        return stored

    def _read_state(self) -> dict[str, Any] | None:
        """Raises WalkError."""
        file = self._folder / STATE_FILE
        try:
            found: dict[str, Any] = json.loads(file.read_text())
            return {name: found[name] for name in ("winner", "prefer", "stored")}
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise WalkError(f"{file} cannot be read: {error}; give another folder with --save") from None

    def _write_state(self, state: dict[str, Any]) -> None:
        write_atomically(self._folder / STATE_FILE, json.dumps(state, indent=1).encode())

    # One node

    async def _switch(self, node: _Node, files: list[str]) -> None:
        """Raises WalkError, ScriptError."""
        started = time.monotonic()
        nodes, members = await self._look()
        left_out = {each.address for each in nodes if each.mode == "cp" and each.name not in members.names}
        await self._until(node, lambda: self._is_complete(left_out), "equal answers before it is switched")
        if self._to == "ap" and node.name in members.names and len(members.names) > 1:
            await self._with_members(members, "remove", node.name)
        if node.mode != self._to:
            contacts = ",".join(each.peer for each in nodes if each.admin in members.admins)
            setting = "" if self._to == "ap" else f"join={contacts}" if contacts else f"peers={node.name}={node.peer}"
            values = {**address_values(node.address), "name": node.name, "peer": node.peer, "setting": setting}
            words = filled(self._words, values, {"backups": files})
            await run_script("--walk", node.address, words, self._arguments.within)
            await self._until(node, lambda: self._has_mode(node.admin), f"the node to start with mode={self._to}")
        if self._to == "cp" and members.names:
            await self._with_members(members, "add", node.name, node.peer)
        elif self._to == "cp":
            await self._until(node, lambda: self._founded(node), "the node to found a cluster")
        await self._until(node, lambda: self._is_complete(left_out - {node.address}), "equal answers")
        took_s = round(time.monotonic() - started, 1)
        if not self._arguments.json:
            text = f"{node.mode} -> {self._to} in {took_s} s; all name servers list the same brokers"
            print(f"{node.address}: {text}", flush=True)
        self._switched.append({"address": node.address, "name": node.name, "from": node.mode, "to": self._to, "seconds": took_s})

    async def _founded(self, node: _Node) -> str | None:
        """None: the cluster that the node has founded has the winner's values."""
        state = await asyncio.to_thread(self._read_state)
        assert state is not None  # _compare_values has written it
        try:
            await self._store(node.admin, state)
        except WalkError as error:
            return str(error)
        return None

    async def _with_members(self, members: _Members, action: str, *operands: str) -> None:
        """Raises WalkError."""
        try:
            await asyncio.to_thread(change_members, self._admin, members.admins, self._arguments.within, action, *operands)
        except (NamesrvError, UnfinishedError) as error:
            raise WalkError(f"members {action} {' '.join(operands)}: {error}") from None

    async def _has_mode(self, admin: str) -> str | None:
        (row,) = await asyncio.to_thread(look_at, self._admin, (admin,))
        return None if row["answers"] and row["mode"] == self._to else str(row.get("problem") or "it has the old mode")

    async def _is_complete(self, left_out: Collection[str]) -> str | None:
        """Why the name servers besides ``left_out`` do not give the same answers. With conflicts, topics may differ for now."""
        comparison = await self._comparison(left_out)
        missing = {address: why for address, why in comparison.unreachable.items() if address not in left_out}
        if missing:
            address, reason = next(iter(missing.items()))
            return f"{address} ({reason})"
        counts = {"brokers": len(comparison.brokers), "topics": 0 if self._conflicts else len(comparison.topics)}
        return ", ".join(f"{count} {kind} differ" for kind, count in counts.items() if count) or None

    async def _until(self, node: _Node, look: Callable[[], Awaitable[str | None]], what: str) -> None:
        """Wait until ``look`` returns None; until then, it returns the reason. Raises WalkError."""
        deadline, progress = time.monotonic() + self._arguments.within, ProgressLine()
        try:
            while (reason := await look()) is not None:
                if time.monotonic() >= deadline:
                    raise WalkError(
                        f"{node.address}: after {self._arguments.within} s still waiting for {what} ({reason}); the nodes after "
                        "it were not touched. See the log of this node and 'namesrv diff', then repeat the command"
                    )
                progress.show(f"{node.address}: waiting for {what} ({reason})")
                await asyncio.sleep(LOOK_PAUSE_S)
        finally:
            progress.clear()

    async def _namespaces(self) -> list[str]:
        more = self._arguments.namespace
        return (await known_namespaces(self._admin, self._admins, self._servers.addresses, more))[0]

    async def _comparison(self, left_out: Collection[str] = (), namespaces: Collection[str] = ()) -> Comparison:
        """``namespaces``: the KV config is compared, too. It differs until the last node is switched if --prefer was needed."""
        comparison = Comparison(self._servers, ProgressLine())
        comparison.unreachable.update(dict.fromkeys(left_out, "is not a member of the cluster"))
        await comparison.run(list(namespaces))
        return comparison


def _joined(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _has_chosen(state: dict[str, Any] | None, prefer: str | None) -> bool:
    """Whether a former run stored the values of this winner in the cluster."""
    return state is not None and state["stored"] and state["prefer"] == prefer


def _check_words(words: list[str], to: str) -> None:
    """Raises SettingError."""
    found = {name for word in words for name in _PLACEHOLDER.findall(word)}
    if unknown := sorted(found - set(_KNOWN)):
        known = ", ".join("{" + name + "}" for name in _KNOWN)
        raise SettingError(f"--walk: {{{unknown[0]}}} is not known; give some of {known}")
    for name in _NEEDED[to]:
        if name not in found:
            raise SettingError(f"--walk: the command needs {{{name}}} with --to {to}, so that it can switch the node")
    if "{backups}" not in words:
        raise SettingError("--walk: {backups} must be a word of its own, because it becomes several file names")
