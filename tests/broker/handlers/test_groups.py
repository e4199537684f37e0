"""Group requests as bytes in every version: what goes in, what comes out, and every error of the table."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from types import GeneratorType, SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from broker.config.broker import BrokerConfig, from_properties
from broker.config.topics import log_config
from broker.config.values import ResourceType
from broker.control.image import Delta, Image
from broker.control.metadata_records import BrokerRegistered, PartitionImage, TopicCreated, TopicDeleted
from broker.coordinators.groups.coordinator import OFFSETS_TOPIC, GroupCoordinator
from broker.coordinators.topic_coordinator import partition_of
from broker.endpoint import Endpoint
from broker.handlers.consumer_groups import ConsumerGroupHandlers
from broker.handlers.coordinators import CoordinatorHandlers
from broker.handlers.groups import GroupHandlers
from broker.handlers.later import Later
from protocol.apis import SERVED, Api
from protocol.errors import ErrorCode, KafkaError
from protocol.messages import decode_request, decode_response, encode_request, encode_response
from protocol.stored.offsets import CommittedOffset, OffsetRecord
from protocol.wire import parse_head
from protocol.work import finish
from storage.policy import LogConfig
from tests.broker.coordinators.fake_log import AppendedAt, FakeLog, settle, turns
from tests.broker.coordinators.groups.group_driver import subscription
from tests.clients.group_requests import commit_fields, offset_row, topic_row

TOPIC_ID = UUID(int=7)
GROUP = "g"
LISTENER = "PLAINTEXT"


@dataclass
class FakePartitions:
    """The replica manager as far as it concerns a coordinator."""

    on_leadership: list[Callable[[str, int, int | None], None]] = field(default_factory=list)
    logs: dict[int, FakeLog] = field(default_factory=dict)

    async def append(self, topic: str, index: int, batch: bytearray, **options: Any) -> AppendedAt:
        return await self.logs.setdefault(index, FakeLog()).append(topic, index, batch, **options)

    def stands_alone(self, topic: str, index: int) -> bool:
        return self.logs.setdefault(index, FakeLog()).stands_alone(topic, index)

    def append_alone(self, topic: str, index: int, batch: bytearray, **options: Any) -> AppendedAt:
        return self.logs[index].append_alone(topic, index, batch, **options)

    def read_all(self, topic: str, index: int) -> Iterator[bytes]:
        return self.logs.setdefault(index, FakeLog()).read_all(topic, index)

    def is_replicated(self, topic: str, index: int) -> bool:
        return self.logs[index].is_replicated(topic, index)

    def lead(self, index: int, leader_epoch: int | None) -> None:
        for listener in self.on_leadership:
            listener(OFFSETS_TOPIC, index, leader_epoch)


@dataclass
class FakeCluster:
    """A cluster of one that has topic `t` with three partitions."""

    replicas: FakePartitions
    image: Image = field(default_factory=Image)
    listeners: list[Callable[[Delta], None]] = field(default_factory=list)
    refuses: bool = False
    created: int = 0
    seq: int = 0
    broker_config: BrokerConfig = field(default_factory=lambda: config())

    def __post_init__(self) -> None:
        endpoint = Endpoint(listener=LISTENER, host="broker.example", port=9093)
        self.apply(
            BrokerRegistered(
                broker_id=1, incarnation=UUID(int=1), directories=(), endpoints=(endpoint,), rack=None
            )
        )
        self.create("t", TOPIC_ID, partitions=3)

    def apply(self, record: Any) -> None:
        self.seq += 1
        delta = self.image.apply_slot(self.seq, [record])
        for listener in self.listeners:
            listener(delta)

    def create(self, name: str, topic_id: UUID, partitions: int) -> None:
        rows = tuple(
            PartitionImage(index=index, leader=1, leader_epoch=0, partition_epoch=0, replicas=(1,), isr=(1,))
            for index in range(partitions)
        )
        self.apply(TopicCreated(name=name, topic_id=topic_id, partitions=rows))

    def subscribe(self, listener: Callable[[Delta], None]) -> None:
        self.listeners.append(listener)

    def has_lost_peer(self) -> bool:
        return False

    def log_config(self, topic: str) -> LogConfig:
        return log_config(config(), self.image.config(ResourceType.TOPIC, topic))

    async def ensure_internal(self, name: str) -> None:
        self.created += 1
        await asyncio.sleep(0)
        if self.refuses:
            raise KafkaError(ErrorCode.coordinator_not_available)
        self.create(name, UUID(int=50), partitions=50)
        for index in range(50):
            self.replicas.lead(index, 0)


async def beside(call: Callable[[], Any]) -> Any:
    """Do what a broker leaves to another thread."""
    await asyncio.sleep(0)
    return call()


class Client:
    """Sends bytes through the handlers and reads the bytes that come back."""

    def __init__(self, config: BrokerConfig) -> None:
        self.replicas = FakePartitions()
        self.cluster = FakeCluster(self.replicas)
        world: Any = SimpleNamespace(now_ms=lambda: 1_700_000_000_000, random=Random(1), offload=beside)
        self.groups = GroupCoordinator(
            config=config, world=world, cluster=self.cluster, replicas=self.replicas, turns=turns()
        )
        nobody: Any = None
        finding = CoordinatorHandlers(
            groups=self.groups, transactions=nobody, cluster=self.cluster, turns=turns()
        )
        self.routes = {
            **GroupHandlers(groups=self.groups, cluster=self.cluster, turns=turns()).routes(),
            **ConsumerGroupHandlers(groups=self.groups, turns=turns()).routes(),
            **finding.routes(),
        }

    async def call(self, api: Api, version: int, /, **fields: Any) -> Any:
        """The newest version when it is negative."""
        version = SERVED[api].max_version if version < 0 else version
        frame = memoryview(encode_request(api, version, 5, "client", fields))[4:]
        head = parse_head(frame)
        context: Any = SimpleNamespace(
            api_key=int(api),
            api_version=version,
            correlation_id=5,
            client_id=head.client_id,
            connection=SimpleNamespace(listener=LISTENER, peer_host="10.0.0.1"),
        )
        request = decode_request(api, version, frame[head.body_at :])
        answer = self.routes[api](context, request)
        if isinstance(answer, Later):
            answer = await answer.wait()
        if isinstance(answer, GeneratorType):
            answered = finish(answer)
        else:
            answered = answer if isinstance(answer, Mapping) else await answer
        correlation_id, response = decode_response(
            api, version, encode_response(api, version, 5, answered)[4:]
        )
        assert correlation_id == 5
        return response

    async def find(self) -> None:
        """As every client does before it uses a group."""
        found = await self.call(Api.FIND_COORDINATOR, -1, key_type=0, coordinator_keys=[GROUP])
        assert found.coordinators[0].error_code is ErrorCode.none

    async def join(self, member_id: str = "", version: int = -1, **changes: Any) -> Any:
        fields: dict[str, Any] = {
            "group_id": GROUP,
            "session_timeout": 10_000,
            "rebalance_timeout": 60_000,
            "member_id": member_id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": subscription("t")}],
            "reason": None,
        }
        return await self.call(Api.JOIN_GROUP, version, **(fields | changes))

    async def join_known(self, version: int = -1, **changes: Any) -> Any:
        reply = await self.join(version=version, **changes)
        if reply.error_code is ErrorCode.member_id_required:
            reply = await self.join(reply.member_id, version, **changes)
        return reply

    async def sync(self, member_id: str, generation: int, version: int = -1, **changes: Any) -> Any:
        fields: dict[str, Any] = {
            "group_id": GROUP,
            "generation_id": generation,
            "member_id": member_id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [{"member_id": member_id, "assignment": b"mine"}],
        }
        return await self.call(Api.SYNC_GROUP, version, **(fields | changes))

    async def stable(self, version: int = -1, **changes: Any) -> str:
        """The member id of the only member, in generation 1."""
        joined = await self.join_known(version, **changes)
        assert joined.error_code is ErrorCode.none
        synced = await self.sync(joined.member_id, joined.generation_id)
        assert (synced.error_code, synced.assignment) == (ErrorCode.none, b"mine")
        member_id: str = joined.member_id
        return member_id

    async def beat(self, member_id: str, generation: int, version: int = -1, **changes: Any) -> ErrorCode:
        fields: dict[str, Any] = {
            "group_id": GROUP,
            "generation_id": generation,
            "member_id": member_id,
            "group_instance_id": None,
        }
        reply = await self.call(Api.HEARTBEAT, version, **(fields | changes))
        code: ErrorCode = reply.error_code
        return code

    async def commit(self, offset: int, partition: int = 0, version: int = -1, **changes: Any) -> ErrorCode:
        row = offset_row(partition, offset, changes.pop("metadata", "why"), leader_epoch=2)
        topic = topic_row(changes.pop("topic", "t"), changes.pop("topic_id", TOPIC_ID), [row])
        fields = commit_fields(GROUP, [topic]) | changes
        reply = await self.call(Api.OFFSET_COMMIT, version, **fields)
        (answered,) = reply.topics
        assert getattr(answered, "name", topic["name"]) == topic["name"]
        assert getattr(answered, "topic_id", topic["topic_id"]) == topic["topic_id"]
        (result,) = answered.partitions
        assert result.partition_index == partition
        code: ErrorCode = result.error_code
        return code

    async def fetch(self, version: int = -1, *, topics: Any = (), **changes: Any) -> tuple[ErrorCode, Any]:
        """The group's error and {(topic, partition): row}, whatever shape the version has."""
        wanted = (
            topics
            if topics is None or topics
            else [{"name": "t", "topic_id": TOPIC_ID, "partition_indexes": [0]}]
        )
        group = {"group_id": changes.get("group_id", GROUP), "topics": wanted, "member_id": None}
        stable = changes.get("require_stable", False)
        version = SERVED[Api.OFFSET_FETCH].max_version if version < 0 else version
        if version >= 8:
            reply = await self.call(Api.OFFSET_FETCH, version, groups=[group], require_stable=stable)
            (answered,) = reply.groups
            assert answered.group_id == group["group_id"]
        else:
            answered = await self.call(Api.OFFSET_FETCH, version, require_stable=stable, **group)
        rows = {
            (getattr(topic, "name", None) or topic.topic_id, row.partition_index): row
            for topic in answered.topics
            for row in topic.partitions
        }
        return getattr(answered, "error_code", ErrorCode.none), rows


