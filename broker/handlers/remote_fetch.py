"""The wait of a Fetch for what the tier holds.

Owns: starting all reads of one Fetch at once, ending them, answering with what is there. Does not own: what
is read (broker.replicas.tier_reads), which partitions want it (broker.replicas.read), packing
(fetch_response). Invariant: the Fetch is answered once: when all reads have ended, when its time is over, or
when one of its partitions is lost; what is not there by then is empty and no error. Its reads end with it,
but not what they ask the store for: that stays for the next Fetch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeAlias

from broker.handlers.fetch_response import FetchResponse
from broker.handlers.hang_up import or_hang_up
from broker.net.connection import AnswerSlot, Connection
from broker.replicas.fetch_sessions import FetchTurn
from broker.replicas.partition import Partition
from broker.replicas.purgatory import Purgatory, Waiter
from broker.replicas.read import ClientReader, FetchPass, RemoteWant
from broker.replicas.tier_reads import TierReads
from protocol.errors import ErrorCode
from protocol.primitives import ROWS_AT_ONCE

logger = logging.getLogger(__name__)

AnswerLong: TypeAlias = Callable[
    [Connection, FetchTurn, int, int, FetchPass, AnswerSlot], Coroutine[Any, Any, None]
]


class RemoteFetches:
    """Makes the waits for the tier, and what they share."""

    def __init__(
        self,
        *,
        tier: TierReads,
        reader: ClientReader,
        respond: FetchResponse,
        purgatory: Purgatory,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        answer_long: AnswerLong,
    ) -> None:
        """`answer_long` answers a Fetch of many partitions, in turns of the loop."""
        self._answer_long = answer_long
        self.tier: Final = tier
        self.reader: Final = reader
        self.respond: Final = respond.respond
        self._purgatory = purgatory
        self._spawn = spawn

    def wait(
        self,
        connection: Connection,
        turn: FetchTurn,
        version: int,
        correlation_id: int,
        fetched: FetchPass,
        slot: AnswerSlot,
    ) -> None:
        """Answer into the slot once what is wanted from the tier is there."""
        assert fetched.wants is not None
        wait = RemoteFetchWait(self, connection, turn, version, correlation_id, fetched, fetched.wants, slot)
        self._purgatory.watch(wait, self.tier.fetch_wait_s())
        self._spawn(wait.read())

    def answer(
        self,
        connection: Connection,
        turn: FetchTurn,
        version: int,
        correlation_id: int,
        fetched: FetchPass,
        slot: AnswerSlot,
    ) -> None:
        """Answer into the slot with what is there."""
        if len(fetched.reads) > ROWS_AT_ONCE:
            answering = self._answer_long(connection, turn, version, correlation_id, fetched, slot)
            self._spawn(or_hang_up(connection, answering, "a Fetch from the tier", logger))
            return
        connection.answer(slot, self.respond(connection, turn, version, correlation_id, fetched))
        connection.resume()


class RemoteFetchWait(Waiter):
    """Keeps what the first pass read, local slices with their files; stands at the partitions it reads from
    the tier, to hear when one is lost."""

    __slots__ = (
        "_connection",
        "_correlation_id",
        "_fetched",
        "_fetches",
        "_partitions",
        "_slot",
        "_task",
        "_turn",
        "_version",
        "_wants",
    )

    def __init__(
        self,
        fetches: RemoteFetches,
        connection: Connection,
        turn: FetchTurn,
        version: int,
        correlation_id: int,
        fetched: FetchPass,
        wants: Sequence[RemoteWant],
        slot: AnswerSlot,
    ) -> None:
        super().__init__()
        self._fetches = fetches
        self._connection = connection
        self._turn = turn
        self._version = version
        self._correlation_id = correlation_id
        self._fetched = fetched
        self._wants = wants
        self._slot = slot
        self._task: asyncio.Task[None] | None = None
        self._partitions: list[Partition] = [want.partition for want in wants]
        connection.waiter = self
        for partition in self._partitions:
            partition.data_waiters[self] = None

    async def read(self) -> None:
        """Read everything at once, then answer, unless the wait has ended before."""
        if self.done:
            return
        self._task = asyncio.current_task()
        try:
            if len(self._wants) == 1:
                await self._fetches.tier.fill(self._wants[0], self._version)
            else:
                async with asyncio.TaskGroup() as group:
                    for want in self._wants:
                        group.create_task(self._fetches.tier.fill(want, self._version))
        except asyncio.CancelledError:
            if not self.done:  # the broker stops
                self._end()
                self._connection.close()
            raise
        except Exception as error:
            self._task = None
            if not self.done:
                self.broke(error)
            return
        self._task = None
        if not self.done:
            try:
                self._answer()
            except Exception as error:
                self.broke(error)

    def poke(self) -> None:
        lost = [want for want in self._wants if not self._fetches.reader.look_again(want, self._version)]
        if lost:
            self._answer()

    def expired(self) -> None:
        self._fetches.tier.expired += 1
        self._answer()

    def abandoned(self) -> None:
        self._end()

    def broke(self, error: Exception) -> None:
        self._end()
        logger.error("a Fetch from the tier failed", exc_info=error)
        self._connection.close("its Fetch failed")

    def _answer(self) -> None:
        self._end()
        connection, session = self._connection, self._turn.session
        if session is not None and session.epoch == self._turn.epoch:
            # a session asks for those in front first, and only for so many in the tier at once
            failed = [want.read.wanted for want in self._wants if want.read.error is not ErrorCode.none]
            session.to_back(failed)
        self._fetches.answer(
            connection, self._turn, self._version, self._correlation_id, self._fetched, self._slot
        )

    def _end(self) -> None:
        self.finish()
        for partition in self._partitions:
            partition.data_waits_no_more(self)
        self._partitions = []
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
