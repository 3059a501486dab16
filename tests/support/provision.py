"""Programs that tests need besides Python packages: Java, Go, the Toxiproxy server and RocketMQ's own jars."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from replicated_namesrv.chaos.foreign_servers import RUST_PROGRAM
from replicated_namesrv.provision import (
    cache_dir,
    cached,
    fetch_jars,
    find_go,
    find_java,
    find_maven,
)
from replicated_namesrv.provision import toxiproxy_server as product_toxiproxy_server

ROCKETMQ_VERSIONS = ("5.3.3", "4.9.7")
"""The version that docs/compatibility.md refers to, and the newest 4.x version."""
NEWEST_ROCKETMQ = "5.5.0"
ROCKETMQ_ARTIFACTS = ("namesrv", "broker", "tools", "client")
COMPILER = ("org.eclipse.jdt", "ecj", "3.33.0")
"""A Java compiler that runs on a runtime without one: the tests' client program is compiled against each version's jars."""
HADOOP_VERSION = "3.5.0"
"""The version of Hadoop's client that pyspark brings."""
HADOOP_ARTIFACTS = (
    ("org.apache.hadoop", "hadoop-client-minicluster", HADOOP_VERSION),
    ("org.bouncycastle", "bcpkix-jdk18on", "1.87"),
)
"""The daemons of HDFS and YARN, and a library that the ResourceManager needs and the first artifact does not name."""
SKIP_PREFIX = "RocketMQ jars are missing"


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


_say: Callable[[str], None] = _print


def say(text: str) -> None:
    """One line of progress, on standard error."""
    _say(text)


def say_through(printer: Callable[[str], None]) -> None:
    """Give progress to ``printer`` instead: in a test run standard error is captured, and shown too late to be progress."""
    global _say
    _say = printer


def java() -> Path:
    """A Java of at least 17; the running test is skipped, with the remedy, where there is none."""
    found = find_java()
    if found is None:
        pytest.skip("no Java 17 or later; install one (Debian: openjdk-17-jre-headless) or run ./namesrv setup java")
    return found


def go() -> Path:
    """A Go of at least 1.23; the running test is skipped, with the remedy, where there is none."""
    found = find_go()
    if found is None:
        pytest.skip("no Go 1.23 or later; install one or run ./namesrv setup go")
    return found


def toxiproxy_server() -> Path:
    """The Toxiproxy server, built if need be. Raises ProvisionError with the remedy; tests that need it are never skipped."""
    return product_toxiproxy_server(say)


def rocketmq_jars(version: str) -> Path | None:
    """The folder of all jars of RocketMQ ``version``, fetched if need be; None where there is no Maven and no cached copy.

    Raises ProvisionError if Maven is there and fails.
    """
    with cached(f"rocketmq-{version}-and-{COMPILER[1]}-{COMPILER[2]}", say) as (final, folder):
        if folder is None:
            return final
        mvn = find_maven()
        if mvn is None:
            return None
        say(f"fetching the jars of RocketMQ {version} through Maven, once; this takes a minute or two")
        wanted = [("org.apache.rocketmq", f"rocketmq-{artifact}", version) for artifact in ROCKETMQ_ARTIFACTS]
        os.replace(fetch_jars([*wanted, COMPILER], mvn, folder, say), final)
    return final


def require_rocketmq_jars(version: str) -> Path:
    """``rocketmq_jars``, or a skip of the running test whose reason says how to get them."""
    if find_java() is None:
        pytest.skip(f"{SKIP_PREFIX}: no Java 17 or later to run them; Debian: apt-get install openjdk-17-jdk-headless maven")
    jars = rocketmq_jars(version)
    if jars is None:
        pytest.skip(f"{SKIP_PREFIX}: they come through Maven, and mvn is not on the PATH; Debian: apt-get install maven")
    return jars


def require_hadoop_jars() -> Path:
    """The folder of the jars of HDFS and YARN, fetched if need be, or a skip of the running test if there is no Maven."""
    with cached(f"hadoop-{HADOOP_VERSION}", say) as (final, folder):
        if folder is not None:
            mvn = find_maven()
            if mvn is None:
                pytest.skip("Hadoop's jars come through Maven, and mvn is not on the PATH; Debian: apt-get install maven")
            say(f"fetching the jars of Hadoop {HADOOP_VERSION} (110 MB) through Maven, once")
            os.replace(fetch_jars(HADOOP_ARTIFACTS, mvn, folder, say), final)
    return final


def require_rocketmq_rust(version: str) -> None:
    """Skips the running test if the name server of rocketmq-rust was not built before: a build takes minutes."""
    built = cache_dir() / f"{RUST_PROGRAM}-{version}"
    if not built.exists():
        pytest.skip(f"{built} is missing; ./namesrv chaos run no-fault --mode rust:{version} builds it (needs Rust)")


def compiler_jar(jars: Path) -> Path:
    """The compiler that was fetched with ``jars``: run it with ``java -jar``."""
    return jars / f"{COMPILER[1]}-{COMPILER[2]}.jar"


def classpath(jars: Path) -> str:
    """The value of Java's -cp for every jar in ``jars``."""
    return os.fspath(jars / "*")


def main(arguments: list[str]) -> int:
    """``python -m tests.support.provision [VERSION …]``: provides RocketMQ's jars of these versions (default: all versions) and
    the Toxiproxy server. Prints the path of each."""
    versions = arguments or [*ROCKETMQ_VERSIONS, NEWEST_ROCKETMQ]
    for version in versions:
        print(version, rocketmq_jars(version))
    print("toxiproxy-server", toxiproxy_server())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
