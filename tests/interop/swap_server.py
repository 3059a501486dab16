"""``swap_server.py PLAN PORT``: stops the server on the port and starts the other kind there. The command of ``adopt --swap``.

PLAN is a JSON file: for each port the running process and the two command lines, which an operator's script would know, too.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LIMIT_S = 60.0


def listens(port: int) -> bool:
    """Whether a process accepts connections there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def swap(plan_file: Path, port: str) -> None:
    """Stop one and start the other."""
    plan: dict[str, dict[str, Any]] = json.loads(plan_file.read_text())
    server = plan[port]
    os.kill(server["pid"], signal.SIGTERM)
    deadline = time.monotonic() + LIMIT_S
    while listens(int(port)):
        if time.monotonic() > deadline:
            raise SystemExit(f"the server on {port} does not stop")
        time.sleep(0.05)
    server["kind"] = {"java": "ours", "ours": "java"}[server["kind"]]
    with Path(server["log"]).open("ab") as log:
        process = subprocess.Popen(
            server[server["kind"]],
            cwd=server["folder"],
            env={**os.environ, **server["environment"]},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    server["pid"] = process.pid
    plan_file.write_text(json.dumps(plan))


if __name__ == "__main__":
    swap(Path(sys.argv[1]), sys.argv[2])
