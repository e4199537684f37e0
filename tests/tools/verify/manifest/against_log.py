"""A manifest that a real client wrote, against the log that a real broker has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from protocol.records import iter_batches, iter_records
from tests.clients.blocking import BlockingClient
from tools.verify.core.findings import Finding
from tools.verify.core.manifest import Manifest, open_rows, read_manifests
from tools.verify.core.manifest_digests import hash_of, record_digests
from tools.verify.core.manifest_files import Outcome
from tools.verify.core.manifest_rules import Columns, Wanted, compare

TOPIC_ID = "A" * 22


class Judged(NamedTuple):
    manifest: Manifest
    findings: list[Finding]
    counted: Counter[str]
    outcomes: Counter[Outcome]
    log_records: int


def judged(
    folder: Path, bootstrap: str, topic: str, partitions: int, topic_id: str = TOPIC_ID, *, lost: int = 0
) -> Judged:
    """`lost` records are left out of what partition 0 holds: what a broker that loses them would have."""
    manifest = read_manifests([str(folder)], {topic: topic_id})
    logs = {number: _columns(bootstrap, topic, number) for number in range(partitions)}
    logs[0] = tuple(column[lost:] for column in logs[0])  # type: ignore[assignment]
    wanted = [
        Wanted(topic_id, number, 0, tuple(manifest.differing(topic_id, number, record_digests("", *log), 0)))
        for number, log in logs.items()
    ]

    def read(group: Sequence[Wanted]) -> Iterator[tuple[str, int, Columns]]:
        for each in group:
            offsets = logs[each.partition][0]
            for first, end in each.ranges:
                own = slice(*np.searchsorted(offsets, (first, end)).tolist())
                keys, values = logs[each.partition][1:]
                yield topic_id, each.partition, (offsets[own], keys[own], values[own])

    found = compare(manifest, wanted, read)
    counted: Counter[str] = Counter()
    for each in (*manifest.counted, *found.counted):
        counted[each.what] += each.amount
    outcomes: Counter[Outcome] = Counter()
    for file in manifest.files:
        for _, rows in open_rows(file):
            outcomes.update(Outcome(number) for number in rows["outcome"].tolist())
    assert not manifest.unchecked and not found.unchecked
    records = sum(len(log[0]) for log in logs.values())
    return Judged(manifest, [*manifest.findings, *found.findings], counted, outcomes, records)


def _columns(bootstrap: str, topic: str, partition: int) -> Columns:
    rows = []
    with BlockingClient(bootstrap) as client:
        batches = client.read_bytes(topic, partition)
    for at, header in iter_batches(batches):
        rows += [
            (record.offset, hash_of(record.key), hash_of(record.value))
            for record in iter_records(memoryview(batches)[at : at + header.size])
        ]
    rows.sort()
    return (
        np.array([row[0] for row in rows], np.int64),
        np.array([row[1] for row in rows], np.uint64),
        np.array([row[2] for row in rows], np.uint64),
    )
