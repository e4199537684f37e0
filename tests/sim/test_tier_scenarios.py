"""Named scenarios about the cold tier: copies that two leaders make or nobody finishes, objects that come
late, logs of which only the tier has the beginning, brokers that know less of the tier than others."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass
from uuid import UUID

import pytest

from remote.cold.segments import SegmentState
from remote.keys import topic_prefix
from storage.unified_log import UnifiedLog
from tests.sim.client import Lost
from tests.sim.net import Cut
from tests.sim.node import Node
from tests.sim.operators import OFF, ON
from tests.sim.play import TP, Play
from tests.sim.tier import GONE, METADATA_TOPIC, Copy
from tests.sim.verdict import Verdict
from tests.sim.workload import Consumer

pytestmark = pytest.mark.usefixtures("quiet")

STARTED, FINISHED, DELETING = (
    state.name
    for state in (SegmentState.COPY_STARTED, SegmentState.COPY_FINISHED, SegmentState.DELETE_STARTED)
)


UNCLEAN = {"unclean.leader.election.enable": "true", "segment.ms": "1000"}


def tiered(
    name: str,
    *,
    brokers: int = 3,
    replicas: int = 3,
    configs: dict[str, str] | None = None,
    **properties: str,
) -> Play:
    return Play(
        name,
        brokers=brokers,
        replicas=min(replicas, brokers),
        min_isr=1,
        configs={
            "remote.storage.enable": "true",
            "segment.ms": "300",
            "local.retention.ms": "1",
            **(configs or {}),
        },
        properties={
            "remote.log.manager.task.interval.ms": "300",
            "log.retention.check.interval.ms": "300",
            "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
            "rlmm.config.remote.log.metadata.topic.replication.factor": str(min(3, brokers)),
            "rlmm.config.remote.log.metadata.topic.min.isr": str(min(2, brokers)),
            "follower.fetch.last.tiered.offset.enable": "true",
            **properties,
        },
    )


def clean(verdict: Verdict) -> Verdict:
    assert verdict.clean, "\n".join(map(str, verdict.violations))
    return verdict


def log_of(node: Node) -> UnifiedLog:
    log = node.log(TP)
    assert log is not None
    return log


def copies(play: Play, *states: str) -> list[Copy]:
    return [copy for copy in play.stage.tier_copies() if not states or copy.state in states]


async def until_tiered(play: Play, count: int = 3) -> None:
    """The leader has let go of so many segments."""
    await play.until("some is copied", lambda: len(copies(play, FINISHED)) >= count)
    await play.until("it leaves the disk", lambda: log_of(play.leader).local_log_start_offset > 0)


async def until_leads_another(play: Play, node: Node) -> None:
    await play.until("another leads", lambda: play.stage.leader(TP) not in (None, node))


async def switch(play: Play, settings: dict[str, str]) -> None:
    """Ask until it is so: the broker whose requests are held may be the controller."""
    operator = play.stage.client(f"tier operator {play.stage.loop.now}")

    async def ask() -> None:
        while not settings.items() <= play.stage.truth.topic_configs(TP[0]).items():
            with contextlib.suppress(Lost):
                await operator.set_tiering(TP[0], settings)

    await play.stage.finish([operator.start(ask())])


async def keep_for_ever(play: Play) -> None:
    operator = play.stage.client("who keeps all")

    async def ask() -> None:
        while play.stage.truth.topic_configs(TP[0])["retention.ms"] != "-1":
            with contextlib.suppress(Lost):
                await operator.configure_topic(TP[0], "-1", {})

    await play.stage.finish([operator.start(ask())])


def metadata_leader(play: Play) -> Node:
    leader = play.stage.leader((METADATA_TOPIC, 0))
    assert leader is not None
    return leader


def follower(play: Play) -> Node:
    """The other replica of two."""
    partition = play.stage.truth.image.partition(*TP)
    assert partition is not None
    (other,) = (play.stage.nodes[number] for number in partition.replicas if number != partition.leader)
    return other


@dataclass(frozen=True, slots=True)
class Cast:
    """Four brokers with a part each: the leader of t, its follower, and who leads the tier's metadata is not
    the controller."""

    leader: Node
    follower: Node
    metadata: Node
    controller: Node


async def cast(play: Play) -> Cast:
    controller = play.controller
    await play.until("the tier has metadata", lambda: play.stage.leader((METADATA_TOPIC, 0)))
    metadata = metadata_leader(play)
    assert metadata is not controller
    operator = play.stage.client("operator of the cast")
    wanted = [node.id for node in play.others(controller, metadata)]
    await play.stage.finish([operator.start(operator.reassign(TP, wanted))])
    await play.until("t has moved", lambda: play.isr == {*wanted} and not play.stage.broken())
    return Cast(leader=play.leader, follower=follower(play), metadata=metadata, controller=controller)


def known_epoch(node: Node) -> int:
    """The leader epoch of t as this broker knows it."""
    image = node.image()
    partition = None if image is None else image.partition(*TP)
    assert partition is not None
    return partition.leader_epoch


def isolate(play: Play, roles: Cast) -> list[Cut]:
    """The leader reaches nobody and hears nothing of what the store did; the follower does not reach who
    leads the tier's metadata. Nobody writes to the leader: what it took as the only one in sync would be lost
    to an election that it has not heard of."""
    roles.leader.line.holds_answers = True
    others = [node for node in play.others(roles.leader) if node is not roles.metadata]
    play.cut(roles.leader, *others, *(load.name for load in play.loads))
    play.cut(roles.follower, roles.metadata)
    return play.cut(roles.leader, roles.metadata)


async def until_deposed(play: Play, roles: Cast) -> None:
    """Another leads, the tier's metadata knows, and the leader does not."""
    await until_leads_another(play, roles.leader)
    await play.until("the metadata's leader knows", lambda: known_epoch(roles.metadata) == play.leader_epoch)
    assert known_epoch(roles.leader) < play.leader_epoch


