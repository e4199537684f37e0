"""The rules about the WAL tier are checked: a clean history passes, and every way to spoil it is caught by
the rule that names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest

from protocol.checksum import crc32c
from protocol.records import build_batch
from remote.keys import Stream, WalPart, wal_key
from remote.wal.combined_object import (
    Head,
    ObjectKind,
    Place,
    Row,
    encode_index,
    encode_table,
    place_slices,
)
from tests.sim.checks import Case
from tests.sim.client import read_batches
from tests.sim.history import (
    AdminEvent,
    AdminOp,
    Batch,
    BrokerState,
    FinalLog,
    History,
    MetaSlot,
    PartitionState,
    Sample,
    TierCopy,
    TierSeen,
    WalChange,
    WalGone,
    WalLook,
    WalRead,
    payload,
)
from tests.sim.test_checks import T, final, send
from tests.sim.verdict import judge
from tests.sim.wal_checks import RULES, slices_are_in_the_log
from tests.sim.wallog import Fold, covered_to, read_put, useless

CLUSTER = "cluster"
TOPIC = UUID(int=7)
GONE_TOPIC = UUID(int=8)
FIRST = Stream(1, 1, 0)
SECOND = Stream(1, 1, 1)
OTHER = Stream(2, 2, 0)


def stored(base: int, *values: int, epoch: int = 0) -> bytes:
    rows = [(None, payload(value), (), 1_000) for value in values]
    return bytes(build_batch(rows, base_offset=base, leader_epoch=epoch))


B0, B1, B2, B3 = stored(0, 10, 11), stored(2, 12, 13), stored(4, 14, epoch=1), stored(5, 15, 16, epoch=1)


def batches(*data: bytes) -> list[Batch]:
    return read_batches(b"".join(data))


def log() -> FinalLog:
    return final(*batches(B0, B1, B2, B3))


def row(*data: bytes, topic: UUID = TOPIC, epoch: int, epoch_start: int, **changes: int) -> tuple[Row, bytes]:
    found = batches(*data)
    whole = b"".join(data)
    base = Row(
        topic_id=topic,
        partition=0,
        leader_epoch=epoch,
        epoch_start=epoch_start,
        batch_epoch=found[0].leader_epoch,
        start=found[0].base_offset,
        end=found[-1].next_offset,
        log_start=0,
        position=0,
        size=len(whole),
        crc32c=crc32c(whole),
        previous=None,
    )
    return base._replace(**changes), whole


def head(kind: ObjectKind, stream: Stream, seq: int, *, slot: int = 3, writer: int | None = None) -> Head:
    node = stream.node_id if writer is None else writer
    return Head(
        kind=kind,
        cluster_id=CLUSTER,
        place=Place(stream, seq),
        put_id=bytes(16),
        metadata_seq=slot,
        writer=(node, stream.broker_epoch if writer is None else writer),
        written_ms=0,
    )


def put(at: float, node: int, key: str, data: bytes) -> WalChange:
    return WalChange(at, node, 1, "put", key, len(data), *read_put(key, data))


def put_object(
    at: float, stream: Stream, seq: int, *slices: tuple[Row, bytes], slot: int = 3, node: int | None = None
) -> WalChange:
    rows = place_slices(CLUSTER, [each for each, _ in slices])
    table = encode_table(head(ObjectKind.SLICES, stream, seq, slot=slot), rows)
    body = b"".join(data for _, data in slices)
    return put(at, stream.node_id if node is None else node, wal_key(stream, seq), table + body)


def put_seal(at: float, stream: Stream, seq: int, *, slot: int, writer: int = 2) -> WalChange:
    sealed = head(ObjectKind.SEAL, stream, seq, slot=slot, writer=writer)
    return put(at, writer, wal_key(stream, seq), encode_table(sealed, ()))


def put_boundary(at: float, stream: Stream, through: int) -> WalChange:
    return put(at, stream.node_id, wal_key(stream, through, WalPart.BOUNDARY), b"")


def delete(at: float, key: str) -> WalChange:
    return WalChange(at, 1, 1, "delete", key)


def state(at: int, leader: int, epoch: int, isr: tuple[int, ...] = (1, 2)) -> PartitionState:
    return PartitionState(
        tp=T,
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=at,
        replicas=(1, 2),
        isr=isr,
        topic_id=str(TOPIC),
    )


def gone_state(partition_epoch: int) -> PartitionState:
    return replace(state(partition_epoch, 1, 0), tp=("gone", 0), topic_id=str(GONE_TOPIC))


def slot(seq: int, *states: PartitionState, **changes: object) -> MetaSlot:
    brokers = tuple(BrokerState(id=node, epoch=node, fenced=False) for node in (1, 2) if seq == node)
    base = MetaSlot(
        seq=seq,
        at=seq / 10,
        node=1,
        life=1,
        controller_epoch=1,
        hash=f"{seq}",
        previous_hash=f"{seq - 1}" if seq > 1 else "00" * 32,
        elects=1 if seq == 1 else None,
        partitions=states,
        brokers=brokers,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def clean() -> History:
    """Node 1 leads t in epoch 0 and stores [0, 2) and [2, 4), with a slice of a topic that is deleted. Node 2
    leads from slot 5 on, seals the stream, and stores [4, 7), and the second slice again. Node 1 begins its
    next generation, of which the first object is collected."""
    history = History()
    history.slots = (
        slot(1),
        slot(2),
        slot(3, state(0, 1, 0)),
        slot(4, gone_state(0)),
        slot(5, state(1, 2, 1)),
        slot(
            6, events=(AdminEvent(kind="delete", topic="gone", topic_id=str(GONE_TOPIC)),), deleted=("gone",)
        ),
    )
    gone = row(stored(0, 90), topic=GONE_TOPIC, epoch=0, epoch_start=0)
    history.wal_changes = [
        put_object(1.0, FIRST, 0, gone),
        put_object(1.2, FIRST, 2, row(B1, epoch=0, epoch_start=0)),
        put_object(1.3, FIRST, 1, row(B0, epoch=0, epoch_start=0)),
        put_seal(2.0, FIRST, 3, slot=5),
        put_object(2.1, FIRST, 4, row(stored(4, 99), epoch=0, epoch_start=0)),
        put_object(2.2, OTHER, 0, row(B1, epoch=1, epoch_start=4), slot=5),
        put_object(2.3, OTHER, 1, row(B2, B3, epoch=1, epoch_start=4), slot=5),
        put_object(2.5, SECOND, 0, gone, slot=5),
        put_boundary(3.0, FIRST, 0),
        delete(3.1, wal_key(FIRST, 0)),
        delete(3.2, wal_key(FIRST, 4)),
        put_boundary(3.3, SECOND, 0),
        delete(3.4, wal_key(SECOND, 0)),
        put(3.5, 1, "wal/1/floors", b"floors"),
    ]
    history.admin = [AdminOp(kind="delete", topic="gone", invoked=0.55, done=0.65, result="ok")]
    history.wal_reads = [WalRead(1.35, 2, 1, wal_key(FIRST, 2)), WalRead(2.4, 1, 1, wal_key(OTHER, 1))]
    history.wal_looks = [WalLook(1, 1, "bytes", 10, 20)]
    present: dict[str, None] = {}
    for change in history.wal_changes:
        present.pop(change.key, None)
        if change.kind == "put":
            present[change.key] = None
    history.wal_left = tuple(sorted(present))
    for values, at, base, node in (
        ((10, 11), 0.35, 0, 1),
        ((12, 13), 0.4, 2, 1),
        ((14,), 1.1, 4, 2),
        ((15, 16), 1.2, 5, 2),
    ):
        ends = ((1, 9), (2, 9))
        history.sends.append(send(values, at, base, node=node, done=at + 0.01, ends=ends))
    whole = replace(log(), node=2)
    history.logs = {T: whole}
    history.samples = [Sample(at=9, tp=T, logs=(replace(whole, node=1), whole), is_final=True)]
    return history


Mutation = Callable[[History], None]


def flip_a_byte(history: History) -> None:
    data = encode_table(head(ObjectKind.SLICES, OTHER, 2, slot=5), ())
    history.wal_changes.append(put(4, 2, wal_key(OTHER, 2), data[:-1] + bytes((data[-1] ^ 1,))))


def damage_a_slice(history: History) -> None:
    found, data = row(B3, epoch=1, epoch_start=4)
    history.wal_changes.append(put_object(4, OTHER, 2, (found, data[:-1] + b"?")))


def lie_elsewhere(history: History) -> None:
    sealed = encode_table(head(ObjectKind.SEAL, OTHER, 2, writer=1), ())
    history.wal_changes.append(put(4, 1, wal_key(OTHER, 3), sealed))


def index_what_does_not_count(history: History) -> None:
    table = encode_table(head(ObjectKind.SLICES, OTHER, 5), ())
    data = encode_index(head(ObjectKind.INDEX, OTHER, 5), [table])
    history.wal_changes.append(put(4, 2, wal_key(OTHER, 5, WalPart.INDEX), data))


def write_for_another(history: History) -> None:
    history.wal_changes.append(put_object(4, OTHER, 2, row(B3, epoch=1, epoch_start=4), slot=5, node=1))


def seal_what_was_put(history: History) -> None:
    history.wal_changes.append(put_seal(4, OTHER, 1, slot=6, writer=1))


def pass_the_seal(history: History) -> None:
    history.wal_changes.append(put_boundary(4, FIRST, 3))


def pass_what_counts(history: History) -> None:
    history.wal_changes.append(put_boundary(4, OTHER, 2))


def reopen_unsealed(history: History) -> None:
    del history.wal_changes[3]


def reopen_with_an_old_image(history: History) -> None:
    history.wal_changes[7] = put_object(
        2.5, SECOND, 0, row(stored(0, 90), topic=GONE_TOPIC, epoch=0, epoch_start=0)
    )


def reopen_while_fenced(history: History) -> None:
    fenced = (BrokerState(id=1, epoch=1, fenced=True),)
    history.slots = (*history.slots[:4], replace(history.slots[4], brokers=fenced), history.slots[5])


def send_too_many(history: History) -> None:
    history.wal_changes.append(put_object(4, OTHER, 6, row(B3, epoch=1, epoch_start=4), slot=5))


def hold_too_much(history: History) -> None:
    history.wal_looks.append(WalLook(1, 1, "bytes", 21, 20))


def store_other_bytes_again(history: History) -> None:
    other = row(stored(2, 12, 77), epoch=1, epoch_start=4)
    history.wal_changes[5] = put_object(2.2, OTHER, 0, other, slot=5)


def differ_from_a_replica(history: History) -> None:
    sample = history.samples[0]
    logs = (replace(sample.logs[0], batches=(*batches(stored(0, 10, 5)), *log().batches[1:])), sample.logs[1])
    history.samples[0] = replace(sample, logs=logs, is_final=False)


def lose_what_a_slice_has(history: History) -> None:
    more = row(stored(7, 17, epoch=1), epoch=1, epoch_start=4)
    history.wal_changes.append(put_object(4, OTHER, 2, more, slot=5))


def leave_a_slice_out(history: History) -> None:
    history.wal_changes[2] = put_object(
        1.3, FIRST, 1, row(stored(0, 91), topic=GONE_TOPIC, epoch=0, epoch_start=0)
    )


def begin_at_the_epoch_start(history: History) -> None:
    """The first leader's last slice never came, and the next one stores only what is its own."""
    history.wal_changes[1] = put_object(
        1.2, FIRST, 2, row(stored(0, 92), topic=GONE_TOPIC, epoch=0, epoch_start=0)
    )
    history.wal_changes[5] = put_object(
        2.2, OTHER, 0, row(stored(0, 93), topic=GONE_TOPIC, epoch=0, epoch_start=0)
    )


