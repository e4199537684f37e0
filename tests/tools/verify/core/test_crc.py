"""The checksum of many batches from what each says."""

from __future__ import annotations

import random

import numpy as np
from crc32c import crc32c

from tools.verify.core import crc


def test_the_sum_of_a_stretch_follows_from_the_sums_of_its_batches() -> None:
    rng = random.Random(5)
    for count in (1, 2, 400):
        parts = []
        for _ in range(count):
            body = rng.randbytes(rng.choice([40, 41, 300, 70_000, 100]))
            parts.append(rng.randbytes(17) + crc32c(body).to_bytes(4, "big") + body)
        heads = np.frombuffer(b"".join(part[:61] for part in parts), np.uint8).reshape(-1, 61)
        claimed = np.ascontiguousarray(heads[:, 17:21]).view(">u4").ravel().astype(np.uint32)
        sizes = np.array([len(part) for part in parts], np.int64)
        assert crc.of_frames(heads, claimed, sizes) == crc32c(b"".join(parts))
        assert crc.of_frames(heads, claimed ^ np.uint32(1), sizes) != crc32c(b"".join(parts))


def test_a_sum_is_moved_by_what_follows() -> None:
    for tail in (b"", b"a", b"b" * 255, b"c" * 65_537, b"d" * 9_000_000):
        assert crc.shift(crc32c(b"head"), len(tail)) ^ crc32c(tail) == crc32c(b"head" + tail)
