"""Sends requests of transactional producers as bytes to their handlers, over logs in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from types import GeneratorType, SimpleNamespace
from typing import Any
from uuid import UUID

from broker.config.broker import from_properties
from broker.coordinators.groups.coordinator import GroupCoordinator
from broker.coordinators.transactions.coordinator import TRANSACTIONS_TOPIC, TransactionCoordinator
from broker.coordinators.transactions.marker_sender import MarkerSender
from broker.coordinators.transactions.marker_writer import Marker
from broker.handlers.coordinators import CoordinatorHandlers
from broker.handlers.transactions import TransactionHandlers
from broker.process import offload
from protocol.apis import SERVED, Api
from protocol.errors import ErrorCode, KafkaError
from protocol.messages import decode_request, decode_response, encode_request, encode_response
from protocol.wire import parse_head
from protocol.work import finish
from tests.broker.coordinators.fake_log import FakeLog, turns
from tests.broker.handlers.test_groups import LISTENER, FakeCluster, FakePartitions

NOW_MS = 1_700_000_000_000
ID = "x"


class TransactionPartitions(FakePartitions):
    def lead(self, index: int, leader_epoch: int | None) -> None:
        self.logs.setdefault(index, FakeLog())
        for listener in self.on_leadership:
            listener(TRANSACTIONS_TOPIC, index, leader_epoch)


class TransactionCluster(FakeCluster):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.next_producer_id = 1_000
        self.producer_ids = SimpleNamespace(next=self._next)
        self.offsets_partitions = 50

    async def ensure_internal(self, name: str) -> None:
        if name == TRANSACTIONS_TOPIC:
            await super().ensure_internal(name)
        elif self.refuses:
            raise KafkaError(ErrorCode.coordinator_not_available)
        else:
            self.create(name, UUID(int=51), partitions=self.offsets_partitions)

    async def _next(self) -> int:
        self.next_producer_id += 1
        return self.next_producer_id


@dataclass
class FakeMarkers:
    """The logs of this broker: markers wait at the gate, and are answered as planned."""

    written: list[Marker] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    errors: list[ErrorCode] = field(default_factory=list)
    """What the next writes fail with."""

    def __post_init__(self) -> None:
        self.gate.set()

    async def write(self, marker: Marker) -> Mapping[tuple[str, int], ErrorCode]:
        await self.gate.wait()
        self.written.append(marker)
        return dict.fromkeys(marker.partitions, self.errors.pop(0) if self.errors else ErrorCode.none)


class Client:
    def __init__(self, tasks: asyncio.TaskGroup, **settings: str) -> None:
        names = {name.replace("_", "."): value for name, value in settings.items()}
        self.config = from_properties({"node.id": "1", **names}, standalone=True)
        self.now_ms = NOW_MS
        self.replicas = TransactionPartitions()
        self.cluster: Any = TransactionCluster(self.replicas)
        world: Any = SimpleNamespace(now_ms=lambda: self.now_ms, random=Random(1))
        self.markers = FakeMarkers()
        self.peers: Any = SimpleNamespace()
        parts = {"world": world, "cluster": self.cluster, "replicas": self.replicas, "turns": turns()}
        self.sender = MarkerSender(
            node_id=1,
            image=lambda: self.cluster.image,
            peers=self.peers,
            local=self.markers,
            run=turns().run,
            spawn=tasks.create_task,
            timeout_s=1.0,
        )
        self.transactions = TransactionCoordinator(
            config=self.config,
            markers=self.sender,
            new_producer_id=self.cluster.producer_ids.next,
            **parts,
        )
        groups_of_nobody: Any = SimpleNamespace(on_leadership=[])
        self.groups = GroupCoordinator(config=self.config, **parts | {"replicas": groups_of_nobody})
        handlers = TransactionHandlers(
            transactions=self.transactions,
            groups=self.groups,
            cluster=self.cluster,
            now_ms=lambda: self.now_ms,
            turns=turns(),
            offload=offload,
        )
        finding = CoordinatorHandlers(
            groups=self.groups, transactions=self.transactions, cluster=self.cluster, turns=turns()
        )
        self.routes = {**handlers.routes(), **finding.routes()}

    async def call(self, api: Api, version: int, /, **fields: Any) -> Any:
        """Return the response; a refusal as a whole is the error code alone."""
        version = SERVED[api].max_version if version < 0 else version
        frame = memoryview(encode_request(api, version, 5, "client", fields))[4:]
        head = parse_head(frame)
        context: Any = SimpleNamespace(
            api_key=int(api),
            api_version=version,
            client_id=head.client_id,
            connection=SimpleNamespace(listener=LISTENER, peer_host="10.0.0.1"),
        )
        answer = self.routes[api](context, decode_request(api, version, frame[head.body_at :]))
        if isinstance(answer, GeneratorType):
            answered = finish(answer)
        else:
            answered = answer if isinstance(answer, Mapping) else await answer
        return decode_response(api, version, encode_response(api, version, 5, answered)[4:])[1]

    async def find(self, version: int = -1) -> Any:
        return await self.call(Api.FIND_COORDINATOR, version, key=ID, key_type=1, coordinator_keys=[ID])

    async def init(self, version: int = -1, **changes: Any) -> Any:
        fields: dict[str, Any] = {
            "transactional_id": ID,
            "transaction_timeout": 60_000,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        return await self.call(Api.INIT_PRODUCER_ID, version, **(fields | changes))

    async def begin(self, **changes: Any) -> tuple[int, int]:
        await self.find()
        reply = await self.init(**changes)
        assert reply.error_code is ErrorCode.none
        return reply.producer_id, reply.producer_epoch

    async def add(
        self,
        producer: tuple[int, int],
        *partitions: tuple[str, int],
        version: int = 3,
        transactional_id: str = ID,
        verify_only: bool = False,
    ) -> dict[tuple[str, int], ErrorCode]:
        topics = [{"name": topic, "partitions": [index]} for topic, index in partitions or (("t", 0),)]
        producer_id, epoch = producer
        one = {
            "transactional_id": transactional_id,
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "verify_only": verify_only,
            "topics": topics,
        }
        reply = await self.call(
            Api.ADD_PARTITIONS_TO_TXN,
            version,
            transactions=[one],
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=topics,
        )
        if version < 4:
            rows = reply.results_by_topic_v3_and_below
        else:
            (result,) = reply.results_by_transaction
            assert result.transactional_id == transactional_id
            rows = result.topic_results
        return {
            (topic.name, row.partition_index): row.partition_error_code
            for topic in rows
            for row in topic.results_by_partition
        }

    async def end(
        self, producer: tuple[int, int], *, committed: bool = True, version: int = -1, **changes: Any
    ) -> Any:
        producer_id, epoch = producer
        fields = {
            "transactional_id": ID,
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "committed": committed,
        }
        return await self.call(Api.END_TXN, version, **(fields | changes))

    async def describe(self, *transactional_ids: str) -> list[Any]:
        names = transactional_ids or (ID,)
        reply = await self.call(Api.DESCRIBE_TRANSACTIONS, 0, transactional_ids=names)
        return list(reply.transaction_states)

    async def state(self) -> str:
        (row,) = await self.describe()
        state: str = row.transaction_state
        return state

    async def wait_state(self, state: str) -> None:
        async with asyncio.timeout(5):
            while await self.state() != state:  # noqa: ASYNC110
                await asyncio.sleep(0.001)


NewClient = Callable[..., Awaitable[Client]]
TOPIC_ID = UUID(int=7)
