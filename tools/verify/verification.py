"""A verification from its options to its outcome.

Owns the order of its phases and what of their results goes where. Does not own any phase (snapshot, listing,
plan, engines, judge, refining) or how the outcome is shown (report). Invariant: what the store, a disk or an
engine did not give is never a finding, and an outcome with any of it is unfinished.
"""

from __future__ import annotations

import resource
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tools.verify.core import price
from tools.verify.core.contexts import make_contexts
from tools.verify.core.data_view import log_units
from tools.verify.core.facts import Fact, Fault, NotChecked, NotRead, Row, StreamObject, Tally, Vanished
from tools.verify.core.findings import Counted, Finding
from tools.verify.core.group_check import judge_commits, reached
from tools.verify.core.judge import GAP, Verdict
from tools.verify.core.keys import StreamKey, WalObject, parse_key
from tools.verify.core.listing import (
    COLD_MISSING_DATA,
    UNKNOWN_KEY,
    Copies,
    StreamListing,
    Streams,
    judge_copies,
    judge_streams,
    missing_objects,
    wal_units,
)
from tools.verify.core.manifest_rules import LOSS, TORN
from tools.verify.core.outcome import (
    Coverage,
    Effort,
    Figures,
    Options,
    Outcome,
    Planned,
    PlannedPart,
    Progress,
    ProgressListener,
    Unchecked,
    Unread,
    damaged_ranges,
)
from tools.verify.core.plan import (
    Choice,
    ColdUnit,
    LogUnit,
    Task,
    Unit,
    WalUnit,
    cold_tasks,
    log_tasks,
    numbered,
    parts_of,
    wal_tasks,
)
from tools.verify.core.scan import unread as unread_rows
from tools.verify.core.snapshot import Snapshot, freeze, streams_now
from tools.verify.core.stores import Listed, Source, SourceFailed, open_source
from tools.verify.core.told import Take, TopicReader
from tools.verify.engines.engine import Engine, EngineFailed, Judging
from tools.verify.ledger import Ledger
from tools.verify.refining import refine

U = TypeVar("U", ColdUnit, WalUnit, LogUnit)


def verify(options: Options, listener: ProgressListener | None = None) -> Outcome:
    """Verify what the options name. Raise BadSourceUrl, and EngineFailed if the engine does not start."""
    return Verification(options, listener or _ignore).run()


def plan(options: Options) -> Planned:
    """Say what a verification would read, and what that costs. Raise BadSourceUrl and SourceFailed."""
    run = Verification(options, _ignore)
    snapshot = freeze(run.store, run.data, run.reader)
    if snapshot.unread:
        raise SourceFailed(f"{snapshot.unread[0].place}: {snapshot.unread[0].why}")
    work = run.prepare(snapshot)
    parts = [*parts_of(work.tasks), *_meta_parts(snapshot)]
    listing = snapshot.store.listing
    objects = listing.objects if listing is not None else 0
    requests = sum(part.requests for part in parts)
    lists = price.list_requests(objects) if listing is not None else 0
    gets = sum(part.requests for part in parts if part.kind != "data") if listing is not None else 0
    return Planned(
        tuple(sorted(parts)),
        len(work.tasks),
        sum(part.objects for part in parts),
        sum(part.size for part in parts),
        requests + lists,
        price.dollars(gets, lists) if options.store.startswith("s3:") else 0.0,
        price.PRICE_DATE,
        sum(unit.size for unit in work.proved),
    )


def _meta_parts(snapshot: Snapshot) -> list[PlannedPart]:
    """The metadata log is read before and after the listing."""
    listing = snapshot.store.listing
    if listing is None or not listing.meta_objects:
        return []
    return [PlannedPart("meta", listing.meta_objects, 2 * listing.meta_size, 2 * listing.meta_objects)]


def _ignore(_: Progress) -> None:
    """Tell nobody."""


@dataclass(slots=True)
class _Work:
    """What is to be read, and what is known before."""

    tasks: list[Task]
    copies: Copies
    proved: list[Unit]
    """What the ledger has."""
    proved_bytes: int = 0
    """As many of them as were judged."""


