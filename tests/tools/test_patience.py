"""Asking again: what passes is waited for, what stays is told at once, and every wait has an end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from protocol.errors import ErrorCode, KafkaError
from tests.sim.loop import SimLoop
from tools.client import Client, RequestFailed
from tools.patience import PAUSE_S, patiently
from tools.tier.reader import ELECTION_S, offset_of


class Cluster:
    """Answers ListOffsets by these errors in turn, the last one for good."""

    def __init__(self, codes: Sequence[ErrorCode]) -> None:
        self.codes = list(codes)
        self.refreshed: list[list[str]] = []

    async def list_offset(self, topic: str, partition: int, timestamp: int) -> tuple[ErrorCode, int, int]:
        code = self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]
        return code, 7, -1

    async def refresh(self, topics: list[str]) -> None:
        self.refreshed.append(topics)


def ask(cluster: Cluster) -> tuple[Any, float]:
    async def main() -> tuple[Any, float]:
        begun = asyncio.get_running_loop().time()
        try:
            answer: Any = await offset_of(cast(Client, cluster), "t", 0, -1)
        except KafkaError as error:
            answer = error.code
        return answer, asyncio.get_running_loop().time() - begun

    return SimLoop().run(main())


def test_a_leader_that_has_just_started_is_waited_for() -> None:
    cluster = Cluster([ErrorCode.offset_not_available, ErrorCode.leader_not_available, ErrorCode.none])
    answer, waited_s = ask(cluster)
    assert answer == 7
    assert waited_s == pytest.approx(2 * PAUSE_S, abs=0.01)
    assert cluster.refreshed == [["t"], ["t"]]


def test_what_stays_is_told_at_once() -> None:
    assert ask(Cluster([ErrorCode.unknown_topic_or_partition]))[0] == ErrorCode.unknown_topic_or_partition


def test_the_wait_has_an_end() -> None:
    answer, waited_s = ask(Cluster([ErrorCode.offset_not_available]))
    assert answer == ErrorCode.offset_not_available
    assert ELECTION_S <= waited_s < ELECTION_S + 2 * PAUSE_S


@pytest.mark.parametrize("is_named", [False, True])
def test_an_unreachable_broker_passes_only_where_that_is_said(is_named: bool) -> None:
    cluster, asked = Cluster([ErrorCode.none]), 0

    async def reach() -> int:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise RequestFailed("connection refused")
        return asked

    async def main() -> int:
        also = (RequestFailed,) if is_named else ()
        return await patiently(cast(Client, cluster), "t", reach, patience_s=5, also=also)

    if is_named:
        assert SimLoop().run(main()) == 3
    else:
        with pytest.raises(RequestFailed):
            SimLoop().run(main())
