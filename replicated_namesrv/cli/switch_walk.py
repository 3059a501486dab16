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

If the command stops, the nodes that it has not reached stay in their mode and serve. If it is run again, it continues. Its next
steps follow from the present modes and members:

    --to  the node runs in   and                      it is
    cp    AP                                          switched, and added
    cp    CP                 is not a member          added: a former run ended before that
    ap    CP                 is a member              removed, unless it is the last voter, and switched
    ap    CP                 is not a member          switched: a former run has removed it. Until then it does not serve

``--to ap`` begins with nodes that are not members, then observers; voters are last.

``--to cp`` writes ``walk.json`` to the folder of the backups before the first node is switched: the winner, the values that lose,
and whether the cluster has the winner's values. A later run stores them if that was not done. From then on the values of the
cluster win, but only over values that are known to lose. When all nodes are switched, the file is removed.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

from replicated_namesrv.cli.admin import GOOD, Admin, admin_of, ask_all, given_addresses
from replicated_namesrv.cli.backup import fetch
from replicated_namesrv.cli.children import host_port
from replicated_namesrv.cli.client import BAD, ProgressLine, print_json, run_with_servers, seconds
from replicated_namesrv.cli.diff import (
    Comparison,
    add_comparison_arguments,
    admin_port_of,
    known_namespaces,
    print_comparison,
)
from replicated_namesrv.cli.members import UnfinishedChangeError, change_members
from replicated_namesrv.cli.operator_script import address_values, filled, run_script, words_of
from replicated_namesrv.cli.restore import merge
from replicated_namesrv.cli.status import look_at
from replicated_namesrv.cli.switch_sides import (
    SHOWN_MAX,
    DisagreementError,
    Side,
    conflict_text,
    conflicts_of,
    listed,
    missing_names,
    side_of,
)
from replicated_namesrv.client.nameservers import NameServers
from replicated_namesrv.client.queries import config_request, read_config
from replicated_namesrv.errors import NamesrvError, SettingError, StorageError
from replicated_namesrv.files import hold_folder, write_atomically
from replicated_namesrv.replication.peer_settings import parse_peers

WITHIN_S = 180
LOOK_PAUSE_S = 0.5
ELECTION_S = 10.0
"""A cluster that has no leader for this time does not get one by itself."""
DIFFERENCES_SHOWN = 10
STATE_FILE = "walk.json"
CLUSTER_FILE = "walk-to-ap"
"""--to ap: name of the backup of the cluster, with which the nodes are compared at the end."""
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
    role: str | None
    """In CP; None: unknown."""
    peer: str
    """Peer address for ``--to cp``."""


class _Members(NamedTuple):
    """The members of the cluster."""

    admins: tuple[str, ...]
    """Admin addresses of those that are in the list of name servers."""
    names: frozenset[str]
    """All members, observers included."""
    voters: frozenset[str]


NO_MEMBERS = _Members((), frozenset(), frozenset())