def served(play: Play) -> list[int]:
    """Every offset that a reader got in the end."""
    return [offset for offset, _ in play.stage.history.logs[TP].served]


async def lead_by_who_lacks_what_is_tiered(play: Play) -> tuple[Node, int]:
    """An unclean election of the one of two replicas that ends amid a copy of the other's. Who led, and where
    the new leader's log ended then."""
    play.stage.history.unclean_topics.add(TP[0])
    play.load("fan", acks=1)  # so that the segment goes on while nothing can be committed
    await until_tiered(play, 1)
    first, behind = play.leader, follower(play)
    closed = len(log_of(first).segments)
    await play.until("a segment begins", lambda: len(log_of(first).segments) > closed)
    begun = log_of(first).segments[-1].base_offset
    await play.until("both have some of it", lambda: log_of(behind).high_watermark > begun)
    cuts = play.cut(behind, *play.others(behind))
    behind.line.down = True  # or it stays the controller, if it is that
    await play.until("the ISR shrinks", lambda: play.isr == {first.id})
    end = log_of(behind).log_end_offset

    def goes_past(copy: Copy) -> bool:
        return copy.base < end < copy.end

    await play.until("it copies more than the other has", lambda: any(map(goes_past, copies(play, FINISHED))))
    await play.until("that leaves its disk", lambda: log_of(first).local_log_start_offset > end)
    first.kill()
    play.mend(cuts)
    behind.line.heal()
    await play.until("the other leads", lambda: play.stage.leader(TP) is behind)
    return first, end


def test_two_leaders_copy_the_same_segment_and_one_copy_stays() -> None:
    async def script(play: Play) -> None:
        await until_tiered(play, 1)
        first = play.leader
        first.line.holds = True
        before = len(copies(play, FINISHED))
        await play.until("a copy is under way", lambda: copies(play, STARTED))
        begun = copies(play, STARTED)[0]
        play.cut(first, *play.others(first))
        await until_leads_another(play, first)
        await play.until("it copies too", lambda: len(copies(play, FINISHED)) > before)
        assert begun.base in {copy.base for copy in copies(play, FINISHED)}
        first.line.heal()
        first.line.let_go()

    play = tiered("two leaders copy")
    clean(play.perform(script))
    bases = Counter(copy.base for copy in play.stage.history.tiers[-1].copies)
    assert max(bases.values()) == 1


