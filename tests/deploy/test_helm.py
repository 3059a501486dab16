"""The Helm chart: the rendered objects are valid for three versions of Kubernetes, the product can start with it, and wrong
values are refused with a remedy."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from replicated_namesrv.admin.json_views import host_for_brokers
from replicated_namesrv.cli.main import parser_of
from replicated_namesrv.errors import SettingError
from replicated_namesrv.replication.peer_settings import transport_settings
from replicated_namesrv.settings import Settings
from replicated_namesrv.settings_sources import load_settings
from tests.packaging.test_deploy import image_environment, probes_use_the_health_port
from tests.packaging.tree import ROOT
from tests.support.authority import Authority
from tests.support.helm import run_helm
from tests.support.places import assert_same_names

CHART = ROOT / "deploy" / "helm" / "namesrv"
KUBERNETES = ("1.28.0", "1.32.0", "1.37.0")
"""An old, a middle and a new version: those whose schemas are checked."""
TOKEN, CLAIM = "adminTokenSecret=token", "backup.enabled=true"
ALL = (
    *(TOKEN, CLAIM, "serviceMonitor.enabled=true", "access.policy=enforce", "access.secret=access"),
    *("tls.peers.secret=peers", "tls.remoting.secret=remoting", "tls.remoting.mode=enforcing", "tls.admin.secret=admin"),
    *("persistence.storageClass=fast", "antiAffinity=preferred", "settings.needWaitForService=true", "priorityClassName=high"),
    *("nodeSelector.disk=ssd", "podAnnotations.a=b", "imagePullSecrets[0].name=pull", "tolerations[0].operator=Exists"),
)


class Case(NamedTuple):
    """Values, and the kinds of object that they render."""

    values: tuple[str, ...]
    kinds: tuple[str, ...]


BASIC = ("NetworkPolicy", "PodDisruptionBudget", "Service", "Service", "StatefulSet")
PODS = ("StatefulSet", "CronJob")
EVERYTHING = ("CronJob", "PersistentVolumeClaim", "ServiceMonitor", *BASIC)
CASES = {
    "cp-3": Case((), BASIC),
    "cp-5": Case(("replicas=5",), BASIC),
    "ap-3": Case(("mode=ap",), BASIC),
    "ap-5": Case(("mode=ap", "replicas=5"), BASIC),
    "cp-all": Case(ALL, EVERYTHING),
    "ap-all": Case(("mode=ap", *ALL), EVERYTHING),
    "bare": Case(
        ("replicas=1", "networkPolicy.enabled=false", "podDisruptionBudget.enabled=false", "antiAffinity=none"), BASIC[2:]
    ),
}


def render(
    values: tuple[str, ...],
    version: str = KUBERNETES[-1],
    files: tuple[Path, ...] = (),
    release: str = "mq",
    namespace: str = "rocketmq",
) -> subprocess.CompletedProcess[str]:
    """``helm template`` with these values and files of values."""
    sets = [word for value in values for word in ("--set-string" if "settings." in value else "--set", value)]
    sets += [word for file in files for word in ("--values", str(file))]
    return run_helm("template", release, str(CHART), "--namespace", namespace, "--kube-version", version, *sets)


def objects(text: str) -> list[Any]:
    """The rendered objects."""
    return [found for found in YAML(typ="safe", pure=True).load_all(text) if found]


def only(found: list[Any], kind: str) -> Any:
    """The object of this kind."""
    (one,) = [each for each in found if each["kind"] == kind]
    return one


def test_chart_has_no_lint() -> None:
    done = run_helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", CASES)
def test_rendered_objects_are_valid_for_three_versions_of_kubernetes(name: str) -> None:
    """The schemas are those of kubernetes-validate, which come with its wheel. The wheel has no schema for a
    ServiceMonitor."""
    case = CASES[name]
    for version in KUBERNETES:
        rendered = render(case.values, version)
        assert rendered.returncode == 0, rendered.stderr
        found = objects(rendered.stdout)
        assert sorted(each["kind"] for each in found) == sorted(case.kinds)
        assert len({(each["kind"], each["metadata"]["name"]) for each in found}) == len(found)
        for each in found:
            if each["kind"] != "ServiceMonitor":
                kubernetes_validate.validate(each, version, strict=True)
    if "ServiceMonitor" in case.kinds:
        monitor, peers = (
            only(found, "ServiceMonitor")["spec"],
            next(each for each in found if each["metadata"]["name"].endswith("peers")),
        )
        assert monitor["selector"]["matchLabels"].items() <= peers["metadata"]["labels"].items()
        assert [endpoint["port"] for endpoint in monitor["endpoints"]] == ["admin"]


class Secrets:
    """Files in place of those that the pods mount, for the product to read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        files = Authority(folder).files("mq-namesrv-0", others=("mq-namesrv-1", "mq-namesrv-2"))
        self._texts = {
            "peer-secret": b"a secret that is long enough for this\n",
            "token": b"a token that is long enough for this\n",
            "access.toml": b"[anonymous]\nroles = ['read']\n",
            "tls.crt": files.certificate.read_bytes(),
            "tls.key": files.key.read_bytes(),
            "ca.crt": files.authority.read_bytes(),
        }

    def place(self, path: str) -> str:
        """A file in place of the one that the pod mounts at ``path``."""
        file = self._folder / path.removeprefix("/").replace("/", "-")
        file.touch(0o600)
        file.write_bytes(self._texts[path.rpartition("/")[2]])
        return str(file)


