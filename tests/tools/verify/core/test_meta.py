"""The metadata log, read as FORMAT.md says: folds equal to the broker's, every damage named once and at its
place, and none where something was only collected meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from broker.control.image import Image, fold
from broker.control.metadata_records import Record, SnapshotTaken, encode_record
from tests.broker.control.test_image import logs
from tests.golden.samples import samples
from tools.verify.core.findings import Finding
from tools.verify.core.keys import topic_text
from tools.verify.core.layouts import MetaRecord, read_json
from tools.verify.core.meta import Meta, read_meta
from tools.verify.core.meta_fold import Broker, Partition, State, Topic
from tools.verify.core.stores import Counts, Gone, Listed, SourceFailed

Row = list[Any]


class Held:
    """A source in memory."""

    def __init__(self, objects: dict[str, bytes] | None = None) -> None:
        self.objects = objects or {}
        self.counts = Counts()
        self.before_reading: Callable[[str], None] = lambda key: None

    def list(self, prefix: str = "") -> Iterator[Listed]:
        for key in sorted(self.objects):
            if key.startswith(prefix):
                yield Listed(key, len(self.objects[key]), 0)

    def read(self, key: str, start: int, size: int) -> bytes:
        return self.read_all(key, 1 << 30)[start : start + size]

    def read_piece(self, key: str, start: int, size: int) -> memoryview:
        return memoryview(self.read(key, start, size))

    def read_all(self, key: str, limit: int) -> bytes:
        self.before_reading(key)
        if key not in self.objects:
            raise Gone(key)
        return self.objects[key]


class MetaLog:
    """Writes a metadata log by FORMAT.md alone."""

    def __init__(self) -> None:
        self.store = Held()
        self.seq = 0
        self.hash = bytes(32)
        self.records: list[Row] = []
        """All that count."""
        self.epoch = 1
        self.slot([["ClusterBorn", 0, {"cluster_id": "c"}], elected(1, 1)])

    def slot(self, records: list[Row], *, epoch: int | None = None, previous: bytes | None = None) -> None:
        self.seq += 1
        data = encoded(self.seq, self.epoch if epoch is None else epoch, previous or self.hash, records)
        self.store.objects[f"meta/{self.seq:020d}"] = data
        self.hash = hashlib.sha256(data).digest()
        if epoch is None:
            self.records += records

    def snapshot(self, records: list[Row] | None = None) -> None:
        rows = [["SnapshotTaken", 0, {"at_ms": 1}], *(self.records if records is None else records)]
        self.store.objects[f"meta/snapshot/{self.seq:020d}"] = encoded(self.seq, self.epoch, self.hash, rows)

    def boundary(self) -> None:
        """Collect all before the newest slot, which has a snapshot."""
        self.store.objects[f"meta/boundary/{self.seq:020d}"] = b""
        for seq in range(1, self.seq + 1):
            self.store.objects.pop(f"meta/{seq:020d}", None)

    def damage(self, key: str) -> None:
        data = self.store.objects[key]
        self.store.objects[key] = data[:-1] + bytes([data[-1] ^ 1])

    def read(self) -> Meta:
        return read_meta(self.store)


def encoded(seq: int, epoch: int, previous: bytes, records: list[Row]) -> bytes:
    texts = [json.dumps(record).encode() for record in records]
    body = struct.pack(">QI16s32sI", seq, epoch, bytes(16), previous, len(texts))
    body += b"".join(struct.pack(">I", len(text)) + text for text in texts)
    return b"TWM1" + struct.pack(">I", crc32c(body)) + body


def elected(controller: int, epoch: int) -> Row:
    return ["ControllerElected", 0, {"controller_id": controller, "controller_epoch": epoch}]


def config(value: str, name: str = "t") -> Row:
    return ["ConfigChanged", 0, {"resource_type": 2, "resource_name": name, "name": "a", "value": value}]


def created(number: int) -> Row:
    row = {"name": f"t{number}", "topic_id": f"{number:032x}", "partitions": [[1, 0, 0, [1], [1]]]}
    return ["TopicCreated", 0, row]


def three_slots() -> MetaLog:
    log = MetaLog()
    log.slot([created(1)])
    log.slot([config("x")])
    return log


def told(meta: Meta) -> list[tuple[str, int, int, str]]:
    return [(one.code, one.first, one.end, one.place) for one in meta.findings]


# --- the fold -----------------------------------------------------------------------------------------------


def as_ours(image: Image) -> State:
    """The broker's image in our words."""
    state = State(image.seq, image.cluster_id, image.controller_id, image.controller_epoch)
    state.next_producer_id = image.next_producer_id
    state.features = dict(image.features)
    for broker in image.brokers.values():
        state.brokers[broker.id] = Broker(
            broker.id,
            broker.epoch,
            topic_text(broker.incarnation.bytes),
            tuple(topic_text(one.bytes) for one in broker.directories),
            tuple((one.listener, one.host, one.port, one.protocol) for one in broker.endpoints),
            broker.rack,
            broker.fenced,
            broker.stopping,
        )
    for topic in image.topics.values():
        topic_id = topic_text(topic.id.bytes)
        state.topics[topic_id] = Topic(
            topic_id,
            topic.name,
            tuple(
                Partition(
                    one.leader, one.leader_epoch, one.partition_epoch, one.replicas, one.isr, one.adding,
                    one.removing,
                )
                for one in topic.partitions
            ),
        )  # fmt: skip
    state.configs = {(int(kind), name): dict(values) for (kind, name), values in image.configs.items()}
    return state


