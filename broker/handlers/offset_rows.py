"""Partitions that a request about a group's offsets names: which exist, and the row of the answer for each.

Owns: the rows in the order of the request, the error of a partition that does not exist, and where the errors
of the others go once they are known. Does not own: how a topic is named in a version, what is asked about a
partition, nor what a group makes of it (`broker.coordinators.groups.offsets`).
Invariant: every partition that is named has a row, and `wanted` and the rows that wait for an error are the
same partitions in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeAlias, TypeVar

from broker.control.image import TopicImage
from broker.coordinators.groups.offsets import OffsetToCommit
from broker.handlers.results import ROWS_AT_ONCE
from protocol.errors import ErrorCode
from protocol.work import Work

Row: TypeAlias = dict[str, object]
"""One item of a response; its error is set when the coordinator has answered."""
T = TypeVar("T")


class Named(Protocol):
    @property
    def partition_index(self) -> int: ...


class NamedOffset(Named, Protocol):
    @property
    def committed_offset(self) -> int: ...
    @property
    def committed_leader_epoch(self) -> int: ...
    @property
    def committed_metadata(self) -> str | None: ...


NamedT = TypeVar("NamedT", bound=Named)


class OffsetRows(Generic[T]):
    def __init__(self) -> None:
        self.wanted: list[T] = []
        """What is asked about the partitions that exist."""
        self._rows: list[Row] = []

    def add(
        self,
        topic: TopicImage | None,
        partitions: Iterable[NamedT],
        wanted: Callable[[TopicImage, NamedT], T],
        missing: ErrorCode = ErrorCode.unknown_topic_or_partition,
    ) -> Work[list[Row]]:
        """Return the rows of a topic's partitions; those that do not exist have the error `missing`."""
        answered: list[Row] = []
        for one in partitions:
            row: Row = {"partition_index": one.partition_index, "error_code": missing}
            answered.append(row)
            if len(answered) % ROWS_AT_ONCE == 0:
                yield
            if topic is not None and 0 <= one.partition_index < len(topic.partitions):
                self._rows.append(row)
                self.wanted.append(wanted(topic, one))
        return answered

    def set_errors(self, errors: Sequence[ErrorCode]) -> Work[None]:
        """Give each of `wanted` its error, or none."""
        for at, (row, code) in enumerate(zip(self._rows, errors, strict=True), 1):
            row["error_code"] = code
            if at % ROWS_AT_ONCE == 0:
                yield


def to_commit(topic: TopicImage, one: NamedOffset) -> OffsetToCommit:
    return OffsetToCommit(
        topic.name,
        one.partition_index,
        one.committed_offset,
        one.committed_leader_epoch,
        one.committed_metadata,
        topic.id,
    )
