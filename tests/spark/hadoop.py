"""HDFS and YARN on this machine: the daemons of Hadoop's own release, from the jar hadoop-client-minicluster."""

import contextlib
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from xml.sax.saxutils import escape

from replicated_namesrv.child_process import die_with
from tests.spark.processes import PATIENCE_S, wait_for
from tests.spark.submitted import QUICK_START, SPARK_HOME
from tests.support.ports import free_ports

DAEMON_MEMORY = "-Xmx400m"
LOCAL = "127.0.0.1"
CONTAINERS_MB = 3_072
"""Memory that YARN hands out: one application master and two executors."""
DAEMONS = {
    "namenode": "hdfs.server.namenode.NameNode",
    "datanode": "hdfs.server.datanode.DataNode",
    "resourcemanager": "yarn.server.resourcemanager.ResourceManager",
    "nodemanager": "yarn.server.nodemanager.NodeManager",
}


class Hadoop:
    """One NameNode, DataNode, ResourceManager and NodeManager. Everything that they write is in ``folder``."""

    def __init__(self, folder: Path, jars: Path, java_home: Path) -> None:
        """``jars``: the folder that ``provision.require_hadoop_jars`` returns."""
        self._folder, self._java = folder, java_home / "bin" / "java"
        logging = sorted(path for name in ("log4j", "slf4j-api-2") for path in (SPARK_HOME / "jars").glob(f"{name}*.jar"))
        self.configuration = folder / "conf"
        self._class_path = os.pathsep.join(map(str, (self.configuration, *logging, jars / "*")))
        self._processes: list[subprocess.Popen[bytes]] = []
        namenode, web, manager, scheduler, tracker, admin, manager_web = (f"{LOCAL}:{port}" for port in free_ports(7))
        self.files = f"hdfs://{namenode}"
        self._namenode_web, self._manager_web = web, manager_web
        self._write("core-site", {"fs.defaultFS": self.files, "hadoop.tmp.dir": str(folder / "data")})
        self._write(
            "hdfs-site",
            {
                "dfs.replication": "1",
                "dfs.namenode.http-address": web,
                "dfs.datanode.address": f"{LOCAL}:0",
                "dfs.datanode.http.address": f"{LOCAL}:0",
                "dfs.datanode.ipc.address": f"{LOCAL}:0",
            },
        )
        self._write(
            "yarn-site",
            {
                "yarn.resourcemanager.address": manager,
                "yarn.resourcemanager.scheduler.address": scheduler,
                "yarn.resourcemanager.resource-tracker.address": tracker,
                "yarn.resourcemanager.admin.address": admin,
                "yarn.resourcemanager.webapp.address": manager_web,
                "yarn.resourcemanager.scheduler.class": (
                    "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler"
                ),
                "yarn.scheduler.minimum-allocation-mb": "128",
                "yarn.nodemanager.address": f"{LOCAL}:0",
                "yarn.nodemanager.localizer.address": f"{LOCAL}:0",
                "yarn.nodemanager.webapp.address": f"{LOCAL}:0",
                "yarn.nodemanager.local-dirs": str(folder / "local"),
                "yarn.nodemanager.log-dirs": str(folder / "containers"),
                "yarn.nodemanager.resource.memory-mb": str(CONTAINERS_MB),
                "yarn.nodemanager.resource.cpu-vcores": "4",
                "yarn.nodemanager.vmem-check-enabled": "false",  # a JVM reserves more address space than YARN expects
                # a test machine's disk may be nearly full
                "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
                "yarn.nodemanager.delete.debug-delay-sec": "600",  # keeps the containers' folders for the test
            },
        )
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_", "HADOOP_"))},
            "JAVA_HOME": str(java_home), "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": LOCAL,
            "SPARK_LOCAL_DIRS": str(folder / "spark"), "PYSPARK_PYTHON": sys.executable, "TMPDIR": str(folder),
            "HADOOP_CONF_DIR": str(self.configuration),
        }  # fmt: skip  # items grouped by line

    def _write(self, name: str, settings: dict[str, str]) -> None:
        self.configuration.mkdir(parents=True, exist_ok=True)
        lines = [f"<property><name>{key}</name><value>{escape(value)}</value></property>" for key, value in settings.items()]
        text = "\n".join(["<configuration>", *lines, "</configuration>", ""])
        (self.configuration / f"{name}.xml").write_text(text, encoding="utf-8")

    def start(self) -> None:
        """Format the file system, start all daemons, and wait until both kinds of workers have registered."""
        formatted = self._started("namenode", "-format", "-nonInteractive")
        assert formatted.wait(PATIENCE_S) == 0, self._log("namenode")
        self._processes += [self._started(name) for name in DAEMONS]
        state = "jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
        wait_for(lambda: self._count(self._namenode_web, state, r'"NumLiveDataNodes" : (\d+)'), lambda: self._log("datanode"))
        metrics = "ws/v1/cluster/metrics"
        wait_for(lambda: self._count(self._manager_web, metrics, r'"activeNodes":(\d+)'), lambda: self._log("nodemanager"))

    def _count(self, address: str, path: str, pattern: str) -> int:
        """The number that ``pattern`` finds in a page of a daemon; 0 if there is no answer yet."""
        for name, process in zip(DAEMONS, self._processes, strict=True):
            assert process.poll() is None, self._log(name)
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{address}/{path}", timeout=10) as answer:
            found = re.search(pattern, answer.read().decode())
            return int(found[1]) if found else 0
        return 0

    def _log(self, name: str) -> str:
        return (self._folder / "logs" / f"{name}.log").read_text()

    def _started(self, name: str, *arguments: str) -> "subprocess.Popen[bytes]":
        (self._folder / "logs").mkdir(exist_ok=True)
        with (self._folder / "logs" / f"{name}.log").open("ab") as output:
            return subprocess.Popen(
                [
                    *(str(self._java), *QUICK_START.split(), DAEMON_MEMORY, "-cp", self._class_path),
                    *(f"org.apache.hadoop.{DAEMONS[name]}", *arguments),
                ],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self._folder, env=self.environment,
                preexec_fn=die_with(os.getpid()),
            )  # fmt: skip  # items grouped by line

    def containers(self) -> int:
        """Number of containers that YARN has started."""
        return len({path.name for path in (self._folder / "containers").glob("application_*/container_*")})

    def stop(self) -> None:
        """End all daemons. The NodeManager ends its containers."""
        for process in reversed(self._processes):
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
            process.wait()
        self._processes = []
