"""Record batches in a stretch of bytes: framing, checksums, and what follows from the heads alone.

Owns finding the batches, again after damage, and the facts of one place. Does not own records (records),
where the bytes come from, or what facts of several places mean together (judge). Invariant: it never raises
and holds at most one batch of `batch_limit` beside a piece; a batch that is damaged or out of order is in no
fact but its fault, whose offsets are those it left without bytes.

Heads are gathered into columns and the checksums of a piece are compared in one sum, so sound bytes cost one
step of Python for each batch: the one that finds its length. Only a piece that is not sound is walked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from tools.verify.core import crc as sums
from tools.verify.core.facts import Digest, Fault, Mark, ProducerRun, Run
from tools.verify.core.findings import Severity, declare
from tools.verify.core.heads import FRAME, HEAD, HEAD_SIZE, LENGTH, Batch, Buffer, head, is_sound, read_marker
from tools.verify.core.records import BadRecords, count_records
from tools.verify.core.stretches import FIELDS, ROW, frames
from tools.verify.core.tables import CONTROL, FEW, Facts, Markers, Table

Column = npt.NDArray[Any]

LENGTH_MIN: Final = HEAD_SIZE - FRAME
OFFSET_LIMIT: Final = 1 << 62

PIECE: Final = 8 << 20
BATCH_LIMIT: Final = 64 << 20
FAULTS_LIMIT: Final = 1_000
SEARCH_LIMIT: Final = 256 << 20
"""Bytes summed in all, in one place, to find the next batch after damage."""

BAD_LENGTH = declare(
    "bad-length",
    Severity.ERROR,
    "The length of a record batch is wrong, so where the next one begins had to be searched.",
    "Take the offsets from a replica or a tier; --repair-plan names one.",
)
BAD_MAGIC = declare(
    "bad-magic",
    Severity.ERROR,
    "A record batch is not of format version 2.",
    "Take the offsets from a replica or a tier; --repair-plan names one.",
)
BAD_CRC = declare(
    "bad-crc",
    Severity.ERROR,
    "The bytes of a record batch do not fit its checksum.",
    "Take the offsets from a replica or a tier; --repair-plan names one.",
)
TORN_TAIL = declare(
    "torn-tail",
    Severity.ERROR,
    "A record batch stops before its end.",
    "Take the offsets from a replica or a tier; --repair-plan names one.",
)
TRAILING_BYTES = declare(
    "trailing-bytes",
    Severity.ERROR,
    "Behind the last record batch are bytes that belong to none.",
    "Compare the size with another copy.",
)
OFFSET_BACK = declare(
    "offset-back",
    Severity.ERROR,
    "The offsets of a record batch are not between those before and after it.",
    "Compare with another copy: a batch is there twice, in the wrong place, or its base offset was altered.",
)
COUNT_MISMATCH = declare(
    "count-mismatch",
    Severity.ERROR,
    "A record batch does not hold the records that its head counts.",
    "Compare with another copy; whoever wrote it gave it a sound checksum.",
)

LITTLE: Final = 4096
"""Bytes whose batches cost less one by one than the columns of their heads do."""
FOLDED: Final = 4096
"""Heads that are taken together: a few hundred, as a piece of large batches has, cost as much as these."""


def batches(data: Buffer, position: int = 0) -> Iterator[Batch]:
    """The batches that lie whole in `data`, up to the first that does not; `data` begins at `position`."""
    at, end = 0, len(data)
    while at + HEAD_SIZE <= end:
        batch = head(data, at, position)
        if batch.size < HEAD_SIZE or at + batch.size > end:
            return
        yield batch
        at += batch.size


class Scanned(NamedTuple):
    """All facts of one place."""

    runs: list[Run]
    producers: list[ProducerRun]
    marks: list[Mark]
    digests: list[Digest]
    faults: list[Fault]
    size: int
    crc: int
    """CRC-32C of all bytes."""
    valid_end: int
    """Where the last sound batch ends: no fault at or behind this has a sound batch behind it."""
    dropped: int
    """Facts beyond the limits, which are not here: what they would show is unchecked."""


class _Lost(NamedTuple):
    """The next batch after damage is being searched."""

    position: int
    searched: int
    """Every batch that begins before this was tried."""


class RunScanner:
    """Takes the bytes of one place in order, in pieces of any size, and gives its facts.

    `position` is where the first piece lies in the place, `first` the lowest offset that may occur.
    `on_table` sees the heads of all batches that are sound and in order, and their markers by position;
    `on_data` the bytes of each batch that is sound, in order or not, and its position.
    """

    def __init__(
        self,
        place: str,
        *,
        position: int = 0,
        first: int = 0,
        batch_limit: int = BATCH_LIMIT,
        on_table: Callable[[Table, Markers], None] | None = None,
        on_data: Callable[[Buffer, int], None] | None = None,
    ) -> None:
        self._place = place
        self._position = position
        self._limit = batch_limit
        self._on_table = on_table
        self._on_data = on_data
        self._size = 0
        self._crc = 0
        self._rest = b""
        """What was fed and is not decided: the beginning of a batch, or all since the damage."""
        self._lost: _Lost | None = None
        self._search_left = SEARCH_LIMIT
        self._valid_end = position
        self._waiting: list[tuple[Column, Column]] = []
        """Heads of sound batches and their positions, in order, which `_fold` takes."""
        self._waiting_count = 0
        self._held: tuple[Column, Column] | None = None
        """The head of the last sound batch: whether it is in order shows with the next."""
        self._held_end = first
        self._markers: Markers = {}
        self._faults: list[Fault] = []
        self._facts = Facts(place, first)

    def feed(self, chunk: Buffer) -> int:
        """Take the next bytes; return how many they are."""
        view = memoryview(chunk)
        for start in range(0, len(view), PIECE):
            self._feed(view[start : start + PIECE])
        return len(view)

    def _feed(self, view: memoryview) -> None:
        at = self._position + self._size
        self._size += len(view)
        start = 0
        rows: list[Column] = []
        positions: list[Column] = []
        if len(view) <= LITTLE and len(self._rest) <= LITTLE and self._lost is None:
            self._crc = crc32c(view, self._crc)
            self._walk(self._rest + view if self._rest else view, at - len(self._rest))
            return
        if self._rest or self._lost:
            whole = None if self._lost else self._straddling(view)
            if whole is None:
                self._crc = crc32c(view, self._crc)
                if self._lost or len(self._rest) + len(view) >= self._wanted():
                    self._walk(self._rest + view, at - len(self._rest))
                else:
                    self._rest += view
                return
            start = len(whole) - len(self._rest)
            rows.append(np.frombuffer(whole[:HEAD_SIZE], ROW))
            positions.append(np.array([at - len(self._rest)], np.int64))
            self._look_inside(whole, 0, at - len(self._rest))
            if self._on_data is not None:
                self._on_data(whole, at - len(self._rest))
            self._crc = crc32c(view[:start], self._crc)
        where, stop = frames(view, start, self._limit)
        if len(where):
            heads = np.ndarray((len(view) - HEAD_SIZE + 1,), ROW, view, strides=(1,))[where]
            crc = crc32c(view[start:stop], self._crc)
            if not _are_sound(heads, where, stop, crc ^ sums.shift(self._crc, stop - start)):
                self._crc = crc32c(view[stop:], crc)
                before = len(self._rest) if start else 0
                self._walk(self._rest + view if before else view, at - before)
                return
            self._crc = crc
            rows.append(heads)
            positions.append(where + at)
            fields = heads.view(FIELDS)
            flags = heads.view(np.uint8).reshape(-1, HEAD_SIZE)[:, 22]
            odd = (flags & CONTROL != 0) | (fields["count"] - 1 != fields["delta"])
            for index in np.flatnonzero(odd).tolist():
                self._look_inside(view, int(where[index]), at + int(where[index]))
            if self._on_data is not None:
                for begin, end in pairwise((*where.tolist(), stop)):
                    self._on_data(view[begin:end], at + begin)
        self._crc = crc32c(view[stop:], self._crc)
        self._rest = b""
        for each in zip(rows, positions, strict=True):
            self._sound(*each)
        if self._waiting_count >= FOLDED:
            self._fold()
        if stop < len(view):
            if _is_beginning(view, stop, self._limit):
                self._rest = bytes(view[stop:])
            else:
                self._walk(view[stop:], at + stop)

    def _wanted(self) -> int:
        """How many bytes of the batch that `_rest` begins must be there to decide on it."""
        if len(self._rest) < FRAME:
            return FRAME
        (length,) = LENGTH.unpack_from(self._rest, 8)
        return FRAME + int(length)

    def _straddling(self, view: memoryview) -> bytes | None:
        """The batch that began in earlier pieces, once it is whole; None if it is not, or not sound."""
        if len(self._rest) < FRAME:
            missing = FRAME - len(self._rest)
            (length,) = (
                LENGTH.unpack_from(self._rest + bytes(view[:missing]), 8) if len(view) >= missing else (0,)
            )
        else:
            (length,) = LENGTH.unpack_from(self._rest, 8)
        more = FRAME + length - len(self._rest)
        if not LENGTH_MIN <= length <= self._limit or more > len(view):
            return None
        whole = self._rest + bytes(view[:more])
        return whole if is_sound(whole, 0, len(whole)) else None

    # --- damage ---

    def _walk(self, data: Buffer, at: int, *, is_end: bool = False) -> None:
        """Go batch by batch through few bytes, or such in which something is wrong. `at`: the position of
        `data`."""
        data = bytes(data)
        end = len(data)
        now = 0
        good: list[int] = []
        self._rest = b""
        while True:
            if self._lost is None:
                while (size := self._size_at(data, now, end)) and is_sound(data, now, now + size):
                    good.append(now)
                    now += size
                if now == end or (not is_end and not size and _is_beginning(data, now, self._limit)):
                    break
                self._lost = _Lost(at + now, at + now + 1)
            self._take(data, good, at)
            self._fold()
            good = []
            lost = self._lost
            found, searched = self._search(data, lost.searched - at, lost.position - at)
            if found is None:
                if is_end:
                    self._fault_at_end(data, lost.position - at, at)
                    return
                self._lost = _Lost(lost.position, at + searched)
                now = lost.position - at
                if end - now > self._limit + PIECE:
                    now = searched
                break
            self._fault_between(data, lost.position - at, found, at)
            self._lost = None
            now = found
        self._take(data, good, at)
        self._rest = data[now:]

    def _size_at(self, data: bytes, at: int, end: int) -> int:
        """Of the batch that should begin at `at`; 0 if it is not whole or its length is impossible."""
        if at + HEAD_SIZE > end:
            return 0
        (length,) = LENGTH.unpack_from(data, at + 8)
        whole = LENGTH_MIN <= length <= self._limit and at + FRAME + length <= end
        return FRAME + int(length) if whole else 0

    def _take(self, data: bytes, good: list[int], at: int) -> None:
        if good:
            where = np.array(good, np.int64)
            for each in good:
                self._look_inside(data, each, at + each)
                if self._on_data is not None:
                    self._on_data(memoryview(data)[each : each + head(data, each).size], at + each)
            self._sound(np.ndarray((len(data) - HEAD_SIZE + 1,), ROW, data, strides=(1,))[where], where + at)
            if self._waiting_count >= FOLDED:
                self._fold()

    def _search(self, data: bytes, start: int, lost: int) -> tuple[int | None, int]:
        """Where the next sound batch begins, and from where on it must be tried again with more bytes."""
        expected = lost + self._size_at(data, lost, len(data)) if lost >= 0 else 0
        if expected > lost and self._begins(data, expected) is True:
            return expected, expected
        count = len(data) - HEAD_SIZE + 1 - start
        if count <= 0 or self._search_left <= 0:
            return None, start if self._search_left > 0 else len(data)
        byte = np.frombuffer(data, np.uint8)
        likely = byte[start + 16 : start + 16 + count] == 2
        for place in (0, 1):
            likely &= byte[start + place : start + place + count] == 0
        likely &= byte[start + 8 : start + 8 + count] <= self._limit >> 24
        again = start + count
        for candidate in (np.flatnonzero(likely) + start).tolist():
            begins = self._begins(data, candidate)
            if begins is True:
                return candidate, candidate
            if begins is None:
                again = min(again, candidate)
            if self._search_left <= 0:
                return None, len(data)
        return None, again

    def _begins(self, data: bytes, at: int) -> bool | None:
        """Whether a sound batch begins here that may follow what was read; None if it is not whole."""
        if at + HEAD_SIZE > len(data):
            return None
        batch = head(data, at)
        if batch.magic != 2 or not HEAD_SIZE <= batch.size <= FRAME + self._limit or batch.leader_epoch < -1:
            return False
        if not self._held_end <= batch.base_offset <= batch.last_offset < OFFSET_LIMIT:
            return False
        self._search_left -= 4096
        if at + batch.size > len(data):
            return None
        self._search_left -= batch.size
        return is_sound(data, at, at + batch.size)

    def _fault_between(self, data: bytes, lost: int, found: int, at: int) -> None:
        """Name what is wrong with the bytes from `lost` to the next sound batch, at `found`."""
        first, following = self._held_end, head(data, found).base_offset
        while lost >= 0 and lost + HEAD_SIZE <= found:
            batch = head(data, lost)
            end = lost + self._size_at(data, lost, found)
            if end == lost or not _may_follow(data, end, found, batch.last_offset + 1, following):
                break
            after = head(data, end).base_offset
            self._fault_inside(data, lost, end, at, first, after)
            first, lost = after, end
        self._fault_inside(data, lost, found, at, first, following)

    def _fault_inside(self, data: bytes, lost: int, found: int, at: int, first: int, following: int) -> None:
        position = at + lost
        if lost < 0 or lost + HEAD_SIZE > found:
            self._fault(Fault(BAD_LENGTH, self._place, position, first, following))
            return
        batch = head(data, lost)
        size = self._size_at(data, lost, found)
        if batch.size == found - lost and batch.magic != 2:
            code, expected, actual = BAD_MAGIC, "2", str(batch.magic)
        elif batch.size != found - lost and (
            size == 0
            or batch.last_offset + 1 == following
            or crc32c(memoryview(data)[lost + sums.HEAD : found]) == batch.crc
        ):
            code, expected, actual = BAD_LENGTH, str(found - lost - FRAME), str(batch.size - FRAME)
        else:
            code, expected = BAD_CRC, f"{batch.crc:08x}"
            actual = f"{crc32c(memoryview(data)[lost + sums.HEAD : lost + size]):08x}"
        self._fault(Fault(code, self._place, position, first, following, expected, actual))

    def _fault_at_end(self, data: bytes, lost: int, at: int) -> None:
        """Name what is wrong with the bytes behind the last sound batch."""
        position, first = at + lost, self._held_end
        if self._search_left <= 0:
            text = "damage that was not searched to its end"
            self._fault(Fault(BAD_LENGTH, self._place, position, first, actual=text))
            return
        left = len(data) - lost
        if lost < 0 or left < HEAD_SIZE:
            code = TORN_TAIL if lost >= 0 and _may_begin(data[lost:], first) else TRAILING_BYTES
            self._fault(Fault(code, self._place, position, first, actual=f"{left} bytes"))
            return
        batch = head(data, lost)
        body = memoryview(data)[lost + sums.HEAD :]
        is_likely = (
            _may_begin(data[lost : lost + HEAD_SIZE], first) and batch.last_offset >= batch.base_offset
        )
        if batch.size != left and batch.magic == 2 and crc32c(body) == batch.crc:
            fault = Fault(
                BAD_LENGTH, self._place, position, first, -1, str(left - FRAME), str(batch.size - FRAME)
            )
        elif batch.size == left and batch.magic != 2 and crc32c(body) == batch.crc:
            fault = Fault(BAD_MAGIC, self._place, position, first, -1, "2", str(batch.magic))
        elif batch.size == left:
            fault = Fault(
                BAD_CRC, self._place, position, first, -1, f"{batch.crc:08x}", f"{crc32c(body):08x}"
            )
        elif not is_likely or batch.magic != 2:
            fault = Fault(TRAILING_BYTES, self._place, position, first, actual=f"{left} bytes")
        elif HEAD_SIZE <= batch.size < left:
            part = crc32c(body[: batch.size - sums.HEAD])
            fault = Fault(BAD_CRC, self._place, position, first, -1, f"{batch.crc:08x}", f"{part:08x}")
        elif LENGTH_MIN <= batch.size - FRAME <= self._limit:
            fault = Fault(TORN_TAIL, self._place, position, first, -1, f"{batch.size} bytes", f"{left} bytes")
        else:
            fault = Fault(BAD_LENGTH, self._place, position, first, -1, "", str(batch.size - FRAME))
        self._fault(fault)

    def _fault(self, fault: Fault) -> None:
        if len(self._faults) < FAULTS_LIMIT:
            self._faults.append(fault)
        else:
            self._facts.dropped += 1

    # --- sound batches ---

    def _look_inside(self, data: Buffer, at: int, position: int) -> None:
        """Read a marker, and count the records of a batch that has not one for each of its offsets."""
        batch = head(data, at)
        if batch.is_control:
            marker = read_marker(bytes(data[at + HEAD_SIZE : at + min(batch.size, 4096)]), batch)
            if marker is not None:
                self._markers[position] = marker
            elif batch.record_count > 0 and batch.producer_id >= 0:
                self._miscounted(batch, position, "", "no control record")
        elif 0 <= batch.record_count <= batch.last_offset - batch.base_offset:
            try:
                count = count_records(memoryview(data)[at : at + batch.size], batch)
            except BadRecords as error:
                self._miscounted(batch, position, str(batch.record_count), str(error))
            else:
                if count != batch.record_count:
                    self._miscounted(batch, position, str(count), str(batch.record_count))

    def _miscounted(self, batch: Batch, position: int, expected: str, actual: str) -> None:
        first, end = batch.base_offset, batch.last_offset + 1
        self._fault(Fault(COUNT_MISMATCH, self._place, position, first, end, expected, actual))

    def _sound(self, rows: Column, positions: Column) -> None:
        """Keep the heads of batches whose checksums are right until they are folded."""
        self._waiting.append((rows, positions))
        self._waiting_count += len(rows)

    def _fold(self, *, is_end: bool = False) -> None:
        """Take the heads that wait; the last is held back, but for the end."""
        if not self._waiting:
            if is_end and self._held is not None:
                held, self._held = self._held, None
                self._ordered(_table(*held), -1)
            return
        rows, positions = (np.concatenate(each) for each in zip(*self._waiting, strict=True))
        self._waiting, self._waiting_count = [], 0
        self._valid_end = int(positions[-1]) + FRAME + int(rows[-1:].view(FIELDS)["length"][0])
        if self._held is not None:
            rows = np.concatenate((self._held[0], rows))
            positions = np.concatenate((self._held[1], positions))
        if is_end:
            self._held = None
            is_alone = len(rows) <= FEW and self._on_table is None
            if not (is_alone and self._take_few(rows, positions)):
                self._ordered(_table(rows, positions), -1)
            return
        table = _table(rows, positions)
        self._held = rows[-1:], positions[-1:]
        self._held_end = max(self._facts.end, int(table.end[-1]))
        if len(rows) > 1:
            self._ordered(table.keep(slice(0, -1)), int(table.base[-1]))

    def _take_few(self, rows: Column, positions: Column) -> bool:
        """Pass on batches one by one; False, and nothing is passed on, if any is out of order."""
        found: list[tuple[int, ...]] = []
        now = self._facts.end
        for position, values in zip(positions.tolist(), HEAD.iter_unpack(rows.tobytes()), strict=True):
            base, length, epoch, _, crc, attributes, delta, _, newest, *producer, count = values
            end = base + delta + 1
            if not (now <= base < end <= OFFSET_LIMIT and 0 <= count <= end - base):
                return False
            found.append(
                (position, FRAME + length, base, end, epoch, crc, attributes, newest, *producer, count)
            )
            now = end
        self._facts.add_few(found, self._markers)
        return True

    def _ordered(self, table: Table, following: int) -> None:
        """Pass on what is in order. `following`: the base offset of the batch after these, or -1."""
        ends = table.end
        before = np.concatenate(([self._facts.end], ends[:-1]))
        counts = table.records
        if (
            bool((table.base < before).any())
            or (0 <= following < int(ends[-1]))
            or int(ends.max()) > OFFSET_LIMIT
            or bool((ends <= table.base).any())
            or bool((counts > ends - table.base).any())
            or int(counts.min()) < 0
        ):
            table = table.keep(self._sift(table, following))
        if len(table.base):
            self._facts.add(table, self._markers)
            if self._on_table is not None:
                self._on_table(table, self._markers)
        self._markers = {at: each for at, each in self._markers.items() if at >= int(self._held_position())}

    def _held_position(self) -> int:
        return int(self._held[1][0]) if self._held is not None else self._valid_end

    def _sift(self, table: Table, following: int) -> Column:
        """Name the batches that are out of order; True for those that are not."""
        bases, ends, counts = table.base.tolist(), table.end.tolist(), table.records.tolist()
        keep = np.ones(len(bases), np.bool_)
        now = self._facts.end
        for at, (base, end, count) in enumerate(zip(bases, ends, counts, strict=True)):
            position = int(table.position[at])
            after = bases[at + 1] if at + 1 < len(bases) else following
            if end <= base or end > OFFSET_LIMIT or base < now or (now < base and now <= after < end):
                keep[at] = False
                first, last = (now, after) if after > now else (base, max(end, base + 1))
                text = f"between {now} and {after}" if after >= 0 else f"at least {now}"
                self._fault(
                    Fault(OFFSET_BACK, self._place, position, first, last, text, f"{base} to {end - 1}")
                )
                continue
            if not 0 <= count <= end - base:
                text = f"at most {end - base}"
                self._fault(Fault(COUNT_MISMATCH, self._place, position, base, end, text, str(count)))
            now = end
        return keep

    def finish(self) -> Scanned:
        """All facts, once everything was fed."""
        if self._rest or self._lost:
            self._walk(self._rest, self._position + self._size - len(self._rest), is_end=True)
        self._fold(is_end=True)
        facts = self._facts
        runs, producers, marks, digests = facts.finish()
        self._faults.sort(key=lambda fault: (fault.position, fault.code))
        return Scanned(
            runs,
            producers,
            marks,
            digests,
            self._faults,
            self._size,
            self._crc,
            self._valid_end,
            facts.dropped,
        )


def _are_sound(heads: Column, where: Column, stop: int, crc: int) -> bool:
    """Whether all these are of version 2, and keep their checksums by the one over all of them."""
    byte = heads.view(np.uint8).reshape(-1, HEAD_SIZE)
    if not bool((byte[:, 16] == 2).all()):
        return False
    claimed = heads.view(FIELDS)["crc"].astype(np.uint32)
    sizes = np.diff(where, append=stop)
    return bool(sums.of_frames(byte, claimed, sizes) == crc)


def _is_beginning(data: Buffer, at: int, limit: int) -> bool:
    """Whether the bytes from `at` on are the beginning of a batch of possible length that is not whole."""
    if len(data) - at < FRAME:
        return True
    (length,) = LENGTH.unpack_from(data, at + 8)
    return bool(LENGTH_MIN <= length <= limit and at + FRAME + length > len(data))


def _may_follow(data: bytes, at: int, end: int, expected: int, following: int) -> bool:
    """Whether a damaged batch seems to begin at `at`, with offsets in [expected, following)."""
    if at + HEAD_SIZE > end:
        return False
    batch = head(data, at)
    if batch.base_offset == expected:
        return True
    return batch.magic == 2 and expected <= batch.base_offset <= batch.last_offset < following


def _may_begin(data: bytes, expected: int) -> bool:
    """Whether these few bytes look like the beginning of the batch with the next offset."""
    if len(data) > 16 and data[16] != 2:
        return False
    known = min(8, len(data))
    cut = 8 * (8 - known)
    base = int.from_bytes(data[:known], "big")
    return expected >> cut <= base <= (expected + (1 << 31)) >> cut


def _table(rows: Column, positions: Column) -> Table:
    fields = rows.view(FIELDS)
    base = fields["base"].astype(np.int64)
    return Table(
        positions,
        fields["length"].astype(np.int64) + FRAME,
        base,
        base + fields["delta"] + 1,
        fields["epoch"].astype(np.int64),
        fields["crc"].astype(np.uint64),
        fields["attributes"].astype(np.int64),
        fields["max_timestamp"].astype(np.int64),
        fields["producer_id"].astype(np.int64),
        fields["producer_epoch"].astype(np.int64),
        fields["sequence"].astype(np.int64),
        fields["count"].astype(np.int64),
    )
