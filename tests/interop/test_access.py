"""Real brokers, producers, consumers and mqadmin against access control: with certificates, signatures, both and neither.

All of it with 5.3.3, and a short part with the oldest and the newest version."""

import json
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.access.files import write_access_file
from tests.interop.lab import OLD, Driver, Lab, Process, ask, compile_driver, laboratory, wait_for
from tests.support import provision
from tests.support.authority import Authority
from tests.support.remoting_server import Peer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

VERSION = "5.3.3"
SECRETS = {"brokerKey": "secret of broker-b", "toolsKey": "secret of the tools", "clientKey": "secret of the client"}
FILE = f"""
[identities.broker-a]
roles = ["broker"]
brokers = ["broker-a"]
certificates = ["CN=broker-a"]

[identities.broker-b]
roles = ["broker"]
brokers = ["broker-b"]
access_keys = {{ brokerKey = ["{SECRETS["brokerKey"]}"] }}

[identities.client]
roles = ["read"]
certificates = ["CN=client"]
access_keys = {{ clientKey = ["{SECRETS["clientKey"]}"] }}

[identities.tools]
roles = ["operator"]
access_keys = {{ toolsKey = ["{SECRETS["toolsKey"]}"] }}
"""
SIGNS = {
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": "brokerKey", "secretKey": SECRETS["brokerKey"]}),
    "authenticationProvider": "org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider",
}
"""Properties of a broker that signs what it sends to name servers. RocketMQ 5.3.3 does not start without the providers."""
REFUSED = "CODE: 16  DESC: no permission: "


class Certificates:
    """Files of an authority, as RocketMQ's system properties name them."""

    def __init__(self, folder: Path) -> None:
        self._authority = Authority(folder)

    def settings(self) -> dict[str, str]:
        """Settings of a name server that asks for client certificates."""
        files = self._authority.files("localhost")
        return {
            "tls.test.mode.enable": "false",
            "tls.server.certPath": str(files.certificate),
            "tls.server.keyPath": str(files.key),
            "tls.server.trustCertPath": str(self._authority.path),
            "tls.server.authClient": "true",
            "tls.server.need.client.auth": "optional",
        }

    def system(self, name: str | None) -> tuple[str, ...]:
        """TLS in both directions, with the certificate of ``name`` as a client."""
        own: tuple[str, ...] = ()
        if name is not None:
            files = self._authority.files(name, prefix="client-")
            own = (f"-Dtls.client.certPath={files.certificate}", f"-Dtls.client.keyPath={files.key}")
        server = self._authority.files("localhost", prefix=f"{name}-")
        own += (f"-Dtls.server.certPath={server.certificate}", f"-Dtls.server.keyPath={server.key}")
        trust = ("-Dtls.client.authServer=true", f"-Dtls.client.trustCertPath={self._authority.path}")
        return ("-Dtls.enable=true", "-Dtls.test.mode.enable=false", *trust, *own)

    def has_brokers(self, address: str, *names: str) -> Callable[[], bool]:
        """Whether brokers of these names are registered, as the client sees it."""
        files = self._authority.files("client", prefix="own-")
        context = ssl.create_default_context(cafile=str(self._authority.path))
        context.load_cert_chain(files.certificate, files.key)

        def look() -> bool:
            with Peer(int(address.rpartition(":")[2]), context) as peer:
                return all(f'"{name}"'.encode() in peer.call(106).body for name in names)

        return look


def driver_signs(key: str) -> tuple[str, ...]:
    """System properties of a driver whose producers and consumers sign."""
    return (f"-Dinterop.accessKey={key}", f"-Dinterop.secretKey={SECRETS[key]}")


def mqadmin_signs(driver: Driver, key: str) -> None:
    (driver.folder / "conf" / "tools.yml").write_text(f"accessKey: {key}\nsecretKey: {SECRETS[key]}\n")


def is_refused_readably(broker: Process) -> None:
    log = broker.folder / "java.log"
    wait_for(lambda: log.exists() and REFUSED in log.read_text(), "the broker logs why it is refused")
    assert broker.alive()


