"""One partition: whether local logs, WAL tier and cold tier together hold what they should.

Owns which places count, coverage, the bounds of a log, and what is legal to be missing. Does not own single
places (scan), objects that list against metadata (listing), or the comparison of copies (compare).
Invariant: a pure function of facts and context, whatever their order; every offset between log start and log
end is held, explained by another finding, counted, or named once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from tools.verify.core.compare import Chain, Suspect, layers, suspects
from tools.verify.core.directory import CHECKPOINT_OUTSIDE
from tools.verify.core.facts import (
    Digest,
    Fault,
    LocalLog,
    Mark,
    PartitionFact,
    Piece,
    ProducerRun,
    Run,
    Skipped,
    Vanished,
)
from tools.verify.core.findings import Counted, Finding, Severity, declare
from tools.verify.core.lineage import Claim, Lineage, Range, united, without
from tools.verify.core.outcome import Coverage, Holder, Span

GAP = declare(
    "gap",
    Severity.ERROR,
    "Offsets between log start and log end are in no place.",
    "They are lost, unless a broker whose data directory was not given has them.",
)
REPLICA_SHORT = declare(
    "replica-short",
    Severity.ERROR,
    "A replica that counts as in sync ends below what was committed.",
    "Let it fetch the missing offsets anew: move its log away and restart its broker.",
)
ABORT_KIND: Final = 2
LIMITLESS: Final = 1 << 62

Stream = tuple[int, int, int]


class Extent(NamedTuple):
    """Which objects of a stream count."""

    low: int
    """The first that may be there: what is below a boundary was collected."""
    end: int
    """Exclusive; what lies at or above it is void."""
    lost: tuple[int, ...] = ()
    """Numbers between them that are missing or cannot be read, each a finding already."""


class Explained(NamedTuple):
    """Offsets whose absence another finding explains, or nothing is wrong with."""

    first: int
    end: int
    what: str
    """Empty: a finding; otherwise as what they are counted."""


class PartitionContext(NamedTuple):
    """What metadata says about a partition; the defaults are for when nothing does."""

    topic: str = ""
    is_compacted: bool = False
    leader: int = -1
    in_sync: tuple[int, ...] = ()
    """Nodes that were in sync both before and after the listing."""
    moved_start: int = -1
    """By the topic about the cold tier."""
    stored_to: int = -1
    """By the floors of its current leader."""
    explained: tuple[Explained, ...] = ()
    acks_by_store: bool = False
    """The store decides what is committed, so replicas may be short."""
    is_dead: bool = False
    """Its topic was deleted: what is left is collected, in any order."""
    is_known: bool = True
    """Whether its configuration is: else holes are taken for those of compaction."""
    is_told: bool = True
    """Whether the topic about the cold tier was read: else a copy may be one that retention is taking."""


class Verdict(NamedTuple):
    topic_id: str
    partition: int
    findings: tuple[Finding, ...]
    counted: tuple[Counted, ...]
    coverage: Coverage
    chains: tuple[Chain, ...]
    """Empty, unless there are suspects."""
    suspects: tuple[Suspect, ...]
    holders: tuple[Holder, ...] = ()
    """What counts of the offsets that findings or suspects name."""
    damage: tuple[Range, ...] = ()
    """Offsets without sound bytes in one copy at least, where a finding does not say how far it goes."""


class _Facts:
    """The facts of one partition by kind, in an order that no engine can change."""

    def __init__(self, facts: Iterable[PartitionFact]) -> None:
        kinds: dict[type, list[PartitionFact]] = defaultdict(list)
        for fact in facts:
            kinds[type(fact)].append(fact)
        for found in kinds.values():
            found.sort()
        self.runs: list[Run] = kinds[Run]  # type: ignore[assignment]
        self.digests: list[Digest] = kinds[Digest]  # type: ignore[assignment]
        self.faults: list[Fault] = kinds[Fault]  # type: ignore[assignment]
        self.marks: list[Mark] = kinds[Mark]  # type: ignore[assignment]
        self.producers: list[ProducerRun] = kinds[ProducerRun]  # type: ignore[assignment]
        self.pieces: list[Piece] = kinds[Piece]  # type: ignore[assignment]
        self.logs: list[LocalLog] = kinds[LocalLog]  # type: ignore[assignment]
        self.vanished: list[Vanished] = kinds[Vanished]  # type: ignore[assignment]
        self.skipped: list[Skipped] = kinds[Skipped]  # type: ignore[assignment]


class _Held(NamedTuple):
    """A run with what is known of where it lies."""

    run: Run
    tier: str
    copy: str
    """Of a local run the place of its log, otherwise its own place."""
    counting: tuple[Range, ...]


def judge(
    topic_id: str,
    partition: int,
    context: PartitionContext,
    extents: Mapping[Stream, Extent],
    facts: Iterable[PartitionFact],
) -> Verdict:
    return _Judge(topic_id, partition, context, extents, _Facts(facts)).verdict()


class _Judge:
    def __init__(
        self,
        topic_id: str,
        partition: int,
        context: PartitionContext,
        extents: Mapping[Stream, Extent],
        facts: _Facts,
    ) -> None:
        self._topic_id = topic_id
        self._partition = partition
        self._context = context
        self._extents = extents
        self._facts = facts
        self._findings: list[Finding] = []
        self._counted: Counter[tuple[str, int, int]] = Counter()
        self._void = self._void_places()
        self._log_of = {log.place: log for log in facts.logs}
        self._pieces: dict[str, list[Piece]] = defaultdict(list)
        for piece in facts.pieces:
            self._pieces[piece.place].append(piece)
        self._authority = {log.place: self._last_epoch(log) for log in facts.logs}
        self._damage_of = self._damage_by_copy()
        self._damage = [part for ranges in self._damage_of.values() for part in ranges]

    def verdict(self) -> Verdict:
        claims = {run: self._claim(run) for run in self._facts.runs if run.place not in self._void}
        lineage = Lineage(claim for claim in claims.values() if claim is not None)
        held = [self._held(run, lineage) for run in claims]
        for fault in self._facts.faults:
            if fault.place not in self._void:
                self._find(fault.code, fault.first, fault.end, fault.place, fault.position,
                           fault.expected, fault.actual)  # fmt: skip
        start, end = self._bounds(lineage)
        chains: list[Chain] = []
        if self._context.is_dead:
            for each in held:
                self._count("dead", each.run.first, each.run.end)
        else:
            self._find_gaps(lineage, held, start, end)
            self._find_short_replicas()
            self._count_aborted()
            chains = self._chains(held)
        found = suspects(chains)
        return Verdict(
            self._topic_id,
            self._partition,
            tuple(sorted(self._findings)),
            tuple(
                sorted(
                    Counted(what, self._topic_id, self._partition, first, last, amount)
                    for (what, first, last), amount in self._counted.items()
                )
            ),
            Coverage(self._topic_id, self._context.topic, self._partition, start, end, tuple(_spans(held))),
            tuple(chains) if found else (),
            tuple(found),
            tuple(self._holders(held, found)),
            tuple(united(self._damage)),
        )

    def _holders(self, held: list[_Held], found: Sequence[Suspect]) -> list[Holder]:
        doubtful = united(
            [
                *((each.first, each.end) for each in self._findings if 0 <= each.first < each.end),
                *((each.first, each.end) for each in found),
            ]
        )
        if not doubtful:
            return []
        return sorted(
            Holder(each.tier, each.run.place, each.run.position, first, end)
            for each in held
            for first, end in each.counting
            if any(low < end and first < high for low, high in doubtful)
        )

    def _find(
        self, code: str, first: int, end: int, place: str = "", position: int = -1,
        expected: str = "", actual: str = "",
    ) -> None:  # fmt: skip
        self._findings.append(
            Finding(code, self._topic_id, self._partition, first, end, place, position, expected, actual)
        )

    def _count(self, what: str, first: int, end: int) -> None:
        self._counted[what, first, end] += 1

    # --- what counts ---

    def _void_places(self) -> set[str]:
        """Return the objects of the WAL tier that do not count, and count what they held."""
        void = set()
        for piece in self._facts.pieces:
            extent = self._extents.get(piece.stream)
            if piece.tier == "wal" and extent is not None and not extent.low <= piece.seq < extent.end:
                void.add(piece.place)
                self._count("sealed" if piece.seq >= extent.end else "dead", piece.first, piece.end)
        return void

    def _claim(self, run: Run) -> Claim | None:
        log = self._log_of.get(run.place.rpartition("/")[0])
        if log is not None:
            epoch, begins = self._authority[log.place]
            return Claim(epoch, begins, run.first, run.end, run.leader_epoch)
        piece = self._piece(run)
        if piece is None or piece.leader_epoch < 0:
            return Claim(run.leader_epoch, -1, run.first, run.end, run.leader_epoch)
        return Claim(piece.leader_epoch, piece.epoch_start, run.first, run.end, run.leader_epoch)

    def _last_epoch(self, log: LocalLog) -> tuple[int, int]:
        """Return the last epoch of a replica's log and its start, by what its batches say where its own list
        of epochs is not to be believed."""
        mine = [run for run in self._facts.runs if run.place.rpartition("/")[0] == log.place]
        is_doubtful = any(
            fault.code == "epochs-differ" and tier_of(fault.place)[1] == log.place
            for fault in self._facts.faults
        )
        if log.epochs and not is_doubtful:
            return log.epochs[-1]
        epoch = max((run.leader_epoch for run in mine), default=-1)
        return epoch, min((run.first for run in mine if run.leader_epoch == epoch), default=-1)

    def _piece(self, run: Run) -> Piece | None:
        for piece in self._pieces[run.place]:
            if piece.position <= run.position < piece.position + piece.size:
                return piece
        return None

    def _held(self, run: Run, lineage: Lineage) -> _Held:
        counting = tuple(lineage.counting(run.first, run.end, run.leader_epoch))
        whole = run.first, run.end
        if counting != (whole,):
            for first, end in without([whole], [*counting, *self._damage]):
                self._count("dead", first, end)
        tier, copy = tier_of(run.place)
        return _Held(run, tier, copy, counting)

    # --- bounds and gaps ---

    def _bounds(self, lineage: Lineage) -> tuple[int, int]:
        """Return where the log starts and ends, by all that tells."""
        covered = lineage.covered()
        told = [self._context.moved_start]
        told += [log.log_start for log in self._facts.logs if log.log_start <= log.end]
        told += [piece.log_start for piece in self._facts.pieces if piece.place not in self._void]
        told.append(self._start_without_checkpoint())
        lowest = min(
            [
                *(first for first, _ in covered[:1]),
                *(each.first for each in self._context.explained),
                *(piece.first for piece in self._facts.pieces if piece.is_bad),
                *(fault.first for fault in self._facts.faults if fault.first >= 0),
                *(each.first for each in self._facts.skipped if each.place not in self._void),
            ],
            default=-1,
        )
        start = max(told, default=-1)
        if start < 0:
            start = lowest
        elif not self._facts.logs and self._context.moved_start < 0 and start < lowest:
            # Only the logs of brokers that were not given can have what is below.
            self._count("elsewhere", start, lowest)
            start = lowest
        elif any(log.is_live for log in self._facts.logs) and start < lowest:
            self._count("retention", start, lowest)
            start = lowest
        if start > 0:
            self._count("log-start", 0, start)
        ends = [end for _, end in covered[-1:]]
        ends += [each.end for each in self._context.explained]
        ends += [
            each.end for each in self._facts.skipped if each.place not in self._void and each.end < LIMITLESS
        ]
        ends.append(self._context.stored_to)
        return start, max(start, *ends)

    def _start_without_checkpoint(self) -> int:
        """Return where logs begin that no checkpoint has: with their first segments, but for tiered ones."""
        if any(piece.tier == "cold" for piece in self._facts.pieces) or self._context.explained:
            return -1
        leading = [log for log in self._facts.logs if log.node == self._context.leader]
        return max((log.first for log in leading or self._facts.logs if log.log_start < 0), default=-1)

    def _find_gaps(self, lineage: Lineage, held: list[_Held], start: int, end: int) -> None:
        if start < 0 or end <= start:
            return
        missing = without([(start, end)], lineage.covered())
        if not missing:
            return
        for each in self._context.explained:
            if each.what:
                for first, last in _within(missing, each.first, each.end):
                    self._count(each.what, first, last)
        for gone in self._facts.vanished:
            for first, last in _within(missing, gone.first, gone.end):
                self._count("between-listings", first, last)
        for one in self._facts.skipped:
            for first, last in _within(missing, one.first, one.end):
                self._count(one.what, first, last)
        missing = without(missing, self._explained())
        if not self._context.is_told:
            others = [first for each in held if each.tier != "cold" for first, _ in each.counting]
            for first, last in _within(missing, start, min(others, default=end)):
                self._count("untold", first, last)
            missing = without(missing, [(start, min(others, default=end))])
        for first, last in missing:
            if self._context.is_compacted or not self._context.is_known:
                self._count("compaction", first, last)
            else:
                self._find(GAP, first, last)

    def _explained(self) -> list[Range]:
        """Return the offsets that are missing for a reason that is told or counted already."""
        found: list[Range] = [(each.first, each.end) for each in self._context.explained]
        found += [(each.first, each.end) for each in self._facts.vanished]
        found += [(each.first, each.end) for each in self._facts.skipped if each.place not in self._void]
        found += [(piece.first, piece.end) for piece in self._facts.pieces if piece.is_bad]
        found += self._damage
        found += self._lost_slices()
        return [each for each in found if each[0] < each[1]]

    def _fault_range(self, fault: Fault) -> Range:
        """Return the offsets that it leaves without sound bytes; an open end goes on to what follows."""
        if fault.first < 0:
            return 0, 0
        if fault.end >= 0:
            return fault.first, fault.end
        ends = [piece.end for piece in self._pieces[fault.place] if piece.end > fault.first]
        copy = tier_of(fault.place)[1]
        ends += [
            run.first
            for run in self._facts.runs
            if run.first >= fault.first and tier_of(run.place)[1] == copy
        ]
        return fault.first, min(ends, default=LIMITLESS)

    def _damage_by_copy(self) -> dict[str, list[Range]]:
        """Return the offsets that faults leave without sound bytes in each copy. Three kinds of faults leave
        none: in places that do not count, in files that the batches of a segment can do without, and of
        checkpoints, as what these name may be in other places, and must be."""
        damage: dict[str, list[Range]] = defaultdict(list)
        for fault in self._facts.faults:
            if fault.place in self._void or fault.code == CHECKPOINT_OUTSIDE or _is_beside(fault):
                continue
            damage[tier_of(fault.place)[1]].append(self._fault_range(fault))
        return damage

    def _lost_slices(self) -> list[Range]:
        """Return the ranges between slices of a stream that lie on both sides of objects that are lost. Where
        the partition began to be stored once more between them, both the end of what went before and the
        beginning of the rest may be lost."""
        by_stream: dict[Stream, list[Piece]] = defaultdict(list)
        for piece in self._facts.pieces:
            if piece.tier == "wal" and piece.place not in self._void:
                by_stream[piece.stream].append(piece)
        found = []
        for stream, pieces in by_stream.items():
            extent = self._extents.get(stream)
            if extent is None or not extent.lost:
                continue
            pieces.sort(key=lambda piece: (piece.seq, piece.position))
            for lost in extent.lost:
                before = next((piece.end for piece in reversed(pieces) if piece.seq < lost), 0)
                after = next((piece.first for piece in pieces if piece.seq > lost), LIMITLESS)
                found += [(before, after)] if before <= after else [(before, LIMITLESS), (0, after)]
        return found

    # --- replicas ---

    def _find_short_replicas(self) -> None:
        if self._context.acks_by_store:
            return
        committed = max((min(log.high_watermark, log.end) for log in self._facts.logs), default=-1)
        ends: dict[str, int] = {log.place: log.end for log in self._facts.logs}
        for log in self._facts.logs:
            end = ends[log.place]
            is_damaged = any(
                first <= end < last or last == LIMITLESS for first, last in self._damage_of.get(log.place, ())
            )
            if log.node in self._context.in_sync and end < committed and not is_damaged:
                self._find(REPLICA_SHORT, end, committed, log.place, -1, str(committed), str(end))

    def _count_aborted(self) -> None:
        aborts = {
            (mark.offset, mark.producer_id)
            for mark in self._facts.marks
            if mark.kind == ABORT_KIND and mark.place not in self._void
        }
        if aborts:
            offsets = [offset for offset, _ in aborts]
            self._counted["aborted", min(offsets), max(offsets) + 1] += len(aborts)

    # --- copies ---

    def _chains(self, held: list[_Held]) -> list[Chain]:
        """Return the copies: each replica, and tiers in layers, as offsets may lie there twice."""
        has_holes = any(run.has_gaps for run in self._facts.runs)
        if self._context.is_compacted or (has_holes and not self._context.is_known):
            return []
        digests: dict[str, list[Digest]] = defaultdict(list)
        for digest in self._facts.digests:
            if digest.place not in self._void:
                digests[digest.place].append(digest)
        unsound: dict[str, list[Range]] = defaultdict(list)
        for copy, damage in self._damage_of.items():
            unsound[copy] += damage
        unread: list[Vanished | Skipped] = [*self._facts.vanished, *self._facts.skipped]
        for one_place in unread:
            unsound[tier_of(one_place.place)[1]].append((one_place.first, one_place.end))
        chains = []
        for log in self._facts.logs:
            mine = [each for each in held if each.copy == log.place]
            limit = log.high_watermark
            ranges = [(first, min(end, limit)) for first, end in _should_hold(mine)]
            rank = 0 if log.node == self._context.leader else 1
            chains.append(_chain(f"local {log.place}", rank, mine, ranges, unsound[log.place], digests))
        for tier, rank in (("cold", 2), ("wal", 3)):
            mine = [each for each in held if each.tier == tier and each.counting]
            places: dict[tuple[str, int], list[_Held]] = defaultdict(list)
            for each in mine:
                piece = self._piece(each.run) if tier == "wal" else None
                places[each.copy, piece.position if piece is not None else 0].append(each)
            names = sorted(places)
            spans = [
                (min(each.run.first for each in places[name]), max(each.run.end for each in places[name]), at)
                for at, name in enumerate(names)
            ]
            for number, row in enumerate(layers(spans)):
                layer = [each for at in row for each in places[names[at]]]
                ranges = [part for at in row for part in _should_hold(places[names[at]])]
                bad = [part for at in row for part in unsound[names[at][0]]]
                chains.append(_chain(f"{tier} {number}", rank, layer, ranges, bad, digests))
        return chains


def _is_beside(fault: Fault) -> bool:
    """Whether it is of a file that the batches of a segment can do without: they are whole."""
    return fault.place.endswith((".index", ".timeindex", ".txnindex", ".snapshot"))


def _should_hold(held: Sequence[_Held]) -> list[Range]:
    """Return the offsets that one copy should hold: all from its first to its last, but for what is dead."""
    counting = [part for each in held for part in each.counting]
    if not counting:
        return []
    whole = min(first for first, _ in counting), max(end for _, end in counting)
    dead = [
        part
        for each in held
        if each.counting != ((each.run.first, each.run.end),)
        for part in without([(each.run.first, each.run.end)], each.counting)
    ]
    return without([whole], dead) if dead else [whole]


def _chain(
    name: str,
    rank: int,
    held: list[_Held],
    ranges: list[Range],
    faults: list[Range],
    digests: Mapping[str, list[Digest]],
) -> Chain:
    runs = sorted((each.run for each in held), key=lambda run: (run.first, run.place, run.position))
    places = sorted({run.place for run in runs})
    return Chain(
        name,
        rank,
        tuple(runs),
        tuple(without(ranges, faults)),
        tuple(digest for place in places for digest in digests.get(place, ())),
    )


def tier_of(place: str) -> tuple[str, str]:
    """Return the tier of a place, and the copy that it is part of."""
    if place.startswith("tier/"):
        return "cold", place
    if place.startswith("wal/"):
        return "wal", place
    return "local", place.rpartition("/")[0]


def _within(ranges: Iterable[Range], first: int, end: int) -> list[Range]:
    return [(max(low, first), min(high, end)) for low, high in ranges if low < end and first < high]


def _spans(held: Iterable[_Held]) -> Iterable[Span]:
    """Unite what each tier holds, with the fewest copies in which one of the offsets is."""
    tiers: dict[str, list[_Held]] = defaultdict(list)
    for each in held:
        tiers[each.tier].append(each)
    for tier in ("local", "wal", "cold"):
        mine = tiers[tier]
        by_copy: dict[str, list[Range]] = defaultdict(list)
        for each in mine:
            by_copy[each.copy if tier == "local" else tier].extend(each.counting)
        copies = [united(ranges) for ranges in by_copy.values()]
        for first, end in united(part for ranges in copies for part in ranges):
            size = sum(each.run.size for each in mine if each.run.first < end and first < each.run.end)
            yield Span(tier, first, end, size, _fewest(copies, first, end))


def _fewest(copies: list[list[Range]], first: int, end: int) -> int:
    changes: Counter[int] = Counter()
    for ranges in copies:
        for low, high in _within(ranges, first, end):
            changes[low] += 1
            changes[high] -= 1
    now, fewest = 0, len(copies)
    for offset in sorted(changes):
        now += changes[offset]
        if offset < end:
            fewest = min(fewest, now)
    return fewest
