"""Named scenarios about what leaves the WAL tier, and what is told about it: topics made anew, a collector
whose image is old or that sleeps, its topic away for a minute, replicas that lack what others let go of."""

from __future__ import annotations

import pytest

from broker.control.internal_topics import REMOTE_WAL_LOG_METADATA
from broker.replicas.wal.collecting import WalCollecting
from remote.keys import WalPart, floors_key, parse_wal_key
from tests.sim.node import Node
from tests.sim.operators import INTO_WAL
from tests.sim.play import TP, Play
from tests.sim.stage import Stage
from tests.sim.test_wal_scenarios import (
    clean,
    followers,
    in_wal,
    is_object,
    log_of,
    stored_end,
    until_hydrated,
    until_leads_another,
)

pytestmark = pytest.mark.usefixtures("quiet")

GONE_WITHIN_S = 400.0


def collecting(node: Node) -> WalCollecting:
    assert node.broker is not None
    wal = node.broker.components.wal
    assert wal is not None
    return wal.collecting


def objects_of(play: Play, node_id: int) -> list[str]:
    return [
        key
        for key in play.stage.bucket.objects
        if is_object(key) and (named := parse_wal_key(key)) is not None and named.stream.node_id == node_id
    ]


async def until_gone(play: Play, what: list[str]) -> None:
    await play.until(
        "what nothing needs is gone",
        lambda: not {*what} & {*play.stage.bucket.objects},
        seconds=GONE_WITHIN_S,
    )


def test_a_topic_made_anew_with_its_name_has_nothing_of_the_old_one() -> None:
    async def script(play: Play) -> None:
        play.stage.wal.rests = True
        admin = play.stage.client("admin of other")
        tp = ("other", 0)
        await play.stage.finish([admin.start(admin.create_topic_surely("other", 1, INTO_WAL, replicas=3))])
        load = play.load("other load", tp=tp)
        await play.progress(load)
        load.stop()
        await play.stage.finish([load.task])
        await play.until("it is stored", lambda: play.stage.wal.slices(tp))
        slices = play.stage.wal.slices(tp)
        old = slices[0].row.topic_id
        await play.delete_topic("other")
        sends = play.stage.history.sends
        sends[:] = [send for send in sends if send.tp == TP]  # what went with the topic is not missed
        again = play.stage.client("admin of other again")
        await play.stage.finish([again.start(again.create_topic_surely("other", 1, INTO_WAL, replicas=3))])
        assert play.stage.truth.image.topics["other"].id != old
        for node in play.nodes:
            log = node.log(tp)
            assert log is None or log.log_end_offset == 0

    clean(in_wal("made anew").perform(script))


def test_a_leader_with_an_old_image_takes_no_new_topic_for_a_deleted_one() -> None:
    async def script(play: Play) -> None:
        """Who collects has not heard of a topic of which its own stream, and those of others, have slices."""
        await until_hydrated(play)
        play.controller.kill()
        await play.until("there is another controller", lambda: play.controller.is_ready, seconds=60)
        controller = play.controller
        admin = play.stage.client("admin of new")
        controller.line.holds_answers = True
        await play.wait(1)
        controller.line.heal()
        await play.stage.finish([admin.start(admin.create_topic_surely("new", 1, INTO_WAL, replicas=2))])
        for node in play.stage.ready():
            await collecting(node).take_round()
        await play.wait(200)
        assert stored_end(play)

    clean(in_wal("an old image").perform(script))


def test_who_collects_sleeps_between_the_boundary_and_the_deletion() -> None:
    async def script(play: Play) -> None:
        play.stage.wal.rests = True
        play.load("fast", acks=1)
        await until_hydrated(play, count=10)
        await play.end_loads()
        first = play.leader
        await play.delete_before(log_of(first).high_watermark)
        old = objects_of(play, first.id)[:5]

        def is_bounded() -> bool:
            return any(
                (named := parse_wal_key(key)) is not None and named.part is WalPart.BOUNDARY
                for key in play.stage.bucket.objects
            )

        await play.until("a boundary is there", is_bounded, seconds=GONE_WITHIN_S)
        assert {*old} <= {*play.stage.bucket.objects}
        first.pause()
        await until_leads_another(play, first)
        await play.wait(100)
        first.resume()
        await play.until("it is back", lambda: not play.stage.broken(), seconds=60)
        await play.wait(5)
        first.kill()
        await play.wait(20)
        await first.start()
        await until_gone(play, old)
        play.load("afterwards")
        await until_hydrated(play)

    clean(in_wal("a collector that sleeps").perform(script))


