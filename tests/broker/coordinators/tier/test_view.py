"""The barrier: what is caught up, and who hears of it."""

from __future__ import annotations

import asyncio

import pytest

from broker.coordinators.tier.view import View
from remote.cold.segments import TieredPartition
from tests.broker.coordinators.tier.tier_driver import USER, started

OTHER = TieredPartition(USER.topic_id, 1)


class Seen:
    def __init__(self) -> None:
        self.told: list[TieredPartition] = []
        self.view = View(0, self.told.append)

    def ask(self, end: int) -> None:
        """Answered, and then shown to go on from what was read."""
        self.view.ask()
        self.view.named(end)
        self.view.agreed()

    def read_to(self, position: int) -> None:
        self.view.read_to(position, 0)
        self.view.agreed()


@pytest.fixture
async def seen() -> Seen:
    return Seen()


async def test_it_is_caught_up_at_the_end_that_was_named(seen: Seen) -> None:
    view = seen.view
    view.renew(USER)
    assert view.wants_end
    seen.ask(5)
    assert not view.is_caught_up(USER) and not view.wants_end
    seen.read_to(4)
    assert not view.is_caught_up(USER)
    seen.read_to(5)
    assert view.is_caught_up(USER) and seen.told == [USER]


async def test_a_need_that_comes_while_a_question_is_under_way_takes_the_next(seen: Seen) -> None:
    view = seen.view
    view.renew(USER)
    view.ask()
    view.renew(OTHER)
    view.named(0)
    view.agreed()
    assert view.is_caught_up(USER) and not view.is_caught_up(OTHER)
    assert view.wants_end
    seen.ask(0)
    assert view.is_caught_up(OTHER) and seen.told == [USER, OTHER]


async def test_what_another_leader_named_counts_no_more(seen: Seen) -> None:
    view = seen.view
    view.renew(USER)
    seen.ask(5)
    view.begin_reading(None)
    seen.read_to(5)
    assert not view.is_caught_up(USER) and view.wants_end
    seen.ask(5)
    assert view.is_caught_up(USER)


async def test_read_anew_it_shows_the_old_fold_until_the_new_one_is_caught_up(seen: Seen) -> None:
    view = seen.view
    view.renew(USER)
    seen.ask(0)
    view.take(started(1), USER)
    seen.read_to(1)
    view.start_over(0)
    assert not view.is_caught_up(USER)
    view.take(started(2, base=10, end=20), USER)
    seen.read_to(1)
    known = view.fold.get(USER)
    assert known is not None and [each.id.int for each in known.unfinished()] == [1]
    view.renew(OTHER)
    seen.told.clear()
    seen.ask(1)
    known = view.fold.get(USER)
    assert known is not None and [each.id.int for each in known.unfinished()] == [2]
    assert set(seen.told) == {USER, OTHER} and view.is_caught_up(USER)


async def test_a_partition_that_is_not_followed_is_never_caught_up(seen: Seen) -> None:
    view = seen.view
    assert not view.is_caught_up(USER) and not view.is_needed
    view.renew(USER)
    view.unfollow(USER)
    seen.ask(0)
    assert not view.is_caught_up(USER) and seen.told == []


async def test_who_waits_is_woken(seen: Seen) -> None:
    view = seen.view
    view.renew(USER)
    caught_up = asyncio.ensure_future(view.wait_caught_up(USER))
    read = asyncio.ensure_future(view.wait_read(3))
    await asyncio.sleep(0)
    seen.ask(2)
    seen.read_to(2)
    await caught_up
    assert not read.done()
    seen.read_to(3)
    await read


async def test_an_end_below_what_was_read_proves_nothing(seen: Seen) -> None:
    """An unclean leader may have lost what was read, or have others in its place."""
    view = seen.view
    view.renew(USER)
    seen.read_to(5)
    view.ask()
    view.named(5)
    assert not view.is_caught_up(USER) and view.is_unproven
    view.start_over(0)
    assert not view.is_unproven and view.wants_end
    seen.ask(3)
    seen.read_to(3)
    assert view.is_caught_up(USER)


async def test_a_view_that_is_begun_is_not_read_anew_for_its_age(seen: Seen) -> None:
    seen.view.at_end_s = -1e9
    seen.view.begin_reading(None)
    assert seen.view.at_end_s >= 0
    seen.view.at_end_s = -1e9
    seen.read_to(5)
    seen.view.begin_reading(None)
    assert seen.view.at_end_s == -1e9, "deletions may be gone since"
