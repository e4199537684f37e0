"""Bad input and what it is answered: each row of Kafka's behaviour that meets the data path."""

from __future__ import annotations

import gc
import logging
import traceback
from pathlib import Path
from struct import pack
from typing import TYPE_CHECKING, Any

import pytest

from protocol.apis import SERVED, Api
from protocol.compression import Codec
from protocol.errors import ErrorCode, KafkaError
from tests.broker.raw_client import RawClient, batch_of, create_topic, fetch_fields, produce_fields

if TYPE_CHECKING:
    from broker.server import Broker
    from tests.conftest import MakeBroker

GOOD = batch_of(b"a", b"b")


def changed(at: int, data: bytes, *, batch: bytes = GOOD, fix_crc: bool = True) -> bytes:
    """The batch with some bytes of its header replaced, its CRC computed again."""
    from crc32c import crc32c

    out = bytearray(batch)
    out[at : at + len(data)] = data
    if fix_crc:
        out[17:21] = pack(">I", crc32c(bytes(out[21:])))
    return bytes(out)


# --- frames and headers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(pack(">i", -1), id="negative size"),
        pytest.param(pack(">i", 2**31 - 1), id="largest size"),
        pytest.param(pack(">i", 100 * 1024 * 1024 + 1), id="one above socket.request.max.bytes"),
        pytest.param(pack(">i", 0), id="empty frame"),
        pytest.param(pack(">ihh", 4, 18, 0), id="short header"),
        pytest.param(pack(">ihhih", 10, 999, 0, 1, -1), id="unknown api"),
        pytest.param(pack(">ihhih", 10, 3, 99, 1, -1), id="unsupported version"),
        pytest.param(pack(">ihhih", 10, 0, 2, 1, -1), id="Produce 2, listed but not served"),
        pytest.param(pack(">ihhih", 10, 3, 1, 1, 500), id="client id longer than the frame"),
        pytest.param(pack(">ihhih", 10, 3, 1, 1, -7), id="client id of negative length"),
        pytest.param(pack(">ihhihi", 14, 3, 1, 1, -1, 2**30), id="array longer than the rest"),
        pytest.param(pack(">ihhihi", 14, 0, 8, 1, -1, 5), id="Produce cut short"),
        pytest.param(pack(">ihhihi", 14, 1, 11, 1, -1, 5), id="Fetch cut short"),
    ],
)
async def test_broken_requests_close_the_connection_without_an_answer(broker: Broker, data: bytes) -> None:
    async with await RawClient.open(broker) as client:
        await client.send(data)
        assert await client.is_closed()
    async with await RawClient.open(broker) as client:
        assert (await client.call(Api.API_VERSIONS, 0)).error_code is ErrorCode.none


@pytest.mark.parametrize("version", [5, 99, 32767, -1])
async def test_an_unknown_version_of_api_versions_is_answered_in_version_0_with_the_ranges(
    broker: Broker, version: int
) -> None:
    async with await RawClient.open(broker) as client:
        await client.send_frame(pack(">hhih", Api.API_VERSIONS, version, 7, -1) + b"\x00nonsense")
        response = await client.receive_as(Api.API_VERSIONS, 0)
        assert client.answered == 7
        assert response.error_code is ErrorCode.unsupported_version
        ranges = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}
        assert ranges == {int(key): (row.min_version, row.max_version) for key, row in SERVED.items()}


async def test_requests_before_a_broken_one_are_answered(broker: Broker) -> None:
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        good = client.encode(Api.PRODUCE, 9, produce_fields("t", GOOD))
        await client.send(good + pack(">i", -5))
        response = await client.receive_as(Api.PRODUCE, 9)
        assert response.responses[0].partition_responses[0].error_code is ErrorCode.none
        assert await client.is_closed()