@dataclass(slots=True)
class _Scans:
    """What scans say that is not about one partition."""

    findings: list[Finding] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    unchecked: list[Unchecked] = field(default_factory=list)
    streams: list[StreamObject] = field(default_factory=list)
    gone: list[Vanished] = field(default_factory=list)
    size: int = 0
    batches: int = 0
    records: int = 0
    requests: int = 0
    received: int = 0

    def take(self, facts: Iterable[Fact]) -> None:
        for fact in facts:
            match fact:
                case Tally():
                    self.size += fact.size
                    self.batches += fact.batches
                    self.records += fact.records
                    self.requests += fact.requests
                    self.received += fact.received
                case NotRead():
                    self.unread.append(Unread(fact.place, fact.why))
                case NotChecked():
                    self.unchecked.append(Unchecked("facts", f"{fact.place}: {fact.why}"))
                case Fault():
                    self.findings.append(_finding(fact))
                case StreamObject():
                    self.streams.append(fact)
                case Vanished():
                    self.gone.append(fact)


def _finding(fault: Fault, topic_id: str = "", partition: int = -1) -> Finding:
    return Finding(fault.code, topic_id, partition, *fault[3:5], fault.place, fault.position, *fault[5:])


class Verification:
    def __init__(self, options: Options, listener: ProgressListener) -> None:
        self._options = options
        self._listener = listener
        self._ledger = _open_ledger(options.ledger) if options.ledger else None
        self.store = open_source(options.store) if options.store else None
        self.data = [open_source(path) for path in options.data]
        self.reader = _cluster_reader(options.bootstrap) if options.bootstrap else None
        self._wanted = frozenset(options.topics)
        self._ids: frozenset[str] = frozenset()

    def run(self) -> Outcome:
        began, cpu = time.monotonic(), _cpu_seconds()
        self._listener(Progress("listing"))
        snapshot = freeze(self.store, self.data, self.reader)
        work = self.prepare(snapshot)
        asked = [source.counts for source in self._sources()]
        effort = sum(each.requests for each in asked), sum(each.received for each in asked)
        engine = _open_engine(self._options)
        scans = _Scans()
        verdicts: list[Verdict] = []
        found: list[Finding] = [*snapshot.findings, *work.copies.findings]
        counted: list[Counted] = [*snapshot.counted, *work.copies.counted]
        unread = list(snapshot.unread)
        unchecked = list(snapshot.unchecked)
        try:
            scans.take(self._scan(engine, work))
            if self._ledger is not None:
                self._ledger.close()
            streams = self._judge_streams(snapshot, scans)
            found += streams.findings
            counted += streams.counted
            contexts = make_contexts(
                snapshot.before,
                snapshot.after,
                snapshot.names,
                snapshot.store.floors,
                work.copies.explained,
                snapshot.told.moved_starts,
                snapshot.told.copies_after is not None,
            )
            self._listener(Progress("judging"))
            verdicts = engine.judge(Judging(contexts, streams.extents, snapshot.other_context()))
            verdicts = [each for each in verdicts if self._is_wanted(each.topic_id, each.coverage.topic)]
            refined = refine(engine, verdicts, self.store, self.data)
        except EngineFailed as error:
            unread.append(Unread(f"engine {self._options.engine}", str(error)))
            refined = None
        except OSError as error:
            if self._ledger is None:
                raise
            unread.append(Unread(f"ledger {self._options.ledger}", f"{error.strerror or error}"))
            refined = None
        finally:
            engine.close()
        found += scans.findings
        unread += scans.unread
        unchecked += scans.unchecked
        by_partition: dict[tuple[str, int], list[Finding]] = defaultdict(list)
        for verdict in verdicts:
            by_partition[verdict.topic_id, verdict.partition] += verdict.findings
            counted += verdict.counted
        if refined is not None:
            for partition, more in refined.findings.items():
                by_partition[partition] += more
            unread += refined.unread
            unchecked += refined.unchecked
        if self._options.manifests:
            gone: dict[tuple[str, int], list[Finding]] = defaultdict(list)
            for each in work.copies.findings:
                if each.code == COLD_MISSING_DATA:
                    gone[each.topic_id, each.partition].append(each)
            damage = {(each.topic_id, each.partition): each.damage for each in verdicts}
            damaged = {
                place: (
                    *damaged_ranges([*by_partition.get(place, ()), *gone.get(place, ())]),
                    *damage.get(place, ()),
                )
                for place in {*by_partition, *gone}
            }
            from tools.verify.manifest.check import check_manifests

            noted = check_manifests(
                self._options.manifests, self._sources(), snapshot.topic_ids(), damaged,
                snapshot.in_sync_places(), self._wanted,
            )  # fmt: skip
            found += [each for each in noted.findings if not each.topic_id]
            for each in noted.findings:
                if each.topic_id:
                    by_partition[each.topic_id, each.partition].append(each)
            counted += noted.counted
            unread += noted.unread
            unchecked += noted.unchecked
        coverage = tuple(_coverage(verdict, by_partition) for verdict in verdicts)
        if snapshot.committed is not None and not unread:
            whole = reached(snapshot.data, snapshot.states)
            committed = judge_commits(snapshot.committed, coverage, whole, by_partition)
            found += committed[0]
            counted += committed[1]
            unchecked += committed[2]
        for findings in by_partition.values():
            found += findings
        found = [each for each in found if not each.topic_id or self._is_wanted(each.topic_id, "")]
        if self._options.sample < 1.0:
            why = f"of the data about {self._options.sample:g} was read: damage elsewhere was not looked for"
            unchecked.append(Unchecked("sampled", why))
        if unread:
            found, more_unchecked = _without_absence(found)
            unchecked += more_unchecked
        listing = snapshot.store.listing
        if self._ledger is not None:
            unchecked += [Unchecked("ledger", note) for note in self._ledger.notes]
        return Outcome(
            findings=tuple(sorted(set(found))),
            counted=tuple(sorted(set(counted))),
            coverage=coverage,
            unread=tuple(sorted(set(unread))),
            unchecked=tuple(sorted(set(unchecked))),
            figures=Figures(
                objects=listing.objects if listing is not None else 0,
                files=snapshot.data.files,
                listed_bytes=(listing.size if listing is not None else 0) + snapshot.data.size,
                scanned_bytes=scans.size - work.proved_bytes,
                proved_bytes=work.proved_bytes,
                batches=scans.batches,
                records=scans.records,
                partitions=len(verdicts),
                topics=len({verdict.topic_id for verdict in verdicts}),
            ),
            cluster_id=snapshot.cluster_id,
            effort=Effort(
                seconds=time.monotonic() - began,
                cpu_seconds=_cpu_seconds() - cpu + engine.cpu_seconds,
                requests=effort[0] + scans.requests,
                read_bytes=effort[1] + scans.received,
                tasks=len(work.tasks),
            ),
        )

    def _sources(self) -> list[Source]:
        return [*([self.store] if self.store is not None else []), *self.data]

    def _is_wanted(self, topic_id: str, name: str) -> bool:
        return not self._wanted or bool(self._wanted & {topic_id, name}) or topic_id in self._ids

    # --- what there is to read ---

    def prepare(self, snapshot: Snapshot) -> _Work:
        """Hold the listing against metadata, and cut what is to be read into tasks."""
        options, listing = self._options, snapshot.store.listing
        self._ids = snapshot.ids_of(self._wanted)
        copies = Copies([], [], [], defaultdict(list))
        tasks: list[Task] = []
        proved: list[Unit] = []
        if listing is not None and self.store is not None:
            told = snapshot.told
            copies = judge_copies(
                listing, told.copies_before, told.copies_after, snapshot.dead_topics(),
                options.grace_ms,
            )  # fmt: skip
            copies.findings.extend(Finding(UNKNOWN_KEY, place=each.key) for each in listing.unknown)
            objects, indexes = wal_units(listing, told.slices)
            units = [unit for unit in copies.units if self._is_wanted(unit.topic_id, "")]
            cluster_id = snapshot.cluster_id
            tasks += cold_tasks(self._new(_known(units), proved), self.store, cluster_id, options.task_bytes)
            left = {stream: self._new(each, proved) for stream, each in objects.items()}
            tasks += wal_tasks(left, indexes, self.store, cluster_id, options.task_bytes)
        tasks += log_tasks(self._new(self.logs(snapshot), proved), self.data, options.task_bytes)
        choice = Choice(options.sample, options.sample_seed, self._ids if self._wanted else frozenset())
        return _Work(numbered(tasks, choice), copies, proved)

    def _new(self, units: Sequence[U], proved: list[Unit]) -> list[U]:
        """Return what the ledger does not have, and add what it has to `proved`."""
        if self._ledger is None:
            return list(units)
        left = []
        for unit in units:
            if unit.identity in self._ledger:
                proved.append(unit)
            else:
                left.append(unit)
        return left

    def logs(self, snapshot: Snapshot) -> list[LogUnit]:
        """Return the pieces of logs to read."""
        units = log_units(snapshot.data, self._options.task_bytes)
        return [unit for unit in units if self._is_wanted(unit.topic_id, unit.topic)]

    # --- scanning ---

    def _scan(self, engine: Engine, work: _Work) -> list[Fact]:
        size = sum(task.size for task in work.tasks)
        done = [0, 0]

        def on_done(task: Task) -> None:
            done[0] += task.size
            done[1] += 1
            self._listener(Progress("scanning", done[0], size, done[1], len(work.tasks)))

        self._listener(Progress("scanning", 0, size, 0, len(work.tasks)))
        ledger = self._ledger
        if ledger is None:
            return engine.scan(work.tasks, (), on_done, None)
        return engine.scan(work.tasks, _known_rows(ledger, work), on_done, ledger.keep)

    def _judge_streams(self, snapshot: Snapshot, scans: _Scans) -> Streams:
        listing = snapshot.store.listing
        if listing is None or self.store is None:
            return Streams({}, [], [])
        lacking = {stream for stream, each in listing.streams.items() if missing_objects(each)}
        for each in scans.gone:
            if isinstance(key := parse_key(each.place), WalObject):
                listing.streams[key.stream].objects.pop(key.seq, None)
                lacking.add(key.stream)
        again: dict[StreamKey, StreamListing] = {}
        try:
            again = streams_now(self.store, lacking)
        except SourceFailed as error:
            scans.unread.append(Unread("wal/", str(error)))
        for stream, now in again.items():
            for seq in now.boundaries:
                listing.streams[stream].boundaries.setdefault(seq, Listed("", 0, listing.newest_ms))
        told = snapshot.told
        return judge_streams(
            listing.streams, again, scans.streams, told.counting, snapshot.last_slot,
            listing.newest_ms, self._options.grace_ms,
        )  # fmt: skip


