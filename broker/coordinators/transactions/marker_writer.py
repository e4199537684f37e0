"""End-of-transaction markers on the partitions that this broker leads.

Owns: which part of this broker writes the marker of a partition, many at a time, and what is answered for
each. Does not own: which transaction ends how (the transaction coordinator), what a log checks of a marker
(storage), the order of markers among the records of groups (their replicated state), the waits (replicas).
Invariant: a partition is answered without an error only once its marker is committed there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from broker.coordinators.groups.coordinator import OFFSETS_TOPIC
from broker.turns import Turns
from protocol.errors import ErrorCode, KafkaError
from protocol.work import Work, finish
from storage.log import NewMarker

APPENDS_PER_STEP: Final = 4
ROWS_PER_STEP: Final = 64
GROUPS_AT_ONCE: Final = 64
"""Markers of one request on partitions of the offsets topic that are waited for together."""
_NOT_READY: Final = frozenset(
    {
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.not_coordinator,
    }
)
"""Of the group coordinator; a transaction coordinator asks again only for what it knows of partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """The end of one transaction, for partitions led by one broker."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    committed: bool
    transaction_version: int
    partitions: tuple[tuple[str, int], ...]


class Markers(Protocol):
    """Writes markers: `MarkerWriter`, or what stands for it in a test."""

    async def write(self, marker: Marker) -> Mapping[tuple[str, int], ErrorCode]:
        """Return once each partition has its marker on all replicas in sync, or an error."""


class MarkerLogs(Protocol):
    """The partitions of this broker, as far as they concern markers."""

    def check(self, topic: str, index: int, marker: NewMarker) -> object:
        """Raise KafkaError where the marker cannot be written."""

    def stage(self, topic: str, index: int, marker: NewMarker) -> Any:
        """Append the marker in memory; KafkaError where it is refused."""

    def write(self) -> None:
        """Write what is staged."""

    async def committed(self, staged: Sequence[Any], *, timeout_ms: int) -> list[ErrorCode]:
        """Wait until each is on all replicas in sync; return why not, in their order."""


class GroupMarkers(Protocol):
    """The group coordinator, as far as it concerns markers."""

    async def write_marker(self, index: int, marker: NewMarker) -> None:
        """Return once the marker is committed and applied on that partition of the offsets topic."""


class MarkerWriter:
    def __init__(
        self, *, logs: MarkerLogs, groups: GroupMarkers, turns: Turns, timeout_ms: Callable[[], int]
    ) -> None:
        self._logs = logs
        self._groups = groups
        self._turns = turns
        self._timeout_ms = timeout_ms

    async def write(self, marker: Marker) -> Mapping[tuple[str, int], ErrorCode]:
        """Return once each partition has its marker on all replicas in sync, or an error."""
        (errors,) = await self.write_all([marker])
        return errors

    async def write_all(self, markers: Sequence[Marker]) -> list[dict[tuple[str, int], ErrorCode]]:
        """`write` for several at once, in their order."""
        results: list[dict[tuple[str, int], ErrorCode]] = [{} for _ in markers]
        staged = _Staged()
        offsets: list[tuple[int, int]] = []
        work = self._staging(markers, results, staged, offsets)
        if len(markers) == 1 and len(markers[0].partitions) < APPENDS_PER_STEP:
            finish(work)
        else:
            await self._turns.run(work)
        if offsets:
            await asyncio.gather(
                self._wait(results, staged), self._write_to_groups(markers, results, offsets)
            )
        elif staged.places:
            await self._wait(results, staged)
        return results

    async def _write_to_groups(
        self,
        markers: Sequence[Marker],
        results: list[dict[tuple[str, int], ErrorCode]],
        offsets: list[tuple[int, int]],
    ) -> None:
        for first in range(0, len(offsets), GROUPS_AT_ONCE):
            some = offsets[first : first + GROUPS_AT_ONCE]
            await asyncio.gather(
                *(self._write_to_group(_new(markers[at]), index, results[at]) for at, index in some)
            )

    def _staging(
        self,
        markers: Sequence[Marker],
        results: list[dict[tuple[str, int], ErrorCode]],
        staged: _Staged,
        offsets: list[tuple[int, int]],
    ) -> Work[None]:
        logs = self._logs
        done = 0
        for at, marker in enumerate(markers):
            errors = results[at]
            new = _new(marker)
            done += 1
            if done % APPENDS_PER_STEP == 0:
                logs.write()
                yield
            for name in marker.partitions:
                if name in errors:
                    continue
                done += 1
                if done % APPENDS_PER_STEP == 0:
                    logs.write()
                    yield
                errors[name] = ErrorCode.none
                topic, index = name
                try:
                    if topic == OFFSETS_TOPIC:
                        logs.check(topic, index, new)
                        offsets.append((at, index))
                    else:
                        staged.add(at, name, logs.stage(topic, index, new))
                except KafkaError as error:
                    errors[name] = error.code
        logs.write()

    async def _wait(self, results: list[dict[tuple[str, int], ErrorCode]], staged: _Staged) -> None:
        codes = await self._logs.committed(staged.stages, timeout_ms=self._timeout_ms())
        work = _set(results, staged.places, codes)
        if len(codes) < ROWS_PER_STEP:
            finish(work)
        else:
            await self._turns.run(work)

    async def _write_to_group(
        self, marker: NewMarker, index: int, errors: dict[tuple[str, int], ErrorCode]
    ) -> None:
        try:
            async with asyncio.timeout(self._timeout_ms() / 1000):
                await self._groups.write_marker(index, marker)
        except TimeoutError:
            errors[OFFSETS_TOPIC, index] = ErrorCode.request_timed_out
        except KafkaError as error:
            code = ErrorCode.not_leader_or_follower if error.code in _NOT_READY else error.code
            errors[OFFSETS_TOPIC, index] = code


class _Staged:
    """Markers that were appended: the number of each in its request with its partition, and the append."""

    __slots__ = ("places", "stages")

    def __init__(self) -> None:
        self.places: list[tuple[int, tuple[str, int]]] = []
        self.stages: list[Any] = []

    def add(self, at: int, name: tuple[str, int], stage: Any) -> None:
        self.places.append((at, name))
        self.stages.append(stage)


def _set(
    results: list[dict[tuple[str, int], ErrorCode]],
    places: list[tuple[int, tuple[str, int]]],
    codes: list[ErrorCode],
) -> Work[None]:
    for done, ((at, name), code) in enumerate(zip(places, codes, strict=True), 1):
        results[at][name] = code
        if done % ROWS_PER_STEP == 0:
            yield


def _new(marker: Marker) -> NewMarker:
    return NewMarker(
        marker.producer_id,
        marker.producer_epoch,
        marker.coordinator_epoch,
        marker.committed,
        marker.transaction_version,
    )
