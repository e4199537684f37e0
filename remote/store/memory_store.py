"""An object store in memory: the reference for what every other store must do, used by tests and simulations.

Owns: keys in order, their objects, the uploads that were begun. Does not own: faults and latency, which
wrappers add. Invariant: every operation is done at once and as a whole.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from protocol.checksum import Buffer
from remote.store.object_store import (
    NoSuchObject,
    NoSuchUpload,
    ObjectInfo,
    PutResult,
    StoreError,
    Upload,
    check_key,
    check_part,
    check_prefix,
    check_range,
    cut,
)


@dataclass(frozen=True, slots=True)
class _Begun:
    key: str
    begun_ms: int
    parts: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    """By number: where it lies, and its bytes."""


class MemoryStore:
    def __init__(self, *, now_ms: Callable[[], int] = lambda: 0) -> None:
        self.objects: dict[str, bytes] = {}
        self._now_ms = now_ms
        self._keys: list[str] = []
        self._modified_ms: dict[str, int] = {}
        self._uploads: dict[str, _Begun] = {}
        self._begun = 0

    def __repr__(self) -> str:
        return f"MemoryStore({len(self._keys)} objects)"

    async def get(self, key: str) -> bytes:
        try:
            return self.objects[check_key(key)]
        except KeyError:
            raise NoSuchObject(key) from None

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        check_range(start, end)
        return (await self.get(key))[start:end]

    async def get_pieces(self, key: str, start: int, end: int, *, piece_bytes: int) -> Sequence[Buffer]:
        return cut(await self.get_range(key, start, end), piece_bytes)

    async def put(self, key: str, data: Buffer) -> None:
        self._set(check_key(key), bytes(data))

    async def put_if_absent(self, key: str, data: bytes) -> PutResult:
        if check_key(key) in self.objects:
            return PutResult.LOST
        self._set(key, bytes(data))
        return PutResult.WON

    async def list(self, prefix: str, *, after: str = "", at_most: int | None = None) -> list[ObjectInfo]:
        start = max(bisect_left(self._keys, check_prefix(prefix)), bisect_right(self._keys, after))
        end = start
        while end < len(self._keys) and self._keys[end].startswith(prefix):
            end += 1
        if at_most is not None:
            end = min(end, start + at_most)
        return [
            ObjectInfo(key, len(self.objects[key]), self._modified_ms[key]) for key in self._keys[start:end]
        ]

    async def delete(self, key: str) -> None:
        if self.objects.pop(check_key(key), None) is not None:
            del self._keys[bisect_left(self._keys, key)]
            del self._modified_ms[key]

    async def begin_upload(self, key: str) -> str:
        check_key(key)
        self._begun += 1
        upload = f"upload-{self._begun}"
        self._uploads[upload] = _Begun(key, self._now_ms())
        return upload

    async def put_part(self, key: str, upload: str, number: int, data: Buffer, *, start: int) -> str:
        check_part(number, start)
        check_key(key)
        self._upload(key, upload).parts[number] = (start, bytes(data))
        return f"{number}-{len(data)}"

    async def complete_upload(
        self, key: str, upload: str, parts: Sequence[tuple[int, str]], size: int
    ) -> None:
        check_key(key)
        try:
            begun = self._upload(key, upload)
        except NoSuchUpload:
            if key not in self.objects or len(self.objects[key]) != size:
                raise
            return
        data = bytearray()
        for number, tag in parts:
            start, part = begun.parts.get(number, (-1, b""))
            if start != len(data) or tag != f"{number}-{len(part)}":
                raise StoreError(f"{key}: part {number} is not the one that was put", permanent=True)
            data += part
        if len(data) != size:
            raise StoreError(f"{key}: the parts are {len(data)} bytes, not {size}", permanent=True)
        del self._uploads[upload]
        self._set(key, bytes(data))

    async def abort_upload(self, key: str, upload: str) -> None:
        check_key(key)
        self._uploads.pop(upload, None)

    async def list_uploads(self, prefix: str) -> Sequence[Upload]:
        check_prefix(prefix)
        found = (Upload(begun.key, upload, begun.begun_ms) for upload, begun in self._uploads.items())
        return sorted(upload for upload in found if upload.key.startswith(prefix))

    def local_path(self, key: str) -> str | None:
        return None

    async def close(self) -> None:
        pass

    def _set(self, key: str, data: bytes) -> None:
        if key not in self.objects:
            insort(self._keys, key)
        self.objects[key] = data
        self._modified_ms[key] = self._now_ms()

    def _upload(self, key: str, upload: str) -> _Begun:
        begun = self._uploads.get(upload)
        if begun is None or begun.key != key:
            raise NoSuchUpload(key)
        return begun