@pytest.fixture
async def unstarted() -> Client:
    return Client(config())


@pytest.fixture
async def client(unstarted: Client) -> AsyncIterator[Client]:
    """A client of a coordinator that runs."""
    async with asyncio.TaskGroup() as tasks:
        await unstarted.groups.start(tasks)
        yield unstarted
        await unstarted.groups.stop()


def config(**properties: str) -> BrokerConfig:
    given = {name.replace("_", "."): value for name, value in properties.items()}
    base = {"node.id": "1", "group.initial.rebalance.delay.ms": "0", "offsets.topic.replication.factor": "1"}
    return from_properties(base | given)


def versions(api: Api) -> list[int]:
    row = SERVED[api]
    return list(range(row.min_version, row.max_version + 1))


# --- finding ---


@pytest.mark.parametrize("version", versions(Api.FIND_COORDINATOR))
async def test_the_coordinator_is_found_and_its_topic_made(client: Client, version: int) -> None:
    reply = await client.call(
        Api.FIND_COORDINATOR, version, key=GROUP, key_type=0, coordinator_keys=[GROUP, "other"]
    )
    found = reply.coordinators if version >= 4 else [reply]
    for one in found:
        assert (one.error_code, one.node_id) == (ErrorCode.none, 1)
        assert (one.host, one.port) == ("broker.example", 9093)
    if version >= 4:
        assert [one.key for one in found] == [GROUP, "other"]
    assert client.cluster.created == 1