def begin_an_epoch_elsewhere(history: History) -> None:
    history.wal_changes[6] = put_object(2.3, OTHER, 1, row(B2, B3, epoch=1, epoch_start=5), slot=5)


def read_before_all_below_are_there(history: History) -> None:
    history.wal_reads.append(WalRead(1.25, 2, 1, wal_key(FIRST, 2)))


def read_above_the_seal(history: History) -> None:
    history.wal_reads.append(WalRead(2.15, 2, 1, wal_key(FIRST, 4)))


def send_directly(history: History) -> None:
    calm(history)
    history.wal_direct[2] = 100


def shrink_an_isr(history: History) -> None:
    calm(history)
    history.slots = (*history.slots[:4], slot(5, state(1, 1, 0, isr=(1,))), history.slots[5])


def seal_in_calm(history: History) -> None:
    history.is_calm = True


def calm(history: History) -> None:
    """Without the seal and what followed it."""
    history.is_calm = True
    history.wal_changes = history.wal_changes[:3]
    history.wal_reads = history.wal_left = ()  # type: ignore[assignment]
    history.logs = {}


def delete_above_the_boundary(history: History) -> None:
    history.wal_changes.append(delete(4, wal_key(FIRST, 1)))


def delete_a_boundary(history: History) -> None:
    history.wal_changes.append(delete(4, wal_key(FIRST, 0, WalPart.BOUNDARY)))


