"""What one client can do with transactions, and with groups that the broker assigns.

Owns: these attacks. Does not own: the others (attacks), nor how they are measured (table).
Invariant: as of `attacks`; an attack that is to be refused tells WRONG where it was not.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import count
from typing import Any, Final
from uuid import UUID

from protocol.apis import Api
from protocol.errors import ErrorCode
from protocol.messages import decode_response
from protocol.records import build_batch
from tests.clients.blocking import produce_fields
from tests.compat.peers import until
from tests.compat.samples import FIRST_MS
from tests.hostile.attacks import WRONG, Attack, Run, requested
from tests.hostile.ground import Ground, Hostile, hostile
from tests.hostile.sweep import begun_producer

_HOLD_S: Final = 20.0
"""How long an attack that lasts is kept up."""
_AT_ONCE: Final = 200
_OPEN: Final = 100_000
_LONG: Final = 32_767
_SOON_FORGOTTEN: Final = {
    "transactional.id.expiration.ms": "1000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
}
"""So that it shows whether what expired is given back."""


def ask(connection: Hostile, api: Api, version: int, **fields: Any) -> Any:
    connection.send(requested(api, version, **fields))
    answer = connection.answer()
    assert answer is not None, f"{api.name} version {version} cost the connection"
    return decode_response(api, version, answer)[1]


def ask_all(connection: Hostile, api: Api, version: int, rows: Iterable[dict[str, Any]]) -> list[Any]:
    """Pipeline them, and return the answers."""
    frames = [requested(api, version, **row) for row in rows]
    assert connection.send(b"".join(frames))
    answers = [connection.answer() for _ in frames]
    return [decode_response(api, version, answer)[1] for answer in answers if answer is not None]


def told(codes: Counter[str], allowed: set[ErrorCode]) -> str:
    """The answers by their code; WRONG if one is not among those that Kafka would give."""
    text = ", ".join(f"{name} {count}" for name, count in sorted(codes.items()))
    return text if codes.keys() <= {code.name for code in allowed} else WRONG + text


def for_a_while(connection: Hostile, step: Callable[[Counter[str]], None]) -> Counter[str]:
    until_s, codes = time.monotonic() + _HOLD_S, Counter[str]()
    while time.monotonic() < until_s:
        step(codes)
    return codes


# --- transactions -----------------------------------------------------------------------------------------


def beginning(transactional_id: str, timeout_ms: int = 5_000) -> dict[str, Any]:
    return {
        "transactional_id": transactional_id,
        "transaction_timeout": timeout_ms,
        "producer_id": -1,
        "producer_epoch": -1,
    }


def adding(transactional_id: str, producer: tuple[int, int], topic: str, indexes: list[int]) -> Any:
    return {
        "v3_and_below_transactional_id": transactional_id,
        "v3_and_below_producer_id": producer[0],
        "v3_and_below_producer_epoch": producer[1],
        "v3_and_below_topics": [{"name": topic, "partitions": indexes}],
    }


def open_transactions(ground: Ground) -> Run:
    begun_producer(ground, "first")

    def run(stack: ExitStack) -> str:
        connection = hostile(ground, stack)
        codes: Counter[str] = Counter()
        for first in range(0, _OPEN, _AT_ONCE):
            names = [f"id-{number}" for number in range(first, first + _AT_ONCE)]
            begun = ask_all(connection, Api.INIT_PRODUCER_ID, 4, map(beginning, names))
            rows = [
                adding(name, (answer.producer_id, answer.producer_epoch), "known", [0])
                for name, answer in zip(names, begun, strict=True)
                if answer.error_code == ErrorCode.none
            ]
            codes.update(answer.error_code.name for answer in begun if answer.error_code)
            for answer in ask_all(connection, Api.ADD_PARTITIONS_TO_TXN, 3, rows):
                topic = answer.results_by_topic_v3_and_below[0]
                codes[topic.results_by_partition[0].partition_error_code.name] += 1
        # an id expires after a second: on a slow machine before its partition is added
        forgotten = ErrorCode.invalid_producer_id_mapping
        return told(codes, {ErrorCode.none, ErrorCode.coordinator_not_available, forgotten})

    return run


def many_partitions_in_one(ground: Ground) -> Run:
    partitions, times = 1000, 20
    ground.make_topic("wide", partitions=partitions)
    producer = begun_producer(ground, "wide")
    fields = {
        "transactional_id": "wide",
        "producer_id": producer[0],
        "producer_epoch": producer[1],
        "committed": True,
    }

    def run(stack: ExitStack) -> str:
        connection = hostile(ground, stack)
        codes: Counter[str] = Counter()
        for number in range(times):

            def is_added() -> bool:
                answer = ask(
                    connection,
                    Api.ADD_PARTITIONS_TO_TXN,
                    3,
                    **adding("wide", producer, "wide", [*range(partitions)]),
                )
                (topic,) = answer.results_by_topic_v3_and_below
                return not any(row.partition_error_code for row in topic.results_by_partition)

            until(is_added, "the partitions in the transaction")
            batch = bytes(
                build_batch(
                    [(None, b"v", (), FIRST_MS)],
                    producer_id=producer[0],
                    producer_epoch=producer[1],
                    base_sequence=number,
                    transactional=True,
                )
            )
            row = produce_fields("wide", 0, batch, acks=-1)
            row["topic_data"][0]["partition_data"] = [
                {"index": index, "records": batch} for index in range(partitions)
            ]
            produced = ask(connection, Api.PRODUCE, 11, **{**row, "transactional_id": "wide"})
            codes.update(each.error_code.name for each in produced.responses[0].partition_responses)
            codes[ask(connection, Api.END_TXN, 3, **fields).error_code.name] += 1
        return f"{times} of {partitions:,} partitions: " + told(codes, {ErrorCode.none})

    return run


def long_ids(ground: Ground) -> Run:
    begun_producer(ground, "first")

    def run(stack: ExitStack) -> str:
        connection = hostile(ground, stack)
        codes: Counter[str] = Counter()
        for first in range(0, 10_000, _AT_ONCE):
            names = [f"{number:0{_LONG}}" for number in range(first, first + _AT_ONCE)]
            begun = ask_all(connection, Api.INIT_PRODUCER_ID, 4, map(beginning, names))
            codes.update(answer.error_code.name for answer in begun)
        return told(codes, {ErrorCode.none, ErrorCode.coordinator_not_available})

    return run


def strangers_ends(ground: Ground) -> Run:
    """EndTxn and TxnOffsetCommit with epochs and ids that are not the producer's, and for a group that is
    not there."""
    producer_id, epoch = begun_producer(ground, "x")
    wrong = [
        ("x", producer_id, epoch + 1),
        ("x", producer_id, -5),
        ("x", producer_id + 1, epoch),
        ("nobody", producer_id, epoch),
        ("y" * _LONG, producer_id, epoch),
    ]
    refused = {
        ErrorCode.invalid_producer_epoch,
        ErrorCode.producer_fenced,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.invalid_txn_state,
        ErrorCode.illegal_generation,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    }

    def run(stack: ExitStack) -> str:
        connection = hostile(ground, stack)

        def step(codes: Counter[str]) -> None:
            for transactional_id, id_, its_epoch in wrong:
                producer = {
                    "transactional_id": transactional_id,
                    "producer_id": id_,
                    "producer_epoch": its_epoch,
                }
                ended = ask(connection, Api.END_TXN, 4, **producer, committed=True)
                codes[ended.error_code.name] += 1
                answer = ask(
                    connection,
                    Api.TXN_OFFSET_COMMIT,
                    3,
                    **producer,
                    group_id="not-there",
                    generation_id=5,
                    member_id="nobody",
                    topics=[
                        {
                            "name": "known",
                            "partitions": [
                                {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
                            ],
                        }
                    ],
                )
                codes[answer.topics[0].partitions[0].error_code.name] += 1

        return told(for_a_while(connection, step), refused)

    return run


def untrue_transactions(ground: Ground) -> Run:
    """Produce that says one thing in its head and another in its batches: the id of a transaction over plain
    ones of one producer; batches of a transaction of an id that nobody has, and of no id, each of another
    producer."""
    partitions = 20
    ground.make_topic("untrue", partitions=partitions)
    begun_producer(ground, "first")
    numbers, unknown = count(), count()

    def frame(transactional_id: str | None, *, producer_id: int, sequence: int, is_flagged: bool) -> bytes:
        batch = bytes(
            build_batch(
                [(None, b"v", (), FIRST_MS)],
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=sequence,
                transactional=is_flagged,
            )
        )
        fields = produce_fields("untrue", 0, batch, acks=-1)
        fields["topic_data"][0]["partition_data"] = [
            {"index": index, "records": batch} for index in range(partitions)
        ]
        return requested(Api.PRODUCE, 11, **fields | {"transactional_id": transactional_id})

    def plain() -> bytes:
        return frame("first", producer_id=5_000_000, sequence=next(numbers), is_flagged=False)

    def of_nobody() -> bytes:
        return frame("nobody's", producer_id=6_000_000 + next(unknown), sequence=0, is_flagged=True)

    def of_none() -> bytes:
        return frame(None, producer_id=6_000_000 + next(unknown), sequence=0, is_flagged=True)

    kinds = (
        (plain, {ErrorCode.none}),
        (of_nobody, {ErrorCode.invalid_producer_id_mapping}),
        (of_none, {ErrorCode.transactional_id_authorization_failed}),
    )

    def run(stack: ExitStack) -> str:
        connection = hostile(ground, stack)
        until_s = time.monotonic() + _HOLD_S
        counts: list[Counter[str]] = [Counter() for _ in kinds]
        while time.monotonic() < until_s:
            for (make, _), codes in zip(kinds, counts, strict=True):
                frames = [make() for _ in range(20)]
                assert connection.send(b"".join(frames))
                for _ in frames:
                    answer = connection.answer()
                    assert answer is not None, f"{make.__name__} cost the connection"
                    produced = decode_response(Api.PRODUCE, 11, answer)[1]
                    codes.update(row.error_code.name for row in produced.responses[0].partition_responses)
        texts = [told(codes, allowed) for (_, allowed), codes in zip(kinds, counts, strict=True)]
        return (WRONG if any(WRONG in text for text in texts) else "") + "; ".join(texts)

    return run


# --- groups that the broker assigns -----------------------------------------------------------------------

_EXPLOSIVE: Final = (
    "(a*)*b",
    "(a|a)*b",
    "(a+a+)+b",
    "(?:a?){500}a{500}",
    "(((a{1,30}){1,30}){1,30})b",
    "(.*)(.*)(.*)(.*)(.*)(.*)(.*)(.*)b",
    "a" * 30_000,
    "(" * 5_000 + ")" * 5_000,
    "x{0,1000}" * 8,
    "(?i)" + r"\pL" * 300,
    "(?=a)b",
    "[",
)


def joining(group: str, member: str, **fields: Any) -> dict[str, Any]:
    return {
        "group_id": group,
        "member_id": member,
        "member_epoch": 0,
        "rebalance_timeout": 6_000,
        "topic_partitions": [],
        **fields,
    }


def found_group(ground: Ground, group: str) -> None:
    with ground.client() as client:
        until(
            lambda: (
                client.call(Api.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[group])
                .coordinators[0]
                .error_code
                == 0
            ),
            "the coordinator",
        )


def explosive_patterns(ground: Ground) -> Run:
    for number in range(200):
        ground.make_topic(f"{'a' * 240}{number:03}")
    found_group(ground, "known")

    def run(stack: ExitStack) -> str:
        connection = hostile(ground, stack)
        codes: Counter[str] = Counter()
        for number in range(20):
            for at, pattern in enumerate(_EXPLOSIVE):
                fields = joining(f"pattern-{number}-{at}", "m", subscribed_topic_regex=pattern)
                answer = ask(connection, Api.CONSUMER_GROUP_HEARTBEAT, 1, **fields)
                codes[answer.error_code.name] += 1
        return told(codes, {ErrorCode.none, ErrorCode.invalid_regular_expression})

    return run


def unknown_assignors(ground: Ground) -> Run:
    found_group(ground, "known")
    names = ["nobody's", "org.example.Assignor", "x" * _LONG]

    def run(stack: ExitStack) -> str:
        connection = hostile(ground, stack)

        def step(codes: Counter[str]) -> None:
            for name in names:
                fields = joining("known-to-none", "m", subscribed_topic_names=["known"], server_assignor=name)
                codes[ask(connection, Api.CONSUMER_GROUP_HEARTBEAT, 1, **fields).error_code.name] += 1

        return told(for_a_while(connection, step), {ErrorCode.unsupported_assignor})

    return run


def lying_members(ground: Ground) -> Run:
    """A member that says it has everything, beside an honest one."""
    partitions = 100
    ground.make_topic("shared", partitions=partitions)
    found_group(ground, "shared")
    topic_id = ground.topic_id("shared")
    everything = [
        {"topic_id": topic_id, "partitions": [*range(-5, partitions * 2)]},
        {"topic_id": UUID(int=99), "partitions": [0] * 1000},
    ]
    allowed = {ErrorCode.none, ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id}

    def run(stack: ExitStack) -> str:
        honest, liar = hostile(ground, stack), hostile(ground, stack)
        epochs: dict[str, int] = {}
        for member, connection in (("honest", honest), ("liar", liar)):
            fields = joining("shared", member, subscribed_topic_names=["shared"])
            epochs[member] = ask(connection, Api.CONSUMER_GROUP_HEARTBEAT, 1, **fields).member_epoch

        def step(codes: Counter[str]) -> None:
            for epoch in (epochs["liar"], epochs["liar"] + 1, -7):
                fields = joining("shared", "liar")
                fields |= {"member_epoch": epoch, "topic_partitions": everything, "rebalance_timeout": -1}
                answer = ask(liar, Api.CONSUMER_GROUP_HEARTBEAT, 1, **fields)
                codes[answer.error_code.name] += 1
                if answer.error_code == ErrorCode.none and answer.member_epoch > 0:
                    epochs["liar"] = answer.member_epoch

        codes = for_a_while(liar, step)
        fields = joining("shared", "honest")
        fields |= {"member_epoch": epochs["honest"], "topic_partitions": None, "rebalance_timeout": -1}
        answer = ask(honest, Api.CONSUMER_GROUP_HEARTBEAT, 1, **fields)
        text = told(codes, {*allowed, ErrorCode.invalid_request})
        return text if answer.error_code == ErrorCode.none else f"{WRONG}honest: {answer.error_code}, {text}"

    return run


COORDINATOR_ATTACKS: Final = (
    Attack(
        name="open-transactions",
        what="100,000 transactional ids with an open transaction each",
        make=open_transactions,
        settings=_SOON_FORGOTTEN,
    ),
    Attack(
        name="wide-transactions",
        what="transactions of 1,000 partitions each, one after the other",
        make=many_partitions_in_one,
    ),
    Attack(
        name="long-transactional-ids",
        what="10,000 transactional ids of 32 KB",
        make=long_ids,
        settings=_SOON_FORGOTTEN,
    ),
    Attack(
        name="strangers-ends",
        what="EndTxn and TxnOffsetCommit with wrong ids and epochs, for 20 s",
        make=strangers_ends,
    ),
    Attack(
        name="untrue-transactions",
        what="Produce whose batches are of another transaction than it says, or of none, for 20 s",
        make=untrue_transactions,
    ),
    Attack(
        name="explosive-patterns",
        what="subscriptions by patterns on which a backtracking engine does not end, over 200 long names",
        make=explosive_patterns,
        settings={
            "group.consumer.min.session.timeout.ms": "1000",
            "group.consumer.session.timeout.ms": "6000",
        },
    ),
    Attack(
        name="unknown-assignors",
        what="members that ask for assignors nobody knows, for 20 s",
        make=unknown_assignors,
    ),
    Attack(
        name="lying-members",
        what="heartbeats of a member that says it has every partition, for 20 s",
        make=lying_members,
    ),
)
