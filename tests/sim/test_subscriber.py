"""The member of a group that the server assigns says what a stock client says, and notes it; told what to do
by a script in place of brokers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from protocol.errors import ErrorCode
from tests.sim.client import Lost
from tests.sim.history import History
from tests.sim.subscriber import Subscriber

TOPIC = UUID(int=5)
T, U = ("t", 0), ("t", 1)
OK = ErrorCode.none


def told(epoch: int, *partitions: int, code: ErrorCode = OK, is_new: bool = True) -> SimpleNamespace:
    rows = [SimpleNamespace(topic_id=TOPIC, partitions=partitions)] if partitions else []
    return SimpleNamespace(
        error_code=code,
        member_epoch=epoch,
        member_id=None,
        assignment=SimpleNamespace(topic_partitions=rows) if is_new else None,
    )


class Script:
    """A client whose heartbeats are answered from a list; None for no answer."""

    name = "a"

    def __init__(self, *answers: SimpleNamespace | None) -> None:
        self.answers = list(answers)
        self.asked: list[Mapping[str, Any]] = []
        self.rng = random.Random(0)
        self.now = 0.0
        self.topic_names: dict[UUID, str] = {}
        self.process = SimpleNamespace(on_death=[])
        self.history = History()
        self.env = SimpleNamespace(history=self.history, loop=SimpleNamespace(trace=lambda *_: None))

    async def line_to_coordinator(self, key: str) -> None: ...

    async def find_coordinator(self, key: str) -> None: ...

    async def refresh(self, topics: Sequence[str]) -> None:
        self.topic_names[TOPIC] = "t"

    async def pause(self, seconds: float) -> None:
        self.now += seconds

    async def ask(self, api: object, fields: Mapping[str, Any], *, line: object) -> SimpleNamespace:
        self.asked.append(fields)
        self.now += 1.0
        answer = self.answers.pop(0)
        if answer is None:
            raise Lost("no answer")
        return answer

    def said(self, number: int) -> tuple[int, list[int]]:
        """The epoch and the partitions of a heartbeat."""
        fields = self.asked[number]
        owned = [index for row in fields["topic_partitions"] for index in row["partitions"]]
        return fields["member_epoch"], owned


def member_of(script: Script, **given: Any) -> Subscriber:
    return Subscriber(client=script, group="g", topics=("t",), **given)  # type: ignore[arg-type]


def test_it_joins_takes_what_it_is_told_and_gives_it_up_before_it_says_so() -> None:
    script = Script(told(1, 0, 1), told(1, 0), told(2, 0), told(2, is_new=False))
    member = member_of(script)

    async def work() -> None:
        assert await member.join() == (T, U)
        assert await member.heartbeat()
        assert member.owned == (T,)
        assert await member.heartbeat() and await member.heartbeat()

    asyncio.run(work())
    assert [script.said(number) for number in range(4)] == [(0, []), (1, [0, 1]), (1, [0]), (2, [0])]
    assert [fields["subscribed_topic_names"] for fields in script.asked] == [["t"], None, None, None]
    beats = script.history.beats
    assert [beat.given for beat in beats] == [(T, U), (T,), (T,), None]
    assert [beat.claimed for beat in beats] == [(), (T, U), (T,), (T,)]
    assert [(beat.sent_epoch, beat.epoch) for beat in beats] == [(0, 1), (1, 1), (1, 2), (2, 2)]


@pytest.mark.parametrize("code", [ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch])
def test_who_is_no_member_any_more_owns_nothing_and_joins_anew(code: ErrorCode) -> None:
    script = Script(told(1, 0), told(0, code=code), told(5, 1))
    member = member_of(script)

    async def work() -> None:
        assert await member.join() == (T,)
        assert not await member.heartbeat()
        assert (member.epoch, member.owned) == (0, ())
        assert await member.join() == (U,)

    asyncio.run(work())
    assert script.said(2) == (0, [])
    assert [beat.result for beat in script.history.beats] == ["ok", "fail", "ok"]


def test_after_a_lost_answer_it_says_everything_again() -> None:
    script = Script(told(1, 0), None, told(1, is_new=False))
    member = member_of(script)

    async def work() -> None:
        await member.join()
        with pytest.raises(Lost):
            await member.heartbeat()
        assert await member.heartbeat()

    asyncio.run(work())
    assert [fields["subscribed_topic_names"] for fields in script.asked] == [["t"], None, ["t"]]
    assert [beat.result for beat in script.history.beats] == ["ok", "unknown", "ok"]


@pytest.mark.parametrize(("for_now", "epoch"), [(False, -1), (True, -2)])
def test_it_leaves_for_good_or_for_now(for_now: bool, epoch: int) -> None:
    script = Script(told(1, 0), told(epoch, is_new=False))
    member = member_of(script, instance="i")

    async def work() -> None:
        await member.join()
        await member.leave(for_now=for_now)

    asyncio.run(work())
    assert script.said(1) == (epoch, [])
    assert (member.epoch, member.owned) == (0, ())
