"""Deployment files are accepted by the tools that check their formats, and by the product that they configure."""

import configparser
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from replicated_namesrv.admin.json_views import host_for_brokers
from replicated_namesrv.provision import TOXIPROXY_VERSION
from replicated_namesrv.replication.peer_settings import transport_settings
from replicated_namesrv.settings import Settings
from replicated_namesrv.settings_sources import load_settings
from tests.packaging.tree import ROOT
from tests.support.places import assert_same_names

DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd" / "namesrv.service"
COMPOSE = DEPLOY / "docker" / "compose.yaml"
MANIFESTS = {count: DEPLOY / "kubernetes" / f"namesrv-{count}.yaml" for count in (3, 5)}


def tool(name: str) -> str:
    """A program of the test environment."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        pytest.skip(f"the program {name} is missing: it has no wheel for this platform, or is not installed on this system")
    return found


def checked(*command: str) -> str:
    """Output of a tool, which must report no error."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def documents(file: Path) -> list[Any]:
    return list(YAML(typ="safe", pure=True).load_all(file))


def settings_of(environment: Mapping[str, str], secret: Path) -> Settings:
    """The settings of a node with these variables; the secret is read from ``secret``."""
    given = {name: str(secret) if name == "NAMESRV_PEER_SECRET_FILE" else value for name, value in environment.items()}
    return load_settings(environment=given)


def image_environment() -> dict[str, str]:
    """Variables that the image sets."""
    text = (DEPLOY / "docker" / "Dockerfile").read_text().replace("\\\n", " ")
    return dict(re.findall(r"(NAMESRV_\w+)=(\S+)", text))


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "peer-secret"
    file.touch(0o600)
    file.write_text("a secret that is long enough\n")
    return file


def agree(nodes: list[Settings], count: int) -> None:
    """Each node is one of the same ``count`` peers, and reports a host that the other nodes also use."""
    assert len(nodes) == count
    groups = [transport_settings(node) for node in nodes]
    assert {group.node_id for group in groups} == set(groups[0].addresses)
    assert all(group.addresses == groups[0].addresses and group.cluster_id == groups[0].cluster_id for group in groups)
    assert all(group.secret for group in groups)
    assert all(node.mode == "cp" for node in nodes)
    assert not any(node.name_server_addresses for node in nodes), "then the address list follows the members"
    assert [host_for_brokers(node) for node in nodes] == [groups[0].addresses[node.node_id][0] for node in nodes]


def test_unit_is_accepted_by_systemd(tmp_path: Path) -> None:
    analyze = tool("systemd-analyze")
    copy = tmp_path / "namesrv.service"
    copy.write_text(UNIT.read_text().replace("/opt/namesrv/bin/namesrv", "/bin/sh"))
    told = checked(analyze, "verify", "--man=no", str(copy))
    assert "namesrv" not in told, told


def test_unit_notifies_is_watched_reloads_and_is_hardened() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # keeps the case of names
    unit.read_string(UNIT.read_text())
    service = unit["Service"]
    assert (service["Type"], service["ExecReload"]) == ("notify", "/bin/kill -HUP $MAINPID")
    assert int(service["WatchdogSec"]) > 0
    assert service["TimeoutStartSec"] == "infinity", "a node waits for a majority as long as it takes"
    assert int(service["TimeoutStopSec"]) > 30 + 10
    for name, value in (("DynamicUser", "yes"), ("ProtectSystem", "strict"), ("NoNewPrivileges", "yes"), ("UMask", "0077")):
        assert service[name] == value
    assert service["CapabilityBoundingSet"] == ""
    config = "-c /etc/namesrv/namesrv.properties"
    assert f" serve {config} " in service["ExecStart"]
    assert f" drain {config} " in service["ExecStop"], "the drain must read the file, because it may set adminListen and HTTPS"


