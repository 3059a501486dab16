"""``namesrv switch --to cp|ap --walk COMMAND``: switches running nodes to the other mode, one at a time, while the others serve.

The command takes backups. If the nodes have different KV entries or shared settings and --prefer names no winner, it changes
nothing. COMMAND switches one node (``namesrv switch --to MODE DIR --backup …`` on its machine). For each node:

1. It waits until all name servers answer and list the same brokers and topics. Otherwise a later difference could not be
   attributed to the switch.
2. ``--to ap``: it removes the node from the cluster, unless it is the last one. So the remaining nodes keep a majority.
3. It runs COMMAND.
4. ``--to cp``: the first node founds a cluster of one, which gets the KV entries and settings of the winner. Each further node is
   added to this cluster and votes.
5. It waits until all name servers list the same brokers and topics again.

If it stops, the remaining nodes stay in their mode and serve. Run again, it continues with them: nodes in the new mode count as
switched, and their values are compared with those of the others.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from replicated_namesrv.cli.admin import GOOD, Admin, AdminError, AdminRefusedError, admin_of, given_addresses
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
from replicated_namesrv.cli.switch_sides import DisagreementError, Side, conflict_text, disagreements, side_of
from replicated_namesrv.client.nameservers import NameServers
from replicated_namesrv.errors import NamesrvError, SettingError
from replicated_namesrv.replication.peer_settings import parse_peers

WITHIN_S = 180
LOOK_PAUSE_S = 0.5
DIFFERENCES_SHOWN = 10


class WalkError(NamesrvError):
    """A node was not switched."""


class _Node(NamedTuple):
    """A node, as it is before it is switched."""

    address: str
    """RocketMQ address."""
    admin: str
    name: str
    mode: str
    is_member: bool
    """Whether it is a member of a CP cluster."""
    peer: str
    """Peer address for ``--to cp``."""


def add_walk_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of a walk."""
    parser.add_argument("--walk", metavar="COMMAND", help="switch running nodes one after the other; COMMAND switches one")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="--walk: folder for the backups")
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
    try:
        return await _Walk(servers, arguments).run()
    except (WalkError, ScriptError, DisagreementError) as error:
        print(f"namesrv switch: {error}", file=sys.stderr)
        return BAD


