"""Brokers that replicate to each other, without their cluster: real partitions, logs, handlers and channels
over a network and disks in memory, in virtual time.

Owns: the nodes and their lives, and a stand-in for the controller, which folds records into everyone's image
and answers AlterPartition as Kafka's does. Does not own the metadata log. Invariant: a node sees records in
order, at once unless its images are held back.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from types import SimpleNamespace
from typing import Any, TypeVar
from uuid import UUID

from broker.build import build
from broker.components import Components
from broker.config import broker as broker_config
from broker.config.broker import BrokerConfig
from broker.config.topics import log_config
from broker.config.values import ResourceType
from broker.control.cluster import DeltaListener
from broker.control.image import Image
from broker.control.internal_topics import is_of_the_tiers
from broker.control.metadata_records import (
    BrokerFenced,
    BrokerRegistered,
    ConfigChanged,
    PartitionChanged,
    PartitionImage,
    Record,
    TopicCreated,
    TopicDeleted,
)
from broker.coordinators.groups.coordinator import GroupCoordinator
from broker.endpoint import Endpoint
from broker.net.channel import Channel, Channels, PeerLost
from broker.ports import World
from broker.replicas.isr import IsrChanges
from broker.replicas.partition import Partition
from broker.replicas.replica_fetchers import ReplicaFetchers
from broker.replicas.replica_manager import ReplicaManager
from protocol.apis import Api
from protocol.codec import Fields
from protocol.errors import ErrorCode, KafkaError
from protocol.messages import decode_response, encode_response, entity
from protocol.records import iter_batches, iter_records
from remote.store.memory_store import MemoryStore
from remote.store.object_store import StoreError
from storage.log import Appended
from storage.log_manager import LogManager
from storage.policy import LogConfig
from tests.broker.at_once import AtOnce
from tests.broker.raw_client import batch_of, fetch_fields, produce_fields
from tests.sim.disk import Disk
from tests.sim.loop import Process, SimLoop
from tests.sim.net import Fabric, NetworkProfile

T = TypeVar("T")

LISTENER = "PLAINTEXT"
PORT = 9092
START_MS = 1_700_000_000_000
PROPERTIES = {
    "replica.lag.time.max.ms": "10000",
    "replica.fetch.backoff.ms": "100",
    "replica.fetch.wait.max.ms": "500",
    "offsets.topic.num.partitions": "1",
}


class Member:
    """What one node sees of its cluster."""

    def __init__(self, node_id: int, config: BrokerConfig, controller: Controller) -> None:
        self.node_id = node_id
        self.config = self.broker_config = config
        self.image = Image()
        self.channels: Channels
        self.broker_epoch = -1
        self.is_controller = False
        self.turns = AtOnce()
        self.listeners: list[DeltaListener] = []
        self.producer_ids = SimpleNamespace(next=self._next_producer_id)
        self._ids_given = 0
        self._controller = controller

    def subscribe(self, listener: DeltaListener) -> None:
        self.listeners.append(listener)

    def log_config(self, topic: str) -> LogConfig:
        return log_config(self.config, self.image.config(ResourceType.TOPIC, topic))

    def endpoint_of(self, node_id: int) -> Endpoint | None:
        broker = self.image.brokers.get(node_id)
        return None if broker is None else broker.endpoint(LISTENER)

    async def alter_partition(self, fields: Fields, *, timeout_s: float) -> Any:
        return await self._controller.alter_partition(fields, timeout_s)

    async def _next_producer_id(self) -> int:
        self._ids_given += 1
        return 1_000 * self.node_id + self._ids_given

    def has_lost_peer(self) -> bool:
        return False

    async def ensure_internal(self, name: str) -> None:
        if is_of_the_tiers(name):
            raise KafkaError(ErrorCode.invalid_replication_factor, "the test creates it if it needs it")
        raise AssertionError("the test creates what it needs")


class Node:
    def __init__(self, world: Replicas, node_id: int, rack: str | None) -> None:
        self.id = node_id
        self.name = f"node{node_id}"
        self.rack = rack
        self.life = 0
        self.disk = Disk(random.Random(node_id), world.now_ms, world.loop.trace)
        self.is_held = False
        """Its image stands still until `let_go`."""
        self.held: list[Record] = []
        self.failures: list[str] = []
        """Why it would have ended, were it a whole broker."""
        self._world = world
        self.process: Process
        self.member: Member
        self.components: Components
        self.replicas: ReplicaManager
        self.fetchers: ReplicaFetchers
        self.isr: IsrChanges
        self.groups: GroupCoordinator
        self.logs: LogManager
        self.channels: Channels

    def build(self) -> None:
        world, loop = self._world, self._world.loop
        self.life += 1
        self.process = Process(loop, self.name, self.life)
        config = broker_config.from_properties(
            {
                "node.id": str(self.id),
                "listeners": f"{LISTENER}://0.0.0.0:{PORT}",
                "log.dirs": "/data",
                **PROPERTIES,
                **world.properties,
            }
        )
        self.member = member = Member(self.id, config, world.controller)
        files = self.disk.mount(self.process)
        at = World(
            files=files,
            network=world.fabric.endpoint(self.name, self.process),
            store=world.store,
            now_ms=world.now_ms,
            random=random.Random(self.id),
            offload=_offload,
            host_name=self.name,
        )
        self.channels = member.channels = Channels(at.network, self.id, member.endpoint_of)
        cluster: Any = member
        components = self.components = build(config, at, cluster, fail=self._failed)
        self.logs = components.logs
        self.replicas = components.replicas
        self.isr = components.isr
        self.fetchers = components.fetchers
        self.fetch_followers = components.follower_fetch
        self.groups = components.groups
        self.server = components.network
        for built in world.on_build:
            built(self)

    def _failed(self, reason: str) -> None:
        self.failures.append(reason)

    async def live(self, ready: asyncio.Future[None]) -> None:
        async with asyncio.TaskGroup() as tasks:
            self.components.background.begin(tasks)
            self.logs.lock_and_open()
            self.logs.load(self.member.log_config)
            for _ in self.replicas.load(self.member.image):
                await asyncio.sleep(0)
            await self.groups.start(tasks)
            await self.components.transactions.start(tasks)
            if self.components.tier_metadata is not None:
                self.components.tier_metadata.start(tasks)
            wal = self.components.wal
            if wal is not None:
                wal.telling.start(tasks)
            if self.components.tiering is not None:
                self.components.tiering.start(tasks)
            if self.components.restores is not None:
                self.components.restores.start()
            if wal is not None:
                await wal.collecting.learn()
                wal.uploader.start(tasks)
                wal.leading.start()
            self.isr.start(tasks)
            self.fetchers.start(tasks)
            await self.server.listen(LISTENER, "0.0.0.0", PORT)
            self.server.open()
            ready.set_result(None)
            await asyncio.Event().wait()

    def here(self, call: Callable[..., T], *rest: Any) -> T:
        """Runs inside this node's life, so that what it starts ends with it."""
        return self.process.context.copy().run(call, *rest)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        return await self.process.spawn(work)

    def take(self, record: Record, seq: int) -> None:
        member = self.member
        delta = member.image.apply_slot(seq, [record])
        broker = member.image.brokers.get(self.id)
        member.broker_epoch = -1 if broker is None else broker.epoch
        for listener in member.listeners:
            for _ in listener(delta) or ():
                pass

    def partition(self, index: int = 0, topic: str = "t") -> Partition:
        return self.replicas._partitions[topic, index]

    def values(self, index: int = 0, topic: str = "t") -> list[bytes | None]:
        """Everything in its log, committed or not."""
        held = self.partition(index, topic).log
        found: list[bytes | None] = []
        offset = held.log_start_offset
        while offset < held.log_end_offset:
            part = held.read(offset, 1 << 20, bound=held.log_end_offset, min_one=True)
            assert part is not None
            data = part.read()
            found += [
                row.value for at, header in iter_batches(data) for row in iter_records(data, at, header)
            ]
            offset = part.next_offset
        return found


