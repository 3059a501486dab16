"""Foreign name servers as nodes of a run: fetched through Maven or cargo, started with a configuration of their own.

They have no admin port. Readiness and state are observed by remoting (``node_looks.py``). Facts that only an admin port shows,
such as the reason of a removal, stay unknown.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from replicated_namesrv import provision
from replicated_namesrv.chaos.run_modes import ForeignMode
from replicated_namesrv.client.broker_requests import BrokerVersion

SCAN_SETTING = "scanNotActiveBrokerInterval"
FIXED_SCAN_MS = 10_000
"""RocketMQ 4 looks for silent brokers every 10 s, and removes them after 120 s. Both numbers are constants in its code."""
JARS_SHA256 = {
    "4.9.7": "5533c4099e845b85e2bce2ded6c16b356d62177656631b4be5e199322cdc062e",
    "5.3.3": "964ce8cb12d6ed87bf91de2707748371e6feb349516c0a534a80a2e7fb96d5de",
    "5.5.0": "8aa8a6d7869b3569cd84d07e3c6abb91be775defdb201a74555f59a71792af59",
}
"""Known digests of all jars of a version (``jars_sha256``). The jars of other versions are only compared with Maven's
checksums."""
_JAVA_SETTINGS = {
    *(SCAN_SETTING, "orderMessageEnable", "returnOrderTopicConfigToBroker", "deleteTopicWithBrokerRegistration"),
    *("supportActingMaster", "notifyMinBrokerIdChanged", "enableAllTopicList", "enableTopicList", "clusterTest"),
    *("serverChannelMaxIdleTimeSeconds", "unRegisterBrokerQueueCapacity", "clientRequestThreadPoolNums"),
    *("defaultThreadPoolNums", "clientRequestThreadPoolQueueCapacity", "defaultThreadPoolQueueCapacity"),
}
"""Settings of RocketMQ 5 that a scenario may give. Our settings have the same names."""
_RUST_SETTINGS = _JAVA_SETTINGS - {"serverChannelMaxIdleTimeSeconds"}
RUST_CRATE, RUST_PROGRAM = "rocketmq-namesrv", "rocketmq-namesrv-rust"
JVM_FLAGS = (
    *("--add-opens=java.base/sun.nio.ch=ALL-UNNAMED", "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED"),
    *("--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED"),
    *("--add-opens=java.base/java.lang=ALL-UNNAMED", "--add-opens=java.base/java.util=ALL-UNNAMED"),
    *("--add-exports=java.base/sun.security.x509=ALL-UNNAMED", "--add-opens=java.base/sun.security.x509=ALL-UNNAMED"),
    *("-Xms64m", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"),
)
LOGBACK = """<configuration>
<appender name="C" class="ch.qos.logback.core.ConsoleAppender"><encoder><pattern>%d %p %t - %m%n</pattern></encoder></appender>
<root level="WARN"><appender-ref ref="C"/></root></configuration>
"""


class Launch(NamedTuple):
    """How a node is started."""

    command: list[str]
    environment: dict[str, str]


class ForeignServer(Protocol):
    """A foreign name server, fetched and ready to start."""

    is_warmed_up: bool
    """Whether requests are sent before the run, because the code is compiled while it runs."""
    brokers: BrokerVersion
    """The version of the brokers that this name server supports."""
    settings: tuple[str, ...]
    """The settings in force, as key=value."""
    left_out: tuple[str, ...]
    """The settings of the scenario that this name server does not have."""
    versions: Mapping[str, str]
    """Entries for the manifest: what runs, and the hash of its code."""

    def launch(self, listen: str, data_dir: Path, home: Path) -> Launch:
        """How to start a node that listens on ``listen``. The node writes its KV entries and settings to ``data_dir``, and
        everything else to ``home``.
        """


def prepare(mode: ForeignMode, settings: Sequence[str], say: Callable[[str], None]) -> ForeignServer:
    """Fetch the name server of a mode if it is not in the cache yet. Raises ProvisionError."""
    if mode.product == "java":
        return JavaServer(mode, settings, *java_and_jars(mode.version, say))
    return RustServer(settings, rust_program(mode.version, say))


def java_and_jars(version: str, say: Callable[[str], None]) -> tuple[Path, Path]:
    """A Java runtime and the folder with the jars of the name server. Raises ProvisionError."""
    java = provision.find_java()
    if java is None:
        raise provision.ProvisionError(
            f"no Java 17 or later was found to run RocketMQ {version}; install one (Debian: apt-get install "
            "openjdk-17-jre-headless; in a checkout: ./namesrv setup java)"
        )
    with provision.cached(f"rocketmq-namesrv-{version}", say) as (final, folder):
        if folder is not None:
            mvn = provision.find_maven()
            if mvn is None:
                raise provision.ProvisionError(
                    f"RocketMQ {version} comes through Maven, and mvn is not on the PATH; install it "
                    "(Debian: apt-get install maven)"
                )
            say(f"fetching the name server of RocketMQ {version} through Maven, once; this takes some minutes")
            jars = provision.fetch_jars([("org.apache.rocketmq", "rocketmq-namesrv", version)], mvn, folder, say)
            check_jars(version, jars)
            os.replace(jars, final)
    check_jars(version, final)
    return java, final


def rust_program(version: str, say: Callable[[str], None]) -> Path:
    """The name server of rocketmq-rust, built from its crate if it is not in the cache. Raises ProvisionError."""
    with provision.cached(f"{RUST_PROGRAM}-{version}", say) as (final, folder):
        if folder is not None:
            cargo = provision.find_cargo()
            if cargo is None:
                raise provision.ProvisionError(
                    f"the name server of rocketmq-rust {version} is built from its crate, and no cargo "
                    f"{'.'.join(map(str, provision.RUST_MINIMUM))} or later was found; install Rust (https://rustup.rs)"
                )
            say(f"building the name server of rocketmq-rust {version} with {cargo}, once; this takes some minutes")
            os.replace(provision.build_crate(RUST_CRATE, version, RUST_PROGRAM, cargo, folder, say), final)
    return final


def check_jars(version: str, jars: Path) -> str:
    """The digest of the jars. Raises ProvisionError if this version has a known digest and it differs."""
    found, known = jars_sha256(jars), JARS_SHA256.get(version)
    if known is not None and found != known:
        raise provision.ProvisionError(
            f"{jars}: these are not the known jars of RocketMQ {version} (SHA-256 {found}, expected {known}); delete this folder"
        )
    return found


def jars_sha256(jars: Path) -> str:
    """Digest of the output of ``sha256sum *.jar`` in the order of the file names."""
    lines = [f"{hashlib.sha256(jar.read_bytes()).hexdigest()}  {jar.name}\n" for jar in sorted(jars.glob("*.jar"))]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


class JavaServer:
    """``NamesrvStartup`` of Apache RocketMQ."""

    is_warmed_up = True

    def __init__(self, mode: ForeignMode, settings: Sequence[str], java: Path, jars: Path) -> None:
        self._mode, self._java, self._jars = mode, java, jars
        known = _JAVA_SETTINGS if mode.major >= 5 else set()
        self._own = tuple(setting for setting in settings if setting.partition("=")[0] in known)
        self.left_out = tuple(setting for setting in settings if setting not in self._own)
        self.settings = self._own if mode.major >= 5 else (f"{SCAN_SETTING}={FIXED_SCAN_MS}",)
        self.brokers = BrokerVersion.V5_3 if mode.major >= 5 else BrokerVersion.V4_9
        self.versions: Mapping[str, str] = {"java": provision.java_version(java), "jars_sha256": jars_sha256(jars)}

    def launch(self, listen: str, data_dir: Path, home: Path) -> Launch:
        conf = home / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        for name in ("logback_namesrv.xml", "rmq.namesrv.logback.xml"):  # file names of 4.x and of 5.x
            (conf / name).write_text(LOGBACK, encoding="utf-8")
        host, _, port = listen.rpartition(":")
        properties = [
            f"listenPort={port}",
            f"bindAddress={host}",  # 4.x has no such setting and listens on all addresses
            f"kvConfigPath={data_dir / 'kvConfig.json'}",
            f"configStorePath={data_dir / 'namesrv.properties'}",
            *self._own,
        ]
        file = home / "namesrv.properties"
        file.write_text("".join(f"{line}\n" for line in properties), encoding="utf-8")
        command = [
            *(str(self._java), *JVM_FLAGS, f"-Duser.home={home}", f"-Djava.io.tmpdir={home}"),
            f"-Drmq.logback.configurationFile={conf / 'rmq.namesrv.logback.xml'}",
            *("-cp", f"{self._jars}/*", "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(file)),
        ]
        return Launch(command, {"ROCKETMQ_HOME": str(home)})


class RustServer:
    """The name server of rocketmq-rust."""

    is_warmed_up = False

    def __init__(self, settings: Sequence[str], program: Path) -> None:
        self._program = program
        self.settings = tuple(setting for setting in settings if setting.partition("=")[0] in _RUST_SETTINGS)
        self.left_out = tuple(setting for setting in settings if setting not in self.settings)
        self.brokers = BrokerVersion.V5_3
        self.versions: Mapping[str, str] = {"program_sha256": hashlib.sha256(program.read_bytes()).hexdigest()}

    def launch(self, listen: str, data_dir: Path, home: Path) -> Launch:
        home.mkdir(parents=True, exist_ok=True)
        host, _, port = listen.rpartition(":")
        places = {
            "rocketmqHome": home,
            "kvConfigPath": data_dir / "kvConfig.json",
            "configStorePath": data_dir / "namesrv.properties",
        }
        lines = [f"{name} = {json.dumps(str(path))}" for name, path in places.items()]
        for name, _, value in (setting.partition("=") for setting in self.settings):
            lines.append(f"{name} = {value if value in ('true', 'false') or value.isdecimal() else json.dumps(value)}")
        file = home / "namesrv.toml"
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        command = [str(self._program), "-c", str(file), "--listenPort", port, "--bindAddress", host, "--log-filter", "warn"]
        return Launch(command, {"ROCKETMQ_HOME": str(home), "HOME": str(home)})