async def test_a_clients_mistakes_leave_no_stack_trace(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        for frame in (b"", b"\xff" * 40, pack(">hhih", 3, 1, 1, -1) + b"\x7f\xff\xff\xff"):
            async with await RawClient.open(broker) as client:
                await client.send_frame(frame)
                assert await client.is_closed()
    assert not [record for record in caplog.records if record.exc_info]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


# --- Produce ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "code"),
    [
        pytest.param(None, 87, id="null records"),
        pytest.param(b"", 87, id="empty records"),
        pytest.param(GOOD + GOOD, 87, id="two batches"),
        pytest.param(GOOD[:-1], 87, id="batch cut short"),
        pytest.param(changed(16, b"\x01"), 87, id="magic 1"),
        pytest.param(changed(16, b"\x07"), 2, id="magic 7"),
        pytest.param(changed(8, pack(">i", 13)), 2, id="batch length below 14"),
        pytest.param(changed(8, pack(">i", 40))[:52], 2, id="size below a header"),
        pytest.param(changed(30, b"\x55", fix_crc=False), 2, id="wrong CRC"),
        pytest.param(changed(0, pack(">q", 4)), 87, id="base offset not 0"),
        pytest.param(changed(57, pack(">i", 0)), 87, id="no records"),
        pytest.param(changed(57, pack(">i", 3)), 87, id="count against last offset delta"),
        pytest.param(changed(23, pack(">i", 7)), 87, id="last offset delta against count"),
        pytest.param(changed(21, pack(">h", 0x20)), 87, id="control bit"),
        pytest.param(changed(21, pack(">h", 5)), 87, id="codec 5"),
        pytest.param(changed(43, pack(">qhi", 5, 0, -1)), 87, id="producer id without sequence"),
    ],
)
async def test_bad_record_sets(broker: Broker, records: bytes | None, code: int) -> None:
    topic_id = await create_topic(broker, "t")
    held = broker.components.replicas.partition("t", 0).log
    async with await RawClient.open(broker) as client:
        for version in (3, 8, 9, 13):
            # the long way, then past the template that a good request left
            for _ in range(2):
                end = held.log_end_offset
                answer = await client.produce("t", records, version=version, topic_id=topic_id)
                assert answer.error_code == ErrorCode(code)
                assert answer.base_offset == -1
                assert held.log_end_offset == end
                answer = await client.produce("t", GOOD, version=version, topic_id=topic_id)
                assert (answer.error_code, answer.base_offset) == (ErrorCode.none, end)


async def test_zstd_needs_produce_7(broker: Broker) -> None:
    await create_topic(broker, "t")
    batch = batch_of(b"a" * 100, codec=Codec.ZSTD)
    async with await RawClient.open(broker) as client:
        for version, code in ((6, ErrorCode.unsupported_compression_type), (7, ErrorCode.none)):
            for _ in range(2):
                assert (await client.produce("t", batch, version=version)).error_code is code
        # a template learned from a plain batch does not let a zstd one through
        await client.produce("t", GOOD, version=6)
        answer = await client.produce("t", batch, version=6)
        assert answer.error_code is ErrorCode.unsupported_compression_type


async def test_zstd_topics_need_fetch_10(broker: Broker) -> None:
    await create_topic(broker, "z", compression_type="zstd")
    async with await RawClient.open(broker) as client:
        await client.produce("z", GOOD)
        answer = await client.fetch("z", 0, version=9)
        assert answer.error_code is ErrorCode.unsupported_compression_type
        assert (await client.fetch("z", 0, version=10)).error_code is ErrorCode.none


async def test_invalid_acks(broker: Broker) -> None:
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        for acks in (2, 2, -2, -2, 32767):
            assert (await client.produce("t", GOOD, acks=acks)).error_code is ErrorCode.invalid_required_acks


async def test_unknown_and_internal_topics(broker: Broker) -> None:
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        unknown, internal = ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_topic_exception
        assert (await client.produce("missing", GOOD)).error_code is unknown
        assert (await client.produce("t", GOOD, index=9)).error_code is unknown
        assert (await client.produce("t", GOOD, index=-1)).error_code is unknown
        for topic in ("__consumer_offsets", "__transaction_state", "__remote_log_metadata"):
            assert (await client.produce(topic, GOOD)).error_code is internal
        answer = await client.produce("", GOOD, version=13, topic_id=_other_id(broker))
        assert answer.error_code is ErrorCode.unknown_topic_id


