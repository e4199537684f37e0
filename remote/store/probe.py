"""A probe of whether a store keeps the promises that everything else is built on.

Owns: the race for keys that a cluster runs before it trusts a store, the checks of every other promise, and
how long each operation takes. Does not own what a broker does with the verdict, nor how it is shown (tools).

Invariant: nothing outside the given prefix is touched, and nothing is left there by a probe that ends. A
store that does not answer is no store that cheats: that is a StoreError, not a verdict.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from remote.store.object_store import (
    KEY_MAX_CHARS,
    NoSuchObject,
    NoSuchUpload,
    ObjectStore,
    Operation,
    PutResult,
    StoreError,
)
from remote.store.upload import PART_BYTES, remove

T = TypeVar("T")

PREFIX: Final = "probe/"
RACE_KEYS: Final = 20
RACE_TRIES: Final = 5
RACE_PAUSE_S: Final = 0.2
SAMPLES: Final = 50
SAMPLE_BYTES: Final = 1_000
LARGE_BYTES: Final = 8 << 20
KEY_CHARACTERS: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_=-."


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The result of the race."""

    keys: int
    complaints: tuple[str, ...]

    @property
    def is_sound(self) -> bool:
        return not self.complaints


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    name: str
    complaint: str | None = None
    """What is wrong, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    operation: str
    samples: int
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    checks: tuple[Check, ...]
    latencies: tuple[Latency, ...]

    @property
    def complaints(self) -> tuple[str, ...]:
        return tuple(f"{check.name}: {check.complaint}" for check in self.checks if check.complaint)

    @property
    def is_fit(self) -> bool:
        """Whether a cluster may use the store: it needs every one of the promises."""
        return not self.complaints


async def probe_conditions(
    store_a: ObjectStore, store_b: ObjectStore, rng: random.Random, *, prefix: str = PREFIX
) -> Conditions:
    """Let two connections race for each of a few keys: one must win, the other must lose, and both must read
    the winner's bytes. StoreError when the store does not answer.
    """
    root = f"{prefix}{rng.randbytes(8).hex()}/"
    keys = [f"{root}{number:02d}" for number in range(RACE_KEYS)]
    try:
        verdicts = await asyncio.gather(*(_race(store_a, store_b, key) for key in keys))
    finally:
        await _clean(store_a, keys)
    return Conditions(keys=len(keys), complaints=tuple(filter(None, verdicts)))


async def probe(
    store_a: ObjectStore, store_b: ObjectStore, rng: random.Random, *, prefix: str = PREFIX
) -> ProbeReport:
    """Check every promise, with two connections where one might remember what the other cannot know, then
    measure how long each operation takes. StoreError when the store does not answer.
    """
    root = f"{prefix}{rng.randbytes(8).hex()}/"
    await store_a.list(root)
    bench = _Bench(store_a, store_b, rng, root)
    try:
        checks = [await bench.check(name, ask) for name, ask in bench.checks()]
        latencies = await bench.latencies()
    finally:
        # The uploads first: what they may still become is an object.
        await asyncio.gather(*(remove(store_a, key) for key in bench.uploaded), return_exceptions=True)
        await _clean(store_a, await _leftovers(store_a, root))
    return ProbeReport(checks=tuple(checks), latencies=tuple(latencies))


# --- the race ---


async def _race(store_a: ObjectStore, store_b: ObjectStore, key: str) -> str | None:
    """Return what is wrong with how this key was won, or None."""
    earlier: list[bytes] = []
    for attempt in range(RACE_TRIES):
        bodies = [b"%c%d" % (rival, attempt) for rival in b"ab"]
        results = await asyncio.gather(
            store_a.put_if_absent(key, bodies[0]), store_b.put_if_absent(key, bodies[1])
        )
        found = await asyncio.gather(_read(store_a, key), _read(store_b, key))
        if any(result is not PutResult.UNKNOWN for result in results) or any(found):
            return judge_race(results, bodies, found, earlier=earlier)
        earlier += bodies
        await asyncio.sleep(RACE_PAUSE_S)
    raise StoreError(f"{key}: the store did not say whether it did any of {RACE_TRIES * 2} puts")


def judge_race(
    results: Sequence[PutResult],
    bodies: Sequence[bytes],
    found: Sequence[bytes | None],
    *,
    earlier: Sequence[bytes] = (),
) -> str | None:
    """Return what contradicts that one rival won, both read its bytes, and both were told so. Puts of an
    earlier try whose replies were lost may still win.
    """
    if results.count(PutResult.WON) > 1:
        return "more than one connection was told that it won the same key"
    if len(set(found)) > 1:
        return "two connections read different objects under the same key"
    there = found[0]
    if there is None:
        return "a key that was put is not there"
    if there not in bodies and there not in earlier:
        return "a key holds bytes that no connection put there"
    owner = results[bodies.index(there)] if there in bodies else PutResult.UNKNOWN
    if owner is PutResult.LOST:
        return "a connection was told that it lost a key that it won"
    if PutResult.WON in results and owner is not PutResult.WON:
        return "a key was won and then overwritten by a conditional put"
    return None


async def _read(store: ObjectStore, key: str) -> bytes | None:
    try:
        return await store.get(key)
    except NoSuchObject:
        return None


# --- all other promises ---


class _Broken(Exception):
    """The store breaks a promise; the message says which."""


class _Bench:
    """One probe: `a` writes, and mostly `b` reads."""

    def __init__(self, a: ObjectStore, b: ObjectStore, rng: random.Random, root: str) -> None:
        self.a = a
        self.b = b
        self._random = rng
        self._root = root
        self._large_ms: list[tuple[str, float]] = []
        self.uploaded: list[str] = []
        """The keys for which uploads were begun."""

    def checks(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        return [
            ("one winner for each key", self._one_winner),
            ("a conditional put keeps the first", self._first_is_kept),
            ("a deleted key can be won again", self._won_again),
            ("read after write", self._read_after_write),
            ("read after overwrite", self._read_after_overwrite),
            ("list after write, in order, from a key on", self._list_after_write),
            ("ranged reads", self._ranges),
            ("delete, also of a missing object", self._deletes),
            ("an empty object", self._empty),
            ("an object of 8 MiB", self._large),
            ("an object put in parts", self._parts),
            ("of an aborted upload nothing is left", self._aborted),
            ("every legal key", self._keys),
        ]

    async def check(self, name: str, ask: Callable[[], Awaitable[None]]) -> Check:
        try:
            await ask()
        except _Broken as broken:
            return Check(name=name, complaint=str(broken))
        except NoSuchObject as missing:
            return Check(name=name, complaint=f"{missing} is missing although it was put")
        except NoSuchUpload as missing:
            return Check(name=name, complaint=f"the upload of {missing} is gone although it was begun")
        except StoreError as error:
            return Check(name=name, complaint=f"no answer: {error}")
        return Check(name=name)

    async def _one_winner(self) -> None:
        conditions = await probe_conditions(self.a, self.b, self._random, prefix=self._root)
        if not conditions.is_sound:
            wrong = sorted(set(conditions.complaints))
            raise _Broken(f"{len(conditions.complaints)} of {conditions.keys} keys: {'; '.join(wrong)}")

    async def _first_is_kept(self) -> None:
        key = self._key("kept")
        _expect(await self.a.put_if_absent(key, b"first"), PutResult.WON, "the first put")
        _expect(await self.b.put_if_absent(key, b"second"), PutResult.LOST, "the second put")
        _expect(await self.a.put_if_absent(key, b"first"), PutResult.LOST, "the first put, sent again")
        _expect(await self.b.get(key), b"first", "the object")

    async def _won_again(self) -> None:
        key = self._key("again")
        await self.a.put(key, b"x")
        await self.a.delete(key)
        _expect(await self.b.put_if_absent(key, b"y"), PutResult.WON, "the put after the delete")
        _expect(await self.a.get(key), b"y", "the object")

    async def _read_after_write(self) -> None:
        for number in range(RACE_KEYS):
            key, body = self._key(f"read/{number}"), self._random.randbytes(100)
            await self.a.put(key, body)
            _expect(await self.b.get(key), body, "the object just written")

    async def _read_after_overwrite(self) -> None:
        key = self._key("over")
        for number in range(RACE_KEYS):
            body = b"%d" % number
            await self.a.put(key, body)
            _expect(await self.b.get(key), body, "the object just replaced")

    async def _list_after_write(self) -> None:
        names = [self._key(f"list/{name}") for name in ("00", "01", "1", "10", "a/0", "a/1", "a=", "b")]
        for name in reversed(names):
            await self.a.put(name, b"")
            if name not in await _keys(self.b, self._key("list/")):
                raise _Broken("a key just written is not listed")
        found = await _keys(self.b, self._key("list/"))
        _expect(found, sorted(names), "the list")
        for at, name in enumerate(found):
            rest = await _keys(self.b, self._key("list/"), after=name)
            _expect(rest, found[at + 1 :], "the rest of the list")
        await self.a.delete(found[0])
        _expect(await _keys(self.b, self._key("list/")), found[1:], "the list after a delete")

    async def _ranges(self) -> None:
        key, body = self._key("range"), bytes(range(256)) * 4
        await self.a.put(key, body)
        for start, end in ((0, 1), (0, 1024), (100, 900), (1000, 5000), (5000, 6000), (7, 7)):
            _expect(await self.b.get_range(key, start, end), body[start:end], f"bytes [{start}, {end})")

    async def _deletes(self) -> None:
        key = self._key("gone")
        await self.a.delete(key)
        await self.a.put(key, b"x")
        for _ in range(2):
            await self.a.delete(key)
            if await _read(self.b, key) is not None:
                raise _Broken("a deleted object is still read")

    async def _empty(self) -> None:
        key = self._key("empty")
        _expect(await self.a.put_if_absent(key, b""), PutResult.WON, "the put")
        _expect(await self.b.get(key), b"", "the object")
        _expect(await self.b.get_range(key, 0, 10), b"", "a range of it")

    async def _large(self) -> None:
        key, body = self._key("large"), self._random.randbytes(LARGE_BYTES)
        for name, ask in (("put 8 MiB", self.a.put), ("put_if_absent 8 MiB", self.a.put_if_absent)):
            await self.a.delete(key)
            _, elapsed_ms = await _timed(ask(key, body))
            self._large_ms.append((name, elapsed_ms))
        found, elapsed_ms = await _timed(self.b.get(key))
        self._large_ms.append(("get 8 MiB", elapsed_ms))
        if found != body:
            raise _Broken("a large object is not read as it was written")

    async def _parts(self) -> None:
        key, body = self._upload_key("parts"), self._random.randbytes(PART_BYTES + 1_000)
        upload = await self.a.begin_upload(key)
        last = await self.b.put_part(key, upload, 2, body[PART_BYTES:], start=PART_BYTES)
        first, elapsed_ms = await _timed(self.a.put_part(key, upload, 1, body[:PART_BYTES], start=0))
        self._large_ms.append(("put_part 8 MiB", elapsed_ms))
        if await _read(self.b, key) is not None or await _keys(self.b, key):
            raise _Broken("there is an object before its upload is complete")
        found = [begun.upload for begun in await self.b.list_uploads(key)]
        _expect(found, [upload], "the list of uploads")
        for _ in range(2):  # as after a reply that was lost
            await self.a.complete_upload(key, upload, [(1, first), (2, last)], len(body))
        if await self.b.get(key) != body:
            raise _Broken("an object put in parts is not read as it was written")
        around = (PART_BYTES - 10, PART_BYTES + 10)
        _expect(await self.b.get_range(key, *around), body[slice(*around)], "a range over two parts")
        _expect([info.size for info in await self.b.list(key)], [len(body)], "the size in the list")
        _expect(list(await self.b.list_uploads(key)), [], "the list of uploads after it was complete")

    async def _aborted(self) -> None:
        key = self._upload_key("aborted")
        upload = await self.a.begin_upload(key)
        tag = await self.a.put_part(key, upload, 1, b"x", start=0)
        for _ in range(2):
            await self.b.abort_upload(key, upload)
        _expect(list(await self.a.list_uploads(key)), [], "the list of uploads")
        try:
            await self.a.complete_upload(key, upload, [(1, tag)], 1)
        except NoSuchUpload:
            _expect(await _read(self.a, key), None, "the object")
        else:
            raise _Broken("an aborted upload could be completed")

    def _upload_key(self, name: str) -> str:
        self.uploaded.append(self._key(name))
        return self.uploaded[-1]

    async def _keys(self) -> None:
        longest = self._key("x" * 200)
        longest += "/x" * ((KEY_MAX_CHARS - len(longest)) // 2)
        for key in (self._key(f"={KEY_CHARACTERS}"), self._key("-/_./=/0"), longest):
            await self.a.put(key, key.encode())
            _expect(await self.b.get(key), key.encode(), f"the object under {key}")
            _expect(await _keys(self.b, key), [key], "the list of one key")

    async def latencies(self) -> list[Latency]:
        body = self._random.randbytes(SAMPLE_BYTES)
        keys = [self._key(f"timed/{number}") for number in range(SAMPLES)]
        calls: dict[Operation, Callable[[str], Awaitable[object]]] = {
            Operation.PUT: lambda key: self.a.put(key, body),
            Operation.PUT_IF_ABSENT: lambda key: self.a.put_if_absent(f"{key}.once", body),
            Operation.GET: lambda key: self.a.get(key),
            Operation.GET_RANGE: lambda key: self.a.get_range(key, 10, 900),
            Operation.LIST: lambda key: self.a.list(key),
            Operation.DELETE: lambda key: self.a.delete(key),
        }
        found = []
        for operation, call in calls.items():
            samples = sorted([(await _timed(call(key)))[1] for key in keys])
            found.append(_latency(operation, samples))
        return found + [_latency(name, [elapsed_ms]) for name, elapsed_ms in self._large_ms]

    def _key(self, name: str) -> str:
        return f"{self._root}{name}"


def _expect(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise _Broken(f"{what} is {_brief(found)}, expected {_brief(wanted)}")


def _brief(value: object) -> str:
    text = value.value if isinstance(value, PutResult) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


async def _timed(call: Awaitable[T]) -> tuple[T, float]:
    time = asyncio.get_running_loop().time
    begun_s = time()
    answer = await call
    return answer, (time() - begun_s) * 1000


def _latency(operation: str, samples_ms: Sequence[float]) -> Latency:
    """Return the percentiles: each is the smallest sample that is not below its share."""
    last = len(samples_ms) - 1
    return Latency(
        operation=operation,
        samples=len(samples_ms),
        p50_ms=round(samples_ms[last // 2], 3),
        p99_ms=round(samples_ms[last - last // 100], 3),
    )


async def _keys(store: ObjectStore, prefix: str, *, after: str = "") -> list[str]:
    return [found.key for found in await store.list(prefix, after=after)]


async def _leftovers(store: ObjectStore, root: str) -> Sequence[str]:
    try:
        return await _keys(store, root)
    except StoreError:
        return ()


async def _clean(store: ObjectStore, keys: Sequence[str]) -> None:
    """Delete the keys. One that stays only takes space: its prefix is never used again."""
    await asyncio.gather(*(store.delete(key) for key in keys), return_exceptions=True)
