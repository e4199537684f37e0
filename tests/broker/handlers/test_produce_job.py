"""A Produce that names partitions more than once: what is appended of each, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.handlers import produce_job
from broker.handlers.produce_job import ProduceJob, ordering
from protocol.errors import KafkaError
from protocol.primitives import ROWS_A_STEP, TopicKey
from protocol.produce import ProduceRequest
from protocol.records import check_one_batch
from protocol.work import finish
from tests.broker.raw_client import batch_of

SOUND = [memoryview(batch_of(bytes([at]))) for at in range(3)]
REFUSED = [None, memoryview(b""), memoryview(bytes(70))]

Rows = list[tuple[str, list[tuple[int, memoryview | None]]]]


def job() -> ProduceJob:
    return ProduceJob(9, 1, acks=1, timeout_ms=1000)


def request(rows: Rows) -> ProduceRequest:
    topics: list[tuple[TopicKey, list[tuple[int, memoryview | None]]]] = [
        (topic, [*named]) for topic, named in rows
    ]
    return ProduceRequest(None, 1, 1000, topics, -1)


def is_sound(records: memoryview | None) -> bool:
    try:
        check_one_batch(records, 9)
    except KafkaError:
        return False
    return True


@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.lists(st.tuples(st.integers(0, 2), st.sampled_from([*SOUND, *REFUSED])), max_size=6),
        ),
        max_size=4,
    )
)
def test_of_a_partition_that_is_named_again_the_last_sound_records_are_appended(rows: Rows) -> None:
    expected: dict[tuple[str, int], list[memoryview | None]] = {}
    for topic, named in rows:
        for index, records in named:
            expected.setdefault((topic, index), []).append(records)
    asked = job()
    topics = finish(ordering(asked, request(rows)))
    found = {(topic, index): records for topic, named in topics for index, records in named}
    assert found.keys() == expected.keys()
    for topic in {topic for topic, _ in expected}:
        assert [place for place in found if place[0] == topic] == [
            place for place in expected if place[0] == topic
        ]
    for place, given_records in expected.items():
        sound = [records for records in given_records if is_sound(records)]
        assert found[place] is (sound or given_records)[-1]
        is_refused = bool(sound) and len(sound) < len(given_records)
        assert (place in asked.refused) == is_refused
    assert asked.failed == bool(asked.refused)


def test_a_partition_that_is_named_thousands_of_times_is_looked_at_in_many_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked = [0]

    def counted(*arguments: Any) -> Any:
        checked[0] += 1
        return check_one_batch(*arguments)

    monkeypatch.setattr(produce_job, "check_one_batch", counted)
    steps = ordering(job(), request([("t", [(0, SOUND[0])] * 3000)]))
    most = before = 0
    for _ in steps:
        most = max(most, checked[0] - before)
        before = checked[0]
    assert checked[0] == 3000
    assert most <= ROWS_A_STEP
