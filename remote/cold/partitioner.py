"""Which partition of `__remote_log_metadata` speaks of which partition.

Owns: Kafka's rule: murmur2 over the four bytes of a Java hash of topic id and number. Does not own: how many
partitions there are (the image). Invariant: Kafka's own class gives the same number.
"""

from __future__ import annotations

from functools import lru_cache

from remote.cold.segments import TieredPartition

_MASK = 0xFFFFFFFF
_SIGN = 0x80000000
_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995


def metadata_partition(partition: TieredPartition, count: int) -> int:
    return _hash_of(partition) % count


@lru_cache(maxsize=4096)
def _hash_of(partition: TieredPartition) -> int:
    """Not below zero. Of each partition it is asked for at every look at its copies."""
    return _murmur2_of_int(_java_hash(partition)) & ~_SIGN


def _java_hash(partition: TieredPartition) -> int:
    """`Objects.hash` of the id's halves, low one first, and the number."""
    high, low = divmod(partition.topic_id.int, 1 << 64)
    result = 1
    for value in (_fold_long(low), _fold_long(high), partition.number & _MASK):
        result = (31 * result + value) & _MASK
    return result


def _fold_long(value: int) -> int:
    return (value ^ (value >> 32)) & _MASK


def _murmur2_of_int(value: int) -> int:
    """Kafka's murmur2 of the four bytes of `value`, big-endian; it reads them little-endian."""
    k = int.from_bytes(value.to_bytes(4, "big"), "little")
    k = k * _MULTIPLIER & _MASK
    k = (k ^ (k >> 24)) * _MULTIPLIER & _MASK
    h = (_SEED ^ 4) * _MULTIPLIER & _MASK
    h ^= k
    h = (h ^ (h >> 13)) * _MULTIPLIER & _MASK
    return h ^ (h >> 15)
