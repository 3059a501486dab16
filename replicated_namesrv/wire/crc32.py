"""CRC-32 of texts that are alike but for one part of them, without reading again what is alike.

The checksum of a text is linear in its bits: texts of which one part differs and what follows is equal have checksums that
differ by what that part's checksums differ by, moved before as many zero bytes as follow. Moving is a multiplication by
x^(8 n) modulo the polynomial (zlib's ``crc32_combine``), which a small table for each ``n`` makes eight look-ups.
"""

from functools import lru_cache
from typing import Final, NamedTuple
from zlib import crc32

_POLYNOMIAL: Final = 0xEDB88320
_ONE: Final = 1 << 31
"""x^0; a checksum has the powers in ascending order from its highest bit on."""
_TABLES_MAX: Final = 1024
"""Each has about 5 KB."""


class VariedCrc(NamedTuple):
    """The checksum of one text, from which follow those of all texts that differ from it in one part."""

    whole: int
    before: int
    """Of what precedes the part."""
    varied: int
    """Of that and the part itself."""
    bytes_after: int

    def with_part(self, part: bytes | memoryview) -> int:
        """The checksum of the text that has ``part``, of any length, in place of the part that varies."""
        bits = self.varied ^ crc32(part, self.before)
        if not bits:
            return self.whole
        crc = self.whole
        for row in _table(self.bytes_after):
            crc ^= row[bits & 15]
            bits >>= 4
        return crc


@lru_cache(_TABLES_MAX)
def _table(count: int) -> tuple[tuple[int, ...], ...]:
    """For each four bits of a checksum, lowest first, and each value of them: that, moved before ``count`` zero bytes."""
    moved = _power(count)
    of_bit = [0] * 32
    for bit in reversed(range(32)):
        of_bit[bit] = moved
        moved = _times_x(moved)
    rows = []
    for bit in range(0, 32, 4):
        row = [0]
        for one in of_bit[bit : bit + 4]:
            row += [value ^ one for value in row]
        rows.append(tuple(row))
    return tuple(rows)


def _power(count: int) -> int:
    """x^(8 ``count``)."""
    power, square = _ONE, _ONE >> 8
    while count:
        if count & 1:
            power = _product(power, square)
        square = _product(square, square)
        count >>= 1
    return power


def _product(first: int, second: int) -> int:
    """Product of two polynomials modulo the one of CRC-32."""
    product = 0
    while second:
        if second & _ONE:
            product ^= first
        second = second << 1 & 0xFFFFFFFF
        first = _times_x(first)
    return product


def _times_x(value: int) -> int:
    return value >> 1 ^ _POLYNOMIAL if value & 1 else value >> 1
