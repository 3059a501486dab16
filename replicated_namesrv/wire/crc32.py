"""CRC-32 of texts that differ in one part only, without reading the equal parts again.

Checksums are linear. Let two texts differ in one part only. Take the checksums of both texts up to the end of this part, and
shift their XOR by as many zero bytes as the texts have after the part. The result is the XOR of the checksums of the whole texts.
A shift is a multiplication by x^(8 n) modulo the polynomial (zlib's ``crc32_combine``); a small table for each ``n`` makes it
eight look-ups.
"""

from functools import lru_cache
from typing import Final, NamedTuple
from zlib import crc32

_POLYNOMIAL: Final = 0xEDB88320
_ONE: Final = 1 << 31
"""x^0. The bits of a checksum are the coefficients of ascending powers of x; the highest bit is that of x^0."""
_TABLES_MAX: Final = 1024
"""Maximum number of cached tables; each takes about 5 KB."""


class VariedCrc(NamedTuple):
    """The checksum of a text, from which the checksums of texts that differ in one part are computed."""

    whole: int
    before: int
    """Checksum of the bytes before the variable part."""
    varied: int
    """Checksum of the bytes before the variable part and of the part itself."""
    bytes_after: int

    def with_part(self, part: bytes | memoryview) -> int:
        """The checksum of the text with ``part``, of any length, in place of the variable part."""
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
    """For each four bits of a checksum, lowest first, and each of their values: the value shifted by ``count`` zero bytes."""
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
