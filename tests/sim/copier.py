"""Owns copiers: members of a group that read what is committed, write it elsewhere and commit what they have
read, all in one transaction (consume, transform, produce).

Where a copier begins is what its group has committed, asked for so that no open transaction is passed over;
what its group refuses it aborts, and joins anew. Does not own transactions (transactor.py) nor membership
(workload.py, subscriber.py).

Invariant: each value that is written names the record that it is a copy of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from protocol.errors import ErrorCode
from tests.sim.client import RETRY_S, Lost
from tests.sim.history import Origin, TopicPartition
from tests.sim.transactor import Fenced, TransactionalProducer
from tests.sim.workload import read_commit

AT_ONCE = 12
"""Records of one partition in one transaction, at most."""
LOOK_S = 0.8


class Membership(Protocol):
    """A place in a group, by either protocol."""

    @property
    def group(self) -> str: ...

    @property
    def member_id(self) -> str: ...

    @property
    def generation(self) -> int: ...

    @property
    def owned(self) -> tuple[TopicPartition, ...]: ...

    async def join(self) -> tuple[TopicPartition, ...] | None: ...

    async def heartbeat(self) -> bool: ...


@dataclass(slots=True)
class Read:
    """What one transaction is to copy from one partition, and where it goes on then."""

    tp: TopicPartition
    origins: list[Origin]
    next_offset: int


@dataclass(slots=True)
class Copier:
    """Copies what its group gives it until everything stops."""

    producer: TransactionalProducer
    membership: Membership
    targets: Sequence[TopicPartition]
    abort_share: float = 0.1
    """Of transactions that are aborted although nothing is wrong."""
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    expected: dict[TopicPartition, int] = field(default_factory=dict)

    async def run(self) -> None:
        client, is_known = self.producer.client, False
        while not client.env.stopping:
            try:
                if not is_known:
                    await self.producer.begin_anew()
                    is_known = True
                if await self.membership.join() is not None:
                    await self._copy()
            except Lost:
                await client.pause(RETRY_S)
            except Fenced as problem:
                client.env.loop.trace("fenced", client.name, str(problem))
                self.producer.walk_away()
                is_known = False
                await client.pause(RETRY_S * 10)

    async def _copy(self) -> None:
        """Go on as long as this is a member and its transactions are committed."""
        client, membership = self.producer.client, self.membership
        self.positions.clear()
        while not client.env.stopping and await membership.heartbeat():
            owned = membership.owned
            for tp in set(self.positions) - set(owned):
                del self.positions[tp]
            read = [each for tp in owned if (each := await self._read(tp)) is not None]
            if read and not await self._move(read):
                return
            if not read:
                await client.pause(LOOK_S)

    async def _read(self, tp: TopicPartition) -> Read | None:
        """What comes next, or None when there is nothing now."""
        client = self.producer.client
        if tp not in self.positions:
            committed = await read_commit(client, self.membership.group, tp)
            if committed is None:
                return None
            at = committed.offset if committed.offset >= 0 else await client.first_offset(tp)
            self.positions[tp] = at
        at = self.positions[tp]
        is_seek = self.expected.get(tp) != at
        fetch = await client.fetch(tp, at, max_bytes=1 << 16, max_wait_ms=0, seek=is_seek, is_committed=True)
        if fetch.result != "ok":
            if fetch.error == ErrorCode.offset_out_of_range.name:
                self.positions[tp] = await client.first_offset(tp)
            return None
        if not fetch.batches:
            return None
        self.expected[tp] = end = fetch.batches[-1].next_offset
        origins = [Origin(tp, offset, value) for offset, value in fetch.delivered()]
        if len(origins) > AT_ONCE:
            end = origins[AT_ONCE].offset
        if not origins:
            self.positions[tp] = end  # markers and what was aborted
            return None
        return Read(tp=tp, origins=origins[:AT_ONCE], next_offset=end)

    async def _move(self, read: Sequence[Read]) -> bool:
        """One transaction; whether it was committed."""
        producer, rng = self.producer, self.producer.client.rng

        async def write() -> None:
            rows = [(rng.choice(self.targets), each.origins) for each in read]
            await producer.send(
                [(tp, len(origins)) for tp, origins in rows], [origins for _, origins in rows]
            )
            await producer.send_offsets(
                self.membership.group,
                self.membership.member_id,
                self.membership.generation,
                {each.tp: each.next_offset for each in read},
            )

        if not await producer.ended(write, commits=rng.random() >= self.abort_share):
            return False
        self.positions.update({each.tp: each.next_offset for each in read})
        return True
