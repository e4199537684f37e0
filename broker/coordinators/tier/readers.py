"""Reads the metadata topic from the brokers that lead its partitions, as a consumer does.

Owns: one task for each such broker, while there is anything to read from it, what it asks for, and folding
the answers into views in slices. Does not own: what a fold means (view), which partitions are needed and who
leads them (metadata tells), connections (channel).

Invariants: a view takes rows only from the leader and in the epoch that the image names, in the order of
their offsets and only committed ones; where what was read is not what the leader has, it is read anew from
the start. At most one answer of `FETCH_BYTES` is held for each broker; an error of one partition delays that
one alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from broker.control.image import Image
from broker.coordinators.pace import Pace
from broker.coordinators.tier.machine import TOPIC, changed_partition
from broker.coordinators.tier.view import View
from broker.net.channel import Channel, PeerLost
from protocol import records as batches
from protocol.apis import Api
from protocol.codec import Fields
from protocol.errors import CorruptBatch, ErrorCode, error_code
from protocol.stored.schema import BadRecord
from remote.cold.events import decode_event

logger = logging.getLogger(__name__)

PURPOSE: Final = "tier-fetch"
FETCH_VERSION: Final = 13
LIST_OFFSETS_VERSION: Final = 7
FETCH_BYTES: Final = 1 << 20
PARTITION_BYTES: Final = 256 << 10
FETCH_WAIT_MS: Final = 500
ANSWER_S: Final = 5.0
"""Beyond the wait that the request itself asks for."""
TOMBSTONES_KEPT_MIN_S: Final = 600.0
"""Taken for granted, or a reader would do nothing but begin anew where they are kept for a moment."""
RETRY_S: Final = 0.2
RETRY_MAX_S: Final = 2.0
_LATEST: Final = -1
_EARLIEST: Final = -2


class PeerChannels(Protocol):
    def to(self, node_id: int, purpose: str) -> Channel: ...


class Readers:
    def __init__(
        self,
        *,
        channels: PeerChannels,
        image: Callable[[], Image],
        tombstones_kept_s: Callable[[], float],
    ) -> None:
        """`tombstones_kept_s`: how long the topic keeps a deletion at least. Who was away for longer may have
        missed one."""
        self.channels = channels
        self.image = image
        self.tombstones_kept_s = tombstones_kept_s
        self._readers: dict[int, _Reader] = {}
        self._tasks: asyncio.TaskGroup | None = None

    def __repr__(self) -> str:
        return f"<Readers {list(self._readers.values())}>"

    def start(self, task_group: asyncio.TaskGroup) -> None:
        self._tasks = task_group

    def stop(self) -> None:
        self._tasks = None
        for reader in self._readers.values():
            reader.stop()
        self._readers.clear()

    def assign(self, wanted: Mapping[int, tuple[View, int]]) -> None:
        """Read these views, by partition, each from the broker named with it, and no others."""
        if self._tasks is None:
            return
        by_leader: dict[int, dict[int, View]] = {}
        for index, (view, leader) in wanted.items():
            by_leader.setdefault(leader, {})[index] = view
        for leader, views in by_leader.items():
            reader = self._readers.get(leader)
            if reader is None:
                reader = self._readers[leader] = _Reader(self, leader)
                reader.task = self._tasks.create_task(reader.run(), name=f"tier metadata of node {leader}")
            reader.take(views)
        for leader in self._readers.keys() - by_leader.keys():
            self._readers[leader].take({})

    def ended(self, reader: _Reader) -> None:
        if self._readers.get(reader.leader) is reader:
            del self._readers[reader.leader]


class _Reader:
    """All views that are read from one broker."""

    def __init__(self, owner: Readers, leader: int) -> None:
        self.leader = leader
        self.views: dict[int, View] = {}
        self.task: asyncio.Task[None]
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._waits_until: dict[int, float] = {}
        self._has_news = asyncio.Event()
        self._lost: str | None = None
        """Why the broker could not be asked; logged when that begins."""

    def __repr__(self) -> str:
        return f"<reader of node {self.leader}: partitions {sorted(self.views)}>"

    def take(self, views: dict[int, View]) -> None:
        """Read these from now on; what waits after an error is tried at once."""
        self.views = views
        self._waits_until.clear()
        self._has_news.set()

    def stop(self) -> None:
        self.task.cancel()

    async def run(self) -> None:
        pause_s = RETRY_S
        while self.views:
            try:
                await self._round()
            except PeerLost as lost:
                if self._lost is None:
                    logger.warning("the cold tier's metadata cannot be read for now: %s", lost)
                self._lost = str(lost)
                await self._wait_for_news(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)
            else:
                if self._lost is not None:
                    logger.info("the cold tier's metadata can be read from node %d again", self.leader)
                self._lost = None
                pause_s = RETRY_S
        self._owner.ended(self)

    async def _round(self) -> None:
        self._has_news.clear()
        now_s = self._loop.time()
        ready = [view for index, view in self.views.items() if self._waits_until.get(index, 0.0) <= now_s]
        if not ready:
            await self._wait_for_news(max(min(self._waits_until.values()) - now_s, 0.0))
            return
        for view in ready:
            kept_s = max(self._owner.tombstones_kept_s(), TOMBSTONES_KEPT_MIN_S)
            is_stale = now_s - view.at_end_s > kept_s / 2
            if view.position > 0 and is_stale:
                logger.warning(
                    "%s-%d was not read for so long that deletions may be gone from it: it is read anew",
                    TOPIC,
                    view.index,
                )
                view.needs_start = True
                view.at_end_s = now_s
        lost = [view for view in ready if view.needs_start]
        if lost:
            await self._start_over(lost)
        wanting = [view for view in ready if view.wants_end]
        if wanting:
            await self._ask_ends(wanting)
        asked = [view for view in ready if not view.needs_start and self._is_here(view)]
        if asked:
            await self._fetch(asked)

    def _is_here(self, view: View) -> bool:
        return self.views.get(view.index) is view

    async def _wait_for_news(self, most_s: float) -> None:
        try:
            async with asyncio.timeout(most_s):
                await self._has_news.wait()
        except TimeoutError:
            return

    def _delay(self, view: View, code: ErrorCode) -> None:
        logger.debug("%s-%d: node %d answers %s", TOPIC, view.index, self.leader, code.name)
        self._waits_until[view.index] = self._loop.time() + RETRY_S

    def _leader_epoch(self, view: View) -> int:
        partition = self._owner.image().partition(TOPIC, view.index)
        return -1 if partition is None else partition.leader_epoch

    # --- where the log begins and ends ---

    async def _start_over(self, views: Iterable[View]) -> None:
        for view, start in (await self._list_offsets(views, _EARLIEST)).items():
            if isinstance(start, ErrorCode):
                self._delay(view, start)
            else:
                logger.warning("%s-%d is read anew from offset %d", TOPIC, view.index, start)
                view.start_over(start)

    async def _ask_ends(self, views: list[View]) -> None:
        for view in views:
            view.ask()
        for view, end in (await self._list_offsets(views, _LATEST)).items():
            if isinstance(end, ErrorCode):
                self._delay(view, end)
            else:
                view.named(end)

    async def _list_offsets(self, views: Iterable[View], timestamp: int) -> dict[View, int | ErrorCode]:
        """Ask as a consumer: the end is what is committed, and a leader that does not know that yet says
        so."""
        generations = {view.index: (view, view.generation) for view in views}
        rows = [
            {
                "partition_index": view.index,
                "current_leader_epoch": self._leader_epoch(view),
                "timestamp": timestamp,
            }
            for view, _ in generations.values()
        ]
        fields: Fields = {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [{"name": TOPIC, "partitions": rows}],
        }
        channel = self._owner.channels.to(self.leader, PURPOSE)
        response: Any = await channel.ask(Api.LIST_OFFSETS, LIST_OFFSETS_VERSION, fields, timeout_s=ANSWER_S)
        found: dict[View, int | ErrorCode] = {}
        for topic in response.topics:
            for each in topic.partitions:
                view, generation = generations.get(each.partition_index, (None, -1))
                if view is not None and view.generation == generation and self._is_here(view):
                    code = error_code(int(each.error_code))
                    found[view] = each.offset if code is ErrorCode.none else code
        return found

    # --- rows ---

    async def _fetch(self, views: list[View]) -> None:
        topic = self._owner.image().topics.get(TOPIC)
        if topic is None:
            await self._wait_for_news(RETRY_S)
            return
        generations = {view.index: (view, view.generation) for view in views}
        is_urgent = any(view.wants_end or view.is_unproven for view in views)
        fields: Fields = {
            "replica_id": -1,
            "max_wait": 0 if is_urgent else FETCH_WAIT_MS,
            "min_bytes": 1,
            "max_bytes": FETCH_BYTES,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [
                {
                    "topic": TOPIC,
                    "topic_id": topic.id,
                    "partitions": [
                        {
                            "partition": view.index,
                            "current_leader_epoch": self._leader_epoch(view),
                            "fetch_offset": view.position,
                            "last_fetched_epoch": view.last_epoch,
                            "log_start_offset": -1,
                            "partition_max_bytes": PARTITION_BYTES,
                        }
                        for view in views
                    ],
                }
            ],
            "forgotten_topics_data": [],
            "rack_id": "",
        }
        channel = self._owner.channels.to(self.leader, PURPOSE)
        timeout_s = FETCH_WAIT_MS / 1000 + ANSWER_S
        response: Any = await channel.ask(Api.FETCH, FETCH_VERSION, fields, timeout_s=timeout_s)
        code = error_code(int(response.error_code))
        if code is not ErrorCode.none:
            raise PeerLost(f"node {self.leader} answers a Fetch with {code.name}")
        for row in response.responses:
            for fetched in row.partitions:
                view, generation = generations.get(fetched.partition_index, (None, -1))
                if view is not None and view.generation == generation and self._is_here(view):
                    await self._take(view, fetched)

    async def _take(self, view: View, fetched: Any) -> None:
        code = error_code(int(fetched.error_code))
        generation = view.generation
        if code is ErrorCode.offset_out_of_range:
            view.needs_start = True
        elif code is not ErrorCode.none:
            self._delay(view, code)
        elif fetched.diverging_epoch.end_offset >= 0:
            view.needs_start = True
        else:
            try:
                await self._fold(view, fetched.records)
            except CorruptBatch as error:
                logger.error("%s-%d: node %d sent a damaged batch: %s", TOPIC, view.index, self.leader, error)
                self._delay(view, ErrorCode.corrupt_message)
                return
            if view.generation == generation:
                view.agreed()
                if view.position >= fetched.high_watermark:
                    view.at_end_s = self._loop.time()

    async def _fold(self, view: View, records: memoryview | None) -> None:
        """Apply the rows in slices; stop when the view is to be read from elsewhere meanwhile."""
        if records is None:
            return
        generation = view.generation
        pace = Pace(self._loop)
        for at, header in batches.iter_batches(records):
            if header.next_offset <= view.position:
                continue
            if not header.is_control:
                for row in batches.iter_records(records, at, header):
                    if row.offset >= view.position:
                        self._apply(view, row)
                    await pace.yield_if_due()
                    if view.generation != generation:
                        return
            view.read_to(header.next_offset, header.leader_epoch)

    def _apply(self, view: View, row: batches.Record) -> None:
        try:
            change = decode_event(row.key, row.value)
        except BadRecord as error:
            logger.error("%s-%d: ignored the record at offset %d: %s", TOPIC, view.index, row.offset, error)
            return
        view.take(change, changed_partition(change))