def settings_of_pods(stateful_set: Any, secrets: Secrets) -> list[Settings]:
    """The settings of each pod, read by the product."""
    (container,) = stateful_set["spec"]["template"]["spec"]["containers"]
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    found = []
    for number in range(stateful_set["spec"]["replicas"]):
        environment = {
            each["name"]: each.get("value", f"{stateful_set['metadata']['name']}-{number}") for each in container["env"]
        }
        for name, value in environment.items():
            if value.startswith("/etc/namesrv/"):
                assert value.rpartition("/")[0] in mounts, f"{name}={value} is not mounted"
                environment[name] = secrets.place(value)
        arguments = parser_of("serve")[0].parse_args(container["args"][1:])
        flags = dict(pair.split("=", 1) for pair in arguments.set)
        found.append(load_settings(None, flags, {**image_environment(), **environment}))
        assert not found[-1].extra
    return found


@pytest.mark.parametrize("name", CASES)
def test_pods_get_no_variables_of_services(name: str) -> None:
    """A Service named namesrv-prod would set NAMESRV_PROD_SERVICE_HOST, which the product refuses."""
    with pytest.raises(SettingError, match="NAMESRV_PROD_SERVICE_HOST"):
        load_settings(environment={"NAMESRV_PROD_SERVICE_HOST": "10.0.0.1"})
    found = objects(render(CASES[name].values).stdout)
    specs = [each["spec"].get("jobTemplate", each)["spec"]["template"]["spec"] for each in found if each["kind"] in PODS]
    assert len(specs) == len([kind for kind in CASES[name].kinds if kind in PODS])
    assert [pod["enableServiceLinks"] for pod in specs] == [False] * len(specs)


@pytest.mark.parametrize("name", CASES)
def test_the_product_accepts_the_settings_of_every_pod(name: str, tmp_path: Path) -> None:
    found = objects(render(CASES[name].values).stdout)
    stateful_set = only(found, "StatefulSet")
    nodes = settings_of_pods(stateful_set, Secrets(tmp_path))
    probes_use_the_health_port(stateful_set["spec"]["template"]["spec"]["containers"][0], nodes[0])
    assert len({node.node_id for node in nodes}) == len(nodes)
    addresses = {tuple(filter(None, node.name_server_addresses.split(";"))) for node in nodes}
    assert [len(each) for each in addresses] == [0 if nodes[0].mode == "cp" else len(nodes)]
    if nodes[0].mode == "cp":
        transports = [transport_settings(node) for node in nodes]
        assert {node.node_id for node in nodes} == set(transports[0].addresses)
        assert all(each.addresses == transports[0].addresses and each.secret for each in transports)
        assert [host_for_brokers(node) for node in nodes] == [transports[0].addresses[node.node_id][0] for node in nodes]
    if name.endswith("-all"):
        assert {node.access_policy for node in nodes} == {"enforce"}
        assert {node.need_wait_for_service for node in nodes} == {True}


def test_settings_of_a_values_file_keep_their_value(tmp_path: Path) -> None:
    """Helm reads numbers as float64: 268435456 must not become 2.68435456e+08."""
    file = tmp_path / "values.yaml"
    file.write_text(
        "settings: {maxStateBytes: 1073741824, diskReserveBytes: 67108865, maxKvBytes: '268435456',\n"
        "  needWaitForService: true, maxConnections: 100000}\n"
    )
    found = objects(render((), files=(file,)).stdout)
    node = settings_of_pods(only(found, "StatefulSet"), Secrets(tmp_path))[0]
    assert (node.max_state_bytes, node.disk_reserve_bytes, node.max_kv_bytes) == (1073741824, 67108865, 268435456)
    assert (node.need_wait_for_service, node.max_connections) == (True, 100000)


