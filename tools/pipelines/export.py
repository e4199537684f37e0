"""`tidewal export`: a topic as Parquet files that are kept up to date, each record in them once.

Owns: which offsets become a file, merging small ones, and what to say when offsets are gone. Does not own:
names and which of them count (parquet_files), reading the topic (source), columns.
Invariant: the end of a file is claimed under its first offset by one conditional put before the file is put,
again by a conditional put under a name that is only that range. So whoever is killed, tries again, or runs
beside another puts the same file or none: no record is in two files that count. What a merged file holds is
emptied, not deleted, for a day: a sleeper that wakes finds the name taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from broker.process import offload, store_at, wall_clock_ms
from protocol.errors import KafkaError
from remote.store.location import BadStoreUrl, FileLocation, parse_store_url
from remote.store.metered import StoreStats
from remote.store.object_store import NoSuchObject, ObjectStore, PutResult, StoreError
from tools.client import Address, Client, RequestFailed
from tools.console import Failure, complain, emit, write_json
from tools.pipelines.columns import SCHEMA, Columns
from tools.pipelines.parquet_files import (
    ABOUT,
    LEVELS,
    Claim,
    ParquetFile,
    claim_bytes,
    counting,
    parse_claim,
    parse_file,
    read_claim,
    to_merge,
)
from tools.topic_source import BatchSource, Bounds, BrokerSource, OffsetsGone

PARTITIONS_AT_ONCE: Final = 4
PATIENCE_S: Final = 60.0
PAUSE_S: Final = 0.2
EMPTIED_KEPT_MS: Final = 24 * 3_600_000
LAYOUT_VERSION: Final = 1
Offload: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    topic: str
    bootstrap: str
    url: str
    file_bytes: int = 64 << 20
    """About so many bytes of batches become a file, and smaller files are merged up to there."""
    every_s: float | None = None
    """None: one pass up to the end of the log as it is at the start."""
    read_committed: bool = True
    allow_loss: bool = False
    compression: str = "zstd"
    json_file: str | None = None


@dataclass(slots=True)
class Exported:
    records: int = 0
    files: int = 0
    merged: int = 0
    lost: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """By partition: offsets that the log did not have any more when they were to be exported."""
    ends: dict[int, int] = field(default_factory=dict)


def run(options: ExportOptions) -> None:
    """Export until the end, or for good; Failure when it cannot go on."""
    try:
        asyncio.run(_run(options))
    except StoreError as error:
        raise Failure(f"{options.url}: {error}") from None
    except RequestFailed as error:
        raise Failure(str(error)) from None
    except KafkaError as error:
        raise Failure(f"{error.code.name.upper()}: {error}") from None


async def _run(options: ExportOptions) -> None:
    store = destination(options.url)
    addresses = [Address.parse(text) for text in options.bootstrap.split(",")]
    try:
        async with Client(addresses, client_id="tidewal-export") as client:
            source = await BrokerSource(client, options.topic, read_committed=options.read_committed).open()
            exporter = Exporter(source, store, options, now_ms=wall_clock_ms, offload=offload)
            await exporter.check_about()
            told = -1
            while True:
                await exporter.round()
                done = exporter.done
                if done.files > told:
                    told = done.files
                    emit(
                        f"{options.topic}: {done.records:,} records in {done.files} new files"
                        + (f", {done.merged} merged" if done.merged else "")
                    )
                if options.every_s is None:
                    break
                await asyncio.sleep(options.every_s)
            if options.json_file is not None:
                write_json(
                    {"topic": options.topic, "records": done.records, "files": done.files}
                    | {"merged": done.merged, "ends": done.ends, "lost": done.lost},
                    options.json_file,
                )
    finally:
        await store.close()


def destination(url: str) -> ObjectStore:
    """Return the store that a URL names; a directory is made."""
    try:
        location = parse_store_url(url, os.environ)
    except BadStoreUrl as error:
        raise Failure(str(error), exit_code=2) from None
    if isinstance(location, FileLocation):
        try:
            Path(location.path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Failure(f"{url}: {error.strerror}") from None
    return store_at(location, StoreStats())


class Exporter:
    """Brings an export up to date, round by round."""

    def __init__(
        self,
        source: BatchSource,
        store: ObjectStore,
        options: ExportOptions,
        *,
        now_ms: Callable[[], int],
        offload: Offload,
    ) -> None:
        self.done = Exported()
        self._source = source
        self._store = store
        self._options = options
        self._now_ms = now_ms
        self.offload = offload
        self._emptied: set[str] = set()
        self._nothing = parquet_bytes(SCHEMA.empty_table(), {"superseded": "true"}, "none")

    async def check_about(self) -> None:
        """Failure if something else is exported there."""
        options = self._options
        about = {
            "version": LAYOUT_VERSION,
            "topic": options.topic,
            "topic_id": self._source.topic_id,
            "cluster_id": self._source.cluster_id,
            "isolation": "read_committed" if options.read_committed else "read_uncommitted",
        }
        if await self._put_once(ABOUT, json.dumps(about).encode()):
            return
        try:
            there = json.loads(await self._store.get(ABOUT))
        except ValueError:
            there = None
        if not isinstance(there, dict):
            raise Failure(f"{options.url}: {ABOUT} cannot be read: it does not say what is exported here")
        for name, value in about.items():
            if there.get(name) != value:
                raise Failure(
                    f"{options.url} holds an export with {name} {there.get(name)}, not {value}: "
                    "give another place for this one"
                )

    async def round(self) -> None:
        """Export what there is now, then merge."""
        files: dict[int, list[ParquetFile]] = {}
        claims: dict[int, set[Claim]] = {}
        for info in await self._store.list(""):
            if (file := parse_file(info.key, info.size, info.modified_ms)) is not None:
                files.setdefault(file.partition, []).append(file)
            elif (claim := parse_claim(info.key)) is not None:
                claims.setdefault(claim.partition, set()).add(claim)
        room = asyncio.Semaphore(PARTITIONS_AT_ONCE)

        async def one(partition: int) -> None:
            async with room:
                work = _Partition(self, partition, files.get(partition, ()), claims.get(partition, ()))
                await work.export()
                await work.merge()
                await work.empty_superseded()

        try:
            async with asyncio.TaskGroup() as group:
                for partition in self._source.partitions:
                    group.create_task(one(partition))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None

    # what a partition needs

    @property
    def source(self) -> BatchSource:
        return self._source

    @property
    def options(self) -> ExportOptions:
        return self._options

    async def claim(self, claim: Claim, end: int) -> int:
        """Claim the end of a file, or return what was claimed before."""
        if await self._put_once(claim.key, claim_bytes(end)):
            return end
        return await self.claimed(claim)

    async def claimed(self, claim: Claim) -> int:
        try:
            return read_claim(await self._store.get(claim.key), claim)
        except (ValueError, NoSuchObject) as error:
            raise Failure(f"{self._options.url}: {claim.key} cannot be read: {error}") from None

    async def put_file(self, file: ParquetFile, table: pa.Table) -> tuple[ParquetFile, bool]:
        """Put the file unless it is there; return it with its size, and whether it was this put."""
        about = {
            "topic": self._options.topic,
            "topic_id": self._source.topic_id,
            "partition": str(file.partition),
            "first_offset": str(file.first),
            "end_offset": str(file.end),
        }
        compression = self._options.compression
        data = await self.offload(lambda: parquet_bytes(table, about, compression))
        is_new = await self._put_once(file.key, data)
        return file._replace(size=len(data), modified_ms=self._now_ms()), is_new

    async def merged(self, file: ParquetFile, parts: Sequence[ParquetFile]) -> ParquetFile | None:
        """Put the file with the rows of all parts; None if another exporter has, and has emptied parts."""
        tables = []
        for part in parts:
            data = await self._store.get(part.key)
            if data == self._nothing:
                return None
            tables.append(await self.offload(partial(pq.read_table, pa.BufferReader(data))))
        put, _ = await self.put_file(file, pa.concat_tables(tables))
        self.done.merged += len(parts)
        return put

    async def empty(self, file: ParquetFile) -> None:
        """Take the rows out of a superseded file; delete it a day later."""
        if file.key not in self._emptied and file.size == len(self._nothing):
            with contextlib.suppress(NoSuchObject):
                if await self._store.get(file.key) == self._nothing:
                    self._emptied.add(file.key)
        if file.key not in self._emptied:
            await self._store.put(file.key, self._nothing)
            self._emptied.add(file.key)
        elif file.modified_ms < self._now_ms() - EMPTIED_KEPT_MS:
            await self._store.delete(file.key)
            self._emptied.discard(file.key)

    async def _put_once(self, key: str, data: bytes) -> bool:
        """Put unless there is one of this name; return whether it was this put."""
        time = asyncio.get_running_loop().time
        ends_s = time() + PATIENCE_S
        while (result := await self._store.put_if_absent(key, data)) is PutResult.UNKNOWN:
            if time() > ends_s:
                raise StoreError(f"{key}: not known to be stored for {PATIENCE_S:.0f} s")
            await asyncio.sleep(PAUSE_S)
        return result is PutResult.WON


class _Partition:
    """One round of one partition."""

    def __init__(
        self, exporter: Exporter, partition: int, files: Iterable[ParquetFile], claims: Iterable[Claim]
    ) -> None:
        self._exporter = exporter
        self._source = exporter.source
        self._options = exporter.options
        self._partition = partition
        self._files = {file.key: file for file in files}
        self._claims = set(claims)

    async def export(self) -> None:
        """Add files up to the end of the log."""
        bounds = await self._source.bounds(self._partition)
        kept, _ = counting(self._files.values())
        begun = [claim.first for claim in self._claims if claim.level == 0]
        at = kept[-1].end if kept else min(begun, default=bounds.start)
        self._check_whole(kept)
        if at > bounds.end:
            raise Failure(
                f"{self._name} ends at {bounds.end}, but its export at {at}: an unclean election cut the "
                "log, and what is exported above is not in it any more"
            )
        while at < bounds.end:
            at = await self._add(at, bounds)
        self._exporter.done.ends[self._partition] = at

    async def merge(self) -> None:
        """Make large files of small ones, level by level."""
        kept, _ = counting(self._files.values())
        if not kept:
            return
        limit = kept[-1].end
        for level in range(1, LEVELS + 1):
            limit = await self._merge_level(level, limit)

    async def empty_superseded(self) -> None:
        for file in counting(self._files.values())[1]:
            await self._exporter.empty(file)

    @property
    def _name(self) -> str:
        return f"{self._options.topic}-{self._partition}"

    def _check_whole(self, kept: Sequence[ParquetFile]) -> None:
        for one, after in pairwise(kept):
            if one.end != after.first:
                raise Failure(
                    f"{self._options.url}: no file holds offsets {one.end} to {after.first} of {self._name}: "
                    "one was deleted; bring it back, or export to another place"
                )

    async def _add(self, first: int, bounds: Bounds) -> int:
        """Put the file that begins at `first`; return its end."""
        claim = Claim(0, self._partition, first)
        claimed = await self._exporter.claimed(claim) if claim in self._claims else None
        end, table = await self._collect(first, claimed or bounds.end, is_exact=claimed is not None)
        if claimed is None:
            claimed = await self._exporter.claim(claim, end)
            self._claims.add(claim)
            if claimed != end:
                end, table = await self._collect(first, claimed, is_exact=True)
        put, is_new = await self._exporter.put_file(ParquetFile(self._partition, first, end), table)
        self._files[put.key] = put
        if is_new:
            self._exporter.done.files += 1
            self._exporter.done.records += table.num_rows
        return end

    async def _collect(self, first: int, end: int, *, is_exact: bool) -> tuple[int, pa.Table]:
        """Return where a file is large enough, `end` at most, and the rows from `first` to there."""
        columns = Columns(self._options.topic, self._partition)
        at, size = first, 0
        while at < end:
            try:
                async with contextlib.aclosing(self._source.read(self._partition, at, end)) as pieces:
                    async for piece in pieces:
                        stop = min(piece.end, end)
                        if piece.batch is not None and piece.header is not None:
                            columns.add(piece.batch, piece.header, at, stop)
                            size += len(piece.batch)
                        at = stop
                        if size >= self._options.file_bytes and not is_exact:
                            return at, await self._exporter.offload(columns.table)
            except OffsetsGone as gone:
                at = self._lose(at, min(gone.log_start, end))
        return end, await self._exporter.offload(columns.table)

    def _lose(self, first: int, end: int) -> int:
        """Note offsets that are gone; return where to go on."""
        what = f"offsets {first} to {end} of {self._name} were deleted before they were exported"
        if not self._options.allow_loss:
            raise Failure(f"{what}; --allow-loss goes on without them")
        complain(f"tidewal: {what}")
        self._exporter.done.lost.setdefault(self._partition, []).append((first, end))
        return end

    async def _merge_level(self, level: int, limit: int) -> int:
        """Merge files below `limit` that are not larger than the level before makes them; return up to where
        this level has come.
        """
        kept, _ = counting(self._files.values())
        at = kept[0].first
        if mine := [claim for claim in self._claims if claim.level == level]:
            last = max(mine, key=lambda claim: claim.first)
            at = await self._exporter.claimed(last)
            if not await self._build(last.first, at):
                return at
        while True:
            kept, _ = counting(self._files.values())
            group = to_merge(kept, at, limit, self._options.file_bytes)
            if not group:
                return at
            claim = Claim(level, self._partition, at)
            end = await self._exporter.claim(claim, group[-1].end)
            self._claims.add(claim)
            if not await self._build(at, end):
                return end
            at = end

    async def _build(self, first: int, end: int) -> bool:
        """Put the file of a claimed range unless there is one as large; return whether all is settled."""
        wanted = ParquetFile(self._partition, first, end)
        kept, _ = counting(self._files.values())
        if any(file == wanted or file.holds(wanted) for file in map(_bare, kept)):
            return True
        parts = [file for file in kept if first <= file.first and file.end <= end]
        if not parts or parts[0].first != first or parts[-1].end != end:
            return False  # another exporter is further than the listing: the next round sees
        put = await self._exporter.merged(wanted, parts)
        if put is None:
            return False
        self._files[put.key] = put
        return True


def _bare(file: ParquetFile) -> ParquetFile:
    return ParquetFile(file.partition, file.first, file.end)


def parquet_bytes(table: pa.Table, about: dict[str, str], compression: str) -> bytes:
    """Return the table as a Parquet file that says where it comes from."""
    described = table.replace_schema_metadata({f"tidewal.{name}": value for name, value in about.items()})
    sink = pa.BufferOutputStream()
    pq.write_table(described, sink, compression=compression, use_dictionary=["topic", "partition"])
    return bytes(sink.getvalue().to_pybytes())
