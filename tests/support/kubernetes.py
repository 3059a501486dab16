"""kube-apiserver and etcd, built through the Go module proxy: ``python -m tests.support.kubernetes`` builds them, once.

No test starts the build, because it takes long: 48 minutes with one compile job on a busy machine. It uses Go's own caches
(2 GB), and an interrupted build continues from them.
"""

import contextlib
import json
import os
import re
import secrets
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from ruamel.yaml import YAML

from replicated_namesrv.provision import ProvisionError, cache_dir, cached, find_go, run_with_progress
from tests.support.ports import free_ports
from tests.support.provision import say
from tests.support.waiting import wait_until

VERSION = "1.34.4"
MODULE, ETCD = "k8s.io/kubernetes", "go.etcd.io/etcd/server/v3"
OPERATOR, OPERATOR_VERSION = "github.com/prometheus-operator/prometheus-operator", "0.80.1"
MONITORS = "monitoring.coreos.com_servicemonitors.yaml"
"""The definition of ServiceMonitor, a file of the Prometheus Operator's module."""
NAME = f"kubernetes-{VERSION}"
START_LIMIT_S = 180.0
APPLY = "application/apply-patch+yaml"
_TOOLS = f'//go:build tools\n\npackage tools\n\nimport (\n\t_ "{MODULE}/cmd/kube-apiserver/app"\n\t_ "{ETCD}/etcdmain"\n)\n'


def programs() -> Path:
    """The folder with ``kube-apiserver``, ``etcd`` and ``MONITORS``. Without it the running test is skipped."""
    built = cache_dir() / NAME
    if not built.exists():
        pytest.skip(f"{built} is missing; python -m tests.support.kubernetes builds it, which takes up to an hour")
    return built


def documents(text: str) -> list[dict[str, Any]]:
    """The objects in a YAML text, as Kubernetes reads them: by version 1.1, in which 0440 is octal."""
    found = []
    for part in re.split(r"^---$", text, flags=re.MULTILINE):
        reader = YAML(typ="safe", pure=True)
        reader.version = (1, 1)
        found.append(reader.load(part))
    return [each for each in found if each]


def build() -> Path:
    """Build both programs unless they are in the cache. Raises ProvisionError."""
    with cached(NAME, say) as (final, folder):
        if folder is not None:
            go = find_go()
            if go is None:
                raise ProvisionError("kube-apiserver cannot be built without Go; install Go, or run ./namesrv setup go")
            _build(str(go), final, folder)
    return final


def _build(go: str, final: Path, folder: Path) -> None:
    """Build with a module of ours that requires Kubernetes. In Kubernetes' go.mod its parts have the version 0.0.0, so our go.mod
    has a replace line for each."""
    environment = {**os.environ, "GOFLAGS": "-mod=mod -buildvcs=false", "GOMAXPROCS": "1"}
    source, result = folder / "source", folder / "result"
    source.mkdir()
    result.mkdir()

    def run(*arguments: str) -> str:
        status, output = run_with_progress([go, "-C", str(source), *arguments], environment, folder, say)
        if status != 0:
            raise ProvisionError(f"go {arguments[0]} for {NAME} failed: " + " | ".join(output.strip().splitlines()[-3:]))
        return output

    (source / "go.mod").write_text(f"module {NAME}\n\ngo 1.24.0\n\nrequire {MODULE} v{VERSION}\n")
    where = json.loads(run("mod", "download", "-json", f"{MODULE}@v{VERSION}"))
    parts = sorted(set(re.findall(r"^\s*(k8s\.io/[a-z-]+) v0\.0\.0$", Path(where["GoMod"]).read_text(), re.MULTILINE)))
    lines = "".join(f"\t{part} => {part} v0.{VERSION.partition('.')[2]}\n" for part in parts)
    with (source / "go.mod").open("a") as file:
        file.write(f"\nreplace (\n{lines})\n")
    (source / "tools.go").write_text(_TOOLS)
    run("mod", "tidy")
    flags = f"-s -w -X k8s.io/component-base/version.gitVersion=v{VERSION}"
    run("build", "-v", "-p", "1", "-ldflags", flags, "-o", str(result / "kube-apiserver"), f"{MODULE}/cmd/kube-apiserver")
    run("build", "-v", "-p", "1", "-ldflags", "-s -w", "-o", str(result / "etcd"), ETCD)
    operator = json.loads(run("mod", "download", "-json", f"{OPERATOR}@v{OPERATOR_VERSION}"))
    shutil.copy(Path(operator["Dir"]) / "example" / "prometheus-operator-crd" / MONITORS, result)
    os.replace(result, final)


