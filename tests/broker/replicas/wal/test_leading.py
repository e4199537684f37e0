"""What a leader stores of its partitions, through changes of roles and configurations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import pytest

from broker.config.values import ResourceType
from broker.control.metadata_records import ConfigChanged
from protocol.records import iter_batches, iter_records
from remote.keys import WAL, WalPart, parse_wal_key
from remote.wal.combined_object import (
    Row,
    check_slice,
    decode_table,
)
from tests.broker.replication_driver import Replicas

ENABLE = {"remote_wal_storage_enable": "true"}


def run(main: Callable[[Replicas], Awaitable[None]], count: int = 3, **properties: str) -> None:
    Replicas(count, **properties).run(main)


def configure(world: Replicas, name: str, value: str | None, topic: str = "t") -> None:
    world.controller.publish(
        ConfigChanged(resource_type=ResourceType.TOPIC, resource_name=topic, name=name, value=value)
    )


def slices(world: Replicas, node_id: int, topic: str = "t") -> Iterator[tuple[Row, bytes]]:
    """Every slice of the topic in the streams of a broker, in the order of their places."""
    for key, data in sorted(world.store.objects.items()):
        name = parse_wal_key(key) if key.startswith(WAL) else None
        if name is None or name.part is not WalPart.OBJECT or name.stream.node_id != node_id:
            continue
        table = decode_table(data)
        assert table.head.place == (name.stream, name.seq)
        for row in table.rows:
            if row.topic_id == world.id_of(topic):
                body = data[row.position : row.position + row.size]
                check_slice(row, body)
                yield row, body


def stored(world: Replicas, node_id: int, topic: str = "t") -> list[bytes | None]:
    """The values that the store has of the topic, each slice beginning where the one before it ends."""
    values: list[bytes | None] = []
    end = -1
    for row, body in slices(world, node_id, topic):
        assert end in (-1, row.start), (end, row)
        end = row.end
        values += [each.value for at, header in iter_batches(body) for each in iter_records(body, at, header)]
    return values


async def until_stored(world: Replicas, node_id: int, topic: str = "t") -> None:
    partition = world.nodes[node_id].partition(topic=topic)
    await world.until(
        lambda: partition.tail is not None and partition.tail.stored_to == partition.log.log_end_offset
    )


@pytest.mark.requirement("1176-16", "1176-19", "1176-43")
def test_what_is_appended_is_stored_within_the_interval_and_followers_are_pointed_to_it() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, **ENABLE)
        await world.append(1, b"a", b"b", acks=1)
        await until_stored(world, 1)
        await world.append(1, b"c", acks=1)
        await until_stored(world, 1)
        assert stored(world, 1) == [b"a", b"b", b"c"]
        tail = world.nodes[1].partition().tail
        assert tail is not None
        assert [(each.start, each.end) for each in tail.extents] == [(0, 2), (2, 3)]
        assert world.nodes[1].partition().stored_to == 3

    run(main, 2)