def delete_a_seal(history: History) -> None:
    history.wal_changes.append(delete(4, wal_key(FIRST, 3)))


def delete_what_is_needed(history: History) -> None:
    history.wal_gone.append(WalGone(4, wal_key(FIRST, 1), T, 0, 2, ((1, 1), (2, 0))))


def leave_what_a_boundary_took(history: History) -> None:
    history.wal_left = (*history.wal_left, wal_key(FIRST, 0))


def leave_what_came_after_the_seal(history: History) -> None:
    history.wal_left = (*history.wal_left, wal_key(FIRST, 4))


def leave_what_a_deleted_topic_had(history: History) -> None:
    history.wal_changes = [
        each for each in history.wal_changes if "boundary" not in each.key or each.at < 3.3
    ]
    history.wal_changes = [each for each in history.wal_changes if each.at != 3.4]
    history.wal_left = tuple(key for key in history.wal_left if key != wal_key(SECOND, 0, WalPart.BOUNDARY))
    history.wal_left = (*history.wal_left, wal_key(SECOND, 0))


def leave_what_the_log_deleted(history: History) -> None:
    whole = final(*batches(B0, B1, B2, B3), log_start=2)
    history.logs = {T: replace(whole, node=2)}


def leave_what_is_no_object(history: History) -> None:
    history.wal_left = (*history.wal_left, "wal/1/something")


