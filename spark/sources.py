"""Finds runs in folders, and checks by their manifests and headers whether they can be analysed, before any trace is read.

Bad input is refused with its name and the remedy: no trace, no manifest, another schema version, a run given twice. Folders on
this machine are checked without Spark, so that a typing error does not cost the start of a JVM.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from replicated_namesrv.chaos.records import MANIFEST_FILE, SCHEMA_VERSION, TRACE_FILE, Header
from replicated_namesrv.chaos.run_modes import foreign
from replicated_namesrv.errors import NamesrvError, SettingError
from replicated_namesrv.spark.storage import Files, FolderEntry

DEPTH_MAX = 3
"""Maximum number of folder levels between a given folder and the folder of a run."""
_LONG_MAX = 2**63 - 1


class InputError(NamesrvError):
    """A run that cannot be analysed. The text names the file and the remedy."""


class Source(NamedTuple):
    """A run found in a folder."""

    run: str
    folder: str
    trace: FolderEntry
    about: dict[str, Any]
    """The row of this run in RUNS."""
    clients: dict[str, str]
    """Kind of each client, by name."""
    torn: bool

    @property
    def mode(self) -> str:
        """``ap``, ``cp``, or a foreign name server as in ``java:5.5.0``."""
        return str(self.about["mode"])


def find_runs(files: Files, paths: Sequence[str]) -> list[Source]:
    """The runs of each path, which is the folder of a run or contains such folders at most three levels down. Raises
    InputError.
    """
    folders: dict[str, str] = {}
    for path in paths:
        try:
            found = _below(files, path)
        except OSError as cause:
            raise InputError(f"{cause}; give a folder that can be read") from None
        for folder in found:
            if folder in folders:
                raise InputError(f"{folder}: is given twice, by {folders[folder]} and {path}; give each run once")
            folders[folder] = path
    sources: dict[str, Source] = {}
    for folder in folders:
        check_name(folder)
        try:
            source = _source(files, folder)
        except OSError as cause:
            raise InputError(f"{cause}; make it readable, or leave the run out") from None
        if source.run in sources:
            raise InputError(f"{folder}: run '{source.run}' is in {sources[source.run].folder} too; give each run once")
        sources[source.run] = source
    return list(sources.values())


def check_name(path: str) -> None:
    """Raise InputError for a path that Spark would interpret as a pattern."""
    if set(path) & set("{}[]*?\\"):
        raise InputError(f"{path}: contains one of {{ }} [ ] * ? \\, which Spark takes for a pattern; rename the folder")


def _below(files: Files, path: str) -> list[str]:
    if not path or not files.exists(path):
        raise InputError(f"{path or 'RUN is empty'}: no such file or folder; give the folder of a run or of a suite")
    entry = files.entry(path)
    if not entry.is_folder:
        raise InputError(f"{path}: is a file; give the folder that contains the run's {TRACE_FILE} and {MANIFEST_FILE}")
    found = _runs_below(files, entry.path, DEPTH_MAX)
    if not found:
        raise InputError(
            f"{path}: contains no run: no {TRACE_FILE} here or up to three folders below; record one with 'namesrv chaos run'"
        )
    return found


def _runs_below(files: Files, folder: str, depth: int) -> list[str]:
    content = files.list(folder)
    if any(entry.path.endswith("/" + TRACE_FILE) for entry in content):
        return [folder]
    if depth == 0:
        return []
    inner = [entry for entry in content if entry.is_folder and not entry.path.endswith("/latest")]
    return [run for entry in inner for run in _runs_below(files, entry.path, depth - 1)]


def _source(files: Files, folder: str) -> Source:
    trace_path = f"{folder}/{TRACE_FILE}"
    about, clients = read_manifest(files, f"{folder}/{MANIFEST_FILE}")
    trace = files.entry(trace_path)
    if trace.is_folder:
        raise InputError(f"{trace_path}: is a folder, a file of records is expected; restore it or record the run again")
    if trace.size_bytes == 0:
        raise InputError(f"{trace_path}: is empty; the run recorded nothing. Remove its folder, or record it again")
    try:
        header = json.loads(files.first_line(trace_path))
        is_header = isinstance(header, dict) and header.get("record") == Header.record
    except (ValueError, RecursionError):
        is_header = False
    if not is_header:
        raise InputError(
            f"{trace_path}: does not begin with a header record, so it is not a trace of a run; give the folder of a run as "
            f"'namesrv chaos' left it, nothing compressed"
        )
    if header.get("schema") != SCHEMA_VERSION:
        raise InputError(
            f"{trace_path}: schema version {header.get('schema')}, this version reads {SCHEMA_VERSION}; "
            f"record it again or use the release that wrote it"
        )
    if header.get("run") != about["run"]:
        raise InputError(
            f"{trace_path}: is of run '{header.get('run')}', {MANIFEST_FILE} beside it of '{about['run']}'; files were mixed up, "
            f"restore them"
        )
    return Source(about["run"], folder, trace, about, clients, not files.ends_with_line_feed(trace_path))


def read_manifest(files: Files, path: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The run's row of RUNS, and the kinds of its clients. Raises InputError."""
    if not files.exists(path):
        raise InputError(f"{path}: is missing, and it describes the run. Restore it or record the run again")
    if files.entry(path).is_folder:
        raise InputError(f"{path}: is a folder, a JSON file is expected; restore it or record the run again")
    try:
        manifest = json.loads(files.read_text(path))
    except ValueError as cause:
        raise InputError(f"{path}: not JSON ({cause}); restore it or record the run again") from None
    except RecursionError:
        raise InputError(f"{path}: no manifest (nested too deeply); restore it or record the run again") from None
    if not isinstance(manifest, dict):
        raise InputError(f"{path}: is not a JSON object; restore it or record the run again")
    content = _Manifest(path, manifest)
    return content.row(), content.clients()