def test_a_put_that_lands_after_its_orphan_was_deleted_is_deleted_too() -> None:
    async def script(play: Play) -> None:
        await until_tiered(play, 1)
        first = play.leader
        await play.until("no copy is under way", lambda: not copies(play, STARTED))
        first.line.holds = True  # so the first that is held begins the first object
        under_way = play.stage.bucket.tier_under_way
        await play.until(
            "its first object is under way",
            lambda: any(key in under_way for copy in copies(play, STARTED) for key in copy.keys),
        )
        orphan = next(copy for copy in copies(play, STARTED) if {*copy.keys} & {*under_way})
        first.kill()
        await until_leads_another(play, first)
        await play.until("it is given up", lambda: orphan.id in {copy.id for copy in copies(play, DELETING)})
        await play.wait(5)
        assert first.line.let_go() > 0
        there = {*play.stage.bucket.objects, *(key for key, _ in play.stage.bucket.uploads)}
        assert there & {*orphan.keys}

    clean(tiered("late put").perform(script))


@pytest.mark.parametrize("brokers", [1, 3])
def test_killed_between_finished_and_the_local_delete(brokers: int) -> None:
    async def script(play: Play) -> None:
        for count in (1, 3, 5):
            await play.until("one more is copied", lambda count=count: len(copies(play, FINISHED)) >= count)
            for node in play.nodes:
                node.kill()
            for node in play.nodes:
                await node.start()
            await play.until("somebody leads", lambda: play.stage.leader(TP) is not None)
            await play.progress(play.loads[0])

    clean(tiered(f"killed after finished {brokers}", brokers=brokers).perform(script))


def test_log_start_and_epochs_survive_a_power_cut() -> None:
    async def script(play: Play) -> None:
        for _ in range(2):
            await until_tiered(play)
            first = play.leader
            first.kill()
            await until_leads_another(play, first)
            await first.start()
            await play.until("it is back", lambda first=first: first.id in play.isr)
            await play.progress(play.loads[0])
        await until_tiered(play, 8)
        play.loads[0].stop()
        await play.stage.finish([play.loads[0].task])
        await play.delete_before(2)
        await play.until("all have heard", lambda: {log_of(n).log_start_offset for n in play.nodes} == {2})
        await play.wait(2)
        before = log_of(play.leader)
        epochs, local = before.epochs.entries(), before.local_log_start_offset
        assert local > 2 and len(epochs) > 2
        for node in play.nodes:
            node.kill(power=True)
        for node in play.nodes:
            await node.start()
        await play.until("somebody leads", lambda: play.stage.leader(TP) is not None)
        after = log_of(play.leader)
        assert after.log_start_offset == 2
        assert after.epochs.entries()[: len(epochs)] == epochs

    clean(tiered("log start in the tier", **{"log.flush.interval.messages": "1"}).perform(script))


def test_the_metadata_leader_dies_with_a_finish_in_doubt() -> None:
    async def script(play: Play) -> None:
        for _ in range(4):
            count = len(copies(play, STARTED, FINISHED))
            await play.until(
                "one more is begun", lambda count=count: len(copies(play, STARTED, FINISHED)) > count
            )
            dying = metadata_leader(play)
            log = dying.log((METADATA_TOPIC, 0))
            assert log is not None
            end = log.log_end_offset
            await play.until("it is told more", lambda log=log, end=end: log.log_end_offset > end)
            dying.kill()
            await play.until(
                "another leads the metadata",
                lambda dying=dying: play.stage.leader((METADATA_TOPIC, 0)) not in (None, dying),
            )
            await dying.start()
            await play.until("it is back", lambda: not play.stage.broken())

    clean(tiered("finish in doubt").perform(script))


def test_a_broker_behind_in_metadata_tells_nobody_out_of_range() -> None:
    async def script(play: Play) -> None:
        client = play.stage.client("reader of old")
        consumer = Consumer(client=client, partitions=[TP], pause_s=0.2, rewind_chance=0.6)
        reading = client.start(consumer.run())
        await until_tiered(play)
        for _ in range(3):
            first = play.leader
            told = metadata_leader(play)
            cuts = [cut for node in play.others(told, first) for cut in play.cut(node, told)]
            if first is not told:
                first.kill()
                await until_leads_another(play, first)
                await play.wait(4)
                await first.start()
            await play.wait(2)
            play.mend(cuts)
            await play.until("all are back", lambda: not play.stage.broken())
            told.kill()
            await play.wait(10)
            await told.start()
            await play.until("all are back again", lambda: not play.stage.broken())
        play.stage.env.stopping = True
        await play.stage.finish([reading])

    play = tiered("behind in metadata")
    clean(play.perform(script))
    assert any(fetch.batches for fetch in play.stage.history.fetches if fetch.client == "reader of old")