@pytest.mark.parametrize("count", [3, 5])
def test_properties_beside_the_unit_make_a_cluster(count: int, secret: Path, tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / f"namesrv-{count}.properties").read_text()
    nodes = []
    for number in range(1, count + 1):
        file = tmp_path / f"{number}.properties"
        file.write_text(text.replace("nodeId=n1", f"nodeId=n{number}").replace("isten=10.0.0.1:", f"isten=10.0.0.{number}:"))
        nodes.append(load_settings(str(file), {"peerSecretFile": str(secret)}, {}))
        assert not nodes[-1].extra
    agree(nodes, count)
    (addresses,) = re.findall("^# nameServerAddresses=(.*)$", text, re.MULTILINE)
    assert addresses == ";".join(f"{host}:{port}" for host, port in (node.listen_address for node in nodes))


def test_dockerfile_is_accepted_by_hadolint() -> None:
    checked(tool("hadolint"), str(DEPLOY / "docker" / "Dockerfile"))


def test_the_base_image_is_pinned() -> None:
    dockerfile, compose = ((DEPLOY / "docker" / name).read_text() for name in ("Dockerfile", "compose.yaml"))
    default = re.search(r"^ARG BASE_IMAGE=(.+)$", dockerfile, re.MULTILINE)
    assert default is not None
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+@sha256:[0-9a-f]{64}", default[1])
    assert f"${{BASE_IMAGE:-{default[1]}}}" in compose


def test_dockerfile_copies_what_there_is_and_runs_as_nobody_in_particular() -> None:
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        *names, _ = line.split()
        assert all((ROOT / name).exists() for name in names), line
    final = text.rpartition("FROM ")[2]
    assert final.startswith("${BASE_IMAGE}")
    assert re.search(r"^USER (\d+):(\d+)$", final, re.MULTILINE)
    environment = image_environment()
    assert f"http://{environment['NAMESRV_HEALTH_LISTEN']}/livez" in final
    assert load_settings(environment=environment).listen_address == ("0.0.0.0", 9876)


def test_compose_file_is_accepted_and_makes_a_cluster(secret: Path) -> None:
    checked(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(COMPOSE))
    (project,) = documents(COMPOSE)
    nodes = []
    for name in ("n1", "n2", "n3"):
        service = project["services"][name]
        assert service["read_only"] is True
        assert f"http://{image_environment()['NAMESRV_HEALTH_LISTEN']}/readyz" in service["healthcheck"]["test"][-1]
        assert service["environment"]["NAMESRV_NODE_ID"] == name
        nodes.append(settings_of({**image_environment(), **service["environment"]}, secret))
    agree(nodes, 3)
    broker = project["services"]["broker"]
    assert broker["command"][-1] == ";".join(f"{host_for_brokers(node)}:9876" for node in nodes)
    assert all(broker["depends_on"][name] == {"condition": "service_healthy"} for name in ("n1", "n2", "n3"))


@pytest.mark.parametrize(("file", "schema"), [("github/action.yml", "vendor.github-actions"), ("gitlab.yml", "vendor.gitlab-ci")])
def test_templates_for_ci_are_accepted(file: str, schema: str) -> None:
    path = DEPLOY / "ci" / file
    checked(tool("check-jsonschema"), "--builtin-schema", schema, str(path))
    text, script = path.read_text(), (DEPLOY / "ci" / "chaos.sh").read_text()
    assert f"toxiproxy-{TOXIPROXY_VERSION}" in text, "the key of the cache names the version"
    for variable in set(re.findall(r"CHAOS_(?:PACKAGE|OUT|SUMMARY)|TOXIPROXY_SERVER", text)):
        assert f"# {variable} " in script
    checked("sh", "-n", str(DEPLOY / "ci" / "chaos.sh"))


def test_jobs_of_one_workflow_have_artifacts_of_different_names() -> None:
    (action,) = documents(DEPLOY / "ci" / "github" / "action.yml")
    default = action["inputs"]["artifact-name"]["default"]
    assert "${{ github.job }}" in default
    assert "${{ strategy.job-index }}" in default
    (upload,) = [step for step in action["runs"]["steps"] if "upload-artifact" in step.get("uses", "")]
    assert upload["with"]["name"] == "${{ inputs.artifact-name }}"
    assert not any("${{" in each["description"] for each in action["inputs"].values()), "GitHub refuses expressions there"


