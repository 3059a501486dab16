"""``namesrv switch --to cp|ap DIR --backup FILE…``: prepares the data directory of a stopped node for the other mode.

Without this command, the node would read files in DIR that are older than the backup, and old data would come back:

    --to  old files in DIR                  become                        because
    cp    kvConfig.json                     kvConfig.json.before-cp       a later switch to AP would read it
    cp    shared settings in                are removed                   the restore sets them, through the log
          runtime.properties
    cp    raft (an earlier CP cluster)      raft.before-cp                a new cluster is formed from empty logs
    ap    kvConfig.json (an earlier AP      kvConfig.json.before-ap       its deleted keys would come back
          node)
    ap    -                                 kvConfig.json is written      from the backup
    ap    shared settings in                those of the backup           a CP node keeps them in its log only
          runtime.properties
    ap    raft                              raft.before-ap                a later CP cluster must not continue it

With ``--walk COMMAND`` the command switches running nodes instead, one at a time (``switch_walk.py``).

No file is deleted. The command refuses, and changes nothing, if data would be lost. There are two cases. First, the given files
disagree about a key or a shared setting, and --prefer names no winner. Second, DIR has a value of a key or of a shared setting
that no given file has: with ``--to cp`` in kvConfig.json, runtime.properties or a CP log; with ``--to ap`` in a CP log that is
not known to be older than the backup. If DIR has no CP log because it was switched to AP already, any difference between it and
the backup is refused, deleted keys included; with --prefer, the backup is used. After a crash, run the command again: it
completes the work.

A cluster that is founded anew with empty disks has the same clusterId and counts its revisions from 0. So revisions say what is
older only within one founding (``groupId``). ``--to ap`` with a CP log and a backup that have other values:

    revision of the log   founding             outcome
    > that of the backup  any                  refused: take a new backup
    <=                    the same             the backup is used
    <=                    another or unknown   refused; with --prefer, the backup is used
"""

import argparse
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from replicated_namesrv.cli.backup import check_file
from replicated_namesrv.cli.client import add_client_arguments, print_json
from replicated_namesrv.cli.switch_sides import (
    SHARED,
    SHOWN_MAX,
    DisagreementError,
    Side,
    conflict_text,
    conflicts_of,
    disagreements,
    entries_in,
    listed,
    missing_names,
    shown_settings,
    side_of,
)
from replicated_namesrv.cli.switch_walk import add_walk_arguments, run_walk
from replicated_namesrv.compat.kv_file import read_kv_file, write_kv_file
from replicated_namesrv.errors import BodyError, SettingError, StorageError
from replicated_namesrv.files import give_to_owner, is_held, sync_folder, write_atomically
from replicated_namesrv.raft.file_storage import LOCK
from replicated_namesrv.raft.identity import IDENTITY
from replicated_namesrv.raft.raft_errors import IdentityError, RaftError
from replicated_namesrv.raft.recovery import Recovered, check_unused, recover
from replicated_namesrv.replication.cluster_restore import RestorableMachine
from replicated_namesrv.replication.route_machine import RouteStateMachine
from replicated_namesrv.routes.encoding import RouteFormatError
from replicated_namesrv.routes.state import RouteInfoManager, RouteSettings
from replicated_namesrv.settings import ROWS, RUN_TIME_FILE
from replicated_namesrv.settings_sources import environment_name
from replicated_namesrv.wire.properties import load_properties, store_properties

HELP = "prepare a stopped node's data directory for the other mode"

GOOD = 0
KV_FILE, RAFT = "kvConfig.json", "raft"