def test_a_topic_made_anew_while_its_leader_was_down_leaves_nothing() -> None:
    async def script(play: Play) -> None:
        admin = play.stage.client("admin of other")
        configs = dict(play.configs)
        make = admin.create_topic_surely
        await play.stage.finish([admin.start(make("other", 1, configs, replicas=3))])
        load = play.load("other load", tp=("other", 0))
        await play.progress(load)
        first_id = play.stage.truth.image.topics["other"].id

        def its_copies() -> list[Copy]:
            return [copy for copy in copies(play, FINISHED) if copy.topic_id == first_id]

        await play.until("it is copied", its_copies)
        load.stop()
        await play.stage.finish([load.task])
        leader = play.stage.leader(("other", 0))
        assert leader is not None
        leader.kill()
        await play.delete_topic("other")
        sends = play.stage.history.sends
        sends[:] = [send for send in sends if send.tp == TP]  # what went with the topic is not missed
        again = play.stage.client("admin of other again")
        await play.stage.finish([again.start(again.create_topic_surely("other", 1, configs, replicas=2))])
        await leader.start()
        await play.until("nothing is left of it", lambda: not its_copies())

    play = tiered("made anew")
    clean(play.perform(script))


@pytest.mark.parametrize("amid", ["a copy", "a copy, and killed", "nothing"])
def test_tiering_is_disabled_and_enabled_during_a_copy(amid: str) -> None:
    async def script(play: Play) -> None:
        play.stage.history.forgets = True
        await until_tiered(play)
        leader = play.leader
        if amid != "nothing":
            leader.line.holds = True
            await play.until("a copy is under way", lambda: copies(play, STARTED) and leader.line.held)
        await switch(play, OFF)
        if "killed" in amid:
            leader.kill()
            await until_leads_another(play, leader)
        await play.wait(3)
        await switch(play, ON)
        await play.wait(1)
        leader.line.heal()
        leader.line.let_go()
        if "killed" in amid:
            await leader.start()
        await play.progress(play.loads[0])
        await until_tiered(play)

    clean(tiered(f"off and on amid {amid}").perform(script))


def test_the_store_hangs_for_a_minute_under_reads_copies_and_deletes() -> None:
    async def script(play: Play) -> None:
        client = play.stage.client("reader of old")
        consumer = Consumer(client=client, partitions=[TP], pause_s=0.2, rewind_chance=0.5)
        reading = client.start(consumer.run())
        await until_tiered(play)
        for node in play.nodes:
            node.line.hang = True
        start = log_of(play.leader).local_log_start_offset - 1
        await play.delete_before(start)
        doomed = {copy.id for copy in copies(play, FINISHED) if copy.end <= start}
        assert doomed
        await play.wait(30)
        await play.progress(play.loads[0])
        await play.wait(30)
        assert not doomed & {copy.id for copy in copies(play, "DELETE_FINISHED", GONE)}
        for node in play.nodes:
            node.line.heal()
        play.stage.env.stopping = True
        await play.stage.finish([reading])
        await play.until(
            "the backlog is gone",
            lambda: log_of(play.leader).log_end_offset - log_of(play.leader).tiered_end < 12,
            seconds=60,
        )
        await play.end_loads()
        left = (STARTED, FINISHED, DELETING)
        await play.until(
            "what was deleted is gone",
            lambda: not doomed & {each.id for each in copies(play, *left)},
            seconds=90,
        )

    clean(tiered("a store that hangs").perform(script))