@pytest.mark.parametrize("word", ["true", "null", "1e3", "123"])
def test_names_that_look_like_other_types_stay_texts(word: str, tmp_path: Path) -> None:
    names: dict[str, Any] = {"peerSecret": word, "adminTokenSecret": word, "priorityClassName": word, "clusterId": word}
    names["access"] = {"policy": "enforce", "secret": word}
    names["tls"] = {port: {"secret": word} for port in ("remoting", "peers", "admin")}
    names["persistence"] = {"storageClass": word}
    names["serviceMonitor"] = {"enabled": True}
    for claim in (word, ""):
        file = tmp_path / "values.yaml"
        file.write_text(json.dumps({**names, "backup": {"enabled": True, "existingClaim": claim}}))
        rendered = render((), files=(file,), release=word, namespace=word)
        assert rendered.returncode == 0, rendered.stderr
        found = objects(rendered.stdout)
        for each in found:
            assert each["metadata"]["namespace"] == each["metadata"]["labels"]["app.kubernetes.io/instance"] == word
            if each["kind"] != "ServiceMonitor":
                kubernetes_validate.validate(each, KUBERNETES[-1], strict=True)
        tls = only(found, "ServiceMonitor")["spec"]["endpoints"][0]["tlsConfig"]
        assert tls["ca"]["secret"]["name"] == word
        pod = only(found, "StatefulSet")["spec"]["template"]["spec"]
        assert {volume["secret"]["secretName"] for volume in pod["volumes"]} == {pod["priorityClassName"]} == {word}


@pytest.mark.parametrize("release", ["my.release", "a" * 53])
def test_services_have_names_that_a_server_accepts(release: str) -> None:
    found = objects(render((), release=release).stdout)
    names = [each["metadata"]["name"] for each in found if each["kind"] == "Service"]
    assert [name for name in names if re.fullmatch("[a-z][-a-z0-9]{0,61}[a-z0-9]", name) and "namesrv" in name] == names


