"""Owns the bucket of a simulation: one store that outlives every process, seen through bad lines.

What lies below `wal/` is kept in the journal without its slices (wallog.py reads them when they are put).

Each process has its own view with latency, outages, hangs, late answers, and the two cases that matter most:
done, but the reply was lost; and done long after the caller gave up. A request that was under way when its
process died may still take effect. A view follows several profiles at once: its node's own line, and the
store's. Does not own what the objects mean.

Invariant: what the bucket holds changes only by whole puts and deletes, each of them in the journal with its
time and its sender; a lost reply is UNKNOWN, never LOST or WON. Parts are no object before it is complete.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from protocol.checksum import Buffer
from remote.keys import META, TIER, WAL, parse_tier_key
from remote.store.memory_store import MemoryStore
from remote.store.object_store import NoSuchUpload, ObjectInfo, PutResult, StoreError, Upload, cut
from tests.sim.history import NOTHING_ALONE, HadAlone, ObjectChange, StoreChange, WalChange, WalRead, digest
from tests.sim.loop import Process, SimLoop
from tests.sim.wallog import read_put

T = TypeVar("T")

CALL_TIMEOUT_S = 10.0


class TierChange(NamedTuple):
    """Something that took effect on an object of the cold tier, or on an upload that may become one, and who
    had sent it."""

    at: float
    node: int
    life: int
    kind: str  # put, delete, begin, part, complete, abort
    key: str
    size: int  # of the object or part


class Bucket(MemoryStore):
    """The objects, and every change that was ever made: to those that coordinate with its bytes, to those of
    the cold tier without."""

    def __init__(self, now_ms: Callable[[], int] = lambda: 0) -> None:
        super().__init__(now_ms=now_ms)
        self.journal: list[StoreChange] = []
        self.tier_journal: list[TierChange] = []
        self.tier_objects: list[ObjectChange] = []
        self.tier_under_way: list[str] = []
        """Keys of the tier that a change is on its way to, mostly for a short while."""
        self.wal_journal: list[WalChange] = []
        self.wal_reads: list[WalRead] = []
        self.wal_gone_of: Callable[[str], None] = lambda key: None
        """Is told of an object of the WAL tier that goes."""
        self.said_of: Callable[[str], str] = lambda key: ""
        """What is said of the copy that has this object."""
        self.alone_in: Callable[[str, bytes], HadAlone] = lambda key, data: NOTHING_ALONE
        """What the copy that had this object, with these bytes, has alone."""

    @property
    def uploads(self) -> list[tuple[str, int]]:
        """The keys of uploads that are neither ended nor given up, and how many parts they have."""
        return [(begun.key, len(begun.parts)) for begun in self._uploads.values()]


@dataclass(slots=True)
class StoreProfile:
    """How a line to the store, or the store, behaves now; the scenario changes it while running."""

    latency_min_s: float = 0.0005
    latency_max_s: float = 0.01
    error_before_chance: float = 0.0
    error_after_chance: float = 0.0
    stale_chance: float = 0.0  # an answer stays under way for a while: true when given, old when it arrives
    stale_max_s: float = 2.0
    late_chance: float = 0.0  # a change takes effect this much later, mostly after its caller gave up
    late_max_s: float = 40.0
    short_chance: float = 0.0  # a range comes with fewer bytes than were asked for
    down: bool = False
    hang: bool = False
    holds: bool = False  # changes that arrive now wait for `let_go`
    holds_answers: bool = False  # what was done or read is not heard of before healing
    holds_of: Callable[[str, str], bool] | None = None  # of which (kind, key) changes wait, as for `holds`
    delay_of: Callable[[str, str], float] | None = (
        None  # how much later a (kind, key) takes effect, or is read
    )
    held: list[Callable[[], None]] = field(default_factory=list)
    released: list[asyncio.Future[None]] = field(default_factory=list)

    def heal(self) -> None:
        self.error_before_chance = self.error_after_chance = self.stale_chance = self.late_chance = 0.0
        self.short_chance = 0.0
        self.down = self.hang = self.holds = self.holds_answers = False
        self.holds_of = self.delay_of = None
        waiting, self.released = self.released, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def has_hold(self, kind: str, key: str) -> bool:
        return self.holds or (self.holds_of is not None and self.holds_of(kind, key))

    def let_go(self) -> int:
        """What was held takes effect now, in the order of its arrival; how much that was."""
        held, self.held = self.held, []
        for take_effect in held:
            take_effect()
        return len(held)


class SimStore:
    """The ObjectStore seam of one process; `profile` is its own line, `common` the store's behaviour, `lane`
    that of one lane on the line."""

    def __init__(
        self,
        loop: SimLoop,
        bucket: Bucket,
        profile: StoreProfile,
        rng: random.Random,
        process: Process,
        *,
        common: StoreProfile | None = None,
        lane: StoreProfile | None = None,
        node: int = 1,
    ) -> None:
        self._loop = loop
        self._bucket = bucket
        self._line = profile
        self._profiles = tuple(each for each in (profile, lane, common) if each is not None)
        self._rng = rng
        self._process = process
        self._node = node

    async def get(self, key: str) -> bytes:
        return await self._ask(lambda: self._bucket.get(key), key=key)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        if start and key.startswith(WAL):
            self._bucket.wal_reads.append(WalRead(self._loop.now, self._node, self._process.life, key))
        data = await self._ask(lambda: self._bucket.get_range(key, start, end), key=key)
        for profile in self._profiles:
            if profile.short_chance and self._rng.random() < profile.short_chance:
                return data[: self._rng.randrange(len(data) + 1)]
        return data

    async def get_pieces(self, key: str, start: int, end: int, *, piece_bytes: int) -> Sequence[Buffer]:
        return cut(await self.get_range(key, start, end), piece_bytes)

    async def list(self, prefix: str, *, after: str = "", at_most: int | None = None) -> list[ObjectInfo]:
        return await self._ask(lambda: self._bucket.list(prefix, after=after, at_most=at_most))

    async def put(self, key: str, data: Buffer) -> None:
        await self._change("put", key, bytes(data), lambda: self._bucket.put(key, bytes(data)))

    async def delete(self, key: str) -> None:
        await self._change("delete", key, b"", lambda: self._bucket.delete(key))

    async def put_if_absent(self, key: str, data: bytes) -> PutResult:
        try:
            result = await self._change(
                "put", key, bytes(data), lambda: self._bucket.put_if_absent(key, bytes(data))
            )
        except StoreError:
            return PutResult.UNKNOWN
        return result

    async def begin_upload(self, key: str) -> str:
        return await self._change("begin", key, b"", lambda: self._bucket.begin_upload(key))

    async def put_part(self, key: str, upload: str, number: int, data: Buffer, *, start: int) -> str:
        part = bytes(data)
        return await self._change(
            "part", key, part, lambda: self._bucket.put_part(key, upload, number, part, start=start)
        )

    async def complete_upload(
        self, key: str, upload: str, parts: Sequence[tuple[int, str]], size: int
    ) -> None:
        made = list(parts)
        await self._change(
            "complete", key, b"", lambda: self._bucket.complete_upload(key, upload, made, size)
        )

    async def abort_upload(self, key: str, upload: str) -> None:
        await self._change("abort", key, b"", lambda: self._bucket.abort_upload(key, upload))

    async def list_uploads(self, prefix: str) -> Sequence[Upload]:
        return await self._ask(lambda: self._bucket.list_uploads(prefix))

    def local_path(self, key: str) -> str | None:
        return None

    async def close(self) -> None:
        return

    async def _ask(self, call: Callable[[], Awaitable[T]], *, key: str = "") -> T:
        self._process.check_alive()
        await self._travel()
        self._maybe_fail("error_before_chance", "refused")
        delay_s = self._delay("get", key)
        if delay_s > CALL_TIMEOUT_S:
            await self._give_up()
        if delay_s:
            await asyncio.sleep(delay_s)
        result = await call()
        await self._answer_travels()
        return result

    async def _change(self, kind: str, key: str, data: bytes, call: Callable[[], Awaitable[T]]) -> T:
        """The effect happens outside the caller's process, so that its death does not undo a request that
        had left."""
        self._process.check_alive()
        sent = self._loop.now
        if any(profile.down or profile.hang for profile in self._profiles):
            await self._travel()
        self._maybe_fail("error_before_chance", "refused")
        done: asyncio.Future[Any] = self._loop.create_future()
        holder = next((profile for profile in self._profiles if profile.has_hold(kind, key)), None)

        def take_effect() -> None:
            if key.startswith(TIER):
                self._bucket.tier_under_way.remove(key)
            before = self._bucket.objects.get(key)
            outcome = _run_now(call)
            self._loop.trace("store", kind, key, outcome)
            if outcome is not PutResult.LOST and not isinstance(outcome, Exception):
                self._note(kind, key, data)
            if key.startswith(TIER) and self._bucket.objects.get(key) != before:
                self._note_object(key, before or b"", sent)
            if key.startswith(WAL) and kind == "delete" and before is not None:
                self._bucket.wal_gone_of(key)
            if not done.done():
                done.set_result(outcome)

        if key.startswith(TIER):
            self._bucket.tier_under_way.append(key)
        if holder is not None:
            holder.held.append(take_effect)
            await self._give_up()
        late_s = max(self._chance("late_chance", "late_max_s"), self._latency(), self._delay(kind, key))
        self._loop.call_later(late_s, take_effect, context=contextvars.Context())
        if late_s > CALL_TIMEOUT_S:
            await self._give_up()
        result = await done
        await self._answer_travels()
        self._maybe_fail("error_after_chance", "the reply was lost")
        if isinstance(result, Exception):
            raise result
        return result  # type: ignore[no-any-return]

    def _note(self, kind: str, key: str, data: bytes) -> None:
        at, node, life = self._loop.now, self._node, self._process.life
        if key.startswith(META):
            self._bucket.journal.append(
                StoreChange(at=at, node=node, life=life, kind=kind, key=key, data=data)
            )
        elif key.startswith(TIER):
            size = len(self._bucket.objects[key]) if kind == "complete" else len(data)
            self._bucket.tier_journal.append(TierChange(at, node, life, kind, key, size))
        elif key.startswith(WAL) and kind in ("put", "delete"):
            kept = read_put(key, data) if kind == "put" else (b"", (), ())
            self._bucket.wal_journal.append(WalChange(at, node, life, kind, key, len(data), *kept))

    def _note_object(self, key: str, before: bytes, sent: float) -> None:
        after = self._bucket.objects.get(key)
        named = parse_tier_key(key)
        self._bucket.tier_objects.append(
            ObjectChange(
                at=self._loop.now,
                sent=sent,
                node=self._node,
                key=key,
                copy="" if named is None else str(named.segment_id),
                digest="" if after is None else digest(after),
                state=self._bucket.said_of(key),
                alone=self._bucket.alone_in(key, before) if after is None else NOTHING_ALONE,
            )
        )

    async def _give_up(self) -> None:
        await asyncio.sleep(CALL_TIMEOUT_S)
        raise StoreError("deadline passed")

    async def _travel(self) -> None:
        await asyncio.sleep(self._latency())
        await self._check_line()

    async def _answer_travels(self) -> None:
        await asyncio.sleep(max(self._chance("stale_chance", "stale_max_s"), self._latency()))
        for profile in self._profiles:
            if profile.holds_answers:
                self._loop.trace("answer held", self._node)
                await self._released(profile)
        await self._check_line()

    async def _released(self, profile: StoreProfile) -> None:
        waiter = self._loop.create_future()
        profile.released.append(waiter)
        await asyncio.wait([waiter], timeout=CALL_TIMEOUT_S)
        if not waiter.done():
            raise StoreError("deadline passed")

    async def _check_line(self) -> None:
        for profile in self._profiles:
            if profile.hang:
                waiter = self._loop.create_future()
                profile.released.append(waiter)
                await asyncio.wait([waiter], timeout=CALL_TIMEOUT_S)
                raise StoreError("deadline passed")
            if profile.down:
                raise StoreError("503 the store is down")

    def _maybe_fail(self, chance: str, why: str) -> None:
        for profile in self._profiles:
            given: float = getattr(profile, chance)
            if given and self._rng.random() < given:
                raise StoreError(why)

    def _chance(self, chance: str, seconds: str) -> float:
        """How long the case lasts that this chance speaks of; 0 when it does not happen."""
        for profile in self._profiles:
            given: float = getattr(profile, chance)
            if given and self._rng.random() < given:
                return self._rng.random() * float(getattr(profile, seconds))
        return 0.0

    def _delay(self, kind: str, key: str) -> float:
        return max((each.delay_of(kind, key) for each in self._profiles if each.delay_of), default=0.0)

    def _latency(self) -> float:
        line = self._line
        return line.latency_min_s + self._rng.random() * (line.latency_max_s - line.latency_min_s)


def _run_now(call: Callable[[], Awaitable[T]]) -> T | Exception:
    """A MemoryStore call never waits: run it to its end; what it answers, or raises for an answer."""
    coroutine: Any = call()
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    except (NoSuchUpload, StoreError) as refusal:
        return refusal
    raise AssertionError("a MemoryStore call waited")
