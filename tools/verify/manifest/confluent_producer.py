"""confluent-kafka's Producer, which notes what became of every record it was given.

Owns how librdkafka's delivery reports are read as outcomes. Does not own the file (writer). Invariant: a
record that `produce` took is noted once, when its report comes or at `close`; what `produce` refused by
raising was never sent and is not noted. A process that is killed leaves out what it had no report of.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import confluent_kafka

from tools.verify.core.manifest_digests import hash_of
from tools.verify.manifest.files import open_manifest
from tools.verify.manifest.outcomes import Outcome, outcome_of
from tools.verify.manifest.writer import NO_ID, NO_OFFSET

FLUSH_S_MAX: Final = 60.0
PURGE_S_MAX: Final = 5.0
_ACKS: Final = {"all": -1, "-1": -1, "0": 0, "1": 1}
Callback = Callable[[Any, Any], None]


class ManifestProducer(confluent_kafka.Producer):
    """Used as a Producer is; close it, or leave its `with`, so that the manifest gets its end.

    `is_unique` promises that no two records have the same key and value: then a record twice in the log is
    always found. `topic_ids` names topics by id, which tells one from a later one of its name. Without
    `keeps_rows`, what was acknowledged is written as sums alone, 16 bytes for a thousand records.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        directory: Path | str,
        *,
        is_unique: bool = False,
        keeps_rows: bool = True,
        topic_ids: Mapping[str, bytes] | None = None,
    ) -> None:
        told = {name: str(value).lower() for name, value in config.items()}
        is_idempotent = told.get("enable.idempotence") == "true" or "transactional.id" in told
        acks = told.get("acks", told.get("request.required.acks", "all"))
        self._acks = _ACKS.get(acks, -1)
        self._topic_ids = dict(topic_ids or {})
        self._then: Callback | None = config.get("on_delivery")
        self._numbers: dict[str, int] = {}
        self._turn = threading.Lock()
        self._produce: Callable[..., None] = super().produce
        super().__init__({name: value for name, value in config.items() if name != "on_delivery"})
        self._manifest = open_manifest(
            Path(directory),
            writer=str(config.get("client.id", "confluent-kafka")),
            is_idempotent=is_idempotent,
            # Any other sends what an old leader refused once more, after what the new one already took.
            is_ordered=is_idempotent,
            is_unique=is_unique,
            keeps_rows=keeps_rows,
        )

    def produce(
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        partition: int = -1,
        callback: Callback | None = None,
        on_delivery: Callback | None = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        number = self._numbers.get(topic)
        if number is None:
            number = self._number(topic)
        if isinstance(value, str):
            value = value.encode()
        if isinstance(key, str):
            key = key.encode()
        hashes = hash_of(key), hash_of(value)
        then = on_delivery or callback or self._then
        with self._turn:  # the order of the sends is the order of the numbers, whichever thread sends
            note = partial(self._told, number, self._manifest.send(), *hashes, then)
            self._produce(
                topic, value, key, partition, on_delivery=note, timestamp=timestamp, headers=headers
            )

    def produce_batch(
        self,
        topic: str,
        messages: list[dict[str, Any]],
        partition: int = -1,
        callback: Callback | None = None,
        on_delivery: Callback | None = None,
    ) -> int:
        raise TypeError("a manifest has no way to note a produce_batch: use produce")

    def poll(self, timeout: float = -1) -> int:
        served: int = super().poll(timeout)
        self._manifest.flush_old()
        return served

    def flush(self, timeout: float = -1) -> int:
        left: int = super().flush(timeout)
        self._manifest.flush_old()
        return left

    def close(self, timeout: float = FLUSH_S_MAX) -> bool:
        """Wait for all reports, give up what has none, and end the manifest."""
        if super().flush(timeout):
            self.purge()
            super().flush(PURGE_S_MAX)
        is_closed: bool = super().close()
        self._manifest.close()
        return is_closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _number(self, topic: str) -> int:
        number = self._manifest.topic(topic, self._topic_ids.get(topic, NO_ID))
        self._numbers[topic] = number
        return number

    def _told(self, *report: Any) -> None:
        """Note a report. Below Python 3.12 the binding can only pass on an error that somebody has caught:
        any other comes out of `poll` as a SystemError that does not say what went wrong.
        """
        try:
            self._noted(*report)
        except BaseException:
            raise

    def _noted(
        self,
        topic: int,
        order: int,
        key_hash: int,
        value_hash: int,
        then: Callback | None,
        error: Any,
        message: Any,
    ) -> None:
        offset = NO_OFFSET
        partition = message.partition()
        if error is None:
            outcome = Outcome.OK
            known = message.offset()
            offset = NO_OFFSET if known is None else known
        else:
            outcome = outcome_of(error.code())
        self._manifest.note(
            topic,
            -1 if partition is None else max(partition, -1),
            order=order,
            key_hash=key_hash,
            value_hash=value_hash,
            outcome=outcome,
            offset=offset,
            acks=self._acks,
        )
        if then is not None:
            then(error, message)