_EXAMPLES = """\
examples:
  namesrv switch --to ap /var/lib/namesrv --backup namesrv.backup            the backup of the CP cluster, on every node
  namesrv switch --to ap DIR --backup namesrv.backup -c namesrv.properties             the file may set kvConfigPath
  namesrv switch --to cp /var/lib/namesrv --backup n1.backup n2.backup n3.backup       one backup of each AP node
  namesrv switch --to cp /var/lib/namesrv --backup kvConfig.json             RocketMQ's own name server has no backup
  namesrv switch --to cp DIR --backup n1.backup n2.backup --prefer n1.backup           they differ: the values of n1 are kept
  namesrv switch --to ap DIR --backup namesrv.backup --dry-run               only say what would be done
  namesrv switch --to cp --walk './to-cp.sh {host} {setting} {backups}' --save backups -n '10.0.0.1:9876;10.0.0.2:9876' \\
      --peers n1=10.0.0.1:9896,n2=10.0.0.2:9896
  namesrv switch --to ap --walk './to-ap.sh {host} {backups}' --save backups -n '10.0.0.1:9876;10.0.0.2:9876'

With DIR: take the backups, stop all nodes, run the command on each, change mode= in its settings, and start it. A new CP cluster
then needs 'namesrv restore --merge FILE', with the preferred file.

With --walk, the nodes are switched one at a time while the others serve. COMMAND runs on this machine, without a shell. It has to
stop the node on {host}, run 'namesrv switch --to MODE DIR --backup …' there with the files {backups} (the first one wins:
--prefer), set mode= and, with --to cp, {setting} (peers=… or join=…), and start the node. {port} and {address} are those of -n.
Change no KV config and no settings meanwhile.

docs/switching.md has all ways step by step.

exit codes: 0 done; 1 refused, nothing was changed; with --walk also: a node was not switched, or the answers differ; 2 usage
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("directory", nargs="?", metavar="DIR", type=Path, help="the dataDir of a stopped node")
    parser.add_argument("--to", required=True, choices=("cp", "ap"), help="the mode in which the node will be started")
    parser.add_argument(
        "--backup", nargs="+", default=[], type=Path, metavar="FILE", help="files of 'namesrv backup', or kvConfig.json files"
    )
    parser.add_argument(
        "--prefer",
        type=Path,
        metavar="FILE",
        help="the one of them whose values are kept if they differ; with --walk: the name server (an address of -n)",
    )
    parser.add_argument("-c", "--config-file", metavar="FILE", help="the node's properties file, which may set kvConfigPath")
    parser.add_argument("--kv-file", type=Path, metavar="FILE", help=f"kvConfigPath of the node (default: {KV_FILE} in DIR)")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    add_walk_arguments(parser)
    add_client_arguments(parser, "", "")
    parser.epilog = _EXAMPLES
    parser.set_defaults(usage_error=parser.error)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code."""
    if arguments.walk is not None:
        of_one_node = {"DIR": arguments.directory, "--backup": arguments.backup, "--kv-file": arguments.kv_file}
        for name, given in {**of_one_node, "-c": arguments.config_file}.items():
            if given:
                arguments.usage_error(f"{name} and --walk are both given; --walk takes the backups itself, and COMMAND knows DIR")
        return run_walk(arguments)
    if arguments.directory is None or not arguments.backup:
        arguments.usage_error("give DIR and --backup FILE for a stopped node, or --walk COMMAND for running nodes")
    directory: Path = arguments.directory
    if not directory.is_dir():
        raise SettingError(f"{directory} is not a folder; give the dataDir of a stopped node")
    if (directory / LOCK).exists() and (directory / IDENTITY).exists():
        raise SettingError(f"{directory} is the log of a node; give the folder that contains it, the dataDir of the node")
    sides = [side_of(file) for file in arguments.backup]
    winner = _winner(arguments, sides)
    conflicts = disagreements(sides, winner, arguments.prefer is not None)
    kv_file = _kv_file(arguments)
    own = Side(str(kv_file), entries_in(read_kv_file(kv_file)), None)
    _check_stopped(directory)
    if arguments.to == "cp":
        _check_kv_file(own, sides)
        _check_shared_settings(directory / RUN_TIME_FILE, sides)
        _check_earlier_log(directory / RAFT, sides)
    else:
        _check_log(directory / RAFT, winner, arguments.backup[sides.index(winner)], arguments.prefer is not None)
        was_switched = not (directory / RAFT).is_dir() and _has_log(directory) and kv_file.exists()
        if was_switched and arguments.prefer is None:
            _check_switched(own, directory / RUN_TIME_FILE, winner)
        conflicts += conflicts_of([own, winner], winner) if kv_file.exists() else []
    if arguments.to == "ap" and not _has_log(directory):
        print(f"warning: {directory} has no folder {RAFT}; check that it is the dataDir of a node with mode=cp", file=sys.stderr)
    steps = _Steps(directory, kv_file, arguments.to, winner)
    if not arguments.dry_run:
        steps.take()
    if arguments.json:
        print_json(
            {
                "to": arguments.to,
                "directory": str(directory),
                "winner": winner.name,
                "conflicts": conflicts,
                "steps": steps.words,
                "done": not arguments.dry_run,
            }
        )
        return GOOD
    for conflict in conflicts:
        print(conflict_text(conflict))
    for words in steps.words:
        print(f"{'would: ' if arguments.dry_run else ''}{words}")
    after = ""
    if arguments.to == "cp":
        command = "kv import" if winner.settings is None else "restore --merge"
        after = f"; then: namesrv {command} {steps.now_at(Path(winner.name))}"
    print(f"next: set mode={arguments.to}, and start the node{after}")
    return GOOD