async def test_many_first_clients_make_the_topic_once(client: Client) -> None:
    await asyncio.gather(*(client.find() for _ in range(20)))
    assert client.cluster.created == 1
    assert client.groups.statistics().partitions == 50


async def test_a_topic_that_cannot_be_made_yet_is_not_available(client: Client) -> None:
    client.cluster.refuses = True
    reply = await client.call(Api.FIND_COORDINATOR, 6, key_type=0, coordinator_keys=[GROUP, "other", GROUP])
    assert client.cluster.created == 1, "who asks for many waits for one attempt"
    assert [found.key for found in reply.coordinators] == [GROUP, "other", GROUP]
    found = reply.coordinators[0]
    assert (found.error_code, found.node_id, found.host, found.port) == (
        ErrorCode.coordinator_not_available,
        -1,
        "",
        -1,
    )
    client.cluster.refuses = False
    await client.find()


@pytest.mark.parametrize("key_type", [2, 3])
async def test_other_coordinators_are_not_here(client: Client, key_type: int) -> None:
    reply = await client.call(Api.FIND_COORDINATOR, 6, key_type=key_type, coordinator_keys=["x"])
    assert reply.coordinators[0].error_code is ErrorCode.invalid_request


async def test_a_listener_the_coordinator_lacks_is_not_available(client: Client) -> None:
    await client.find()
    endpoint = Endpoint(listener="OTHER", host="h", port=1)
    client.cluster.apply(
        BrokerRegistered(
            broker_id=1, incarnation=UUID(int=2), directories=(), endpoints=(endpoint,), rack=None
        )
    )
    reply = await client.call(Api.FIND_COORDINATOR, 6, key_type=0, coordinator_keys=[GROUP])
    assert reply.coordinators[0].error_code is ErrorCode.coordinator_not_available


