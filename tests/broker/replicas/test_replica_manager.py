"""What happens to a partition while its disk is at work: nothing of it may take the broker down."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from broker.control.topics import CreatePartitions, MorePartitions
from broker.net.connection import Connection
from broker.replicas import replica_manager
from broker.replicas.partition import Partition
from protocol.apis import Api
from protocol.errors import ErrorCode, KafkaError
from protocol.messages import decode_response, encode_request
from protocol.records import parse_header
from storage.flush import SegmentFlush
from storage.log import LogOffline, LogSlice
from storage.unified_log import UnifiedLog
from tests.broker.handlers.test_produce_paths import NOW_MS, Sink
from tests.broker.raw_client import RawClient, batch_of, create_topic, produce_fields
from tests.broker.replication_driver import Replicas

if TYPE_CHECKING:
    from broker.server import Broker
    from tests.conftest import MakeBroker

IO_ERROR = OSError(errno.EIO, "input/output error")


def hold_syncs(broker: Broker) -> asyncio.Event:
    """Every sync of a partition waits until the event is set."""
    replicas = broker.components.replicas
    go_on = asyncio.Event()

    async def offload(job: Callable[[], Any]) -> Any:
        await go_on.wait()
        return job()

    replicas._world = replace(replicas._world, offload=offload)
    return go_on


async def test_a_topic_may_go_while_it_syncs(make_broker: MakeBroker) -> None:
    broker = await make_broker(log_flush_single_replica="true")
    await create_topic(broker, "t")
    await create_topic(broker, "u")
    async with await RawClient.open(broker) as client:
        for _ in range(3):
            answer = await client.produce("t", batch_of(b"x"), acks=-1)
            assert answer.error_code is ErrorCode.none
        go_on = hold_syncs(broker)
        for _ in range(3):
            answer = await client.produce("t", batch_of(b"x"), acks=1)
            assert answer.error_code is ErrorCode.none
        response = await client.call(Api.DELETE_TOPICS, 5, topic_names=["t"], timeout=5000)
        assert response.responses[0].error_code is ErrorCode.none
        go_on.set()
        answer = await client.produce("u", batch_of(b"x"), acks=-1)
        assert answer.error_code is ErrorCode.none
    assert broker.is_ready


async def test_a_sync_that_finds_no_descriptor_is_made_up_for(
    make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await make_broker(log_flush_single_replica="true")
    await create_topic(broker, "t")
    run, short = SegmentFlush.run, [errno.EMFILE, errno.ENFILE]

    def sync(job: SegmentFlush) -> None:
        if short:
            raise OSError(short.pop(), "no descriptor")
        run(job)

    monkeypatch.setattr(replica_manager, "SYNC_AGAIN_S", 0.001)
    monkeypatch.setattr(SegmentFlush, "run", sync)
    appended = await broker.components.replicas.append("t", 0, bytearray(batch_of(b"x")), timeout_ms=20_000)
    assert appended.first_offset == 0
    assert not short
    assert not broker.components.replicas.partition("t", 0).offline


async def test_a_disk_that_fails_before_the_sync_costs_its_partitions_only(
    make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    both = f"{tmp_path}/one,{tmp_path}/two"
    broker = await make_broker(log_flush_single_replica="true", log_dirs=both)
    await create_topic(broker, "t")

    def full(log: UnifiedLog, *, force: bool = False) -> None:
        raise IO_ERROR

    async with await RawClient.open(broker) as client:
        assert (await client.produce("t", batch_of(b"x"), acks=-1)).error_code is ErrorCode.none
        monkeypatch.setattr(UnifiedLog, "_write_epochs", full)
        answer = await client.produce("t", batch_of(b"x"), acks=-1)
        assert answer.error_code is ErrorCode.kafka_storage_error
        answer = await client.produce("t", batch_of(b"x"), acks=1)
        assert answer.error_code is ErrorCode.kafka_storage_error
    assert broker.is_ready


async def test_a_coordinator_that_cannot_read_its_log_hears_a_storage_error(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        assert (await client.produce("t", batch_of(b"x"))).error_code is ErrorCode.none

    def unreadable(part: LogSlice) -> bytes:
        raise IO_ERROR

    monkeypatch.setattr(LogSlice, "read", unreadable)
    replicas = broker.components.replicas
    with pytest.raises(KafkaError) as refused:
        list(replicas.read_all("t", 0))
    assert refused.value.code is ErrorCode.kafka_storage_error
    assert replicas.find("t", 0) is ErrorCode.kafka_storage_error


def connection_to(broker: Broker) -> tuple[Connection, Sink]:
    connection, sink = Connection(broker.components.network, "PLAINTEXT"), Sink()
    connection.connection_made(sink)
    return connection, sink


def feed(connection: Connection, data: bytes) -> None:
    while data:
        buffer = connection.get_buffer(-1)
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        data = data[size:]
        connection.buffer_updated(size)


def produce(topic: str, correlation_id: int, *, acks: int = 1) -> bytes:
    fields = produce_fields(topic, batch_of(b"x"), acks=acks)
    return encode_request(Api.PRODUCE, 9, correlation_id, "c", fields)


def errors_in(sink: Sink) -> dict[int, ErrorCode]:
    found, rest = {}, memoryview(b"".join(sink.written))
    while rest:
        end = 4 + int.from_bytes(rest[:4], "big")
        correlation_id, response = decode_response(Api.PRODUCE, 9, rest[4:end])
        found[correlation_id] = response.responses[0].partition_responses[0].error_code
        rest = rest[end:]
    return found


async def test_nothing_is_acknowledged_unwritten_while_another_write_fails(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed write answers waiters, and who goes on by that may append in the middle of the flush."""
    monkeypatch.setattr("broker.net.connection.PIPELINED_MAX", 2)
    await create_topic(broker, "p1")
    await create_topic(broker, "p2")
    replicas = broker.components.replicas
    first, second = replicas.partition("p1", 0), replicas.partition("p2", 0)
    first.syncs = True
    (waiting, answers), (other, _) = connection_to(broker), connection_to(broker)
    feed(waiting, produce("p1", 1, acks=-1) + produce("p1", 2, acks=-1))
    feed(waiting, produce("p2", 3))
    assert 3 not in errors_in(answers)

    def flush(log: UnifiedLog) -> None:
        if log is first.log or log._staged:
            raise LogOffline("the disk is gone")

    monkeypatch.setattr(UnifiedLog, "flush_staged", flush)
    feed(other, produce("p1", 10) + produce("p2", 11))
    assert second.offline
    assert errors_in(answers)[3] is ErrorCode.kafka_storage_error


