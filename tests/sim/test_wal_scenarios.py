"""Named scenarios about the WAL tier: objects that come late or in another order, leaders that change between
a pointer and its read, logs that are cut below what is stored, a store that some do not reach."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from remote.keys import WalPart, parse_wal_key
from remote.wal.combined_object import Row
from remote.wal.stats import WalStats
from storage.unified_log import UnifiedLog
from tests.sim.client import Lost
from tests.sim.node import Node
from tests.sim.operators import INTO_WAL, OUT_OF_WAL
from tests.sim.play import TP, Play
from tests.sim.verdict import Verdict
from tests.sim.wallog import SeenStream

pytestmark = pytest.mark.usefixtures("quiet")

UNCLEAN = {"unclean.leader.election.enable": "true"}


def in_wal(
    name: str,
    *,
    brokers: int = 3,
    replicas: int = 3,
    min_isr: int = 1,
    configs: dict[str, str] | None = None,
    properties: dict[str, str] | None = None,
) -> Play:
    return Play(
        name,
        brokers=brokers,
        replicas=replicas,
        min_isr=min_isr,
        configs={**INTO_WAL, **(configs or {})},
        properties={"remote.wal.log.manager.combiner.task.interval.ms": "50", **(properties or {})},
    )


def clean(verdict: Verdict) -> Verdict:
    assert verdict.clean, "\n".join(map(str, verdict.violations))
    return verdict


def log_of(node: Node) -> UnifiedLog:
    log = node.log(TP)
    assert log is not None
    return log


def stats_of(node: Node) -> WalStats:
    assert node.broker is not None
    return node.broker.components.wal_stats


def followers(play: Play) -> list[Node]:
    return play.others(play.leader)


def stored_end(play: Play) -> int:
    """Where the newest slice ends that counts."""
    return max((each.row.end for each in play.stage.wal.slices(TP)), default=0)


async def until_hydrated(play: Play, *nodes: Node, count: int = 3) -> None:
    """Each of these, by default all followers, reads so many more slices from the store."""
    before = {node: stats_of(node).hydrated_slices for node in nodes or followers(play)}
    await play.until(
        "followers read from the store",
        lambda: all(stats_of(node).hydrated_slices >= begun + count for node, begun in before.items()),
    )


def stream_of(play: Play, node: Node) -> SeenStream:
    """The newest stream of a broker."""
    streams = play.stage.wal.fold.streams
    return streams[max(stream for stream in streams if stream.node_id == node.id)]


def is_object(key: str) -> bool:
    named = parse_wal_key(key)
    return named is not None and named.part is WalPart.OBJECT


def slow(which: Callable[[str, int], bool], seconds: float) -> Callable[[str, str], float]:
    """Requests of this (kind, number of the object) take this much longer."""

    def delay(kind: str, key: str) -> float:
        named = parse_wal_key(key)
        is_meant = named is not None and named.part is WalPart.OBJECT and which(kind, named.seq)
        return seconds if is_meant else 0.0

    return delay


async def switch(play: Play, settings: dict[str, str]) -> None:
    operator = play.stage.client(f"WAL operator {play.stage.loop.now}")

    async def ask() -> None:
        while not settings.items() <= play.stage.truth.topic_configs(TP[0]).items():
            with contextlib.suppress(Lost):
                await operator.set_tiering(TP[0], settings)

    await play.stage.finish([operator.start(ask())])


async def until_another_is_the_controller(play: Play) -> None:
    """A leader that is the controller too fences those it is cut from, and goes on to lead."""
    while play.stage.controller() is play.leader:
        node = play.leader
        node.kill()
        await until_leads_another(play, node)
        await node.start()
        await play.until("all are in sync", lambda: len(play.isr) == 3)
        await until_hydrated(play)


async def until_leads_another(play: Play, node: Node) -> None:
    await play.until("another leads", lambda: play.stage.leader(TP) not in (None, node))


def test_in_calm_no_record_crosses_between_brokers() -> None:
    async def script(play: Play) -> None:
        play.stage.history.is_calm = True
        await until_hydrated(play, count=10)
        await play.progress(play.loads[0])

    play = in_wal("calm", min_isr=2)
    clean(play.perform(script))
    assert play.stage.wal.slices(TP)


def test_a_slow_object_under_a_fast_one_is_waited_for() -> None:
    async def script(play: Play) -> None:
        await until_hydrated(play)
        leader = play.leader
        fast = play.load("fast", acks=1)
        leader.wal_line.delay_of = slow(lambda kind, seq: kind == "put" and seq % 3 == 0, 0.7)
        await play.progress(fast)

        def is_overtaken() -> bool:
            there = stream_of(play, leader).objects
            return any(seq - 1 in there and each.at < there[seq - 1].at for seq, each in there.items())

        await play.until("one is overtaken", is_overtaken)
        await play.wait(3)
        assert play.isr == {node.id for node in play.nodes}

    clean(in_wal("slow under fast").perform(script))


def test_a_put_without_an_answer_takes_effect_a_minute_later() -> None:
    async def script(play: Play) -> None:
        await until_hydrated(play)
        leader = play.leader
        held: list[str] = []
        asked_at = play.stage.loop.now

        def holds(kind: str, key: str) -> bool:
            """One object, for as long as it takes to give up more than once."""
            if kind != "put" or not is_object(key) or (held and key != held[0]):
                return False
            held.append(key)
            return play.stage.loop.now < asked_at + 3

        leader.wal_line.holds_of = holds
        await play.until("it is given up", lambda: play.stage.loop.now > asked_at + 4)
        await play.until("it is stored at last", lambda: held and held[0] in play.stage.bucket.objects)
        before = play.stage.bucket.objects[held[0]]
        await until_hydrated(play)
        await play.wait(60)
        assert leader.wal_line.let_go() > 1
        assert play.stage.bucket.objects.get(held[0], before) == before
        await until_hydrated(play)

    clean(in_wal("late put").perform(script))


async def move(play: Play, node: Node) -> None:
    """Another of its replicas is made to lead t, while the one that leads lives on and leads others."""
    operator = play.stage.client("operator")
    order = [node.id, *(other.id for other in play.others(node))]

    async def ask() -> None:
        await operator.reassign(TP, order)
        while play.leader is not node:
            await operator.elect_preferred(TP)

    await play.stage.finish([operator.start(ask())])


@pytest.mark.parametrize("by", ["stop", "move"])
def test_a_pointer_is_overtaken_by_an_election(by: str) -> None:
    async def script(play: Play) -> None:
        admin = play.stage.client("admin of others")
        names = [f"other-{number}" for number in range(20)]
        for name in names:  # until it leads another, of which its followers go on reading
            await play.stage.finish([admin.start(admin.create_topic_surely(name, 1, INTO_WAL, replicas=3))])
            if play.stage.leader((name, 0)) is play.leader:
                break
        play.load("fast", acks=1)
        await until_hydrated(play)
        first = play.leader
        for node in followers(play):
            node.wal_line.delay_of = slow(lambda kind, seq: kind == "get", 0.9)
        end = log_of(first).log_end_offset
        await play.until("much is pointed to", lambda: stored_end(play) > end + 3)
        stopping = None
        if by == "stop":
            stopping = play.stage.loop.create_task(first.stop())  # which has another elected at once
        else:
            await move(play, followers(play)[0])
        await until_leads_another(play, first)
        (slow_one,) = play.others(first, play.leader)
        led = log_of(play.leader)
        await play.until("it leads", lambda: led.epochs.entries()[-1][0] == play.leader_epoch)
        begins = led.epochs.entries()[-1][1]
        epoch = play.leader_epoch
        is_cut = False
        for _ in range(400):
            await play.wait(0.01)
            log = log_of(slow_one)
            known = slow_one.image()
            there = None if known is None else known.partition(*TP)
            if there is None or there.leader_epoch < epoch:
                continue
            is_cut = is_cut or log.log_end_offset <= begins
            if is_cut and log.log_end_offset > begins:
                newest = log.epochs.entries()[-1][0]
                assert newest >= epoch, "it went on with what the last leader pointed to"
        assert is_cut
        if stopping is not None:
            await stopping
            await first.start()

    clean(in_wal(f"overtaken by {by}").perform(script))


def test_a_slice_begins_below_where_a_follower_ends() -> None:
    async def script(play: Play) -> None:
        play.load("fast", acks=1)
        await until_hydrated(play)
        leader, (one, other) = play.leader, followers(play)
        ends = []
        for _ in range(3):
            leader.wal_line.down = True
            sent = stats_of(one).direct_bytes_in
            await play.until("records are sent", lambda sent=sent: stats_of(one).direct_bytes_in > sent)
            cuts = play.cut(one, leader)  # it stops amid what the next slice has
            end = log_of(one).log_end_offset
            await play.until("the leader goes on", lambda end=end: log_of(leader).log_end_offset > end + 3)
            leader.wal_line.heal()
            await play.until("all is stored", lambda end=end: stored_end(play) > end + 3)
            play.mend(cuts)
            await until_hydrated(play, one, other, count=1)
            ends.append(end)
        trimmed = [
            each.row
            for each in play.stage.wal.slices(TP)
            if any(each.row.start < end < each.row.end for end in ends)
        ]
        assert trimmed
        assert not any(stats_of(node).hydration_failures for node in play.nodes)

    clean(in_wal("trimmed").perform(script))


def test_logs_are_cut_below_what_is_stored_over_three_epochs() -> None:
    async def script(play: Play) -> None:
        play.stage.history.unclean_topics.add(TP[0])
        play.load("alone", acks=1)
        for _ in range(3):
            await play.until("all are in sync", lambda: len(play.isr) == 3)
            await until_another_is_the_controller(play)
            await until_hydrated(play, count=2)
            first, end = play.leader, log_of(play.leader).log_end_offset
            cuts = play.cut(first, *play.others(first))  # it reaches the store and nobody else
            await play.until(
                "it stores what it has alone",
                lambda first=first, end=end: (
                    stream_of(play, first).counted_at and max(row.end for row in _rows(play, first)) > end + 4
                ),
            )
            await until_leads_another(play, first)
            play.mend(cuts)
            await play.until("it follows", lambda first=first: first.id in play.isr)
        epochs = {each.row.leader_epoch for each in play.stage.wal.slices(TP)}
        assert len(epochs) >= 3

    clean(in_wal("three epochs").perform(script))


def test_what_was_stored_of_a_log_before_it_was_cut_counts_no_more() -> None:
    async def script(play: Play) -> None:
        play.load("alone", acks=1)
        await until_hydrated(play)
        await until_another_is_the_controller(play)
        first, end = play.leader, log_of(play.leader).log_end_offset
        others = followers(play)
        cuts = play.cut(first, *others)
        await play.until("it stores alone", lambda: max(row.end for row in _rows(play, first)) > end + 4)
        for node in others:
            node.wal_line.down = True
        await until_leads_another(play, first)
        begins = log_of(play.leader).log_end_offset
        play.mend(cuts)
        await play.until("it follows", lambda: first.id in play.isr)
        await play.until("it has other records", lambda: log_of(first).high_watermark > begins + 3)
        for node in others:
            node.kill()
            node.wal_line.heal()
        await play.until("it leads again", lambda: play.stage.leader(TP) is first)
        await play.until(
            "it stores what it was sent", lambda: any(row.leader_epoch > 0 for row in _rows(play, first))
        )
        for node in others:
            await node.start()
        await until_hydrated(play)

    clean(in_wal("cut after it was stored").perform(script))


def _rows(play: Play, node: Node) -> list[Row]:
    return [each.row for each in play.stage.wal.slices(TP) if each.stream.node_id == node.id]


def test_a_leader_is_replaced_that_the_store_did_not_answer() -> None:
    async def script(play: Play) -> None:
        await until_hydrated(play)
        first = play.leader
        first.wal_line.down = True
        end = stored_end(play)
        one, other = followers(play)
        await play.until("followers have more", lambda: log_of(one).high_watermark > end + 5)
        first.kill()
        await until_leads_another(play, first)
        await play.until("what it took over is stored", lambda: stored_end(play) > end + 5)
        first.wal_line.heal()
        await first.start()
        assert other.is_ready
        await until_hydrated(play)

    clean(in_wal("takes over a backlog").perform(script))


@pytest.mark.parametrize("unclean", [False, True])
@pytest.mark.parametrize("by", ["log start", "epoch start"])
def test_two_leaders_stored_the_same_offsets_and_a_third_reads(unclean: bool, by: str) -> None:
    """KIP-1176's reconciliation: B1 stores what B2 and B3 have not; B2 is elected, or the far behind B3. Then
    B1 comes back below its own stored end, with a log start that lies before or behind that."""

    async def script(play: Play) -> None:
        if unclean:
            play.stage.history.unclean_topics.add(TP[0])
        play.load("alone", acks=1)
        await until_hydrated(play)
        first = play.leader
        second, third = followers(play)
        end = log_of(first).log_end_offset
        cuts = play.cut(first, second, third)
        if unclean:
            cuts += play.cut(third, second)
        await play.until("B1 stores alone", lambda: max(row.end for row in _rows(play, first)) > end + 4)
        first.kill()
        if unclean:
            await play.until("the ISR is one", lambda: len(play.isr) < 3)
        play.mend(cuts)
        await until_leads_another(play, first)
        if unclean and play.leader is second:
            second.kill()
            await play.until("B3 leads or waits", lambda: play.stage.leader(TP) in (None, third))
        await play.until("somebody leads", lambda: play.stage.leader(TP) not in (None, first), seconds=60)
        begins = log_of(play.leader).epochs.entries()[-1][1]
        await play.until("it stores", lambda: any(row.end > begins for row in _rows(play, play.leader)))
        if by == "log start":
            await play.delete_before(log_of(play.leader).high_watermark)
        else:
            await play.delete_before(min(begins, log_of(play.leader).high_watermark))
        for node in (first, second):
            if not node.is_alive:
                await node.start()
        await play.until("all are back", lambda: not play.stage.broken(), seconds=60)
        await until_hydrated(play, count=2)

    configs = UNCLEAN if unclean else None
    clean(in_wal(f"reconciled {unclean} {by}", configs=configs).perform(script))


def test_an_object_is_deleted_under_its_reader() -> None:
    async def script(play: Play) -> None:
        play.load("fast", acks=1)
        await until_hydrated(play)
        reader = followers(play)[0]
        gone: list[str] = []

        def take_away(kind: str, key: str) -> float:
            """What it is about to read, with what comes after it still there."""
            if kind == "get" and is_object(key) and len(gone) < 4:
                gone.append(key)
                play.stage.bucket.objects.pop(key, None)
            return 0.0

        failures = stats_of(reader).hydration_failures
        reader.wal_line.delay_of = take_away
        await play.until("objects are gone", lambda: len(gone) == 4)
        await play.until("it asks its leader", lambda: stats_of(reader).hydration_failures > failures)
        await until_hydrated(play)
        assert stats_of(reader).direct_bytes_in > 0

    clean(in_wal("deleted under a reader").perform(script))


def test_one_follower_is_cut_from_the_store() -> None:
    async def script(play: Play) -> None:
        await until_hydrated(play)
        one, other = followers(play)
        one.wal_line.hang = True
        sent = stats_of(one).direct_bytes_in
        await play.wait(12)  # far longer than who is out of sync may be in an ISR
        assert stats_of(one).direct_bytes_in > sent
        assert stats_of(other).direct_bytes_in == 0
        assert play.isr == {node.id for node in play.nodes}
        await play.progress(play.loads[0], seconds=10)
        one.wal_line.heal()
        await until_hydrated(play, one)

    clean(in_wal("one is cut off", min_isr=3).perform(script))


def test_the_store_is_away_from_the_leader_for_a_minute() -> None:
    async def script(play: Play) -> None:
        await until_hydrated(play)
        leader = play.leader
        leader.wal_line.down = True
        await play.wait(60)
        await play.progress(play.loads[0], seconds=10)
        assert play.isr == {node.id for node in play.nodes}
        leader.wal_line.heal()
        await play.until(
            "the backlog is stored", lambda: stored_end(play) >= log_of(leader).log_end_offset - 3, seconds=10
        )
        await until_hydrated(play)

    clean(in_wal("a minute away", min_isr=3).perform(script))


@pytest.mark.parametrize("hours", [-1, 1, 26])
def test_clocks_jump_by_hours(hours: int) -> None:
    async def script(play: Play) -> None:
        await until_hydrated(play)
        for node in (play.leader, *followers(play)):
            node.step_clock(hours * 3_600_000)
            await play.progress(play.loads[0])
            await until_hydrated(play)
        assert not any(stats_of(node).direct_bytes_in for node in play.nodes)
        for node in followers(play):  # it leaves the store alone for a while, and is wrong about the time
            failures = stats_of(node).hydration_failures
            node.wal_line.down = True
            await play.until(
                "it asks its leader",
                lambda node=node, failures=failures: stats_of(node).hydration_failures > failures,
            )
            node.step_clock(-hours * 3_600_000)
            node.wal_line.heal()
            await until_hydrated(play, node)
        assert play.isr == {node.id for node in play.nodes}

    clean(in_wal(f"clocks {hours}").perform(script))


def test_a_topic_leaves_the_tier_and_comes_back_with_objects_under_way() -> None:
    async def script(play: Play) -> None:
        play.stage.wal.is_toggled = True
        play.load("fast", acks=1)
        await until_hydrated(play)
        leader = play.leader
        for _ in range(3):
            leader.wal_line.delay_of = slow(lambda kind, seq: kind == "put", 0.6)
            for node in followers(play):
                node.wal_line.delay_of = slow(lambda kind, seq: kind == "get", 0.6)
            await play.wait(0.5)
            await switch(play, OUT_OF_WAL)
            await play.wait(0.3)
            await switch(play, INTO_WAL)
            await play.wait(0.5)
            for node in play.nodes:
                node.wal_line.heal()
            await until_hydrated(play)
        await switch(play, OUT_OF_WAL)
        await play.wait(3)
        await play.progress(play.loads[0])
        await switch(play, INTO_WAL)
        await until_hydrated(play)

    one_at_a_time = {"remote.wal.log.manager.combiner.thread.pool.size": "1"}
    play = in_wal("off and on", properties=one_at_a_time)
    play.stage.history.wal_window = 1
    clean(play.perform(script))


def test_records_are_deleted_up_to_the_middle_of_a_slice() -> None:
    async def script(play: Play) -> None:
        play.load("fast", acks=1)
        await until_hydrated(play)
        leader = play.leader
        for _ in range(3):
            leader.wal_line.down = True
            end = stored_end(play)
            await play.until("more waits", lambda end=end: log_of(leader).high_watermark > end + 9)
            await play.delete_before(end + 7)  # of which nothing is cut yet
            await play.wait(2)
            leader.wal_line.heal()
            await play.until("it is stored", lambda end=end: stored_end(play) > end + 9)
            await until_hydrated(play, count=1)
        start = log_of(leader).log_start_offset
        first = next(each.row for each in play.stage.wal.slices(TP) if each.row.end > start)
        await play.delete_before(max(first.end - 1, start))
        await until_hydrated(play)

    often = {
        "log.retention.check.interval.ms": "300",
        "log.segment.delete.delay.ms": "300",
        "remote.wal.log.manager.combiner.thread.pool.size": "1",
    }
    clean(in_wal("deleted into a slice", configs={"segment.ms": "300"}, properties=often).perform(script))
