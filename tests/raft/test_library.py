"""The installed PySyncObj is the version for which this core was written, and only one module imports it."""

import hashlib
import inspect
import json
import re
from pathlib import Path

import pysyncobj.syncobj

from replicated_namesrv.raft import pysyncobj_core

HASHES = Path(__file__).parents[1] / "data" / "raft" / "pysyncobj_sources.json"
PACKAGE = Path(pysyncobj_core.__file__).parents[1]


def source_hashes() -> dict[str, str]:
    hashes = {}
    for name in pysyncobj_core.RELIED_UPON:
        member = inspect.getattr_static(pysyncobj.syncobj.SyncObj, name)
        function = member.fget if isinstance(member, property) else member
        assert callable(function)
        hashes[name] = hashlib.sha256(inspect.getsource(function).encode()).hexdigest()
    return hashes


def test_the_methods_relied_upon_are_the_ones_that_were_read() -> None:
    """If the source differs, the argument for correctness may not hold any more: read the difference, adapt DESIGN.md and the
    core, then renew the file."""
    assert source_hashes() == json.loads(HASHES.read_text())


def test_only_one_module_imports_pysyncobj() -> None:
    importing = re.compile(r"^\s*(from|import) pysyncobj\b", re.MULTILINE)
    found = [path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if importing.search(path.read_text())]
    assert found == ["raft/pysyncobj_core.py"]


def test_every_private_member_touched_is_listed() -> None:
    source = Path(pysyncobj_core.__file__).read_text()
    used = {"__" + name for name in re.findall(r"_SyncObj__(\w+)", source.split("NEVER_SECONDS", 1)[1])}
    used |= set(re.findall(r"self\._raft\.(_[a-z]\w+)", source)) | {"_poller"}
    listed = {name.split(".")[1] for name in pysyncobj_core.TOUCHED if name.startswith("SyncObj.")}
    assert used == listed