def _known_rows(ledger: Ledger, work: _Work) -> Iterator[Row]:
    for unit in work.proved:
        rows = ledger.find(unit.identity)
        if rows is None:
            rows = unread_rows(unit, "the ledger does not give what it has of it")
        work.proved_bytes += sum(row[2].size for row in rows if isinstance(row[2], Tally))
        yield from rows


def _open_ledger(directory: str) -> Ledger:
    try:
        return Ledger(directory)
    except OSError as error:
        raise EngineFailed(f"the ledger {directory}: {error.strerror or error}") from None


def _known(units: Iterable[ColdUnit]) -> list[ColdUnit]:
    return [unit for unit in units if unit.data is not None or unit.index_object is not None]


def _cluster_reader(bootstrap: str) -> TopicReader:
    from tools.verify.bootstrap import read_topic

    def read(topic: str, take: Take, starts: Mapping[int, int]) -> Mapping[int, int]:
        return read_topic(bootstrap, topic, take, starts).ends

    return read


def _open_engine(options: Options) -> Engine:
    if options.engine == "spark":
        from tools.verify.engines.spark import SparkEngine

        return SparkEngine(options.master)
    from tools.verify.engines.local import LocalEngine

    return LocalEngine(options.workers)


def _without_absence(found: Sequence[Finding]) -> tuple[list[Finding], list[Unchecked]]:
    """Leave out what only says that something is nowhere: it may be in what was not read."""
    kept = [each for each in found if each.code not in (GAP, LOSS, TORN)]
    if len(kept) == len(found):
        return kept, []
    why = "offsets that are in no place that was read may be in one that was not"
    return kept, [Unchecked("coverage", why)]


def _coverage(verdict: Verdict, findings: dict[tuple[str, int], list[Finding]]) -> Coverage:
    damaged = damaged_ranges(findings[verdict.topic_id, verdict.partition])
    holders = tuple(
        each
        for each in verdict.holders
        if any(first < each.end and each.first < end for first, end in damaged)
    )
    return verdict.coverage._replace(damaged=damaged, holders=holders)


def _cpu_seconds() -> float:
    mine, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return mine.ru_utime + mine.ru_stime + others.ru_utime + others.ru_stime