def _kv_file(arguments: argparse.Namespace) -> Path:
    """The file of the KV config that the node uses in AP. Raises SettingError."""
    directory: Path = arguments.directory
    given: Path | None = arguments.kv_file
    if given is not None and arguments.config_file is not None:
        raise SettingError(f"--kv-file {given} and -c {arguments.config_file} are both given; give one of them")
    if given is None and arguments.config_file is not None:
        try:
            in_file = load_properties(Path(arguments.config_file).read_bytes()).get("kvConfigPath", "")
        except OSError as cause:
            raise SettingError(
                f"-c {arguments.config_file}: {cause.strerror or cause}; give the node's properties file"
            ) from None
        except BodyError as cause:
            raise SettingError(f"-c {arguments.config_file}: {cause}; give the node's properties file") from None
        text = os.environ.get(
            environment_name(ROWS["kvConfigPath"]), in_file
        ).strip()  # a node reads the environment in the same order
        given = Path(text) if text else directory / KV_FILE
        if text and not given.is_absolute():
            raise SettingError(
                f"kvConfigPath={given} in {arguments.config_file} or in the environment is relative to the folder in which the "
                "node starts; give it as an absolute path with --kv-file in place of -c"
            )
    if given is None:
        print(
            f"note: the KV config is taken to be in {directory / KV_FILE}; if the node's properties file sets kvConfigPath, give "
            "the file with -c",
            file=sys.stderr,
        )
    return given or directory / KV_FILE


def _winner(arguments: argparse.Namespace, sides: list[Side]) -> Side:
    """Raises SettingError."""
    if arguments.prefer is not None and str(arguments.prefer) not in [side.name for side in sides]:
        raise SettingError(f"--prefer {arguments.prefer}: name one of the files of --backup")
    winner = sides[0] if arguments.prefer is None else next(side for side in sides if side.name == str(arguments.prefer))
    if arguments.to == "ap" and (len(sides) > 1 or winner.settings is None):
        raise SettingError("--to ap takes one file of 'namesrv backup': the nodes of a cluster have the same state")
    return winner


def _check_kv_file(own: Side, sides: list[Side]) -> None:
    """Check that every entry of the node's own file is in one of the given files. Raises DisagreementError."""
    if missing := missing_names(own.table, sides):
        raise DisagreementError(
            f"nothing was changed: {own.name} has values that no given file has: {', '.join(missing[:SHOWN_MAX])}; also take a "
            f"backup of this node, or give its file: --backup {own.name}"
        )


def _check_stopped(directory: Path) -> None:
    """Check that no node runs on this disk. Raises DisagreementError, StorageError."""
    try:
        check_unused(directory / RAFT)
        is_used = is_held(directory)
    except RaftError as error:
        raise DisagreementError(f"nothing was changed: {error}") from None
    except OSError as error:
        raise StorageError(f"nothing was changed: {directory}: {error.strerror or error}") from None
    if is_used:
        raise DisagreementError(f"nothing was changed: {directory} is used by a process: stop the node first")