def test_groups_belong_to_the_partition_java_says() -> None:
    # Math.abs(hashCode()) % 50, except that the one hash without an absolute value counts as 0.
    assert partition_of("", 50) == 0
    assert partition_of("a", 50) == 97 % 50
    assert partition_of("test-group", 50) == 12
    assert partition_of("polygenelubricants", 50) == 0
    assert partition_of("é\N{GRINNING FACE}", 50) == abs(((233 * 31) + 0xD83D) * 31 + 0xDE00) % 50


# --- membership ---


@pytest.mark.parametrize("version", versions(Api.JOIN_GROUP))
async def test_every_version_joins(client: Client, version: int) -> None:
    await client.find()
    reply = await client.join(version=version)
    if version >= 4:
        assert reply.error_code is ErrorCode.member_id_required
        assert reply.member_id.startswith("client-")
        assert reply.protocol_name == (None if version >= 7 else "")
        reply = await client.join(reply.member_id, version)
    assert (reply.error_code, reply.generation_id) == (ErrorCode.none, 1)
    assert (reply.leader, reply.protocol_name) == (reply.member_id, "range")
    assert [m.member_id for m in reply.members] == [reply.member_id]
    (member,) = client.groups.machine(GROUP).groups[GROUP].members.values()
    assert member.rebalance_timeout_ms == (10_000 if version == 0 else 60_000)
    assert member.client_host == "/10.0.0.1"


@pytest.mark.parametrize("version", versions(Api.SYNC_GROUP))
async def test_every_version_syncs(client: Client, version: int) -> None:
    await client.find()
    joined = await client.join_known()
    reply = await client.sync(joined.member_id, 1, version)
    assert (reply.error_code, reply.assignment) == (ErrorCode.none, b"mine")
    failed = await client.sync(joined.member_id, 9, version)
    assert (failed.error_code, failed.assignment) == (ErrorCode.illegal_generation, b"")


@pytest.mark.parametrize("version", versions(Api.HEARTBEAT))
async def test_every_version_beats(client: Client, version: int) -> None:
    await client.find()
    member_id = await client.stable()
    assert await client.beat(member_id, 1, version) is ErrorCode.none
    assert await client.beat(member_id, 0, version) is ErrorCode.illegal_generation


@pytest.mark.parametrize("version", versions(Api.LEAVE_GROUP))
async def test_every_version_leaves(client: Client, version: int) -> None:
    await client.find()
    member_id = await client.stable()
    strangers = [{"member_id": "stranger", "group_instance_id": None, "reason": None}]
    leaving = [{"member_id": member_id, "group_instance_id": None, "reason": "bye"}]
    first = {"group_id": GROUP, "member_id": "stranger", "members": strangers}
    reply = await client.call(Api.LEAVE_GROUP, version, **first)
    code = reply.error_code if version < 3 else reply.members[0].error_code
    assert code is ErrorCode.unknown_member_id
    second = {"group_id": GROUP, "member_id": member_id, "members": leaving}
    reply = await client.call(Api.LEAVE_GROUP, version, **second)
    assert reply.error_code is ErrorCode.none
    gone = {"group_id": "nobody's", "member_id": member_id, "members": leaving}
    reply = await client.call(Api.LEAVE_GROUP, version, **gone)
    code = reply.error_code if version < 3 else reply.members[0].error_code
    assert code is ErrorCode.unknown_member_id


async def test_a_returning_static_member_skips_the_assignment_from_version_9(client: Client) -> None:
    await client.find()
    former = await client.stable(group_instance_id="a")
    newer = await client.join(group_instance_id="a")
    assert newer.skip_assignment
    assert newer.leader == newer.member_id != former
    older = await client.join(group_instance_id="a", version=8)
    assert older.leader == newer.member_id != older.member_id


# --- the table of errors ---


async def test_the_table_of_group_errors(client: Client) -> None:
    await client.find()
    assert (await client.join(group_id="")).error_code is ErrorCode.invalid_group_id
    assert (await client.join(group_id="h")).error_code is ErrorCode.member_id_required
    assert (await client.join("stranger")).error_code is ErrorCode.unknown_member_id
    member_id = await client.stable()
    assert await client.beat(member_id, 7) is ErrorCode.illegal_generation
    other = await client.join(protocols=[{"name": "none", "metadata": b""}])
    assert other.error_code is ErrorCode.inconsistent_group_protocol
    for session_timeout in (5_999, 1_800_001):
        reply = await client.join(session_timeout=session_timeout)
        assert reply.error_code is ErrorCode.invalid_session_timeout
    assert await client.commit(1, metadata="x" * 5_000, group_id="h") is ErrorCode.offset_metadata_too_large
    joining = asyncio.ensure_future(client.join_known())
    await settle()
    assert await client.beat(member_id, 1) is ErrorCode.rebalance_in_progress
    await client.join(member_id)
    await joining


