"""Questions to transaction coordinators of other brokers: few requests, each answered by its time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from broker.coordinators.transactions.verification import PARTITIONS_MAX, Question, TransactionVerifier
from broker.net.channel import PeerLost
from protocol.errors import ErrorCode, KafkaError
from tests.broker.coordinators.fake_log import settle, turns

ME, OTHER = 1, 2


class Peer:
    """The other broker. It answers once the gate is open; `errors` by transactional id."""

    def __init__(self) -> None:
        self.requests: list[list[dict[str, Any]]] = []
        self.errors: dict[str, ErrorCode] = {}
        self.left_out: set[str] = set()
        self.error = ErrorCode.none
        self.is_lost = False
        self.gate = asyncio.Event()

    def to(self, node_id: int, purpose: str) -> Peer:
        assert (node_id, purpose) == (OTHER, "transactions")
        return self

    async def ask(self, api: Any, version: int, fields: Any, *, timeout_s: float) -> Any:
        assert (api.name, version) == ("ADD_PARTITIONS_TO_TXN", 5)
        asked = fields["transactions"]
        self.requests.append(asked)
        await self.gate.wait()
        if self.is_lost:
            raise PeerLost("gone")
        results = [
            SimpleNamespace(
                transactional_id=each["transactional_id"],
                topic_results=[
                    SimpleNamespace(
                        name=topic["name"],
                        results_by_partition=[
                            SimpleNamespace(
                                partition_index=index,
                                partition_error_code=self.errors.get(
                                    each["transactional_id"], ErrorCode.none
                                ),
                            )
                            for index in topic["partitions"]
                        ],
                    )
                    for topic in each["topics"]
                ],
            )
            for each in asked
            if each["transactional_id"] not in self.left_out
        ]
        return SimpleNamespace(error_code=self.error, results_by_transaction=results)


class Site:
    def __init__(self, leader: int = OTHER, *, has_topic: bool = True) -> None:
        self.peer = Peer()
        self.tasks: set[asyncio.Task[None]] = set()
        partition = SimpleNamespace(leader=leader)
        topic = SimpleNamespace(partitions=[partition])
        brokers = {node: SimpleNamespace(id=node, fenced=False) for node in (ME, OTHER)}
        image: Any = SimpleNamespace(
            topics={"__transaction_state": topic} if has_topic else {},
            brokers=brokers,
            partition=lambda name, index: partition,
        )
        self.verifier = TransactionVerifier(
            node_id=ME,
            image=lambda: image,
            channels=self.peer,  # type: ignore[arg-type]
            coordinator=None,
            spawn=self.spawn,
            turns=turns(),
            timeout_s=lambda: 30.0,
        )

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def ask(
        self,
        transactional_id: str,
        count: int = 1,
        *,
        epoch: int = 0,
        timeout_ms: int = 10_000,
        adds: bool = True,
        maps_abortable: bool = False,
    ) -> asyncio.Task[Any]:
        partitions = [("t", index) for index in range(count)]
        return asyncio.get_running_loop().create_task(
            self.verifier.check(
                Question(
                    transactional_id=transactional_id,
                    producer_id=7,
                    producer_epoch=epoch,
                    partitions=partitions,
                    adds=adds,
                    maps_abortable=maps_abortable,
                ),
                timeout_ms=timeout_ms,
            )
        )


ONE = Question(
    transactional_id="x", producer_id=7, producer_epoch=0, partitions=[("t", 0)], maps_abortable=True
)


@pytest.fixture
def site() -> Callable[..., Site]:
    return Site


async def test_what_comes_while_a_request_is_under_way_shares_the_next(site: Callable[..., Site]) -> None:
    here = site()
    asked = [here.ask("first")]
    await settle()
    asked += [here.ask(f"tx-{n}", n + 1, adds=n % 2 == 0) for n in range(5)]
    await settle()
    assert len(here.peer.requests) == 1
    here.peer.errors["tx-2"] = ErrorCode.producer_fenced
    here.peer.gate.set()
    results = await asyncio.gather(*asked)
    assert [len(request) for request in here.peer.requests] == [1, 5]
    assert results[3] == {("t", index): ErrorCode.invalid_producer_epoch for index in range(3)}
    assert [results[n] for n in (0, 1, 2, 4, 5)] == [{}] * 5
    assert [each["verify_only"] for each in here.peer.requests[1]] == [False, True, False, True, False]
    assert not here.tasks


async def test_a_transaction_stands_once_in_a_request_and_a_request_is_bounded(
    site: Callable[..., Site],
) -> None:
    here = site()
    asked = [here.ask("first")]
    await settle()
    asked += [here.ask("a"), here.ask("a", 2), here.ask("large", PARTITIONS_MAX), here.ask("b")]
    await settle()
    here.peer.gate.set()
    assert await asyncio.gather(*asked) == [{}] * 5
    named = [[each["transactional_id"] for each in request] for request in here.peer.requests]
    assert named == [["first"], ["a", "b"], ["a"], ["large"]]


async def test_no_request_has_more_partitions_than_a_broker_takes(site: Callable[..., Site]) -> None:
    here = site()
    here.peer.gate.set()
    count = 2 * PARTITIONS_MAX + 7
    assert await here.ask("large", count) == {}
    sizes = [
        sum(len(topic["partitions"]) for topic in request[0]["topics"]) for request in here.peer.requests
    ]
    assert sizes == [PARTITIONS_MAX, PARTITIONS_MAX, 7]
    here.peer.errors["large"] = ErrorCode.transaction_abortable
    errors = await here.ask("large", count)
    assert errors == {("t", index): ErrorCode.transaction_abortable for index in range(count)}
    assert not here.tasks


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"is_lost": True}, ErrorCode.network_exception),
        ({"error": ErrorCode.cluster_authorization_failed, "left_out": {"x"}}, ErrorCode.invalid_txn_state),
        ({"left_out": {"x"}}, ErrorCode.network_exception),
        ({"errors": {"x": ErrorCode.concurrent_transactions}}, ErrorCode.concurrent_transactions),
        ({"errors": {"x": ErrorCode.transaction_abortable}}, ErrorCode.invalid_txn_state),
    ],
)
async def test_every_question_is_answered(
    site: Callable[..., Site], answer: dict[str, Any], expected: ErrorCode
) -> None:
    here = site()
    for name, value in answer.items():
        setattr(here.peer, name, value)
    here.peer.gate.set()
    assert await here.ask("x", maps_abortable=True) == {("t", 0): expected}
    assert here.verifier.failures == 1


async def test_a_broker_that_does_not_answer_holds_nobody_past_the_deadline(
    site: Callable[..., Site],
) -> None:
    here = site()
    late = here.ask("x", timeout_ms=1)
    assert await late == {("t", 0): ErrorCode.network_exception}
    behind = here.ask("y", timeout_ms=1)
    assert await behind == {("t", 0): ErrorCode.network_exception}
    here.peer.gate.set()
    await settle()
    assert [len(request) for request in here.peer.requests] == [1]
    assert not here.tasks


@pytest.mark.parametrize("options", [{"has_topic": False}, {"leader": 9}, {"leader": ME}])
async def test_nobody_to_ask(site: Callable[..., Site], options: dict[str, Any]) -> None:
    here = site(**options)
    assert await here.ask("x") == {("t", 0): ErrorCode.coordinator_not_available}


async def test_a_stop_leaves_no_question_open(site: Callable[..., Site]) -> None:
    here = site()
    asked = [here.ask("x"), here.ask("y")]
    await settle()
    (task,) = here.tasks
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert await asyncio.gather(*asked) == [{("t", 0): ErrorCode.network_exception}] * 2


class Local:
    """The coordinator of this broker, which knows its answer at once or has it waited for."""

    def __init__(self, answer: dict[tuple[str, int], ErrorCode] | ErrorCode | None) -> None:
        self.answer = answer

    def verifying(self, *asked: Any) -> Any:
        if self.answer is None:
            return None
        if isinstance(self.answer, ErrorCode):
            raise KafkaError(self.answer)
        return self.work(self.answer)

    def work(self, answer: dict[tuple[str, int], ErrorCode]) -> Any:
        yield
        return answer


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, None),
        ({("t", 0): ErrorCode.none}, {}),
        ({("t", 0): ErrorCode.transaction_abortable}, {("t", 0): ErrorCode.invalid_txn_state}),
        (ErrorCode.not_coordinator, {("t", 0): ErrorCode.not_coordinator}),
        (ErrorCode.producer_fenced, {("t", 0): ErrorCode.invalid_producer_epoch}),
    ],
)
async def test_what_is_known_here_is_told_at_once(
    site: Callable[..., Site], answer: Any, expected: Any
) -> None:
    here = site(leader=ME)
    here.verifier.coordinator = Local(answer)  # type: ignore[assignment]
    assert here.verifier.check_now(ONE) == expected


async def test_another_broker_is_never_asked_at_once(site: Callable[..., Site]) -> None:
    here = site(leader=OTHER)
    here.verifier.coordinator = Local({("t", 0): ErrorCode.none})  # type: ignore[assignment]
    assert here.verifier.check_now(ONE) is None
