"""Visits to a broker: each does one kind of thing that makes the broker keep something, and then leaves,
politely or not.

Owns what is done. Does not own how often, nor what is measured afterwards.
Invariant: when a visit has returned and its time limits (a session, a delayed delete) have passed, the broker
holds nothing of it any more.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import zlib
from collections.abc import Callable
from typing import Any

from protocol import messages
from protocol.apis import Api
from protocol.compression import Codec
from protocol.records import build_batch
from tests.clients.blocking import FETCH_VERSION, PRODUCE_VERSION, BlockingClient, produce_fields
from tests.compat.peers import unique, until
from tests.compat.samples import FIRST_MS

LASTING = "lasting"
"""A topic that nobody produces to and nobody deletes."""
FOR_EVER_MS = 20 * 24 * 3_600_000
SESSION_MS, SHORT_SESSION_MS = 30_000, 1_000
"""Of members that leave, and of those that vanish; group.min.session.timeout.ms must allow it."""
LARGE = bytes(600_000)
BUSY_GROUP = frozenset({15, 16, 68})
"""COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, NON_EMPTY_GROUP: ask again."""
REBALANCING = ("PreparingRebalance", "CompletingRebalance")
RESET = struct.pack("ii", 1, 0)

Visit = Callable[[str], None]


def batch_of(*values: bytes, codec: int = Codec.NONE, **producer: int) -> bytes:
    return bytes(build_batch([(b"k", value, (), FIRST_MS) for value in values], codec=codec, **producer))


def fetch_fields(topic: str, *, offset: int = 0, wait_ms: int = 0, **changes: Any) -> dict[str, Any]:
    partition = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 8 << 20,
    }
    return {
        "replica_id": -1,
        "max_wait": wait_ms,
        "min_bytes": 1,
        "max_bytes": 8 << 20,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [partition]}],
        "forgotten_topics_data": [],
        "rack_id": "",
        **changes,
    }


def create(client: BlockingClient, topic: str, partitions: int = 1, **configs: str) -> None:
    row = {
        "name": topic,
        "num_partitions": partitions,
        "replication_factor": 1,
        "assignments": [],
        "configs": [{"name": name.replace("_", "."), "value": value} for name, value in configs.items()],
    }
    answer = client.call(Api.CREATE_TOPICS, 5, topics=[row], timeout=10_000, validate_only=False)
    assert answer.topics[0].error_code == 0, answer


def delete(client: BlockingClient, topic: str) -> None:
    answer = client.call(Api.DELETE_TOPICS, 5, topic_names=[topic], timeout=10_000)
    assert answer.responses[0].error_code == 0, answer


def prepare(bootstrap: str) -> None:
    """Before the first visit."""
    with BlockingClient(bootstrap) as client:
        create(client, LASTING)


class Topic(contextlib.AbstractContextManager["Topic"]):
    """A topic of its own, and a connection to it, for one visit."""

    def __init__(self, bootstrap: str, partitions: int = 1, **configs: str) -> None:
        self.name = unique("visit")
        self.client = BlockingClient(bootstrap)
        create(self.client, self.name, partitions, **configs)

    def __exit__(self, *_: object) -> None:
        with self.client:
            delete(self.client, self.name)


def reset(client: BlockingClient | socket.socket) -> None:
    """Gone without a word: the broker gets a reset, not an end of stream."""
    connection = client.socket if isinstance(client, BlockingClient) else client
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    connection.close()


def hang_up(client: BlockingClient) -> None:
    client.socket.close()


def has_request(bootstrap: str, data: bytes) -> socket.socket:
    """A connection on which these bytes were sent, behind a request that was answered."""
    client = BlockingClient(bootstrap)
    versions(client)
    client.socket.sendall(data)
    return client.socket


def versions(client: BlockingClient) -> None:
    answer = client.call(Api.API_VERSIONS, 3, client_software_name="visit", client_software_version="1")
    assert answer.error_code == 0


# ---- connections -------------------------------------------------------------------------------------------


def says_nothing(bootstrap: str) -> None:
    host, _, port = bootstrap.rpartition(":")
    socket.create_connection((host, int(port)), timeout=10).close()


def resets_at_once(bootstrap: str) -> None:
    host, _, port = bootstrap.rpartition(":")
    reset(socket.create_connection((host, int(port)), timeout=10))


def ends_in_mid_frame(bootstrap: str) -> None:
    has_request(bootstrap, (1000).to_bytes(4, "big") + b"half a frame").close()


def resets_in_a_large_frame(bootstrap: str) -> None:
    reset(has_request(bootstrap, (4 << 20).to_bytes(4, "big") + LARGE))


def talks_nonsense(bootstrap: str) -> None:
    with contextlib.closing(has_request(bootstrap, b"\x00\x00\x00\x05hello")) as connection:
        assert connection.recv(1) == b""


def leaves_before_the_answers(bootstrap: str) -> None:
    client = BlockingClient(bootstrap)
    for _ in range(50):
        client.post(Api.API_VERSIONS, 3, client_software_name="visit", client_software_version="1")
    reset(client)


# ---- producers ---------------------------------------------------------------------------------------------


def produces_in_every_codec(bootstrap: str) -> None:
    with Topic(bootstrap) as topic:
        for codec in Codec:
            for acks in (1, -1):
                batch = batch_of(b"v" * 1000, b"w" * 1000, codec=codec)
                assert topic.client.produce(topic.name, 0, batch, acks=acks).error_code == 0


def produces_as_a_new_producer(bootstrap: str) -> None:
    with Topic(bootstrap) as topic:
        produce_idempotently(topic.client, topic.name)


def produce_idempotently(client: BlockingClient, topic: str, partition: int = 0, batches: int = 3) -> None:
    answer = client.call(Api.INIT_PRODUCER_ID, 2, transactional_id=None, transaction_timeout=60_000)
    assert answer.error_code == 0
    for number in range(batches):
        batch = batch_of(b"once", producer_id=answer.producer_id, producer_epoch=0, base_sequence=number)
        assert client.produce(topic, partition, batch).error_code == 0


def leaves_while_acks_all_waits(bootstrap: str) -> None:
    with Topic(bootstrap) as topic:
        leaving = BlockingClient(bootstrap)
        for _ in range(30):
            leaving.post(
                Api.PRODUCE, PRODUCE_VERSION, **produce_fields(topic.name, 0, batch_of(b"unsure"), acks=-1)
            )
        reset(leaving)
        assert topic.client.produce(topic.name, 0, batch_of(b"sure")).error_code == 0


def keeps_producing_to_what_is_deleted(bootstrap: str) -> None:
    """Its connection has learnt the topic by heart, and outlives it."""
    with BlockingClient(bootstrap) as producer:
        with Topic(bootstrap) as topic:
            for _ in range(3):
                assert producer.produce(topic.name, 0, batch_of(b"here")).error_code == 0
        assert producer.produce(topic.name, 0, batch_of(b"there")).error_code == 3


# ---- consumers ---------------------------------------------------------------------------------------------


def leaves_in_a_long_poll(bootstrap: str) -> None:
    for leave in (reset, hang_up):
        waiting = BlockingClient(bootstrap)
        waiting.post(Api.FETCH, FETCH_VERSION, **fetch_fields(LASTING, wait_ms=FOR_EVER_MS))
        leave(waiting)


def leaves_in_a_long_poll_with_more_to_ask(bootstrap: str) -> None:
    """What stands behind the long poll keeps the broker from reading on, and so from hearing of the end."""
    for leave in (reset, hang_up):
        waiting = BlockingClient(bootstrap)
        waiting.post(Api.FETCH, FETCH_VERSION, **fetch_fields(LASTING, wait_ms=FOR_EVER_MS))
        waiting.post(Api.API_VERSIONS, 3, client_software_name="v", client_software_version="1")
        leave(waiting)


def polls_until_the_topic_is_deleted(bootstrap: str) -> None:
    with BlockingClient(bootstrap) as waiting:
        with Topic(bootstrap) as topic:
            waiting.post(Api.FETCH, FETCH_VERSION, **fetch_fields(topic.name, wait_ms=FOR_EVER_MS))
        waiting.frame()


def reads_in_a_session(bootstrap: str) -> None:
    with Topic(bootstrap) as topic:
        assert topic.client.produce(topic.name, 0, batch_of(b"read me")).error_code == 0
        fields = fetch_fields(topic.name, session_epoch=0)
        session = topic.client.call(Api.FETCH, FETCH_VERSION, **fields).session_id
        assert session
        for epoch in (1, 2, 3):
            changes = {"session_id": session, "session_epoch": epoch, "topics": []}
            answer = topic.client.call(Api.FETCH, FETCH_VERSION, **fetch_fields(topic.name, **changes))
            assert answer.error_code == 0
        closing = {"session_id": session, "session_epoch": -1, "topics": []}
        topic.client.call(Api.FETCH, FETCH_VERSION, **fetch_fields(topic.name, **closing))


def leaves_with_megabytes_unread(bootstrap: str) -> None:
    with Topic(bootstrap) as topic:
        for _ in range(10):
            assert topic.client.produce(topic.name, 0, batch_of(LARGE)).error_code == 0
        for leave in (reset, hang_up):
            deaf = BlockingClient(bootstrap)
            for _ in range(5):
                deaf.post(Api.FETCH, FETCH_VERSION, **fetch_fields(topic.name))
            assert deaf.socket.recv(1000)
            leave(deaf)


# ---- groups ------------------------------------------------------------------------------------------------


def join_fields(group: str, member_id: str = "", *, session_ms: int = SHORT_SESSION_MS) -> dict[str, Any]:
    return {
        "group_id": group,
        "session_timeout": session_ms,
        "rebalance_timeout": FOR_EVER_MS,
        "member_id": member_id,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff"}],
    }


class Group(contextlib.AbstractContextManager["Group"]):
    """A group of its own, deleted at the end, once those who left without a word are out of it."""

    def __init__(self, bootstrap: str) -> None:
        self.name = unique("visitors")
        self.bootstrap = bootstrap
        self.client = BlockingClient(bootstrap)
        until(self._is_coordinated, f"the coordinator of {self.name}")

    def _is_coordinated(self) -> bool:
        found = self.client.call(Api.FIND_COORDINATOR, 3, key=self.name, key_type=0)
        return bool(found.error_code == 0)

    def state(self) -> str:
        asked = {"groups": [self.name], "include_authorized_operations": False}
        return str(self.client.call(Api.DESCRIBE_GROUPS, 5, **asked).groups[0].group_state)

    def join(self, client: BlockingClient, session_ms: int = SESSION_MS) -> tuple[str, int]:
        """Its member id and generation, as a member that is alone or leads."""
        asked = client.call(Api.JOIN_GROUP, 5, **join_fields(self.name, session_ms=session_ms))
        fields = join_fields(self.name, asked.member_id, session_ms=session_ms)
        joined = client.call(Api.JOIN_GROUP, 5, **fields)
        assert joined.error_code == 0, joined
        synced = client.call(Api.SYNC_GROUP, 3, **self.sync_fields(joined.member_id, joined.generation_id))
        assert synced.error_code == 0, synced
        return str(joined.member_id), int(joined.generation_id)

    def sync_fields(self, member_id: str, generation: int) -> dict[str, Any]:
        return {
            "group_id": self.name,
            "generation_id": generation,
            "member_id": member_id,
            "group_instance_id": None,
            "assignments": [{"member_id": member_id, "assignment": b"all"}],
        }

    def commit(self, topic: str, member_id: str, generation: int) -> None:
        row = {"partition_index": 0, "committed_offset": 7, "committed_leader_epoch": -1}
        answer = self.client.call(
            Api.OFFSET_COMMIT,
            7,
            group_id=self.name,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=None,
            topics=[{"name": topic, "partitions": [{**row, "committed_metadata": None}]}],
        )
        assert answer.topics[0].partitions[0].error_code == 0, answer

    def __exit__(self, kind: object, *_: object) -> None:
        with self.client:
            if kind is None:
                until(self._is_deleted, f"group {self.name} to be deleted")

    def _is_deleted(self) -> bool:
        code = self.client.call(Api.DELETE_GROUPS, 2, groups_names=[self.name]).results[0].error_code
        assert code in (0, 69) or code in BUSY_GROUP, code
        return code not in BUSY_GROUP


def joins_commits_and_leaves(bootstrap: str) -> None:
    with Topic(bootstrap) as topic, Group(bootstrap) as group:
        member_id, generation = group.join(group.client)
        group.commit(topic.name, member_id, generation)
        leaver = {"member_id": member_id, "group_instance_id": None}
        answer = group.client.call(Api.LEAVE_GROUP, 4, group_id=group.name, members=[leaver])
        assert answer.error_code == 0


def commits_to_a_topic_that_is_deleted(bootstrap: str) -> None:
    with Group(bootstrap) as group:
        with Topic(bootstrap) as topic:
            member_id, generation = group.join(group.client)
            group.commit(topic.name, member_id, generation)
        leaver = {"member_id": member_id, "group_instance_id": None}
        group.client.call(Api.LEAVE_GROUP, 4, group_id=group.name, members=[leaver])


def leaves_in_a_join(bootstrap: str) -> None:
    """Waits for a member that has gone as well, and then does not wait."""
    with Group(bootstrap) as group, BlockingClient(bootstrap) as first:
        group.join(first, SHORT_SESSION_MS)
        second = BlockingClient(bootstrap)
        asked = second.call(Api.JOIN_GROUP, 5, **join_fields(group.name))
        second.post(Api.JOIN_GROUP, 5, **join_fields(group.name, asked.member_id))
        until(lambda: group.state() in REBALANCING, "the second member to join")
        reset(second)


def leaves_in_a_sync(bootstrap: str) -> None:
    """A follower that waits for the assignment of a leader that never sends one."""
    with Group(bootstrap) as group:
        leader, follower = BlockingClient(bootstrap), BlockingClient(bootstrap)
        fields = join_fields(group.name)
        ids = [each.call(Api.JOIN_GROUP, 5, **fields).member_id for each in (leader, follower)]
        leader.post(Api.JOIN_GROUP, 5, **join_fields(group.name, ids[0]))
        follower.post(Api.JOIN_GROUP, 5, **join_fields(group.name, ids[1]))
        _, joined = messages.decode_response(Api.JOIN_GROUP, 5, follower.frame())
        follower.post(Api.SYNC_GROUP, 3, **group.sync_fields(ids[1], joined.generation_id))
        reset(follower)
        reset(leader)


def asks_for_a_member_id_and_no_more(bootstrap: str) -> None:
    with Group(bootstrap) as group:
        group.client.call(Api.JOIN_GROUP, 5, **join_fields(group.name))


# ---- administration ----------------------------------------------------------------------------------------


def changes_a_topic(bootstrap: str) -> None:
    with Topic(bootstrap, 2) as topic:
        client, name = topic.client, topic.name
        for _ in range(5):
            assert client.produce(name, 0, batch_of(b"v")).error_code == 0
        change = {"name": "segment.bytes", "config_operation": 0, "value": "1048576"}
        resource = {"resource_type": 2, "resource_name": name, "configs": [change]}
        answer = client.call(Api.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False)
        assert answer.responses[0].error_code == 0
        more = {"name": name, "count": 4, "assignments": None}
        grown = client.call(Api.CREATE_PARTITIONS, 3, topics=[more], timeout=10_000, validate_only=False)
        assert grown.results[0].error_code == 0
        cut = {"name": name, "partitions": [{"partition_index": 0, "offset": 3}]}
        deleted = client.call(Api.DELETE_RECORDS, 2, topics=[cut], timeout=10_000)
        assert deleted.topics[0].partitions[0].low_watermark == 3


def asks_around(bootstrap: str) -> None:
    with Topic(bootstrap) as topic:
        client, name = topic.client, topic.name
        versions(client)
        client.call(Api.DESCRIBE_LOG_DIRS, 4, topics=None)
        client.call(Api.LIST_GROUPS, 4, states_filter=[])
        client.call(Api.DESCRIBE_CLUSTER, 1, include_cluster_authorized_operations=False, endpoint_type=1)
        described = client.call(
            Api.DESCRIBE_CONFIGS,
            4,
            resources=[{"resource_type": 2, "resource_name": name, "configuration_keys": None}],
            include_synonyms=True,
            include_documentation=False,
        )
        assert described.results[0].error_code == 0
        producers = [{"name": name, "partition_indexes": [0]}]
        assert client.call(Api.DESCRIBE_PRODUCERS, 0, topics=producers).topics


def fails_in_every_way(bootstrap: str) -> None:
    """Errors by topic, group and offset that do not exist: nothing is kept of names that were only asked."""
    with Group(bootstrap) as group:
        client, nowhere = group.client, unique("nowhere")
        assert client.produce(nowhere, 0, batch_of(b"v")).error_code == 3
        assert client.fetch(nowhere, 0, 0).error_code == 3
        client.call(Api.DESCRIBE_GROUPS, 5, groups=[nowhere], include_authorized_operations=False)
        stranger = {"generation_id": 1, "member_id": "nobody", "group_instance_id": None}
        assert client.call(Api.HEARTBEAT, 4, group_id=group.name, **stranger).error_code == 25
        resource = {"resource_type": 2, "resource_name": nowhere, "configuration_keys": None}
        client.call(
            Api.DESCRIBE_CONFIGS,
            4,
            resources=[resource],
            include_synonyms=False,
            include_documentation=False,
        )


VISITS: tuple[Visit, ...] = (
    says_nothing,
    resets_at_once,
    ends_in_mid_frame,
    resets_in_a_large_frame,
    talks_nonsense,
    leaves_before_the_answers,
    produces_in_every_codec,
    produces_as_a_new_producer,
    leaves_while_acks_all_waits,
    keeps_producing_to_what_is_deleted,
    leaves_in_a_long_poll,
    leaves_in_a_long_poll_with_more_to_ask,
    polls_until_the_topic_is_deleted,
    reads_in_a_session,
    leaves_with_megabytes_unread,
    joins_commits_and_leaves,
    commits_to_a_topic_that_is_deleted,
    leaves_in_a_join,
    leaves_in_a_sync,
    asks_for_a_member_id_and_no_more,
    changes_a_topic,
    asks_around,
    fails_in_every_way,
)


def order(visit: Visit) -> int:
    """An order that is always the same and mixes the kinds."""
    return zlib.crc32(visit.__name__.encode())