class _Manifest:
    """A manifest with unchecked content. Each value is checked when it is read."""

    def __init__(self, path: str, content: dict[str, Any]) -> None:
        self._path, self._content = path, content

    def row(self) -> dict[str, Any]:
        """The run's parameters. Raises InputError."""
        content = self._content
        schema, run, mode, nodes = (content.get(name) for name in ("schema", "run", "mode", "nodes"))
        self._need("schema version", schema, schema == SCHEMA_VERSION, f"{SCHEMA_VERSION}, which this version reads")
        is_name = isinstance(run, str) and run != "" and run.isprintable() and not set(run) & set("/=%:\\")
        self._need("run", run, is_name, "a name without / = % : \\")
        self._need("mode", mode, _is_mode(mode), "ap, cp, or a foreign name server with its version, as in java:5.5.0")
        self._need("nodes", nodes, isinstance(nodes, list) and len(nodes) > 0, "a list of nodes")
        scenario = content.get("scenario") or {}
        scenario = {"name": scenario} if isinstance(scenario, str) else self._part("scenario", scenario)
        timing = self._part("scenario.timing", scenario.get("timing") or {})
        offsets = self._part("clock.offsets", self._part("clock", content.get("clock") or {}).get("offsets") or {})
        uncertain = [
            self._number("uncertainty_ns", self._part("clock.offsets", offset).get("uncertainty_ns") or 0)
            for offset in offsets.values()
        ]
        return {
            "run": run,
            "mode": mode,
            "scenario": self._text("scenario.name", scenario.get("name"), "unnamed"),
            "suite": self._text("suite", content.get("suite"), ""),
            "seed": int(self._number("seed", content.get("seed"))),
            "nodes": len(nodes or ()),
            "read_consistency": self._text(
                "read_consistency", content.get("read_consistency"), "linearizable" if mode == "cp" else "local"
            ),
            "judged_as": self._text("judged_as", content.get("judged_as"), str(mode)),
            "observe_interval_ms": int(self._number("observe_interval_ms", content.get("observe_interval_ms") or 0)),
            "deadline_ms": int(self._number("deadline_ms", content.get("deadline_ms") or 0)),
            "fault_s": float(self._number("scenario.timing.fault_s", timing.get("fault_s") or 0)),
            "clock_uncertainty_ns": int(max(uncertain, default=0)),
        }

    def clients(self) -> dict[str, str]:
        """Kinds of clients by name; imported runs have no clients. Raises InputError."""
        found: dict[str, str] = {}
        clients = self._content.get("clients") or []
        self._need("clients", clients, isinstance(clients, list), "a list of clients")
        for client in clients:
            one = self._part("clients", client)
            found[self._text("clients.client", one.get("client"), "")] = self._text("clients.kind", one.get("kind"), "")
        return found

    def _need(self, name: str, value: Any, good: bool, expected: str) -> None:
        if not good:
            said = "missing" if value is None else repr(value)[:80]
            raise InputError(f"{self._path}: {name} is {said}, expected {expected}; restore it or record the run again")

    def _part(self, name: str, value: Any) -> dict[str, Any]:
        self._need(name, value, isinstance(value, dict), "a JSON object")
        return dict(value)

    def _text(self, name: str, value: Any, otherwise: str) -> str:
        self._need(name, value, value is None or isinstance(value, str), "text")
        return value or otherwise

    def _number(self, name: str, value: Any) -> float:
        good = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LONG_MAX
        self._need(name, value, good, "a number")
        return value  # type: ignore[no-any-return]  # _need raised if it is not a number


def _is_mode(mode: Any) -> bool:
    """Whether this is a mode of ``namesrv chaos``."""
    if not isinstance(mode, str):
        return False
    try:
        foreign(mode)
    except SettingError:
        return False
    return True
