"""What a broker asks of the controller: when it asks again, for how long, and when it must not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.control.command_queue import not_controller
from broker.control.requests import ASK_AGAIN_S, ControllerClient
from broker.control.topics import NewTopic
from broker.net.channel import PeerLost
from protocol.apis import PeerApi
from protocol.errors import ErrorCode, KafkaError
from tests.broker.control.cluster_driver import Site
from tests.sim.loop import SimLoop

REFUSED = PeerLost("nothing listens there", refused=True)
LOST = PeerLost("no answer in time")
NOT_ME = SimpleNamespace(error_code=ErrorCode.not_controller)
DONE = SimpleNamespace(error_code=ErrorCode.none)
RESULTS = SimpleNamespace(topics=())
"""An answer without an error of its own, as that of CreateTopics."""


class Controllers:
    """Stands in for a member and its channels: what each question meets, the last of them for ever."""

    def __init__(self, *meets: object, controllers: Sequence[int] = (7,)) -> None:
        self._meets = list(meets)
        self._controllers = list(controllers)
        self._began_s = asyncio.get_running_loop().time()
        self.channels = self
        self.asked: list[tuple[int, str]] = []
        self.asked_at_s: list[float] = []

    def now_s(self) -> float:
        return asyncio.get_running_loop().time() - self._began_s

    def controller_to_ask(self) -> int:
        found = self._controllers.pop(0) if len(self._controllers) > 1 else self._controllers[0]
        if found < 0:
            raise not_controller()
        return found

    def to(self, node_id: int, purpose: str) -> Controllers:
        self.asked.append((node_id, purpose))
        return self

    async def ask(self, api: int, version: int, fields: object, *, timeout_s: float) -> object:
        self.asked_at_s.append(round(self.now_s(), 3))
        met = self._meets.pop(0) if len(self._meets) > 1 else self._meets[0]
        if isinstance(met, Exception):
            raise met
        return met

    async def question(self, *, again_for_s: float = 0.0) -> object:
        client = ControllerClient(cast(Any, self), cast(Any, None), cast(Any, None))
        return await client.ask(
            PeerApi.ENVELOPE, 0, {}, connection="lane", timeout_s=3.0, again_for_s=again_for_s
        )


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    SimLoop().run(story())


@pytest.mark.parametrize("unheard", [REFUSED, NOT_ME])
@pytest.mark.parametrize("answer", [DONE, RESULTS])
def test_what_was_not_heard_is_asked_again_of_the_controller_of_that_moment(
    unheard: object, answer: object
) -> None:
    async def story() -> None:
        peers = Controllers(unheard, unheard, answer, controllers=(7, 7, 8))
        assert await peers.question(again_for_s=5.0) is answer
        assert peers.asked == [(7, "lane"), (7, "lane"), (8, "lane")]
        assert peers.asked_at_s == [0.0, ASK_AGAIN_S, 2 * ASK_AGAIN_S]

    run(story)


def test_what_may_have_been_heard_is_never_asked_again() -> None:
    async def story() -> None:
        peers = Controllers(LOST)
        with pytest.raises(PeerLost, match="no answer in time"):
            await peers.question(again_for_s=5.0)
        assert len(peers.asked) == 1

    run(story)


@pytest.mark.parametrize(("again_for_s", "times"), [(0.0, 1), (0.3, 3)])
def test_asking_again_ends_when_the_caller_says(again_for_s: float, times: int) -> None:
    async def story() -> None:
        peers = Controllers(REFUSED)
        with pytest.raises(PeerLost) as lost:
            await peers.question(again_for_s=again_for_s)
        assert (lost.value.refused, len(peers.asked)) == (True, times)
        peers = Controllers(NOT_ME)
        assert await peers.question(again_for_s=again_for_s) is NOT_ME
        assert len(peers.asked) == times

    run(story)


def test_any_other_error_is_an_answer() -> None:
    async def story() -> None:
        stale = SimpleNamespace(error_code=ErrorCode.stale_broker_epoch)
        peers = Controllers(stale)
        assert await peers.question(again_for_s=5.0) is stale
        assert len(peers.asked) == 1

    run(story)


def test_without_a_controller_nothing_is_asked() -> None:
    async def story() -> None:
        peers = Controllers(DONE, controllers=(-1,))
        with pytest.raises(KafkaError) as refused:
            await peers.question(again_for_s=5.0)
        assert (refused.value.code, peers.asked) == (ErrorCode.not_controller, [])

    run(story)


def test_a_topic_that_the_controller_created_is_known_here_when_it_is_answered() -> None:
    site = Site()

    async def story() -> None:
        _, member, _ = await site.trio()
        (result,) = await member.requests.create_topics([NewTopic(name="t", partitions=2)])
        assert (result.name, result.error) == ("t", None)
        assert len(member.image.topics["t"].partitions) == 2
        (again,) = await member.requests.create_topics([NewTopic(name="t")])
        assert again.error is not None and again.error.code is ErrorCode.topic_already_exists

    site.run(story())


def test_a_block_of_producer_ids_is_one_brokers_alone() -> None:
    site = Site()

    async def story() -> None:
        blocks = [await member.requests.allocate_producer_ids() for member in await site.trio()]
        assert blocks == [range(1000), range(1000, 2000), range(2000, 3000)]

    site.run(story())


def test_a_topic_that_no_broker_creates_for_itself_is_a_mistake_of_the_caller() -> None:
    site = Site()

    async def story() -> None:
        member = await site.started()
        with pytest.raises(ValueError, match="__share_group_state"):
            await member.requests.ensure_internal("__share_group_state")

    site.run(story())
