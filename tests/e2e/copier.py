"""A process that consumes a topic and produces what it read to another, each batch in one transaction with
the offsets it read up to.

Owns what an application must do to have every record once: read what was committed, keep its transactional id
for good, let the group fence it, and begin again at the committed offsets after an abort or a rebalance. Does
not own its own life: it ends with FATAL when another producer has its id or its coordinator will have no more
of it, and with HANGS when its client does not come back from a call (librdkafka waits for ever at times for
the coordinator of a group that has come back); whoever started it starts it again.
Run as `python -m tests.e2e.copier BOOTSTRAP SOURCE TARGET GROUP PROTOCOL ID BATCH TRANSACTION_MS SEED`.
Invariant: nothing is produced to a partition but the next record of the same partition of the source.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from random import Random
from threading import Timer
from typing import Final

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from tests.e2e.stock_load import IMPATIENT

FATAL, HANGS = 3, 4
"""The exit codes of a copier that must be started anew."""
PATIENCE_S: Final = 60.0
OFFSETS_S: Final = 10.0
HANGS_S: Final = 15.0
ABORTED_OF_100: Final = 5
"""So many of a hundred transactions it aborts for no reason."""


OF_PROTOCOL: Final[Mapping[str, Mapping[str, str | int]]] = {
    "classic": {"session.timeout.ms": 3000, "heartbeat.interval.ms": 300},
    "consumer": {"group.protocol": "consumer"},
}


class Copier:
    def __init__(
        self,
        bootstrap: str,
        source: str,
        target: str,
        group: str,
        protocol: str,
        transactional_id: str,
        batch: int,
        transaction_ms: int,
        seed: int,
    ) -> None:
        self._source, self._target, self._batch = source, target, batch
        self._random = Random(seed)
        self._was_rebalanced = False
        self._producer = Producer(
            {
                **IMPATIENT,
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": transaction_ms,
                "linger.ms": 1,
            }
        )
        self._consumer = Consumer(
            {
                **IMPATIENT,
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
                **OF_PROTOCOL[protocol],
            }
        )

    def run(self) -> None:
        patiently(lambda: self._producer.init_transactions(PATIENCE_S))
        print("begins", file=sys.stderr)  # noqa: T201
        self._consumer.subscribe(
            [self._source], on_assign=self._rebalanced, on_revoke=self._rebalanced, on_lost=self._rebalanced
        )
        while True:
            self._was_rebalanced = False
            messages = [one for one in self._consumer.consume(self._batch, timeout=0.1) if not one.error()]
            if messages and self._was_rebalanced:
                self._rewind()  # some of them may be of partitions that others have now
            elif messages and not self._copied(messages):
                self._rewind()

    def _rebalanced(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        print("rebalanced", [each.partition for each in partitions], file=sys.stderr)  # noqa: T201
        self._was_rebalanced = True

    def _copied(self, messages: Sequence[Message]) -> bool:
        """Whether it was committed."""
        watch = Timer(HANGS_S, os._exit, [HANGS])
        watch.start()
        try:
            return self._is_committed(messages)
        finally:
            watch.cancel()

    def _is_committed(self, messages: Sequence[Message]) -> bool:
        producer = self._producer
        ends = {message.partition(): message.offset() + 1 for message in messages}
        try:
            producer.begin_transaction()
            for message in messages:
                producer.produce(self._target, message.value(), partition=message.partition())
            wanted = [TopicPartition(self._source, *end) for end in ends.items()]
            member = self._consumer.consumer_group_metadata()
            producer.send_offsets_to_transaction(wanted, member, OFFSETS_S)
            if self._random.randrange(100) < ABORTED_OF_100:
                patiently(lambda: producer.abort_transaction(PATIENCE_S))
                return False
            patiently(lambda: producer.commit_transaction(PATIENCE_S))
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            print(f"aborts: {error}", file=sys.stderr)  # noqa: T201
            patiently(lambda: producer.abort_transaction(PATIENCE_S))
            return False
        return True

    def _rewind(self) -> None:
        """Begin again where the group has committed."""
        assigned = self._consumer.assignment()
        if not assigned:
            return
        committed = patiently(lambda: self._consumer.committed(assigned, timeout=PATIENCE_S))
        for each in committed or ():
            self._consumer.seek(TopicPartition(each.topic, each.partition, max(each.offset, 0)))


def patiently(call: Callable[[], object]) -> list[TopicPartition] | None:
    """What it returns once it does not fail for now only."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            answer = call()
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
        else:
            return answer if isinstance(answer, list) else None


def main(arguments: Sequence[str]) -> None:
    faulthandler.register(signal.SIGUSR1)  # says where it is
    *names, batch, transaction_ms, seed = arguments
    copier = Copier(*names, int(batch), int(transaction_ms), int(seed))
    try:
        copier.run()
    except KafkaException as error:
        print(f"ends: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(FATAL)


if __name__ == "__main__":
    main(sys.argv[1:])
