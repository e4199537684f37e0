"""Fetch sessions: epochs, what is in one, and who makes room."""

from __future__ import annotations

import random
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from broker.handlers.fetch_response import is_news
from broker.replicas.fetch_sessions import (
    EVICTION_MS,
    MAX_EPOCH,
    FetchSessions,
    FetchTurn,
    PartitionRequest,
)
from broker.replicas.read import PartitionRead
from protocol.errors import ErrorCode
from protocol.fetch import FetchItem, FetchRequest
from protocol.primitives import TopicKey


def item(topic: TopicKey, partition: int = 0, offset: int = 0) -> FetchItem:
    return FetchItem(topic, partition, -1, offset, -1, 1000)


def request(
    session_id: int, epoch: int, *items: FetchItem, forgotten: list[tuple[TopicKey, int]] | None = None
) -> FetchRequest:
    return FetchRequest(500, 1, 1000, 0, session_id, epoch, -1, list(items), forgotten or [], "", [])


def sessions_of(most: int = 3) -> FetchSessions:
    return FetchSessions(max_sessions=most, randrange=random.Random(1).randrange)


def created(sessions: FetchSessions, *items: FetchItem, now_ms: int = 0, uses_ids: bool = False) -> int:
    turn = sessions.turn(request(0, 0, *items), uses_ids=uses_ids, now_ms=now_ms)
    assert turn.creates
    return sessions.create(turn, uses_ids=uses_ids, now_ms=now_ms)


def wanted(turn: FetchTurn) -> list[tuple[TopicKey, int, int]]:
    return [(each.topic, each.index, each.offset) for each in turn.wanted]


def test_an_incremental_request_names_only_changes() -> None:
    sessions = sessions_of()
    session_id = created(sessions, item("a"), item("b"), item("c"))
    turn = sessions.turn(request(session_id, 1, item("b", offset=7)), uses_ids=False, now_ms=1)
    assert wanted(turn) == [("a", 0, 0), ("b", 0, 7), ("c", 0, 0)]
    turn = sessions.turn(
        request(session_id, 2, item("d", 4), forgotten=[("a", 0), ("nothing", 9)]), uses_ids=False, now_ms=1
    )
    assert wanted(turn) == [("b", 0, 7), ("c", 0, 0), ("d", 4, 0)]


def test_epochs_follow_each_other_and_wrap_to_1() -> None:
    sessions = sessions_of()
    session_id = created(sessions, item("a"))
    for epoch in (1, 2, 3):
        assert sessions.turn(request(session_id, epoch), uses_ids=False, now_ms=0).error == 0
    for epoch in (3, 5):
        turn = sessions.turn(request(session_id, epoch), uses_ids=False, now_ms=0)
        assert turn.error == ErrorCode.invalid_fetch_session_epoch
    sessions._sessions[session_id].epoch = MAX_EPOCH
    assert sessions.turn(request(session_id, MAX_EPOCH), uses_ids=False, now_ms=0).error == 0
    assert sessions._sessions[session_id].epoch == 1


def test_errors_of_a_session() -> None:
    sessions = sessions_of()
    for epoch in (1, -2):
        assert (
            sessions.turn(request(5, epoch), uses_ids=False, now_ms=0).error
            == ErrorCode.fetch_session_id_not_found
        )
    by_name = created(sessions, item("a"))
    assert (
        sessions.turn(request(by_name, -2), uses_ids=False, now_ms=0).error
        == ErrorCode.invalid_fetch_session_epoch
    )
    assert (
        sessions.turn(request(by_name, 1), uses_ids=True, now_ms=0).error
        == ErrorCode.fetch_session_topic_id_error
    )
    by_id = created(sessions, item(UUID(int=1)), uses_ids=True)
    assert (
        sessions.turn(request(by_id, 1), uses_ids=False, now_ms=0).error
        == ErrorCode.fetch_session_topic_id_error
    )


def test_a_full_request_closes_the_session_it_names() -> None:
    sessions = sessions_of()
    for epoch in (0, -1):
        session_id = created(sessions, item("a"))
        turn = sessions.turn(request(session_id, epoch, item("b")), uses_ids=False, now_ms=0)
        assert (wanted(turn), turn.creates) == ([("b", 0, 0)], epoch == 0)
        assert len(sessions) == 0


def test_a_session_without_partitions_is_over() -> None:
    sessions = sessions_of()
    session_id = created(sessions, item("a"))
    turn = sessions.turn(request(session_id, 1, forgotten=[("a", 0)]), uses_ids=False, now_ms=0)
    assert (wanted(turn), turn.session, turn.error) == ([], None, 0)
    assert len(sessions) == 0


def test_served_partitions_go_to_the_back() -> None:
    sessions = sessions_of()
    session_id = created(sessions, item("a"), item("b"), item("c"))
    turn = sessions.turn(request(session_id, 1), uses_ids=False, now_ms=0)
    assert turn.session is not None
    turn.session.to_back([next(iter(turn.wanted))])
    turn = sessions.turn(request(session_id, 2), uses_ids=False, now_ms=0)
    assert [topic for topic, _, _ in wanted(turn)] == ["b", "c", "a"]


def test_a_full_cache_gives_way_to_stale_then_to_bigger() -> None:
    sessions = sessions_of(2)
    small = created(sessions, item("a"))
    large = created(sessions, item("a"), item("b"), item("c"))
    assert created(sessions, item("x"), item("y"), now_ms=10) == 0, "both are new"
    later = EVICTION_MS + 10
    for session_id in (small, large):
        sessions.turn(request(session_id, 1), uses_ids=False, now_ms=later)
    assert created(sessions, item("x"), now_ms=later) == 0, "no bigger than the smallest"
    bigger = created(sessions, item("x"), item("y"), now_ms=later)
    assert bigger
    assert small not in sessions._sessions
    assert large in sessions._sessions
    assert created(sessions, item("z"), now_ms=2 * later + 1), "all are stale"
    assert len(sessions) == 2
    assert sessions.evictions == 2


@given(st.lists(st.tuples(st.integers(0, 200_000), st.integers(1, 4)), max_size=60))
def test_never_more_sessions_than_allowed(steps: list[tuple[int, int]]) -> None:
    sessions = sessions_of(3)
    now_ms = 0
    for pause_ms, size in steps:
        now_ms += pause_ms
        created(sessions, *(item("t", index) for index in range(size)), now_ms=now_ms)
        assert len(sessions) <= 3
    assert sessions.partition_count == sum(len(s.wanted) for s in sessions._sessions.values())


def test_what_was_sent_belongs_to_the_partition_in_the_session() -> None:
    sessions = sessions_of()
    session_id = created(sessions, item("a"))
    turn = sessions.turn(request(session_id, 1), uses_ids=False, now_ms=0)
    (one,) = turn.wanted
    assert isinstance(one, PartitionRequest)
    one.sent_high_watermark = 9
    turn = sessions.turn(request(session_id, 2, item("a", offset=5)), uses_ids=False, now_ms=0)
    (same,) = turn.wanted
    assert (same.sent_high_watermark, same.offset) == (9, 5)


def test_a_watermark_that_came_with_a_divergence_is_told_again_after_the_cut() -> None:
    """The follower cuts its log and takes nothing else from such an answer."""
    wanted = PartitionRequest(item("t", offset=37))
    parting = PartitionRead(wanted, 35, 35, 0)
    parting.diverging = (0, 35)
    assert is_news(parting)
    assert is_news(PartitionRead(wanted, 35, 35, 0))
    assert not is_news(PartitionRead(wanted, 35, 35, 0))
