"""What a transactional producer asks, of two brokers at once: its requests in every version.

Owns the fields, each side's producer id and epoch by the name of the transactional id, and waiting until what
a transaction's end set off is through. Does not own which requests are sent (test_differential_transactions).
Invariant: an answer that says "the one before is not over yet" is asked again, on each side for itself; every
other answer is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protocol.apis import Api
from tests.compat.differential import Side, Twins, differences, records
from tests.compat.peers import until

CONCURRENT = 51
"""The transaction before is being ended."""
PRODUCE_AGAIN = {19, 6, CONCURRENT}
"""What Kafka makes of it for a Produce; and that the partition of a new topic is not led yet."""
OVER = ("CompleteCommit", "CompleteAbort", "Empty")
TIMEOUT_MS = 60_000


@dataclass(frozen=True, slots=True)
class Producer:
    """A transactional id and what each side gave for it."""

    name: str

    def id(self, side: Side) -> int:
        return int(side.remembered.get(f"{self.name}: id", 4711))

    def epoch(self, side: Side) -> int:
        return int(side.remembered.get(f"{self.name}: epoch", 0))

    def keep(self, side: Side, producer_id: int, epoch: int) -> None:
        side.remembered[f"{self.name}: id"] = producer_id
        side.remembered[f"{self.name}: epoch"] = epoch
        side.labels[producer_id] = f"<producer of {self.name}>"

    def plus(self, more: int) -> Callable[[Side], int]:
        return lambda side: self.epoch(side) + more

    def batch(self, sequence: int = 0, *, value: bytes = b"value", **options: Any) -> Callable[[Side], bytes]:
        given = {"producer_id": self.id, "producer_epoch": self.epoch, "transactional": True, **options}
        return lambda side: records(
            value,
            base_sequence=sequence,
            **{name: side.resolve(option) for name, option in given.items()},
        )


def init_fields(producer: Producer | None, **options: Any) -> dict[str, Any]:
    return {
        "transactional_id": producer and producer.name,
        "transaction_timeout": TIMEOUT_MS,
        "producer_id": -1,
        "producer_epoch": -1,
        "enable2_pc": False,
        "keep_prepared_txn": False,
        **options,
    }


def owned(producer: Producer, **options: Any) -> dict[str, Any]:
    return {
        "transactional_id": producer.name,
        "producer_id": producer.id,
        "producer_epoch": producer.epoch,
        **options,
    }


def add_fields(producer: Producer, *topics: tuple[str, Sequence[int]], **options: Any) -> dict[str, Any]:
    rows = [{"name": name, "partitions": list(partitions)} for name, partitions in topics]
    one = {**owned(producer, topics=rows, verify_only=False), **options}
    before = {f"v3_and_below_{name}": value for name, value in one.items() if name != "verify_only"}
    return {**before, "transactions": [one]}


def txn_commit_fields(producer: Producer, group: str, name: str, **options: Any) -> dict[str, Any]:
    partition = {
        "partition_index": options.pop("partition", 0),
        "committed_offset": options.pop("offset", 7),
        "committed_leader_epoch": -1,
        "committed_metadata": "noted",
    }
    return owned(
        producer,
        **{
            "group_id": group,
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": name, "partitions": [partition]}],
            **options,
        },
    )


def end_fields(producer: Producer, *, committed: bool = True, **options: Any) -> dict[str, Any]:
    return owned(producer, committed=committed, **options)


def codes(answer: Any) -> Iterator[int]:
    """Every error code in an answer."""
    if isinstance(answer, Mapping):
        for name, value in answer.items():
            if name.endswith("error_code"):
                yield int(value)
            else:
                yield from codes(value)
    elif isinstance(answer, list):
        for item in answer:
            yield from codes(item)


def asked(side: Side, api: Api, version: int, fields: Mapping[str, Any]) -> Any:
    """The answer of one side, once the transaction before is over."""
    again = PRODUCE_AGAIN if api == Api.PRODUCE else {CONCURRENT}

    def answered() -> Any:
        answer = Twins.one(side, api, version, fields)
        return None if again & set(codes(answer)) else answer

    return until(answered, f"an answer to {api.name} other than to wait")


def same(twins: Twins, api: Api, version: int, **fields: Any) -> Any:
    """As Twins.same, but for a transaction that is not over yet."""
    ours, theirs = (asked(side, api, version, fields) for side in twins.sides)
    found = list(differences(ours, theirs))
    assert not found, "\n".join([f"{api.name} v{version}", *map(str, found), str(fields)])
    return ours


def begun(twins: Twins, producer: Producer, version: int = 4, **options: Any) -> Any:
    """InitProducerId; what each side gave is kept."""
    fields = init_fields(producer, **options)
    answers = []
    for side in twins.sides:

        def given(side: Side = side) -> Any:
            answer = side.client.call(Api.INIT_PRODUCER_ID, version, **side.resolve(fields))
            return None if answer.error_code == CONCURRENT else answer

        answer = until(given, f"a producer id for {producer.name}")
        if answer.error_code == 0:
            producer.keep(side, answer.producer_id, answer.producer_epoch)
        answers.append(side.plain(answer))
    found = list(differences(*answers))
    assert not found, "\n".join([f"INIT_PRODUCER_ID v{version}", *map(str, found), str(fields)])
    return answers[0]


def ended(twins: Twins, producer: Producer, version: int = 4, **options: Any) -> Any:
    """EndTxn, and until it is over; the epoch that version 5 gives is kept."""
    fields = end_fields(producer, **options)
    answers = []
    for side in twins.sides:

        def answered(side: Side = side) -> Any:
            answer = side.client.call(Api.END_TXN, version, **side.resolve(fields))
            return None if answer.error_code == CONCURRENT else answer

        answer = until(answered, f"the end of {producer.name}")
        if version >= 5 and answer.error_code == 0 and answer.producer_id >= 0:
            producer.keep(side, answer.producer_id, answer.producer_epoch)
        answers.append(side.plain(answer))
    found = list(differences(*answers))
    assert not found, "\n".join([f"END_TXN v{version}", *map(str, found), str(fields)])
    settled(twins, producer)
    return answers[0]


def settled(twins: Twins, producer: Producer) -> None:
    """Until the transaction is over on both sides, markers written."""
    for side in twins.sides:

        def is_over(side: Side = side) -> bool:
            answer = side.client.call(Api.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[producer.name])
            return answer.transaction_states[0].transaction_state in OVER

        until(is_over, f"{producer.name} to be over")


def state(twins: Twins, producer: Producer) -> str:
    """What both say of it, alike."""
    answer = twins.same(Api.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[producer.name])
    return str(answer["transaction_states"][0]["transaction_state"])