def test_the_topic_about_the_tier_is_away_for_a_minute() -> None:
    async def script(play: Play) -> None:
        play.stage.wal.rests = True
        await play.until("some is stored", lambda: stored_end(play) > 3)
        await play.until("all is told", lambda: not play.stage.wal.untold())
        for number in range(len(play.stage.truth.image.topics[REMOTE_WAL_LOG_METADATA].partitions)):
            leader = play.stage.leader((REMOTE_WAL_LOG_METADATA, number))
            assert leader is not None
            for node in play.others(leader):
                play.cut(node, leader)
        await play.wait(60)
        play.stage.fabric.heal()
        await play.until("all is told again", lambda: not play.stage.wal.untold(), seconds=120)
        await play.progress(play.loads[0])

    clean(in_wal("untold for a minute", brokers=4, replicas=3).perform(script))


def test_an_idle_partition_is_stored_once_more_and_holds_back_nothing() -> None:
    async def script(play: Play) -> None:
        admin = play.stage.client("admin of idle")
        idle = ("idle", 0)
        await play.stage.finish([admin.start(admin.create_topic_surely("idle", 1, INTO_WAL, replicas=3))])
        load = play.load("idle load", tp=idle)
        await play.progress(load)
        load.stop()
        await play.stage.finish([load.task])
        await play.until("it is stored", lambda: play.stage.wal.slices(idle))
        holder = play.stage.leader(idle)
        assert holder is not None
        first = objects_of(play, holder.id)
        while (leader := play.stage.leader(TP)) is not holder and leader is not None:
            leader.kill()
            await until_leads_another(play, leader)
            await leader.start()
            await play.until("all are in sync", lambda: len(play.isr) == 3)
        play.load("fast", acks=1)
        await play.until("much came after it", lambda: len(objects_of(play, holder.id)) > 300, seconds=120)
        await play.end_loads()
        await play.delete_before(log_of(holder).high_watermark)
        await until_gone(play, first)
        last = max(int(key.rpartition("/")[2]) for key in first)
        (moved, *_) = [each for each in play.stage.wal.slices(idle) if each.seq > last]
        assert (moved.row.start, moved.stream.node_id) == (0, holder.id)
        await play.delete_topic("idle")
        sends = play.stage.history.sends
        sends[:] = [send for send in sends if send.tp == TP]  # what went with the topic is not missed

    clean(
        in_wal("idle", properties={"remote.wal.log.manager.combiner.task.interval.ms": "20"}).perform(script)
    )


@pytest.mark.requirement("1176-18")
def test_who_starts_after_a_clean_stop_goes_on_where_it_had_stored() -> None:
    async def script(play: Play) -> None:
        node = play.leader
        await play.until("it said something", lambda: floors_key(node.id) in play.stage.bucket.objects)
        load = play.load("more", acks=1)
        await play.progress(load)
        await node.stop()
        end = max(each.row.end for each in play.stage.wal.slices(TP))
        await node.start()
        await play.progress(load)
        later = [each for each in play.stage.wal.slices(TP) if each.row.end > end]
        assert later, "this life stores too"
        (stream,) = {each.stream for each in later}
        assert min(each.row.start for each in play.stage.wal.slices(TP) if each.stream == stream) == end

    clean(in_wal("clean stop", brokers=1, replicas=1).perform(script))


def test_what_followers_lack_is_not_collected() -> None:
    async def script(play: Play) -> None:
        play.stage.wal.rests = True
        play.load("fast", acks=1)
        await until_hydrated(play)
        first = play.leader
        (one, _) = followers(play)
        one.kill()
        await until_hydrated(play, *(node for node in followers(play) if node is not one), count=10)
        await play.end_loads()
        await play.delete_before(log_of(first).high_watermark // 2)
        await play.wait(260)
        await one.start()
        await play.until("it is back", lambda: not play.stage.broken(), seconds=60)

    clean(in_wal("one lacks it").perform(script))


def test_what_is_stored_while_the_end_is_read_is_told_before_it_is_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play = in_wal("a late object")
    tp, let_all_know = ("late", 0), Stage._let_all_know_the_tier

    async def store_more(stage: Stage) -> None:
        load = play.load("late load", tp=tp)
        await play.until("more is stored than told", stage.wal.untold)
        load.stop()
        await let_all_know(stage)

    async def script(play: Play) -> None:
        play.stage.wal.rests = True
        admin = play.stage.client("admin of late")
        await play.stage.finish([admin.start(admin.create_topic_surely("late", 1, INTO_WAL, replicas=3))])

    monkeypatch.setattr(Stage, "_let_all_know_the_tier", store_more)
    play.perform(script)
    assert play.stage.history.wal_untold == ()
