"""`python -m tests.soak.clients ROLE BOOTSTRAP SECONDS`: one client process of the soak.

Owns the roles: what each does over and over, and what it expects to find. Ends with 0 after SECONDS and one
line of JSON that says how much was done; ends with 1 and a traceback as soon as anything is not as expected.
Invariant: every role knows what it was promised, so that lost, doubled or changed data is an error here.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener
from aiokafka.structs import TopicPartition
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from protocol.apis import Api
from protocol.compression import Codec
from protocol.records import iter_batches, iter_records
from tests.clients.blocking import FETCH_VERSION, BlockingClient
from tests.compat.peers import unique, until
from tests.soak.visits import VISITS, batch_of, create, fetch_fields, prepare, produce_idempotently, reset

VOLUME, KEYS = "volume", "keys"
VOLUME_PARTITIONS = 4
VOLUME_SETTINGS = {"segment_bytes": "1048576", "retention_bytes": "8388608", "file_delete_delay_ms": "1000"}
KEYS_SETTINGS = {
    "cleanup_policy": "compact",
    "segment_bytes": "1048576",
    "min_cleanable_dirty_ratio": "0.1",
    "delete_retention_ms": "1000",
    "file_delete_delay_ms": "1000",
}
BATCH_RECORDS, RECORD_BYTES = 20, 500
BATCHES_PER_CONNECTION, FETCHES_PER_CONNECTION = 400, 200
PACE_S = 0.008
IDEMPOTENT, VISITS_PER_PRODUCER = 0.1, 50
"""Producer ids expire in rounds of ten minutes: few enough that such a round is no wave in the figures."""
KEYS_COUNT = 1000
GROUP_RECORDS, GROUP_PARTITIONS = 400, 4
GROUP_S_MAX = 60.0
VISITORS = 3
OUT_OF_RANGE = 1


class Role:
    """What every role has: where the broker is, until when, what was done, a seeded chance."""

    def __init__(self, bootstrap: str, seconds: float) -> None:
        self.bootstrap = bootstrap
        self.done: Counter[str] = Counter()
        self.random = random.Random(type(self).__name__)
        self._end_s = time.monotonic() + seconds
        self._pause = threading.Event()

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self._end_s

    def pause(self, seconds: float) -> None:
        self._pause.wait(seconds)

    def run(self) -> None:
        raise NotImplementedError


# ---- volume ------------------------------------------------------------------------------------------------


def value_at(offset: int) -> bytes:
    """A record says which offset it must have: nobody else writes to its partition."""
    return b"%020d" % offset + b"." * (RECORD_BYTES - 20)


class Produce(Role):
    """All codecs, acks=1 and acks=all; some connections have a producer id, a new one each."""

    def run(self) -> None:
        ends = [0] * VOLUME_PARTITIONS
        while self.goes_on:
            with BlockingClient(self.bootstrap) as client:
                self._produce(client, ends)
                self.done["connections"] += 1

    def _produce(self, client: BlockingClient, ends: list[int]) -> None:
        producer_id, sequences = -1, [0] * VOLUME_PARTITIONS
        if self.random.random() < IDEMPOTENT:
            answer = client.call(Api.INIT_PRODUCER_ID, 2, transactional_id=None, transaction_timeout=60_000)
            assert answer.error_code == 0, answer
            producer_id = answer.producer_id
        for number in range(BATCHES_PER_CONNECTION):
            if not self.goes_on:
                return
            partition = number % VOLUME_PARTITIONS
            values = [value_at(ends[partition] + at) for at in range(BATCH_RECORDS)]
            fields = {}
            if producer_id >= 0:
                sequence = sequences[partition]
                fields = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
                sequences[partition] += BATCH_RECORDS
            batch = batch_of(*values, codec=self.random.choice(list(Codec)), **fields)
            answer = client.produce(VOLUME, partition, batch, acks=self.random.choice((1, -1)))
            assert answer.error_code == 0, answer
            assert answer.base_offset == ends[partition], answer
            ends[partition] += BATCH_RECORDS
            self.done["records"] += BATCH_RECORDS
            self.pause(PACE_S)


class Fetch(Role):
    """Reads everything in incremental sessions; half of them are left open, for the broker to evict."""

    def run(self) -> None:
        offsets = [0] * VOLUME_PARTITIONS
        while self.goes_on:
            client = BlockingClient(self.bootstrap)
            session = self._fetch(client, offsets)
            self.done["sessions"] += 1
            if self.random.random() < 0.5:
                ending = {"session_id": session, "session_epoch": -1, "topics": []}
                client.call(Api.FETCH, FETCH_VERSION, **fetch_fields(VOLUME, **ending))
                client.socket.close()
            else:
                reset(client)

    def _fetch(self, client: BlockingClient, offsets: list[int]) -> int:
        session, wanted = 0, list(range(VOLUME_PARTITIONS))
        for epoch in range(FETCHES_PER_CONNECTION):
            if not self.goes_on:
                break
            changes = {
                "session_id": session,
                "session_epoch": epoch,
                "topics": [self._wanted(offsets, wanted)] if wanted else [],
                "max_wait": 200,
                "max_bytes": 1 << 20,
            }
            answer = client.call(Api.FETCH, FETCH_VERSION, **fetch_fields(VOLUME, **changes))
            assert answer.error_code == 0, answer.error_code
            session = answer.session_id
            wanted = [self._take(row, offsets) for topic in answer.responses for row in topic.partitions]
            self.done["fetches"] += 1
            if not session:  # every slot is taken by sessions too young to be evicted
                self.done["without a session"] += 1
                break
        return session

    def _wanted(self, offsets: list[int], partitions: list[int]) -> dict[str, Any]:
        template = fetch_fields(VOLUME)["topics"][0]["partitions"][0]
        rows = [
            {**template, "partition": at, "fetch_offset": offsets[at], "partition_max_bytes": 1 << 18}
            for at in partitions
        ]
        return {"topic": VOLUME, "partitions": rows}

    def _take(self, row: Any, offsets: list[int]) -> int:
        at = row.partition_index
        if row.error_code == OUT_OF_RANGE:
            assert row.log_start_offset > offsets[at] or row.log_start_offset < 0, row
            offsets[at] = self._log_start(at)
            self.done["overtaken by retention"] += 1
            return at
        assert row.error_code == 0, row.error_code
        if offsets[at] < row.log_start_offset:
            offsets[at] = row.log_start_offset
        for position, header in iter_batches(row.records or b""):
            if header.last_offset < offsets[at]:
                continue
            for record in iter_records(memoryview(row.records)[position : position + header.size]):
                if record.offset < offsets[at]:
                    continue
                assert record.offset == offsets[at], f"{record.offset} after {offsets[at] - 1}"
                assert record.value == value_at(record.offset), f"another record at {record.offset}"
                offsets[at] += 1
                self.done["records"] += 1
        return int(at)

    def _log_start(self, partition: int) -> int:
        row = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": -2}
        with BlockingClient(self.bootstrap) as client:
            answer = client.call(
                Api.LIST_OFFSETS,
                6,
                replica_id=-1,
                isolation_level=0,
                topics=[{"name": VOLUME, "partitions": [row]}],
            )
        return int(answer.topics[0].partitions[0].offset)


class Compact(Role):
    """Writes the same keys again and again, and finds each with its last value after any compaction."""

    def run(self) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 5})
        last: dict[bytes, bytes] = {}
        while self.goes_on:
            for _ in range(1000):
                key = b"key-%d" % self.random.randrange(KEYS_COUNT)
                last[key] = b"%d" % self.random.getrandbits(64) * 10
                producer.produce(KEYS, last[key], key)
                producer.poll(0)
                self.done["records"] += 1
            assert producer.flush(GROUP_S_MAX) == 0
            found = self._read()
            assert found == last, f"{sum(found.get(key) != value for key, value in last.items())} keys differ"
            self.done["whole reads"] += 1
            self.pause(1)

    def _read(self) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        with BlockingClient(self.bootstrap) as client:
            offset, end = 0, 1
            while offset < end:
                row = client.fetch(KEYS, 0, offset)
                assert row.error_code == 0, row
                end = row.high_watermark
                for position, header in iter_batches(row.records or b""):
                    for record in iter_records(memoryview(row.records)[position : position + header.size]):
                        found[bytes(record.key or b"")] = bytes(record.value or b"")
                    offset = header.last_offset + 1
                if not row.records:
                    break
        return found


# ---- groups ------------------------------------------------------------------------------------------------


class Groups(Role):
    """librdkafka: topics and groups made and deleted, members that join and leave, configs altered."""

    def run(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        while self.goes_on:
            topic, group = unique("round"), unique("group")
            wait_for(admin.create_topics([NewTopic(topic, GROUP_PARTITIONS, 1)]))
            expected = self._fill(topic)
            seen = self._consume(topic, group, expected)
            assert seen == expected, f"{len(expected - seen)} records were not consumed"
            self._alter(admin, topic)
            until(lambda group=group: deletes_group(admin, group), f"{group} to be deleted", GROUP_S_MAX)
            wait_for(admin.delete_topics([topic]))
            self.done["rounds"] += 1

    def _fill(self, topic: str) -> set[bytes]:
        compression = self.random.choice(("none", "gzip", "snappy", "lz4", "zstd"))
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": self.random.random() < 0.5,
                "compression.type": compression,
            }
        )
        values = {b"%s-%d" % (topic.encode(), number) for number in range(GROUP_RECORDS)}
        for value in values:
            producer.produce(topic, value)
        assert producer.flush(GROUP_S_MAX) == 0
        self.done["records"] += len(values)
        return values

    def _consume(self, topic: str, group: str, expected: set[bytes]) -> set[bytes]:
        """Three members, one of which leaves in the middle; at least once, as offsets are committed."""
        seen: set[bytes] = set()
        strategy = self.random.choice(("range", "cooperative-sticky"))
        members = [self._member(topic, group, strategy) for _ in range(3)]
        deadline_s = time.monotonic() + GROUP_S_MAX
        while len(seen) < len(expected):
            assert time.monotonic() < deadline_s, f"{len(seen)} of {len(expected)} records after a minute"
            for member in list(members):
                for message in member.consume(50, 0.05):
                    if message.error() is None:
                        seen.add(message.value())
                    else:
                        assert message.error().retriable(), message.error()
                self._commit(member)
            if len(members) == 3 and len(seen) > len(expected) // 3:
                members.pop().close()
        for member in members:
            member.close()
        return seen

    def _member(self, topic: str, group: str, strategy: str) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "partition.assignment.strategy": strategy,
            }
        )
        consumer.subscribe([topic])
        return consumer

    @staticmethod
    def _commit(member: Consumer) -> None:
        try:
            member.commit(asynchronous=False)
        except KafkaException as error:
            in_time = (
                KafkaError._NO_OFFSET,
                KafkaError.REBALANCE_IN_PROGRESS,
                KafkaError.ILLEGAL_GENERATION,
                KafkaError.UNKNOWN_MEMBER_ID,
            )
            assert error.args[0].code() in in_time, error

    def _alter(self, admin: AdminClient, topic: str) -> None:
        entry = ConfigEntry("retention.ms", "3600000", incremental_operation=AlterConfigOpType.SET)
        of_topic = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        bytes_max = str(self.random.choice((1_048_588, 2_097_152)))
        entry = ConfigEntry("message.max.bytes", bytes_max, incremental_operation=AlterConfigOpType.SET)
        of_broker = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        wait_for(admin.incremental_alter_configs([of_topic]))
        wait_for(admin.incremental_alter_configs([of_broker]))
        wait_for(admin.create_partitions([NewPartitions(topic, GROUP_PARTITIONS + 2)]))
        wait_for(admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))
        admin.list_consumer_groups().result(timeout=GROUP_S_MAX)
        admin.list_topics(timeout=GROUP_S_MAX)


def wait_for(futures: dict[Any, Any]) -> None:
    for future in futures.values():
        future.result(timeout=GROUP_S_MAX)


def deletes_group(admin: AdminClient, group: str) -> bool:
    """It is not empty until the members' farewells have arrived."""
    try:
        wait_for(admin.delete_consumer_groups([group]))
    except KafkaException as error:
        assert error.args[0].code() == KafkaError.NON_EMPTY_GROUP, error
        return False
    return True


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, done: Counter[str]) -> None:
        self._done = done

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        self._done["revocations"] += 1

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        self._done["assignments"] += 1