async def test_a_fenced_instance_is_told_so(client: Client) -> None:
    await client.find()
    former = await client.stable(group_instance_id="a")
    await client.join(group_instance_id="a")
    fenced = ErrorCode.fenced_instance_id
    assert await client.beat(former, 1, group_instance_id="a") is fenced
    assert (await client.sync(former, 1, group_instance_id="a")).error_code is fenced
    assert (await client.join(former, group_instance_id="a")).error_code is fenced
    changes: dict[str, Any] = {"member_id": former, "group_instance_id": "a"}
    changes["generation_id_or_member_epoch"] = 1
    assert await client.commit(1, **changes) is fenced


async def test_a_full_group_is_told_so() -> None:
    client = Client(config(group_max_size="1"))
    async with asyncio.TaskGroup() as tasks:
        await client.groups.start(tasks)
        await client.find()
        await client.stable()
        assert (await client.join()).error_code is ErrorCode.group_max_size_reached
        await client.groups.stop()


async def test_empty_group_ids_are_refused_where_members_are_meant(client: Client) -> None:
    await client.find()
    invalid = ErrorCode.invalid_group_id
    assert (await client.sync("m", 1, group_id="")).error_code is invalid
    assert await client.beat("m", 1, group_id="") is invalid
    reply = await client.call(Api.LEAVE_GROUP, -1, group_id="", members=[])
    assert reply.error_code is invalid
    reply = await client.call(Api.OFFSET_DELETE, 0, group_id="", topics=[])
    assert reply.error_code is invalid
    assert await client.commit(4, group_id="") is ErrorCode.none
    _, rows = await client.fetch(group_id="")
    assert rows[TOPIC_ID, 0].committed_offset == 4


async def test_a_sync_of_version_5_must_name_its_protocol(client: Client) -> None:
    await client.find()
    member_id = await client.stable()
    untyped = await client.sync(member_id, 1, protocol_type=None)
    assert untyped.error_code is ErrorCode.inconsistent_group_protocol
    unnamed = await client.sync(member_id, 1, protocol_name=None)
    assert unnamed.error_code is ErrorCode.inconsistent_group_protocol


async def test_who_is_not_the_coordinator_says_so(client: Client) -> None:
    await client.find()
    client.replicas.lead(partition_of(GROUP, 50), None)
    not_here = ErrorCode.not_coordinator
    assert (await client.join()).error_code is not_here
    assert (await client.sync("m", 1)).error_code is not_here
    assert await client.beat("m", 1) is not_here
    assert (await client.call(Api.LEAVE_GROUP, -1, group_id=GROUP, members=[])).error_code is not_here
    assert await client.commit(1) is not_here
    assert (await client.fetch())[0] is not_here
    _, rows = await client.fetch(1)
    assert rows["t", 0].error_code is not_here
    reply = await client.call(Api.OFFSET_DELETE, 0, group_id=GROUP, topics=[])
    assert reply.error_code is not_here
    (described,) = (await client.call(Api.DESCRIBE_GROUPS, 0, groups=[GROUP])).groups
    assert described.error_code is not_here
    (deleted,) = (await client.call(Api.DELETE_GROUPS, -1, groups_names=[GROUP])).results
    assert deleted.error_code is not_here
    assert (await client.call(Api.LIST_GROUPS, 0)).error_code is ErrorCode.none


async def test_who_still_loads_says_so_but_not_to_heartbeats(client: Client) -> None:
    await client.find()
    index = partition_of(GROUP, 50)
    client.replicas.logs[index].read_error = KafkaError(ErrorCode.kafka_storage_error)
    client.replicas.lead(index, 1)
    await settle()
    loading = ErrorCode.coordinator_load_in_progress
    assert (await client.join()).error_code is loading
    assert (await client.sync("m", 1)).error_code is loading
    assert await client.beat("m", 1) is ErrorCode.none
    assert await client.commit(1) is loading
    assert (await client.fetch())[0] is loading
    assert (await client.call(Api.LIST_GROUPS, 0)).error_code is loading


async def test_what_a_failed_append_tells_a_client(client: Client) -> None:
    await client.find()
    index = partition_of(GROUP, 50)
    await client.commit(1)
    client.replicas.logs[index].failures.append((ErrorCode.not_enough_replicas, False))
    assert await client.commit(2) is ErrorCode.coordinator_not_available
    client.replicas.logs[index].failures.append((ErrorCode.not_leader_or_follower, True))
    assert await client.commit(3) is ErrorCode.not_coordinator


# --- offsets ---


