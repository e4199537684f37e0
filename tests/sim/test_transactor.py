"""The producer with transactions asks for what a stock client asks, in its order, and notes what it could
know; told what to do by a script in place of brokers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.apis import Api
from protocol.errors import ErrorCode
from tests.sim.client import Lost
from tests.sim.history import History
from tests.sim.transactor import FIRST, SECOND, Fenced, MustAbort, TransactionalProducer

T, U = ("t", 0), ("t", 1)
OK = ErrorCode.none
Said = ErrorCode | type[Lost]


class Line:
    number = node = life = 1

    def __init__(self, script: Script) -> None:
        self._script = script

    def ask(self, api: Api, version: int, fields: Mapping[str, Any]) -> tuple[Api, Mapping[str, Any]]:
        return api, fields


class Script:
    """A client whose questions are answered from a list; what is not in it is answered well."""

    name = "a"

    def __init__(self, *said: tuple[Api, Said]) -> None:
        self.said = list(said)
        self.asked: list[tuple[Api, Mapping[str, Any]]] = []
        self.rng = random.Random(0)
        self.now = 0.0
        self.coordinators: dict[tuple[int, str], tuple[str, int]] = {}
        self.process = SimpleNamespace(on_death=[])
        self.history = History()
        self.env = SimpleNamespace(
            history=self.history,
            loop=SimpleNamespace(trace=lambda *_: None),
            now_ms=lambda: 0,
            ends=lambda _: (),
        )
        self.epoch = 0

    async def line_to_coordinator(self, key: str, kind: int = 0) -> Line:
        return Line(self)

    async def line_to(self, tp: object) -> Line:
        return Line(self)

    async def pause(self, seconds: float) -> None:
        self.now += seconds

    def forget(self, tp: object) -> None:
        pass

    def take_hint(self, tp: object, answer: object, row: object) -> None:
        pass

    async def answer(self, line: Line, asked: tuple[Api, Mapping[str, Any]]) -> Any:
        self.asked.append(asked)
        self.now += 1.0
        code: Said = OK
        if self.said and self.said[0][0] is asked[0]:
            code = self.said.pop(0)[1]
        if not isinstance(code, ErrorCode):
            raise code
        self.epoch += asked[0] in (Api.INIT_PRODUCER_ID, Api.END_TXN)
        row = SimpleNamespace(error_code=code, partition_error_code=code, base_offset=0)
        row.producer_id, row.producer_epoch = 7, self.epoch
        row.partitions = row.results_by_partition = row.partition_responses = [row]
        row.topics = row.results_by_topic_v3_and_below = row.responses = [row]
        return row

    @property
    def apis(self) -> list[str]:
        return [api.name for api, _ in self.asked]


def producer_of(script: Script, version: int) -> TransactionalProducer:
    return TransactionalProducer(
        client=script,  # type: ignore[arg-type]
        number=1,
        transactional_id="x",
        timeout_ms=1000,
        version=version,
    )


def run(work: Coroutine[Any, Any, object]) -> object:
    return asyncio.run(work)


async def one(producer: TransactionalProducer, *, commits: bool = True) -> bool:
    await producer.begin_anew()

    async def work() -> None:
        await producer.send([(T, 1), (U, 2)])
        await producer.send([(T, 1)])
        await producer.send_offsets("g", "m", 3, {T: 5})

    return await producer.ended(work, commits=commits)


def test_the_first_version_adds_each_partition_once_before_it_writes() -> None:
    script = Script()
    assert run(one(producer_of(script, FIRST)))
    assert script.apis == [
        "INIT_PRODUCER_ID",
        "ADD_PARTITIONS_TO_TXN",
        "PRODUCE",
        "PRODUCE",
        "PRODUCE",
        "ADD_OFFSETS_TO_TXN",
        "TXN_OFFSET_COMMIT",
        "END_TXN",
    ]
    assert script.asked[-1][1]["committed"]


def test_the_second_version_writes_at_once_and_takes_its_next_epoch_from_the_end() -> None:
    script = Script()
    producer = producer_of(script, SECOND)
    assert run(one(producer))
    assert script.apis == ["INIT_PRODUCER_ID", *["PRODUCE"] * 3, "TXN_OFFSET_COMMIT", "END_TXN"]
    assert producer.producer == (7, 2)
    assert not producer.sequences


@pytest.mark.parametrize("version", [FIRST, SECOND])
def test_what_was_committed_is_told_with_its_sends_and_offsets(version: int) -> None:
    script = Script()
    run(one(producer_of(script, version)))
    (told,) = script.history.transactions
    assert told.fate == "committed"
    assert told.asked is not None and told.begun < told.asked < told.done
    assert {send.transaction for send in script.history.sends} == {told.key}
    assert [send.sequence for send in script.history.sends if send.tp == T] == [0, 1]
    (commit,) = script.history.commits
    assert (commit.result, commit.transaction, commit.generation) == ("ok", told.key, 3)


def test_what_was_aborted_on_purpose_is_told_as_such() -> None:
    script = Script()
    assert not run(one(producer_of(script, SECOND), commits=False))
    assert not script.asked[-1][1]["committed"]
    assert [(told.fate, told.asked) for told in script.history.transactions] == [("aborted", None)]
    assert [commit.result for commit in script.history.commits] == ["fail"]


def test_an_end_whose_answer_is_lost_is_asked_for_again() -> None:
    script = Script((Api.END_TXN, Lost), (Api.END_TXN, ErrorCode.concurrent_transactions))
    assert run(one(producer_of(script, SECOND)))
    assert script.apis.count("END_TXN") == 3
    assert [told.fate for told in script.history.transactions] == ["committed"]


@pytest.mark.parametrize(
    ("said", "fate"),
    [
        ([ErrorCode.producer_fenced], "aborted"),
        ([ErrorCode.invalid_txn_state], "aborted"),
        ([Lost, ErrorCode.producer_fenced], "unknown"),
        ([ErrorCode.coordinator_not_available, ErrorCode.producer_fenced], "unknown"),
    ],
)
def test_a_commit_that_is_refused_is_unknown_if_it_was_asked_for_before(said: list[Said], fate: str) -> None:
    script = Script(*((Api.END_TXN, code) for code in said))
    with pytest.raises(Fenced):
        run(one(producer_of(script, FIRST)))
    assert [told.fate for told in script.history.transactions] == [fate]


@pytest.mark.parametrize(("version", "again"), [(FIRST, ["INIT_PRODUCER_ID"]), (SECOND, [])])
def test_what_cannot_be_written_is_aborted_and_a_new_epoch_follows(version: int, again: list[str]) -> None:
    script = Script((Api.PRODUCE, Lost), (Api.PRODUCE, ErrorCode.out_of_order_sequence_number))
    producer = producer_of(script, version)
    assert not run(one(producer))
    assert script.apis[script.apis.index("END_TXN") :] == ["END_TXN", *again]
    assert script.history.sends[0].result == "unknown", "its first attempt may have been appended"
    assert producer.producer[1] == (3 if version == FIRST else 2)


def test_offsets_that_the_group_refuses_abort_the_transaction() -> None:
    script = Script((Api.TXN_OFFSET_COMMIT, ErrorCode.illegal_generation))
    assert not run(one(producer_of(script, SECOND)))
    assert [commit.result for commit in script.history.commits] == ["fail"]


def test_who_is_asked_to_abort_by_the_end_itself_does() -> None:
    script = Script((Api.END_TXN, ErrorCode.transaction_abortable))
    assert not run(one(producer_of(script, SECOND)))
    assert [(told.fate, told.asked) for told in script.history.transactions] == [("aborted", None)]


def test_a_transaction_without_a_write_asks_for_nothing() -> None:
    script = Script()
    producer = producer_of(script, FIRST)

    async def work() -> None:
        await producer.begin_anew()
        producer.begin()
        await producer.commit()

    run(work())
    assert script.apis == ["INIT_PRODUCER_ID"]


async def _until_writing(producer: TransactionalProducer) -> None:
    await producer.begin_anew()
    producer.begin()
    await producer.send([(T, 1)])


async def _until_asking(producer: TransactionalProducer) -> None:
    await _until_writing(producer)
    with pytest.raises(Lost):
        await producer.commit()


@pytest.mark.parametrize(
    ("until", "fate"), [(_until_writing, "aborted"), (_until_asking, "unknown")], ids=["writing", "asking"]
)
def test_who_dies_leaves_what_it_asked_for_as_unknown(
    until: Callable[[TransactionalProducer], Coroutine[Any, Any, None]], fate: str
) -> None:
    script = Script((Api.END_TXN, Lost))
    producer = producer_of(script, SECOND)

    async def stop(seconds: float) -> None:
        raise Lost("stopped here")

    script.pause = stop  # type: ignore[method-assign]
    run(until(producer))
    script.process.on_death[0](False)
    assert [told.fate for told in script.history.transactions] == [fate]
    assert len(script.history.sends) == 1


def test_a_zombie_cannot_add_partitions() -> None:
    script = Script((Api.ADD_PARTITIONS_TO_TXN, ErrorCode.producer_fenced))
    producer = producer_of(script, FIRST)
    with pytest.raises(Fenced):
        run(one(producer))
    producer.walk_away()
    assert [told.fate for told in script.history.transactions] == ["aborted"]


def test_must_abort_is_raised_once_everything_is_sent() -> None:
    script = Script((Api.PRODUCE, ErrorCode.invalid_txn_state))
    producer = producer_of(script, SECOND)

    async def work() -> None:
        await producer.begin_anew()
        producer.begin()
        with pytest.raises(MustAbort):
            await producer.send([(T, 1), (U, 1)])

    run(work())
    assert script.apis == ["INIT_PRODUCER_ID", "PRODUCE", "PRODUCE"]