def folded(log: list[list[Record]]) -> State:
    state = State()
    for seq, records in enumerate(log, 1):
        state.seq = seq
        for record in records:
            name, version, fields = read_json(encode_record(record))
            state.apply(MetaRecord(name, version, fields), seq)
    return state


@given(logs)
def test_the_fold_is_the_brokers(log: list[list[Record]]) -> None:
    image = fold(enumerate(log, 1))
    assert folded(log) == as_ours(image)
    snapshot = [SnapshotTaken(at_ms=1), *image.snapshot_records()]
    again = folded([snapshot])
    again.seq = image.seq
    assert again == as_ours(image)


def test_a_deleted_topic_is_remembered() -> None:
    log = three_slots()
    log.slot([["TopicDeleted", 0, {"topic_id": f"{1:032x}"}]])
    state = log.read().state
    assert state.topics == {}
    ((topic_id, deleted),) = state.deleted.items()
    assert (topic_id, deleted.name, deleted.seq) == (topic_text(UUID(int=1).bytes), "t1", 4)


# --- sound logs ---------------------------------------------------------------------------------------------


def test_the_golden_objects_are_a_log() -> None:
    objects = {one.key: one.data for one in samples() if one.key and one.layout == "slot"}
    meta = read_meta(Held({key: data for key, data in objects.items() if "snapshot" not in key}))
    assert meta.findings == []
    assert (meta.state.seq, meta.state.cluster_id, meta.is_whole) == (3, "J8aAPcfLQt2bqs1JT_rMgQ", True)


def test_a_log_with_snapshots_collected_or_not_is_whole() -> None:
    log = three_slots()
    whole = log.read()
    log.snapshot()
    assert log.read() == whole
    log.boundary()
    log.slot([config("y")])
    meta = log.read()
    assert (meta.findings, meta.boundary, meta.state.seq, meta.is_whole) == ([], 3, 4, True)
    assert meta.state.topic_config("t") == {"a": "y"}
    assert list(meta.state.topics) == list(whole.state.topics)


def test_a_slot_below_the_boundary_does_not_count() -> None:
    log = three_slots()
    log.snapshot()
    late = dict(log.store.objects)
    log.boundary()
    log.store.objects["meta/00000000000000000002"] = late["meta/00000000000000000002"]
    meta = log.read()
    assert meta.findings == []
    assert [(one.what, one.first) for one in meta.counted] == [("dead", 2)]


