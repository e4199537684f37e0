"""Asking a cluster again while an election or a restart is under way.

Owns: which errors pass by themselves, and how often to ask. Does not own: how long that is worth, or what is
said in the end (callers). Invariant: the last answer is what the caller gets, never a wait without an end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from protocol.errors import ErrorCode, KafkaError
from tools.client import Client, RequestFailed

T = TypeVar("T")

PAUSE_S: Final = 0.2
PASSING: Final = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.replica_not_available,
        ErrorCode.kafka_storage_error,
        ErrorCode.offset_not_available,
        ErrorCode.request_timed_out,
        ErrorCode.network_exception,
        ErrorCode.unknown_topic_id,
        ErrorCode.coordinator_not_available,
    }
)
"""What ends by itself when a leader is elected."""


async def patiently(
    client: Client,
    topic: str,
    ask: Callable[[], Awaitable[T]],
    *,
    patience_s: float,
    also: tuple[type[Exception], ...] = (),
) -> T:
    """Ask until it is answered, for `patience_s` at most; an error that stays is raised at once. `also` are
    errors which pass besides Kafka's.
    """
    time = asyncio.get_running_loop().time
    ends_s = time() + patience_s
    passing: tuple[type[Exception], ...] = (KafkaError, *also)
    while True:
        try:
            return await ask()
        except passing as error:
            if (isinstance(error, KafkaError) and error.code not in PASSING) or time() > ends_s:
                raise
        await asyncio.sleep(PAUSE_S)
        try:
            await client.refresh([topic])
        except RequestFailed:
            continue  # told by the next attempt
