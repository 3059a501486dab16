"""The manifests and the chart, applied to a real kube-apiserver with etcd, which validates and stores them. No pod is started."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.deploy.test_helm import CASES, CHART, CLAIM, TOKEN, render
from tests.packaging.test_deploy import MANIFESTS
from tests.packaging.tree import ROOT
from tests.support.helm import helm
from tests.support.kubernetes import VERSION, ApiServer, api_server, documents

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
RESTRICTED = {f"pod-security.kubernetes.io/{what}": "restricted" for what in ("enforce", "warn")}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with api_server(tmp_path_factory.mktemp("kubernetes")) as found:
        yield found


def create_namespace(server: ApiServer, name: str) -> None:
    """A namespace that refuses pods which are not restricted, and warns of such templates."""
    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": RESTRICTED}}
    assert server.apply(json.dumps(made), "").status in (200, 201)


def contains(stored: Any, sent: Any, where: str) -> None:
    """Check that the stored object has every field that was sent. The server adds defaults."""
    if isinstance(sent, dict):
        assert isinstance(stored, dict), where
        for name, value in sent.items():
            if value is None:
                continue  # as if it were absent
            assert name in stored, f"{where}.{name} is not stored"
            contains(stored[name], value, f"{where}.{name}")
    elif isinstance(sent, list):
        assert len(stored) == len(sent), where
        for number, (one, other) in enumerate(zip(stored, sent, strict=True)):
            contains(one, other, f"{where}[{number}]")
    else:
        assert str(stored) == str(sent), f"{where} is {stored!r}, not {sent!r}"


def read_back(server: ApiServer, sent: dict[str, Any], namespace: str) -> None:
    answer = server.ask("GET", server.path_of(sent, namespace))
    assert answer.status == 200, answer
    contains(answer.body, sent, f"{sent['kind']}/{sent['metadata']['name']}")


def pods_are_admitted(server: ApiServer, found: list[dict[str, Any]], namespace: str) -> int:
    """Have the server admit a pod of each template. Returns their number."""
    templates = [each["spec"].get("jobTemplate", each)["spec"] for each in found if each["kind"] in ("StatefulSet", "CronJob")]
    for number, spec in enumerate(templates):
        pod: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod"}
        pod["metadata"] = {**spec["template"].get("metadata", {}), "name": f"pod-{number}"}
        pod["spec"] = dict(spec["template"]["spec"])
        claims = [each["metadata"]["name"] for each in spec.get("volumeClaimTemplates", [])]  # a controller adds their volumes
        pod["spec"]["volumes"] = [*(pod["spec"].get("volumes") or []), *({"name": name, "emptyDir": {}} for name in claims)]
        pod["spec"].pop("priorityClassName", None)
        answer = server.ask("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All&fieldValidation=Strict", pod)
        assert (answer.status, answer.warnings) == (201, ()), answer
    return len(templates)


def test_server_is_the_version_that_was_built(server: ApiServer) -> None:
    assert server.ask("GET", "/version").body["gitVersion"] == f"v{VERSION}"


def test_server_refuses_what_is_wrong(server: ApiServer) -> None:
    """The checks below can fail: an unknown field, a value that no schema knows to be wrong, and a privileged pod."""
    create_namespace(server, "wrong")
    (text,) = [each for each in texts(3) if "kind: StatefulSet" in each]
    text = text.replace("namespace: namesrv\n", "namespace: wrong\n", 1)
    unknown = server.apply(text.replace("replicas: 3", "replicas: 3\n  replica: 3"), "wrong")
    assert (unknown.status, "field not declared in schema" in str(unknown.body)) == (500, True)
    other = server.apply(text.replace("matchLabels: {app.kubernetes.io/name: namesrv}", "matchLabels: {app: other}", 1), "wrong")
    assert (other.status, "selector" in str(other.body)) == (422, True)
    host = server.apply(text.replace("enableServiceLinks: false", "enableServiceLinks: false\n      hostNetwork: true"), "wrong")
    assert "violate PodSecurity" in str(host.warnings), host


def texts(count: int) -> list[str]:
    """The documents of a manifest."""
    return [each for each in MANIFESTS[count].read_text(encoding="utf-8").split("\n---\n") if documents(each)]


@pytest.mark.parametrize("count", [3, 5])
def test_manifests_are_applied(count: int, server: ApiServer) -> None:
    create_namespace(server, "namesrv")
    for text in texts(count):
        answer = server.apply(text, "namesrv")
        assert (answer.status in (200, 201), answer.warnings) == (True, ()), answer
        read_back(server, documents(text)[0], "namesrv")
    assert pods_are_admitted(server, documents("\n---\n".join(texts(count))), "namesrv") == 1


def run_helm(server: ApiServer, *arguments: str) -> str:
    environment = {**os.environ, "KUBECONFIG": str(server.kubeconfig)}
    done = subprocess.run([helm(), *arguments], capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, f"helm {' '.join(arguments)}\n{done.stdout}{done.stderr}"
    assert "warning" not in done.stderr.lower(), done.stderr
    return done.stdout


@pytest.mark.parametrize("name", CASES)
def test_chart_is_installed_upgraded_and_removed(name: str, server: ApiServer) -> None:
    create_namespace(server, name)
    values = CASES[name].values
    sets = [word for value in values for word in ("--set-string" if "settings." in value else "--set", value)]
    place = ("mq", str(CHART), "--namespace", name)
    run_helm(server, "install", *place, *sets)
    found = documents(render(values, VERSION, namespace=name).stdout)
    for each in found:
        read_back(server, each, name)
    assert pods_are_admitted(server, found, name) == len({"StatefulSet", "CronJob"} & {each["kind"] for each in found})
    more = (
        "image.tag=other",
        "drainSeconds=5",
        "settings.maxConnections=1000",
        *((TOKEN, CLAIM) if not name.endswith("all") else ()),
    )
    run_helm(
        server,
        "upgrade",
        *place,
        *sets,
        *(word for value in more for word in ("--set-string" if "settings." in value else "--set", value)),
    )
    for each in documents(render((*values, *more), VERSION, namespace=name).stdout):
        read_back(server, each, name)
    run_helm(server, "uninstall", "mq", "--namespace", name)
    left = [server.ask("GET", server.path_of(each, name)).status for each in found if each["kind"] != "PersistentVolumeClaim"]
    assert set(left) == {404}
    claims = server.ask("GET", f"/api/v1/namespaces/{name}/persistentvolumeclaims").body["items"]
    assert len(claims) == 1, "the claim with the backups stays"


def test_the_chart_is_installed_as_the_page_says(server: ApiServer) -> None:
    create_namespace(server, "typed")
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^\$ helm (install .*)$", page, re.MULTILINE)
    words = line.replace("-n namesrv", "-n typed").replace("deploy/helm/namesrv", str(CHART)).split()
    assert "STATUS: deployed" in run_helm(server, *words)
    listed = server.ask("GET", "/apis/batch/v1/namespaces/typed/cronjobs").body["items"]
    assert [each["metadata"]["name"] for each in listed] == ["namesrv-backup"]
