"""Named scenarios: the failures that cost other systems data, each on a cluster of its own, each judged by
all rules."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from broker.control.commands import Rules
from broker.control.image import Image
from broker.control.metadata_log import MetadataLog
from broker.control.metadata_records import PartitionImage
from broker.control.topics import CreateTopics
from broker.decisions import Decision
from broker.replicas.fetcher import Fetcher
from broker.replicas.partition import Partition
from protocol.work import Work
from storage.log_manager import LogManager
from tests.sim.client import BROKER_PORT
from tests.sim.loop import SimFailure
from tests.sim.play import TP, Load, Play, Script
from tests.sim.verdict import Verdict

pytestmark = pytest.mark.usefixtures("quiet")


def clean(verdict: Verdict) -> Verdict:
    assert verdict.clean, "\n".join(map(str, verdict.violations))
    return verdict


def test_a_broker_cut_from_its_peers_but_not_from_the_store_starts_no_duel() -> None:
    async def script(play: Play) -> None:
        epoch, lonely = play.controller_epoch, play.others(play.controller, play.leader)[0]
        cuts = play.cut(lonely, *play.others(lonely))
        await play.until("it leaves the ISR", lambda: lonely.id not in play.isr)
        await play.wait(60)
        assert play.controller_epoch == epoch
        await play.progress(play.loads[0])
        play.mend(cuts)
        await play.until("it comes back", lambda: lonely.id in play.isr)

    clean(Play("duel", brokers=4).perform(script))


def test_a_controller_that_slept_through_its_replacement_learns_of_it_soon() -> None:
    async def script(play: Play) -> None:
        sleeper = play.controller
        sleeper.pause()
        await play.until("another is elected", lambda: play.controller is not sleeper)
        sleeper.resume()
        assert sleeper.broker is not None
        cluster = sleeper.broker.components.cluster
        await play.until("it knows", lambda: not cluster.is_controller, seconds=6)

    clean(Play("sleeper", brokers=4).perform(script))


def test_a_controller_cut_from_its_peers_but_not_from_the_store_is_not_challenged_for_ever() -> None:
    async def script(play: Play) -> None:
        epoch, controller = play.controller_epoch, play.controller
        cuts = play.cut(controller, *play.others(controller))
        await play.wait(60)
        assert play.controller_epoch <= epoch + 1
        play.mend(cuts)
        await play.progress(play.loads[0])

    clean(Play("lonely controller").perform(script))


def test_a_stuck_controller_that_lives_and_cannot_write_is_replaced() -> None:
    async def script(play: Play) -> None:
        epoch, stuck = play.controller_epoch, play.controller
        stuck.line.hang = True
        await play.create_topic("needs-a-slot")
        assert play.controller_epoch > epoch
        assert play.controller is not stuck
        await play.progress(play.loads[0])
        stuck.line.heal()
        image = stuck.image
        await play.until("it follows", lambda: (found := image()) and found.controller_id != stuck.id)

    clean(Play("stuck controller").perform(script))


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_a_replaced_disk_is_filled_again_before_it_counts(who: str) -> None:
    async def script(play: Play) -> None:
        leader = play.leader
        node = leader if who == "leader" else play.others(leader)[0]
        node.replace_disk()
        await node.start()
        await play.until("it comes back", lambda: play.isr == {1, 2, 3} and node.is_ready)
        await play.progress(play.loads[0])

    verdict = clean(Play(f"replaced disk of the {who}").perform(script))
    assert verdict.lost_by_all == 0


async def fast_power_cut(play: Play) -> None:
    """A follower this time, and nothing is looked at: for the rules."""
    follower = play.others(play.leader)[0]
    follower.kill(power=True)
    await follower.start()
    await play.wait(5)


async def fast_restart(play: Play) -> None:
    leader, epoch = play.leader, play.leader_epoch
    leader.kill(power=True)
    await leader.start()
    assert play.leader_epoch > epoch
    await play.until("it comes back", lambda: play.isr == {1, 2, 3})
    await play.progress(play.loads[0])


def test_a_leader_back_within_its_session_after_a_power_cut_does_not_lead_on_what_is_left() -> None:
    verdict = clean(Play("fast restart").perform(fast_restart))
    assert verdict.lost_by_all == 0


async def delayed_put(play: Play) -> None:
    old, epoch = play.controller, play.controller_epoch
    old.line.holds = True
    await play.create_topic("first")
    assert play.controller_epoch > epoch
    await play.create_topic("second")
    old.line.holds = False
    assert old.line.let_go()
    await play.create_topic("third")


async def two_candidates(play: Play) -> None:
    """Who hears that the controller's port is closed stands at once."""
    play.controller.kill()
    await play.create_topic("after")
    await play.wait(10)


