"""``namesrv members``: the members of a CP cluster; adds, removes, replaces, promotes and moves them.

The leader knows the progress of all members, so its answer is shown if it answers. Otherwise an answer that names a leader is
preferred, then one of a higher term. A change is requested from the leader until it is made or refused. If the leader transfers
leadership, the next leader gets the request. ``add``, ``promote`` and ``replace`` then wait until the node votes. ``add`` of an
observer waits until it has the log. If that takes too long, the command ends. If the same command is run again, it continues to
wait. If everything has been done meanwhile, it reports this. A repeated ``remove`` is refused, because the members do not show
whether the name was removed or never was one. A typing error must not look like a success.
"""

import argparse
import re
import sys
import time
from typing import Any
from urllib.parse import quote

from replicated_namesrv.admin.diagnosis import even_size_warning
from replicated_namesrv.cli.admin import (
    BAD,
    GOOD,
    UNKNOWN,
    Admin,
    AdminRefusedError,
    AdminUnknownError,
    add_admin_arguments,
    admin_addresses,
    admin_of,
    ask_all,
    neighbours,
)
from replicated_namesrv.cli.children import host_port
from replicated_namesrv.cli.client import print_json, print_table, seconds
from replicated_namesrv.cli.leader import leader_among
from replicated_namesrv.cli.status import look_at, look_at_cluster, of_one_cluster
from replicated_namesrv.errors import NamesrvError, SettingError
from replicated_namesrv.settings import parse_address

HELP = "show the members of a cluster; add, remove, replace, promote and move them"
WITHIN_S = 120
LOOK_PAUSE_S = 0.2
SILENT_S = 2.0
"""After this time without a leader, the command prints what it waits for."""
LAG_MAX = 64
"""Maximum lag, in entries, of an observer that has the log: the entries of a few round trips."""
ADDRESSES_MAX = 64
"""Maximum number of nodes that are asked for the leader."""

