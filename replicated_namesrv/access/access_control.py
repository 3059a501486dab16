"""AccessControl: the rules in force on a node, their reload, and the record of refusals.

The access file is polled. If it has changed and is valid, its rules replace the old ones at once, also for open connections. If
it is invalid, the old rules stay in force, and a log line, a metric and the audit log say so.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from replicated_namesrv.access.access_file import NOBODY, AccessFileError, read_access_file
from replicated_namesrv.access.audit_log import AuditLog
from replicated_namesrv.access.identities import NAME_CHARACTERS_MAX, AccessRules, shown
from replicated_namesrv.model import ChangeOrigin
from replicated_namesrv.settings import Settings

log = logging.getLogger(__name__)

POLL_S = 0.5
REPEAT_S = 60.0
"""Interval of audit lines about equal refusals. The next line says how many were left out since the last one."""
KEYS_MAX = 10_000
"""Maximum number of different refusals that are remembered, to detect equal ones within ``REPEAT_S``."""
LINES_PER_WINDOW, WINDOW_S = 100, 10.0
"""Maximum number of lines about refusals in one window, equal or not."""
LINES_PER_ADDRESS = 50
"""Maximum number of these lines for one address, so that its flood does not hide the refusals of other addresses."""
BY_CHARACTERS_MAX = NAME_CHARACTERS_MAX + 200
"""Maximum length of the description of a caller: enough for an access key, and for a whole subject, from which ``namesrv access
report`` makes a rule."""
DEFAULT_AUDIT_LOG = "audit.log"


class CheckedOrigin(ChangeOrigin):
    """The origin of a request whose permission is checked again after the request has waited."""

    recheck: Callable[[], None]
    """Checks the permission again. Raises NoPermissionError."""

    @property
    def is_checked(self) -> bool:
        return True

    def check(self) -> None:
        self.recheck()


class RefusalThrottle:
    """Decides which refusals get a line."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._next_s: dict[tuple[object, ...], float] = {}
        self._left_out: dict[tuple[object, ...], int] = {}
        self._window_s, self._lines, self._others = 0.0, 0, 0
        self._of_address: dict[str, int] = {}
        """Number of lines in this window, by address."""

    def admit(self, key: tuple[object, ...], address: str) -> int | None:
        """The number of refusals left out since the last line, if this refusal gets a line. None: it gets no line."""
        now_s = self._now_s()
        if now_s >= self._window_s + WINDOW_S:
            self._window_s, self._lines = now_s, 0
            self._of_address.clear()
        if now_s < self._next_s.get(key, 0.0):
            self._left_out[key] = self._left_out.get(key, 0) + 1
            return None
        of_address = self._of_address.get(address, 0)
        if self._lines >= LINES_PER_WINDOW or of_address >= LINES_PER_ADDRESS:
            self._others += 1
            return None
        if len(self._next_s) >= KEYS_MAX:
            self._others += sum(self._left_out.values())
            self._next_s.clear()
            self._left_out.clear()
        self._lines += 1
        self._of_address[address] = of_address + 1
        self._next_s[key] = now_s + REPEAT_S
        others, self._others = self._others, 0
        return self._left_out.pop(key, 0) + others