@pytest.mark.parametrize("version", versions(Api.OFFSET_COMMIT))
async def test_every_version_commits(client: Client, version: int) -> None:
    await client.find()
    assert await client.commit(42, version=version) is ErrorCode.none
    found = client.groups.machine(GROUP).durable.get(GROUP, "t", 0)
    assert found is not None
    assert (found.offset, found.metadata) == (42, "why")
    assert found.leader_epoch == (2 if version >= 6 else -1)
    assert found.topic_id == TOPIC_ID
    assert await client.commit(1, partition=3, version=version) is ErrorCode.unknown_topic_or_partition
    assert await client.commit(1, partition=-1, version=version) is ErrorCode.unknown_topic_or_partition
    changes: dict[str, Any] = {"topic": "none", "topic_id": UUID(int=99)}
    unknown = ErrorCode.unknown_topic_or_partition if version < 10 else ErrorCode.unknown_topic_id
    assert await client.commit(1, version=version, **changes) is unknown
    stale: dict[str, Any] = {"group_id": "h", "generation_id_or_member_epoch": 3, "member_id": "m"}
    missing = ErrorCode.illegal_generation if version < 9 else ErrorCode.group_id_not_found
    assert await client.commit(1, version=version, **stale) is missing


async def test_a_retention_time_of_an_old_client_is_kept(client: Client) -> None:
    await client.find()
    await client.commit(1, version=4, retention_time=5_000)
    found = client.groups.machine(GROUP).durable.get(GROUP, "t", 0)
    assert found is not None
    assert found.expire_timestamp_ms == 1_700_000_005_000


async def test_one_bad_partition_does_not_spoil_the_rest(client: Client) -> None:
    await client.find()
    rows = [
        {"partition_index": index, "committed_offset": index, "committed_metadata": ""} for index in (0, 9, 2)
    ]
    topics = [{"topic_id": TOPIC_ID, "partitions": rows}]
    reply = await client.call(Api.OFFSET_COMMIT, -1, group_id=GROUP, member_id="", topics=topics)
    unknown, fine = ErrorCode.unknown_topic_or_partition, ErrorCode.none
    assert [p.error_code for p in reply.topics[0].partitions] == [fine, unknown, fine]


@pytest.mark.parametrize("version", versions(Api.OFFSET_FETCH))
async def test_every_version_fetches(client: Client, version: int) -> None:
    await client.find()
    await client.commit(42)
    name: Any = "t" if version < 10 else TOPIC_ID
    topics = [{"name": "t", "topic_id": TOPIC_ID, "partition_indexes": [0, 1]}]
    code, rows = await client.fetch(version, topics=topics)
    assert code is ErrorCode.none
    assert (rows[name, 0].committed_offset, rows[name, 0].metadata) == (42, "why")
    assert (rows[name, 1].committed_offset, rows[name, 1].metadata) == (-1, "")
    assert rows[name, 1].error_code is ErrorCode.none
    if version >= 5:
        assert (rows[name, 0].committed_leader_epoch, rows[name, 1].committed_leader_epoch) == (2, -1)
    if version >= 2:
        code, rows = await client.fetch(version, topics=None)
        assert (code, rows.keys()) == (ErrorCode.none, {(name, 0)})
    code, rows = await client.fetch(version, group_id="nobody's")
    assert (code, rows[name, 0].committed_offset) == (ErrorCode.none, -1)


async def test_several_groups_are_fetched_at_once(client: Client) -> None:
    await client.find()
    await client.commit(1)
    await client.commit(2, group_id="h")
    wanted = [{"name": "t", "partition_indexes": [0]}]
    groups = [{"group_id": name, "topics": wanted} for name in (GROUP, "h")]
    reply = await client.call(Api.OFFSET_FETCH, 9, groups=groups)
    found = {g.group_id: g.topics[0].partitions[0].committed_offset for g in reply.groups}
    assert found == {GROUP: 1, "h": 2}


async def test_a_group_that_is_named_again_is_refused_once_there_are_many_rows(client: Client) -> None:
    await client.find()
    object.__setattr__(client.cluster.broker_config, "request_rows_max", 6)
    wanted = [{"name": "t", "partition_indexes": [0, 1, 2]}]
    groups = [{"group_id": name, "topics": wanted} for name in (GROUP, GROUP, GROUP, "h", "h")]
    reply = await client.call(Api.OFFSET_FETCH, 9, groups=groups)
    refused, fine = ErrorCode.invalid_request, ErrorCode.none
    assert [group.error_code for group in reply.groups] == [fine, fine, refused, fine, refused]


async def test_an_unknown_topic_id_is_named_so(client: Client) -> None:
    await client.find()
    strange = UUID(int=99)
    _, rows = await client.fetch(topics=[{"topic_id": strange, "partition_indexes": [0]}])
    assert rows[strange, 0].error_code is ErrorCode.unknown_topic_id


