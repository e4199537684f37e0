"""Named scenarios about the log start: what was deleted stays deleted, and what a replica had of its own
below it is never served, whatever crashes in between."""

from __future__ import annotations

import pytest

from tests.sim.node import Node
from tests.sim.play import TP, Play
from tests.sim.verdict import Verdict

pytestmark = pytest.mark.usefixtures("quiet")


def clean(verdict: Verdict) -> Verdict:
    assert verdict.clean, "\n".join(map(str, verdict.violations))
    return verdict


def log_start(node: Node) -> int:
    log = node.log(TP)
    return -1 if log is None else log.log_start_offset


# --- an answered DeleteRecords is durable ---


@pytest.mark.parametrize("power", [False, True], ids=["kill -9", "power cut"])
@pytest.mark.parametrize("brokers", [1, 3])
def test_an_answered_deletion_survives_the_end_of_every_broker(brokers: int, power: bool) -> None:
    """A power cut may take back what all replicas had, so the load rests until that is on their disks."""

    async def script(play: Play) -> None:
        for load in play.loads:
            load.stop()
        await play.stage.finish([load.task for load in play.loads])
        await play.until("all is synced", lambda: all(is_synced(node) for node in play.nodes))
        await play.delete_before(3)
        for node in play.nodes:
            node.kill(power=power)
        for node in play.nodes:
            await node.start()
        await play.until("somebody leads", lambda: play.stage.leader(TP) is not None)
        assert log_start(play.leader) >= 3

    properties = {"log.flush.interval.messages": "1"}
    play = Play(f"deletion and {power}", brokers=brokers, replicas=brokers, min_isr=1, properties=properties)
    clean(play.perform(script))


def is_synced(node: Node) -> bool:
    log = node.log(TP)
    return log is not None and log.recovery_point >= log.log_end_offset - 1


def test_an_answered_deletion_survives_the_leader_alone() -> None:
    async def script(play: Play) -> None:
        leader = play.leader
        await play.delete_before(3)
        leader.kill(power=True)
        await play.until("another leads", lambda: play.leader is not leader)
        assert log_start(play.leader) >= 3
        await leader.start()
        await play.until("it is back", lambda: leader.id in play.isr)
        assert log_start(leader) >= 3

    clean(Play("deletion and the leader").perform(script))


# --- a deletion is answered in time ---


@pytest.mark.parametrize("is_frozen", [True, False], ids=["frozen", "down"])
def test_a_deletion_is_late_without_blame_only_while_a_connection_is_frozen(is_frozen: bool) -> None:
    """A follower that waits on a frozen connection is live, in sync and deaf until its time-out. One that is
    live and slow for another reason is blamed."""

    async def script(play: Play) -> None:
        for load in play.loads:
            load.stop()
        await play.stage.finish([load.task for load in play.loads])
        await play.until("all is committed", lambda: not play.stage.uneven([TP]))
        for connection in play.stage.fabric.connections:
            if is_frozen and connection.client.local[0] != play.leader.name:
                connection.freeze()
        if not is_frozen:
            play.others(play.leader)[0].hold.begin()
        client = play.stage.client("deletion")
        await play.stage.finish([client.start(play.stage.quietly_deleted(client, TP, 3))])

    play = Play(f"late {is_frozen}")
    clean(play.perform(script))
    errors = [each.error for each in play.stage.history.deletes]
    assert errors[0] == "request_timed_out"
    assert (errors[-1] == "") == is_frozen
    assert bool(play.stage.stuck) != is_frozen


# --- batches that were never committed, wholly below the leader's log start ---


async def come_back_with_strangers(play: Play) -> Node:
    """A broker led alone, behind a cut, and appended what nobody else has, an idempotent producer's batches
    among it. It died; the others went on and deleted exactly as far as its log goes. It comes back."""
    zombie = play.leader
    fans = [play.load("fan", acks=1), play.load("retrying", is_idempotent=True)]
    for load in fans:
        await play.progress(load)
    cuts = play.cut(zombie, *play.others(zombie))
    for load in fans:
        for node in play.others(zombie):
            play.stage.fabric.cut(load.name, node.name)
    zombie.line.down = True
    await play.until("another leads", lambda: play.stage.leader(TP) not in (None, zombie))
    await play.progress(fans[0])
    zombie.kill()
    play.mend(cuts)
    zombie.line.heal()
    end = zombie.log_end(TP)
    assert end is not None
    await play.until("the others have as much", lambda: committed(play.leader) >= end)
    await play.delete_before(end)
    assert log_start(play.leader) == end
    zombie.begin()
    return zombie


def committed(node: Node) -> int:
    log = node.log(TP)
    return -1 if log is None else log.high_watermark


async def lead_after(play: Play, zombie: Node, *, power: bool) -> None:
    """It is the only one left in sync, and dies before what it keeps in memory is on its disk."""
    others = play.others(zombie)
    for node in others:
        node.kill()
    await play.until("it leads", lambda: play.stage.leader(TP) is zombie)
    zombie.kill(power=power)
    await zombie.start()
    await play.until("it leads again", lambda: play.stage.leader(TP) is zombie and zombie.log(TP) is not None)


def strangers(zombie: Node, other: Node) -> list[str]:
    """What it remembers of producers, and the other, which was fed by the true leader alone, does not."""
    mine, theirs = zombie.log(TP), other.log(TP)
    assert mine is not None and theirs is not None
    known = {
        (producer_id, batch[2])
        for producer_id, entry in theirs.producer_table.entries.items()
        for batch in entry.batches
    }
    return [
        f"producer {producer_id} at {batch[2]}"
        for producer_id, entry in mine.producer_table.entries.items()
        for batch in entry.batches
        if (producer_id, batch[2]) not in known
    ]


@pytest.mark.parametrize("power", [False, True], ids=["kill -9", "power cut"])
def test_batches_below_the_log_start_that_were_never_committed_are_never_served(power: bool) -> None:
    async def script(play: Play) -> None:
        zombie = await come_back_with_strangers(play)
        start = log_start(play.leader)
        await play.until("it is in sync", lambda: zombie.id in play.isr)
        assert not strangers(zombie, play.leader)
        await lead_after(play, zombie, power=power)
        assert log_start(zombie) >= start

    clean(Play(f"strangers and {power}", min_isr=1).perform(script))


@pytest.mark.parametrize("power", [False, True], ids=["kill -9", "power cut"])
def test_nor_after_the_end_of_the_broker_that_was_about_to_drop_them(power: bool) -> None:
    async def script(play: Play) -> None:
        zombie = await come_back_with_strangers(play)
        start = log_start(play.leader)
        await play.until("it knows the start", lambda: zombie.is_ready and log_start(zombie) >= start)
        zombie.kill(power=power)
        await zombie.start()
        await play.until("it is in sync", lambda: zombie.id in play.isr)
        assert not strangers(zombie, play.leader)
        await lead_after(play, zombie, power=power)
        assert log_start(zombie) >= start

    clean(Play(f"strangers that went and {power}", min_isr=1).perform(script))