def _other_id(broker: Broker) -> Any:
    from uuid import UUID

    return UUID(int=broker.world.random.getrandbits(128))


async def test_too_large_batches(broker: Broker) -> None:
    await create_topic(broker, "small", max_message_bytes="200")
    await create_topic(broker, "short", segment_bytes="1048576", max_message_bytes="2000000")
    async with await RawClient.open(broker) as client:
        for _ in range(2):
            assert (await client.produce("small", batch_of(b"x"))).error_code is ErrorCode.none
            answer = await client.produce("small", batch_of(b"x" * 500))
            assert answer.error_code is ErrorCode.message_too_large
        answer = await client.produce("short", batch_of(b"x" * 1_100_000))
        assert answer.error_code is ErrorCode.record_list_too_large


async def find_transactions(client: RawClient) -> None:
    """Have the coordinator of `tx` made; until then nobody can say what its transaction includes."""
    found = await client.call(Api.FIND_COORDINATOR, 6, key_type=1, coordinator_keys=["tx"])
    assert found.coordinators[0].error_code is ErrorCode.none


async def test_transactional_batches_without_a_transaction(broker: Broker) -> None:
    await create_topic(broker, "t")
    batch = batch_of(b"a", transactional=True, producer_id=5, producer_epoch=0, base_sequence=0)
    async with await RawClient.open(broker) as client:
        answer = await client.produce("t", batch)
        assert answer.error_code is ErrorCode.transactional_id_authorization_failed
        await find_transactions(client)
        answer = await client.produce("t", batch, transactional_id="tx")
        assert answer.error_code is ErrorCode.invalid_producer_id_mapping
        data = client.encode(Api.PRODUCE, 11, produce_fields("t", batch, transactional_id="tx"))
        await client.send(data)
        assert pack(">ih", 0, 49) in await client.receive()


def frames_held_by_errors() -> int:
    gc.collect()
    return sum(
        len(traceback.extract_tb(each.__traceback__))
        for each in gc.get_objects()
        if isinstance(each, KafkaError)
    )


@pytest.mark.parametrize("version", [10, 11])
async def test_a_refused_request_leaves_nothing_behind(broker: Broker, version: int) -> None:
    """No error keeps a traceback: its frames refer to the read buffer."""
    await create_topic(broker, "t")
    batch = batch_of(bytes(1000), transactional=True, producer_id=5, producer_epoch=0, base_sequence=0)
    async with await RawClient.open(broker) as client:
        await find_transactions(client)
        held = frames_held_by_errors()
        for _ in range(20):
            answer = await client.produce("t", batch, transactional_id="tx", version=version)
            assert answer.error_code is ErrorCode.invalid_producer_id_mapping
    assert frames_held_by_errors() <= held


async def test_compacted_topics_want_keys(broker: Broker) -> None:
    await create_topic(broker, "c", cleanup_policy="compact")
    async with await RawClient.open(broker) as client:
        answer = await client.produce("c", batch_of(b"x", b"y", key=None))
        assert answer.error_code is ErrorCode.invalid_record
        assert [error.batch_index for error in answer.record_errors] == [0, 1]
        assert (await client.produce("c", GOOD)).error_code is ErrorCode.none


async def test_timestamps_out_of_range(broker: Broker) -> None:
    await create_topic(broker, "t", message_timestamp_before_max_ms="1000")
    async with await RawClient.open(broker) as client:
        now = broker.world.now_ms()
        assert (await client.produce("t", batch_of(b"x", timestamp=now))).error_code is ErrorCode.none
        answer = await client.produce("t", batch_of(b"x", timestamp=now - 60_000))
        assert answer.error_code is ErrorCode.invalid_timestamp