@pytest.mark.parametrize("changes", [1, 4, 11, 22])
def test_a_bootstrap_killed_at_each_file_begins_anew(changes: int) -> None:
    async def script(play: Play) -> None:
        await play.restart(play.leader)  # so that the tier has more epochs than one
        await until_tiered(play, 4)
        empty = play.others(play.leader)[0]
        empty.replace_disk()
        empty.begin()
        await play.until("it is ready", lambda: empty.is_ready)
        assert empty.files is not None
        empty.files.die_in_changes(changes, power=False)
        await play.wait(5)
        if not empty.is_alive:
            empty.begin()
        await play.until("it is back", lambda: empty.is_ready and empty.id in play.isr)
        assert log_of(empty).local_log_start_offset > 0
        epochs = log_of(play.leader).epochs.entries()
        assert len(epochs) > 1
        assert log_of(empty).epochs.entries() == epochs
        await play.progress(play.loads[0])

    clean(tiered(f"bootstrap killed at {changes}").perform(script))


def test_the_pending_offset_and_the_leader_move_during_a_bootstrap() -> None:
    async def script(play: Play) -> None:
        await until_tiered(play, 4)
        first = play.leader
        empty = play.others(first)[0]
        empty.replace_disk()
        empty.line.holds_answers = True
        empty.begin()
        await play.wait(6)
        await play.progress(play.loads[0])
        first.kill()
        await until_leads_another(play, first)
        await play.progress(play.loads[0])
        empty.line.heal()
        await first.start()
        await play.until("all are back", lambda: not play.stage.broken())

    clean(tiered("everything moves").perform(script))


def test_an_unclean_leader_that_ends_below_the_tier_serves_no_foreign_record() -> None:
    ends = []

    async def script(play: Play) -> None:
        _, end = await lead_by_who_lacks_what_is_tiered(play)
        ends.append(end)
        leader = play.leader
        await play.until(
            "what both have leaves its disk", lambda: log_of(leader).local_log_start_offset >= end
        )
        foreign = [copy for copy in copies(play, FINISHED) if copy.base < end < copy.end]
        client = play.stage.client("reader of old")
        consumer = Consumer(client=client, partitions=[TP], pause_s=0.2, rewind_chance=0.6)
        reading = client.start(consumer.run())
        await play.until("its own is in the tier", lambda: log_of(leader).tiered_end > end + 5)
        await play.wait(3)
        play.stage.env.stopping = True
        await play.stage.finish([reading])
        assert {copy.id for copy in foreign} & {copy.id for copy in copies(play, FINISHED)}

    play = tiered("ends below the tier", replicas=2, configs=UNCLEAN)
    verdict = clean(play.perform(script))
    assert verdict.lost_by_all + verdict.lost_with_leader > 0
    assert served(play)[0] < ends[0] < served(play)[-1]


def test_a_follower_that_parts_below_its_local_start_keeps_what_is_tiered() -> None:
    async def script(play: Play) -> None:
        gone = play.load("who wrote long ago", is_idempotent=True)
        await play.progress(gone)
        gone.stop()
        first, end = await lead_by_who_lacks_what_is_tiered(play)
        await switch(play, {"local.retention.ms": "-2"})
        await play.progress(play.loads[0])
        assert log_of(play.leader).local_log_start_offset <= end
        await first.start()
        await play.until("it follows", lambda: first.id in play.isr)
        kept = log_of(first)
        assert kept.log_start_offset == 0 < kept.local_log_start_offset
        assert kept.epochs.known_from == 0
        assert kept.producer_table.entries
        play.leader.kill()
        await play.until("it leads", lambda: play.stage.leader(TP) is first)
        await play.progress(play.loads[0])

    play = tiered("parts below its local start", replicas=2, configs=UNCLEAN)
    clean(play.perform(script))
    assert served(play)[0] == 0


