"""One node in its cluster: birth, joining again, writing the log, losing it, and what others see of it."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.config.broker import from_properties
from broker.config.describe import ConfigSource, describe_broker
from broker.config.properties import parse_properties
from broker.config.values import ResourceType
from broker.control import cluster as cluster_module
from broker.control import directories
from broker.control.brokers import PRODUCER_ID_BLOCK
from broker.control.cluster import Cluster
from broker.control.command_queue import QUEUE_MAX_COMMANDS
from broker.control.config_changes import ConfigOp, IncrementalAlterConfigs, Operation
from broker.control.directories import (
    StartupError,
    advertised_endpoints,
    read_directory,
)
from broker.control.image import Image
from broker.control.leaders import RebalanceLeaders
from broker.control.ledger import Ledger
from broker.control.metadata_log import MetadataLog
from broker.control.metadata_records import ClusterBorn, ControllerElected, encode_record
from broker.control.topics import CreateTopics, DeleteTopics, NewTopic, TopicRef
from protocol.errors import ErrorCode, KafkaError
from protocol.ids import decode_id, encode_id
from protocol.stored.slots import slot_hash
from remote.keys import boundary_key, slot_key, snapshot_key
from remote.store.memory_store import MemoryStore
from remote.store.object_store import ObjectInfo, PutResult, StoreError
from storage.files import Files, write_whole
from tests.broker.at_once import AtOnce
from tests.broker.control.cluster_driver import Site, recorded
from tests.sim.store import Bucket

PROPERTIES = "/data/1/meta.properties"


async def create(member: Cluster, *names: str) -> list[ErrorCode]:
    results = await member.create_topics([NewTopic(name=name) for name in names])
    return [ErrorCode.none if result.error is None else result.error.code for result in results]


def properties(site: Site, path: str = PROPERTIES) -> dict[str, str]:
    return parse_properties(site.files().read(path).decode())


def set_config(resource: ResourceType, name: str, setting: str, value: str | None) -> IncrementalAlterConfigs:
    op = ConfigOp(name=setting, operation=Operation.SET if value else Operation.DELETE, value=value)
    return IncrementalAlterConfigs(changes=(((int(resource), name), (op,)),))


# --- birth and joining again ---


def test_birth_is_one_object() -> None:
    site = Site()

    async def story() -> None:
        member = await site.started(ports={"PLAINTEXT": 4711}, listeners="PLAINTEXT://0.0.0.0:0")
        assert site.slots() == [1]
        image = member.image
        assert member.broker_epoch == image.brokers[1].epoch == 1
        assert (image.controller_id, image.controller_epoch) == (1, 1)
        (endpoint,) = image.brokers[1].endpoints
        assert (endpoint.host, endpoint.port) == ("this-host", 4711)
        written = properties(site)
        assert written == {
            "version": "1",
            "cluster.id": image.cluster_id,
            "node.id": "1",
            "directory.id": encode_id(image.brokers[1].directories[0]),
        }
        assert len(image.cluster_id) == 22

    site.run(story())


def test_a_restart_is_a_new_incarnation_of_the_same_node() -> None:
    site = Site()

    async def story() -> None:
        first = await site.started()
        await create(first, "t")
        await first.stop()
        before = properties(site)
        mark_clean(site, "/data/1", epoch=1)
        second = await site.started()
        assert properties(site) == before
        assert second.image.cluster_id == first.image.cluster_id
        assert second.broker_epoch == 3
        assert second.incarnation != first.incarnation
        assert (second.image.controller_id, second.image.controller_epoch) == (1, 2)
        assert second.image.topics == first.image.topics

    site.run(story())


@pytest.mark.parametrize(
    ("markers", "leader_epoch"),
    [((), 1), (("/data/1", "/data/2"), 0), (("/data/1",), 1)],
)
def test_only_an_unclean_stop_starts_new_leader_epochs(markers: tuple[str, ...], leader_epoch: int) -> None:
    site = Site()
    dirs = "/data/1,/data/2"

    async def story() -> None:
        first = await site.started(dirs=dirs)
        await create(first, "t")
        await first.stop()
        mark_clean(site, *markers, epoch=1)
        second = await site.started(dirs=dirs)
        partition = second.image.partition("t", 0)
        assert partition is not None
        assert (partition.leader, partition.leader_epoch) == (1, leader_epoch)

    site.run(story())


def test_a_marker_of_another_incarnation_is_no_clean_stop() -> None:
    site = Site()

    async def story() -> None:
        await create(await site.started(), "t")
        await site.members[0].stop()
        mark_clean(site, "/data/1", epoch=77)
        second = await site.started()
        partition = second.image.partition("t", 0)
        assert partition is not None
        assert partition.leader_epoch == 1

    site.run(story())


def test_a_marker_that_names_no_incarnation_is_no_clean_stop() -> None:
    """Who stops before it was registered closes its logs in order, whatever ended the life before."""
    site = Site()

    async def story() -> None:
        await create(await site.started(), "t")
        await site.members[0].stop()
        mark_clean(site, "/data/1", epoch=-1)
        second = await site.started()
        partition = second.image.partition("t", 0)
        assert partition is not None
        assert partition.leader_epoch == 1

    site.run(story())


def test_another_disk_does_not_lead_what_the_old_one_held() -> None:
    site = Site()

    async def story() -> None:
        await create(await site.started(), "t")
        await site.members[0].stop()
        second = await site.started(dirs="/data/new")
        partition = second.image.partition("t", 0)
        assert partition is not None
        assert (partition.leader, partition.isr) == (-1, ())

    site.run(story())


def mark_clean(site: Site, *paths: str, epoch: int) -> None:
    for path in paths:
        _write(site, f"{path}/.kafka_cleanshutdown", b'{"version":0,"brokerEpoch":%d}' % epoch)


def _write(site: Site, path: str, data: bytes) -> None:
    files = site.files()
    files.makedirs(path.rpartition("/")[0])
    file = files.open(path, create=True)
    file.truncate(0)
    file.writev([data])
    file.close()


def refuses(site: Site, match: str, **kwargs: Any) -> None:
    async def story() -> None:
        with pytest.raises(StartupError, match=match) as caught:
            await site.started(**kwargs)
        assert "\n" not in str(caught.value)

    site.loop = type(site.loop)()
    site.run(story())


def born(site: Site) -> None:
    async def story() -> None:
        await site.started()

    site.run(story())
    site.members.clear()


def test_a_data_directory_without_its_log_is_refused() -> None:
    site = Site()
    born(site)
    site.bucket = Bucket()
    refuses(site, "whose metadata log is not in this object store")
    assert site.bucket.objects == {}


def test_a_data_directory_of_another_cluster_is_refused() -> None:
    site, other = Site(1), Site(2)
    born(site)
    born(other)
    site.bucket = other.bucket
    before = dict(other.bucket.objects)
    refuses(site, "but this object store to")
    assert other.bucket.objects == before


def test_a_data_directory_of_another_node_is_refused() -> None:
    site = Site()
    born(site)
    refuses(site, "/data/1 belongs to node 1, but this is node 2", node_id="2")


def test_directories_of_two_clusters_are_refused() -> None:
    site = Site()
    born(site)
    _write(
        site,
        "/data/2/meta.properties",
        b"version=1\nnode.id=1\ncluster.id=other\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAA\n",
    )
    refuses(site, "different clusters", dirs="/data/1,/data/2")


def test_a_directory_that_cannot_be_marked_leaves_the_others_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site()

    def write(files: Files, path: str, data: bytes) -> None:
        if path.startswith("/data/2/"):
            raise OSError(errno.EROFS, "Read-only file system")
        write_whole(files, path, data)

    async def story() -> None:
        monkeypatch.setattr(directories, "write_whole", write)
        member = await site.started(dirs="/data/1,/data/2")
        assert await create(member, "t") == [ErrorCode.none]
        await member.stop()
        with pytest.raises(StartupError, match=r"/data/2/meta\.properties cannot be written: Read-only"):
            await site.started(dirs="/data/2", store=MemoryStore())

    site.run(story())


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "version None"),
        ("version=0\nbroker.id=1\n", "version 0"),
        ("version=1\ncluster.id=c\n", "node None"),
        ("version=1\nnode.id=1\n", "which cluster"),
        ("version=1\nnode.id=1\ncluster.id=c\ndirectory.id=short\n", "directory.id"),
    ],
)
def test_a_damaged_meta_properties_is_refused(text: str, match: str) -> None:
    with pytest.raises(StartupError, match=match):
        read_directory("/d", text, None, node_id=1)


def test_kafkas_own_meta_properties_is_read() -> None:
    text = (
        "#\n#Sat Nov 21 16:00:00 UTC 2026\ncluster.id=4L6g3nShT-eMCtK--X86sw\nversion=1\n"
        "directory.id=J8aAPcfLQt2bqs1JT_rMgQ\nnode.id=1\n"
    )
    found = read_directory("/d", text, b'{"version":0,"brokerEpoch":9}', node_id=1)
    assert found.cluster_id == "4L6g3nShT-eMCtK--X86sw"
    assert found.directory_id is not None
    assert encode_id(found.directory_id) == "J8aAPcfLQt2bqs1JT_rMgQ"
    assert found.clean_epoch == 9


@given(st.uuids())
def test_ids_are_written_as_kafka_writes_them(value: Any) -> None:
    assert len(encode_id(value)) == 22
    assert decode_id(encode_id(value)) == value


def test_a_log_with_a_hole_is_refused() -> None:
    site = Site()

    async def story() -> None:
        member = await site.started()
        await create(member, "a")
        await create(member, "b")

    site.run(story())
    site.members.clear()
    del site.bucket.objects[slot_key(2)]
    site.bucket._keys.remove(slot_key(2))
    refuses(site, "metadata slot 2 is missing")


def test_a_log_whose_hashes_do_not_chain_is_refused() -> None:
    site = Site()
    born(site)

    async def forge() -> None:
        log = MetadataLog(site.bucket, site.disk.rng, AtOnce())
        await log.win(2, controller_epoch=1, previous_hash=bytes(32), records=[])

    asyncio.run(forge())
    refuses(site, "metadata slot 2 does not follow")


def test_advertised_addresses_never_name_a_wildcard() -> None:
    config = from_properties(
        {
            "listeners": "PLAINTEXT://:0,IN://0.0.0.0:9093,OUT://[::]:9094,FIX://10.0.0.1:0",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,IN:PLAINTEXT,OUT:PLAINTEXT,FIX:PLAINTEXT",
        }
    )
    found = advertised_endpoints(config, host_name="me", ports={"PLAINTEXT": 1, "IN": 2, "FIX": 3})
    assert [(endpoint.host, endpoint.port) for endpoint in found] == [
        ("me", 1),
        ("me", 9093),
        ("me", 9094),
        ("10.0.0.1", 3),
    ]


# --- writing ---


def test_commands_that_wait_share_a_slot_and_see_each_other() -> None:
    site = Site()

    async def story() -> None:
        member = await site.started()
        deltas = recorded(member)
        results = await asyncio.gather(
            create(member, "first"),
            create(member, "t"),
            create(member, "t"),
            member.submit(DeleteTopics(topics=(TopicRef(name="t"),))),
            create(member, "t"),
            create(member, "a.b"),
            create(member, "a_b"),
        )
        codes = [result[0] for result in results if isinstance(result[0], ErrorCode)]
        assert codes == [
            ErrorCode.none,
            ErrorCode.none,
            ErrorCode.topic_already_exists,
            ErrorCode.none,
            ErrorCode.none,
            ErrorCode.invalid_topic_exception,
        ]
        assert set(member.image.topics) == {"first", "t", "a.b"}
        assert len(site.slots()) == 2, "all were waiting when the first slot was decided"
        assert [delta.seq for delta in deltas] == [2]

    site.run(story())


def test_nothing_is_told_before_the_slot_is_won() -> None:
    site = Site()

    async def story() -> None:
        member = await site.started()
        deltas = recorded(member)
        site.profile.down = True
        waiting = asyncio.ensure_future(create(member, "t"))
        await asyncio.sleep(30)
        assert (member.image.topics, deltas, waiting.done()) == ({}, [], False)
        site.profile.heal()
        assert await waiting == [ErrorCode.none]
        assert [set(delta.topics_created) for delta in deltas] == [{"t"}]

    site.run(story())


def test_refusals_cost_no_slot() -> None:
    site = Site()

    async def story() -> None:
        member = await site.started()
        assert await create(member, "no way") == [ErrorCode.invalid_topic_exception]
        tried = await member.submit(CreateTopics(topics=(NewTopic(name="t"),), validate_only=True))
        assert tried[0].error is None
        assert site.slots() == [1]

    site.run(story())


def test_who_waits_too_long_is_told_and_the_queue_is_bounded() -> None:
    site = Site()

    async def story() -> None:
        member = await site.started()
        site.profile.down = True
        under_way = asyncio.ensure_future(create(member, "under-way"))
        await asyncio.sleep(0.001)
        with pytest.raises(KafkaError) as caught:
            await member.create_topics([NewTopic(name="late")], timeout_ms=500)
        assert caught.value.code is ErrorCode.request_timed_out
        waiting = [asyncio.ensure_future(create(member, f"t{at}")) for at in range(QUEUE_MAX_COMMANDS - 1)]
        await asyncio.sleep(0)
        with pytest.raises(KafkaError) as caught:
            await create(member, "one-too-many")
        assert caught.value.code is ErrorCode.request_timed_out
        site.profile.heal()
        await asyncio.gather(under_way, *waiting)
        assert "late" not in member.image.topics
        assert len(member.image.topics) == QUEUE_MAX_COMMANDS

    site.run(story())


def test_a_command_that_fails_is_its_callers_problem() -> None:
    class Broken:
        def decide(self, image: Image, rules: object) -> Any:
            raise ZeroDivisionError("a bug")

    site = Site()

    async def story() -> None:
        member = await site.started()
        broken, made = await asyncio.gather(
            member.submit(Broken()), create(member, "t"), return_exceptions=True
        )
        assert isinstance(broken, ZeroDivisionError)
        assert made == [ErrorCode.none]

    site.run(story())


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.floats(0, 0.5), st.floats(0, 0.5))
def test_on_a_bad_line_every_command_happens_once(seed: int, before: float, after: float) -> None:
    site = Site(seed)

    async def story() -> None:
        member = await site.started()
        site.profile.error_before_chance, site.profile.error_after_chance = before, after
        deltas = recorded(member)
        results = await asyncio.gather(*(create(member, f"t{at % 7}") for at in range(20)))
        assert sorted(code.name for (code,) in results) == ["none"] * 7 + ["topic_already_exists"] * 13
        assert sorted(name for delta in deltas for name in delta.topics_created) == [
            f"t{at}" for at in range(7)
        ]
        assert member.is_controller
        site.profile.heal()
        await member.stop()
        again = await site.started()
        assert again.image.topics.keys() == member.image.topics.keys()

    site.run(story())


# --- losing ---


def test_of_two_controllers_one_writes_and_the_other_steps_down() -> None:
    site = Site()

    async def story() -> None:
        old = await site.started()
        await create(old, "t")
        new = await site.started()
        assert old.is_controller, "it has not heard yet"
        with pytest.raises(KafkaError) as caught:
            await create(old, "from-old")
        assert caught.value.code is ErrorCode.not_controller
        assert not old.is_controller
        assert site.fenced == ["another process runs as node 1 of this cluster"]
        assert await create(new, "from-new") == [ErrorCode.none]
        with pytest.raises(KafkaError) as caught:
            await create(old, "again")
        assert caught.value.code is ErrorCode.not_controller
        assert set(new.image.topics) == {"t", "from-new"}

    site.run(story())


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(2, 4), st.floats(0, 0.4), st.floats(0, 0.4))
def test_controllers_that_race_leave_one_log(seed: int, rivals: int, before: float, after: float) -> None:
    site = Site(seed)

    async def rival(number: int) -> set[str]:
        member = site.member(dirs=f"/data/{number}")
        made: set[str] = set()
        await member.read()
        await member.join()
        for step in range(4):
            name = f"{number}-{step}"
            try:
                if await create(member, name) == [ErrorCode.none]:
                    made.add(name)
            except KafkaError as error:
                assert error.code is ErrorCode.not_controller
                break
            await asyncio.sleep(site.disk.rng.random() * 0.05)
        return made

    async def story() -> None:
        site.profile.error_before_chance, site.profile.error_after_chance = before, after
        made = await asyncio.gather(*(rival(number) for number in range(rivals)))
        site.profile.heal()
        reader = site.member(dirs="/data/reader")
        await reader.read()
        await reader.join()
        assert {name for mine in made for name in mine} <= set(reader.image.topics)
        assert site.slots() == list(range(1, len(site.slots()) + 1))
        controllers = [member for member in site.members[:-1] if member.is_controller]
        for member in controllers:
            with pytest.raises(KafkaError):
                await create(member, "after")
        assert len({member.image.cluster_id for member in site.members}) == 1

    site.run(story())


def test_slots_of_a_replaced_controller_are_void() -> None:
    """A slot below the newest bump says nothing, wherever it comes from."""
    site = Site()

    async def story() -> None:
        member = await site.started()
        await create(member, "t")
        await member.stop()
        again = await site.started()
        assert again.image.controller_epoch == 2
        zombie = encode_record(ClusterBorn(cluster_id="zombie"))
        won = await again.metadata_log.win(
            again.image.seq + 1, controller_epoch=1, previous_hash=again.ledger.last_hash, records=[zombie]
        )
        assert won is not None
        await again.stop()
        third = await site.started()
        assert third.image.cluster_id == member.image.cluster_id

    site.run(story())


def test_a_follower_hears_of_what_others_commit() -> None:
    site = Site()

    async def story() -> None:
        member = await site.started()
        deltas = recorded(member)
        rival = MetadataLog(site.bucket, site.disk.rng, AtOnce())
        bump = encode_record(ControllerElected(controller_id=9, controller_epoch=2))
        won = await rival.win(2, controller_epoch=2, previous_hash=member.ledger.last_hash, records=[bump])
        assert won is not None
        with pytest.raises(KafkaError):
            await create(member, "t")
        assert (member.is_controller, member.image.controller_id, site.fenced) == (False, 9, [])
        won = await rival.win(3, controller_epoch=2, previous_hash=slot_hash(won), records=[])
        assert won is not None
        await asyncio.sleep(5)
        assert member.image.seq == 3
        assert [delta.seq for delta in deltas] == [2, 3]

    site.run(story())


def test_a_store_that_refuses_for_good_ends_membership() -> None:
    class Refusing(MemoryStore):
        refuses = False

        async def put_if_absent(self, key: str, data: bytes) -> PutResult:
            if self.refuses:
                raise StoreError("Read-only file system", permanent=True)
            return await super().put_if_absent(key, data)

    site = Site()
    store = Refusing()

    async def story() -> None:
        member = await site.started(store=store)
        store.refuses = True
        with pytest.raises(KafkaError):
            await create(member, "t")
        assert len(site.fenced) == 1
        assert "Read-only file system" in site.fenced[0]

    site.run(story())


def test_a_member_waits_for_what_it_was_allowed_at_its_start() -> None:
    """As the stores say it: a refusal is permanent for an operation that has never been allowed."""

    class Guarded(MemoryStore):
        refuses = False

        def __init__(self) -> None:
            super().__init__()
            self._allowed: set[str] = set()

        def _check(self, operation: str) -> None:
            if self.refuses:
                raise StoreError("AccessDenied", permanent=operation not in self._allowed)
            self._allowed.add(operation)

        async def get(self, key: str) -> bytes:
            self._check("get")
            return await super().get(key)

        async def put_if_absent(self, key: str, data: bytes) -> PutResult:
            self._check("put")
            return await super().put_if_absent(key, data)

        async def list(self, prefix: str, *, after: str = "") -> list[ObjectInfo]:
            self._check("list")
            return await super().list(prefix, after=after)

    site = Site()
    store = Guarded()

    async def story() -> None:
        member = await site.started(store=store)
        store.refuses = True
        waiting = asyncio.ensure_future(create(member, "t"))
        await asyncio.sleep(20)
        store.refuses = False
        await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.sleep(5)
        assert await create(member, "u") == [ErrorCode.none]
        assert "t" in member.image.topics
        assert site.fenced == []

    site.run(story())


def test_stopping_leaves_nobody_waiting() -> None:
    site = Site()

    async def story() -> None:
        member = await site.started()
        site.profile.down = True
        waiting = [asyncio.ensure_future(create(member, f"t{at}")) for at in range(3)]
        await asyncio.sleep(0.01)
        await member.stop()
        for result in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(result, KafkaError)
        with pytest.raises(KafkaError):
            await create(member, "late")

    site.run(story())


# --- snapshots ---


def test_a_long_log_is_read_from_its_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "SNAPSHOT_EVERY_SLOTS", 10)
    site = Site()

    async def story() -> None:
        member = await site.started()
        for day in range(4):
            for at in range(10):
                await create(member, f"t{day}-{at}")
            site.loop.stall(13 * 3600)
            await asyncio.sleep(1)
        assert snapshot_key(40) in site.bucket.objects
        kept = site.slots()
        assert kept[0] > 1
        assert boundary_key(kept[0] - 1) in site.bucket.objects
        await member.stop()
        mark_clean(site, "/data/1", epoch=member.broker_epoch)
        again = await site.started()
        assert again.image.topics == member.image.topics
        assert again.image.cluster_id == member.image.cluster_id
        again.ledger.last_hash = bytes(32)

    site.run(story())


def test_who_sleeps_between_the_list_and_the_snapshot_takes_the_newer_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_module, "SNAPSHOT_EVERY_SLOTS", 10)
    site = Site()

    async def story() -> None:
        member = await site.started()

        async def day_of_topics(day: int) -> None:
            for at in range(10):
                await create(member, f"t{day}-{at}")
            site.loop.stall(25 * 3600)
            await asyncio.sleep(1)

        await day_of_topics(0)
        log = MetadataLog(site.world(7).store, random.Random(7), AtOnce())
        sleeper = Ledger(log, site.loop.time, AtOnce())
        survey = await sleeper.survey()
        for day in range(1, 4):
            await day_of_topics(day)
        assert snapshot_key(survey.snapshots[-1]) not in site.bucket.objects
        await sleeper.load(survey)
        assert sleeper.image == member.image

    site.run(story())


# --- what the broker asks for ---


def test_settings_reach_the_running_broker() -> None:
    site = Site()

    async def story() -> None:
        member = await site.started(log_retention_ms="1000")
        deltas = recorded(member)
        await create(member, "t")
        assert member.log_config("t").retention_ms == 1000
        await member.submit(set_config(ResourceType.BROKER, "", "log.retention.ms", "2000"))
        assert member.log_config("t").retention_ms == 2000
        await member.submit(set_config(ResourceType.BROKER, "1", "log.retention.ms", "3000"))
        assert member.log_config("t").retention_ms == 3000
        await member.submit(set_config(ResourceType.BROKER, "1", "message.max.bytes", "77777"))
        assert member.broker_config.message_max_bytes == 77777
        await member.submit(set_config(ResourceType.TOPIC, "t", "retention.ms", "4000"))
        assert member.log_config("t").retention_ms == 4000
        await member.submit(DeleteTopics(topics=(TopicRef(name="t"),)))
        await create(member, "t")
        assert member.log_config("t").retention_ms == 3000
        assert [key for delta in deltas for key in sorted(delta.configs_changed)] == [
            (ResourceType.BROKER, ""),
            (ResourceType.BROKER, "1"),
            (ResourceType.BROKER, "1"),
            (ResourceType.TOPIC, "t"),
            (ResourceType.TOPIC, "t"),
        ]
        await member.stop()
        again = await site.started()
        (row,) = [row for row in describe_broker(again.broker_config) if row.name == "message.max.bytes"]
        assert (row.value, row.source) == ("77777", ConfigSource.DYNAMIC_BROKER)

    site.run(story())


def test_internal_topics_are_made_as_kafka_makes_them() -> None:
    site = Site()

    async def story() -> None:
        member = await site.started()
        topic = await member.ensure_internal("__consumer_offsets")
        assert (len(topic.partitions), len(topic.partitions[0].replicas), topic.internal) == (50, 1, True)
        config = member.log_config("__consumer_offsets")
        assert (config.cleanup_policy, config.segment_bytes) == (("compact",), 104857600)
        assert await member.ensure_internal("__consumer_offsets") is topic
        transactions = await member.ensure_internal("__transaction_state")
        assert len(transactions.partitions) == 50

    site.run(story())


def test_an_internal_topic_waits_for_enough_brokers() -> None:
    site = Site()

    async def story() -> None:
        member = await site.started(offsets_topic_replication_factor="3")
        with pytest.raises(KafkaError) as caught:
            await member.ensure_internal("__consumer_offsets")
        assert caught.value.code is ErrorCode.coordinator_not_available
        assert member.image.topics == {}

    site.run(story())


def test_producer_ids_are_never_given_twice() -> None:
    site = Site()

    async def take(member: Cluster, count: int) -> list[int]:
        return [await member.producer_ids.next() for _ in range(count)]

    async def story() -> None:
        first = await site.started()
        taken = await asyncio.gather(*(take(first, 400) for _ in range(6)))
        given_out = [producer_id for some in taken for producer_id in some]
        assert len(set(given_out)) == 2400
        await first.stop()
        second = await site.started()
        later = await take(second, 10)
        assert min(later) > max(given_out)

    site.run(story())


def test_the_next_block_is_there_before_this_one_ends() -> None:
    site = Site()

    async def story() -> None:
        member = await site.started()
        for _ in range(PRODUCER_ID_BLOCK - PRODUCER_ID_BLOCK // 10 - 1):
            await member.producer_ids.next()
        assert site.slots() == [1, 2]
        await member.producer_ids.next()
        await asyncio.sleep(1)
        assert site.slots() == [1, 2, 3]
        site.profile.down = True
        for _ in range(PRODUCER_ID_BLOCK // 10 + 1):
            await member.producer_ids.next()

    site.run(story())


def test_without_a_controller_producers_are_told_to_try_again() -> None:
    site = Site()

    async def story() -> None:
        member = await site.started()
        site.isolate(1)
        member._step_down()
        with pytest.raises(KafkaError) as caught:
            await member.producer_ids.next()
        assert caught.value.code is ErrorCode.coordinator_load_in_progress

    site.run(story())


def test_nobody_waits_for_producer_ids_longer_than_a_request_lasts() -> None:
    site = Site()

    async def story() -> None:
        async with asyncio.TaskGroup() as tasks:
            member = site.member()
            await member.read()
            await member.join(task_group=tasks)
            site.profile.down = True
            asked_at = site.loop.time()
            asked = [asyncio.ensure_future(member.producer_ids.next()) for _ in range(3)]
            failed = await asyncio.gather(*asked, return_exceptions=True)
            assert [type(error) for error in failed] == [KafkaError] * 3
            assert site.loop.time() - asked_at == pytest.approx(30)
            site.profile.heal()
            assert await member.producer_ids.next() == 0
            assert site.slots() == [1, 2], "all of them waited for one block"
            await member.stop()

    site.run(story())


def test_who_only_asks_after_a_snapshot_does_not_take_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.control.cluster.SNAPSHOT_EVERY_SLOTS", 2)
    taken: list[int] = []

    class Counting(MemoryStore):
        async def put_if_absent(self, key: str, data: bytes) -> PutResult:
            taken.extend([1] * key.startswith("meta/snapshot/"))
            return await super().put_if_absent(key, data)

    site = Site()

    async def story() -> None:
        member = await site.started(store=Counting())
        await create(member, "t")
        for _ in range(5):
            await create(member, "t")
            await asyncio.sleep(1)
        assert (member.image.seq, len(taken)) == (2, 1)

    site.run(story())


def test_objects_describe_themselves() -> None:
    site = Site()

    async def story() -> None:
        member = await site.started()
        await create(member, "t")
        assert repr(member) == (
            "Cluster(node=1, controller, queue=0, Image(seq=2, controller=1/1, 1 brokers, 1 topics))"
        )

    work: Coroutine[Any, Any, None] = story()
    site.run(work)


def test_many_topics_at_once_are_few_slots() -> None:
    site = Site()

    async def story() -> None:
        member = await site.started()
        batches = [
            CreateTopics(topics=tuple(NewTopic(name=f"t{at}-{n}") for n in range(5))) for at in range(200)
        ]
        await asyncio.gather(*map(member.submit, batches))
        assert len(member.image.topics) == 1000
        assert len(site.slots()) <= 3

    site.run(story())


def test_leaders_are_balanced_as_often_as_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site()
    rounds: list[object] = []

    async def in_rounds(member: Cluster, command: object) -> None:
        rounds.append(command)

    async def story() -> None:
        await site.started(leader_imbalance_check_interval_seconds="5")
        await asyncio.sleep(26)
        assert sum(isinstance(command, RebalanceLeaders) for command in rounds) == 5

    monkeypatch.setattr(Cluster, "_in_rounds", in_rounds)
    site.run(story())
