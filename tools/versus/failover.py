"""What clients notice of a broker that is killed: how long no record is acknowledged, and what is there
afterwards.

Owns the two clients that write meanwhile (the C client with its defaults, and a raw one that asks the
survivors for the leader every few milliseconds), the silence they saw and the verdict on what is read back.
Does not own the brokers. Invariant: the raw client sends each number once and the C client is idempotent, so
of either no number may be found twice or after a higher one, and each that was acknowledged is found.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import confluent_kafka

from protocol import records
from protocol.errors import ErrorCode
from tools.console import Failure
from tools.versus.caller import Caller, until, wall_ms
from tools.versus.nodes import SETTLE_S, Cluster

FILLER = b"." * 200
IN_FLIGHT_MAX = 50
PAUSE_S = 0.005
RAW_DEADLINE_S = 1.0
FLUSH_S = 120.0
WARM_RECORDS = 200
"""Acknowledged to each client before the kill, and again after it."""
STOCK, RAW = b"s", b"r"


# --- pure ---


def silence_s(acknowledged_s: Sequence[float], since_s: float) -> float:
    """Return the longest time without an acknowledgement, from `since_s` to the last one."""
    seen = [since_s, *(at_s for at_s in acknowledged_s if at_s >= since_s)]
    return max((later - at_s for at_s, later in itertools.pairwise(seen)), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBack:
    """How many records were acknowledged or found, how many of them are wrong, and how."""

    checked: int
    lost: int
    doubled: int
    disordered: int

    def __add__(self, other: ReadBack) -> ReadBack:
        return ReadBack(
            checked=self.checked + other.checked,
            lost=self.lost + other.lost,
            doubled=self.doubled + other.doubled,
            disordered=self.disordered + other.disordered,
        )

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.doubled or self.disordered)


NOTHING_READ = ReadBack(checked=0, lost=0, doubled=0, disordered=0)


def judge(acknowledged: Collection[int], found: Sequence[int]) -> ReadBack:
    """Compare what was read with what was acknowledged; numbers rose as they were sent."""
    held = set(found)
    return ReadBack(
        checked=len(held.union(acknowledged)),
        lost=len(set(acknowledged) - held),
        doubled=len(found) - len(held),
        disordered=sum(later < earlier for earlier, later in itertools.pairwise(found)),
    )


def numbers_of(values: Sequence[bytes], client: bytes) -> list[int]:
    """Return what one client wrote into a log that both share."""
    return [int(value[1:].rstrip(FILLER[:1])) for value in values if value[:1] == client]


def _value(client: bytes, number: int) -> bytes:
    return client + b"%d" % number + FILLER


# --- the clients ---


class Writer:
    """A client in a thread of its own until its block ends; `acknowledged` is by number, when."""

    def __init__(self, name: str) -> None:
        self.acknowledged: dict[int, float] = {}
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._guarded, name=name)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        if kind is None:
            self.check()

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as failure:
            self._failure = failure

    def _run(self) -> None:
        raise NotImplementedError

    def check(self) -> None:
        if self._failure is not None:
            raise Failure(f"{self._thread.name}: {self._failure}")

    def count(self) -> int:
        self.check()
        return len(self.acknowledged)

    def silence_s(self, since_s: float) -> float:
        return silence_s(list(self.acknowledged.values()), since_s)


class StockWriter(Writer):
    """librdkafka with its defaults, idempotent, so acks=all; a few thousand records a second at most."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__("the C client")
        self._topic = topic
        self._refused: list[str] = []
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
        )

    def _run(self) -> None:
        for number in itertools.count():
            while len(self._producer) >= IN_FLIGHT_MAX and not self._stopping.is_set():
                self._producer.poll(PAUSE_S)
            if self._stopping.is_set() or self._refused:
                break
            value, key = _value(STOCK, number), b"%d" % number
            self._producer.produce(self._topic, value, key, partition=0, on_delivery=self._delivered)
            if number % IN_FLIGHT_MAX == 0:
                self._producer.poll(0)
                self._stopping.wait(PAUSE_S)
        if self._producer.flush(FLUSH_S):
            raise Failure(f"records were not delivered within {FLUSH_S:.0f} s")
        if self._refused:
            raise Failure(f"a record was not delivered: {self._refused[0]}")

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._refused.append(error.str())
        else:
            self.acknowledged[int(message.key())] = time.perf_counter()


class RawWriter(Writer):
    """One record at a time, acks=all, to the leader; what got no answer is not sent again."""

    def __init__(self, ports: Mapping[int, int], topic: str) -> None:
        """`ports` by node id."""
        super().__init__("the raw client")
        self._ports = ports
        self._topic = topic
        self._numbers = itertools.count()

    def _run(self) -> None:
        for port in itertools.cycle(self._ports.values()):
            if self._stopping.is_set():
                break
            with contextlib.suppress(OSError, Failure):
                self._write_through(self._leader_port(port))
            self._stopping.wait(PAUSE_S)

    def _leader_port(self, port: int) -> int:
        with Caller(port, deadline_s=RAW_DEADLINE_S) as caller:
            row = caller.metadata(self._topic).topics[0].partitions[0]
        if row.leader_id not in self._ports:
            raise Failure("nobody leads")
        return self._ports[row.leader_id]

    def _write_through(self, port: int) -> None:
        """Write until it refuses, or its connection breaks."""
        with Caller(port, deadline_s=RAW_DEADLINE_S) as caller:
            while not self._stopping.is_set():
                number = next(self._numbers)
                batch = records.build_batch([(None, _value(RAW, number), (), wall_ms())])
                if caller.produce(self._topic, batch, acks=-1) != ErrorCode.none:
                    break
                self.acknowledged[number] = time.perf_counter()
                self._stopping.wait(PAUSE_S)


# --- a round ---


@dataclass(frozen=True, slots=True, kw_only=True)
class KillOutcome:
    """How long each client was without an acknowledgement, and what was read back of both."""

    stock_s: float
    raw_s: float
    read: ReadBack


def kill_leader(cluster: Cluster, victim: int, topic: str) -> KillOutcome:
    """Kill the leader of `topic`, which is new; the victim is back in sync when this returns."""
    cluster.create(topic, leader=victim)
    ports = {node_id: node.port for node_id, node in cluster.nodes.items()}
    with StockWriter(cluster.bootstrap, topic) as stock, RawWriter(ports, topic) as raw:
        _go_on(stock, raw)
        killed_s = cluster.kill(victim)
        _go_on(stock, raw)
    cluster.bring_back(victim)
    cluster.wait_whole()
    values = cluster.read(topic)
    cluster.delete(topic)
    read = [
        judge(writer.acknowledged, numbers_of(values, client))
        for client, writer in ((STOCK, stock), (RAW, raw))
    ]
    return KillOutcome(
        stock_s=stock.silence_s(killed_s), raw_s=raw.silence_s(killed_s), read=sum(read, NOTHING_READ)
    )


def _go_on(*writers: Writer) -> None:
    """Wait until each was acknowledged so many more."""
    goals = [writer.count() + WARM_RECORDS for writer in writers]
    until(
        lambda: all(writer.count() >= goal for writer, goal in zip(writers, goals, strict=True)),
        "acknowledgements",
        SETTLE_S,
    )
