"""What a real broker leaves on its disk and in both tiers, and what it answered about that.

Owns the topics worth reading without a broker: every codec, interleaved transactions, one that is open,
deleted records, a compacted log, and tails that only the WAL tier has. Does not own what reads them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from protocol.compression import Codec
from protocol.records import build_batch, end_txn_marker
from tests.clients.blocking import BlockingClient
from tests.compat.peers import until
from tests.compat.samples import FIRST_MS, samples
from tests.compat.test_confluent import produce
from tests.compat.test_interchange import CLEANING, put_in_place
from tests.e2e.tiered import ALONE, SETTLE_S, TIERED, TieredBroker, TieredTopic, alter, ask
from tools.client import Client
from tools.topic_source import BrokerSource
from tools.verify.core.stores import open_source
from tools.verify.core.topic import open_topic

WAL = {"remote.wal.storage.enable": "true"}
SETTINGS = {
    **ALONE,
    **CLEANING,
    "remote.wal.log.manager.combiner.task.interval.ms": "20",
    "offsets.topic.replication.factor": "1",
    "log.segment.delete.delay.ms": "0",
}
KINDS = ("tiers", "plain", "cut", "compact", "open")
"""`tiers` and `cut` are in both tiers, `compact` is in the WAL tier, the others are on the disk alone."""
IN_STORE = ("tiers", "cut", "compact")
STEP_MS = 10
SMALL = [sample for sample in samples(25) if len(sample.value or b"") < 5000]


@dataclass(slots=True)
class Answered:
    """What the broker said of a topic's only partition."""

    start: int
    end: int
    stable_end: int
    raw: bytes
    """All batches, from that which holds `start`."""
    committed: list[tuple[int, bytes]]
    """The batches of data that no aborted transaction wrote, with the offset behind each."""
    times: dict[int, int | None]
    """Offsets by time."""


@dataclass(slots=True)
class LeftBehind:
    data: Path
    url: str
    answers: dict[str, Answered] = field(default_factory=dict)


def leave(folder: Path, *, keep_running: bool = False) -> tuple[LeftBehind, TieredBroker]:
    """Run a broker and stop it cleanly, unless it is to go on."""
    broker = TieredBroker(folder, settings=SETTINGS, env={})
    try:
        left = LeftBehind(broker.data, broker.url)
        topics = _make(broker)
        for name in KINDS:
            if name != "compact":
                left.answers[name] = _ask(broker, name)
        until(lambda: _is_compacted(broker), "the compacted topic to be cleaned", timeout_s=SETTLE_S)
        left.answers["compact"] = _ask(broker, "compact")
        for name in IN_STORE:
            until(lambda name=name: _is_stored(left, name), f"{name} to be in the store", timeout_s=SETTLE_S)
        for topic in topics:
            topic.wait_no_loose_ends()
        if not keep_running:
            assert broker.process.terminate() == 0
            broker.close()
    except BaseException:
        broker.close()
        raise
    return left, broker


def _make(broker: TieredBroker) -> list[TieredTopic]:
    tiers = broker.make_topic(config={**TIERED, **WAL, "index.interval.bytes": "1000"}, name="tiers")
    plain = broker.make_topic(config={"internal.segment.bytes": "131072"}, name="plain")
    cut = broker.make_topic(config={**TIERED, **WAL}, name="cut")
    compact = broker.make_topic(
        config={**WAL, "cleanup.policy": "compact", "internal.segment.bytes": "16384",
                "min.cleanable.dirty.ratio": "0.01"},
        name="compact",
    )  # fmt: skip
    opened = broker.make_topic(config={}, name="open")
    broker.kill()
    for name, log in (("tiers", transactions(1)), ("open", transactions(2, leave_open=True))):
        written = broker.data.parent / f"written-{name}"
        written.mkdir()
        (written / f"{0:020d}.log").write_bytes(log)
        put_in_place(written, broker.data / f"{name}-0")
    broker.rise()
    for codec in Codec:
        produce(broker.bootstrap, plain.name, samples(), **{"compression.type": codec.name.lower()})
        produce(broker.bootstrap, tiers.name, SMALL, **{"compression.type": codec.name.lower()})
    for topic in (tiers, cut):
        topic.append(12)
    for n in range(300):
        _send(broker, compact.name, [(b"k%d" % (n % 5), b"%d" % n * 100, (), FIRST_MS + n)])
    _delete(broker, cut.name, 9)
    tiers.append(1, size=200)
    cut.wait_tiered()
    alter(broker.bootstrap, cut.name, {"local.retention.ms": "86400000"})
    cut.append(4)
    assert opened.known_offset(-1) > 0
    return [tiers, cut]