def audit(lab: Lab) -> list[Mapping[str, str]]:
    """Both files of the audit log of the only name server."""
    return [json.loads(line) for path in lab.folder.glob("ns-*/audit*.log") for line in path.read_text().splitlines()]


def events(lab: Lab, event: str) -> set[tuple[str, str]]:
    return {(line["identity"], line["request"]) for line in audit(lab) if line["event"] == event}


def send_and_consume(driver: Driver, address: str, topic: str) -> None:
    assert driver.call("send", address, topic, "20", "m").startswith("20 stored")
    driver.call("receiver-start", "r", address, "group", topic)
    wait_for(lambda: driver.call("receiver-count", "r") == "20", "the consumer gets every message")
    driver.call("receiver-stop", "r")


def test_certificates_and_signatures_over_tls(lab: Lab, tmp_path: Path) -> None:
    """A broker with a certificate, one that signs, clients with certificate, mqadmin that signs, and callers with neither or with
    the wrong certificate."""
    certificates = Certificates(tmp_path)
    settings = {**certificates.settings(), "accessPolicy": "enforce", "accessFile": str(write_access_file(tmp_path, FILE))}
    address, _ = lab.namesrv(settings=settings)
    lab.broker(VERSION, "broker-a", address, system=certificates.system("broker-a"))
    lab.broker(VERSION, "broker-b", address, system=certificates.system(None), properties=SIGNS)
    _, thief = lab.broker(VERSION, "broker-a", address, system=certificates.system("client"))
    wait_for(certificates.has_brokers(address, "broker-a", "broker-b"), "both brokers are registered")
    is_refused_readably(thief)

    both = lab.driver(VERSION, (*certificates.system("client"), *driver_signs("clientKey")))
    send_and_consume(both, address, "TBW102")
    mqadmin_signs(both, "toolsKey")
    assert "Failed" in both.admin("wipeWritePerm", "-n", address, "-b", "broker-b"), "the certificate decides, not the signature"

    signing = lab.driver(VERSION, certificates.system(None))
    assert signing.call("send", address, "TBW102", "1", "m").startswith("0 stored")
    mqadmin_signs(signing, "toolsKey")
    assert "OK" in signing.admin("wipeWritePerm", "-n", address, "-b", "broker-b")
    assert {("client", "REGISTER_BROKER"), ("client", "WIPE_WRITE_PERM_OF_BROKER")} <= events(lab, "refused")
    assert ("anonymous", "GET_ROUTEINFO_BY_TOPIC") in events(lab, "refused")


def test_signatures_in_plain_text_and_callers_without(lab: Lab, tmp_path: Path) -> None:
    """Callers without credentials may only read. Nothing hangs, and refusals have a clear message."""
    path = write_access_file(tmp_path, '[anonymous]\nroles = ["read"]\n' + FILE)
    settings = {"accessPolicy": "enforce", "accessFile": str(path), "accessKeysInPlainText": "true"}
    address, _ = lab.namesrv(settings=settings)
    lab.broker(VERSION, "broker-b", address, properties=SIGNS)
    _, stranger = lab.broker(VERSION, "broker-b", address)
    wait_for(lambda: b'"broker-b"' in ask(address, 106)[1], "the broker that signs is registered")
    is_refused_readably(stranger)
    driver = lab.driver(VERSION)
    assert driver.call("send", address, "TBW102", "2", "m").startswith("2 stored")
    assert "Failed" in driver.admin("wipeWritePerm", "-n", address, "-b", "broker-b")
    assert "success" not in driver.admin("updateKvConfig", "-n", address, "-s", "n", "-k", "k", "-v", "v")
    mqadmin_signs(driver, "toolsKey")
    assert "OK" in driver.admin("addWritePerm", "-n", address, "-b", "broker-b")
    assert "success" in driver.admin("updateKvConfig", "-n", address, "-s", "n", "-k", "k", "-v", "v")
    path.write_text(FILE)
    wait_for(lambda: any(line["event"] == "reloaded" for line in audit(lab)), "the file is read again")
    assert "No route info of this topic" in driver.call("send", address, "Other", "1", "m")