def _check_shared_settings(file: Path, sides: list[Side]) -> None:
    """Check that every shared setting that was changed at run time is in one of the backups. Raises DisagreementError,
    StorageError."""
    own = {name: text for name, text in _run_time(file).items() if name in SHARED}
    known = {(name, str(value).lower()) for side in sides for name, value in (side.settings or {}).items()}
    if missing := sorted(f"{name}={text}" for name, text in own.items() if (name, text.lower()) not in known):
        raise DisagreementError(
            f"nothing was changed: {file} has values that no given backup has: {', '.join(missing)}; also take a backup of this "
            "node with 'namesrv backup' before it is stopped, or remove the lines"
        )


def _run_time(file: Path) -> dict[str, str]:
    """The settings that were changed at run time. Raises StorageError."""
    try:
        return load_properties(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, BodyError) as cause:
        raise StorageError(f"{file}: {cause}; nothing was changed") from None


def _has_log(directory: Path) -> bool:
    """Whether the folder contains a CP log, or one that a switch has set aside."""
    return any(path.is_dir() for path in directory.glob(f"{RAFT}*") if path.name == RAFT or ".before-" in path.name)


def _check_switched(own: Side, run_time: Path, backup: Side) -> None:
    """Check that the KV entries and shared settings of a folder that was switched to AP already are those of the backup.
    Otherwise its node ran in AP since then, and its changes and deletions would be lost. Raises DisagreementError,
    StorageError."""
    changed = _run_time(run_time)
    default = shown_settings(RouteSettings())
    settings = {name: changed[name].lower() == "true" if name in changed else default[name] for name in SHARED}
    if newer := conflicts_of([own._replace(settings=settings), backup], backup):
        raise DisagreementError(
            f"nothing was changed: this folder was switched to ap already, and was changed since, or {backup.name} is another "
            f"backup: {listed(newer)}; to use the values of the backup nevertheless, repeat the command with --prefer "
            f"{backup.name}"
        )


def _check_earlier_log(directory: Path, sides: list[Side]) -> None:
    """Check that each KV entry and each changed shared setting of a CP log on this disk is in one of the files. Raises
    DisagreementError, StorageError."""
    remedy = f"if this log is of an earlier cluster and not needed, rename {directory} first"
    try:
        state = _disk(directory)[1]
    except StorageError as error:
        raise StorageError(f"{error}; {remedy}") from None
    names = missing_names(entries_in(state.kv_table()), sides)
    default = shown_settings(RouteSettings())
    for name, value in shown_settings(state.settings).items():
        if value != default[name] and all(side.settings is None or side.settings[name] != value for side in sides):
            names.append(f"setting {name}")
    if names:
        raise DisagreementError(
            f"nothing was changed: {directory}, the log of a node with mode=cp, has values that no given file has: "
            f"{', '.join(names[:SHOWN_MAX])}; give a backup of that cluster, or {remedy}"
        )


def _disk(directory: Path) -> tuple[Recovered | None, RouteInfoManager]:
    """What is on a disk, and the state; None and an empty state if the node never was part of a cluster. Raises StorageError."""
    machine = RouteStateMachine()
    if not directory.is_dir():
        return None, machine.state
    try:
        return recover(directory, RestorableMachine(machine)), machine.state
    except IdentityError:
        return None, machine.state
    except (RaftError, RouteFormatError, OSError) as error:
        raise StorageError(f"nothing was changed: {directory}: {error}") from None


