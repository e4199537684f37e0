"""The metadata log of a store: read, checked and folded.

Owns the order of slots, snapshots and boundaries, the chain of hashes, who may write. Does not own the bytes
of a slot (layouts) or what a record does (meta_fold), nor whether data directories agree (judge).
Invariant: what is collected or put while it is read is no finding: before one is told the log is listed
again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tools.verify.core.findings import Counted, Finding, Severity, declare
from tools.verify.core.keys import (
    META,
    MetaBoundary,
    MetaSlot,
    MetaSnapshot,
    parse_key,
    slot_key,
    snapshot_key,
)
from tools.verify.core.layouts import Malformed, Slot, decode_slot
from tools.verify.core.meta_fold import BadRecord, State, UnknownRecord
from tools.verify.core.stores import Gone, Listed, Source, TooLarge

SLOT_BYTES_MAX: Final = 32 << 20
READINGS_MAX: Final = 3
"""What a reading finds is told when the last one finds it as well."""

META_GAP = declare(
    "meta-gap",
    Severity.ERROR,
    "Slots of the metadata log are missing below its end, or the snapshot that stands in for them.",
    "Restore the objects from a version or a copy of the bucket; until then a new broker cannot join.",
)
META_BAD_OBJECT = declare(
    "meta-bad-object",
    Severity.ERROR,
    "An object of the metadata log is not what FORMAT.md says, or says that it is another.",
    "Restore the object from a version or a copy of the bucket.",
)
META_CHAIN_BROKEN = declare(
    "meta-chain-broken",
    Severity.ERROR,
    "A slot of the metadata log names another hash than that of the slot before it.",
    "One of the two was replaced: compare them with versions or a copy of the bucket.",
)
META_TWO_WRITERS = declare(
    "meta-two-writers",
    Severity.ERROR,
    "A controller epoch was used by a broker that was not elected in it.",
    "Find out who else writes to this store: two clusters must not share a prefix.",
)
META_UNKNOWN_RECORD = declare(
    "meta-unknown-record",
    Severity.ERROR,
    "A record of the metadata log is of a newer release, so what is known of the cluster is not all.",
    "Verify with the release that wrote it.",
)
META_SNAPSHOT_DIFFERS = declare(
    "meta-snapshot-differs",
    Severity.ERROR,
    "A snapshot of the metadata log is not the state that the slots up to it lead to.",
    "Keep the slots: a broker that starts from this snapshot has another cluster than the others.",
)


@dataclass(slots=True)
class Meta:
    """What `meta/` says about a cluster."""

    state: State = field(default_factory=State)
    findings: list[Finding] = field(default_factory=list)
    counted: list[Counted] = field(default_factory=list)
    boundary: int = 0
    is_whole: bool = True
    """Whether the state lacks nothing that an object should have told."""
    is_there: bool = False
    """Whether there is any object of the log."""
    first_seq: int = 0
    """The first slot or snapshot that the state comes from."""


class _Names(NamedTuple):
    slots: dict[int, Listed]
    snapshots: dict[int, Listed]
    boundaries: dict[int, Listed]

    @property
    def boundary(self) -> int:
        return max(self.boundaries, default=0)


class _Moved(Exception):
    """What was listed is not what is there any more."""


def read_meta(source: Source) -> Meta:
    """Read the log to its end. Raise SourceFailed."""
    for _ in range(READINGS_MAX - 1):
        try:
            found = _Reading(source, list_meta(source), is_last=False).read()
        except _Moved:
            continue
        if not found.findings:
            return found
    return _Reading(source, list_meta(source), is_last=True).read()


def list_meta(source: Source) -> _Names:
    names = _Names({}, {}, {})
    for row in source.list(META):
        match parse_key(row.key):
            case MetaSlot(seq):
                names.slots[seq] = row
            case MetaSnapshot(seq):
                names.snapshots[seq] = row
            case MetaBoundary(seq):
                names.boundaries[seq] = row
    return names


class _Reading:
    def __init__(self, source: Source, names: _Names, *, is_last: bool) -> None:
        self._source = source
        self._names = names
        self._is_last = is_last
        self._meta = Meta(boundary=names.boundary)
        self._hash: bytes | None = None
        """Of the slot before, None where it is not known."""

    def read(self) -> Meta:
        names, meta = self._names, self._meta
        meta.is_there = bool(names.slots or names.snapshots or names.boundaries)
        for seq, row in sorted(names.boundaries.items()):
            if row.size:
                self._bad(row.key, seq, f"{row.size} bytes in a boundary")
        at = self._begin() if meta.boundary else 0
        meta.first_seq = at
        self._hash = bytes(32) if at == 0 else self._hash
        for seq in sorted({*names.slots, *names.snapshots}):
            if seq <= at:
                if seq in names.slots and seq <= meta.boundary:
                    meta.counted.append(Counted("dead", first=seq, end=seq + 1))
                continue
            if seq not in names.slots or seq != at + 1:
                self._missing(at + 1, seq if seq in names.slots else seq + 1)
            if seq in names.slots:
                self._slot(seq)
            if seq in names.snapshots:
                self._compare(seq)
            at = seq
        meta.state.seq = at
        if not self._is_last and list_meta(self._source).boundary > at:
            raise _Moved
        return meta

    def _begin(self) -> int:
        """Start from the oldest snapshot that may stand in for what was collected; return its number."""
        names, meta = self._names, self._meta
        wanted = sorted(seq for seq in names.snapshots if seq >= meta.boundary)
        if not wanted or wanted[0] != meta.boundary:
            self._moved()
            self._gap(snapshot_key(meta.boundary), meta.boundary, meta.boundary + 1)
        for seq in wanted:
            if self._take_snapshot(seq):
                return seq
        meta.is_whole = False
        return meta.boundary

    def _take_snapshot(self, seq: int) -> bool:
        slot = self._read(snapshot_key(seq), seq)
        state = None if slot is None else self._fold_snapshot(slot)
        if slot is None or state is None:
            return False
        state.deleted = self._meta.state.deleted
        self._meta.state, self._hash = state, slot.previous_hash
        return True

    def _fold_snapshot(self, slot: Slot) -> State | None:
        state = State()
        if not slot.records or slot.records[0].name != "SnapshotTaken":
            self._bad(snapshot_key(slot.seq), slot.seq, "its first record is not SnapshotTaken")
            return None
        is_whole = self._apply(state, slot, snapshot_key(slot.seq))
        if is_whole and state.controller_epoch != slot.controller_epoch:
            self._bad(snapshot_key(slot.seq), slot.seq, f"controller epoch {slot.controller_epoch}")
            return None
        return state if is_whole else None

    def _slot(self, seq: int) -> None:
        meta, state = self._meta, self._meta.state
        slot = self._read(slot_key(seq), seq)
        if slot is None:
            meta.is_whole, self._hash = False, None
            return
        if self._hash is not None and slot.previous_hash != self._hash:
            meta.findings.append(
                Finding(
                    META_CHAIN_BROKEN, first=seq, end=seq + 1, place=slot_key(seq),
                    expected=self._hash.hex(), actual=slot.previous_hash.hex(),
                )
            )  # fmt: skip
        self._hash = slot.sha256
        if slot.controller_epoch < state.controller_epoch:
            meta.counted.append(Counted("void-slot", first=seq, end=seq + 1))
            return
        if meta.is_whole:
            self._check_writer(slot)
        state.controller_epoch = slot.controller_epoch  # also where its election is lost
        if not self._apply(state, slot, slot_key(seq)):
            meta.is_whole = False

    def _check_writer(self, slot: Slot) -> None:
        state = self._meta.state
        elected = [
            (record.fields.get("controller_epoch"), record.fields.get("controller_id"))
            for record in slot.records
            if record.name == "ControllerElected"
        ]
        now = state.controller_epoch
        is_new = slot.controller_epoch > now
        if is_new and [epoch for epoch, _ in elected] != [slot.controller_epoch]:
            actual = f"controller epoch {slot.controller_epoch}, which nobody was elected in"
        elif not is_new and any(one != (now, state.controller_id) for one in elected):
            actual = f"elects {elected[0][1]} in epoch {elected[0][0]}"
        else:
            return
        self._meta.findings.append(
            Finding(
                META_TWO_WRITERS, first=slot.seq, end=slot.seq + 1, place=slot_key(slot.seq),
                expected=f"controller {state.controller_id} in epoch {now}", actual=actual,
            )
        )  # fmt: skip

    def _compare(self, seq: int) -> None:
        """A snapshot is the state after its slot, and where that is not known, stands in for it."""
        meta = self._meta
        slot = self._read(snapshot_key(seq), seq)
        state = None if slot is None else self._fold_snapshot(slot)
        if slot is None or state is None:
            return
        if not meta.is_whole or self._hash is None:
            state.deleted = meta.state.deleted
            meta.state, self._hash = state, slot.previous_hash
            return
        meta.state.seq = seq
        differs = _difference(meta.state, state)
        if slot.previous_hash != self._hash:
            differs = f"the hash of slot {seq}"
        if differs:
            meta.findings.append(
                Finding(
                    META_SNAPSHOT_DIFFERS, first=seq, end=seq + 1, place=snapshot_key(seq), actual=differs
                )
            )

    def _apply(self, state: State, slot: Slot, key: str) -> bool:
        """Fold the records of a slot; return whether all of them are known."""
        state.seq = slot.seq
        is_whole = True
        for record in slot.records:
            try:
                state.apply(record, slot.seq)
            except UnknownRecord as error:
                self._meta.findings.append(
                    Finding(
                        META_UNKNOWN_RECORD, first=slot.seq, end=slot.seq + 1, place=key, actual=str(error)
                    )
                )
                is_whole = False
            except BadRecord as error:
                self._bad(key, slot.seq, str(error))
                is_whole = False
        return is_whole

    def _read(self, key: str, seq: int) -> Slot | None:
        try:
            slot = decode_slot(self._source.read_all(key, SLOT_BYTES_MAX))
        except Gone:
            self._moved()
            self._gap(key, seq, seq + 1)
            return None
        except TooLarge as error:
            self._bad(key, seq, str(error))
            return None
        except Malformed as error:
            self._bad(key, seq, error.why, error.position)
            return None
        if slot.seq != seq:
            self._bad(key, seq, f"says that it is {slot.seq}")
            return None
        return slot

    def _missing(self, first: int, end: int) -> None:
        """Slots that were not listed: put since, collected since, or lost."""
        self._moved()
        self._gap(slot_key(first), first, end)
        self._meta.is_whole, self._hash = False, None

    def _moved(self) -> None:
        if not self._is_last:
            raise _Moved

    def _gap(self, key: str, first: int, end: int) -> None:
        self._meta.findings.append(Finding(META_GAP, first=first, end=end, place=key))

    def _bad(self, key: str, seq: int, why: str, position: int = -1) -> None:
        self._meta.findings.append(
            Finding(META_BAD_OBJECT, first=seq, end=seq + 1, place=key, position=position, actual=why)
        )


def _difference(state: State, other: State) -> str:
    """The first part in which two states are not alike, or nothing."""
    for name in ("cluster_id", "controller_id", "controller_epoch", "next_producer_id"):
        if getattr(state, name) != getattr(other, name):
            return f"{name} {getattr(other, name)} instead of {getattr(state, name)}"
    for name in ("brokers", "topics", "configs", "features"):
        ours, theirs = getattr(state, name), getattr(other, name)
        if ours != theirs:
            keys = sorted(key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key))
            return f"{name}: {keys[0]}"
    return ""
