"""kill -9 of a real broker at every step of a copy, a deletion, retention, the end of tiering and a restore.

After one restart everything is as if nothing had happened: every acknowledged record is read once, `tidewal
tier check` finds nothing, nothing is left half done. A second restart, by another kill, changes nothing.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from remote.cold.segments import TieredPartition
from tests.compat.peers import until
from tests.e2e.mortal import Step
from tests.e2e.tiered import (
    ALONE,
    EARLIEST,
    EARLIEST_LOCAL,
    IN_PAIRS,
    LATEST,
    SETTLE_S,
    TieredBroker,
    TieredTopic,
    alter,
    check_tier,
    files_below,
    in_sync,
    is_forgotten,
    metadata_ends,
)

TELL = "broker.coordinators.tier.coordinator:TierCoordinator.ask"
REMOVE = "remote.cold.object_tier:remove"
STORE = "remote.store.local_store:LocalStore"
RENAME = "storage.files:DiskFiles.rename"
LOG = "storage.unified_log:UnifiedLog"

EACH = pytest.mark.parametrize(
    "is_thorough", [pytest.param(False, id="once"), pytest.param(True, id="twice", marks=pytest.mark.chaos)]
)


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[TieredBroker]:
    one = TieredBroker(tmp_path)
    try:
        yield one
    finally:
        one.close()


def picture(mortal: TieredBroker, topic: TieredTopic) -> dict[str, Any]:
    """All that a restart must leave alone."""
    start = topic.known_offset(EARLIEST)
    return {
        "log start": start,
        "local start": topic.known_offset(EARLIEST_LOCAL),
        "end": topic.known_offset(LATEST),
        "values": topic.check(topic.read(), start),
        "objects": files_below(mortal.objects),
        "logs": log_files(mortal, topic),
        "told": metadata_ends(mortal.bootstrap),
    }


def log_files(mortal: TieredBroker, topic: TieredTopic) -> dict[str, str]:
    found = files_below(mortal.data / f"{topic.name}-0")
    return {name: digest for name, digest in found.items() if name.endswith((".log", ".snapshot"))}


def settled(mortal: TieredBroker, topic: TieredTopic, at_rest: Callable[[], None]) -> dict[str, Any]:
    at_rest()
    topic.wait_no_loose_ends()
    assert check_tier(mortal.bootstrap, mortal.url).problems == []
    return picture(mortal, topic)


def die_at_each(
    mortal: TieredBroker,
    topic: TieredTopic,
    steps: Sequence[Step | tuple[Step, Step]],
    die: Callable[[Step], None],
    at_rest: Callable[[], None] | None = None,
    *,
    is_thorough: bool,
) -> None:
    """Die at each step; of two at the first, and at the second amid what that made necessary. The second
    restart comes after each of them, or after the last alone."""
    at_rest = at_rest or topic.wait_tiered
    for each in steps:
        first, *others = each if isinstance(each, tuple) else (each,)
        die(first)
        for other in others:
            mortal.rise_and_die(other)
        mortal.rise()
        restored = settled(mortal, topic, at_rest)
        if is_thorough or each is steps[-1]:
            mortal.kill()
            mortal.rise()
            assert settled(mortal, topic, at_rest) == restored, [str(step) for step in (first, *others)]


def at(when: str, target: str, match: str = "", number: int = 1) -> Step:
    return Step(target=target, when=when, match=match, number=number)


FINISHED = at("after", f"{STORE}.complete_upload")
COPY = [
    at("before", TELL, "SegmentStarted"),
    at("after", TELL, "SegmentStarted"),
    at("before", RENAME, r"\.idx'"),
    at("after", f"{STORE}.put", r"\.idx'"),
    at("after", f"{STORE}.begin_upload"),
    at("after", f"{STORE}.put_part"),
    at("before", f"{STORE}.complete_upload"),
    at("after", RENAME, r"\.parts'"),
    FINISHED,
    at("before", TELL, "COPY_FINISHED"),
    at("after", TELL, "COPY_FINISHED"),
    at("before", f"{LOG}._delete_segments", "tiered"),
    at("after", f"{LOG}._mark_deleted", "tiered"),
    at("after", f"{LOG}._delete_segments", "tiered"),
]
TAKEN_BACK = [
    (FINISHED, at("before", TELL, "DELETE_STARTED")),
    (at("after", f"{STORE}.put_part"), at("after", f"{STORE}.abort_upload")),
    (FINISHED, at("after", REMOVE, r"\.log'")),
    (FINISHED, at("after", REMOVE, r"\.idx'", 2)),
    (FINISHED, at("after", TELL, "DELETE_FINISHED")),
]
DELETION = [
    at("before", TELL, "SegmentUpdated.*DELETE_STARTED"),
    at("after", TELL, "SegmentUpdated.*DELETE_STARTED"),
    at("after", REMOVE, r"\.log'"),
    at("after", REMOVE, r"\.idx'"),
    at("before", TELL, "SegmentUpdated.*DELETE_FINISHED"),
    at("after", TELL, "SegmentUpdated.*DELETE_FINISHED"),
]
START_MOVES = [at(when, "remote.cold.tenure:Tenure.start_log_at", "tiered") for when in ("before", "after")]
START_GOES = at("before", f"{LOG}.advance_log_start", "tiered")
SWEEP = [
    at("after", TELL, "PartitionDeletion.*DELETE_MARKED"),
    at("before", TELL, "PartitionDeletion.*DELETE_FINISHED"),
    at("after", TELL, "PartitionDeletion.*DELETE_FINISHED"),
]
REST_OF_A_COPY = [
    at("after", f"{STORE}.put_part"),
    at("before", f"{STORE}.complete_upload"),
    at("before", TELL, "COPY_FINISHED"),
    at("after", TELL, "COPY_FINISHED"),
]
SLOWLY = {**ALONE, "remote.log.manager.copy.max.bytes.per.second": "5000"}
"""So that a copy of a segment takes some seconds."""
RESTORE = [
    at("after", "broker.replicas.restore:fetch_restore_point"),
    at("after", f"{LOG}._remove_now", "tiered"),
    at("before", f"{LOG}._save_beginning", "tiered"),
    at("after", f"{LOG}._save_beginning", "tiered"),
    at("after", f"{LOG}.begin_at", "tiered"),
]


@pytest.mark.requirement("1241-11", "X-7")
@EACH
def test_killed_at_any_step_of_a_copy(mortal: TieredBroker, is_thorough: bool) -> None:
    topic = mortal.make_topic()

    def die(step: Step) -> None:
        mortal.arm(step)
        topic.append(8)
        mortal.wait_dead(step)

    die_at_each(
        mortal,
        topic,
        [*COPY, *(TAKEN_BACK if is_thorough else TAKEN_BACK[1:3])],
        die,
        is_thorough=is_thorough,
    )


@pytest.mark.requirement("X-7")
@EACH
def test_killed_at_any_step_of_retention(mortal: TieredBroker, is_thorough: bool) -> None:
    topic = mortal.make_topic()

    def die(step: Step) -> None:
        alter(mortal.bootstrap, topic.name, {"retention.bytes": "-1"})
        topic.append(16)
        topic.wait_tiered()
        mortal.arm(step)
        alter(mortal.bootstrap, topic.name, {"retention.bytes": "40000"})
        mortal.wait_dead(step)

    die_at_each(mortal, topic, [*START_MOVES, *DELETION], die, is_thorough=is_thorough)


ON = {"remote.storage.enable": "true"}
OFF = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}


def wait_left(topic: TieredTopic) -> None:
    """Nothing of it is in the tier any more, and it starts with its files."""
    until(lambda: not topic.states(), "nothing to be in the tier", timeout_s=SETTLE_S, pause_s=0.1)
    assert topic.known_offset(EARLIEST) == topic.known_offset(EARLIEST_LOCAL)


@pytest.mark.requirement("1023-12", "X-7")
@EACH
def test_killed_at_any_step_of_the_end_of_tiering(mortal: TieredBroker, is_thorough: bool) -> None:
    topic = mortal.make_topic()

    def die(step: Step) -> None:
        alter(mortal.bootstrap, topic.name, ON)
        topic.append(8)
        topic.wait_tiered()
        mortal.arm(step)
        alter(mortal.bootstrap, topic.name, OFF)
        mortal.wait_dead(step)

    die_at_each(
        mortal,
        topic,
        [START_GOES, *(DELETION if is_thorough else DELETION[1::3])],
        die,
        lambda: wait_left(topic),
        is_thorough=is_thorough,
    )


@EACH
@pytest.mark.parametrize("comes_back", [False, True], ids=["off", "off and on"])
def test_killed_amid_a_copy_during_which_tiering_ended(
    tmp_path: Path, is_thorough: bool, comes_back: bool
) -> None:
    with contextlib.closing(TieredBroker(tmp_path, settings=SLOWLY)) as mortal:
        topic = mortal.make_topic()

        def die(step: Step) -> None:
            alter(mortal.bootstrap, topic.name, ON)
            topic.append(4)
            until(lambda: "COPY_STARTED" in topic.states(), "a copy", timeout_s=SETTLE_S, pause_s=0.02)
            alter(mortal.bootstrap, topic.name, OFF)
            if comes_back:
                alter(mortal.bootstrap, topic.name, ON)
            mortal.arm(step)
            mortal.wait_dead(step)

        die_at_each(
            mortal,
            topic,
            REST_OF_A_COPY if is_thorough else REST_OF_A_COPY[1::2],
            die,
            topic.wait_tiered if comes_back else lambda: wait_left(topic),
            is_thorough=is_thorough,
        )


@pytest.mark.requirement("X-7")
@EACH
def test_killed_at_any_step_after_a_topic_was_deleted(mortal: TieredBroker, is_thorough: bool) -> None:
    kept = mortal.make_topic()
    kept.append(8)
    gone: list[TieredPartition] = []

    def die(step: Step) -> None:
        doomed = mortal.make_topic()
        doomed.append(8)
        doomed.wait_tiered()
        gone.append(doomed.partition())
        mortal.arm(step)
        mortal.delete_topic(doomed)
        mortal.wait_dead(step)

    def at_rest() -> None:
        kept.wait_tiered()
        until(
            lambda: is_forgotten(mortal.bootstrap, gone[-1]),
            "the topic to be forgotten",
            timeout_s=SETTLE_S,
            pause_s=0.1,
        )
        assert len(list(mortal.objects.glob("*/*/*"))) == 2 * kept.states().total()

    die_at_each(
        mortal, kept, [*SWEEP, *(DELETION[::2] if is_thorough else ())], die, at_rest, is_thorough=is_thorough
    )


@pytest.mark.requirement("X-7")
@EACH
def test_killed_at_any_step_of_taking_a_lost_log_from_the_tier(
    mortal: TieredBroker, is_thorough: bool
) -> None:
    topic = mortal.make_topic()

    def die(step: Step) -> None:
        topic.append(8)
        topic.wait_tiered()
        mortal.kill()
        shutil.rmtree(mortal.data / f"{topic.name}-0")
        mortal.rise_and_die(step)

    die_at_each(mortal, topic, RESTORE, die, is_thorough=is_thorough)


@pytest.mark.requirement("1023-07")
@EACH
def test_a_follower_with_an_empty_disk_is_killed_at_any_step_of_its_restore(
    tmp_path: Path, is_thorough: bool
) -> None:
    with contextlib.ExitStack() as stack:
        leader, follower = (TieredBroker(tmp_path, node_id=node_id, settings=IN_PAIRS) for node_id in (1, 2))
        for each in (leader, follower):
            stack.callback(each.close)
        topic = leader.make_topic((1, 2))

        def wait_in_sync() -> None:
            until(lambda: in_sync(leader.bootstrap, topic.name) == {1, 2}, "the follower", timeout_s=SETTLE_S)

        for step in RESTORE if is_thorough else RESTORE[2:3]:
            topic.append(8)
            topic.wait_tiered()
            wait_in_sync()
            follower.kill()
            shutil.rmtree(follower.data)
            topic.append(2)
            follower.rise_and_die(step)
            follower.rise()
            topic.wait_tiered()
            wait_in_sync()
            restored = log_files(follower, topic)
            follower.kill()
            follower.rise()
            wait_in_sync()
            assert log_files(follower, topic) == restored, step
        leader.kill()
        topic.bootstrap = lambda: follower.bootstrap
        topic.check(topic.read(0), 0)
        topic.wait_no_loose_ends()
        assert check_tier(follower.bootstrap, follower.url).problems == []
