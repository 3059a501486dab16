"""``namesrv switch``: what it refuses, and which file's values it reports as kept. test_operations_page.py tests the whole
procedure."""

import fcntl
import json
import shutil
from pathlib import Path

from replicated_namesrv.compat.kv_file import read_kv_file, write_kv_file
from replicated_namesrv.files import is_held
from replicated_namesrv.raft.file_storage import LOCK
from replicated_namesrv.routes.backup import encode
from replicated_namesrv.routes.commands import PutKVConfig
from replicated_namesrv.routes.state import RouteInfoManager, RouteSettings
from tests.support.nodes import http
from tests.support.operated import operated, run
from tests.support.waiting import until


def backup_file(path: Path, keys: dict[str, str], *, ordered: bool = False, mode: str = "ap") -> str:
    state = RouteInfoManager(RouteSettings(order_message_enable=ordered))
    for key, value in keys.items():
        state.apply(PutKVConfig("N", key, value), 1)
    origin = {"revision": state.revision, "mode": mode, "clusterId": "namesrv", "nodeId": "n1"}
    path.write_bytes(b"".join(encode(origin, state.snapshot())))
    return str(path)


async def test_nodes_that_disagree_are_refused_until_one_is_preferred(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_kv_file(data / "kvConfig.json", {"N": {"k": "old", "same": "s"}})
    (data / "runtime.properties").write_text("orderMessageEnable=true\nwaitSecondsForService=7\n")
    one = backup_file(tmp_path / "one", {"k": "new", "same": "s"}, ordered=True)
    two = backup_file(tmp_path / "two", {"k": "old", "same": "s", "more": "m"})
    before = {path: path.read_bytes() for path in data.iterdir()}
    refused = await run("switch", "--to", "cp", str(data), "--backup", one, two)
    assert refused.code == 1
    assert "the files disagree about key N/k, key N/more, setting orderMessageEnable" in refused.err
    dry = await run("switch", "--to", "cp", str(data), "--backup", one, two, "--prefer", one, "--dry-run")
    assert dry.code == 0, dry
    assert "would: " in dry.out
    assert {path: path.read_bytes() for path in data.iterdir()} == before
    done = await run("switch", "--to", "cp", str(data), "--backup", one, two, "--prefer", one)
    assert done.code == 0, done
    for line in (
        f"key N/k: {one} wins with 'new'; {two} had 'old'",
        f"key N/more: {one} wins with no such key; {two} had 'm'",
        f"setting orderMessageEnable: {one} wins with 'True'; {two} had 'False'",
        f"namesrv restore --merge {one}",
    ):
        assert line in done.out
    assert {path.name for path in data.iterdir()} == {"kvConfig.json.before-cp", "runtime.properties"}
    assert (data / "runtime.properties").read_text().splitlines()[-1] == "waitSecondsForService=7"


async def test_kv_config_path_of_the_properties_file_is_used(tmp_path: Path) -> None:
    """Otherwise the node would read the file of an earlier AP node again."""
    data, file, properties = tmp_path / "data", tmp_path / "elsewhere" / "kv.json", tmp_path / "namesrv.properties"
    data.mkdir()
    write_kv_file(file, {"N": {"k": "old", "deleted": "v"}})
    properties.write_text(f"kvConfigPath={file}\n")
    backup = backup_file(tmp_path / "backup", {"k": "new"}, mode="cp")
    unsure = await run("switch", "--to", "ap", str(data), "--backup", backup, "--dry-run")
    assert "if the node's properties file sets kvConfigPath, give the file with -c" in unsure.err
    done = await run("switch", "--to", "ap", str(data), "--backup", backup, "-c", str(properties))
    assert done.code == 0, done
    assert read_kv_file(file) == {"N": {"k": "new"}}
    assert read_kv_file(Path(f"{file}.before-ap")) == {"N": {"k": "old", "deleted": "v"}}
    other = backup_file(tmp_path / "other", {"k": "another"})
    refused = await run("switch", "--to", "cp", str(data), "--backup", other, "-c", str(properties))
    assert (refused.code, "has values that no given file has: N/k" in refused.err) == (1, True), refused
    missing = await run("switch", "--to", "cp", str(data), "--backup", other, "-c", str(tmp_path / "none"))
    assert (missing.code, "give the node's properties file" in missing.err) == (1, True), missing


async def test_a_folder_of_kv_config_path_that_does_not_exist_is_no_obstacle(tmp_path: Path) -> None:
    data, properties = tmp_path / "data", tmp_path / "namesrv.properties"
    data.mkdir()
    (data / "runtime.properties").write_text("orderMessageEnable=true\n")
    properties.write_text(f"kvConfigPath={tmp_path / 'nowhere' / 'kv.json'}\n")
    backup = backup_file(tmp_path / "backup", {"k": "v"}, ordered=True)
    to_cp = await run("switch", "--to", "cp", str(data), "--backup", backup, "-c", str(properties))
    assert to_cp.code == 0, to_cp
    to_ap = await run("switch", "--to", "ap", str(data), "--backup", backup, "-c", str(properties))
    assert to_ap.code == 0, to_ap
    assert read_kv_file(tmp_path / "nowhere" / "kv.json") == {"N": {"k": "v"}}
    both = await run("switch", "--to", "ap", str(data), "--backup", backup, "-c", str(properties), "--kv-file", str(data / "f"))
    assert (both.code, "are both given; give one of them" in both.err) == (1, True), both
    properties.write_text("accessPolicy=enforce\n")  # a problem of another setting does not matter; kvConfigPath is not set
    default = await run("switch", "--to", "ap", str(data), "--backup", backup, "-c", str(properties))
    assert (default.code, read_kv_file(data / "kvConfig.json")) == (0, {"N": {"k": "v"}}), default
    properties.write_text("kvConfigPath=relative/kv.json\n")
    relative = await run("switch", "--to", "ap", str(data), "--backup", backup, "-c", str(properties))
    assert (relative.code, "give it as an absolute path with --kv-file" in relative.err) == (1, True), relative


async def test_a_key_that_only_this_disk_has_is_not_lost(tmp_path: Path) -> None:
    file = tmp_path / "kvConfig.json"
    write_kv_file(file, {"N": {"k": "v", "only here": "v"}})
    other = backup_file(tmp_path / "other", {"k": "v"})
    refused = await run("switch", "--to", "cp", str(tmp_path), "--backup", other)
    assert refused.code == 1
    assert "no given file has: N/only here" in refused.err
    assert file.exists()
    done = await run("switch", "--to", "cp", str(tmp_path), "--backup", other, str(file), "--prefer", str(file), "--json")
    assert done.code == 0, done
    assert [conflict["key"] for conflict in json.loads(done.out)["conflicts"]] == ["only here"]


async def test_a_log_with_newer_entries_than_the_backup_is_refused(tmp_path: Path) -> None:
    data, early, late, foreign = tmp_path / "n1", tmp_path / "early", tmp_path / "late", tmp_path / "foreign"
    write_kv_file(data / "kvConfig.json", {"N": {"k": "of an earlier AP node", "gone": "since then"}})
    async with operated(tmp_path, 1) as cluster:
        port = cluster.admin_ports[0]
        assert (await http(port, "/v1/kv/N/k", "PUT", b"one")).status == 200
        assert (await run("backup", str(early), "-a", cluster.admin)).code == 0
        running = await run("switch", "--to", "ap", str(data), "--backup", str(early))
        assert running.code == 1
        assert "is used by a process" in running.err
        assert (await http(port, "/v1/kv/N/k", "PUT", b"two")).status == 200
        assert (await run("backup", str(late), "-a", cluster.admin)).code == 0
    async with operated(tmp_path / "other", 1, clusterId="other") as cluster:
        assert (await run("backup", str(foreign), "-a", cluster.admin)).code == 0
    for backup, text in ((early, "disagree about key N/k"), (foreign, "is of cluster other")):
        refused = await run("switch", "--to", "ap", str(data), "--backup", str(backup))
        assert refused.code == 1
        assert text in refused.err
        assert (data / "raft").is_dir()
    done = await run("switch", "--to", "ap", str(data), "--backup", str(late))
    assert done.code == 0, done
    assert f"key N/k: {late} wins with 'two'; {data / 'kvConfig.json'} had 'of an earlier AP node'" in done.out
    assert f"key N/gone: {late} wins with no such key; {data / 'kvConfig.json'} had 'since then'" in done.out
    assert read_kv_file(data / "kvConfig.json") == {"N": {"k": "two"}}
    assert (data / "raft.before-ap").is_dir()
    assert not (data / "raft").exists()
    async with operated(tmp_path, 1, "ap") as nodes:
        assert nodes.nodes[0].service.state.kv_get("N", "k") == "two"
    older = await run("switch", "--to", "ap", str(data), "--backup", str(early))
    assert older.code == 1
    assert "was switched to ap already, and was changed since" in older.err
    assert "the files disagree about key N/k; to use the values of the backup" in older.err
    kv_file, run_time = data / "kvConfig.json", data / "runtime.properties"
    table, text = read_kv_file(kv_file), run_time.read_text()
    for changed_table, changed_text in (
        ({"N": {}}, text),
        (table, text.replace("orderMessageEnable=false", "orderMessageEnable=true")),
    ):
        write_kv_file(kv_file, changed_table)
        run_time.write_text(changed_text)
        refused = await run("switch", "--to", "ap", str(data), "--backup", str(late))
        assert (refused.code, "was changed since" in refused.err) == (1, True), refused
    write_kv_file(kv_file, table)
    run_time.write_text(text)
    for repeated in (("--backup", str(late)), ("--backup", str(early), "--prefer", str(early))):
        assert (await run("switch", "--to", "ap", str(data), *repeated)).code == 0
    assert read_kv_file(data / "kvConfig.json") == {"N": {"k": "one"}}


async def test_a_backup_of_an_earlier_founding_is_refused_until_it_is_preferred(tmp_path: Path) -> None:
    """The cluster was founded anew with an empty disk and the same clusterId. Its revisions do not say what is newer."""
    data, old, new = tmp_path / "n1", tmp_path / "old.backup", tmp_path / "new.backup"
    async with operated(tmp_path, 1) as cluster:
        for number in range(5):
            assert (await http(cluster.admin_ports[0], f"/v1/kv/N/k{number}", "PUT", b"v")).status == 200
        assert (await run("backup", str(old), "-a", cluster.admin)).code == 0
    shutil.rmtree(data)
    async with operated(tmp_path, 1) as cluster:
        assert (await http(cluster.admin_ports[0], "/v1/kv/N/acked1", "PUT", b"v")).status == 200
        assert (await run("backup", str(new), "-a", cluster.admin)).code == 0
    refused = await run("switch", "--to", "ap", str(data), "--backup", str(old), "--dry-run")
    assert (refused.code, "is of another founding of the cluster" in refused.err) == (1, True), refused
    assert "the files disagree about key N/acked1, key N/k0" in refused.err
    for files in ((str(new),), (str(old), "--prefer", str(old))):
        done = await run("switch", "--to", "ap", str(data), "--backup", *files, "--dry-run")
        assert done.code == 0, done


async def test_a_log_that_is_older_than_the_backup_is_no_obstacle(tmp_path: Path) -> None:
    """The node was down when the others acknowledged changes and deletions."""
    data, aside, late = tmp_path / "n1", tmp_path / "earlier", tmp_path / "late.backup"
    async with operated(tmp_path, 1) as cluster:
        assert (await http(cluster.admin_ports[0], "/v1/kv/N/gone", "PUT", b"v")).status == 200
    shutil.copytree(data, aside)
    async with operated(tmp_path, 1) as cluster:
        assert (await http(cluster.admin_ports[0], "/v1/kv/N/gone", "DELETE")).status == 200
        assert (await http(cluster.admin_ports[0], "/v1/kv/N/k", "PUT", b"v")).status == 200
        assert (await run("backup", str(late), "-a", cluster.admin)).code == 0
    done = await run("switch", "--to", "ap", str(aside), "--backup", str(late))
    assert (done.code, read_kv_file(aside / "kvConfig.json")) == (0, {"N": {"k": "v"}}), done


async def test_a_backup_without_a_founding_is_compared_with_the_log(tmp_path: Path) -> None:
    data, same, other = tmp_path / "n1", tmp_path / "same", tmp_path / "other"
    async with operated(tmp_path, 1) as cluster:
        assert (await http(cluster.admin_ports[0], "/v1/kv/N/k", "PUT", b"v")).status == 200
    backup_file(same, {"k": "old", "more": "v"}, mode="cp")
    refused = await run("switch", "--to", "ap", str(data), "--backup", str(same), "--dry-run")
    assert (refused.code, "does not say which founding" in refused.err) == (1, True), refused
    state = backup_file(other, {"k": "v"}, mode="cp")
    done = await run("switch", "--to", "ap", str(data), "--backup", state, "--dry-run")
    assert done.code == 0, done


async def test_the_log_of_a_cp_node_with_values_that_no_backup_has_is_not_set_aside(tmp_path: Path) -> None:
    """The command was typed in the wrong direction, or again after the cluster had served."""
    data, early, late = tmp_path / "n1", tmp_path / "early", tmp_path / "late"
    async with operated(tmp_path, 1) as cluster:
        port = cluster.admin_ports[0]
        assert (await http(port, "/v1/kv/N/k", "PUT", b"one")).status == 200
        assert (await run("backup", str(early), "-a", cluster.admin)).code == 0
        assert (await http(port, "/v1/kv/N/k", "PUT", b"two")).status == 200
        assert (await http(port, "/v1/config", "POST", b'{"orderMessageEnable": "true"}')).status == 200
        assert (await run("backup", str(late), "-a", cluster.admin)).code == 0
    refused = await run("switch", "--to", "cp", str(data), "--backup", str(early))
    assert (refused.code, (data / "raft").is_dir()) == (1, True)
    assert "has values that no given file has: N/k, setting orderMessageEnable; give a backup of that cluster" in refused.err
    done = await run("switch", "--to", "cp", str(data), "--backup", str(late))
    assert (done.code, (data / "raft.before-cp").is_dir()) == (0, True), done


async def test_the_folder_of_a_log_is_no_data_directory(tmp_path: Path) -> None:
    file = backup_file(tmp_path / "backup", {"k": "v"}, mode="cp")
    async with operated(tmp_path, 1):
        pass
    log = tmp_path / "n1" / "raft"
    before = sorted(path.name for path in log.iterdir())
    for mode in ("ap", "cp"):
        refused = await run("switch", "--to", mode, str(log), "--backup", file)
        assert "is the log of a node; give the folder that contains it" in refused.err
        assert refused.code != 0
    assert sorted(path.name for path in log.iterdir()) == before


async def test_the_folder_of_an_independent_node_that_runs_is_refused(tmp_path: Path) -> None:
    """Otherwise entries that the node writes after the switch would be lost."""
    file, data = tmp_path / "a.backup", tmp_path / "n1"
    async with operated(tmp_path, 1, "ap") as nodes:
        assert (await http(nodes.admin_ports[0], "/v1/kv/N/k", "PUT", b"v")).status == 200
        assert (await run("backup", str(file), "-a", nodes.admin)).code == 0
        await until(lambda: is_held(data), "the mark of a folder that the node has created")
        refused = await run("switch", "--to", "cp", str(data), "--backup", str(file))
        assert (refused.code, (data / "kvConfig.json").exists()) == (1, True)
        assert f"{data} is used by a process: stop the node first" in refused.err
    async with operated(tmp_path, 1, "ap") as nodes:
        assert is_held(data), "from the start, if the folder exists"
    assert (await run("switch", "--to", "cp", str(data), "--backup", str(file))).code == 0


async def test_usage(tmp_path: Path) -> None:
    one, two = backup_file(tmp_path / "one", {}), backup_file(tmp_path / "two", {})
    for arguments, text in (
        (("--to", "ap", str(tmp_path), "--backup", one, two), "takes one file"),
        (("--to", "cp", str(tmp_path), "--backup", one, "--prefer", "three"), "name one of the files"),
        (("--to", "cp", str(tmp_path / "none"), "--backup", one), "is not a folder"),
        (("--to", "cp", str(tmp_path), "--backup", str(tmp_path / "none")), "No such file"),
    ):
        done = await run("switch", *arguments)
        assert done.code == 1, arguments
        assert text in done.err
        assert "Traceback" not in done.err


async def test_a_log_in_use_and_settings_that_no_backup_has_are_refused(tmp_path: Path) -> None:
    backup = backup_file(tmp_path / "backup", {"k": "v"})
    data = tmp_path / "data"
    (data / "raft").mkdir(parents=True)
    with (data / "raft" / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused = await run("switch", "--to", "cp", str(data), "--backup", backup)
        assert (refused.code, (data / "raft").exists()) == (1, True)
        assert "is used by a process" in refused.err
    (data / "runtime.properties").write_text("orderMessageEnable=true\n")
    refused = await run("switch", "--to", "cp", str(data), "--backup", backup)
    assert (refused.code, (data / "raft").exists()) == (1, True)
    assert "no given backup has: orderMessageEnable=true" in refused.err
