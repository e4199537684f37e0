"""The topics about the tiers that a running broker wrote: read from it and out of its data directory, they
say what lies in its store.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.peers import until
from tests.e2e.mortal import STEP_FILE
from tests.e2e.tiered import ALONE, MORTAL, QUICK, TIERED, TieredTopic
from tests.processes import BrokerProcess
from tools.verify.bootstrap import read_topic
from tools.verify.core.keys import WalObject, parse_key, tier_key
from tools.verify.core.layouts import decode_index_object, decode_wal_table
from tools.verify.core.outcome import Options
from tools.verify.core.stores import Listed, Source, SourceFailed, open_source
from tools.verify.core.tier_topics import (
    COPY_FINISHED,
    ColdTold,
    Copy,
    ToldCopy,
    WalTold,
    unpack_slices,
)
from tools.verify.core.told_records import ToldRecords
from tools.verify.verification import verify

COLD, WAL = "__remote_log_metadata", "__remote_wal_log_metadata"
SETTINGS = {**QUICK, **ALONE, "remote.wal.log.manager.combiner.task.interval.ms": "50"}


class Log(NamedTuple):
    files: tuple[Listed, ...]
    high_watermark: int
    log_start: int


class Left(NamedTuple):
    """What a broker left behind, and what it said of it while it ran."""

    bootstrap: str
    data: Path
    url: str
    store: Source
    topics: tuple[TieredTopic, TieredTopic]


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Left]:
    folder = tmp_path_factory.mktemp("broker")
    url = f"file://{folder}/store"
    with BrokerProcess(
        folder / "data",
        arguments=("--store", url),
        settings=SETTINGS,
        env={STEP_FILE: str(folder / "step")},
        program=MORTAL,  # whose retention does not wait for half a minute
    ) as process:
        admin = AdminClient({"bootstrap.servers": process.bootstrap})
        tiered, stored = (TieredTopic(lambda: process.bootstrap) for _ in range(2))
        for topic, configs in ((tiered, TIERED), (stored, {"remote.wal.storage.enable": "true"})):
            made = admin.create_topics([NewTopic(topic.name, 1, 1, config=dict(configs))])
            made[topic.name].result(timeout=60)
            topic.append(12)
        tiered.wait_tiered()
        until(lambda: _told_wal(process.bootstrap).counting() or None, "an object to be told", timeout_s=60)
        yield Left(process.bootstrap, folder / "data", url, open_source(url), (tiered, stored))


def _told_cold(bootstrap: str) -> ColdTold:
    found = ColdTold("cold", 2)
    assert read_topic(bootstrap, COLD, found.add).topic_id
    return found


def _told_wal(bootstrap: str) -> WalTold:
    found = WalTold("wal")
    read_topic(bootstrap, WAL, found.add)
    return found


def test_what_is_told_of_copies_lies_in_the_store(left: Left) -> None:
    found = _told_cold(left.bootstrap)
    assert found.findings() == []
    copies = [each for each in found.copies().values() if each.state == COPY_FINISHED]
    assert len(copies) >= 2
    listed = {each.key: each.size for each in left.store.list("tier/")}
    for copy in copies:
        key, index_key = (
            tier_key(copy.topic_id, copy.partition, copy.base, copy.segment_id, end) for end in ("log", "idx")
        )
        assert listed[key] == copy.size
        head, sections = decode_index_object(left.store.read_all(index_key, 1 << 22))
        assert (head.base_offset, head.end_offset, head.size) == (copy.base, copy.end, copy.size)
        assert (head.max_timestamp_ms, tuple(map(tuple, head.epochs))) == (copy.max_timestamp_ms, copy.epochs)
        assert copy.has_no_aborts == (sections[3] == b"")
    assert sum(copy.end - copy.base for copy in copies) == len(left.topics[0].acknowledged)


def test_what_is_told_of_objects_lies_in_the_store(left: Left) -> None:
    found = _told_wal(left.bootstrap)
    assert found.findings() == []
    checked = 0
    for each in left.store.list("wal/"):
        key = parse_key(each.key)
        if isinstance(key, WalObject) and (told := found.objects().get((key.stream, key.seq))):
            table = decode_wal_table(left.store.read_all(each.key, 1 << 26), each.size)
            assert told.put_id == table.head.put_id
            assert [tuple(row) for row in unpack_slices(told.entries)] == [
                (
                    one.topic_id, one.partition, one.position, one.position + one.size - 1,
                    one.leader_epoch, one.start, one.end,
                )
                for one in table.slices
            ]  # fmt: skip
            checked += 1
    assert checked >= 1
    assert set(found.counting()) <= set(found.streams())


def test_out_of_the_data_directory_the_same_is_read(left: Left) -> None:
    source = open_source(f"file://{left.data}")
    whole = _told_cold(left.bootstrap).copies()
    read: dict[Copy, ToldCopy] = {}
    for number in range(2):
        found = ColdTold("cold", 2)
        log = Log(tuple(source.list(f"{COLD}-{number}/")), -1, -1)
        told = ToldRecords([(source, log)])
        for record in told.records():
            found.add(number, record.offset, record.key, record.value)
        assert (found.findings(), told.holes) == ([], [])
        read |= found.copies()
    assert read == whole


def test_what_a_broker_left_in_its_store_is_as_it_should_be(left: Left) -> None:
    outcome = verify(Options(store=left.url, workers=1))
    assert (outcome.findings, outcome.unread) == ((), ())
    assert outcome.figures.batches > 10


def test_a_reader_goes_on_where_it_stopped(left: Left) -> None:
    offsets: list[tuple[int, int]] = []
    first = read_topic(
        left.bootstrap, COLD, lambda partition, at, key, value: offsets.append((partition, at))
    )
    assert len(set(offsets)) == len(offsets) > 2
    more: list[int] = []
    again = read_topic(left.bootstrap, COLD, lambda _, at, *rest: more.append(at), first.ends)
    assert (more, again) == ([], first)
    half = {partition: end - 1 for partition, end in first.ends.items() if end}
    read_topic(left.bootstrap, COLD, lambda _, at, *rest: more.append(at), half)
    assert len(more) == len(half)


def test_of_a_topic_that_there_is_not_nothing_is_read(left: Left) -> None:
    assert read_topic(left.bootstrap, "no-such-topic", pytest.fail).topic_id == ""


@pytest.mark.parametrize("bootstrap", ["127.0.0.1:1", "nonsense"])
def test_silence_is_not_an_empty_topic(bootstrap: str) -> None:
    with pytest.raises(SourceFailed, match=bootstrap):
        read_topic(bootstrap, COLD, pytest.fail)