def test_a_void_slot_is_counted_and_says_nothing() -> None:
    log = three_slots()
    log.epoch = 2
    log.slot([elected(2, 2)])
    log.slot([config("void"), ["NoSuchRecord", 0, {}]], epoch=1)
    log.slot([config("z")])
    meta = log.read()
    assert meta.findings == []
    assert [(one.what, one.first, one.end) for one in meta.counted] == [("void-slot", 5, 6)]
    assert meta.state.topic_config("t") == {"a": "z"}


def test_without_a_log_nothing_is_told() -> None:
    meta = read_meta(Held({"tier/x": b""}))
    assert (meta.findings, meta.is_there, meta.state) == ([], False, State())


# --- damage -------------------------------------------------------------------------------------------------


def test_a_missing_slot() -> None:
    log = three_slots()
    log.slot([config("y")])
    del log.store.objects["meta/00000000000000000002"], log.store.objects["meta/00000000000000000003"]
    meta = log.read()
    assert told(meta) == [("meta-gap", 2, 4, "meta/00000000000000000002")]
    assert not meta.is_whole
    assert meta.state.topic_config("t") == {"a": "y"}


def test_a_hostile_number_is_one_gap() -> None:
    log = three_slots()
    log.store.objects["meta/" + "9" * 20] = encoded(1, 1, bytes(32), [])
    assert [one.code for one in log.read().findings] == ["meta-gap", "meta-bad-object"]


def test_a_damaged_slot_is_one_finding_and_the_chain_goes_on_behind_it() -> None:
    log = three_slots()
    log.slot([config("y")])
    log.damage("meta/00000000000000000003")
    meta = log.read()
    assert told(meta) == [("meta-bad-object", 3, 4, "meta/00000000000000000003")]
    assert not meta.is_whole


def test_a_slot_under_the_key_of_another() -> None:
    log = three_slots()
    log.store.objects["meta/00000000000000000003"] = log.store.objects["meta/00000000000000000002"]
    assert told(log.read()) == [("meta-bad-object", 3, 4, "meta/00000000000000000003")]


def test_a_slot_that_was_replaced() -> None:
    log = three_slots()
    log.store.objects["meta/00000000000000000002"] = encoded(2, 1, hashlib.sha256(b"").digest(), [])
    assert [(code, first) for code, first, _, _ in told(log.read())] == [
        ("meta-chain-broken", 2),
        ("meta-chain-broken", 3),
    ]


@pytest.mark.parametrize("records", [[elected(2, 1)], [elected(1, 0)]], ids=["another", "older"])
def test_two_writers_of_an_epoch(records: list[Row]) -> None:
    log = three_slots()
    log.slot(records)
    assert told(log.read()) == [("meta-two-writers", 4, 5, "meta/00000000000000000004")]


def test_a_writer_that_nobody_elected() -> None:
    log = three_slots()
    log.slot([config("y")], epoch=7)
    assert told(log.read()) == [("meta-two-writers", 4, 5, "meta/00000000000000000004")]


@pytest.mark.parametrize("record", [["NoSuchRecord", 0, {}], ["TopicDeleted", 1, {"topic_id": "0" * 32}]])
def test_a_record_of_a_newer_release(record: Row) -> None:
    log = three_slots()
    log.slot([record])
    meta = log.read()
    assert told(meta) == [("meta-unknown-record", 4, 5, "meta/00000000000000000004")]
    assert not meta.is_whole


@pytest.mark.parametrize(
    "record",
    [
        ["TopicDeleted", 0, {}],
        ["TopicDeleted", -1, {"topic_id": "0" * 32}],
        ["TopicDeleted", 0, {"topic_id": "x"}],
        ["TopicCreated", 0, {"name": "t", "topic_id": "0" * 32, "partitions": [[1, 0, 0, [1]]]}],
        ["TopicCreated", 0, {"name": "t", "topic_id": "0" * 32, "partitions": [1]}],
        ["ProducerIdsAllocated", 0, {"broker_id": 1, "broker_epoch": 1, "next_producer_id": True}],
        ["ProducerIdsAllocated", 0, {"broker_id": 1, "broker_epoch": 1, "next_producer_id": 1 << 64}],
        ["FeatureChanged", 0, {"name": "transaction.version", "level": "2"}],
    ],
)
def test_a_record_that_is_not_as_the_page_says(record: Row) -> None:
    log = three_slots()
    log.slot([record])
    assert told(log.read()) == [("meta-bad-object", 4, 5, "meta/00000000000000000004")]