@pytest.mark.parametrize("is_repeated", [False, True], ids=["long way", "template"])
@pytest.mark.parametrize("records", [None, changed(30, b"\x55", fix_crc=False)], ids=["null", "crc"])
async def test_acks_0_has_no_answer_and_closes_on_an_error(
    broker: Broker, records: bytes | None, is_repeated: bool
) -> None:
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        if is_repeated:
            await client.send(client.encode(Api.PRODUCE, 9, produce_fields("t", GOOD, acks=0)))
            await client.call(Api.API_VERSIONS, 0)
        await client.send(client.encode(Api.PRODUCE, 9, produce_fields("t", records, acks=0)))
        assert await client.is_closed()


async def test_idempotence(broker: Broker) -> None:
    await create_topic(broker, "t")

    def batch(sequence: int, epoch: int = 0, producer: int = 7) -> bytes:
        return batch_of(b"x", b"y", producer_id=producer, producer_epoch=epoch, base_sequence=sequence)

    async with await RawClient.open(broker) as client:
        offsets = [(await client.produce("t", batch(2 * at))).base_offset for at in range(6)]
        assert offsets == [0, 2, 4, 6, 8, 10]
        for at in range(1, 6):
            repeated = await client.produce("t", batch(2 * at))
            assert (repeated.error_code, repeated.base_offset) == (ErrorCode.none, 2 * at)
        out_of_order = ErrorCode.out_of_order_sequence_number
        assert (await client.produce("t", batch(0))).error_code is out_of_order
        assert (await client.produce("t", batch(20))).error_code is out_of_order
        assert (await client.produce("t", batch(4, epoch=1))).error_code is out_of_order
        assert (await client.produce("t", batch(0, epoch=1))).error_code is ErrorCode.none
        assert (await client.produce("t", batch(12, epoch=0))).error_code is ErrorCode.invalid_producer_epoch
        assert (await client.produce("t", batch(500, producer=99))).error_code is ErrorCode.none


# --- Fetch --------------------------------------------------------------------------------------------------


async def test_fetch_errors(broker: Broker) -> None:
    topic_id = await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        await client.produce("t", GOOD)
        for offset in (-1, 3, 100):
            answer = await client.fetch("t", offset)
            assert answer.error_code is ErrorCode.offset_out_of_range
            assert (answer.high_watermark, answer.records) == (-1, b"")
        unknown = ErrorCode.unknown_topic_or_partition
        assert (await client.fetch("missing", 0)).error_code is unknown
        assert (await client.fetch("t", 0, index=5)).error_code is unknown
        answer = await client.fetch("", 0, version=13, topic_id=_other_id(broker))
        assert answer.error_code is ErrorCode.unknown_topic_id
        answer = await client.fetch("", 0, version=13, topic_id=topic_id)
        assert answer.error_code is ErrorCode.none
        answer = await client.fetch("t", 0, current_leader_epoch=5)
        assert answer.error_code is ErrorCode.unknown_leader_epoch


async def test_a_follower_that_is_none_is_told_so(broker: Broker) -> None:
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        answer = await client.fetch("t", 0, version=11, replica_id=2)
        assert answer.error_code is ErrorCode.not_leader_or_follower
        answer = await client.fetch("t", 0, version=11, replica_id=2, current_leader_epoch=0)
        assert answer.error_code is ErrorCode.unknown_leader_epoch


async def test_fetch_session_errors(broker: Broker) -> None:
    topic_id = await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        answer = await client.call(Api.FETCH, 12, **fetch_fields("t", 0, session_id=77, session_epoch=1))
        assert answer.error_code is ErrorCode.fetch_session_id_not_found
        created = await client.call(Api.FETCH, 12, **fetch_fields("t", 0, session_epoch=0))
        assert created.session_id > 0
        in_session: dict[str, Any] = {"session_id": created.session_id, "topics": []}
        answer = await client.call(Api.FETCH, 12, **fetch_fields("t", 0, session_epoch=5) | in_session)
        assert answer.error_code is ErrorCode.invalid_fetch_session_epoch
        fields = fetch_fields("", 0, session_epoch=1, topic_id=topic_id) | in_session
        answer = await client.call(Api.FETCH, 13, **fields)
        assert answer.error_code is ErrorCode.fetch_session_topic_id_error


