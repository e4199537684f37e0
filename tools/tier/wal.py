"""`tidewal tier wal`: the objects of the WAL tier, as the brokers tell them and as the store has them.

Owns: reading both, the rows, what is shown of where they differ. Does not own: what counts as a difference
(remote.wal.journal), options (tools.commands). Invariant: nothing is changed; the topic is read before and
after the bucket, so what comes or goes meanwhile is no difference.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from broker.control.metadata_log import BrokenLog
from protocol.errors import ErrorCode, KafkaError
from protocol.stored.wal_log import decode_key, decode_row
from remote.bad_object import BadObject
from remote.keys import WAL, Stream, WalPart, parse_wal_key
from remote.store.object_store import NoSuchObject, ObjectStore, StoreError
from remote.wal.combined_object import ObjectKind, Place, Table
from remote.wal.journal import Difference, Journal, Known, differences
from remote.wal.tables import read_table
from tools.client import Client
from tools.console import Failure, emit, emit_json, emit_table
from tools.tier.check import check_cluster, open_store
from tools.tier.reader import read_on

METADATA_TOPIC: Final = "__remote_wal_log_metadata"
READS_AT_ONCE: Final = 16
_HEADS: Final = ("node", "epoch", "generation", "seq", "slices", "bytes", "told", "stored")


class JournalReader:
    """Folds what the brokers tell of objects, up to the end of the topic at each `read`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._journals: dict[int, Journal] = {}
        self._read_to: dict[int, int] = {}

    async def read(self) -> Journal:
        """Return the fold of the whole topic; there is none before the first object."""
        answer = await self._client.refresh([METADATA_TOPIC])
        code = answer.topics[0].error_code
        if code not in (ErrorCode.none, ErrorCode.unknown_topic_or_partition):
            raise KafkaError(code, f"topic {METADATA_TOPIC}")
        whole = Journal()
        for number in range(len(answer.topics[0].partitions)):
            journal = self._journals.setdefault(number, Journal())
            await self._read_to_end(number, journal)
            for place, known in journal.objects.items():
                whole.objects[place] = Known(known.row, known.update)
            whole.streams |= journal.streams
        return whole

    async def _read_to_end(self, number: int, journal: Journal) -> None:
        def apply(key: bytes | None, value: bytes | None) -> None:
            journal.apply(decode_key(key or b""), None if value is None else decode_row(value))

        self._read_to[number] = await read_on(
            self._client, METADATA_TOPIC, number, self._read_to.get(number), apply
        )


async def read_bucket(store: ObjectStore) -> dict[Place, Table]:
    """Return the objects that count: of each stream those above its boundary, up to the first that is missing
    or a seal."""
    numbers: dict[Stream, set[int]] = {}
    boundaries: dict[Stream, int] = {}
    for info in await store.list(WAL):
        key = parse_wal_key(info.key)
        if key is not None and key.part is WalPart.OBJECT:
            numbers.setdefault(key.stream, set()).add(key.seq)
        elif key is not None and key.part is WalPart.BOUNDARY:
            boundaries[key.stream] = max(key.seq, boundaries.get(key.stream, -1))
    room = asyncio.Semaphore(READS_AT_ONCE)

    async def table_of(place: Place) -> Table | None:
        async with room:
            try:
                return await read_table(store, place)
            except NoSuchObject:
                return None

    found: dict[Place, Table] = {}
    for stream, seqs in numbers.items():
        seq = boundaries.get(stream, -1) + 1
        while seq in seqs:
            run = [Place(stream, each) for each in range(seq, seq + READS_AT_ONCE) if each in seqs]
            tables = await asyncio.gather(*map(table_of, run))
            for place, table in zip(run, tables, strict=True):
                if table is None or place.seq != seq or table.head.kind is ObjectKind.SEAL:
                    break
                found[place] = table
                seq += 1
            else:
                continue
            break
    return found


async def run(client: Client, url: str, *, as_json: bool) -> None:
    """List the objects, then where topic and bucket differ; Failure if they do."""
    store = open_store(url)
    try:
        await check_cluster(client, store, url)
        reader = JournalReader(client)
        before = await reader.read()
        bucket = await read_bucket(store)
        after = await reader.read()
    except (StoreError, BrokenLog, BadObject) as error:
        raise Failure(str(error), exit_code=2) from None
    finally:
        await store.close()
    show(_rows(after, bucket), differences(before, bucket, after), as_json=as_json)


def _rows(journal: Journal, bucket: Mapping[Place, Table]) -> list[dict[str, Any]]:
    rows = []
    for place in sorted(journal.objects.keys() | bucket.keys()):
        known, table = journal.objects.get(place), bucket.get(place)
        told = known.row if known is not None else None
        rows.append(
            {
                "node": place.stream.node_id,
                "epoch": place.stream.broker_epoch,
                "generation": place.stream.generation,
                "seq": place.seq,
                "slices": len(table.rows) if table is not None else len(told.entries) if told else None,
                "bytes": None if table is None else table.size_bytes,
                "told": None if known is None else known.state.name,
                "stored": table is not None,
            }
        )
    return rows


def show(rows: list[dict[str, Any]], found: Iterable[Difference], *, as_json: bool) -> None:
    problems = [
        {
            "problem": each.what,
            "where": f"{'-'.join(map(str, each.place.stream))}/{each.place.seq}",
            "detail": each.detail,
        }
        for each in found
    ]
    if as_json:
        emit_json({"sound": not problems, "objects": rows, "problems": problems})
    else:
        emit_table(_HEADS, rows)
        emit("")
        if problems:
            emit_table(("problem", "where", "detail"), problems)
        else:
            emit(f"{len(rows):,} objects: the topic tells what the store has")
    if problems:
        counts = Counter(problem["problem"] for problem in problems)
        raise Failure(", ".join(f"{count} {name}" for name, count in counts.items()))
