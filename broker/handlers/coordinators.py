"""FindCoordinator: which broker coordinates a group or a transactional id.

Owns: the kinds of coordinators, and asking once for all ids of one partition. Does not own: where a
coordinator is (`broker.coordinators.topic_coordinator`).
Invariant: an error of one id stays with that id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from broker.handlers.results import ROWS_AT_ONCE
from protocol.apis import Api
from protocol.codec import Fields
from protocol.errors import ErrorCode, KafkaError
from protocol.work import Work

if TYPE_CHECKING:
    from broker.control.cluster import Cluster
    from broker.coordinators.topic_coordinator import TopicCoordinator
    from broker.handlers.dispatch import Context, Handler
    from broker.turns import Turns
    from protocol.requests.find_coordinator import FindCoordinatorRequest

_LONG_ID: Final = 1_000
"""An id's partition is found by a walk over it: one so long is a step of its own."""
GROUP: Final = 0
TRANSACTION: Final = 1


class CoordinatorHandlers:
    def __init__(
        self,
        *,
        groups: TopicCoordinator[Any],
        transactions: TopicCoordinator[Any],
        cluster: Cluster,
        turns: Turns,
    ) -> None:
        self._kinds = {GROUP: groups, TRANSACTION: transactions}
        self._cluster = cluster
        self._turns = turns

    def routes(self) -> Mapping[int, Handler]:
        return {Api.FIND_COORDINATOR: self.find_coordinator}

    async def find_coordinator(self, ctx: Context, request: FindCoordinatorRequest) -> Fields:
        if self._cluster.has_lost_peer():
            await self._cluster.wait_doubt_over()
        key_type = request.key_type
        if ctx.api_version < 4:
            return {
                "throttle_time": 0,
                **await self._coordinator_of(ctx, key_type, request.key, none_text="NONE"),
            }
        # One lookup for each partition, all together: each may wait until the topic is created and its
        # partition loaded.
        by_partition = await self._turns.run(
            sorted_by_partition(self._partition_for(key_type), request.coordinator_keys)
        )
        answers = await asyncio.gather(
            *(self._coordinator_of(ctx, key_type, keys[0], none_text="") for keys in by_partition.values())
        )
        found = await self._turns.run(_found(by_partition.values(), answers))
        rows = await self._turns.run(_rows_of(found, request.coordinator_keys))
        return {"throttle_time": 0, "coordinators": rows}

    def _partition_for(self, key_type: int) -> Callable[[str], int]:
        coordinator = self._kinds.get(key_type)
        return (lambda key: 0) if coordinator is None else coordinator.partition_for

    async def _coordinator_of(self, ctx: Context, key_type: int, key: str, *, none_text: str) -> Fields:
        try:
            coordinator = self._kinds.get(key_type)
            if coordinator is None:
                raise KafkaError(ErrorCode.invalid_request, f"no coordinator of type {key_type}")
            node_id, endpoint = await coordinator.find(key, ctx.connection.listener)
        except KafkaError as error:
            return {
                "error_code": error.code,
                "error_message": error.message or "The coordinator is not available.",
                "node_id": -1,
                "host": "",
                "port": -1,
            }
        return {
            "error_code": ErrorCode.none,
            "error_message": none_text,
            "node_id": node_id,
            "host": endpoint.host,
            "port": endpoint.port,
        }


def sorted_by_partition(
    partition_for: Callable[[str], int], keys: Sequence[str]
) -> Work[dict[int, list[str]]]:
    """Return the ids of each partition, each once."""
    sorted_out: dict[int, list[str]] = {}
    seen: set[str] = set()
    for at, key in enumerate(keys, 1):
        if key not in seen:
            seen.add(key)
            sorted_out.setdefault(partition_for(key), []).append(key)
        if len(key) > _LONG_ID or at % ROWS_AT_ONCE == 0:
            yield
    return sorted_out


def _found(asked: Iterable[list[str]], answers: Iterable[Fields]) -> Work[dict[str, Fields]]:
    found: dict[str, Fields] = {}
    for keys, answer in zip(asked, answers, strict=True):
        for key in keys:
            found[key] = answer
            if len(found) % ROWS_AT_ONCE == 0:
                yield
    return found


def _rows_of(found: Mapping[str, Fields], keys: Sequence[str]) -> Work[list[Fields]]:
    rows: list[Fields] = []
    for key in keys:
        rows.append({"key": key, **found[key]})
        if len(rows) % ROWS_AT_ONCE == 0:
            yield
    return rows
