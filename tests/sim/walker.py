"""Owns a client whose records are walked: each request writes to several partitions, small and large batches,
with acks=all, and its answer is waited for as long as a walk may be held.

A large batch is packed anew by the broker in turns of the loop, so that between the append to one partition
and that to the next anything may happen: the first may have another leader by then. Does not own the ordinary
producers (workload.py).

Invariant: each value is sent once; a walker which dies leaves what it had sent in the history as unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from protocol import records
from protocol.apis import Api
from tests.sim.client import STALE_METADATA, Line, Lost, SimClient
from tests.sim.history import LARGE, Send, TopicPartition, classify, payload
from tests.sim.workload import QUIET_LOOK_S

ANSWER_S = 40.0
"""Longer than a hold lasts: a client that had hung up would never see a wrong answer."""
AT_ONCE_MAX = 3
LARGE_FIRST_CHANCE = 0.3


@dataclass(slots=True)
class Walker:
    client: SimClient
    number: int
    partitions: Sequence[TopicPartition]
    requests: int
    pause_s: float
    next_value: int = 0
    unsettled: list[Send] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.client.process.on_death.append(self._died)

    def _died(self, power: bool) -> None:
        """Record what is under way: nobody will learn what became of it."""
        for send in self.unsettled:
            self._record(send, done=self.client.now)

    async def run(self) -> None:
        sent = 0
        while sent < self.requests:
            if self.client.env.is_quiet:
                await self.client.pause(QUIET_LOOK_S)
                continue
            await self._produce()
            sent += 1
            await self.client.pause(self.pause_s)

    async def _produce(self) -> None:
        """Write at once to partitions of one leader, or to some which may have others."""
        client, rng = self.client, self.client.rng
        first = rng.choice(self.partitions)
        line = await client.line_to(first)
        leader, _ = client.leaders[first]
        others = [tp for tp in self.partitions if tp != first]
        others = [tp for tp in others if client.leaders.get(tp, (-1, -1))[0] == leader] or others
        chosen = [first, *rng.sample(others, min(len(others), rng.randrange(1, AT_ONCE_MAX)))]
        is_large = {tp: tp != first or rng.random() < LARGE_FIRST_CHANCE for tp in chosen}
        self.unsettled = [self._next_send(tp, line, is_large=is_large[tp]) for tp in chosen]
        future = line.ask(Api.PRODUCE, client.versions[Api.PRODUCE], self._fields())
        try:
            answer = await client.answer(line, future, timeout_s=ANSWER_S)
        except Lost as lost:
            for send in self.unsettled:
                client.forget(send.tp)
                self._record(replace(send, error=str(lost)), done=client.now)
        else:
            self._settle(answer)
        self.unsettled = []

    def _next_send(self, tp: TopicPartition, line: Line, *, is_large: bool) -> Send:
        value = (LARGE if is_large else 0) | (self.number << 40) | self.next_value
        self.next_value += 1
        return Send(
            client=self.client.name,
            connection=line.number,
            tp=tp,
            values=(value,),
            acks=-1,
            invoked=self.client.now,
            done=self.client.now,
            result="unknown",
            node=line.node,
            life=line.life,
            asked=self.client.now,
        )

    def _fields(self) -> dict[str, Any]:
        now_ms = self.client.env.now_ms()
        topics: dict[str, list[dict[str, Any]]] = {}
        for send in self.unsettled:
            data = records.build_batch([(None, payload(value), (), now_ms) for value in send.values])
            rows = topics.setdefault(send.tp[0], [])
            rows.append({"index": send.tp[1], "records": bytes(data)})
        topic_data = [{"name": name, "partition_data": rows} for name, rows in topics.items()]
        return {"transactional_id": None, "acks": -1, "timeout": 2000, "topic_data": topic_data}

    def _settle(self, answer: Any) -> None:
        client = self.client
        found = {
            (topic.name, row.index): row for topic in answer.responses for row in topic.partition_responses
        }
        for send in self.unsettled:
            row = found[send.tp]
            result = classify(row.error_code)
            is_ok = result == "ok"
            settled = replace(
                send,
                result=result,
                error="" if is_ok else row.error_code.name,
                base_offset=int(row.base_offset) if is_ok else -1,
                ends=client.env.ends(send.tp) if is_ok else (),
            )
            self._record(settled, done=client.now)
            if row.error_code in STALE_METADATA:
                client.take_hint(send.tp, answer, row)

    def _record(self, send: Send, *, done: float) -> None:
        env = self.client.env
        env.loop.trace("walked", send.client, send.tp, send.values, send.result, send.base_offset)
        env.history.sends.append(replace(send, done=done))
