"""``systemctl`` for the shipped unit where systemd does not run: its ExecStart and ExecStop.

Environment: UNIT (the file), STATE_DIRECTORY, CREDENTIALS_DIRECTORY, RUN (folder for pid, log and socket), ETC (in place of
/etc/namesrv), NAMESRV (in place of /opt/namesrv/bin/namesrv). As with systemd, ``start`` ends when the node has sent READY=1.
The sandbox of the unit is not applied.
"""

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.support.waiting import is_alive

START_LIMIT_S = 120.0
STOP_LIMIT_S = 45.0


class Unit:
    """The unit, on one machine."""

    def __init__(self) -> None:
        environment = os.environ
        text = Path(environment["UNIT"]).read_text(encoding="utf-8")
        self.serve, self.before_stop = (self._command(text, name) for name in ("ExecStart=", "ExecStop=-"))
        credentials = (word.partition("=")[2].split(":") for word in text.splitlines() if word.startswith("LoadCredential="))
        self.credentials = {name: path.replace("/etc/namesrv", environment["ETC"]) for name, path in credentials}
        self.state, self.run = Path(environment["STATE_DIRECTORY"]), Path(environment["RUN"])
        self.pid_file = self.run / "pid"

    def _command(self, text: str, name: str) -> list[str]:
        line = next(line for line in text.splitlines() if line.startswith(name)).removeprefix(name)
        for variable in ("STATE_DIRECTORY", "CREDENTIALS_DIRECTORY"):
            line = line.replace(f"${{{variable}}}", os.environ[variable])
        return shlex.split(
            line.replace("/etc/namesrv", os.environ["ETC"]).replace("/opt/namesrv/bin/namesrv", os.environ["NAMESRV"])
        )

    @property
    def _environment(self) -> dict[str, str]:
        """The environment without the variables that an operator may have set, because systemd does not pass these."""
        own = ("NAMESRV_ADMIN", "NAMESRV_ADMIN_TOKEN_FILE", "NAMESRV_ADDR")
        return {name: value for name, value in os.environ.items() if name not in own}

    def start(self, waits: bool) -> int:
        """Start the unit. Returns its exit code. ``waits``: return only when the node is ready."""
        self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = Path(os.environ["CREDENTIALS_DIRECTORY"])
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, source in self.credentials.items():
            (folder / name).touch(0o600)
            (folder / name).write_bytes(Path(source).read_bytes())
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified, (self.run / "log").open("ab") as log:
            path = self.run / "notify"
            path.unlink(missing_ok=True)
            notified.bind(str(path))
            environment = {**self._environment, "NOTIFY_SOCKET": str(path)}
            process = subprocess.Popen(self.serve, env=environment, stdout=log, stderr=log, start_new_session=True)
            self.pid_file.write_text(str(process.pid))
            deadline = time.monotonic() + START_LIMIT_S
            notified.settimeout(1.0)
            while waits and time.monotonic() < deadline and process.poll() is None:
                try:
                    if b"READY=1" in notified.recv(4096):
                        return 0
                except TimeoutError:
                    continue
        return 1 if waits else 0

    def stop(self) -> int:
        """ExecStop, then SIGTERM, and wait for the end."""
        if not self.pid_file.exists():
            return 0
        with (self.run / "stops").open("a") as stops:
            done = subprocess.run(self.before_stop, env=self._environment, stdout=stops, stderr=stops, check=False)
            stops.write(f"exit code {done.returncode}\n")
        pid = int(self.pid_file.read_text())
        deadline = time.monotonic() + STOP_LIMIT_S
        while is_alive(pid):
            _send(pid, signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL)
            pause = time.monotonic() + 5.0
            while is_alive(pid) and time.monotonic() < pause:
                time.sleep(0.05)
        self.pid_file.unlink()
        return 0


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def main(arguments: list[str]) -> int:
    """``systemctl VERB [--no-block] namesrv``."""
    unit, verb = Unit(), arguments[0]
    if verb == "stop":
        return unit.stop()
    if verb == "restart":
        return unit.stop() or unit.start(True)
    if verb in ("start", "enable"):
        return unit.start("--no-block" not in arguments)
    if verb == "disable":
        return unit.stop()
    if verb == "daemon-reload":
        return 0
    if verb == "status":
        return 0 if unit.pid_file.exists() and is_alive(int(unit.pid_file.read_text())) else 3
    if verb == "reload":
        os.kill(int(unit.pid_file.read_text()), signal.SIGHUP)
        return 0
    print(f"systemctl {verb}: not known here", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
