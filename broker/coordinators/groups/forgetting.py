"""Forgetting the offsets of deleted topics, on every partition of `__consumer_offsets` of this broker.

Owns: which deletions each partition has still to hear of, and telling it again where a reload or its log came
in between. Does not own: which offsets go (`groups.offsets.ForgetTopics`), the partitions' lives
(`broker.coordinators.topic_coordinator`).
Invariant: a deletion is told to a partition until it has been decided there, this broker coordinates it no
longer, or `TELL_WITHIN_S` are over; what is left then goes with the next look for offsets whose time is over
(`groups.offsets.ExpireOffsets`), which finds that the topic is gone. One task at a time tells a partition.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Final, TypeAlias
from uuid import UUID

from broker.coordinators.groups.machine import GroupMachine
from broker.coordinators.groups.offsets import ForgetTopics
from broker.coordinators.replicated_state import ReplicatedState, Status
from broker.coordinators.topic_coordinator import portions
from protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

PAUSE_S: Final = 0.1
PAUSE_MAX_S: Final = 30.0
TELL_WITHIN_S: Final = 300.0
"""From the first deletion that one task tells of: loading, refusals and answers together."""

_State: TypeAlias = ReplicatedState[GroupMachine]


class Forgetting:
    def __init__(self) -> None:
        self._left: dict[_State, dict[UUID, str]] = {}
        """What each partition has still to hear of, by the id of the topic."""
        self._telling: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Forgetting {sum(map(len, self._left.values()))} topics on {len(self._left)} partitions>"

    def begin(
        self,
        topics: Mapping[UUID, str],
        states: Iterable[_State],
        create_task: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        for state in states:
            left = self._left.get(state)
            if left is not None:
                left.update(topics)
            else:
                self._left[state] = dict(topics)
                task = create_task(self._tell(state))
                self._telling.add(task)
                task.add_done_callback(self._telling.discard)

    def stop(self) -> None:
        """Tell nothing more."""
        for task in self._telling:
            task.cancel()

    async def _tell(self, state: _State) -> None:
        left = self._left[state]
        try:
            async with asyncio.timeout(TELL_WITHIN_S):
                await _tell_all(state, left)
        except TimeoutError:
            logger.warning(
                "%s-%d: offsets of %d deleted topics are left to the next look for expired ones",
                state.topic,
                state.index,
                len(left),
            )
        finally:
            del self._left[state]


async def _tell_all(state: _State, left: dict[UUID, str]) -> None:
    """Take from `left` what the partition has heard, until that is all, or it is coordinated here no more."""
    pause_s = PAUSE_S
    while left:
        await state.wait_settled()
        if state.status is Status.CLOSED:
            return
        some = _each_name_once(left)
        try:
            await _forget(state, some)
        except KafkaError as error:
            if error.code is not ErrorCode.coordinator_load_in_progress:
                logger.warning(
                    "%s-%d: offsets of deleted topics are not forgotten yet: %s",
                    state.topic,
                    state.index,
                    error,
                )
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
        else:
            for topic_id in some.values():
                del left[topic_id]


def _each_name_once(topics: Mapping[UUID, str]) -> dict[str, UUID]:
    """Return ids by name; of topics that had the same name after each other, the first."""
    found: dict[str, UUID] = {}
    for topic_id, name in topics.items():
        found.setdefault(name, topic_id)
    return found


async def _forget(state: _State, topics: Mapping[str, UUID]) -> None:
    durable = state.machine.durable
    for group_ids in portions({**durable.offsets, **dict.fromkeys(durable.pending_groups())}):
        await state.ask(ForgetTopics(topics=topics, group_ids=group_ids))