async def test_an_unstable_offset_is_held_back_on_demand(client: Client) -> None:
    await client.find()
    await client.commit(1)
    machine = client.groups.machine(GROUP)
    pending = CommittedOffset(offset=9, commit_timestamp_ms=0)
    record = OffsetRecord(group_id=GROUP, topic="t", partition=0, committed=pending)
    machine.apply(record, offset=5, producer_id=3)
    for topics in ((), None):
        _, rows = await client.fetch(topics=topics, require_stable=True)
        assert rows[TOPIC_ID, 0].error_code is ErrorCode.unstable_offset_commit
        _, rows = await client.fetch(topics=topics)
        assert rows[TOPIC_ID, 0].committed_offset == 1


async def test_a_deleted_topic_takes_its_offsets_along(client: Client) -> None:
    await client.find()
    await client.commit(1)
    client.cluster.apply(TopicDeleted(topic_id=TOPIC_ID))
    client.cluster.create("t", UUID(int=8), partitions=3)
    _, rows = await client.fetch(topics=[{"topic_id": UUID(int=8), "partition_indexes": [0]}])
    assert rows[UUID(int=8), 0].committed_offset == -1
    await settle()
    assert client.groups.machine(GROUP).durable.offsets == {}


@pytest.mark.parametrize("version", [9, 10])
async def test_an_offset_of_a_former_topic_of_that_name_is_not_this_one_s(
    client: Client, version: int
) -> None:
    await client.find()
    await client.commit(1)
    image, new_id = client.cluster.image, UUID(int=8)
    partition = PartitionImage(index=0, leader=1, leader_epoch=0, partition_epoch=0, replicas=(1,), isr=(1,))
    recreated = TopicCreated(name="t", topic_id=new_id, partitions=(partition,))
    image.apply_slot(9, [TopicDeleted(topic_id=TOPIC_ID), recreated])
    topics = [{"name": "t", "topic_id": new_id, "partition_indexes": [0]}]
    _, rows = await client.fetch(version, topics=topics)
    assert [row.committed_offset for row in rows.values()] == [-1]
    assert await client.fetch(version, topics=None) == (ErrorCode.none, {})


async def test_topics_deleted_while_a_partition_loads_are_forgotten_too(client: Client) -> None:
    await client.find()
    await client.commit(1)
    index = partition_of(GROUP, 50)
    client.replicas.lead(index, 1)
    client.cluster.apply(TopicDeleted(topic_id=TOPIC_ID))
    await settle()
    assert client.groups.machine(GROUP).durable.offsets == {}


async def test_offsets_are_deleted_one_by_one(client: Client) -> None:
    await client.find()
    member_id = await client.stable()
    changes: dict[str, Any] = {"generation_id_or_member_epoch": 1, "member_id": member_id}
    client.cluster.create("former", UUID(int=9), partitions=1)
    await client.commit(1, topic="former", topic_id=UUID(int=9), **changes)
    topics = [
        {"name": "t", "partitions": [{"partition_index": 0}, {"partition_index": 9}]},
        {"name": "former", "partitions": [{"partition_index": 0}]},
        {"name": "none", "partitions": [{"partition_index": 0}]},
    ]
    reply = await client.call(Api.OFFSET_DELETE, 0, group_id=GROUP, topics=topics)
    codes = {(t.name, p.partition_index): p.error_code for t in reply.topics for p in t.partitions}
    assert codes == {
        ("t", 0): ErrorCode.group_subscribed_to_topic,
        ("t", 9): ErrorCode.unknown_topic_or_partition,
        ("former", 0): ErrorCode.none,
        ("none", 0): ErrorCode.unknown_topic_or_partition,
    }
    reply = await client.call(Api.OFFSET_DELETE, 0, group_id="nobody's", topics=topics)
    assert reply.error_code is ErrorCode.group_id_not_found


# --- administration ---


@pytest.mark.parametrize("version", versions(Api.LIST_GROUPS))
async def test_every_version_lists(client: Client, version: int) -> None:
    await client.find()
    await client.stable()
    await client.commit(1, group_id="h")
    reply = await client.call(Api.LIST_GROUPS, version, states_filter=["STABLE"], types_filter=["classic"])
    listed = {group.group_id: group for group in reply.groups}
    assert set(listed) == ({GROUP, "h"} if version < 4 else {GROUP})
    assert listed[GROUP].protocol_type == "consumer"
    if version >= 5:
        assert (listed[GROUP].group_state, listed[GROUP].group_type) == ("Stable", "classic")
        assert not (await client.call(Api.LIST_GROUPS, version, types_filter=["share"])).groups