def _check_log(directory: Path, backup: Side, file: Path, is_chosen: bool) -> None:
    """Check that the log on this disk has no KV entry and no shared setting that may be newer than the backup. ``is_chosen``:
    --prefer names the backup. Raises DisagreementError, StorageError."""
    head = check_file(file)
    disk, state = _disk(directory)
    if disk is None:
        return
    cluster, group = head.fields.get("clusterId"), head.fields.get("groupId")
    if cluster != disk.cluster:
        raise DisagreementError(
            f"nothing was changed: {file} is of cluster {cluster}, and {directory} of {disk.cluster}; give a backup of "
            "this cluster"
        )
    own = Side(str(directory), entries_in(state.kv_table()), shown_settings(state.settings))
    different = conflicts_of([own, backup], backup)
    remedy = "start the cluster, stop all writes, take a new backup, and stop the cluster again"
    if state.revision > head.revision and different:
        raise DisagreementError(
            f"nothing was changed: {directory} has revision {state.revision} and the backup {head.revision}; "
            f"{listed(different)}; {remedy}"
        )
    if group != disk.group and different and not is_chosen:
        why = "does not say which founding of the cluster it is of" if group is None else "is of another founding of the cluster"
        raise DisagreementError(
            f"nothing was changed: {file} {why}, so it may lack changes of {directory}; {listed(different)}; {remedy}; or, to "
            f"use the values of the backup nevertheless, repeat the command with --prefer {file}"
        )


class _Steps:
    """The steps in one directory. A crash may interrupt them at any place."""

    def __init__(self, directory: Path, kv_file: Path, to: str, winner: Side) -> None:
        self._directory, self._kv_file, self._to, self._winner = directory, kv_file, to, winner
        self._run_time = directory / RUN_TIME_FILE
        self._before, self._after = self._properties(winner.settings if to == "ap" else {})
        self._moved = [path for path in self._old() if path.exists()]
        self._names = {path: self._aside(path) for path in self._moved}
        """New names of the old files, which are kept aside."""
        self.words = [f"{path} becomes {new.name}" for path, new in self._names.items()]
        if to == "ap":
            self.words.append(f"{kv_file} gets the {len(winner.table)} KV entries of {winner.name}")
        for name in sorted(SHARED):
            if self._before.get(name) != self._after.get(name):
                self.words.append(
                    f"{self._run_time}: {name} was {self._before.get(name, 'not set')}, is {self._after.get(name, 'not set')}"
                )

    def _old(self) -> Iterable[Path]:
        yield self._kv_file
        for suffix in (".bak", ".ballast"):
            yield self._kv_file.with_name(self._kv_file.name + suffix)
        yield self._directory / RAFT

    def _aside(self, path: Path) -> Path:
        wanted = path.with_name(f"{path.name}.before-{self._to}")
        number = 1
        while wanted.exists():
            number += 1
            wanted = path.with_name(f"{path.name}.before-{self._to}-{number}")
        return wanted

    def now_at(self, file: Path) -> Path:
        """Where ``file`` is after the steps."""
        return self._names.get(file, file)

    def _properties(self, shared: Mapping[str, bool] | None) -> tuple[dict[str, str], dict[str, str]]:
        """The settings changed at run time: as they are in the file now, and as they are after the switch. Raises
        StorageError."""
        before = _run_time(self._run_time)
        kept = {name: text for name, text in before.items() if name not in SHARED}
        return before, kept | {name: str(value).lower() for name, value in (shared or {}).items()}

    def take(self) -> None:
        """Raises StorageError."""
        try:
            for path in self._moved:
                if path.name != RAFT:
                    path.rename(self._names[path])
            if self._to == "ap":
                table: dict[str, dict[str, str | None]] = {}
                for (namespace, key), value in self._winner.table.items():
                    table.setdefault(namespace, {})[key] = value
                created = [folder for folder in self._kv_file.parents if not folder.exists()]
                write_kv_file(self._kv_file, table)
                give_to_owner(self._directory, self._kv_file, *created)
            if self._before != self._after:
                write_atomically(self._run_time, store_properties(self._after))
                give_to_owner(self._directory, self._run_time)
            if (raft := self._directory / RAFT) in self._moved:
                raft.rename(self._names[raft])
            for folder in {self._directory, self._kv_file.parent}:
                if folder.is_dir():  # an AP node creates the folder of kvConfigPath when it stores its first KV entry
                    sync_folder(folder)
        except OSError as cause:
            raise StorageError(f"{self._directory}: {cause.strerror or cause}; correct it and repeat the command") from None
