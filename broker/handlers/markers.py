"""WriteTxnMarkers: what a transaction coordinator, or an operator's tool, has written at the end of
transactions.

Owns: the request as markers, the answer for each partition. Does not own: writing them (the marker writer).
Invariant: every partition that is named is answered, once for each producer id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from broker.coordinators.transactions.marker_writer import Marker, MarkerWriter
from broker.handlers.results import ROWS_AT_ONCE
from broker.turns import Turns
from protocol.apis import Api
from protocol.codec import Fields
from protocol.errors import ErrorCode
from protocol.work import Work

if TYPE_CHECKING:
    from broker.handlers.dispatch import Context, Handler
    from protocol.requests.write_txn_markers import WriteTxnMarkersRequest


class MarkerHandlers:
    def __init__(self, *, writer: MarkerWriter, turns: Turns) -> None:
        self._writer = writer
        self._turns = turns

    def routes(self) -> Mapping[int, Handler]:
        return {Api.WRITE_TXN_MARKERS: self.write_txn_markers}

    async def write_txn_markers(self, ctx: Context, request: WriteTxnMarkersRequest) -> Fields:
        markers = await self._turns.run(_markers(request))
        results = await self._writer.write_all(markers)
        rows = await self._turns.run(_answered(markers, results))
        return {"markers": rows}


def _markers(request: WriteTxnMarkersRequest) -> Work[list[Marker]]:
    markers = []
    for each in request.markers:
        partitions: list[tuple[str, int]] = []
        for topic in each.topics:
            for at in range(0, len(topic.partition_indexes), ROWS_AT_ONCE):
                some = topic.partition_indexes[at : at + ROWS_AT_ONCE]
                partitions += [(topic.name, index) for index in some]
                yield
        markers.append(
            Marker(
                producer_id=each.producer_id,
                producer_epoch=each.producer_epoch,
                coordinator_epoch=each.coordinator_epoch,
                committed=each.transaction_result,
                transaction_version=each.transaction_version,
                partitions=tuple(partitions),
            )
        )
    return markers


def _answered(
    markers: Iterable[Marker], results: Iterable[Mapping[tuple[str, int], ErrorCode]]
) -> Work[list[Fields]]:
    """A row for each producer id: of several markers for one, the last says what a partition is answered."""
    producers: dict[int, dict[str, dict[int, ErrorCode]]] = {}
    for marker, errors in zip(markers, results, strict=True):
        topics = producers.setdefault(marker.producer_id, {})
        for at, ((topic, index), code) in enumerate(errors.items(), 1):
            topics.setdefault(topic, {})[index] = code
            if at % ROWS_AT_ONCE == 0:
                yield
    rows: list[Fields] = []
    for producer_id, topics in producers.items():
        answered: list[Fields] = []
        for name, partitions in topics.items():
            codes: list[Fields] = []
            for index, code in partitions.items():
                codes.append({"partition_index": index, "error_code": code})
                if len(codes) % ROWS_AT_ONCE == 0:
                    yield
            answered.append({"name": name, "partitions": codes})
            yield
        rows.append({"producer_id": producer_id, "topics": answered})
    return rows