def test_a_boundary_with_bytes_in_it() -> None:
    log = three_slots()
    log.snapshot()
    log.boundary()
    log.store.objects["meta/boundary/00000000000000000003"] = b"x"
    assert told(log.read()) == [("meta-bad-object", 3, 4, "meta/boundary/00000000000000000003")]


def test_a_snapshot_that_is_another_state() -> None:
    log = three_slots()
    log.snapshot([*log.records, config("other")])
    log.slot([config("y")])
    meta = log.read()
    assert told(meta) == [("meta-snapshot-differs", 3, 4, "meta/snapshot/00000000000000000003")]
    assert meta.is_whole


@pytest.mark.parametrize("what", ["damaged", "headless"])
def test_a_damaged_snapshot(what: str) -> None:
    log = three_slots()
    log.snapshot()
    key = "meta/snapshot/00000000000000000003"
    if what == "damaged":
        log.damage(key)
    else:
        log.store.objects[key] = encoded(3, 1, log.hash, log.records)
    assert told(log.read()) == [("meta-bad-object", 3, 4, key)]


def test_a_snapshot_makes_up_for_slots_that_are_lost() -> None:
    log = three_slots()
    log.snapshot()
    log.slot([config("y")])
    del log.store.objects["meta/00000000000000000002"]
    meta = log.read()
    assert told(meta) == [("meta-gap", 2, 3, "meta/00000000000000000002")]
    assert list(meta.state.topics) == [topic_text(UUID(int=1).bytes)]


def test_a_boundary_without_its_snapshot() -> None:
    log = three_slots()
    log.boundary()
    log.slot([config("y")])
    meta = log.read()
    assert told(meta) == [("meta-gap", 3, 4, "meta/snapshot/00000000000000000003")]
    assert not meta.is_whole


# --- while it is written ------------------------------------------------------------------------------------


def test_what_is_collected_while_it_is_read_is_no_finding() -> None:
    log = three_slots()
    log.snapshot()

    def collect(key: str) -> None:
        if key.endswith("2"):
            log.store.before_reading = lambda key: None
            log.boundary()

    log.store.before_reading = collect
    meta = log.read()
    assert (meta.findings, meta.boundary, meta.is_whole) == ([], 3, True)


def test_a_slot_that_the_listing_missed_is_no_gap() -> None:
    log = three_slots()
    whole, listing = log.read(), log.store.list

    def first_time(prefix: str = "") -> Iterator[Listed]:
        log.store.list = listing  # type: ignore[method-assign]
        return (row for row in listing(prefix) if not row.key.endswith("2"))

    log.store.list = first_time  # type: ignore[method-assign]
    assert log.read() == whole


def test_a_store_that_fails_is_no_finding() -> None:
    log = three_slots()

    def fail(key: str) -> None:
        raise SourceFailed("away")

    log.store.before_reading = fail
    with pytest.raises(SourceFailed):
        log.read()


@given(
    st.dictionaries(st.integers(0, 5), st.binary(max_size=80) | st.just(b""), max_size=4),
    st.binary(max_size=90),
)
def test_hostile_objects_are_findings(slots: dict[int, bytes], snapshot: bytes) -> None:
    log = three_slots()
    log.store.objects |= {f"meta/{seq:020d}": data for seq, data in slots.items()}
    log.store.objects["meta/snapshot/00000000000000000002"] = snapshot
    found: list[Finding] = log.read().findings
    assert {one.code for one in found} <= {"meta-gap", "meta-bad-object", "meta-chain-broken"}
    assert any(one.place == "meta/snapshot/00000000000000000002" for one in found)