class AioGroups(Role):
    """aiokafka: one lasting group that members join and leave, auto-committed, over a topic that is fed."""

    def run(self) -> None:
        topic, group = unique("aio"), unique("aio-group")
        asyncio.run(self._run(topic, group))
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        until(lambda: deletes_group(admin, group), f"{group} to be deleted", GROUP_S_MAX)
        wait_for(admin.delete_topics([topic]))

    async def _run(self, topic: str, group: str) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap, enable_idempotence=True)
        await producer.start()
        number = 0
        while self.goes_on:
            members = [await self._member(topic, group) for _ in range(self.random.randint(1, 3))]
            sent = {b"%d" % at for at in range(number, number + 200)}
            number += 200
            for value in sent:
                await producer.send_and_wait(topic, value)
            seen: set[bytes] = set()
            async with asyncio.timeout(GROUP_S_MAX):
                while not sent <= seen:
                    for member in members:
                        for batch in (await member.getmany(timeout_ms=50)).values():
                            seen |= {record.value for record in batch}
            for member in members:
                await member.stop()
            self.done["rounds"] += 1
            self.done["records"] += len(sent)
        await producer.stop()

    async def _member(self, topic: str, group: str) -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            session_timeout_ms=6000,
        )
        await consumer.start()
        consumer.subscribe([topic], listener=Listener(self.done))
        return consumer


