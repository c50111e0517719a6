"""Finds which bit of some bytes is flipped, from the difference of two CRC-32s alone.

    crc(damaged) ^ crc(whole) = the CRC register of one bit and the zero bytes after it

The register is run backwards until a single bit is left.
"""

import zlib


def _crc_table() -> list[int]:
    """The CRC-32 register after each single byte, starting from 0: zlib's table, without the inversion at both ends."""
    return [zlib.crc32(bytes([byte]), 0xFFFFFFFF) ^ 0xFFFFFFFF for byte in range(256)]


def flipped_bit(difference: int, length: int) -> int | None:
    """The single bit of `length` bytes whose flip changes their CRC-32 by `difference`, as 8 * byte + bit; or None."""
    table = _crc_table()
    by_top_byte = {entry >> 24: byte for byte, entry in enumerate(table)}  # all top bytes differ
    single = {table[1 << bit]: bit for bit in range(8)}
    for byte in range(length - 1, -1, -1):
        if difference in single:
            return 8 * byte + single[difference]
        index = by_top_byte[difference >> 24]  # undo one zero byte
        difference = ((difference ^ table[index]) << 8 | index) & 0xFFFFFFFF
    return None