def tell_of_what_is_gone(history: History) -> None:
    history.wal_untold = ("missing",)


MUTATIONS: dict[Mutation, str] = {
    flip_a_byte: "11 WAL objects",
    damage_a_slice: "11 WAL objects",
    lie_elsewhere: "11 WAL objects",
    index_what_does_not_count: "17 WAL streams",
    write_for_another: "17 WAL streams",
    seal_what_was_put: "17 WAL streams",
    pass_the_seal: "17 WAL streams",
    pass_what_counts: "17 WAL streams",
    reopen_unsealed: "17 WAL streams",
    reopen_with_an_old_image: "17 WAL streams",
    reopen_while_fenced: "17 WAL streams",
    send_too_many: "20 WAL bounds",
    hold_too_much: "20 WAL bounds",
    store_other_bytes_again: "3 WAL batches",
    differ_from_a_replica: "3 WAL batches",
    lose_what_a_slice_has: "10 WAL slices",
    leave_a_slice_out: "17 WAL is whole",
    begin_at_the_epoch_start: "17 WAL is whole",
    begin_an_epoch_elsewhere: "12 WAL epochs",
    read_before_all_below_are_there: "11 WAL pointers",
    read_above_the_seal: "11 WAL pointers",
    send_directly: "17 WAL calm",
    shrink_an_isr: "17 WAL calm",
    seal_in_calm: "17 WAL calm",
    delete_above_the_boundary: "17 WAL boundaries",
    delete_a_boundary: "17 WAL boundaries",
    delete_a_seal: "17 WAL boundaries",
    delete_what_is_needed: "17 WAL gone is not needed",
    leave_what_a_boundary_took: "17 WAL nothing left over",
    leave_what_came_after_the_seal: "17 WAL nothing left over",
    leave_what_a_deleted_topic_had: "17 WAL nothing left over",
    leave_what_the_log_deleted: "17 WAL nothing left over",
    tell_of_what_is_gone: "17 WAL is told",
    leave_what_is_no_object: "17 WAL nothing left over",
}


def test_a_clean_history_passes() -> None:
    verdict = judge(clean())
    assert verdict.clean, "\n".join(map(str, verdict.violations))


@pytest.mark.parametrize("spoil", MUTATIONS, ids=lambda spoil: spoil.__name__)
def test_each_way_to_spoil_it_is_caught(spoil: Mutation) -> None:
    history = clean()
    spoil(history)
    assert MUTATIONS[spoil] in judge(history).rules()


@pytest.mark.parametrize(("log_start", "is_right"), [(1, True), (0, False)])
def test_an_epoch_may_be_said_to_begin_where_the_log_began_then(log_start: int, is_right: bool) -> None:
    """A deletion of the leader alone is taken back by an unclean election."""
    history = clean()
    late = row(B1, epoch=0, epoch_start=1, log_start=log_start)
    history.wal_changes[1] = put_object(1.2, FIRST, 2, late)
    assert ("12 WAL epochs" not in judge(history).rules()) is is_right


def test_what_one_partition_deleted_may_be_needed_of_another() -> None:
    history = clean()
    other = replace(state(0, 1, 0), tp=("t", 1))
    history.slots = (*history.slots[:5], replace(history.slots[5], partitions=(other,)))
    history.logs["t", 1] = replace(final(*batches(B0, B1, B2, B3), log_start=7), node=1)
    assert "17 WAL nothing left over" not in judge(history).rules()


def test_every_rule_catches_something() -> None:
    assert set(MUTATIONS.values()) == set(RULES)


