"""Starts of a broker that knows of many segments in the cold tier, beside starts of the same broker without.

Owns the two brokers, which differ in what they know of one topic alone: that its log lies in the tier, in
very many segments; and how long each takes to ready and to the first read from the tier. Does not own the
records of those segments (tier_fold) nor how a log is written (storage).
Invariant: both start in turn, after a clean stop each; what is read first is in the tier alone, and what is
known of it is in the same partition of the metadata topic as what is known of the many segments; a start
counts only when the broker comes to know of all of them.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from contextlib import ExitStack
from pathlib import Path

from protocol import messages
from protocol.apis import Api
from protocol.records import build_batch
from remote.cold.segments import TieredPartition
from storage.files import DiskFiles
from storage.log_manager import LogManager
from storage.policy import LogConfig
from tools.console import Failure
from tools.tier.reader import METADATA_TOPIC
from tools.versus import brokers, tiered
from tools.versus.caller import (
    FETCH_VERSION,
    LATEST_TIERED,
    Caller,
    fetch_request,
    read_frame,
    until,
    wall_ms,
)
from tools.versus.tier_fold import AT_ONCE, RECORDS_A_SEGMENT, records
from tools.versus.tiered import Tiered

READ, MANY = "read", "many"
PLAIN, LADEN = "plain", "laden"
READ_SEGMENTS = 3
FETCH_BYTES, WAIT_MS = 1 << 20, 500
KNOWN_S_MAX = 300.0
SETTINGS = {**tiered.SETTINGS, "rlmm.config.remote.log.metadata.topic.num.partitions": "1"}

Found = dict[str, float]


def measure(count: int, rounds: int, segment_bytes: int, folder: Path) -> list[Found]:
    """Return the figures of each round."""
    cores = os.sched_getaffinity(0)
    for name in (PLAIN, LADEN):
        (folder / f"{name}-tier").mkdir(parents=True)
    with ExitStack() as stack:
        plain, laden = (
            stack.enter_context(
                brokers.Tidewal(
                    folder / name,
                    cores,
                    name=f"Tidewal, {name}",
                    store=f"file://{folder / f'{name}-tier'}",
                    settings=SETTINGS,
                )
            )
            for name in (PLAIN, LADEN)
        )
        _fill(plain, segment_bytes)
        shutil.copytree(plain.data, laden.data)
        shutil.copytree(folder / f"{PLAIN}-tier", folder / f"{LADEN}-tier", dirs_exist_ok=True)
        _tell_of_many(laden.data, count)
        found = []
        for _ in range(rounds):
            without, beside = _start(plain, 0), _start(laden, count)
            found.append(
                {
                    "segments": count,
                    **beside,
                    **{f"plain_{name}": value for name, value in without.items()},
                    "later_s": beside["ready_s"] - without["ready_s"],
                    "later_cpu_s": beside["ready_cpu_s"] - without["ready_cpu_s"],
                }
            )
    return found


def _fill(broker: brokers.Broker, segment_bytes: int) -> None:
    """Make both topics, one of them with a few segments that are in the tier alone, and stop."""
    broker.start()
    configs = {
        "segment.bytes": str(segment_bytes),
        "remote.storage.enable": "true",
        "local.retention.bytes": "1",
        "retention.ms": "-1",
    }
    with Caller(broker.port) as caller:
        for topic in (READ, MANY):
            caller.create(topic, configs=configs)
    system = Tiered(name=broker.name, broker=broker, objects=broker.folder)
    tiered.fill(system, READ, READ_SEGMENTS * segment_bytes)
    end = tiered.closed_ends(system, READ, 1)
    tiered.wait_tiered(broker.port, READ, end)
    tiered.wait_let_go(broker.port, READ, end[0])
    broker.stop()


def _tell_of_many(data: Path, count: int) -> None:
    """Let a log that is empty begin behind so many segments, and the log of the metadata topic tell of
    them."""
    logs = LogManager(
        files=DiskFiles(),
        dirs=[str(data)],
        now_ms=wall_ms,
        random=random.Random(1),
        defaults=LogConfig(remote_storage_enable=True),
        on_dir_failure=_dir_failed,
    )
    logs.lock_and_open()
    logs.load()
    many, told = logs.logs[MANY, 0], logs.logs[METADATA_TOPIC, 0]
    assert many.topic_id is not None
    many.begin_at(count * RECORDS_A_SEGMENT, log_start=0, epochs=[(0, 0)], producers=None)
    read = records(TieredPartition(many.topic_id, 0), count, random.Random(2), topic=MANY, epochs=1)
    while rows := [
        (key, value, (), wall_ms()) for _, (key, value) in zip(range(AT_ONCE), read, strict=False)
    ]:
        batch = build_batch(rows, base_offset=told.log_end_offset, leader_epoch=max(0, told.epochs.latest))
        told.append_as_follower(batch)
    logs.close(clean=True)


def _dir_failed(path: str, error: OSError) -> None:
    raise Failure(f"{path}: {error}")


def _start(broker: brokers.Broker, count: int) -> Found:
    """Start it and stop it; measure until it is ready, until a read from the tier is answered, and until it
    knows of all segments."""
    started_s = time.perf_counter()
    broker.start()
    found = {"ready_s": broker.ready_s, "ready_cpu_s": brokers.cpu_s(broker.pid)}
    last = count * RECORDS_A_SEGMENT - 1
    with Caller(broker.port) as caller:
        until(lambda: _is_read(caller), f"read from the tier by {broker.name}", KNOWN_S_MAX)
        found |= {"read_s": time.perf_counter() - started_s, "read_cpu_s": brokers.cpu_s(broker.pid)}
        until(
            lambda: caller.offset(MANY, 0, LATEST_TIERED) == last,
            f"{count} segments known to {broker.name}",
            KNOWN_S_MAX,
        )
    broker.stop()
    return found


def _is_read(caller: Caller) -> bool:
    caller.socket.sendall(fetch_request(READ, 0, 0, bytes_max=FETCH_BYTES, wait_ms=WAIT_MS))
    answer = messages.decode_response(Api.FETCH, FETCH_VERSION, read_frame(caller.socket))[1]
    row = answer.responses[0].partitions[0]
    return not row.error_code and bool(row.records)