class AccessControl:
    """The rules of one node."""

    def __init__(
        self,
        policy: str,
        path: str,
        audit: AuditLog | None = None,
        *,
        node: str = "",
        keys_in_plain_text: bool = False,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises AccessFileError."""
        self.policy = policy
        self.enforces = policy == "enforce"
        """False: requests without permission are executed and recorded."""
        self.keys_in_plain_text = keys_in_plain_text
        """Whether signatures on connections without TLS identify a caller."""
        self.node = node
        """Name of this node."""
        self.path = path
        self.audit = audit
        self._seen = self._stamp()
        self.rules: AccessRules = read_access_file(path) if path else NOBODY
        """The rules in force. Each reload replaces the object."""
        self.problem: str | None = None
        """Why the newest file is not in force; None: it is."""
        self.reloads = self.reload_failures = 0
        self.on_reload: list[Callable[[], None]] = []
        """Functions to call when new rules are in force."""
        self.refusals: dict[tuple[str, str], int] = {}
        """Number of requests without permission, by request and by what the node did: ``refused`` or ``observed``."""
        self._throttle = RefusalThrottle(now_s)
        self._changing: tuple[object, ...] | None = None
        """Stamp of a newer file at the last poll. The file is read when two successive polls find the same stamp, so that it is
        not read while it is being written."""
        self._task: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, settings: Settings) -> "AccessControl | None":
        """The access control that the settings ask for; None: every request is allowed. Raises AccessFileError."""
        if settings.access_policy == "open":
            if settings.audit_log not in ("", "off"):
                log.warning("auditLog=%s has no effect with accessPolicy=open; set accessPolicy=observe", settings.audit_log)
            return None
        name = settings.audit_log or DEFAULT_AUDIT_LOG
        audit = None if name == "off" else AuditLog(settings.data_path / Path(name).expanduser(), settings.node_id)
        return cls(
            settings.access_policy,
            settings.access_file,
            audit,
            node=settings.node_id,
            keys_in_plain_text=settings.access_keys_in_plain_text,
        )

    async def start(self) -> None:
        """Open the audit log and watch the file. Raises StorageError."""
        if self.audit is not None:
            self.audit.start()
        self.record("started", accessPolicy=self.policy, accessFile=self.path or None, sha256=self.rules.digest or None)
        self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Stop watching, and finish the audit log."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self.audit is not None:
            await asyncio.to_thread(self.audit.stop)

    def record(self, event: str, **facts: object) -> None:
        """Add a line to the audit log, if there is one."""
        if self.audit is not None:
            self.audit.write(event, **facts)

    def refused(
        self, request: str, target: str | None, identity: str, by: str, address: str, why: str, facts: Mapping[str, object]
    ) -> None:
        """Count and record a request without permission. ``by``: how the caller was recognised. ``facts``: more fields for the
        line.
        """
        event = "refused" if self.enforces else "observed"
        self.refusals[request, event] = self.refusals.get((request, event), 0) + 1
        target = None if target is None else shown(target)  # shortened before it is stored, because a caller may send megabytes
        by, why = shown(by, BY_CHARACTERS_MAX), shown(why)
        # hash(by), because the text itself would take 1 KB for each refusal
        left_out = self._throttle.admit((request, target, identity, hash(by), address), address)
        if left_out is None:
            return
        known = {"identity": identity, "by": by, "address": address, "request": request, "why": why, **facts}
        if target is not None:
            known["target"] = target
        self.record(event, leftOut=left_out or None, **known)
        log.warning("access %s", event, extra=known)

    def requested(self, request: str, target: str | None, origin: ChangeOrigin, result: int) -> None:
        """Record an operation that does not change the routes. ``result``: response code or HTTP status."""
        self.record("request", identity=origin.identity, address=origin.address, request=request, target=target, result=result)

    async def poll(self) -> None:
        """Reload the file if it has changed. Only one call at a time."""
        stamp = self._stamp()
        if stamp == self._seen:
            return
        if stamp != self._changing:  # the file may still be being written; read it at the next poll if it has not changed again
            self._changing = stamp
            return
        self._seen = stamp
        try:
            rules = await asyncio.to_thread(read_access_file, self.path)  # in a thread, because a large file takes a second
        except AccessFileError as error:
            self.problem = str(error)
            self.reload_failures += 1
            log.error("the new access file cannot be used; the old rules stay in force", extra={"cause": self.problem})
            self.record("reload-failed", accessFile=self.path, why=self.problem)
            return
        self.problem = None
        if rules.digest != self.rules.digest:
            self.rules = rules
            self.reloads += 1
            log.info("access file reloaded", extra={"file": self.path, "sha256": rules.digest})
            self.record("reloaded", accessFile=self.path, sha256=rules.digest)
            for notify in self.on_reload:
                notify()

    def _stamp(self) -> tuple[object, ...]:
        """A value that changes whenever the file may have changed."""
        if not self.path:
            return ()
        try:
            found = Path(self.path).expanduser().stat()
        except OSError as cause:
            return (cause.errno,)
        return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_mode

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            await self.poll()
