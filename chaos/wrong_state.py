"""A wrong state of a stopped CP node: its newest snapshot gets a KV entry that no other node has.

The checksums are right, as after a defect of memory or of the program, so the node loads the snapshot. No client of a run reads
the entry. So only the comparison of digests between nodes can find it.

A snapshot file has a header and blocks. A block has its length, its checksum and its data; the last one has the length 0 and the
checksum of the whole file. The data are metadata and lines of JSON, of which the last one has the number of lines before it.
"""

import json
import struct
from pathlib import Path
from zlib import crc32

from replicated_namesrv.child_process import ProcessError
from replicated_namesrv.files import write_atomically

HEADER_BYTES, BLOCK = 12, struct.Struct("<II")
NAMESPACE, KEY = "wrong-state", "key"
LINES = (["namespace", NAMESPACE], ["kv", NAMESPACE, [[KEY, "value"]]])
END = b'["end",'


def snapshots(data_dir: Path) -> list[Path]:
    """The complete snapshots in a data directory, oldest first."""
    return sorted(data_dir.glob("raft/snapshot-*"))


def alter(data_dir: Path) -> None:
    """Alter the newest snapshot. The node must not run. Raises ProcessError if there is none, or if its format is unknown."""
    try:
        path = snapshots(data_dir)[-1]
        write_atomically(path, altered(path.read_bytes()))
    except (IndexError, ValueError, struct.error) as cause:
        raise ProcessError(f"{data_dir} has no snapshot that can be altered ({cause})") from cause


def altered(snapshot: bytes) -> bytes:
    """``snapshot`` with one more KV entry. Raises ValueError and struct.error for an unknown format."""
    blocks, offset = [], HEADER_BYTES
    while (length := BLOCK.unpack_from(snapshot, offset)[0]) > 0:
        offset += BLOCK.size
        blocks.append(snapshot[offset : offset + length])
        offset += length
    place = blocks[-1].rindex(END)
    _, count = json.loads(blocks[-1][place:])
    lines = [*LINES, ["end", count + len(LINES)]]
    blocks[-1] = blocks[-1][:place] + b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)
    whole = snapshot[:HEADER_BYTES] + b"".join(BLOCK.pack(len(block), crc32(block)) + block for block in blocks)
    return whole + BLOCK.pack(0, crc32(whole))
