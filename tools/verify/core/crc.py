"""CRC-32C of many pieces at once.

Owns the sum over a stretch of batches that follows from what each of them says about itself, as columns.
Does not own what a batch is made of (batches). Invariant: `of_frames` is the CRC of the stretch's bytes if
every batch keeps its own CRC; a single batch that does not always changes it.

A call into C for each batch of a kilobyte costs more than reading it. So the whole stretch is summed in one
call, and compared with the sum that must come out: crc(AB) = shift(crc(A), len(B)) ^ crc(B), where `shift` is
linear, hence a few look-ups in tables for all batches together.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

Column = npt.NDArray[Any]

HEAD: Final = 21
"""The bytes of a batch before those that its CRC covers; the CRC is the last four of them."""

_POLYNOMIAL: Final = 0x82F63B78
_PAIRS: Final = HEAD // 2


class _Tables(NamedTuple):
    shift: tuple[Column, ...]
    """For each byte of the length, lowest first, flat: [byte of the length][byte of the sum, lowest first]
    [its value]."""
    pairs: Column
    """Flat: what each two bytes of a head add to its sum, [place][value as little-endian u16]."""
    last: Column
    """The same for the byte that is left over."""
    zeros: int
    """The sum of a head of zeros."""
    past_head: tuple[Column, Column]
    """What each half of a sum becomes with a head of zeros behind, lower half first."""


@cache
def _tables() -> _Tables:
    byte = np.arange(256, dtype=np.uint32)
    one: Column = byte.copy()
    for _ in range(8):
        one = (one >> 1) ^ np.where(one & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    identity = np.stack([byte << np.uint32(8 * at) for at in range(4)])
    step = np.stack([one, *identity[:3]])
    levels = []
    for _ in range(3):
        level = np.empty((256, 4, 256), np.uint32)
        now = identity
        for times in range(256):
            level[times] = now
            now = _apply(step, now)
        levels.append(level)
        step = now
    small = levels[0]
    places = [_apply(small[HEAD - 1 - at], one) for at in range(HEAD)]
    pairs = np.stack(
        [(places[2 * at + 1][:, None] ^ places[2 * at][None, :]).ravel() for at in range(_PAIRS)]
    )
    past = small[HEAD]
    halves = [(past[at + 1][:, None] ^ past[at][None, :]).ravel() for at in (0, 2)]
    return _Tables(
        tuple(level.ravel() for level in levels),
        pairs.ravel(),
        places[-1],
        crc32c(bytes(HEAD)),
        (halves[0], halves[1]),
    )


def prepare() -> None:
    """Make the tables now, for processes that are forked from this one."""
    _tables()


def _apply(step: Column, values: Column) -> Column:
    out: Column = step[0][values & 255]
    for at in range(1, 4):
        out = out ^ step[at][values >> np.uint32(8 * at) & np.uint32(255)]
    return out


def shift(crc: int, length: int) -> int:
    """The sum `crc` with `length` more bytes behind, but for what they add themselves."""
    tables = _tables().shift
    for level in range(3):
        table, at = tables[level], (length >> 8 * level & 255) << 10
        crc = int(
            table[at + (crc & 255)]
            ^ table[at + 256 + (crc >> 8 & 255)]
            ^ table[at + 512 + (crc >> 16 & 255)]
            ^ table[at + 768 + (crc >> 24)]
        )
    return crc


def _shifted_together(crcs: Column, lengths: Column) -> int:
    """The sum over all of what each becomes with so many more bytes behind; the lengths descend."""
    low, middle, high = _tables().shift
    crcs = _looked_up(low, lengths & 255, crcs)
    if lengths[0] < 256:
        return int(np.bitwise_xor.reduce(crcs))
    crcs = _looked_up(middle, lengths >> 8 & 255, crcs)
    if lengths[0] < 1 << 16:
        return int(np.bitwise_xor.reduce(crcs))
    top = lengths >> 16
    starts = np.concatenate(([0], np.flatnonzero(top[1:] != top[:-1]) + 1))
    return int(np.bitwise_xor.reduce(_looked_up(high, top[starts], np.bitwise_xor.reduceat(crcs, starts))))


def _looked_up(table: Column, lengths: Column, crcs: Column) -> Column:
    at = lengths << 10
    parts = crcs.view(np.uint8).reshape(-1, 4)
    found: Column = table[at + parts[:, 0]]
    found ^= table[at + 256 + parts[:, 1]]
    found ^= table[at + 512 + parts[:, 2]]
    found ^= table[at + 768 + parts[:, 3]]
    return found


def _heads(heads: Column) -> Column:
    """The sum of each row of 21 bytes."""
    tables = _tables()
    pairs = np.ascontiguousarray(heads[:, : 2 * _PAIRS]).view("<u2")
    out: Column = tables.last[heads[:, HEAD - 1]] ^ np.uint32(tables.zeros)
    for at in range(_PAIRS):
        column = pairs[:, at]
        out ^= tables.pairs[(at << 16) : (at + 1) << 16][column]
    return out


def of_frames(heads: Column, crcs: Column, sizes: Column) -> int:
    """The sum of batches that lie one behind the other, less than 16 MiB together.

    `heads`: rows of their first bytes, at least 21. `crcs`: what each says, u32. `sizes`: with head, i64.
    What a batch says of its own bytes is moved behind the head of the next, so that both are shifted as one.
    """
    tables = _tables()
    values = _heads(heads)
    halves = crcs.view("<u2").reshape(-1, 2)
    values[1:] ^= tables.past_head[0][halves[:-1, 0]]
    values[1:] ^= tables.past_head[1][halves[:-1, 1]]
    after = np.cumsum(sizes[::-1])[::-1]
    return _shifted_together(values, after - HEAD) ^ int(crcs[-1])
