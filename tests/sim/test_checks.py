"""The checkers are checked: a clean history passes, and every way to spoil it is caught by the rule that
names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from storage.prepare import INLINE_BYTES
from tests.sim.checks import RULES
from tests.sim.history import (
    LARGE,
    AdminEvent,
    Batch,
    Commit,
    CommitRead,
    Crash,
    DeleteRecords,
    Fetch,
    FinalLog,
    Heartbeat,
    History,
    MetaSlot,
    Recovery,
    Send,
    Sync,
    payload,
    value_of,
)
from tests.sim.verdict import judge

T = ("t", 0)
U = ("u", 0)


def batch(base: int, *values: int, epoch: int = 0) -> Batch:
    digest = f"{base}:{epoch}:{values}"
    return Batch(
        base_offset=base, next_offset=base + len(values), leader_epoch=epoch, digest=digest, values=values
    )


def final(*batches: Batch, log_start: int = 0, end: int | None = None) -> FinalLog:
    end = batches[-1].next_offset if end is None else end
    epochs: dict[int, int] = {}
    for one in batches:
        if one.next_offset > log_start:
            epochs.setdefault(one.leader_epoch, max(one.base_offset, log_start))
    return FinalLog(
        log_start_offset=log_start,
        last_stable_offset=end,
        high_watermark=end,
        log_end_offset=end,
        batches=batches,
        served=tuple(pair for one in batches for pair in one.pairs() if pair[0] >= log_start),
        epochs=tuple(epochs.items()),
    )


def send(values: tuple[int, ...], at: float, offset: int = -1, **changes: object) -> Send:
    base = Send(
        client="p",
        connection=1,
        tp=T,
        values=values,
        acks=-1,
        invoked=at,
        done=at + 0.5,
        result="ok" if offset >= 0 else "unknown",
        base_offset=offset,
        life=1,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def fetch(at: float, offset: int, *batches: Batch, hw: int, epoch: int = 0, **changes: object) -> Fetch:
    base = Fetch(
        client="c",
        tp=T,
        offset=offset,
        invoked=at,
        done=at + 0.4,
        result="ok",
        leader_epoch=epoch,
        batches=batches,
        high_watermark=hw,
        last_stable_offset=hw,
        log_start_offset=0,
        life=1 if epoch == 0 else 2,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def clean() -> History:
    """Two lives with a kill between them, two logs, a group, every kind of operation and result."""
    history = History()
    b0, b1, b2, b3 = batch(0, 10, 11), batch(2, 12, 13), batch(4, 14, 15, epoch=1), batch(6, 16, epoch=1)
    history.sends = [
        send((10, 11), 1, 0),
        send((12, 13), 2, 2),
        send((99,), 3),  # unknown and absent
        send((98,), 3.2, result="fail", error="corrupt_message"),
        send((14, 15), 6, connection=2, life=2, result="unknown"),  # unknown and present
        send((16,), 7, 6, connection=2, life=2),
        send((20,), 1, 0, tp=U, client="q"),
        send((21,), 2, 1, tp=U, client="q"),
        send((22,), 3, 2, tp=U, client="q", acks=1),
    ]
    history.fetches = [
        fetch(1.6, 0, b0, hw=2, seek=True),
        fetch(2.6, 2, b1, hw=4),
        fetch(6.6, 4, b2, hw=6, epoch=1),
    ]
    history.deletes = [DeleteRecords(tp=U, before=1, invoked=4, done=4.1, result="ok", low_watermark=1)]
    history.syncs = [
        Sync(group="g", member="m1", generation=1, assignment=(T,), invoked=1, done=1.1),
        Sync(group="g", member="m2", generation=1, assignment=(U,), invoked=1, done=1.2),
        Sync(group="g", member="m1", generation=2, assignment=(T, U), invoked=7, done=7.1),
    ]
    history.heartbeats = [
        Heartbeat(group="g", member="m2", generation=1, invoked=2, done=2.1, result="ok"),
        Heartbeat(group="g", member="m2", generation=1, invoked=7.5, done=7.6, result="fail"),
    ]
    history.commits = [
        commit("a", 2, 2.0),
        commit("b", 4, 3.0),
        commit("c", 6, 7.2, generation=2),
        commit("d", 2, 7.3, generation=1, result="fail", member="m2"),
        commit("e", 7, 7.9, generation=2, result="unknown"),
    ]
    history.commit_reads = [
        read("", -1, 0.5),
        read("a", 2, 2.5),
        read("c", 6, 7.4),
        read("e", 7, 9),
    ]
    history.crashes = [Crash(life=1, at=5, power=False, synced_end={T: 0, U: 0}, kept_end={T: 4, U: 3})]
    history.recoveries = [Recovery()]
    history.logs = {T: final(b0, b1, b2, b3), U: final(batch(1, 21), batch(2, 22), log_start=1)}
    return history


def commit(tag: str, offset: int, at: float, **changes: object) -> Commit:
    base = Commit(
        group="g",
        member="m1",
        generation=1,
        tp=T,
        offset=offset,
        tag=tag,
        invoked=at,
        done=at + 0.05,
        result="ok",
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def read(tag: str, offset: int, at: float) -> CommitRead:
    return CommitRead(group="g", tp=T, offset=offset, tag=tag, invoked=at, done=at + 0.05)


# --- the ways to spoil it -----------------------------------------------------------------------------------

Mutation = Callable[[History], None]


def with_batches(history: History, *batches: Batch) -> None:
    history.logs[T] = final(*batches)


def the_batches(history: History) -> list[Batch]:
    return list(history.logs[T].batches)


def drop_an_acked_value(history: History) -> None:
    with_batches(history, *the_batches(history)[:-1])


def lose_an_acked_value_to_power_despite_the_flush(history: History) -> None:
    history.single_replica_flush = True
    lose_an_acked_value_to_power(history)


def lose_an_acked_value_to_power(history: History) -> None:
    history.crashes.append(Crash(life=2, at=9, power=True, synced_end={T: 6, U: 3}, kept_end={T: 6, U: 3}))
    with_batches(history, *the_batches(history)[:-1])


def lose_what_was_synced_to_power(history: History) -> None:
    history.crashes.append(Crash(life=2, at=9, power=True, synced_end={T: 7, U: 3}, kept_end={T: 6, U: 3}))
    with_batches(history, *the_batches(history)[:-1])


def begin_the_log_where_nobody_asked(history: History) -> None:
    history.deletes.clear()


def bring_back_what_was_deleted(history: History) -> None:
    history.logs[U] = final(batch(0, 20), batch(1, 21), batch(2, 22))


def duplicate_a_value(history: History) -> None:
    with_batches(history, *the_batches(history), batch(7, 16, epoch=1))


def acknowledge_twice_at_two_offsets(history: History) -> None:
    history.sends[4] = replace(history.sends[4], values=(14,), result="ok", base_offset=4)
    history.sends.append(send((15,), 6.1, 5, connection=2, life=2))
    batches = the_batches(history)
    batches[2:3] = [batch(4, 14, epoch=1), batch(5, 15, epoch=1)]
    with_batches(history, *batches)
    history.fetches.pop()
    history.fetches.append(fetch(6.6, 4, batch(4, 14, epoch=1), batch(5, 14, epoch=1), hw=6, epoch=1))


def tear_a_batch(history: History) -> None:
    batches = the_batches(history)
    batches[2:] = [batch(4, 14, epoch=1), batch(5, 16, epoch=1)]
    with_batches(history, *batches)
    history.sends[5] = replace(history.sends[5], base_offset=5)
    history.fetches.pop()


def put_another_value_at_a_read_offset(history: History) -> None:
    history.sends.append(send((30,), 1.1, client="r", connection=9))
    history.sends[0] = replace(history.sends[0], values=(10,))
    history.sends.append(send((31,), 1.1, client="r", connection=8))
    batches = the_batches(history)
    batches[0:1] = [batch(0, 10), batch(1, 30)]
    with_batches(history, *batches)
    history.fetches[0] = fetch(1.6, 0, batch(0, 10), batch(1, 31), hw=2, seek=True)


def read_what_nobody_sent(history: History) -> None:
    with_batches(history, *the_batches(history), batch(7, 77, epoch=1))


def read_what_was_refused(history: History) -> None:
    with_batches(history, *the_batches(history), batch(7, 98, epoch=1))


def read_bytes_nobody_sent(history: History) -> None:
    broken = replace(history.fetches[1].batches[0], values=(12, -1))
    history.fetches[1] = replace(history.fetches[1], batches=(broken,))


def swap_two_sends(history: History) -> None:
    first, second = history.sends[6], history.sends[7]
    history.sends[6] = replace(first, values=(21,), result="unknown", base_offset=-1)
    history.sends[7] = replace(second, values=(20,), result="unknown", base_offset=-1)
    history.deletes.clear()
    history.logs[U] = final(batch(0, 20), batch(1, 21), batch(2, 22))


def place_a_later_send_before_an_acked_one(history: History) -> None:
    history.sends[7] = replace(history.sends[7], client="other", invoked=4, done=4.5)


def skip_in_a_fetch(history: History) -> None:
    history.fetches[1] = fetch(2.6, 2, hw=4)
    history.fetches[2] = fetch(6.6, 2, history.fetches[2].batches[0], hw=6, epoch=1)


def go_back_without_a_seek(history: History) -> None:
    history.fetches.append(fetch(8, 0, history.fetches[0].batches[0], hw=7, epoch=1))


def jump_ahead_without_a_seek(history: History) -> None:
    history.fetches.append(fetch(8, 7, hw=7, epoch=1))


def read_past_the_final_end(history: History) -> None:
    history.sends.append(send((40,), 8, connection=3, life=2))
    history.fetches.append(fetch(9, 6, batch(6, 16, epoch=1), batch(7, 40, epoch=1), hw=8, epoch=1))


def lower_the_high_watermark(history: History) -> None:
    history.fetches.append(fetch(8, 6, hw=5, epoch=1))


def serve_past_the_high_watermark(history: History) -> None:
    history.fetches[2] = replace(history.fetches[2], high_watermark=5, last_stable_offset=5)


def put_lso_above_hw(history: History) -> None:
    history.fetches[2] = replace(history.fetches[2], last_stable_offset=7)


def end_with_hw_above_leo(history: History) -> None:
    history.logs[T] = replace(history.logs[T], high_watermark=8)


def flip_a_byte(history: History) -> None:
    broken = replace(history.fetches[1].batches[0], digest="other")
    history.fetches[1] = replace(history.fetches[1], batches=(broken,))


def serve_less_than_is_stored(history: History) -> None:
    history.logs[T] = replace(history.logs[T], served=history.logs[T].served[:-1])


def let_an_epoch_fall(history: History) -> None:
    batches = the_batches(history)
    log = final(*batches[:-1], replace(batches[-1], leader_epoch=0))
    history.logs[T] = log


def forget_an_epoch_in_the_cache(history: History) -> None:
    history.logs[T] = replace(history.logs[T], epochs=((0, 0),))


def append_in_one_epoch_in_two_lives(history: History) -> None:
    history.sends[1] = replace(history.sends[1], life=2)


def give_two_owners(history: History) -> None:
    history.syncs[1] = replace(history.syncs[1], assignment=(T,))


def accept_a_stale_commit(history: History) -> None:
    history.commits.append(commit("f", 7, 10, generation=1))


def accept_a_stale_heartbeat(history: History) -> None:
    history.heartbeats[1] = replace(history.heartbeats[1], result="ok")


def forget_a_commit(history: History) -> None:
    history.commit_reads.append(read("", -1, 9.5))


def go_back_to_an_older_commit(history: History) -> None:
    history.commit_reads.append(read("a", 2, 9.5))


def apply_a_refused_commit(history: History) -> None:
    history.commit_reads.append(read("d", 2, 9.5))


def read_an_offset_nobody_committed(history: History) -> None:
    history.commit_reads.append(read("e", 5, 9.5))


def recover_differently(history: History) -> None:
    history.recoveries.append(Recovery(differences=("t-0: index entry at 4 points to 77",)))


def lose_the_middle(history: History) -> None:
    lose_an_acked_value_to_power(history)
    history.crashes[-1] = replace(history.crashes[-1], synced_end={T: 4, U: 3}, kept_end={T: 4, U: 3})
    batches = [batch(0, 10, 11), batch(2, 12, 13), batch(6, 16, epoch=1)]
    with_batches(history, *batches)


def lose_the_synced_on_disk(history: History) -> None:
    history.crashes[0] = replace(history.crashes[0], synced_end={T: 5, U: 0})


def recover_less_than_was_synced(history: History) -> None:
    crash = history.crashes[0]
    history.crashes[0] = replace(crash, synced_end={T: 4, U: 3}, recovered_end={T: 4, U: 2})


MUTATIONS: dict[Mutation, set[str]] = {
    drop_an_acked_value: {"1 acked is kept"},
    lose_an_acked_value_to_power_despite_the_flush: {"1 acked is kept"},
    lose_what_was_synced_to_power: {"1 acked is kept", "1 sync is kept"},
    lose_the_synced_on_disk: {"1 sync is kept"},
    recover_less_than_was_synced: {"1 sync is kept"},
    lose_the_middle: {"1 no holes"},
    begin_the_log_where_nobody_asked: {"1 acked is kept"},
    bring_back_what_was_deleted: {"1 deletes stay done"},
    duplicate_a_value: {"4 no duplicates"},
    acknowledge_twice_at_two_offsets: {"3 one value per offset", "4 no duplicates"},
    tear_a_batch: {"2 batches are whole"},
    put_another_value_at_a_read_offset: {"3 one value per offset"},
    read_what_nobody_sent: {"5 no phantoms"},
    read_what_was_refused: {"5 no phantoms"},
    read_bytes_nobody_sent: {"5 no phantoms", "3 one value per offset"},
    swap_two_sends: {"6 order"},
    place_a_later_send_before_an_acked_one: {"6 order"},
    skip_in_a_fetch: {"7 contiguity"},
    go_back_without_a_seek: {"7 contiguity"},
    jump_ahead_without_a_seek: {"7 contiguity"},
    read_past_the_final_end: {"8 read stays read"},
    lower_the_high_watermark: {"9 watermarks"},
    serve_past_the_high_watermark: {"9 watermarks"},
    put_lso_above_hw: {"9 watermarks"},
    end_with_hw_above_leo: {"9 watermarks"},
    flip_a_byte: {"11 bytes"},
    serve_less_than_is_stored: {"11 served is stored"},
    let_an_epoch_fall: {"12 epochs"},
    forget_an_epoch_in_the_cache: {"12 epochs"},
    append_in_one_epoch_in_two_lives: {"12 epochs"},
    give_two_owners: {"16 one owner"},
    accept_a_stale_commit: {"16 stale is rejected"},
    accept_a_stale_heartbeat: {"16 stale is rejected"},
    forget_a_commit: {"16 commits"},
    go_back_to_an_older_commit: {"16 commits"},
    apply_a_refused_commit: {"16 commits"},
    read_an_offset_nobody_committed: {"16 commits"},
    recover_differently: {"18 recovery"},
}


def test_a_clean_history_passes() -> None:
    verdict = judge(clean())
    assert not verdict.violations
    assert (verdict.lost_by_all, verdict.lost_with_leader) == (0, 0)


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_each_fault_is_caught_by_the_rule_that_names_it(mutate: Mutation) -> None:
    history = clean()
    mutate(history)
    assert judge(history).rules() == MUTATIONS[mutate]


def test_every_rule_has_a_mutation_that_only_it_catches() -> None:
    alone = {next(iter(rules)) for rules in MUTATIONS.values() if len(rules) == 1}
    assert alone | {"4 no duplicates", "3 one value per offset"} == set(RULES)


# --- what lies below a log start ----------------------------------------------------------------------------


def hold_what_was_deleted(history: History, *batches: Batch) -> None:
    """The files of U begin with a batch that nobody sent there, below the log start."""
    history.logs[U] = final(batch(0, 77, epoch=5), *batches, log_start=1)


def test_what_files_still_hold_below_the_log_start_is_not_judged() -> None:
    history = clean()
    hold_what_was_deleted(history, batch(1, 21), batch(2, 22))
    assert not judge(history).violations


@pytest.mark.parametrize(
    ("held", "rules"),
    [
        ([batch(1, 21)], {"1 acked is kept"}),
        ([batch(1, 21), batch(2, 23)], {"1 acked is kept", "3 one value per offset", "5 no phantoms"}),
        ([batch(2, 22)], {"1 acked is kept"}),
        ([batch(1, 21), batch(2, 22), batch(3, 21)], {"4 no duplicates", "6 order"}),
    ],
    ids=["the last is lost", "the last is another", "the first is lost", "one is there twice"],
)
def test_beside_it_every_fault_above_the_log_start_is_caught(held: list[Batch], rules: set[str]) -> None:
    history = clean()
    hold_what_was_deleted(history, *held)
    assert judge(history).rules() == rules


def test_a_log_that_begins_inside_a_batch_counts_the_rest_of_it() -> None:
    log = final(batch(0, 77), batch(1, 21, 22), log_start=2)
    assert log.pairs == ((2, 22),)
    assert log.counted == (batch(1, 21, 22),)


def test_a_power_cut_may_take_what_was_not_synced_and_it_is_counted() -> None:
    history = clean()
    lose_an_acked_value_to_power(history)
    verdict = judge(history)
    assert not verdict.violations
    assert verdict.lost_by_all == 1


@pytest.mark.parametrize("value", [0, 1, 4, 5, 1 << 40, (3 << 40) | 17])
def test_a_payload_carries_its_value_and_notices_a_changed_byte(value: int) -> None:
    data = payload(value)
    assert value_of(data) == value
    for at in range(len(data)):
        broken = bytearray(data)
        broken[at] ^= 1
        assert value_of(bytes(broken)) != value
    assert value_of(None) == -1


def test_a_large_payload_carries_its_value_and_notices_a_changed_byte() -> None:
    value = LARGE | (3 << 40) | 17
    data = payload(value)
    assert len(data) > INLINE_BYTES, "it would not be walked in turns"
    assert value_of(data) == value
    for at in (0, 7, 8, len(data) // 2, len(data) - 1):
        broken = bytearray(data)
        broken[at] ^= 1
        assert value_of(bytes(broken)) != value


def test_an_epoch_may_outlive_a_crash_before_the_broker_served() -> None:
    history = clean()
    append_in_one_epoch_in_two_lives(history)
    assert judge(history).rules() == {"12 epochs"}
    history.crashes[0] = replace(history.crashes[0], was_ready=False)
    assert not judge(history).rules()


def test_of_a_topic_that_was_deleted_nothing_synced_need_be_kept() -> None:
    history = clean()
    lose_the_synced_on_disk(history)
    assert judge(history).rules() == {"1 sync is kept"}
    gone = AdminEvent(kind="delete", topic=T[0], topic_id="id")
    slot = MetaSlot(seq=1, at=0, node=1, life=1, controller_epoch=0, hash="", previous_hash="00" * 32)
    history.slots = (replace(slot, events=(gone,)),)
    assert "1 sync is kept" not in judge(history).rules()