@pytest.mark.parametrize("version", versions(Api.DESCRIBE_GROUPS))
async def test_every_version_describes(client: Client, version: int) -> None:
    await client.find()
    member_id = await client.stable(group_instance_id="a")
    found, missing = (
        await client.call(
            Api.DESCRIBE_GROUPS,
            version,
            groups=[GROUP, "nobody's"],
            include_authorized_operations=version >= 3,
        )
    ).groups
    assert (found.group_state, found.protocol_type, found.protocol_data) == ("Stable", "consumer", "range")
    (member,) = found.members
    assert (member.member_id, member.client_id, member.client_host) == (member_id, "client", "/10.0.0.1")
    assert (member.member_assignment, member.member_metadata) == (b"mine", subscription("t"))
    if version >= 3:
        assert found.authorized_operations == 0b110101001000
    if version >= 4:
        assert member.group_instance_id == "a"
    assert missing.group_state == "Dead"
    if 3 <= version < 6:
        assert missing.authorized_operations == found.authorized_operations
    if version < 6:
        assert missing.error_code is ErrorCode.none
    else:
        assert missing.error_code is ErrorCode.group_id_not_found
        assert missing.error_message == "Group nobody's not found."


async def test_what_is_said_of_a_group_does_not_repeat_all_of_a_long_id(client: Client) -> None:
    """An answer about thousands of them would be twice as large as the request."""
    await client.find()
    for api, fields in (
        (Api.DESCRIBE_GROUPS, {"groups": ["g" * 30_000]}),
        (Api.CONSUMER_GROUP_DESCRIBE, {"group_ids": ["g" * 30_000]}),
    ):
        answer = await client.call(
            api, SERVED[api].max_version, **fields, include_authorized_operations=False
        )
        (missing,) = answer.groups
        assert missing.error_code is ErrorCode.group_id_not_found
        assert missing.error_message == f"Group {'g' * 994}…"


@pytest.mark.parametrize("version", versions(Api.DELETE_GROUPS))
async def test_every_version_deletes(client: Client, version: int) -> None:
    await client.find()
    await client.stable()
    await client.commit(1, group_id="h")
    names = [GROUP, "h", "h", "nobody's"]
    reply = await client.call(Api.DELETE_GROUPS, version, groups_names=names)
    assert {one.group_id: one.error_code for one in reply.results} == {
        GROUP: ErrorCode.non_empty_group,
        "h": ErrorCode.none,
        "nobody's": ErrorCode.group_id_not_found,
    }


# The coordinator's own life


async def test_partitions_led_before_the_start_are_loaded_with_it(unstarted: Client) -> None:
    await unstarted.cluster.ensure_internal(OFFSETS_TOPIC)
    assert unstarted.groups.statistics().partitions == 0
    async with asyncio.TaskGroup() as tasks:
        await unstarted.groups.start(tasks)
        await unstarted.find()
        assert await unstarted.commit(1) is ErrorCode.none
        await unstarted.groups.stop()


async def test_a_new_leader_epoch_reads_the_log_again(client: Client) -> None:
    await client.find()
    member_id = await client.stable()
    await client.commit(5, generation_id_or_member_epoch=1, member_id=member_id)
    client.replicas.lead(partition_of(GROUP, 50), 1)
    await client.find()
    _, rows = await client.fetch()
    assert rows[TOPIC_ID, 0].committed_offset == 5
    assert await client.beat(member_id, 1) is ErrorCode.none


async def test_offsets_expire_in_rounds() -> None:
    client = Client(config(offsets_retention_check_interval_ms="1", offsets_retention_minutes="1"))
    async with asyncio.TaskGroup() as tasks:
        await client.groups.start(tasks)
        await client.find()
        await client.commit(1, version=4, retention_time=0)
        machine = client.groups.machine(GROUP)
        for _ in range(1_000_000):
            if not machine.durable.offsets:
                break
            await asyncio.sleep(0)
        assert machine.durable.offsets == {}
        assert machine.statistics().expired_offsets == 1
        await client.groups.stop()


async def test_stopping_leaves_nobody_waiting(client: Client) -> None:
    await client.find()
    await client.stable()
    waiting = asyncio.ensure_future(client.join_known())
    await settle()
    assert client.groups.statistics().waiting == 1
    await client.groups.stop()
    assert (await waiting).error_code is ErrorCode.not_coordinator


async def test_a_group_is_described_once(client: Client) -> None:
    await client.find()
    member_id = await client.stable()
    groups = [GROUP] * 9 + ["none"]
    reply = await client.call(Api.DESCRIBE_GROUPS, 5, groups=groups, include_authorized_operations=False)
    assert [group.group_id for group in reply.groups] == [GROUP, "none"]
    assert [member.member_id for member in reply.groups[0].members] == [member_id]