async def test_a_bug_behind_one_write_leaves_no_other_unwritten(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_topic(broker, "p1")
    await create_topic(broker, "p2")
    replicas = broker.components.replicas
    first, second = replicas.partition("p1", 0), replicas.partition("p2", 0)
    real = Partition.advance

    def advance(partition: Partition) -> bool:
        if partition is first:
            raise ValueError("a bug")
        return real(partition)

    monkeypatch.setattr(Partition, "advance", advance)
    connection, _ = connection_to(broker)
    with pytest.raises(ValueError, match="a bug"):
        feed(connection, produce("p1", 1) + produce("p2", 2))
    assert isinstance(second.log, UnifiedLog)
    assert not second.log._staged
    assert not second.dirty


async def test_a_change_of_its_topic_makes_no_second_log_beside_one_on_a_lost_disk(
    make_broker: MakeBroker, tmp_path: Path
) -> None:
    both = f"{tmp_path}/one,{tmp_path}/two"
    first = await make_broker(log_dirs=both)
    await create_topic(first, "t", 4)
    await first.stop()
    shutil.move(tmp_path / "two", tmp_path / "aside")
    (tmp_path / "two").write_bytes(b"not a directory any more")
    broker = await make_broker(log_dirs=both)
    replicas = broker.components.replicas
    lost = [at for at in range(4) if replicas.find("t", at) is ErrorCode.kafka_storage_error]
    assert lost
    await broker.components.cluster.submit(CreatePartitions(topics=(MorePartitions(name="t", count=5),)))
    assert [at for at in range(5) if replicas.find("t", at) is ErrorCode.kafka_storage_error] == lost


@pytest.mark.parametrize("trouble", [errno.EMFILE, errno.EIO])
async def test_a_log_that_could_not_be_made_is_tried_again(
    make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trouble: int
) -> None:
    """For want of a descriptor, or on a disk that failed by that, while there is another one."""
    broker = await make_broker(log_dirs=f"{tmp_path}/one,{tmp_path}/two")
    replicas, files = broker.components.replicas, broker.world.files
    makedirs, tried = files.makedirs, list[str]()

    def fail(path: str) -> None:
        if path.endswith("t-1"):
            tried.append(path)
            if trouble == errno.EMFILE or path == tried[0]:
                raise OSError(trouble, "no")
        makedirs(path)

    monkeypatch.setattr(files, "makedirs", fail)
    await create_topic(broker, "t", 4)
    if trouble == errno.EMFILE:
        assert replicas.find("t", 1) is ErrorCode.kafka_storage_error
        for _ in replicas.reopen():
            pass
        assert replicas.find("t", 1) is ErrorCode.kafka_storage_error
        monkeypatch.undo()
    async with asyncio.timeout(20):
        while replicas.find("t", 1) is ErrorCode.kafka_storage_error:  # noqa: ASYNC110 - the broker's own round
            await asyncio.sleep(0.01)
    assert replicas.partition("t", 1).is_leader


async def test_a_flush_within_a_flush_leaves_nothing_unwritten(
    make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails answers waiters, and who goes on by that may end the open rounds of others."""
    broker = await make_broker(log_flush_single_replica="true")
    replicas = broker.components.replicas
    for topic in ("p1", "p2"):
        await create_topic(broker, topic)
    failing, other = replicas.partition("p1", 0), replicas.partition("p2", 0)
    for partition in (failing, other):
        batch = memoryview(bytearray(batch_of(b"x")))
        partition.log.append(
            batch, parse_header(batch), 0, leader_epoch=partition.leader_epoch, now_ms=NOW_MS
        )
        replicas.touch(partition)
    written = []

    class Waiting:
        needed = 1

        def reached(self) -> None:
            raise AssertionError("it was not written")

        def failed(self, code: ErrorCode) -> None:
            replicas.flush()
            written.append(not other.log._staged)  # type: ignore[attr-defined]

    real = UnifiedLog.flush_staged

    def flush(log: UnifiedLog) -> None:
        if log is not failing.log:
            real(log)
        elif not failing.offline:
            failing.go_offline()
            raise LogOffline("the disk failed")

    failing.wait_committed(Waiting())
    monkeypatch.setattr(UnifiedLog, "flush_staged", flush)
    replicas.flush()
    assert written == [True]


async def test_a_disk_that_fails_takes_all_its_partitions_before_anybody_goes_on(broker: Broker) -> None:
    replicas = broker.components.replicas
    for topic in ("p1", "p2"):
        await create_topic(broker, topic)
    partitions = [replicas.partition(topic, 0) for topic in ("p1", "p2")]
    seen = []

    class Waiting:
        needed = 1

        def reached(self) -> None:
            raise AssertionError("it was not written")

        def failed(self, code: ErrorCode) -> None:
            seen.append([partition.offline for partition in partitions])

    for partition in partitions:
        partition.wait_committed(Waiting())
    logs = broker.components.logs
    logs._dir_failed(logs.dirs[0], IO_ERROR)
    assert seen == [[True, True]] * 2


# --- between brokers ---


def test_the_next_leader_has_everything_acknowledged_and_the_old_one_follows_it() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, 3)
        for at in range(5):
            await world.append(1, b"%d" % at)
        world.kill(1)
        assert world.controller.image.topics["t"].partitions[0].leader == 2
        for at in range(5, 10):
            await world.append(2, b"%d" % at)
        await world.start(1)
        await world.until(lambda: set(world.isr()) == {1, 2, 3})
        await world.agree(1, 2, 3)
        assert world.nodes[1].values() == [b"%d" % at for at in range(10)]

    Replicas().run(main)


def test_a_deposed_leader_that_does_not_know_it_commits_nothing() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, 3, min_insync_replicas="2")
        await world.append(1, b"a")
        world.hold(1)
        world.change(leader=2, isr=(2, 3))
        stale = asyncio.ensure_future(world.append(1, b"stale"))
        await world.append(2, b"b")
        await asyncio.sleep(15)
        world.let_go(1)
        with pytest.raises(KafkaError) as failed:
            await stale
        assert failed.value.code in (
            ErrorCode.not_leader_or_follower,
            ErrorCode.not_enough_replicas_after_append,
        )
        await world.until(lambda: set(world.isr()) == {1, 2, 3})
        await world.agree(1, 2, 3)
        assert world.nodes[1].values() == [b"a", b"b"]

    Replicas().run(main)


def test_a_clean_restart_of_the_only_replica_goes_on() -> None:
    async def main(world: Replicas) -> None:
        world.create(1)
        await world.append(1, b"a")
        world.kill(1)
        await world.start(1)
        await world.append(1, b"b")
        assert world.nodes[1].values() == [b"a", b"b"]

    Replicas(1).run(main)


async def while_it_loads(world: Replicas, node_id: int, act: Callable[[], None]) -> None:
    """Starts a node, and acts when it has opened its first partitions and not yet the others."""
    starting = asyncio.ensure_future(world.start(node_id))
    await asyncio.sleep(0)
    replicas = world.nodes[node_id].replicas
    while not any(replicas.partitions()):
        assert not starting.done()
        await asyncio.sleep(0)
    assert not starting.done()
    act()
    await starting


def test_a_topic_made_while_a_broker_loads_is_replicated_too() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, partitions=20)
        world.kill(2)
        await while_it_loads(world, 2, lambda: world.create(1, 2, topic="late"))
        await world.append(1, b"x", topic="late")
        await world.agree(1, 2, topic="late")

    Replicas(2).run(main)


def test_a_leader_elected_while_a_broker_loads_is_followed() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 3, 2, partitions=20)
        world.kill(2)
        await while_it_loads(world, 2, lambda: world.change(leader=3, partition=19))
        await world.until(lambda: set(world.isr(index=19)) == {1, 2, 3})

    Replicas().run(main)


def test_a_change_of_one_partition_leaves_the_others_of_its_topic_alone() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, partitions=20)
        heard: list[Partition] = []
        for node in world.nodes.values():
            node.replicas.on_role.append(heard.append)
        world.change(leader=2, partition=3)
        assert heard == [node.partition(3) for node in world.nodes.values()]

    Replicas(2).run(main)


def test_a_replica_moves_to_another_broker_and_its_old_log_goes() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await world.append(1, b"a")
        world.change(replicas=(1, 2, 3))
        await world.until(lambda: 3 in world.isr())
        world.change(replicas=(1, 3), isr=(1, 3))
        await world.append(1, b"b")
        await world.agree(1, 3)
        assert ("t", 0) not in world.nodes[2].logs.logs
        assert world.nodes[2].fetchers._positions == {}
        assert any("-delete" in name for name in world.nodes[2].logs.files.listdir("/data"))
        assert world.nodes[2].replicas.find("t", 0) is ErrorCode.not_leader_or_follower

    Replicas().run(main)


def test_a_topic_deleted_and_made_again_shares_nothing() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await world.append(1, b"a")
        world.delete()
        assert world.nodes[2].fetchers._positions == {}
        world.create(2, 1)
        await world.append(2, b"b")
        await world.agree(1, 2)
        assert world.nodes[1].values() == [b"b"]

    Replicas(2).run(main)


def test_a_leader_whose_disk_fails_hands_over_and_nothing_acknowledged_is_lost() -> None:
    """Also when it hears only then that it was given the lead again."""

    async def main(world: Replicas) -> None:
        world.create(1, 2, 3)
        await world.append(1, b"x")
        world.nodes[1].disk.fail("write", 5, path_part="t-0")
        with pytest.raises(KafkaError):
            await world.append(1, b"y")
        await world.until(lambda: world.isr() == (2, 3) and world.nodes[2].partition().is_leader)
        await world.append(2, b"z")
        await world.agree(2, 3)
        assert world.nodes[3].values() == [b"x", b"z"]
        assert not world.nodes[1].partition().is_leader
        world.change(leader=1, isr=(1, 3))
        await world.until(lambda: world.isr() == (3,) and world.nodes[3].partition().is_leader)
        await world.until(lambda: world.isr() == (3, 2))
        await world.agree(2, 3)

    Replicas(log_dirs="/data,/other").run(main)


def test_a_disk_error_of_a_follower_takes_its_directory_and_nobody_elses() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, 3)
        await world.append(1, b"a")
        world.nodes[3].disk.fail("write", 5, path_part="t-0")
        begun = world.loop.now
        await world.append(1, b"b")
        assert world.isr() == (1, 2)
        assert world.loop.now - begun < 1, "it waited until the follower was too far behind"
        assert world.nodes[3].replicas.replica("t", 0) is ErrorCode.kafka_storage_error

    Replicas().run(main)


def test_partitions_that_nobody_is_in_sync_with_are_told_at_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(world: Replicas) -> None:
        world.create(1)
        world.kill(1, is_noticed=False)
        world.change(leader=-1, isr=())
        await world.start(1)
        (line,) = [each.getMessage() for each in caplog.records if "nobody leads" in each.getMessage()]
        assert "t-0" in line
        assert "--election-type unclean" in line

    Replicas(1).run(main)
