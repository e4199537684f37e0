"""Telling every partition of a transaction how it ended.

Owns: which broker is told of which partitions, several transactions to one broker in one request, the pauses
between attempts, and what an answer means. Does not own: markers in this broker's own logs (`marker_writer`),
which transaction ends how, nor the record that it is over (`coordinator`).
Invariant: a partition counts as told once its leader has the marker on all replicas in sync, has a newer one
of the producer, or no longer exists; one request at a time is under way to each broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol

from broker.control.image import Image
from broker.coordinators.transactions.marker_writer import Marker, Markers
from broker.net.channel import Channel, PeerLost
from protocol.apis import Api
from protocol.codec import Fields
from protocol.errors import ErrorCode, KafkaError
from protocol.work import Work, finish

logger = logging.getLogger(__name__)

PURPOSE: Final = "transaction markers"
_VERSION: Final = 2
PAUSE_S: Final = 0.02
PAUSE_MAX_S: Final = 1.0
MARKERS_AT_ONCE: Final = 256
"""In one request."""
ROWS_AT_ONCE: Final = 4_000
"""In one request, of markers, topics and partitions: less than any broker refuses (request.rows.max)."""
_PARTITIONS_PER_STEP: Final = 64

_TOLD: Final = frozenset(
    {
        ErrorCode.none,
        # Its log has this marker already, whose answer was lost, or a newer one.
        ErrorCode.invalid_producer_epoch,
        # Nothing transactional was ever written there.
        ErrorCode.unsupported_for_message_format,
        ErrorCode.unsupported_version,
    }
)

Answers = Mapping[tuple[str, int], ErrorCode]


class Peers(Protocol):
    """The channels to the other brokers."""

    def to(self, node_id: int, purpose: str) -> Channel: ...


class _Asked(NamedTuple):
    marker: Marker
    rows: int
    """Of the request, at most."""
    answer: asyncio.Future[Answers]


class _Led:
    """Partitions of one marker that one broker leads, in pieces that fit in a request each."""

    __slots__ = ("_rows", "_topic", "pieces")

    def __init__(self) -> None:
        self.pieces: list[list[tuple[str, int]]] = []
        self._rows = ROWS_AT_ONCE
        self._topic = ""

    def add(self, topic: str, index: int) -> None:
        more = 1 if topic == self._topic else 2
        if self._rows + more > ROWS_AT_ONCE:
            self.pieces.append([])
            self._rows = 1
            more = 2
        self.pieces[-1].append((topic, index))
        self._rows += more
        self._topic = topic


class MarkerSender:
    def __init__(
        self,
        *,
        node_id: int,
        image: Callable[[], Image],
        peers: Peers,
        local: Markers,
        run: Callable[[Work[Any]], Coroutine[Any, Any, Any]],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        timeout_s: float,
    ) -> None:
        """`run` does work in turns; a request is answered within `timeout_s`, or sent again."""
        self._node_id = node_id
        self._image = image
        self._peers = peers
        self._local = local
        self._run = run
        self._spawn = spawn
        self._timeout_s = timeout_s
        self.retried = 0
        """How many partitions were told again, because they could not be told at first."""
        self._queues: dict[int, deque[_Asked]] = {}
        """What each broker is to be told; a task empties the queue as long as there is one."""

    def __repr__(self) -> str:
        return f"<MarkerSender {self.queued} queued>"

    @property
    def queued(self) -> int:
        return sum(map(len, self._queues.values()))

    async def tell(self, marker: Marker, is_wanted: Callable[[], bool]) -> bool:
        """Return True when all partitions are told, False when it is no longer wanted or another broker
        coordinates the transaction now."""
        left = marker.partitions
        pause_s = PAUSE_S
        while True:
            answers = await self._attempt(marker, left)
            if ErrorCode.transaction_coordinator_fenced in answers.values():
                logger.info(
                    "markers of producer %d are not sent: its transactions have another coordinator",
                    marker.producer_id,
                )
                return False
            left = tuple(each for each in left if answers.get(each) not in _TOLD)
            if not left:
                return True
            if not is_wanted():
                return False
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
            if not is_wanted():
                return False
            self.retried += len(left)

    async def _attempt(self, marker: Marker, partitions: Sequence[tuple[str, int]]) -> Answers:
        """Return what is known of each partition after one attempt; nothing of one without a leader."""
        work = self._by_leader(partitions)
        is_short = len(partitions) < _PARTITIONS_PER_STEP
        by_leader, answers = finish(work) if is_short else await self._run(work)
        asked = [
            self._ask(
                node_id,
                marker if len(some) == len(marker.partitions) else replace(marker, partitions=tuple(some)),
            )
            for node_id, led in by_leader.items()
            for some in led.pieces
        ]
        if len(asked) == 1:
            answers.update(await asked[0])
        else:
            for answered in await asyncio.gather(*asked):
                answers.update(answered)
        found: Answers = answers
        return found

    def _by_leader(
        self, partitions: Sequence[tuple[str, int]]
    ) -> Work[tuple[dict[int, _Led], dict[tuple[str, int], ErrorCode]]]:
        image = self._image()
        by_leader: dict[int, _Led] = {}
        answers: dict[tuple[str, int], ErrorCode] = {}
        for at, (topic, index) in enumerate(partitions, 1):
            found = image.partition(topic, index)
            if found is None:
                answers[topic, index] = ErrorCode.none  # deleted, and its transactions with it
            elif found.leader >= 0:
                led = by_leader.get(found.leader)
                if led is None:
                    led = by_leader[found.leader] = _Led()
                led.add(topic, index)
            if at % _PARTITIONS_PER_STEP == 0:
                yield
        return by_leader, answers

    async def _ask(self, node_id: int, marker: Marker) -> Answers:
        if node_id == self._node_id:
            try:
                return await self._local.write(marker)
            except KafkaError as error:
                return dict.fromkeys(marker.partitions, error.code)
        queue = self._queues.get(node_id)
        if queue is None:
            queue = self._queues[node_id] = deque()
            self._spawn(self._empty(node_id, queue))
        rows = 1 + 2 * len(marker.partitions)
        asked = _Asked(marker, rows, asyncio.get_running_loop().create_future())
        queue.append(asked)
        return await asked.answer

    # --- other brokers ---

    async def _empty(self, node_id: int, queue: deque[_Asked]) -> None:
        """Send what is queued, in requests one after the other, until there is nothing more."""
        taken: list[_Asked] = []
        try:
            while queue:
                taken = _taken(queue)
                answers = await self._exchange(node_id, [asked.marker for asked in taken])
                if answers is None:
                    # Others may lead their partitions by now, and each attempt may take as long as this one.
                    taken += queue
                    queue.clear()
                    answers = {}
                for asked in taken:
                    if not asked.answer.done():
                        asked.answer.set_result(answers.get(asked.marker.producer_id, {}))
        finally:
            del self._queues[node_id]
            for asked in (*taken, *queue):
                asked.answer.cancel()

    async def _exchange(self, node_id: int, markers: list[Marker]) -> dict[int, Answers] | None:
        """Return the answers by producer id; None when the broker cannot be asked."""
        fields = await self._run(_request(markers))
        try:
            channel = self._peers.to(node_id, PURPOSE)
            response = await channel.ask(Api.WRITE_TXN_MARKERS, _VERSION, fields, timeout_s=self._timeout_s)
        except PeerLost as error:
            logger.info("broker %d does not take transaction markers now: %s", node_id, error)
            return None
        found: dict[int, Answers] = await self._run(_answers(response))
        return found


def _taken(queue: deque[_Asked]) -> list[_Asked]:
    """Take what fits in one request, with one marker of a producer, by whose id the answer names it."""
    taken = [queue.popleft()]
    rows = taken[0].rows
    producers = {taken[0].marker.producer_id}
    while queue and len(taken) < MARKERS_AT_ONCE:
        producer_id = queue[0].marker.producer_id
        rows += queue[0].rows
        if producer_id in producers or rows > ROWS_AT_ONCE:
            break
        producers.add(producer_id)
        taken.append(queue.popleft())
    return taken


def _request(markers: Sequence[Marker]) -> Work[Fields]:
    rows: list[Fields] = []
    for marker in markers:
        topics: dict[str, list[int]] = {}
        for at, (topic, index) in enumerate(marker.partitions, 1):
            topics.setdefault(topic, []).append(index)
            if at % _PARTITIONS_PER_STEP == 0:
                yield
        rows.append(
            {
                "producer_id": marker.producer_id,
                "producer_epoch": marker.producer_epoch,
                "transaction_result": marker.committed,
                "topics": [
                    {"name": topic, "partition_indexes": indexes} for topic, indexes in topics.items()
                ],
                "coordinator_epoch": marker.coordinator_epoch,
                "transaction_version": marker.transaction_version,
            }
        )
    return {"markers": rows}


def _answers(response: Any) -> Work[dict[int, dict[tuple[str, int], ErrorCode]]]:
    answers: dict[int, dict[tuple[str, int], ErrorCode]] = {}
    for marker in response.markers:
        found = answers.setdefault(marker.producer_id, {})
        for topic in marker.topics:
            for row in topic.partitions:
                found[topic.name, row.partition_index] = row.error_code
            yield
    return answers