# --- what a log has nothing of ---


def after_an_unclean_election(*, is_stored_again: bool) -> History:
    """Node 2, without the last batch of node 1, led in epoch 1; then node 1 led again, with that batch."""
    history = History()
    history.slots = (
        slot(1),
        slot(2),
        slot(3, state(0, 1, 0, isr=(1,))),
        slot(4, state(1, 2, 1, isr=(2,))),
        slot(5, state(2, 1, 2, isr=(1,))),
    )
    last = stored(4, 14, epoch=2)
    history.wal_changes = [
        put_object(1.0, FIRST, 0, row(B0, B1, epoch=0, epoch_start=0)),
        put_object(1.1, OTHER, 0, row(stored(2, 77, 78, epoch=1), epoch=1, epoch_start=2)),
    ]
    again = [(B1,), (last,)] if is_stored_again else [(last,)]
    history.wal_changes += [
        put_object(1.2 + seq / 10, FIRST, seq, row(*data, epoch=2, epoch_start=4))
        for seq, data in enumerate(again, 1)
    ]
    history.logs = {T: final(*batches(B0, B1, last))}
    return history


def test_what_an_epoch_had_that_a_log_has_nothing_of_is_missed_only_if_nothing_is_in_its_place() -> None:
    assert not [*slices_are_in_the_log(Case(after_an_unclean_election(is_stored_again=True)))]
    (missed,) = slices_are_in_the_log(Case(after_an_unclean_election(is_stored_again=False)))
    assert "lacks 2 of epoch 1" in missed


@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize(("start", "end", "is_missed"), [(0, 4, False), (0, 2, True), (4, 5, True)])
def test_what_an_epoch_had_is_not_missed_where_a_copy_in_the_cold_tier_is_in_its_place(
    start: int, end: int, is_missed: bool, epoch: int
) -> None:
    """The leader to which the lead was given back stores what is behind the copy alone; who led before it may
    have stored what an earlier one had written."""
    history = after_an_unclean_election(is_stored_again=False)
    of_other = row(stored(3, 78, epoch=epoch), epoch=1, epoch_start=4 - epoch)
    history.wal_changes[1] = put_object(1.1, OTHER, 0, of_other)
    copy = TierCopy(
        partition=(str(TOPIC), 0),
        id="one",
        base=start,
        end=end,
        size=1,
        state="COPY_FINISHED",
        objects=(1, 1),
    )
    history.tiers = [TierSeen(at=9, copies=(copy,), is_final=True)]
    assert bool([*slices_are_in_the_log(Case(history))]) is is_missed
    by_clean_elections = (state(0, 1, 0), state(1, 2, 1), state(2, 1, 2))
    history.slots = (slot(1), slot(2), *(slot(seq, one) for seq, one in enumerate(by_clean_elections, 3)))
    assert [*slices_are_in_the_log(Case(history))]


def test_what_goes_is_looked_for_in_other_slices() -> None:
    of_epoch = {
        epoch: [
            each
            for each in Fold(after_an_unclean_election(is_stored_again=True).wal_changes).slices()
            if each.row.leader_epoch == epoch
        ]
        for epoch in range(3)
    }
    ((first,), (other,), (again, last)) = of_epoch.values()
    starts = {0: 0, 1: 2, 2: 4}
    assert covered_to(2, other.row, [again, last], starts) == 5
    assert covered_to(2, other.row, [first, last], starts) == 2, "not by an earlier epoch, nor over a hole"
    assert covered_to(0, first.row, [again, last], starts) == 0
    assert covered_to(2, again.row, [other, last], starts) == 2


def test_a_needed_object_holds_back_those_above_it_in_whatever_order_they_came() -> None:
    dead, needed = row(B0, epoch=0, epoch_start=0), row(B1, epoch=0, epoch_start=0)
    fold = Fold(
        [
            put_object(1.0, FIRST, 2, dead),
            put_object(1.1, FIRST, 0, dead),
            put_object(1.2, FIRST, 1, needed),
            put_object(1.3, FIRST, 3, dead),
            put_seal(2.0, FIRST, 4, slot=5),
            put_object(2.1, FIRST, 5, needed),
        ]
    )
    keys = [wal_key(FIRST, seq) for seq in range(6)]

    def left(objects: list[str]) -> list[str]:
        return list(useless(fold.streams[FIRST], objects, lambda row: row.end <= 2))

    assert left(keys) == [keys[0], keys[5]]
    assert left(keys[1:5]) == []
    assert list(useless(fold.streams[FIRST], keys, lambda row: True)) == [*keys[:4], keys[5]]