class Bucket(MemoryStore):
    """The object store of all nodes. It may be away, hang where a key ends so, or hold back answers."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = False
        self.hangs_at: str | None = None
        self.held: dict[str, asyncio.Event] = {}
        """Keys that are not answered for before their event."""
        self.ranges: list[tuple[str, int, int]] = []
        """What was read by range."""

    async def put(self, key: str, data: bytes) -> None:
        await self._answer(key)
        await super().put(key, data)

    async def delete(self, key: str) -> None:
        await self._answer(key)
        await super().delete(key)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        self.ranges.append((key, start, end))
        await self._answer(key)
        return await super().get_range(key, start, end)

    async def _answer(self, key: str) -> None:
        await asyncio.sleep(0.002)
        if self.is_away:
            raise StoreError("503")
        if self.hangs_at is not None and key.endswith(self.hangs_at):
            await asyncio.Event().wait()
        if key in self.held:
            await self.held[key].wait()


class Controller:
    """Decides as Kafka's controller does, and is never away unless told so."""

    def __init__(self, world: Replicas) -> None:
        self._world = world
        self.image = Image()
        self.log: list[Record] = []
        self.is_away = False
        self.asked: list[Fields] = []
        self.answers: Callable[[PartitionImage], ErrorCode] = lambda _: ErrorCode.none
        self.loses_answers = False

    def publish(self, record: Record) -> None:
        self.log.append(record)
        self.image.apply_slot(len(self.log), [record])
        for node in self._world.nodes.values():
            if node.is_held:
                node.held.append(record)
            elif node.life and node.process.alive:
                node.here(node.take, record, len(self.log))

    async def alter_partition(self, fields: Fields, timeout_s: float) -> Any:
        await asyncio.sleep(0.002)
        if self.is_away:
            await asyncio.sleep(timeout_s)
            raise PeerLost("the controller is away")
        self.asked.append(fields)
        request = entity(56, 3, fields)
        response = {
            "throttle_time": 0,
            "error_code": ErrorCode.none,
            "topics": [
                {
                    "topic_id": topic.topic_id,
                    "partitions": [self._alter(topic.topic_id, each) for each in topic.partitions],
                }
                for topic in request.topics
            ],
        }
        if self.loses_answers:
            raise PeerLost("the answer is lost")
        return decode_response(56, 3, encode_response(56, 3, 1, response)[4:])[1]

    def _alter(self, topic_id: UUID, asked: Any) -> Fields:
        topic = self.image.topic_by_id(topic_id)
        assert topic is not None
        known = topic.partitions[asked.partition_index]
        code = self.answers(known)
        if asked.leader_epoch != known.leader_epoch:
            code = ErrorCode.fenced_leader_epoch
        elif asked.partition_epoch != known.partition_epoch:
            code = ErrorCode.invalid_update_version
        elif any(
            not self.image.is_live(each.broker_id)
            or each.broker_epoch not in (-1, self.image.brokers[each.broker_id].epoch)
            for each in asked.new_isr_with_epochs
        ):
            code = ErrorCode.ineligible_replica
        if code is ErrorCode.none:
            isr = tuple(each.broker_id for each in asked.new_isr_with_epochs)
            leader = None if known.leader in isr else isr[0]
            self.publish(
                PartitionChanged(topic_id=topic_id, partition=asked.partition_index, isr=isr, leader=leader)
            )
            if leader is not None:
                code = ErrorCode.new_leader_elected
            topic = self.image.topic_by_id(topic_id)
            assert topic is not None
            known = topic.partitions[asked.partition_index]
        return {
            "partition_index": asked.partition_index,
            "error_code": code,
            "leader_id": known.leader,
            "leader_epoch": known.leader_epoch,
            "isr": known.isr,
            "partition_epoch": known.partition_epoch,
        }