# ---- visitors ----------------------------------------------------------------------------------------------


class Visitors(Role):
    """Every visit in an order of chance, several at a time, and producers whose ids are left to expire."""

    def run(self) -> None:
        with ThreadPoolExecutor(VISITORS) as visitors:
            for done in visitors.map(self._visit, range(VISITORS)):
                self.done += done

    def _visit(self, number: int) -> Counter[str]:
        chance, done = random.Random(number), Counter[str]()
        while self.goes_on:
            visit = chance.choice(VISITS)
            visit(self.bootstrap)
            done["visits"] += 1
            if done["visits"] % VISITS_PER_PRODUCER == 0:
                with BlockingClient(self.bootstrap) as client:
                    produce_idempotently(client, "producers", partition=number)
                done["producers left to expire"] += 1
            self.pause(0.02)
        return done


ROLES: dict[str, Callable[[str, float], Role]] = {
    "produce": Produce,
    "fetch": Fetch,
    "compact": Compact,
    "groups": Groups,
    "aio-groups": AioGroups,
    "visitors": Visitors,
}


def make_topics(bootstrap: str) -> None:
    prepare(bootstrap)
    with BlockingClient(bootstrap) as client:
        create(client, VOLUME, VOLUME_PARTITIONS, **VOLUME_SETTINGS)
        create(client, KEYS, **KEYS_SETTINGS)
        create(client, "producers", VISITORS, **VOLUME_SETTINGS)


def main() -> int:
    role, bootstrap, seconds = sys.argv[1:]
    running = ROLES[role](bootstrap, float(seconds))
    running.run()
    sys.stdout.write(json.dumps(dict(running.done)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