_EXAMPLES = """\
  namesrv members list
  namesrv members add n4 10.0.0.4:9896              after n4 was started on an empty disk:
      namesrv serve --mode cp --node-id n4 --join 10.0.0.1:9896,… --set peerListen=10.0.0.4:9896
  namesrv members add n5 10.0.1.5:9896 --observer   no vote: it serves reads, and its loss does not affect the others
  namesrv members promote n5                        the observer becomes a voter
  namesrv members remove n2                         also the leader, which transfers leadership first
  namesrv members replace n3 n6 10.0.0.6:9896       add n6, wait until it votes, remove n3
  namesrv members move n1 10.0.2.1:9896             another address, same disk
"""
_OPERANDS = {
    "list": (), "add": ("NAME", "HOST:PORT"), "remove": ("NAME",), "promote": ("NAME",), "move": ("NAME", "HOST:PORT"),
    "replace": ("OLD", "NEW", "HOST:PORT"),
}  # fmt: skip  # items grouped by line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("action", choices=tuple(_OPERANDS))
    parser.add_argument("operands", nargs="*", metavar="NAME", help="node, and for add, replace and move its peer address")
    parser.add_argument("--observer", action="store_true", help="with add: a member that does not vote until it is promoted")
    parser.add_argument("--within", type=seconds, default=WITHIN_S, metavar="S", help=f"seconds to wait (default {WITHIN_S})")
    codes = "0 shown or done; 1 refused, for example by an independent node; 2 usage, no node answered, or not finished in time"
    add_admin_arguments(parser, _EXAMPLES, codes)
    parser.set_defaults(usage_error=parser.error)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code."""
    needed = _OPERANDS[arguments.action]
    if (
        len(arguments.operands) != len(needed)
        or not all(arguments.operands)
        or (arguments.observer and arguments.action != "add")
    ):
        arguments.usage_error(f"'members {arguments.action}' takes {' '.join(needed) or 'no more arguments'}")
    admin = admin_of(arguments)
    addresses = admin_addresses(arguments, admin)
    if arguments.action != "list":
        return _Change(admin, addresses, arguments).run()
    return _list(admin, addresses, arguments.json)


def _list(admin: Admin, addresses: tuple[str, ...], as_json: bool) -> int:
    """Print the members as the leader knows them, if it answers. If ``addresses`` names only one node, and it is not the leader,
    the other nodes are asked, too."""

    def ask(some: tuple[str, ...]) -> list[Any]:
        return ask_all(some, lambda address: admin.ask(address, "/v1/members"))

    answers = ask(addresses)
    found = [answer for answer in answers if not isinstance(answer, NamesrvError)]
    if not found:
        print("\n".join(dict.fromkeys(map(str, answers))), file=sys.stderr)
        return BAD if any(isinstance(answer, AdminRefusedError) for answer in answers) else UNKNOWN
    if len(addresses) == 1 and found[0]["leader"] not in (None, found[0]["nodeId"]):
        nodes = of_one_cluster(look_at_cluster(admin, addresses)[1], addresses)
        others = tuple(node["admin"] for node in nodes if node["admin"] not in addresses)
        found += [answer for answer in ask(others) if not isinstance(answer, NamesrvError)]
    best = max(found, key=lambda answer: (answer["nodeId"] == answer["leader"], answer["leader"] is not None, answer["term"]))
    if as_json:
        print_json(best)
    else:
        _print(best)
    return GOOD


class UnfinishedChangeError(Exception):
    """The change was not finished. The text says why, and what to do."""


def change_members(admin: Admin, addresses: tuple[str, ...], within_s: int, action: str, *operands: str) -> list[dict[str, Any]]:
    """``namesrv members ACTION OPERANDS``. Returns the members. ``addresses``: admin addresses of members. Raises
    AdminRefusedError, SettingError, UnfinishedChangeError."""
    arguments = argparse.Namespace(action=action, operands=operands, observer=False, within=within_s, json=False)
    return _Change(admin, addresses, arguments).make()


class _Change:
    """One command that changes members."""

    def __init__(self, admin: Admin, addresses: tuple[str, ...], arguments: argparse.Namespace) -> None:
        self._admin, self._given, self._arguments = admin, addresses, arguments
        self._addresses = addresses
        self._deadline = time.monotonic() + arguments.within
        self._told = ""
        self._moved = ""
        """The name of a voter that moved, if the outcome is unknown: without it, there may be no leader."""

    def run(self) -> int:
        try:
            rows = self.make()
        except (AdminRefusedError, SettingError, UnfinishedChangeError) as error:
            print(str(error), file=sys.stderr)
            return UNKNOWN if isinstance(error, UnfinishedChangeError) else BAD
        self._report(rows)
        return GOOD

    def make(self) -> list[dict[str, Any]]:
        """Make the change. Returns the members. Raises AdminRefusedError, SettingError, UnfinishedChangeError."""
        action, operands, observer = self._arguments.action, self._arguments.operands, self._arguments.observer
        for text in operands[len(_OPERANDS[action]) - 1 :] if action in ("add", "move", "replace") else ():
            parse_address("HOST:PORT", text)
        if action == "replace":
            return self._replace(*operands)
        if action == "add":
            return self._add(*operands, observer=observer)
        return self._promote(operands[0]) if action == "promote" else self._request(action, operands[0], *operands[1:])

    def _report(self, rows: list[dict[str, Any]]) -> None:
        voters = sum(row["role"] in ("voter", "leader") for row in rows)
        if self._arguments.json:
            print_json({"changed": True, "voters": voters, "members": rows})
        else:
            print(f"{' '.join([self._arguments.action, *self._arguments.operands])}: done, {voters} voters")
            if self._arguments.action == "move":
                print(f"the members connect to {' at '.join(self._arguments.operands)} now: start it there with its disk")
        if warning := even_size_warning(rows):
            print(f"warning: {warning}", file=sys.stderr)

    def _tell(self, text: str) -> None:
        """Show progress, each state once."""
        if text != self._told:
            self._told = text
            print(text, file=sys.stderr)

    def _pause(self, remedy: str) -> None:
        if time.monotonic() >= self._deadline:
            raise UnfinishedChangeError(f"not finished within {self._arguments.within} s: {remedy}")
        time.sleep(LOOK_PAUSE_S)

    def _leader(self) -> str:
        """Admin address of the leader."""
        began = time.monotonic()
        while True:
            nodes = of_one_cluster(look_at(self._admin, self._addresses), self._given)
            leader = leader_among(nodes)
            if leader is not None:
                return str(leader["admin"])
            if any(node.get("mode") == "ap" for node in nodes):
                raise SettingError("independent nodes (mode=ap) have no members; list the nodes with 'namesrv status'")
            answering = [node for node in nodes if node["answers"]]
            problem = (
                f"none of {', '.join(self._addresses)} leads; give the admin addresses of all members with --admin, or start a "
                "majority of them"
            )
            if not answering:
                problem = "; ".join(f"{node['admin']}: {node['problem']}" for node in nodes)
                if all(node["refused"] for node in nodes):
                    raise SettingError(problem)
            if self._moved:
                problem = f"no node leads; start {self._moved} at its new address if it does not run there ({problem})"
            self._find_others()
            if not answering or time.monotonic() >= began + SILENT_S:
                self._tell(problem)
            self._pause(problem)

    def _find_others(self) -> None:
        """Add the nodes that the known nodes report, because a node that was added after this command began may lead."""
        told = ask_all(self._addresses, lambda address: neighbours(address, self._admin.ask(address, "/v1/status")))
        found = [address for answer in told if not isinstance(answer, NamesrvError) for address in answer]
        self._addresses = tuple(dict.fromkeys((*self._addresses, *found)))[:ADDRESSES_MAX]

    def _request(self, action: str, name: str, address: str | None = None, *, observer: bool = False) -> list[dict[str, Any]]:
        """Have the leader make a change. Returns the members. Raises AdminRefusedError."""
        query = "" if address is None else f"?address={quote(address)}" + ("&observer=true" if observer else "")
        path, is_repeated = f"/v1/members/{quote(name, safe='')}/{action}{query}", False
        while True:
            try:
                members: list[dict[str, Any]] = self._admin.ask(self._leader(), path, "POST")["members"]
                return members
            except AdminUnknownError as error:
                is_repeated = True
                self._moved = name if action == "move" else ""
                self._tell(f"{error}; checking whether it was done")
                if self._is_done(action, name, address):
                    return self._rows()
            except AdminRefusedError as error:
                if is_repeated and self._is_done(action, name, address):
                    return self._rows()  # the request of unknown outcome was committed later, so the repetition was refused
                if error.status != 503:
                    raise
                self._tell(str(error.answer.get("error", error)))
            except SettingError:
                raise
            except NamesrvError as error:
                self._tell(str(error))
            self._pause(self._told)

    def _is_done(self, action: str, name: str, address: str | None) -> bool:
        row = self._row(name)
        if action == "remove" or row is None:
            return action == "remove" and row is None
        return bool(row["role"] != "observer" if action == "promote" else _is_at(row, address))

    def _rows(self) -> list[dict[str, Any]]:
        """The members as the leader knows them."""
        while True:
            try:
                rows: list[dict[str, Any]] = self._admin.ask(self._leader(), "/v1/members")["members"]
                return rows
            except SettingError:
                raise
            except NamesrvError as error:
                self._pause(str(error))

    def _row(self, name: str) -> dict[str, Any] | None:
        return {row["nodeId"]: row for row in self._rows()}.get(name)

    def _add(self, name: str, address: str, *, observer: bool) -> list[dict[str, Any]]:
        """Add a node, unless it is a member of this kind at this address already, and wait for it."""
        row, kinds = self._row(name), ("observer",) if observer else ("learner", "voter", "leader")
        if row is not None and _is_at(row, address) and row["role"] in kinds:
            self._tell(f"{name} is a member at {address} already: {row['role']}")
        elif row is not None and row["role"] == "observer" and not observer:
            raise SettingError(f"{name} is a member already, an observer; use 'namesrv members promote {name}'")
        else:
            self._request("add", name, address, observer=observer)
        return self._wait_for(name, "observer" if observer else "voter")

    def _promote(self, name: str) -> list[dict[str, Any]]:
        """Promote an observer, unless that has been done, and wait until it votes."""
        row = self._row(name)
        if row is not None and row["role"] != "observer":
            self._tell(f"{name} is no observer: {row['role']}")
        else:
            self._request("promote", name)
        return self._wait_for(name, "voter")

    def _replace(self, old: str, new: str, address: str) -> list[dict[str, Any]]:
        """Raises SettingError before anything is changed if ``old`` cannot be replaced by ``new``."""
        if old == new:
            raise SettingError(
                f"{old} cannot be replaced by a node of the same name; give another name, or start {old} with --join, its old "
                "address and an empty disk"
            )
        rows = {row["nodeId"]: row for row in self._rows()}
        if rows.get(old, {}).get("role") == "observer":
            raise SettingError(
                f"{old} is an observer, and 'replace' adds a voter: use 'namesrv members add {new} {address} --observer', and "
                f"then 'namesrv members remove {old}'"
            )
        if old in rows and rows.get(new, {}).get("role") == "observer":
            raise SettingError(
                f"{new} is an observer; use 'namesrv members promote {new}'. When it votes, use 'namesrv members remove {old}'"
            )
        if old not in rows:
            if new not in rows or not _is_at(rows[new], address):
                raise SettingError(f"{old} is not a member; give one of {', '.join(rows)}")
            self._tell(f"{old} is not a member (any more)")
            return self._add(new, address, observer=False)
        try:
            self._add(new, address, observer=False)
        except UnfinishedChangeError as error:
            raise UnfinishedChangeError(f"{error}. {old} was not removed; repeat the command to continue") from None
        try:
            return self._request("remove", old)
        except AdminRefusedError:
            if self._row(old) is not None:
                raise
            self._tell(f"{old} was removed by another command")
            return self._rows()

    def _wait_for(self, name: str, role: str) -> list[dict[str, Any]]:
        """Wait until a node is a voter, or until an observer has the log."""
        while True:
            rows = self._rows()
            row = {row["nodeId"]: row for row in rows}.get(name)
            if row is None:
                raise UnfinishedChangeError(f"{name} was removed by another command meanwhile; see 'namesrv members list'")
            has_log = row["connected"] and row["matchIndex"] and row["lag"] <= LAG_MAX
            votes = row["connected"] or row["role"] == "leader"  # a voter that is down does not replace another one
            if row["role"] in (role, "leader") and (has_log if role == "observer" else votes):
                return rows
            state = f"lag {row['lag']}" if row["connected"] else f"not connected{self._link_problem(name)}"
            self._tell(f"{name}: {row['role']}, {state}")
            becomes = "serves" if role == "observer" else f"becomes a {role} by itself"
            self._pause(
                f"{name}: {row['role']}, {state}. It {becomes} once it has caught up. Start it with --join and an empty disk if "
                f"it does not run, correct its address with 'namesrv members move {name} HOST:PORT', or undo this with 'namesrv "
                f"members remove {name}'"
            )

    def _link_problem(self, name: str) -> str:
        """Why the leader and the node ``name`` have no connection, as far as the leader knows."""
        try:
            transport = self._admin.ask(self._leader(), "/v1/status")["replication"]["raft"]["transport"]
        except (NamesrvError, KeyError, TypeError):
            return ""  # another node leads now, or this one has just started
        error = transport["peers"].get(name, {}).get("error") or ""
        refusal = transport["last_refusal"] if re.search(rf"\b{re.escape(name)}\b", transport["last_refusal"]) else ""
        is_repeated = bool(error) and error.partition(": ")[2] in refusal
        return "".join(f"; {text}" for text in (error, "" if is_repeated else refusal) if text)


def _is_at(row: dict[str, Any], address: str | None) -> bool:
    """Whether ``address`` is the peer address of a member."""
    return bool(row["peerAddress"] == host_port(parse_address("HOST:PORT", address or "")))


def _print(answer: dict[str, Any]) -> None:
    header = ("node", "role", "zone", "peer address", "address", "serves", "index", "lag")
    print_table(header, [_line(row) for row in answer["members"]])
    if answer["nodeId"] != answer["leader"]:
        leader = "no leader is known" if answer["leader"] is None else f"the leader {answer['leader']} did not answer"
        print(f"\nas node {answer['nodeId']} knows them: {leader}, so the progress of the others is unknown")


def _line(row: dict[str, Any]) -> list[object]:
    serves = "drained" if row["drained"] else "yes" if row["serves"] else "no"
    unknown = ["?" if row[name] is None else row[name] for name in ("address", "matchIndex", "lag")]
    return [row["nodeId"], row["role"], row.get("zone") or "-", row["peerAddress"], unknown[0], serves, *unknown[1:]]