class Replicas:
    """A few nodes, one loop. `run` a test's coroutine in it."""

    def __init__(
        self, count: int = 3, *, seed: int = 0, racks: dict[int, str] | None = None, **properties: str
    ) -> None:
        self.loop = SimLoop()
        self.fabric = Fabric(self.loop, random.Random(seed), NetworkProfile(split_chance=0.2))
        self.properties = {name.replace("_", "."): value for name, value in properties.items()}
        self.nodes: dict[int, Node] = {}
        self.store = Bucket()
        self.controller = Controller(self)
        self.on_build: list[Callable[[Node], None]] = []
        """Called with each node that begins a life, before its logs are opened."""
        self._client = Process(self.loop, "client")
        for node_id in range(1, count + 1):
            self.nodes[node_id] = Node(self, node_id, (racks or {}).get(node_id))

    def now_ms(self) -> int:
        return START_MS + int(self.loop.now * 1000)

    def run(self, main: Callable[[Replicas], Awaitable[None]]) -> None:
        async def whole() -> None:
            for node_id in self.nodes:
                await self.start(node_id)
            await main(self)
            for node in self.nodes.values():
                node.process.die()

        self.loop.run(whole())

    # ------------------------------------------------------------------------------------------------ lives

    async def start(self, node_id: int, *, is_clean: bool = False) -> None:
        """A new life, registered once its logs are open."""
        node = self.nodes[node_id]
        known = self.controller.image.brokers.get(node_id)
        node.build()
        for seq, record in enumerate(self.controller.log, 1):
            node.member.image.apply_slot(seq, [record])
        self.controller.publish(
            BrokerRegistered(
                broker_id=node_id,
                incarnation=UUID(int=node_id * 1000 + node.life),
                directories=(UUID(int=node_id),),
                endpoints=(Endpoint(listener=LISTENER, host=node.name, port=PORT),),
                rack=node.rack,
                clean_epoch=known.epoch if known is not None and is_clean else -1,
            )
        )
        ready: asyncio.Future[None] = self.loop.create_future()
        node.process.spawn(node.live(ready))
        await ready

    def kill(self, node_id: int, *, is_noticed: bool = True) -> None:
        """As SIGKILL, and the controller fences it when it is noticed."""
        self.nodes[node_id].process.die()
        if is_noticed:
            self.fence(node_id)

    def fence(self, node_id: int) -> None:
        epoch = self.controller.image.brokers[node_id].epoch
        self.controller.publish(BrokerFenced(broker_id=node_id, broker_epoch=epoch, fenced=True))

    def hold(self, node_id: int) -> None:
        self.nodes[node_id].is_held = True

    def let_go(self, node_id: int) -> None:
        node = self.nodes[node_id]
        node.is_held = False
        first = len(self.controller.log) - len(node.held) + 1
        held, node.held = node.held, []
        for seq, record in enumerate(held, first):
            node.here(node.take, record, seq)

    # ----------------------------------------------------------------------------------------------- topics

    def create(self, *replicas: int, topic: str = "t", partitions: int = 1, **configs: str) -> None:
        for name, value in configs.items():
            self.controller.publish(
                ConfigChanged(
                    resource_type=ResourceType.TOPIC,
                    resource_name=topic,
                    name=name.replace("_", "."),
                    value=value,
                )
            )
        rows = tuple(
            PartitionImage(
                index=index,
                leader=replicas[0],
                leader_epoch=0,
                partition_epoch=0,
                replicas=replicas,
                isr=replicas,
            )
            for index in range(partitions)
        )
        self.controller.publish(TopicCreated(name=topic, topic_id=self.id_of(topic), partitions=rows))

    @staticmethod
    def id_of(topic: str) -> UUID:
        return UUID(int=int.from_bytes(topic.encode()[:16]))

    def delete(self, topic: str = "t") -> None:
        self.controller.publish(TopicDeleted(topic_id=self.id_of(topic)))

    def change(
        self,
        *,
        leader: int | None = None,
        isr: tuple[int, ...] | None = None,
        replicas: tuple[int, ...] | None = None,
        adding: tuple[int, ...] | None = None,
        topic: str = "t",
        partition: int = 0,
        unclean: bool = False,
    ) -> None:
        self.controller.publish(
            PartitionChanged(
                topic_id=self.id_of(topic),
                partition=partition,
                leader=leader,
                isr=isr,
                replicas=replicas,
                adding=adding,
                unclean=unclean,
            )
        )

    def isr(self, topic: str = "t", index: int = 0) -> tuple[int, ...]:
        known = self.controller.image.partition(topic, index)
        assert known is not None
        return known.isr

    # ---------------------------------------------------------------------------------------------- clients

    async def append(self, node_id: int, *values: bytes, acks: int = -1, topic: str = "t") -> Appended:
        """A batch, as a produce request of its own brings it."""
        node = self.nodes[node_id]
        return await node.run(
            node.replicas.append(
                topic, 0, batch_of(*values), timeout_ms=30_000, required_acks=acks, origin="client"
            )
        )

    def client(self, node_id: int, port: int = PORT) -> Channel:
        network = self.fabric.endpoint("client", self._client)
        return Channel(network, self.nodes[node_id].name, port, client_id="client")

    async def fetch(self, node_id: int, offset: int, *, topic: str = "t", **changes: Any) -> Any:
        """What a consumer is answered for the first partition."""
        version = changes.pop("version", 12)
        channel = self.client(node_id)
        fields = fetch_fields(topic, offset, **changes)
        response = await channel.ask(Api.FETCH, version, fields, timeout_s=60)
        channel.close()
        return response.responses[0].partitions[0]

    async def produce(self, node_id: int, *values: bytes, topic: str = "t", **changes: Any) -> Any:
        channel = self.client(node_id)
        fields = produce_fields(topic, batch_of(*values), **{"acks": -1, **changes})
        response = await channel.ask(Api.PRODUCE, 10, fields, timeout_s=60)
        channel.close()
        return response.responses[0].partition_responses[0]

    async def ask(self, node_id: int, api: Api, version: int, *, port: int = PORT, **fields: Any) -> Any:
        channel = self.client(node_id, port)
        response = await channel.ask(api, version, fields, timeout_s=60)
        channel.close()
        return response

    async def until(self, condition: Callable[[], Any], timeout_s: float = 60) -> None:
        """In virtual time, which costs nothing."""
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110 - what is waited for is a broker's own state
                await asyncio.sleep(0.005)

    async def agree(self, *node_ids: int, topic: str = "t", index: int = 0) -> None:
        """Until the logs of these nodes end alike and everything in them is committed everywhere."""

        def facts() -> list[tuple[int, int]]:
            found = []
            for node_id in node_ids:
                held = self.nodes[node_id].partition(index, topic).log
                found.append((held.log_end_offset, held.high_watermark))
            return found

        await self.until(lambda: len({number for pair in facts() for number in pair}) == 1)
        assert len({str(self.nodes[each].values(index, topic)) for each in node_ids}) == 1
        epochs = set()
        for node_id in node_ids:
            held = self.nodes[node_id].partition(index, topic).log
            # an epoch without a record is known to whoever led it
            epochs.add(tuple(each for each in held.epochs.entries() if each[1] < held.log_end_offset))
        assert len(epochs) == 1, epochs


def log_of(world: Replicas, node_id: int, topic: str = "t") -> Any:
    return world.nodes[node_id].partition(topic=topic).log


async def _offload(call: Callable[[], T]) -> T:
    await asyncio.sleep(0)
    return call()
