"""How long the right to go on with an upload lasts, and what may come of it afterwards."""

from __future__ import annotations

import asyncio
import random

import pytest

from protocol.errors import ErrorCode, KafkaError
from remote.cold.claim import ARRIVES_S, CONFIRMED_S, LATE_UPLOAD_S, TRIED_S, Claim
from remote.cold.events import updated
from remote.cold.segments import RemoteSegment, SegmentState
from remote.store.memory_store import MemoryStore
from remote.store.metered import StoreStats
from remote.store.object_store import StoreError
from remote.store.stores import harden
from remote.store.upload import PART_BYTES, put_from
from tests.remote.cold.segment_samples import Copy
from tests.remote.cold.stage import Agreed
from tests.sim.loop import SimLoop

STARTED = SegmentState.COPY_STARTED


def claim_of(segment: RemoteSegment, agreed: Agreed) -> Claim:
    time = asyncio.get_running_loop().time
    return Claim(segment, leader_epoch=0, metadata=agreed, clock=time)


def others_delete(segment: RemoteSegment, agreed: Agreed) -> None:
    agreed.leader_epoch = 1
    agreed.known.apply(updated(segment, SegmentState.DELETE_STARTED, broker_id=2, now_ms=0))


class _AwayStore(MemoryStore):
    """Does nothing until each request is given up; remembers when that was."""

    def __init__(self, hangs_s: float) -> None:
        super().__init__()
        self.last_s = 0.0
        self._hangs_s = hangs_s

    async def put(self, key: str, data: object) -> None:
        try:
            await asyncio.sleep(self._hangs_s)
            raise StoreError("503")
        finally:
            self.last_s = asyncio.get_running_loop().time()


@pytest.mark.parametrize("hangs_s", [0.1, 9.0, 600.0])
@pytest.mark.parametrize("size", [10, PART_BYTES])
def test_no_put_is_tried_as_late_as_its_object_is_deleted_for_the_second_time(
    hangs_s: float, size: int
) -> None:
    async def main() -> None:
        time = asyncio.get_running_loop().time
        segment, agreed, away = Copy().segment, Agreed(), _AwayStore(hangs_s)
        store = harden(away, stats=StoreStats(), rng=random.Random(1))
        claim = claim_of(segment, agreed)

        async def read(start: int, end: int) -> bytes:
            await claim.hold()
            return bytes(end - start)

        await claim.begin()
        others_delete(segment, agreed)
        deleted_s = time()
        with pytest.raises(KafkaError) as caught:
            await put_from(store, "k", size, read)
        assert caught.value.code is ErrorCode.fenced_leader_epoch
        assert 0 < away.last_s - deleted_s <= CONFIRMED_S + TRIED_S <= LATE_UPLOAD_S - ARRIVES_S

    SimLoop().run(main())


def test_a_claim_is_confirmed_only_when_it_is_old_and_once_for_all_who_ask() -> None:
    async def main() -> None:
        agreed = Agreed()
        claim = claim_of(Copy().segment, agreed)
        await claim.begin()
        await asyncio.sleep(CONFIRMED_S - 0.1)
        await claim.hold()
        assert agreed.states() == [STARTED]
        await asyncio.sleep(0.1)
        await asyncio.gather(*(claim.hold() for _ in range(3)))
        assert agreed.states() == [STARTED] * 2

    SimLoop().run(main())


def test_a_confirmation_that_took_too_long_is_none() -> None:
    async def main() -> None:
        agreed = Agreed()
        claim = claim_of(Copy().segment, agreed)
        waits = iter([CONFIRMED_S + 1, 1])
        await claim.begin()
        agreed.before = lambda event: asyncio.sleep(next(waits))
        await asyncio.sleep(CONFIRMED_S)
        await claim.hold()
        assert agreed.states() == [STARTED] * 3

    SimLoop().run(main())