# --- offsets ------------------------------------------------------------------------------------------------


async def list_offset(client: RawClient, timestamp: int, *, version: int = 11, **changes: Any) -> Any:
    partition = {
        "partition_index": changes.pop("index", 0),
        "timestamp": timestamp,
        "current_leader_epoch": -1,
    }
    topics = [{"name": changes.pop("topic", "t"), "partitions": [partition | changes]}]
    response = await client.call(
        Api.LIST_OFFSETS, version, replica_id=-1, isolation_level=0, topics=topics, timeout=1000
    )
    return response.topics[0].partitions[0]


async def test_a_partition_named_twice_among_many_is_found_without_delay(broker: Broker) -> None:
    await create_topic(broker, "t")
    partitions = [
        {"partition_index": index, "timestamp": -1, "current_leader_epoch": -1}
        for index in (0, 1, *range(20_000))
    ]
    topics = [{"name": "t", "partitions": partitions}]
    async with await RawClient.open(broker) as client:
        response = await client.call(
            Api.LIST_OFFSETS, 6, replica_id=-1, isolation_level=0, topics=topics, timeout=0
        )
        codes = [each.error_code for each in response.topics[0].partitions]
        assert codes[:3] == [ErrorCode.invalid_request] * 2 + [ErrorCode.unknown_topic_or_partition]


async def test_list_offsets_errors(broker: Broker) -> None:
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        for timestamp, version in ((-3, 6), (-4, 7), (-5, 8), (-6, 10), (-7, 11), (-100, 11)):
            answer = await list_offset(client, timestamp, version=version)
            assert answer.error_code is ErrorCode.unsupported_version
        unknown = ErrorCode.unknown_topic_or_partition
        assert (await list_offset(client, -1, topic="missing")).error_code is unknown
        answer = await list_offset(client, -1, current_leader_epoch=9)
        assert answer.error_code is ErrorCode.unknown_leader_epoch


async def test_init_producer_id_without_transactions(broker: Broker) -> None:
    async with await RawClient.open(broker) as client:

        async def ask(**fields: Any) -> Any:
            given = {
                "transactional_id": None,
                "transaction_timeout": 1000,
                "producer_id": -1,
                "producer_epoch": -1,
            }
            return await client.call(Api.INIT_PRODUCER_ID, 5, **given | fields)

        assert (await ask(transactional_id="")).error_code is ErrorCode.invalid_request
        assert (await ask(producer_id=4)).error_code is ErrorCode.invalid_request
        first, second = await ask(), await ask()
        assert first.error_code is ErrorCode.none
        assert second.producer_id > first.producer_id >= 0
        assert first.producer_epoch == 0


# --- disks --------------------------------------------------------------------------------------------------


async def test_a_failing_disk_answers_56_and_6_to_old_fetches(
    make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With a second disk: a broker ends when its last one is lost."""
    broker = await make_broker(log_dirs=f"{tmp_path}/one,{tmp_path}/two")
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        await client.produce("t", GOOD)
        held: Any = broker.components.replicas.partition("t", 0).log

        def fail(buffers: Any) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(type(held._active.file), "writev", lambda self, buffers: fail(buffers))
        storage_error = ErrorCode.kafka_storage_error
        assert (await client.produce("t", GOOD)).error_code is storage_error
        monkeypatch.undo()
        assert (await client.produce("t", GOOD)).error_code is storage_error
        assert (await client.produce("t", GOOD, acks=-1)).error_code is storage_error
        assert (await client.fetch("t", 0, version=12)).error_code is storage_error
        assert (await client.fetch("t", 0, version=5)).error_code is ErrorCode.not_leader_or_follower