def test_commands_of_the_page_for_ci_need_no_quotes() -> None:
    """The templates separate the words of a command at spaces."""
    page = (DEPLOY / "ci" / "README.md").read_text()
    commands = re.findall(r"--node-command ([^`]+)`", page)
    assert commands
    assert [word for word in commands if re.search(r"[\s'\"]", word)] == []


@pytest.mark.parametrize("count", [3, 5])
def test_manifests_are_accepted(count: int) -> None:
    told = checked(tool("kubernetes-validate"), "--strict", str(MANIFESTS[count]))
    assert told.count("passed") == 5


def manifests(count: int) -> dict[str, Any]:
    """Objects by kind and name."""
    return {f"{found['kind']}/{found['metadata']['name']}": found for found in documents(MANIFESTS[count])}


def pods(stateful_set: Any) -> Iterator[dict[str, str]]:
    """Environment of each pod."""
    (container,) = stateful_set["spec"]["template"]["spec"]["containers"]
    for number in range(stateful_set["spec"]["replicas"]):
        name = f"{stateful_set['metadata']['name']}-{number}"
        yield {each["name"]: each.get("value", name) for each in container["env"]}


@pytest.mark.parametrize("count", [3, 5])
def test_a_network_policy_opens_each_port_to_those_who_need_it(count: int) -> None:
    found = manifests(count)
    policy, stateful_set = found["NetworkPolicy/namesrv"]["spec"], found["StatefulSet/namesrv"]["spec"]
    assert policy["podSelector"] == stateful_set["selector"]
    (container,) = stateful_set["template"]["spec"]["containers"]
    opened = {port["port"]: rule["from"] for rule in policy["ingress"] for port in rule["ports"]}
    ports = {port["name"] for port in container["ports"]} - {"health"}
    assert_same_names(opened, "the ports of the NetworkPolicy", ports, "the container's ports")
    assert opened["peer"] == [{"podSelector": stateful_set["selector"]}]


@pytest.mark.parametrize("count", [3, 5])
def test_a_pod_is_drained_before_it_stops(count: int) -> None:
    (container,) = manifests(count)["StatefulSet/namesrv"]["spec"]["template"]["spec"]["containers"]
    command = container["lifecycle"]["preStop"]["exec"]["command"]
    assert "namesrv drain" in " ".join(command)


def probes_use_the_health_port(container: Any, node: Settings) -> None:
    """Both probes use plain HTTP on the port that the node opens for health only. Liveness never depends on the quorum."""
    assert node.health_address == ("0.0.0.0", {port["name"]: port["containerPort"] for port in container["ports"]}["health"])
    assert container["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "health"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "health"}


@pytest.mark.parametrize("count", [3, 5])
def test_manifests_make_a_cluster(count: int, secret: Path) -> None:
    found = manifests(count)
    stateful_set = found["StatefulSet/namesrv"]
    nodes = [settings_of({**image_environment(), **environment}, secret) for environment in pods(stateful_set)]
    agree(nodes, count)
    headless = found["Service/namesrv-peers"]["spec"]
    assert (headless["clusterIP"], headless["publishNotReadyAddresses"]) == ("None", True)
    assert stateful_set["spec"]["serviceName"] == "namesrv-peers"
    for name, (host, _) in transport_settings(nodes[0]).addresses.items():
        assert host == f"{name}.namesrv-peers.namesrv.svc.cluster.local", "the DNS name of a pod does not change"
    assert found["PodDisruptionBudget/namesrv"]["spec"]["maxUnavailable"] == 1
    pod = stateful_set["spec"]["template"]["spec"]
    assert pod["enableServiceLinks"] is False, "variables of other services are unknown settings"
    assert pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (container,) = pod["containers"]
    probes_use_the_health_port(container, nodes[0])
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert stateful_set["spec"]["volumeClaimTemplates"][0]["metadata"]["name"] == "data"


def test_pages_install_from_hashed_lists_alone() -> None:
    """Everything that is downloaded has a hash in a list. Only the checkout itself has none."""
    page = (ROOT / "docs" / "operations.md").read_text()
    installs = [line for line in page.splitlines() if "pip install" in line]
    assert len(installs) >= 4
    for line in installs:
        assert "--require-hashes -r .ci/requirements/" in line or "--no-deps" in line, line