def test_of_two_candidates_for_one_slot_one_leads() -> None:
    clean(Play("one slot for two").perform(two_candidates))


def test_a_put_that_takes_effect_after_its_controller_was_replaced_changes_nothing() -> None:
    clean(Play("delayed put").perform(delayed_put))


def test_a_controller_that_slept_for_25_hours_cannot_win_a_slot_that_was_collected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    snapshot_often(monkeypatch)

    async def script(play: Play) -> None:
        sleeper, epoch = play.controller, play.controller_epoch
        sleeper.line.holds = True
        admin = play.stage.client("nobody answers")
        admin.start(admin.create_topic("asleep", 1, {}, replicas=1))
        await play.until("it writes", lambda: sleeper.line.held)
        sleeper.pause()
        await play.until("another takes over", lambda: play.controller_epoch > epoch)
        for number in range(8):
            await play.create_topic(f"before-{number}")
        for node in play.nodes:
            node.step_clock(25 * 3_600_000)
        for number in range(8):
            await play.create_topic(f"after-{number}")
        journal = play.stage.bucket.journal
        await play.until("slots are collected", lambda: any(c.kind == "delete" for c in journal))
        sleeper.line.holds = False
        assert sleeper.line.let_go()
        sleeper.resume()
        await play.wait(15)
        if not sleeper.is_alive:
            await sleeper.start()
        await play.until("it follows", lambda: same_image(play))
        assert play.stage.truth.image.topics.keys() >= {"after-7"}

    clean(Play("sleeper").perform(script))


def snapshot_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """In every module that has the number under its own name."""
    import sys

    for name, module in list(sys.modules.items()):
        if name.startswith("broker.") and hasattr(module, "SNAPSHOT_EVERY_SLOTS"):
            monkeypatch.setattr(module, "SNAPSHOT_EVERY_SLOTS", 5)


def same_image(play: Play) -> bool:
    images = [node.image() for node in play.nodes]
    return all(image is not None and image.seq == play.stage.truth.image.seq for image in images)


async def leader_dies_behind_a_cut(play: Play) -> None:
    """While one replica is alive and out of the ISR; nothing is looked at: for the rules."""
    leader = play.leader
    if leader is play.controller:
        await play.restart(leader)
        await play.until("it is back in sync", lambda: play.isr == {1, 2, 3})
        leader = play.leader
    behind = play.others(leader)[0]
    cuts = play.cut(behind, leader)
    await play.until("the ISR shrinks", lambda: behind.id not in play.isr)
    leader.kill()
    await play.wait(20)
    play.mend(cuts)


async def shrink_and_death(play: Play) -> None:
    leader = play.leader
    behind, member = play.others(leader)
    cuts = play.cut(behind, *play.others(behind))
    await play.until("the ISR shrinks", lambda: play.isr == {leader.id, member.id})
    await play.progress(play.loads[0])
    leader.kill()
    play.mend(cuts)
    await play.until("somebody leads", lambda: play.stage.leader(TP) not in (None, leader))
    assert play.leader is member


def test_after_the_isr_shrank_and_the_leader_died_only_a_member_leads() -> None:
    clean(Play("shrink and death").perform(shrink_and_death))


def test_a_replica_that_is_behind_does_not_lead_even_when_nobody_else_can() -> None:
    async def script(play: Play) -> None:
        leader = play.leader
        behind = play.others(leader)[0]
        cuts = play.cut(behind, *play.others(behind))
        await play.until("the ISR shrinks", lambda: play.isr == {leader.id})
        await play.progress(play.loads[0])
        leader.kill()
        play.mend(cuts)
        await play.until("it is noticed", lambda: play.stage.leader(TP) is None)
        await play.wait(20)
        assert play.stage.leader(TP) is None
        await leader.start()
        await play.progress(play.loads[0])

    verdict = clean(Play("stale replica", replicas=2, min_isr=1, brokers=3).perform(script))
    assert verdict.lost_by_all == 0


def test_an_unclean_election_loses_the_rest_and_keeps_the_replicas_equal() -> None:
    async def script(play: Play) -> None:
        play.stage.history.unclean_topics.add("t")
        leader = play.leader
        behind = next(play.stage.nodes[n] for n in replicas(play) if n != leader.id)
        cuts = play.cut(behind, *play.others(behind))
        await play.until("the ISR shrinks", lambda: play.isr == {leader.id})
        await play.progress(play.loads[0])
        leader.kill()
        play.mend(cuts)
        await play.until("the other leads", lambda: play.stage.leader(TP) is behind)
        await play.progress(play.loads[0])
        await leader.start()
        await play.until("the old leader follows", lambda: leader.id in play.isr)

    configs = {"unclean.leader.election.enable": "true"}
    verdict = clean(Play("unclean", replicas=2, min_isr=1, configs=configs).perform(script))
    assert verdict.lost_by_all > 0