def test_observe_disturbs_nobody(lab: Lab) -> None:
    """Without any credentials everything works, and the audit log says who would be refused."""
    address, _ = lab.namesrv(settings={"accessPolicy": "observe"})
    lab.broker(VERSION, "broker-a", address)
    wait_for(lambda: b'"broker-a"' in ask(address, 106)[1], "the broker is registered")
    driver = lab.driver(VERSION)
    send_and_consume(driver, address, "TBW102")
    assert "OK" in driver.admin("wipeWritePerm", "-n", address, "-b", "broker-a")
    wanted = {("anonymous", name) for name in ("REGISTER_BROKER", "GET_ROUTEINFO_BY_TOPIC", "WIPE_WRITE_PERM_OF_BROKER")}
    assert wanted <= events(lab, "observed")
    assert not events(lab, "refused")


def sends(driver: Driver, address: str) -> None:
    """Send a message. Clients have short time-outs, so a busy machine may need several attempts."""
    wait_for(lambda: driver.call("send", address, "TBW102", "1", "m").startswith("1 stored"), "a message is stored")


@pytest.mark.parametrize("version", [OLD, provision.NEWEST_ROCKETMQ])
def test_other_versions_prove_who_they_are_to_enforcing_and_observing_nodes(tmp_path: Path, version: str) -> None:
    """A broker with a certificate (4.9.7 brokers cannot sign) or a signature, clients with both, and clients with neither."""
    jars, java = {version: provision.require_rocketmq_jars(version)}, str(provision.java())
    classes = {version: compile_driver(jars[version], tmp_path / "classes")}
    certificates = Certificates(tmp_path)
    shared = {**certificates.settings(), "accessFile": str(write_access_file(tmp_path, FILE))}
    with laboratory(tmp_path / "lab", java, jars, classes) as lab:
        enforcing, _ = lab.namesrv("enforcing", {**shared, "accessPolicy": "enforce"})
        observing, _ = lab.namesrv("observing", {**shared, "accessPolicy": "observe"})
        name, identity, properties = ("broker-a", "broker-a", {}) if version == OLD else ("broker-b", None, SIGNS)
        lab.broker(version, name, f"{enforcing};{observing}", system=certificates.system(identity), properties=properties)
        both = lab.driver(version, (*certificates.system("client"), *driver_signs("clientKey")))
        neither = lab.driver(version, certificates.system(None))
        for address in (enforcing, observing):
            wait_for(certificates.has_brokers(address, name), f"the broker is registered with {address}")

        def found(name_server: str) -> set[tuple[str, str]]:
            (folder,) = (tmp_path / "lab").glob(f"{name_server}-*")
            lines = map(json.loads, (folder / "audit-refusals.log").read_text().splitlines())
            return {(line["identity"], line["request"]) for line in lines}

        def is_refused(line: tuple[str, str], attempt: Callable[[], bool]) -> None:
            """Clients have short time-outs, so a busy machine may need several attempts until one arrives."""
            wait_for(lambda: attempt() and line in found("enforcing"), f"{line} is refused")

        def fails_to_wipe(driver: Driver) -> bool:
            return "Failed" in driver.admin("wipeWritePerm", "-n", enforcing, "-b", name)

        def sends_nothing() -> bool:
            return neither.call("send", enforcing, "TBW102", "1", "m").startswith("0 stored")

        sends(both, enforcing)
        both.call("receiver-start", "r", enforcing, "group", "TBW102")
        wait_for(lambda: int(both.call("receiver-count", "r")) > 0, "the consumer gets the message")
        both.call("receiver-stop", "r")
        is_refused(("client", "WIPE_WRITE_PERM_OF_BROKER"), lambda: fails_to_wipe(both))
        is_refused(("anonymous", "WIPE_WRITE_PERM_OF_BROKER"), lambda: fails_to_wipe(neither))
        is_refused(("anonymous", "GET_ROUTEINFO_BY_TOPIC"), sends_nothing)
        sends(neither, observing)
        mqadmin_signs(neither, "toolsKey")
        wait_for(lambda: "OK" in neither.admin("wipeWritePerm", "-n", enforcing, "-b", name), "the operator is let through")
        assert ("anonymous", "GET_ROUTEINFO_BY_TOPIC") in found("observing")
        assert not {line for line in found("enforcing") if line[1] == "REGISTER_BROKER"}
