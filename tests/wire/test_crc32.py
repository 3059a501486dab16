"""A checksum that follows from another text's is the one that zlib computes."""

from zlib import crc32

from hypothesis import given
from hypothesis import strategies as st

from replicated_namesrv.wire.crc32 import VariedCrc

PARTS = st.binary(max_size=40)


@given(PARTS, st.lists(PARTS, min_size=2, max_size=2), PARTS, st.integers(0, 70_000))
def test_it_is_the_checksum_of_the_other_text(before: bytes, varied: list[bytes], after: bytes, zeros: int) -> None:
    after += bytes(zeros)
    first, second = varied
    known = VariedCrc(crc32(before + first + after), crc32(before), crc32(before + first), len(after))
    assert known.with_part(first) == known.whole
    assert known.with_part(memoryview(second)) == crc32(before + second + after)
