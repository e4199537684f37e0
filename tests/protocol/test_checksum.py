"""The checksum is CRC-32C, loaded without the package around it."""

from __future__ import annotations

from protocol.checksum import crc32c


def test_the_checksum_is_the_one_of_rfc_3720() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(memoryview(bytes(32))) == 0x8A9136AA