def replicas(play: Play) -> tuple[int, ...]:
    partition = play.stage.truth.image.partition(*TP)
    assert partition is not None
    return partition.replicas


async def zombie(play: Play) -> None:
    zombie = play.leader
    fan = play.load("fan", acks=1)
    careful = play.load("careful", acks=-1)
    await play.progress(fan)
    await play.progress(careful)
    play.cut(zombie, *play.others(zombie))
    for load in (fan, careful):
        for node in play.others(zombie):
            play.stage.fabric.cut(load.name, node.name)
    zombie.line.down = True
    acked = len(careful.acked)
    await play.until("another leads", lambda: play.leader is not zombie)
    await play.progress(fan)
    await play.progress(play.loads[0])
    assert len(careful.acked) <= acked + 1  # one may have been on its way


def test_a_zombie_leader_takes_acks_1_and_gives_it_up_when_it_is_back() -> None:
    verdict = clean(Play("zombie").perform(zombie))
    assert verdict.lost_with_leader > 0
    assert verdict.lost_by_all == 0


def test_the_store_may_be_down_for_a_minute_under_load() -> None:
    async def script(play: Play) -> None:
        epochs = play.controller_epoch, play.leader_epoch
        play.stage.store.down = True
        for _ in range(6):
            await play.wait(10)
            await play.progress(play.loads[0], seconds=10)
        play.stage.store.heal()
        await play.wait(20)
        assert epochs == (play.controller_epoch, play.leader_epoch)
        await play.create_topic("after")

    clean(Play("store down").perform(script))


def test_a_rolling_restart_loses_nothing_and_stops_nobody() -> None:
    async def script(play: Play) -> None:
        for node in play.nodes:
            await play.restart(node)
            await play.progress(play.loads[0], seconds=15)
            await play.until("it is back in sync", lambda: play.isr == {1, 2, 3})

    verdict = clean(Play("rolling restart").perform(script))
    assert verdict.lost_by_all == 0


def test_everybody_killed_at_once_comes_back_with_everything() -> None:
    async def script(play: Play) -> None:
        for node in play.nodes:
            node.kill()
        for node in play.nodes:
            node.begin()
        await play.progress(play.loads[0])

    verdict = clean(Play("all killed").perform(script))
    assert verdict.lost_by_all == 0


def test_a_paused_leader_wakes_up_as_a_follower() -> None:
    async def script(play: Play) -> None:
        leader = play.leader
        leader.pause()
        await play.until("another leads", lambda: play.leader is not leader)
        await play.progress(play.loads[0])
        leader.resume()
        await play.until("it follows", lambda: leader.id in play.isr)

    clean(Play("paused leader").perform(script))


def test_clocks_that_jump_change_nothing() -> None:
    async def script(play: Play) -> None:
        epochs = play.controller_epoch, play.leader_epoch
        for node, hours in zip(play.nodes, (1, -1, 26), strict=True):
            node.step_clock(hours * 3_600_000)
            await play.wait(10)
            await play.progress(play.loads[0])
        assert epochs == (play.controller_epoch, play.leader_epoch)

    clean(Play("clocks").perform(script))


async def member_dies_without_store(play: Play) -> None:
    """Nobody may leave the ISR while no slot can be won, so acks=all has to wait for the member."""
    careless = play.load("careless", acks=1)
    await play.progress(careless)
    play.stage.store.down = True
    member = play.others(play.leader)[0]
    member.kill()
    await play.wait(2)
    await play.wait(20)
    await play.progress(careless)
    play.stage.store.heal()
    await play.progress(play.loads[0])


def test_without_the_store_the_isr_cannot_shrink_so_acks_all_waits_and_acks_1_goes_on() -> None:
    play = Play("member dies without store")
    clean(play.perform(member_dies_without_store))
    assert longest_pause_s(play.loads[0]) > 15
    assert longest_pause_s(play.loads[1]) < 10


def longest_pause_s(load: Load) -> float:
    """Between two acks."""
    acked = sorted(send.done for send in load.acked)
    return max(after - before for before, after in pairwise(acked))


# --- a broken cluster is caught -----------------------------------------------------------------------------


def broken(play: Play, script: Script) -> set[str]:
    """The rules that were broken; "stuck" when the play did not come to its end."""
    try:
        return play.perform(script).rules()
    except (SimFailure, AssertionError):
        return {"stuck"}


