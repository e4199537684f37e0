"""aiokafka's producer, which notes what became of every record it was given.

Owns how the futures of its sends are read as outcomes. Does not own the file (writer). Invariant: a record
that `send` returned a future for is noted once, when that is done or at `stop`; what `send` refused by
raising was never sent and is not noted. A process that is killed leaves out what had no answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiokafka
from aiokafka.errors import BrokerResponseError

from tools.verify.core.manifest_digests import hash_of
from tools.verify.manifest.files import open_manifest
from tools.verify.manifest.outcomes import Outcome, outcome_of
from tools.verify.manifest.writer import NO_ID, NO_OFFSET

FLUSH_EVERY_S: Final = 1.0
_NO_ERROR_CODE: Final = -1
Future = asyncio.Future[Any]


class _Send(NamedTuple):
    topic: int
    order: int
    key_hash: int
    value_hash: int
    partition: int
    batch: int
    sent_in: Any
    """aiokafka's batch."""


class ManifestProducer(aiokafka.AIOKafkaProducer):  # type: ignore[misc]
    """Used as an AIOKafkaProducer is; stop it, so that the manifest gets its end.

    `is_unique`, `keeps_rows` and `topic_ids` are what they are for confluent_producer.ManifestProducer.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        is_unique: bool = False,
        keeps_rows: bool = True,
        topic_ids: Mapping[str, bytes] | None = None,
        key_serializer: Callable[[Any], bytes | None] | None = None,
        value_serializer: Callable[[Any], bytes | None] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._to_key, self._to_value = key_serializer, value_serializer
        is_idempotent = bool(options.get("enable_idempotence") or options.get("transactional_id"))
        acks = options.get("acks", "all" if is_idempotent else 1)
        self._acks_noted = -1 if acks in ("all", -1) else int(acks)
        self._topic_ids = dict(topic_ids or {})
        self._open: dict[int, tuple[_Send, Future]] = {}
        self._batches: dict[tuple[str, int], tuple[object, int]] = {}
        self._batch_count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._manifest = open_manifest(
            Path(directory),
            writer=str(options.get("client_id") or "aiokafka"),
            is_idempotent=is_idempotent,
            is_ordered=True,  # one request at a time for each partition, and what fails is sent again first
            is_unique=is_unique,
            keeps_rows=keeps_rows,
        )

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes]] | None = None,
    ) -> Future:
        key = key if self._to_key is None else self._to_key(key)
        value = value if self._to_value is None else self._to_value(value)
        if partition is None:
            await self.client._wait_on_metadata(topic)
            partition = self._partition(topic, None, key, value, key, value)
        future: Future = await super().send(topic, value, key, partition, timestamp_ms, headers)
        # from here to the end nothing waits: the order of the numbers is that in which batches were filled
        send = _Send(
            self._manifest.topic(topic, self._topic_ids.get(topic, NO_ID)),
            self._manifest.send(),
            hash_of(key),
            hash_of(value),
            partition,
            *self._batch_of(topic, partition),
        )
        self._open[send.order] = send, future
        future.add_done_callback(partial(self._done, send.order))
        return future

    async def send_batch(self, *arguments: Any, **named: Any) -> Future:
        raise TypeError("a manifest has no way to note a send_batch: use send")

    async def stop(self) -> None:
        """Send what waits, note what has no answer as unknown, and end the manifest."""
        try:
            await super().stop()
        finally:
            for order, (_, future) in list(self._open.items()):
                self._done(order, future)
            if self._timer is not None:
                self._timer.cancel()
            self._manifest.close()

    def _batch_of(self, topic: str, partition: int) -> tuple[int, Any]:
        """Return the batch that was appended to last, the newest of its partition, and a number for it."""
        batches = self._message_accumulator._batches.get(aiokafka.TopicPartition(topic, partition))
        if not batches:
            return 0, None
        batch, number = self._batches.get((topic, partition), (None, 0))
        if batch is not batches[-1]:
            self._batch_count += 1
            number = self._batch_count
            self._batches[topic, partition] = batches[-1], number
        return number, batches[-1]

    def _done(self, order: int, future: Future) -> None:
        send, _ = self._open.pop(order, (None, None))
        if send is None:
            return
        outcome, offset = _outcome(future, send.sent_in)
        self._manifest.note(
            send.topic,
            send.partition,
            order=send.order,
            key_hash=send.key_hash,
            value_hash=send.value_hash,
            outcome=outcome,
            offset=offset,
            acks=self._acks_noted,
            batch=send.batch,
        )
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_EVERY_S, self._flush)

    def _flush(self) -> None:
        self._timer = None
        self._manifest.flush()


def _outcome(future: Future, batch: Any) -> tuple[Outcome, int]:
    if not future.done() or future.cancelled():
        return Outcome.UNKNOWN, NO_OFFSET
    error = future.exception()
    if error is None:
        told = future.result()
        is_told = told is not None and (batch is None or batch.future.result().offset >= 0)
        return Outcome.OK, told.offset if is_told else NO_OFFSET
    code = error.errno if isinstance(error, BrokerResponseError) else _NO_ERROR_CODE
    return outcome_of(code), NO_OFFSET
