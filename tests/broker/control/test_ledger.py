"""The ledger takes slots from the store while others win, trim and sleep."""

from __future__ import annotations

import asyncio
import random

from broker.control.ledger import Ledger
from broker.control.metadata_log import SLOTS_KEPT_MS, MetadataLog
from broker.control.metadata_records import ClusterBorn, ControllerElected, Record, encode_record
from protocol.stored.slots import decode_slot
from remote.keys import slot_key
from remote.store.memory_store import MemoryStore
from remote.store.object_store import ObjectInfo
from tests.broker.at_once import AtOnce


class TrimmedBetween(MemoryStore):
    """A store that is trimmed between a reader's first look at the slots and its first look at the boundary,
    in whichever order they come."""

    def __init__(self) -> None:
        super().__init__()
        self.is_watched = False
        self._looked_at = ""

    async def get(self, key: str) -> bytes:
        await self._look("slots")
        return await super().get(key)

    async def list(self, prefix: str, *, after: str = "") -> list[ObjectInfo]:
        await self._look("boundary")
        return await super().list(prefix, after=after)

    async def _look(self, at: str) -> None:
        before, self._looked_at = self._looked_at, at
        if self.is_watched and before not in ("", at):
            self.is_watched = False
            await trim_and_put_late(self)

    def watch(self) -> None:
        self.is_watched, self._looked_at = True, ""


async def trim_and_put_late(store: MemoryStore) -> None:
    """Collect the slots up to 6; a writer that slept puts its slot 3 where the collected one had been."""
    collected = decode_slot(store.objects[slot_key(3)])
    assert await MetadataLog(store, random.Random(2), AtOnce()).trim(2 * SLOTS_KEPT_MS) == 6
    put = await MetadataLog(store, random.Random(3), AtOnce()).win(
        3,
        controller_epoch=1,
        previous_hash=collected.previous_hash,
        records=[encode_record(ClusterBorn(cluster_id="void"))],
    )
    assert put is None, "the boundary tells it"
    assert slot_key(3) in store.objects, "it did get the name"


def test_a_late_slot_below_a_boundary_that_moves_while_it_is_read_is_not_taken() -> None:
    store = TrimmedBetween()

    async def commit(ledger: Ledger, *records: Record) -> None:
        encoded = [*map(encode_record, records)]
        won = await ledger.commit(records, encoded, after=ledger.image.seq, controller_epoch=1)
        assert won is not None

    async def story() -> None:
        log = MetadataLog(store, random.Random(0), AtOnce())
        writer = Ledger(log, lambda: 0.0, AtOnce())
        reader = Ledger(MetadataLog(store, random.Random(1), AtOnce()), lambda: 0.0, AtOnce())
        await commit(writer, ClusterBorn(cluster_id="c"))
        await commit(writer, ControllerElected(controller_id=1, controller_epoch=1))
        await reader.catch_up()
        assert reader.image == writer.image
        for _ in range(4):
            await commit(writer)
        await log.write_snapshot(writer.image, last_hash=writer.last_hash, at_ms=0)
        for _ in range(4):
            await commit(writer)
        store.watch()
        await reader.catch_up()
        assert not store.is_watched, "it was trimmed meanwhile"
        assert reader.image.cluster_id == "c"
        await reader.catch_up()
        assert reader.image == writer.image
        assert reader.last_hash == writer.last_hash

    asyncio.run(story())