def test_a_watermark_that_does_not_wait_for_a_member_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Partition, "frontier", lambda self: self.log.log_end_offset)
    assert "13 acks count everyone" in broken(Play("early watermark"), shrink_and_death)


def test_an_isr_used_before_it_is_committed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Partition._propose

    def propose(self: Partition, isr: tuple[int, ...]) -> None:
        honest(self, isr)
        self.maximal_isr = frozenset(isr)

    monkeypatch.setattr(Partition, "_propose", propose)
    assert "13 acks count everyone" in broken(Play("early ISR"), member_dies_without_store)


def test_a_leader_that_does_not_say_where_logs_part_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.replicas.read.divergence", lambda held, wanted: None)
    assert broken(Play("no divergence"), zombie)


def test_a_follower_that_keeps_what_differs_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fetcher, "_truncate", lambda self, position, leader_epoch, leader_end: None)
    assert broken(Play("no truncation"), zombie)


def test_a_fold_that_trusts_whoever_lost_power_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest: Callable[..., Work[None]] = Image._reincarnate

    def reincarnate(self: Image, broker_id: int, **how: object) -> Work[None]:
        return honest(self, broker_id, **{**how, "clean": True})

    monkeypatch.setattr(Image, "_reincarnate", reincarnate)
    assert "13 the unclean leave" in broken(Play("trust"), fast_power_cut)


def test_an_election_from_outside_the_isr_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def elect(self: Image, partition: PartitionImage, isr: tuple[int, ...]) -> PartitionImage:
        live = [replica for replica in partition.replicas if self.is_live(replica)]
        leader = min(live, key=lambda replica: (replica in isr, replica), default=-1)
        return partition.changed(leader=leader, isr=tuple(sorted({*isr, leader} - {-1})))

    monkeypatch.setattr(Image, "_elect", elect)
    assert "13 leaders in sync" in broken(Play("stranger"), leader_dies_behind_a_cut)


def test_a_writer_that_takes_a_lost_slot_for_its_own_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = MetadataLog._put

    async def put(self: MetadataLog, key: str, data: bytes) -> bool:
        await honest(self, key, data)
        return True

    async def script(play: Play) -> None:
        monkeypatch.setattr(MetadataLog, "_put", put)
        await two_candidates(play)

    assert broken(Play("one slot for two"), script)


# --- topics that go and are made anew -----------------------------------------------------------------------


async def made_anew_while_a_replica_is_away(play: Play) -> None:
    """It comes back with the log of the former topic of that name."""
    operator = play.stage.client("operator")

    async def make(mark: int) -> None:
        await operator.create_topic_surely("again", 1, {}, replicas=3)
        while not any(each.value == mark for each in play.stage.history.marks):
            await operator.write_mark("again", mark)

    away = play.others(play.controller, play.leader)[0]
    await play.stage.finish([operator.start(make(1))])
    await play.until("all have it", lambda: not play.stage.uneven([("again", 0)]))
    away.kill()
    await play.until("it is missed", lambda: away.id not in play.isr)
    await play.delete_topic("again")
    await play.until("it is gone", lambda: "again" not in play.stage.truth.image.topics)
    away.begin()
    await play.until("it is back", lambda: away.id in play.isr)
    await play.stage.finish([operator.start(make(2))])


async def read_where_it_was_ordered(play: Play) -> None:
    """From a broker that only passes orders on, each followed by a look at what came of it."""
    operator, other = play.stage.client("operator"), play.others(play.controller)[0]

    async def order() -> None:
        for number in range(8):
            operator.home = (other.name, BROKER_PORT)
            await operator.create_topic(f"seen-{number}", 1, {}, replicas=1)
            await operator.refresh(None)

    await play.stage.finish([operator.start(order())])


def test_a_topic_made_anew_holds_nothing_of_the_former_one() -> None:
    clean(Play("anew").perform(made_anew_while_a_replica_is_away))


def test_a_broker_that_takes_the_former_log_for_the_new_one_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LogManager, "stray", lambda self, topic, partition: None)
    assert broken(Play("former"), made_anew_while_a_replica_is_away)


def test_who_ordered_something_sees_it_where_it_was_ordered() -> None:
    clean(Play("seen").perform(read_where_it_was_ordered))


def test_a_controller_that_acknowledges_what_it_does_not_write_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = CreateTopics.decide

    def decide(self: CreateTopics, image: Image, rules: Rules) -> Work[Decision[Any]]:
        decided = yield from honest(self, image, rules)
        return Decision(response=decided.response) if len(image.topics) == 4 else decided

    monkeypatch.setattr(CreateTopics, "decide", decide)
    assert {"19 done happened", "19 reads go forward"} & broken(Play("air"), read_where_it_was_ordered)