def test_a_deposed_leader_finishes_its_copy_after_an_unclean_election() -> None:
    async def script(play: Play) -> None:
        play.stage.history.unclean_topics.add(TP[0])
        roles = await cast(play)
        first = roles.leader
        play.cut(first, roles.follower)
        await play.until("the ISR shrinks", lambda: play.isr == {first.id})
        end = log_of(roles.follower).log_end_offset
        first.line.latency_min_s = first.line.latency_max_s = 0.2
        objects = play.stage.bucket.objects

        def whole() -> list[Copy]:
            begun = [copy for copy in copies(play, STARTED) if copy.base > end]
            return [copy for copy in begun if {*copy.keys} <= objects.keys()]

        await play.until("a copy of foreign records is whole", whole)
        (copy,) = whole()
        to_metadata = isolate(play, roles)
        await until_deposed(play, roles)
        play.mend(to_metadata)
        first.line.heal()
        await play.wait(4)
        assert copy.id in {each.id for each in copies(play, STARTED)}
        play.stage.fabric.heal()
        await play.until("it is given up", lambda: copy.id in {each.id for each in copies(play, DELETING)})

    play = tiered("finishes too late", brokers=4, replicas=2, configs=UNCLEAN)
    verdict = clean(play.perform(script))
    assert verdict.lost_by_all > 0


def test_a_deposed_leader_cannot_expire_by_old_retention() -> None:
    async def script(play: Play) -> None:
        roles = await cast(play)
        await until_tiered(play)
        first = roles.leader
        to_metadata = isolate(play, roles)
        await keep_for_ever(play)
        await until_deposed(play, roles)
        kept = {copy.id for copy in copies(play, FINISHED)}
        assert log_of(first).log_start_offset == 0
        first.step_clock(7_200_000)
        await play.wait(4)
        assert known_epoch(first) < play.leader_epoch
        assert log_of(first).log_start_offset == 0
        play.mend(to_metadata)
        await play.wait(4)
        assert kept <= {copy.id for copy in copies(play, FINISHED)}
        assert log_of(first).log_start_offset == log_of(play.leader).log_start_offset == 0
        play.stage.fabric.heal()
        first.line.heal()
        await play.until("it is back", lambda: not play.stage.broken())
        await play.progress(play.loads[0])
        last = play.leader
        await play.until("it is in sync", lambda: first.id in play.isr)
        last.kill()
        await play.until("it leads again", lambda: play.stage.leader(TP) is first)
        assert log_of(first).log_start_offset == 0
        await last.start()
        await play.progress(play.loads[0])

    play = tiered("old retention", brokers=4, replicas=2, configs={"retention.ms": "3600000"})
    clean(play.perform(script))
    assert served(play)[0] == 0


def test_a_topic_made_anew_while_everybody_was_down_leaves_nothing() -> None:
    async def script(play: Play) -> None:
        admin = play.stage.client("admin of other")
        configs = dict(play.configs)
        tp = ("other", 0)
        await play.stage.finish([admin.start(admin.create_topic_surely("other", 1, configs, replicas=2))])
        load = play.load("other load", tp=tp)
        await play.progress(load)
        first_id = play.stage.truth.image.topics["other"].id

        def its_copies() -> list[Copy]:
            return [copy for copy in copies(play, STARTED, FINISHED, DELETING) if copy.topic_id == first_id]

        await play.until("it is copied", lambda: len(its_copies()) > 2)
        load.stop()
        await play.stage.finish([load.task])
        partition = play.stage.truth.image.partition(*tp)
        assert partition is not None
        for number in partition.replicas:
            play.stage.nodes[number].kill()
        await play.delete_topic("other")
        sends = play.stage.history.sends
        sends[:] = [send for send in sends if send.tp == TP]  # what went with the topic is not missed
        again = play.stage.client("admin of other again")
        await play.stage.finish([again.start(again.create_topic_surely("other", 1, configs, replicas=2))])
        for node in play.nodes:
            node.kill()
        before = its_objects(play, first_id)
        assert before
        for node in play.nodes:
            node.begin()
        await play.until("all are back", lambda: len(play.stage.ready()) == 4 and not play.stage.broken())
        await play.end_loads()
        await play.until(
            "nothing is left of it", lambda: not its_copies() and not its_objects(play, first_id), seconds=150
        )
        assert play.stage.truth.image.topics["other"].id != first_id
        for node in play.nodes:
            log = node.log(tp)
            assert log is None or log.log_end_offset == 0

    clean(tiered("everybody down", brokers=4, replicas=2).perform(script))


def its_objects(play: Play, topic_id: UUID) -> list[str]:
    prefix = topic_prefix(topic_id)
    return [key for key in play.stage.bucket.objects if key.startswith(prefix)]
