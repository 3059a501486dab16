"""The image: the instructions of deploy/docker/Dockerfile are executed, and the result runs like a container. Needs root."""

import json
import stat
from pathlib import Path

import pytest

from replicated_namesrv import __version__
from tests.support.image import Container, Stage, build, container, is_permitted
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ADDED_MB_MAX = 80
"""Limit of what the image adds to its base image."""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    if not is_permitted():
        pytest.skip("needs root, and namespaces for mounts, processes and network")
    folder = tmp_path_factory.mktemp("image")
    folder.chmod(0o755)  # the root of the container, which its user has to enter
    return build(folder)


def healthy(node: Container) -> None:
    wait_until(node.is_healthy, "the health check of the image")


def said(node: Container, *command: str) -> str:
    """Repeat a command in the container until it succeeds. Returns its output."""
    wait_until(lambda: node.run("namesrv", *command).returncode == 0, " ".join(command))
    return node.run("namesrv", *command).stdout


def test_image_adds_the_product_and_nothing_else(image: Stage) -> None:
    every = [path for path in image.root.rglob("*") if path.is_file() and not path.is_symlink() and path.stat().st_size]
    files = [path for path in every if path.is_relative_to(image.inside("/opt/namesrv"))]
    assert files
    strays = [str(path) for path in every if path not in set(files)]
    assert not strays, f"the image adds files outside /opt/namesrv: {', '.join(strays)}"
    megabytes = sum(path.stat().st_size for path in files) / 1e6
    print(f"the image adds {megabytes:.0f} MB in {len(files)} files")
    assert megabytes < ADDED_MB_MAX
    programs = {path.name for path in image.inside("/opt/namesrv/bin").iterdir()}
    assert {"namesrv", "mqnamesrv", "python"} <= programs
    assert not [name for name in programs if name.startswith("pip")]
    assert not [path for path in files if path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID | stat.S_IWOTH)]
    assert image.user == "10001:10001"


def test_container_serves_with_a_read_only_root(image: Stage, tmp_path: Path) -> None:
    """As ``docker run --read-only namesrv`` starts it: an independent node."""
    tmp_path.chmod(0o755)
    with container(image, tmp_path / "data", tmp_path / "log") as node:
        healthy(node)
        status = Path(f"/proc/{node.inner}/status").read_text()
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert fields["Uid"].split() == ["10001"] * 4
        assert (int(fields["CapEff"], 16), fields["NoNewPrivs"], fields["NSpid"].split()[-1]) == (0, "1", "1")
        assert node.run("namesrv", "--version").stdout.strip() == f"namesrv {__version__}"
        refused = node.run("sh", "-c", "touch /opt/namesrv/file /file")
        assert refused.stderr.count("Read-only file system") == 2
        broker = node.run("namesrv", "broker", "-n", "127.0.0.1:9876", "--topics", "2", "--duration-s", "0.1", "--json")
        assert broker.returncode == 0, broker
        assert json.loads(broker.stdout.splitlines()[-1])["registered"] == 1
        assert "independent" in said(node, "status")
        assert node.stop() == 0, node.log.read_text(errors="replace")


def test_volume_keeps_the_state_of_a_cp_node(image: Stage, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    cp = {"NAMESRV_MODE": "cp", "NAMESRV_NODE_ID": "n1", "NAMESRV_PEERS": "n1=127.0.0.1:9896", "NAMESRV_CLUSTER_ID": "image"}
    for number in range(2):
        with container(image, tmp_path / "data", tmp_path / "log", **cp) as node:
            healthy(node)
            said(node, "status")
            if number == 0:
                said(node, "kv", "put", "N", "key", "value", "-n", "127.0.0.1:9876")
            assert said(node, "kv", "get", "N", "key", "-n", "127.0.0.1:9876").strip() == "value"
            assert node.stop() == 0, node.log.read_text(errors="replace")
    owners = {path.stat().st_uid for path in (tmp_path / "data").rglob("*")}
    assert owners == {10001}