def transactions(seed: int, *, leave_open: bool = False) -> bytes:
    """A log of transactions of three producers that overlap, half of them aborted, and batches of none."""
    rng = random.Random(seed)
    log, offset = bytearray(), 0
    under_way: dict[int, int] = {}
    sequences: dict[int, int] = {}
    for step in range(120):
        producer_id = rng.choice([-1, 11, 12, 13])
        if producer_id in under_way and rng.random() < 0.3:
            log += end_txn_marker(
                commit=rng.random() < 0.5, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0,
                timestamp=FIRST_MS + step * STEP_MS, base_offset=offset, leader_epoch=0,
            )  # fmt: skip
            del under_way[producer_id]
            offset += 1
            continue
        count = rng.randint(1, 8)
        rows = [
            (
                b"%d" % number,
                rng.randbytes(40),
                (("at", b"%d" % step),),
                FIRST_MS + step * STEP_MS + rng.randint(0, 30),
            )
            for number in range(offset, offset + count)
        ]
        sequence = sequences.get(producer_id, 0)
        log += build_batch(
            rows, base_offset=offset, leader_epoch=0, codec=rng.choice(list(Codec)),
            producer_id=producer_id, producer_epoch=-1 if producer_id < 0 else 0,
            base_sequence=-1 if producer_id < 0 else sequence, transactional=producer_id >= 0,
        )  # fmt: skip
        if producer_id >= 0:
            under_way.setdefault(producer_id, offset)
            sequences[producer_id] = sequence + count
        offset += count
    if not leave_open:
        for producer_id in under_way:
            log += end_txn_marker(
                commit=False, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0,
                timestamp=FIRST_MS, base_offset=offset, leader_epoch=0,
            )  # fmt: skip
            offset += 1
    return bytes(log)


def _send(broker: TieredBroker, topic: str, rows: list[tuple[bytes, bytes, tuple[()], int]]) -> None:
    with BlockingClient(broker.bootstrap) as client:
        assert client.produce(topic, 0, bytes(build_batch(rows))).error_code == 0


def _delete(broker: TieredBroker, topic: str, below: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for result in admin.delete_records([TopicPartition(topic, 0, below)]).values():
        result.result(timeout=SETTLE_S)


def _is_compacted(broker: TieredBroker) -> bool:
    """Whether no segment that is closed has a record that a later one replaces."""
    files = sorted((broker.data / "compact-0").glob("*.log"))
    return len(files) > 1 and sum(path.stat().st_size for path in files[:-1]) < 5000


def _is_stored(left: LeftBehind, name: str) -> bool:
    return open_topic([open_source(left.url)], name).bounds(0).end == left.answers[name].end


def _ask(broker: TieredBroker, name: str) -> Answered:
    async def work(client: Client) -> Answered:
        every = await BrokerSource(client, name, read_committed=False).open()
        stable = await BrokerSource(client, name).open()
        start, end = await every.bounds(0)
        _, stable_end = await stable.bounds(0)
        committed = [
            (piece.end, bytes(piece.batch))
            async for piece in stable.read(0, start, stable_end)
            if piece.batch is not None
        ]
        times = {
            time: await every.offset_at(0, time)
            for time in range(FIRST_MS - STEP_MS, FIRST_MS + 130 * STEP_MS, 7 * STEP_MS)
        }
        with BlockingClient(broker.bootstrap) as reader:
            raw = reader.read_bytes(name, 0, start)
        return Answered(start, end, stable_end, raw, committed, times)

    return ask(broker.bootstrap, work)
