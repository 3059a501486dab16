"""Records the metrics of each node, as a Prometheus server would scrape them.

The file has one line of JSON for each scrape of a node: ``{"time_ns": int, "node": string, "metrics": string or null}``. The time
is that of the question, on the clock of the trace. ``metrics`` is the answer in the text format of Prometheus, null if there was
none within a second.
"""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

from replicated_namesrv.chaos.process_cluster import ProcessCluster
from replicated_namesrv.chaos.records import TraceError

METRICS_FILE = "metrics.jsonl"


class MetricsRecorder:
    """Scrapes all nodes of a cluster at a fixed interval until it is stopped."""

    def __init__(self, cluster: ProcessCluster, path: Path, interval_s: float, now_ns: Callable[[], int]) -> None:
        self._cluster, self._path, self._interval_s, self._now_ns = cluster, path, interval_s, now_ns

    async def run(self) -> None:
        """Run until cancelled. Raises TraceError if the file cannot be written."""
        await asyncio.gather(*(self._scrape(node) for node in self._cluster.nodes))

    async def _scrape(self, node: str) -> None:
        loop = asyncio.get_running_loop()
        due_at = loop.time()
        while True:
            asked_ns = self._now_ns()
            text = await self._cluster.get_text(node, "/metrics")
            line = json.dumps({"time_ns": asked_ns, "node": node, "metrics": text})
            try:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
            except OSError as cause:
                raise TraceError(f"{self._path}: cannot be written ({cause.strerror}); make room and run again") from cause
            due_at = max(due_at + self._interval_s, loop.time())  # a scrape that takes longer does not cause several at once
            await asyncio.sleep(due_at - loop.time())