class Answer(NamedTuple):
    """An answer of the API server."""

    status: int
    body: Any
    warnings: tuple[str, ...]


class ApiServer:
    """A running API server. Its only user is an administrator."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self._token = folder, secrets.token_hex(16)
        self.address = f"https://127.0.0.1:{port}"
        self.authority = folder / "certificates" / "apiserver.crt"
        self.tokens = folder / "tokens.csv"
        self.tokens.write_text(f"{self._token},admin,admin,system:masters\n")
        self.kubeconfig = folder / "kubeconfig"
        named = {"cluster": "c", "user": "u"}
        self.kubeconfig.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [
                        {"name": "c", "cluster": {"server": self.address, "certificate-authority": str(self.authority)}}
                    ],
                    "users": [{"name": "u", "user": {"token": self._token}}],
                    "contexts": [{"name": "x", "context": named}],
                    "current-context": "x",
                }
            )
        )
        self.kubeconfig.chmod(0o600)

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Answer:
        """One request. A body that is not text is sent as JSON."""
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
        data = body.encode() if isinstance(body, str) else None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60, context=ssl.create_default_context(cafile=self.authority)) as answer:
                return Answer(answer.status, self._body(answer.read()), tuple(answer.headers.get_all("Warning", ())))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, self._body(error.read()), tuple(error.headers.get_all("Warning", ())))

    @staticmethod
    def _body(text: bytes) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            return text.decode(errors="replace")

    def path_of(self, found: dict[str, Any], namespace: str) -> str:
        """The path of an object, as the server's discovery says."""
        version = found["apiVersion"]
        base = f"/api/{version}" if "/" not in version else f"/apis/{version}"
        listed = self.ask("GET", base).body["resources"]
        (one,) = [each for each in listed if each["kind"] == found["kind"] and "/" not in each["name"]]
        inside = f"/namespaces/{found['metadata'].get('namespace', namespace)}" if one["namespaced"] else ""
        return f"{base}{inside}/{one['name']}/{found['metadata']['name']}"

    def apply(self, text: str, namespace: str) -> Answer:
        """Server-side apply of a YAML document. The server refuses unknown and repeated fields."""
        query = "?fieldManager=test&fieldValidation=Strict"
        return self.ask("PATCH", self.path_of(documents(text)[0], namespace) + query, text, APPLY)


@contextlib.contextmanager
def api_server(folder: Path) -> Iterator[ApiServer]:
    """etcd and an API server, until the block ends."""
    where = programs()
    client, peer, port = free_ports(3)
    server = ApiServer(folder, port)
    key = folder / "accounts.key"
    private = rsa.generate_private_key(65_537, 2048)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption())
    key.write_bytes(private.private_bytes(*form))
    etcd = [
        *(str(where / "etcd"), "--data-dir", str(folder / "etcd"), "--listen-peer-urls", f"http://127.0.0.1:{peer}"),
        *("--listen-client-urls", f"http://127.0.0.1:{client}", "--advertise-client-urls", f"http://127.0.0.1:{client}"),
        "--unsafe-no-fsync",
    ]
    api = [
        *(str(where / "kube-apiserver"), "--etcd-servers", f"http://127.0.0.1:{client}", "--bind-address", "127.0.0.1"),
        *("--secure-port", str(port), "--cert-dir", str(server.authority.parent), "--token-auth-file", str(server.tokens)),
        *("--authorization-mode", "RBAC", "--service-cluster-ip-range", "10.96.0.0/16"),
        *("--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", str(key)),
        *("--service-account-signing-key-file", str(key)),
        # A controller, which does not run here, would create the service accounts.
        *("--disable-admission-plugins", "ServiceAccount"),
    ]
    with contextlib.ExitStack() as stack:
        log = folder / "log"
        output = stack.enter_context(log.open("ab"))
        for command in (etcd, api):
            process = stack.enter_context(subprocess.Popen(command, stdout=output, stderr=output, cwd=folder))
            stack.callback(process.kill)

        def is_ready() -> bool:
            assert process.poll() is None, log.read_text(errors="replace")[-3000:]
            return server.authority.exists() and server.ask("GET", "/readyz").status == 200

        wait_until(is_ready, "the API server", START_LIMIT_S)
        assert server.apply((where / MONITORS).read_text(encoding="utf-8"), "").status == 201
        kinds = "/apis/monitoring.coreos.com/v1"
        wait_until(lambda: server.ask("GET", kinds).status == 200, "the kind ServiceMonitor", START_LIMIT_S)
        yield server


if __name__ == "__main__":
    try:
        print(build())
    except ProvisionError as error:
        sys.exit(str(error))