def test_pods_are_hardened_drained_and_apart() -> None:
    found = objects(render(()).stdout)
    spec = only(found, "StatefulSet")["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert (pod["securityContext"]["runAsNonRoot"], container["securityContext"]["readOnlyRootFilesystem"]) == (True, True)
    shell, option, line = container["lifecycle"]["preStop"]["exec"]["command"]
    assert (shell, option) == ("sh", "-c")
    program, name, *rest = line.split()
    assert (program, parser_of(name)[0].parse_args(rest).within) == ("namesrv", 10)
    policy = only(found, "NetworkPolicy")["spec"]
    opened = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    ports = {port["name"] for port in container["ports"]} - {"health"}
    assert_same_names(opened, "the ports of the NetworkPolicy", ports, "the container's ports")
    assert policy["podSelector"]["matchLabels"] == spec["selector"]["matchLabels"]
    assert only(found, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_alerts_select_the_job_of_the_service_monitor() -> None:
    """Prometheus names the job after the Service."""
    found = objects(render(("serviceMonitor.enabled=true",)).stdout)
    wanted = only(found, "ServiceMonitor")["spec"]["selector"]["matchLabels"].items()
    services = [each for each in found if each["kind"] == "Service"]
    (job,) = [each["metadata"]["name"] for each in services if wanted <= each["metadata"]["labels"].items()]
    selectors = re.findall(r'job=~"([^"]+)"', (ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text(encoding="utf-8"))
    assert selectors
    assert [one for one in selectors if not re.fullmatch(one, job)] == [], f"the alerts do not see the job {job}"


@pytest.mark.parametrize("mode", ["cp", "ap"])
def test_the_backup_keeps_the_newest_files(mode: str, tmp_path: Path) -> None:
    """The script of the CronJob runs, with a program in place of namesrv that writes the file it is given."""
    job = only(objects(render((f"mode={mode}", TOKEN, CLAIM, "backup.keep=2")).stdout), "CronJob")
    (container,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    (script,) = container["args"]
    for line in script.splitlines():
        if line.startswith("namesrv "):
            parser_of("backup")[0].parse_args(line.replace('"', "").split()[2:])
    folder, program = tmp_path / "backup", tmp_path / "bin" / "namesrv"
    folder.mkdir()
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nfor file; do :; done\n[ ! -e "$file" ] && : > "$file"\n')
    program.chmod(0o700)
    names = ["namesrv"] if mode == "cp" else [f"mq-namesrv-{number}" for number in range(3)]
    for name in names:
        for year in (2024, 2025):
            (folder / f"{name}-{year}0101T000000Z.backup").touch()
    for year in (2024, 2025, 2026):
        (folder / f"namesrv-0-{year}0101T000000Z.backup").touch()
    subprocess.run(
        [*container["command"], script.replace("/backup/", f"{folder}/")],
        check=True,
        env={"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"},
        timeout=60,
    )
    assert mode == "ap" or (folder / "namesrv-0-20240101T000000Z.backup").exists(), "files of AP nodes stay"
    for name in names:
        left = sorted(file.name for file in folder.glob(f"{name}-2*.backup"))
        assert len(left) == 2
        assert left[0] == f"{name}-20250101T000000Z.backup"


def test_a_backup_of_ap_nodes_continues_after_a_node_that_is_down(tmp_path: Path) -> None:
    job = only(objects(render(("mode=ap", TOKEN, CLAIM)).stdout), "CronJob")
    (container,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    (script,) = container["args"]
    program = tmp_path / "bin" / "namesrv"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\ncase $3 in mq-namesrv-1.*) exit 2;; esac\n: > "$4"\n')
    program.chmod(0o700)
    done = subprocess.run(
        [*container["command"], script.replace("/backup/", f"{tmp_path}/")],
        check=False,
        env={"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"},
        timeout=60,
    )
    assert done.returncode == 1
    assert sorted(file.name.rpartition("-")[0] for file in tmp_path.glob("*.backup")) == ["mq-namesrv-0", "mq-namesrv-2"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (("replicas=2",), "replicas"),
        (("replicas=4",), "replicas"),
        (("mode=xp",), "mode"),
        (("peerSecret=",), "peerSecret: with mode=cp the nodes have to authenticate each other; give the name of a Secret"),
        (("access.policy=enforce",), "access.secret: access.policy=enforce needs a Secret with the key access.toml"),
        (("access.policy=enforce", "access.secret=a"), "adminTokenSecret: with access.policy=enforce a pod needs the role admin"),
        ((CLAIM,), "adminTokenSecret: backup.enabled=true needs a Secret with the key token"),
        (("tls.admin.secret=x",), "adminTokenSecret: with tls.admin.secret"),
        (("drainSeconds=60",), "terminationGracePeriodSeconds=60: give at least drainSeconds + 30"),
        (("replica=3",), "replica"),
        (("image.digest=latest",), "digest"),
        (("serviceMonitor.interval=often",), "interval"),
        ((CLAIM, TOKEN, "backup.schedule=every night"), "backup.schedule"),
        (("image.tag=a b",), "image.tag"),
        (("clusterDomain=A B",), "clusterDomain"),
        (("tls.remoting.mode=enforcing",), "tls.remoting.secret: tls.remoting.mode=enforcing needs a Secret"),
        (
            ("settings.listenPort=9999",),
            "settings.listenPort: the chart sets it, and services and probes depend on it; remove",
        ),
        (("settings.mode=ap",), "settings.mode: the chart sets it"),
        (
            ("settings.accessPolicy=enforce",),
            "settings.accessPolicy: the chart sets it with a value of its own",
        ),
        (("settings.ordrMessageEnable=true",), "ordrMessageEnable"),
        (("image.repository=my image",), "image.repository"),
        (("image.repository=namesrv:1.0",), "image.repository"),
    ],
)
def test_wrong_values_are_refused(values: tuple[str, ...], said: str) -> None:
    done = render(values)
    assert done.returncode != 0
    assert said in done.stderr


def test_every_value_is_in_the_schema_and_has_a_default() -> None:
    """This test needs no Helm."""
    values = YAML(typ="safe", pure=True).load(CHART / "values.yaml")
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))

    def compare(given: dict[str, Any], described: dict[str, Any], path: str) -> None:
        properties = described.get("properties")
        if properties is None:
            return
        where = f"at {path or 'the top'}"
        assert_same_names(given, f"values.yaml {where}", properties.keys() - {"global"}, f"values.schema.json {where}")
        for name, value in given.items():
            if isinstance(value, dict):
                compare(value, properties[name], f"{path}.{name}")

    compare(values, schema, "")
