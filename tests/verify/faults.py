"""Damage, with what a verifier has to say about it.

Owns: what is expected of a fault, what it may hide or cause beside that, and that no two faults meet. Does
not own the faults (faults_log, faults_tiers, faults_model). Invariant: a fault that cannot be planted alone
is not planted.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, NamedTuple

from tests.verify.cold import COPY_FINISHED
from tests.verify.histories import History
from tests.verify.kafka_bytes import Batch
from tests.verify.manifests import BUCKET
from tests.verify.stores import Made, make, write
from tests.verify.world import World

EVERYWHERE = -1, 1 << 62
META = ("meta",)
"""Taken by a fault of the metadata log, and by one that only a sound image shows."""


class Expected(NamedTuple):
    """A finding, by what must be said; None: whatever."""

    codes: tuple[str, ...]
    """One of these."""
    topic_id: str | None = None
    partition: int | None = None
    first: int | None = None
    end: int | None = None
    place: str | None = None
    position: int | None = None
    within: tuple[int, int] | None = None
    """Its offsets, if it has any, are among these."""
    beside: str | None = None
    """Its place starts so."""

    def fits(self, finding: Any) -> bool:
        same = all(
            wanted is None or wanted == told for wanted, told in zip(self[1:7], finding[1:7], strict=True)
        )
        if self.within is not None and finding.first >= 0:
            same &= self.within[0] <= finding.first and finding.end <= self.within[1]
        same &= self.beside is None or finding.place.startswith(self.beside)
        return same and finding.code in self.codes


@dataclass
class Planted:
    name: str
    expected: list[Expected]
    """Each is to be found."""
    shadows: list[Expected] = field(default_factory=list)
    """May be found as well: what the same damage looks like from elsewhere."""
    late: Callable[[], list[Expected]] | None = field(default=None, compare=False)
    """More that is to be found, known once all is written."""


class Plan:
    """A store that is being damaged: who touches what."""

    def __init__(self, made: Made, rng: Random) -> None:
        self.made = made
        self.rng = rng
        self.planted: list[Planted] = []
        self._taken: set[Any] = set()
        self._ranges: dict[tuple[str, int], list[tuple[int, int]]] = {}

    @property
    def world(self) -> World:
        return self.made.world

    @property
    def files(self) -> dict[str, bytes]:
        return self.made.world.files

    @property
    def taken(self) -> AbstractSet[Any]:
        return self._taken

    @property
    def claims(self) -> list[tuple[tuple[str, int], int, int]]:
        """The offsets of each partition that faults have touched."""
        return [(which, *each) for which, ranges in self._ranges.items() for each in ranges]

    def is_free(self, *things: Any) -> bool:
        return not any(each in self._taken for each in things)

    def is_clear(self, history: History, first: int, end: int) -> bool:
        return all(end <= low or high <= first for low, high in self._ranges.get(history.id, ()))

    def take(
        self, *things: Any, history: History | None = None, first: int = 0, end: int = EVERYWHERE[1]
    ) -> bool:
        """Claim files and offsets, all or none."""
        if not self.is_free(*things) or (history is not None and not self.is_clear(history, first, end)):
            return False
        self._taken.update(things)
        if history is not None:
            self._ranges.setdefault(history.id, []).append((first, end))
        return True

    def candidates(self, found: list[Any]) -> list[Any]:
        """In random order, some of them."""
        self.rng.shuffle(found)
        return found[:20]

    def users(self) -> list[History]:
        return [each for each in self.world.histories if not each.topic.name.startswith("__")]

    # --- batches wherever they lie ---

    def replace_batch(self, history: History, old: Batch, new: Batch | None) -> None:
        """In the log, its replicas, copies and slices; before anything is written."""
        lists = [history.batches, history.written]
        lists += [each.batches for replica in self.world.of(history) for each in replica.segments]
        lists += [copy.segment.batches for copy in self.made.cold.copies if copy.history is history]
        for life in self.made.wal.streams:
            for each in [*life.objects, *life.late]:
                lists += [piece.batches for piece in each.slices if piece.history is history]
        done: set[int] = set()
        for batches in lists:
            if id(batches) not in done:
                done.add(id(batches))
                batches[:] = [
                    each if each is not old else new for each in batches if each is not old or new is not None
                ]

    def places_of(self, history: History, batch: Batch) -> list[tuple[str, int]]:
        """Where a batch lies that counts: place and position."""
        found = []
        for replica in self.world.of(history):
            for segment in replica.segments:
                for each, position in zip(segment.batches, segment.positions, strict=True):
                    if each is batch:
                        found.append((self.world.place(replica.path(segment)), position))
        for copy in self.made.cold.copies:
            if copy.state != COPY_FINISHED:
                continue
            for each, position in zip(copy.segment.batches, copy.segment.positions, strict=True):
                if each is batch and copy.history is history:
                    found.append((copy.key + ".log", position))
        for life in self.made.wal.streams:
            for held in life.counting:
                positions = held.positions(self.world.cluster.id)
                for piece, start in zip(held.slices, positions, strict=True):
                    at = start
                    for each in piece.batches:
                        if each is batch:
                            found.append((held.key, at))
                        at += len(each.data)
        return found


Fault = Callable[[Plan], Planted | None]
MODEL_FAULTS: list[Fault] = []
"""What changes what is written."""
FILE_FAULTS: list[Fault] = []
"""What changes bytes that are written."""


def in_model(fault: Fault) -> Fault:
    MODEL_FAULTS.append(fault)
    return fault


def in_files(fault: Fault) -> Fault:
    FILE_FAULTS.append(fault)
    return fault


def about(history: History, *codes: str, **more: Any) -> Expected:
    return Expected(codes, history.topic.short_id, history.number, **more)


def plant(seed: int, now_ms: int, *, only: AbstractSet[str] = frozenset(), count: int | None = None) -> Plan:
    """A store with up to twenty faults, never none if one can be planted; `only` those of these names."""
    rng = Random(seed * 7 + 1)
    plan = Plan(make(seed, now_ms), rng)
    wanted = count if count is not None else rng.choice([1, 1, 2, 3, 5, 8, 13, 20])
    everything = [(0, fault) for fault in MODEL_FAULTS] + [(1, fault) for fault in FILE_FAULTS]
    everything = [each for each in everything if not only or each[1].__name__ in only]
    chosen = sorted((rng.choice(everything) for _ in range(wanted * 2)), key=lambda each: each[0])
    is_written = False
    for stage, fault in chosen:
        if stage and not is_written:
            write(plan.made)
            is_written = True
        before = set(plan.claims)
        if len(plan.planted) < wanted and (planted := fault(plan)) is not None:
            plan.planted.append(replace(planted, name=fault.__name__))
            if not fault.__name__.startswith("manifest_"):
                planted.shadows.extend(noted_too(plan, set(plan.claims) - before))
    if not is_written:
        write(plan.made)
    for each in plan.planted:
        if each.late is not None:
            each.expected += each.late()
    return plan


def noted_too(plan: Plan, touched: AbstractSet[tuple[tuple[str, int], int, int]]) -> list[Expected]:
    """What producers may have noted of offsets that a fault of the log touches."""
    manifest, found = plan.made.manifest, []
    codes = "manifest-loss", "manifest-altered", "manifest-torn-batch", "manifest-duplicate"
    for history in manifest.noted:
        for which, first, end in touched:
            if which == history.id:
                found.append(about(history, *codes, within=(first, end)))
                if manifest.is_summed(history):
                    found.append(about(history, *codes, first=0, end=BUCKET))
    return found


def compare(planted: list[Planted], findings: list[Any]) -> list[str]:
    """What was planted and not found, and what was found and not planted."""
    wrong = []
    expected = [(each.name, one) for each in planted for one in each.expected]
    shadows = [one for each in planted for one in each.shadows]
    explained = set()
    for name, one in expected:
        fitting = [at for at, finding in enumerate(findings) if one.fits(finding)]
        if not fitting:
            wrong.append(f"not found: {name}: {one}")
        explained.update(fitting)
    for at, finding in enumerate(findings):
        if at not in explained and not any(one.fits(finding) for one in shadows):
            wrong.append(f"not planted: {finding}")
    return wrong
