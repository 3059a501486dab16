"""``switch_one.py PLAN TO ADDRESS SETTING FILE…``: the operator's script of ``namesrv switch --walk``. Switches one node.

PLAN is a JSON file: for each address the process, its dataDir and its command line without the mode. With STOP_HALFWAY set, the
node is started in its old mode although its folder was prepared.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LIMIT_S = 60.0


def switch(plan_file: Path, to: str, address: str, setting: str, files: list[str]) -> None:
    """Stop the node, prepare its folder, start it in the other mode. If the folder is refused, start it as before."""
    plan: dict[str, dict[str, Any]] = json.loads(plan_file.read_text())
    node = plan[address]
    os.kill(node["pid"], signal.SIGTERM)
    deadline = time.monotonic() + LIMIT_S
    while Path(f"/proc/{node['pid']}/cmdline").exists() and Path(f"/proc/{node['pid']}/cmdline").read_bytes():
        if time.monotonic() > deadline:
            raise SystemExit(f"the node at {address} does not stop")
        time.sleep(0.05)
    words = [sys.executable, "-m", "replicated_namesrv", "switch", "--to", to, node["data"], "--backup", *files]
    done = subprocess.run([*words, *(["--prefer", files[0]] if to == "cp" else [])], check=False)
    if done.returncode == 0 and not os.environ.get("STOP_HALFWAY"):
        node["words"] = ["--mode", to, *(["--set", setting] if setting else [])]
    with Path(node["log"]).open("ab") as log:
        process = subprocess.Popen(
            [*node["serve"], *node["words"]], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    node["pid"] = process.pid
    plan_file.write_text(json.dumps(plan))
    if done.returncode or os.environ.get("STOP_HALFWAY"):
        raise SystemExit("the node runs in its old mode")


if __name__ == "__main__":
    switch(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5:])
