"""Producers that keep going while their broker is killed, and the check of what is in the log afterwards.

Owns the classification of every send as ok, failed or unknown, and the verdict on the final log. Does not
own the killing. A raw producer never retries a value, so a value that is in the log twice was doubled by the
broker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Self

from protocol.records import build_batch, iter_batches, iter_records
from tests.clients.blocking import BlockingClient
from tests.compat.samples import FIRST_MS

# Codes that say the batch was not appended; any other error leaves it unknown.
DEFINITE = frozenset({2, 3, 10, 17, 18, 19, 21, 32, 45, 47, 87})
RECONNECT_PAUSE_S = 0.02


@dataclass(slots=True, kw_only=True)
class Sent:
    partition: int
    value: bytes
    offset: int | None = None
    failed: int | None = None

    @property
    def is_unknown(self) -> bool:
        return self.offset is None and self.failed is None


@dataclass(slots=True)
class RawLoad:
    """One producer with acks=all and one request in flight, in a thread of its own."""

    name: str
    bootstrap: str
    topic: str
    partitions: int
    padding: bytes = b""
    locate: Callable[[], str] | None = None
    """Where to connect each time, in a cluster: an answer that is no acknowledgement means looking again."""
    sent: list[Sent] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    _stop: Event = field(default_factory=Event)
    _thread: Thread | None = None

    def __enter__(self) -> Self:
        self._thread = Thread(target=self._run, name=self.name)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join(timeout=30)
        assert not self._thread.is_alive(), "the producer hangs"

    def acknowledged(self) -> int:
        return sum(1 for sent in self.sent if sent.offset is not None)

    def _value(self, number: int) -> bytes:
        return f"{self.name}-{number} ".encode() + self.padding

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._send_until_disconnected()
                self._stop.wait(RECONNECT_PAUSE_S)
        except BaseException as error:
            self.errors.append(error)
            raise

    def _send_until_disconnected(self) -> None:
        try:
            address = self.bootstrap if self.locate is None else self.locate()
            client = BlockingClient(address, timeout_s=10)
        except OSError:
            return
        with client:
            while not self._stop.is_set():
                number = len(self.sent)
                sent = Sent(partition=number % self.partitions, value=self._value(number))
                self.sent.append(sent)
                try:
                    answer = client.produce(self.topic, sent.partition, bytes(batch_of(sent.value)))
                except OSError:
                    return
                if answer.error_code == 0:
                    sent.offset = answer.base_offset
                elif answer.error_code in DEFINITE:
                    sent.failed = int(answer.error_code)
                if answer.error_code and self.locate is not None:
                    return


def batch_of(*values: bytes) -> bytearray:
    return build_batch([(None, value, (), FIRST_MS) for value in values])


def values_at(batches: bytes) -> dict[int, bytes]:
    """Every value of a log by its offset; an offset that comes twice fails at once."""
    found: dict[int, bytes] = {}
    for at, header in iter_batches(batches):
        for record in iter_records(memoryview(batches)[at : at + header.size]):
            assert record.offset not in found, f"offset {record.offset} twice"
            assert record.value is not None
            found[record.offset] = bytes(record.value)
    return found


def check(loads: list[RawLoad], logs: dict[int, dict[int, bytes]]) -> Counter[str]:
    """Nothing acknowledged is lost or moved, nothing doubled or invented; each producer's order holds."""
    for partition, log in logs.items():
        assert sorted(log) == list(range(len(log))), f"holes in partition {partition}"
        assert len(set(log.values())) == len(log), f"doubled values in partition {partition}"
    at = {value: (partition, offset) for partition, log in logs.items() for offset, value in log.items()}
    verdict: Counter[str] = Counter()
    for load in loads:
        assert not load.errors, load.errors
        last_offset = dict.fromkeys(logs, -1)
        for sent in load.sent:
            place = at.pop(sent.value, None)
            if sent.offset is not None:
                verdict["acknowledged"] += 1
                assert place == (sent.partition, sent.offset), f"{sent} is at {place}"
            elif sent.failed is not None:
                verdict["failed"] += 1
                assert place is None, f"{sent} is at {place}"
            else:
                verdict["unknown, kept" if place else "unknown, gone"] += 1
            if place is not None:
                assert place[0] == sent.partition
                assert place[1] > last_offset[sent.partition], f"{sent} is out of order"
                last_offset[sent.partition] = place[1]
    assert not at, f"never sent: {sorted(at)[:5]}"
    return verdict