class _Founding(NamedTuple):
    """The content of ``walk.json``."""

    nodes: list[str]
    """``NAME=HOST:PORT`` of all nodes, sorted: the file is of this walk."""
    founder: str
    winner: str
    """Name of the file, in the folder of the backups, whose values are kept."""
    prefer: str | None
    lost: list[list[str]]
    """The values that lose: namespace or "", key or setting, value."""
    stored: bool
    """Whether the cluster has the winner's values."""


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
    except SettingError:
        raise
    except NamesrvError as error:
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
        if self._to == "ap" and self._prefer is not None:
            raise SettingError(
                "--prefer with --walk is for --to cp only: the nodes of a cluster have the same values; leave it out"
            )
        if self._prefer is not None and self._prefer not in addresses:
            raise SettingError(f"--prefer {self._prefer}: with --walk, give one of {', '.join(addresses)}")
        self._folder: Path = arguments.save
        self._state_file = self._folder / STATE_FILE
        self._names = sorted(f"{name}={host_port(peer)}" for name, peer in self._peers.items())
        self._winner = ""
        """File whose values are kept; empty before the backups."""
        self._conflicts: list[dict[str, Any]] = []
        self._switched: list[dict[str, Any]] = []
        self._left: list[str] = []

    async def run(self) -> int:
        """Raises SettingError, StorageError, WalkError, ScriptError, DisagreementError."""
        if self._arguments.dry_run:
            return await self._walk()
        with await asyncio.to_thread(self._hold_folder):
            return await self._walk()

    def _hold_folder(self) -> contextlib.ExitStack:
        """Keep other walks out of the folder of the backups. Raises WalkError, StorageError."""
        held = contextlib.ExitStack()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"--save {self._folder}: {error.strerror}; give a folder that can be written") from None
        try:
            descriptor = hold_folder(self._folder, alone=True)
        except StorageError:
            raise WalkError(
                f"nothing was switched: another walk uses {self._folder}; wait until it has ended, then repeat the command"
            ) from None
        if descriptor is not None:  # None: a file system without locks
            held.callback(os.close, descriptor)
        return held

    async def _walk(self) -> int:
        """Raises SettingError, StorageError, WalkError, ScriptError, DisagreementError."""
        nodes, members = await self._look()
        await self._check_places(nodes, members)
        todo = sorted((node for node in nodes if self._is_due(node, members)), key=lambda node: _turn(node, members))
        self._left = [node.address for node in todo]
        if self._arguments.dry_run:
            with tempfile.TemporaryDirectory() as folder:
                await self._compare_values(nodes, members, Path(folder))
                files: list[str] = []
        else:
            files = await self._compare_values(nodes, members, self._folder)
        if not self._arguments.json:
            for conflict in self._conflicts:
                print(conflict_text(conflict))
        if self._arguments.dry_run:
            if not self._arguments.json:
                print("\n".join(f"would: switch {address} to {self._to}" for address in self._left))
            self.report(is_equal=not self._conflicts)
            return GOOD
        for node in todo:
            await self._switch(node.address, files)
            self._left.pop(0)
        comparison = await self._comparison(namespaces=await self._namespaces())
        is_equal = not comparison.differs and not comparison.unreachable
        if is_equal and self._to == "ap":
            await self._check_values(nodes)
        if is_equal:
            for file in (self._state_file, self._folder / CLUSTER_FILE):
                await asyncio.to_thread(file.unlink, missing_ok=True)
        if not self._arguments.json:
            print_comparison(comparison, DIFFERENCES_SHOWN)
        self.report(is_equal=is_equal)
        return GOOD if is_equal else BAD

    def report(self, *, is_equal: bool) -> None:
        """Print what was done as JSON, if asked."""
        if self._arguments.json:
            found = {"to": self._to, "winner": self._winner, "conflicts": self._conflicts, "switched": self._switched}
            print_json({**found, "left": self._left, "equal": is_equal})

    async def _check_values(self, nodes: list[_Node]) -> None:
        """Check that the nodes, which are equal, have the values of the cluster. An old file that all of them read would not
        differ. Raises WalkError, StorageError."""
        try:
            backup = self._folder / await asyncio.to_thread((self._folder / CLUSTER_FILE).read_text)
        except FileNotFoundError:
            return  # all nodes were AP nodes before
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "now"
            try:
                await asyncio.to_thread(fetch, self._admin, nodes[0].admin, file)
            except NamesrvError as error:
                raise WalkError(f"all nodes were switched, but their values were not compared with the backup: {error}") from None
            now, winner = await asyncio.to_thread(side_of, file), await asyncio.to_thread(side_of, backup)
        if found := conflicts_of([now, winner], winner):
            raise WalkError(
                f"all nodes were switched, but they do not have the values of {backup}: {listed(found)}. Either values were "
                "changed meanwhile, or the nodes read an older file: give 'namesrv switch' their properties file with -c, which "
                f"may set kvConfigPath. 'namesrv kv import {backup}' puts values back, 'namesrv kv delete' removes keys that it "
                f"lacks, and 'namesrv config set' changes settings. Then repeat the command, or remove {CLUSTER_FILE}"
            )

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
        peers = [host_port(address) for address in self._peers.values()] or [""] * len(rows)
        return [
            _Node(address, row["admin"], str(row["nodeId"]), row["mode"], row["role"], peer)
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
        if self._to == "ap" and not leading and all(node.role == "removed" for node in nodes if node.mode == "cp"):
            return NO_MEMBERS  # the last member was switched before them
        if len(leading) != 1:
            problem = f"{len(leading)} of {', '.join(asked)} lead a cluster" + "".join(
                f"; {answer}" for answer in answers if isinstance(answer, NamesrvError)
            )
            raise WalkError(
                f"{problem}; one has to lead all members: see 'namesrv status', and repeat the command. If a node lost its disk "
                f"while it was switched, set mode={self._to} there, and restart it"
            )
        rows = leading[0]["members"]
        names = frozenset(str(row["nodeId"]) for row in rows)
        voters = frozenset(str(row["nodeId"]) for row in rows if row["role"] in ("voter", "leader"))
        return _Members(tuple(admin for admin, name in in_cp.items() if name in names), names, voters)

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

    async def _compare_values(self, nodes: list[_Node], members: _Members, folder: Path) -> list[str]:
        """Take backups into ``folder`` and find the winner. If a former run founded the cluster and did not store the values,
        this is done first. Returns the files for COMMAND, the winner's first. Raises StorageError, WalkError, DisagreementError.
        """
        founding = await asyncio.to_thread(self._read_founding) if self._to == "cp" else None
        if founding is not None and members.names and not founding.stored:
            if members.names != {founding.founder}:
                raise WalkError(
                    f"{self._state_file} says that the cluster does not have the values of {founding.winner} yet, but it has "
                    f"more members than {founding.founder}; add them ('namesrv restore --merge'), and remove {self._state_file}"
                )
            if not self._arguments.dry_run:
                founding = await self._store(members.admins[0], founding)
        sides: dict[str, Side] = {}
        for node in nodes:
            if node.mode == "cp" and node.name not in members.names:
                continue  # its state is that of the members, or it has none yet
            sides[node.address] = await self._saved(node, folder, founding)
        in_cp = [node.address for node in nodes if node.mode == "cp" and node.address in sides]
        if in_cp and founding is not None and not founding.stored:  # a dry run does not store the values
            sides[in_cp[0]] = await asyncio.to_thread(side_of, self._folder / founding.winner)
        winner = sides[in_cp[0] if in_cp else self._prefer or next(iter(sides))]
        self._winner, self._conflicts = winner.name, conflicts_of(list(sides.values()), winner)
        lost = _losing(list(sides.values()), winner)
        if self._conflicts:
            self._check_choice(bool(in_cp), lost, founding)
        if self._to == "cp" and not in_cp and not self._arguments.dry_run:
            founder, name = next(node.name for node in nodes), Path(winner.name).name
            written = _Founding(self._names, founder, name, self._prefer, sorted(map(list, lost)), stored=False)
            await asyncio.to_thread(self._write_founding, written)
        if self._to == "ap" and in_cp and not self._arguments.dry_run:
            await asyncio.to_thread(write_atomically, self._folder / CLUSTER_FILE, Path(winner.name).name.encode())
        others = [side.name for side in sides.values() if side is not winner] if self._to == "cp" else []
        return [winner.name, *others]

    async def _saved(self, node: _Node, folder: Path, founding: _Founding | None) -> Side:
        """Take a backup of one node. A former backup is replaced, but not the winner's if the node has lost values since then: a
        former run may have set its files aside. Raises StorageError, WalkError."""
        file = folder / f"{node.address.replace('[', '').replace(']', '').replace(':', '-')}.{node.mode}.backup"
        new = file.with_name(f"{file.name}.new")
        try:
            await asyncio.to_thread(fetch, self._admin, node.admin, new)
        except NamesrvError as error:
            raise WalkError(f"nothing was switched: {error}") from None
        side = await asyncio.to_thread(side_of, new)
        if founding is not None and not founding.stored and file.name == founding.winner and file.exists():
            former = await asyncio.to_thread(side_of, file)
            if gone := missing_names(former.table, [side]):
                raise WalkError(
                    f"nothing was switched: {node.address} does not have values any more that {file} has: "
                    f"{', '.join(gone[:SHOWN_MAX])}; put them back with 'namesrv restore --merge {file} -a {node.admin}', or, if "
                    f"they are not wanted, remove {self._state_file}"
                )
        await asyncio.to_thread(new.replace, file)
        return side._replace(name=str(file))

    def _check_choice(self, is_founded: bool, lost: set[tuple[str, str, str]], founding: _Founding | None) -> None:
        """Check that --prefer has chosen that these values lose. Raises DisagreementError."""
        names = listed(self._conflicts)
        remedy = "make the nodes equal while they run ('namesrv diff' compares them, 'namesrv kv' changes them)"
        if self._to == "ap" or (is_founded and founding is None):
            raise DisagreementError(f"no node was switched: {names}; {remedy}")
        if self._prefer is None:
            choice = "name with --prefer ADDRESS the name server whose values are kept"
            if founding is not None and founding.prefer is not None:
                choice = f"repeat --prefer {founding.prefer}"
            raise DisagreementError(f"no node was switched: {names}; {remedy}, or {choice}")
        if founding is None:
            return
        new = [f"{namespace}/{key}".strip("/") for namespace, key, _ in sorted(lost - set(map(_entry, founding.lost)))]
        if new or self._prefer != founding.prefer:
            why = (
                f"new since the first run: {', '.join(new[:SHOWN_MAX])}"
                if new
                else f"the first run had --prefer {founding.prefer}"
            )
            raise DisagreementError(f"no node was switched: {names}; {why}; {remedy}")

    async def _store(self, founder: str, founding: _Founding) -> _Founding:
        """Store the winner's values in the cluster that was founded for them. Raises WalkError, StorageError."""
        try:
            await asyncio.to_thread(merge, self._admin, (founder,), self._folder / founding.winner)
        except NamesrvError as error:
            raise WalkError(f"the values of {founding.winner} were not stored in the cluster: {error}") from None
        stored = founding._replace(stored=True)
        await asyncio.to_thread(self._write_founding, stored)
        return stored

    def _read_founding(self) -> _Founding | None:
        """Raises WalkError: it cannot be read, or is of other nodes."""
        try:
            found = _Founding(**json.loads(self._state_file.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise WalkError(f"{self._state_file} cannot be read: {error}; give another folder with --save") from None
        if found.nodes != self._names:
            raise WalkError(
                f"{self._state_file} is of a walk of other nodes ({', '.join(found.nodes)}); give these with -n and --peers, or "
                "another folder with --save"
            )
        return found

    def _write_founding(self, founding: _Founding) -> None:
        write_atomically(self._state_file, json.dumps(founding._asdict(), indent=1).encode())

    # One node

    async def _switch(self, address: str, files: list[str]) -> None:
        """Raises WalkError, ScriptError."""
        started = time.monotonic()
        nodes, members = await self._look()
        node = next(node for node in nodes if node.address == address)
        if not self._is_due(node, members):
            return  # it was switched by someone else meanwhile
        left_out = {each.address for each in nodes if each.mode == "cp" and each.name not in members.names}
        await self._until(node, lambda: self._is_complete(left_out), "equal answers before it is switched")
        if self._to == "ap" and node.name in members.names and members.voters != {node.name}:
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
            await self._until(node, lambda: self._has_values(node), "the node to found a cluster")
        await self._until(node, lambda: self._is_complete(left_out - {node.address}), "equal answers")
        took_s = round(time.monotonic() - started, 1)
        if not self._arguments.json:
            text = f"{node.mode} -> {self._to} in {took_s} s; all name servers list the same brokers"
            print(f"{node.address}: {text}", flush=True)
        self._switched.append({"address": node.address, "name": node.name, "from": node.mode, "to": self._to, "seconds": took_s})

    async def _has_values(self, founder: _Node) -> str | None:
        """Store the winner's values in the cluster that the node has founded. None: done; otherwise the reason why not."""
        founding = await asyncio.to_thread(self._read_founding)
        assert founding is not None  # _compare_values has written it
        try:
            await self._store(founder.admin, founding)
        except WalkError as error:
            return str(error)
        return None

    async def _with_members(self, members: _Members, action: str, *operands: str) -> None:
        """Raises WalkError."""
        try:
            await asyncio.to_thread(change_members, self._admin, members.admins, self._arguments.within, action, *operands)
        except (NamesrvError, UnfinishedChangeError) as error:
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


def _turn(node: _Node, members: _Members) -> int:
    """The order of ``--to ap``: nodes that are not members, observers and learners, voters."""
    return (node.name in members.names) + (node.name in members.voters) if node.mode == "cp" else 0


def _losing(sides: list[Side], winner: Side) -> set[tuple[str, str, str]]:
    """Values that the winner does not have: namespace or "", key or setting, value."""
    kept = {(*key, value) for key, value in winner.table.items()}
    lost = {(*key, value) for side in sides for key, value in side.table.items()} - kept
    for side in sides:
        for name, value in (side.settings or {}).items():
            if winner.settings is not None and winner.settings[name] != value:
                lost.add(("", name, str(value)))
    return lost


def _entry(found: list[str]) -> tuple[str, str, str]:
    namespace, key, value = found
    return namespace, key, value


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
