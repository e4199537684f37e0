"""What a Fetch and a ListOffsets get from the tier, partition by partition.

Owns: filling in the reads of a Fetch that its log has in the tier alone, looking up times across the tier and
the local log, who is held back while the read quota is spent. Does not own: reading the tier
(remote.cold.reader), which reads are wanted (read), the wait of a request (handlers). Invariant: what is
filled in is below the bound that counted when it was asked for, and of the log that was asked; an offset that
the log still holds is never out of range; one partition's failure is its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Final

from broker.replicas.offset_lookup import LookUps, answer_of, bound_of
from broker.replicas.partition import Partition
from broker.replicas.purgatory import WAKE_PORTION, Waiter
from broker.replicas.read import RemoteWant, error_known_to
from protocol.errors import ErrorCode, KafkaError
from remote.cold.reader import RemoteReader
from remote.cold.rebuild import Rebuilder
from remote.cold.segments import TieredPartition
from storage.log import AbstractLog, LogSlice

HELD_MAX_BYTES: Final = 96 << 20
"""In memory for clients; with more no read begins until some of them have taken what they asked for."""
UNTAKEN_S: Final = 15.0
"""A client that has taken no byte for so long loses what is held for it, and its connection, while others
cannot read for it."""
HELD_S: Final = 120.0
"""One that takes a byte now and then does so too after this time: for 8 MiB that is 70 kB/s."""
_BUSY_WAIT_S: Final = 0.05
"""When to look again whether fewer reads wait."""
_LOOK_AGAIN_S: Final = 1.0
"""When to look again at the latest: the quota may have been raised."""


class TierReads:
    def __init__(
        self,
        *,
        reader: RemoteReader,
        rebuilder: Rebuilder,
        fetch_wait_s: Callable[[], float],
        list_wait_s: Callable[[], float],
        pending_max: int,
    ) -> None:
        """`fetch_wait_s` is how long a Fetch waits for the tier, `list_wait_s` a ListOffsets that says
        nothing itself; beyond `pending_max` chunks that wait to be read no Fetch begins to read."""
        self.reader = reader
        self.rebuilder = rebuilder
        """Of index objects that are lost."""
        self.fetch_wait_s = fetch_wait_s
        self.list_wait_s = list_wait_s
        self._pending_max = pending_max
        self._held_back: dict[Waiter, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.expired = 0
        """How many Fetches were answered before all they wanted from the tier was there."""
        self.expired_lists = 0
        """How many look-ups of times were given up because they took too long."""
        self.fills = 0
        self.fill_s = 0.0
        """How long these took, each by itself."""

    def __repr__(self) -> str:
        return f"<TierReads {len(self._held_back)} held back, {self.reader!r}>"

    async def start(self) -> None:
        """Take over what an earlier run left on the disk; reads do not wait for it."""
        await self.reader.start()

    # --- the quota ---

    def is_open(self) -> bool:
        """Whether another read may begin; if not, who asks is counted as held back."""
        if self.reader.quota.is_spent():
            self.reader.quota.note_throttled()
            return False
        return self.reader.waiting <= self._pending_max and self.reader.held_bytes <= HELD_MAX_BYTES

    def poke_when_open(self, waiter: Waiter) -> None:
        """Poke it once reads may begin again, unless it has ended by then."""
        self._held_back[waiter] = None
        if self._timer is None:
            self._arm()

    def _arm(self) -> None:
        wait_s = min(max(self.reader.quota.opens_in(), _BUSY_WAIT_S), _LOOK_AGAIN_S)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._poke_some)

    def _poke_some(self) -> None:
        """Poke those that wait longest, as far as the quota goes, a portion in each turn of the loop."""
        self._timer = None
        held_back = self._held_back
        if held_back and self.reader.held_bytes > HELD_MAX_BYTES:
            self.reader.copies.chunks.let_go_of(unused_s=UNTAKEN_S, held_s=HELD_S)
        for waiter in list(islice(held_back, WAKE_PORTION)):
            if not waiter.done and self.reader.quota.is_spent():
                break
            del held_back[waiter]
            if not waiter.done:
                try:
                    waiter.poke()
                except Exception as error:
                    waiter.broke(error)
        if held_back and self._timer is None:
            self._arm()

    # --- Fetch ---

    async def fill(self, want: RemoteWant, version: int) -> None:
        """Read what is wanted into its `PartitionRead`: batches, an error, or nothing."""
        begun = asyncio.get_running_loop().time()
        try:
            await self._fill(want, version)
        finally:
            self.fills += 1
            self.fill_s += asyncio.get_running_loop().time() - begun

    async def _fill(self, want: RemoteWant, version: int) -> None:
        partition, read = want.partition, want.read
        held = partition.log
        generation = held.generation
        stats = partition.stats
        stats.remote_fetch += 1
        try:
            part = await self._read(want, held)
            aborted = None
            if part is not None and want.committed:
                aborted = await self.reader.aborted(
                    _key(partition),
                    held.epochs,
                    want.offset,
                    part.next_offset,
                    local_start=lambda: held.local_log_start_offset,
                    local=held.aborted_in,
                )
        except KafkaError as failure:
            stats.failed_remote_fetch += 1
            code = failure.code
            if want.offset < held.log_start_offset:
                code = ErrorCode.offset_out_of_range  # deleted meanwhile
            read.fail(error_known_to(version, code))
            return
        if part is None or held is not partition.log or held.generation != generation:
            return  # the log was cut meanwhile: what was read may be of what was cut off
        read.part = part
        if aborted is not None:
            read.aborted = aborted
        stats.remote_fetch_bytes += part.size
        self.reader.quota.note(part.size)

    async def _read(self, want: RemoteWant, held: AbstractLog) -> LogSlice | None:
        result = await self.reader.read(
            _key(want.partition),
            held.epochs,
            want.offset,
            want.limit,
            bound=want.bound,
            min_one=want.min_one,
        )
        part: LogSlice | None = result.part
        if part is None and held.local_log_start_offset <= result.next_offset < want.bound:
            # the copies end in a gap: what comes next is local
            part = held.read(result.next_offset, want.limit, bound=want.bound, min_one=want.min_one)
        return part if part is not None and part.size else None

    # --- ListOffsets ---

    async def offset_for_timestamp(
        self, partition: Partition, timestamp: int, isolation: int | None, look_ups: LookUps
    ) -> tuple[int, int, int]:
        """Return (timestamp, offset, leader epoch) as `finding` does, over the tier and the local log."""
        held = partition.log
        start = held.log_start_offset
        while True:
            local_start = held.local_log_start_offset
            found = await self.reader.find_timestamp(
                _key(partition), held.epochs, timestamp, log_start=start, local_start=local_start
            )
            if found is not None or held.local_log_start_offset <= local_start:
                break
            start = local_start  # more of the log has gone to the tier meanwhile
        if held is not partition.log:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        if found is None:
            bound = bound_of(partition, isolation)
            found = await look_ups.run(held.finding_timestamp(timestamp, bound))
        return answer_of(partition, found, isolation)


def lies_in_tier(partition: Partition) -> bool:
    """Whether a part of the log is in the tier alone."""
    held = partition.log
    return held.log_start_offset < held.local_log_start_offset


def _key(partition: Partition) -> TieredPartition:
    return TieredPartition(partition.topic_id, partition.index)