class _Walk:
    """One run of the command."""

    def __init__(self, servers: NameServers, arguments: argparse.Namespace) -> None:
        """Raises SettingError."""
        self._servers, self._arguments = servers, arguments
        self._admin: Admin = admin_of(arguments)
        self._words = words_of("--walk", arguments.walk)
        addresses = servers.addresses
        self._admins = given_addresses(arguments, self._admin) or tuple(map(admin_port_of, addresses))
        if arguments.save is None:
            raise SettingError("--walk needs --save FOLDER, a folder for the backups")
        if len(self._admins) != len(addresses):
            raise SettingError(f"-n has {len(addresses)} addresses and --admin {len(self._admins)}; give one for each node")
        self._peers = parse_peers("--peers", arguments.peers)
        wanted = len(addresses) if arguments.to == "cp" else 0
        if len(self._peers) != wanted:
            raise SettingError(
                f"--peers has {len(self._peers)} nodes; give one for each address of -n, in the same order, for example "
                "n1=10.0.0.1:9896,n2=10.0.0.2:9896"
                if wanted
                else "--peers is for --to cp only; leave it out"
            )
        if arguments.prefer is not None and str(arguments.prefer) not in addresses:
            raise SettingError(f"--prefer {arguments.prefer}: with --walk, give one of {', '.join(addresses)}")

    async def run(self) -> int:
        """Raises SettingError, StorageError, WalkError, ScriptError, DisagreementError."""
        arguments, to = self._arguments, self._arguments.to
        nodes = await self._look()
        todo = [node for node in nodes if node.mode != to]
        sides, winner, conflicts = await self._compared(nodes)
        if not arguments.json:
            for conflict in conflicts:
                print(conflict_text(conflict))
        if to == "cp" and not arguments.dry_run:
            await self._store(winner, nodes)
        switched: list[dict[str, Any]] = []
        others = [side.name for side in sides if side is not winner] if to == "cp" else []
        files = [winner.name, *others]
        while todo and not arguments.dry_run:
            switched.append(await self._switch(todo.pop(0), nodes, files, bool(conflicts)))
            nodes = await self._look()
        comparison = await self._comparison(with_keys=True)
        is_equal, left = not comparison.differs and not comparison.unreachable, [node.address for node in todo]
        if arguments.json:
            found = {"to": to, "winner": winner.name, "conflicts": conflicts, "switched": switched}
            print_json({**found, "left": left, "equal": is_equal})
        else:
            for address in left:
                print(f"would: switch {address} to {to}")
            print_comparison(comparison, DIFFERENCES_SHOWN)
        return GOOD if is_equal else BAD

    async def _look(self) -> list[_Node]:
        """All nodes. Raises WalkError if one does not answer."""
        rows = await asyncio.to_thread(look_at, self._admin, self._admins)
        for row in rows:
            if not row["answers"]:
                raise WalkError(f"{row['admin']} does not answer: {row['problem']}; start it, and repeat the command")
        members = await self._member_names([row["admin"] for row in rows if row["mode"] == "cp"])
        names = list(self._peers) or [str(row["nodeId"]) for row in rows]
        peers = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self._peers.values()] or [""] * len(
            rows
        )
        return [
            _Node(address, row["admin"], name, row["mode"], row["mode"] == "cp" and row["nodeId"] in members, peer)
            for address, row, name, peer in zip(self._servers.addresses, rows, names, peers, strict=True)
        ]

    async def _member_names(self, admins: list[str]) -> set[str]:
        """Names of the members of the cluster, as its leader knows them, else as any member does."""
        found: list[dict[str, Any]] = []
        for admin in admins:
            try:
                found.append(await asyncio.to_thread(self._admin.ask, admin, "/v1/members"))
            except NamesrvError:
                continue
        if not found:
            return set()
        best = max(found, key=lambda answer: (answer["nodeId"] == answer["leader"], answer["leader"] is not None, answer["term"]))
        return {str(row["nodeId"]) for row in best["members"]}

    async def _compared(self, nodes: list[_Node]) -> tuple[list[Side], Side, list[dict[str, Any]]]:
        """The backups, the one whose values are kept, and what differs. Raises SettingError, StorageError, WalkError,
        DisagreementError."""
        folder: Path = self._arguments.save
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        sides: dict[str, Side] = {}
        for node in nodes:
            if node.mode == "cp" and not node.is_member:
                continue  # it was removed and waits for COMMAND; the members have its state
            file = folder / f"{node.address.replace(':', '-').strip('[]')}.backup"
            try:
                await asyncio.to_thread(fetch, self._admin, node.admin, file)
            except (AdminError, AdminRefusedError) as error:
                raise WalkError(f"nothing was switched: {error}") from None
            sides[node.address] = await asyncio.to_thread(side_of, file)
        if not sides:
            raise WalkError("no node has a state to keep: all were removed from their cluster; see 'namesrv members list'")
        prefer = None if self._arguments.prefer is None else str(self._arguments.prefer)
        in_cp = [node.address for node in nodes if node.address in sides and node.mode == "cp"]
        first = prefer or (in_cp[0] if in_cp else next(iter(sides)))
        if first not in sides:
            raise SettingError(f"--prefer {first}: this node was removed from its cluster; give another one")
        if self._arguments.to == "ap" and in_cp and first not in in_cp:
            raise SettingError(
                f"--prefer {first}: this node runs with mode=ap already, and the others have the values of the cluster; give one "
                f"of {', '.join(in_cp)}, or make the nodes equal first ('namesrv kv' changes them)"
            )
        winner = sides[first]
        return list(sides.values()), winner, disagreements(list(sides.values()), winner, prefer is not None)

    async def _store(self, winner: Side, nodes: list[_Node]) -> None:
        """Store the winner's values in a cluster that an earlier run has founded: it may have ended before it stored them. Raises
        WalkError."""
        if members := [node for node in nodes if node.is_member]:
            try:
                await asyncio.to_thread(merge, self._admin, (members[0].admin,), Path(winner.name))
            except NamesrvError as error:
                raise WalkError(f"nothing was switched: {error}") from None

    async def _switch(self, node: _Node, nodes: list[_Node], files: list[str], differ: bool) -> dict[str, Any]:
        """Switch one node. ``differ``: the nodes have different KV entries or settings, so topics may differ for now. Raises
        WalkError, ScriptError."""
        to, within = self._arguments.to, self._arguments.within
        await self._until(node, lambda: self._is_complete(differ), "equal answers before it is switched")
        members = [other for other in nodes if other.is_member]
        started = time.monotonic()
        if to == "ap" and node.is_member and len(members) > 1:
            await self._with_members(members, "remove", node.name)
        contacts = ",".join(other.peer for other in members)
        setting = "" if to == "ap" else f"join={contacts}" if members else f"peers={node.name}={node.peer}"
        values = {**address_values(node.address), "name": node.name, "peer": node.peer, "setting": setting}
        await run_script("--walk", node.address, filled(self._words, values, {"backups": files}), within)
        await self._until(node, lambda: self._has_mode(node.admin), f"the node to start with mode={to}")
        if to == "cp":
            await self._take_part(node, members, Path(files[0]))
        await self._until(node, lambda: self._is_complete(differ), "equal answers")
        took_s = round(time.monotonic() - started, 1)
        if not self._arguments.json:
            print(f"{node.address}: {node.mode} -> {to} in {took_s} s; all name servers list the same brokers", flush=True)
        return {"address": node.address, "name": node.name, "from": node.mode, "to": to, "seconds": took_s}

    async def _take_part(self, node: _Node, members: list[_Node], winner: Path) -> None:
        """Add the node to the cluster, or store the winner's values in the cluster that it has founded. Raises WalkError."""
        if members:
            await self._with_members(members, "add", node.name, node.peer)
            return

        async def stored() -> str | None:
            try:
                await asyncio.to_thread(merge, self._admin, (node.admin,), winner)
            except NamesrvError as error:
                return str(error)
            return None

        await self._until(node, stored, "the KV config and the settings to be stored")

    async def _with_members(self, members: list[_Node], action: str, *operands: str) -> None:
        """Raises WalkError."""
        admins = tuple(member.admin for member in members)
        try:
            await asyncio.to_thread(change_members, self._admin, admins, self._arguments.within, action, *operands)
        except (NamesrvError, UnfinishedError) as error:
            raise WalkError(f"members {action} {' '.join(operands)}: {error}") from None

    async def _has_mode(self, admin: str) -> str | None:
        (row,) = await asyncio.to_thread(look_at, self._admin, (admin,))
        return None if row["answers"] and row["mode"] == self._arguments.to else str(row.get("problem") or "it has the old mode")

    async def _is_complete(self, differ: bool) -> str | None:
        return _pending(await self._comparison(), differ) or None

    async def _until(self, node: _Node, look: Callable[[], Any], what: str) -> None:
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

    async def _comparison(self, *, with_keys: bool = False) -> Comparison:
        """``with_keys``: compare the KV config, too. It differs until the last node is switched if --prefer was needed."""
        namespaces: list[str] = []
        if with_keys:
            namespaces, _ = await known_namespaces(self._admin, self._admins, self._servers.addresses, self._arguments.namespace)
        comparison = Comparison(self._servers, ProgressLine())
        await comparison.run(namespaces)
        return comparison


def _pending(comparison: Comparison, differ: bool) -> str:
    """Why the name servers do not give the same answers; empty: they do."""
    if comparison.unreachable:
        address, reason = next(iter(comparison.unreachable.items()))
        return f"{address} ({reason})"
    counts = {"brokers": len(comparison.brokers), "topics": 0 if differ else len(comparison.topics)}
    return ", ".join(f"{count} {kind} differ" for kind, count in counts.items() if count)
