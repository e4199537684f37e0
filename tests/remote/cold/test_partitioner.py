"""Where Kafka's own class puts partitions."""

from __future__ import annotations

import pytest

from protocol.ids import decode_id
from remote.cold.partitioner import metadata_partition
from remote.cold.segments import TieredPartition


@pytest.mark.parametrize(
    ("topic_id", "number", "of_7", "of_50"),
    [
        ("8YyzoWtrSdOeHx4D8a3TXA", 0, 5, 24),
        ("8YyzoWtrSdOeHx4D8a3TXA", 1, 6, 19),
        ("8YyzoWtrSdOeHx4D8a3TXA", 7, 2, 33),
        ("IOnxC5_dTdKZgdVG_RQ-MA", 0, 1, 34),
        ("IOnxC5_dTdKZgdVG_RQ-MA", 1, 3, 15),
        ("IOnxC5_dTdKZgdVG_RQ-MA", 7, 2, 16),
        ("AAAAAAAAAAAAAAAAAAAAAQ", 0, 0, 35),
        ("AAAAAAAAAAAAAAAAAAAAAQ", 1, 1, 6),
        ("AAAAAAAAAAAAAAAAAAAAAQ", 7, 2, 46),
    ],
)
def test_partitions_are_kafkas(topic_id: str, number: int, of_7: int, of_50: int) -> None:
    partition = TieredPartition(decode_id(topic_id), number)
    assert metadata_partition(partition, 7) == of_7
    assert metadata_partition(partition, 50) == of_50
