"""A request that is answered later and cannot be: its connection is closed, whatever the reason."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest

from broker.handlers.hang_up import or_hang_up
from protocol.errors import MalformedRequest

logger = logging.getLogger(__name__)


class Closed:
    """A connection that notes why it was closed."""

    def __init__(self) -> None:
        self.reasons: list[str | None] = []

    def close(self, reason: str | None = None) -> None:
        self.reasons.append(reason)


async def failing(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "reason", "logged"),
    [
        (MalformedRequest("cut short"), "cut short", []),
        (ValueError("a bug"), "a Test failed", ["a Test failed"]),
    ],
)
async def test_what_fails_closes_its_connection(
    error: Exception, reason: str, logged: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    connection = Closed()
    await or_hang_up(cast(Any, connection), failing(error), "a Test", logger)
    assert connection.reasons == [reason]
    assert caplog.messages == logged


async def test_what_is_stopped_closes_its_connection_and_ends() -> None:
    connection = Closed()
    waiting = asyncio.get_running_loop().create_future()

    async def answering() -> None:
        await waiting

    task = asyncio.create_task(or_hang_up(cast(Any, connection), answering(), "a Test", logger))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert connection.reasons == [None]


async def test_what_is_answered_leaves_its_connection_open() -> None:
    connection = Closed()

    async def answering() -> None:
        return

    await or_hang_up(cast(Any, connection), answering(), "a Test", logger)
    assert connection.reasons == []
