"""The rules about transactions are checked: a clean history passes, and every way to spoil it is caught by
the rule that names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.sim.checks import OFFSETS_TOPIC
from tests.sim.history import (
    Batch,
    Commit,
    CommitRead,
    Crash,
    Fate,
    Fetch,
    FinalLog,
    History,
    Marker,
    Origin,
    Send,
    TopicPartition,
    Transaction,
    TransactionSeen,
)
from tests.sim.transaction_checks import RULES
from tests.sim.verdict import judge

T, U, COPY = ("t", 0), ("t", 1), ("o", 0)
GROUP = "copiers"
A, B, C = (7, 0), (8, 0), (9, 0)
"""Producers."""


def batch(base: int, *values: int, producer: tuple[int, int] = (-1, -1)) -> Batch:
    return Batch(
        base_offset=base,
        next_offset=base + len(values),
        leader_epoch=0,
        digest=f"{base}:{values}",
        values=values,
        producer=producer,
        is_transactional=producer[0] >= 0,
    )


def marker(base: int, kind: Marker, producer: tuple[int, int]) -> Batch:
    return replace(batch(base, producer=producer), next_offset=base + 1, marker=kind)


def final(*batches: Batch, lso: int | None = None) -> FinalLog:
    end = batches[-1].next_offset
    return FinalLog(
        log_start_offset=0,
        last_stable_offset=end if lso is None else lso,
        high_watermark=end,
        log_end_offset=end,
        batches=batches,
        served=tuple(pair for one in batches for pair in one.pairs()),
        epochs=((0, 0),),
    )


def send(
    tp: TopicPartition, values: tuple[int, ...], at: float, offset: int, key: str = "", **changes: object
) -> Send:
    base = Send(
        client=key.split("/")[0] or "p",
        connection=1,
        tp=tp,
        values=values,
        acks=-1,
        invoked=at,
        done=at + 0.1,
        result="ok",
        base_offset=offset,
        life=1,
        transaction=key,
        producer=(hash(key) & 0xFFFF, 0) if key else None,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def transaction(
    key: str, begun: float, fate: str, asked: float | None = None, **changes: object
) -> Transaction:
    base = Transaction(
        key=key,
        client=key.split("/")[0],
        transactional_id=key.split("/")[0],
        producer=A,
        version=2,
        begun=begun,
        done=begun + 1,
        fate=fate,  # type: ignore[arg-type]
        asked=asked,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def fetch(at: float, offset: int, *batches: Batch, **changes: object) -> Fetch:
    base = Fetch(
        client="c",
        tp=T,
        offset=offset,
        invoked=at,
        done=at + 0.1,
        result="ok",
        seek=True,
        leader_epoch=0,
        batches=batches,
        high_watermark=7,
        last_stable_offset=7,
        log_start_offset=0,
        life=1,
        is_committed=True,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


T0, T1, T2 = batch(0, 1), batch(1, 10, 11, producer=A), batch(3, 20, producer=B)
T3, T4, T5 = marker(4, "abort", B), marker(5, "commit", A), batch(6, 2)


def clean() -> History:
    """One that is committed in two partitions, one that is aborted, one that nobody knows of, a copy."""
    history = History()
    history.sends = [
        send(T, (1,), 0.5, 0),
        send(T, (10, 11), 1.1, 1, "a/1"),
        send(U, (12,), 1.2, 0, "a/1"),
        send(T, (20,), 1.3, 3, "b/1"),
        send(U, (21,), 1.4, -1, "b/1", result="unknown"),
        send(T, (2,), 4.0, 6),
        send(U, (30,), 5.0, 2, "d/1"),
        send(
            COPY,
            (101, 110, 111, 102),
            6.0,
            0,
            "copiers-1/1",
            origins=(Origin(T, 0, 1), Origin(T, 1, 10), Origin(T, 2, 11), Origin(T, 6, 2)),
        ),
    ]
    history.transactions = [
        transaction("a/1", 1.0, "committed", asked=2.0),
        transaction("b/1", 1.0, "aborted"),
        transaction("d/1", 5.0, "unknown", asked=5.2),
        transaction("copiers-1/1", 6.0, "committed", asked=6.5),
    ]
    history.logs = {
        T: final(T0, T1, T2, T3, T4, T5),
        U: final(
            batch(0, 12, producer=A),
            marker(1, "commit", A),
            batch(2, 30, producer=C),
            marker(3, "commit", C),
        ),
        COPY: final(batch(0, 101, 110, 111, 102, producer=C), marker(4, "commit", C)),
    }
    history.fetches = [
        fetch(0.7, 0, T0, high_watermark=1, last_stable_offset=1),
        fetch(5.0, 1, T1, T2, T3, T4, T5, aborted=((B[0], 3),), seek=False),
        fetch(5.1, 0, T0, T1, T2, T3, T4, T5, client="u", is_committed=False),
    ]
    history.copies_of = {GROUP: (T,)}
    history.commits = [
        Commit(
            group=GROUP,
            member="m",
            generation=1,
            tp=T,
            offset=7,
            tag="k",
            invoked=6.2,
            done=7.0,
            result="ok",
            transaction="copiers-1/1",
        )
    ]
    history.commit_reads = [CommitRead(group=GROUP, tp=T, offset=7, tag="k", invoked=9.0, done=9.1)]
    history.transactions_seen = [TransactionSeen(transactional_id="a", state="CompleteCommit")]
    return history


Mutation = Callable[[History], None]


def expose_an_aborted_value(history: History) -> None:
    history.fetches[1] = replace(history.fetches[1], aborted=())


def keep_a_committed_value_back(history: History) -> None:
    history.fetches[1] = replace(history.fetches[1], aborted=((B[0], 3), (A[0], 1)))


def read_before_the_commit_was_asked_for(history: History) -> None:
    history.fetches[1] = replace(history.fetches[1], invoked=1.5, done=1.6)


def commit_what_was_aborted(history: History) -> None:
    history.logs[T] = final(T0, T1, T2, marker(4, "commit", B), T4, T5)
    history.fetches.pop(1)
    history.copies_of.clear()


def commit_in_one_partition_alone(history: History) -> None:
    log = history.logs[U]
    history.logs[U] = final(log.batches[0], marker(1, "abort", A), *log.batches[2:])


def abort_what_was_committed(history: History) -> None:
    commit_in_one_partition_alone(history)
    history.logs[T] = final(T0, T1, T2, T3, marker(5, "abort", A), T5)
    history.fetches.pop(1)
    history.copies_of.clear()


def tear_what_nobody_knows_of(history: History) -> None:
    history.sends.append(send(T, (31,), 5.1, 7, "d/1"))
    history.logs[T] = final(T0, T1, T2, T3, T4, T5, batch(7, 31, producer=C), marker(8, "abort", C))


def write_outside_of_it(history: History) -> None:
    batches = history.logs[U].batches
    history.logs[U] = final(batches[0], batches[1], batch(2, 30))


def forget_to_tell_of_one(history: History) -> None:
    history.transactions.pop(2)


def let_a_zombie_write(history: History) -> None:
    history.sends.append(send(U, (13,), 5.5, 5, "z/1"))
    history.transactions.append(transaction("z/1", 3.0, "aborted"))
    later, zombie = (C[0], 1), batch(5, 13, producer=C)
    more = replace(batch(4, producer=later), next_offset=5, marker="abort"), zombie, marker(6, "abort", later)
    history.logs[U] = final(*history.logs[U].batches, *more)


def count_offsets_at_once(history: History) -> None:
    history.commit_reads.insert(0, replace(history.commit_reads[0], invoked=6.3, done=6.4))


def count_offsets_of_what_was_aborted(history: History) -> None:
    history.transactions[-1] = replace(history.transactions[-1], fate="aborted", asked=None)
    log = history.logs[COPY]
    history.logs[COPY] = final(log.batches[0], marker(4, "abort", C))
    history.commits[0] = replace(history.commits[0], result="fail")
    history.copies_of.clear()


def copy_twice(history: History) -> None:
    again = send(COPY, (301,), 7.0, 5, "copiers-1/2", origins=(Origin(T, 0, 1),))
    history.sends.append(again)
    history.transactions.append(transaction("copiers-1/2", 7.0, "committed", asked=7.2))
    log = history.logs[COPY]
    history.logs[COPY] = final(*log.batches, batch(5, 301, producer=B), marker(6, "commit", B))


def copy_less_than_is_committed(history: History) -> None:
    history.sends[-1] = replace(
        history.sends[-1], values=(101, 110, 111), origins=history.sends[-1].origins[:3]
    )
    history.logs[COPY] = final(batch(0, 101, 110, 111, producer=C), marker(3, "commit", C))


def copy_what_was_aborted(history: History) -> None:
    origins = (*history.sends[-1].origins[:3], Origin(T, 3, 20))
    history.sends[-1] = replace(history.sends[-1], origins=origins)


def copy_and_lose_the_offsets(history: History) -> None:
    history.commit_reads[0] = replace(history.commit_reads[0], offset=2)
    history.commits[0] = replace(history.commits[0], offset=2)


def leave_one_open(history: History) -> None:
    history.sends.append(send(T, (31,), 5.1, 7, "d/1"))
    history.logs[T] = final(T0, T1, T2, T3, T4, T5, batch(7, 31, producer=C), lso=7)
    history.logs[U] = final(*history.logs[U].batches[:2], batch(2, 30, producer=C), lso=2)
    history.copies_of.clear()


def stop_the_last_stable_offset(history: History) -> None:
    history.logs[T] = replace(history.logs[T], last_stable_offset=6)


def never_complete_one(history: History) -> None:
    history.transactions_seen.append(TransactionSeen(transactional_id="b", state="PrepareAbort"))


def hold_an_offset_for_ever(history: History) -> None:
    history.unstable.append((GROUP, T))


MUTATIONS: dict[Mutation, set[str]] = {
    expose_an_aborted_value: {"14 nothing open is read", "14 reads are exact"},
    keep_a_committed_value_back: {"14 reads are exact"},
    read_before_the_commit_was_asked_for: {"14 nothing open is read"},
    commit_what_was_aborted: {"14 all or nothing"},
    commit_in_one_partition_alone: {"14 all or nothing"},
    abort_what_was_committed: {"14 all or nothing"},
    tear_what_nobody_knows_of: {"14 all or nothing"},
    write_outside_of_it: {"14 all or nothing"},
    forget_to_tell_of_one: {"14 all or nothing"},
    let_a_zombie_write: {"14 zombies write nothing"},
    count_offsets_at_once: {"14 offsets go with it"},
    count_offsets_of_what_was_aborted: {"14 offsets go with it", "16 commits"},
    copy_twice: {"14 copied once"},
    copy_less_than_is_committed: {"14 copied once"},
    copy_what_was_aborted: {"14 copied once"},
    copy_and_lose_the_offsets: {"14 copied once"},
    leave_one_open: {"15 nothing stays open"},
    stop_the_last_stable_offset: {"15 nothing stays open"},
    never_complete_one: {"15 nothing stays open"},
    hold_an_offset_for_ever: {"15 nothing stays open"},
}


def test_a_clean_history_passes() -> None:
    assert not judge(clean()).violations


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_each_fault_is_caught_by_the_rule_that_names_it(mutate: Mutation) -> None:
    history = clean()
    mutate(history)
    assert judge(history).rules() == MUTATIONS[mutate]


def test_every_rule_has_a_mutation_that_only_it_catches() -> None:
    assert {next(iter(rules)) for rules in MUTATIONS.values() if len(rules) == 1} == set(RULES)


@pytest.mark.parametrize(
    "mutate", [commit_in_one_partition_alone, leave_one_open, copy_twice, never_complete_one]
)
def test_what_all_lost_to_power_excuses_what_is_torn_but_not_what_coordinators_say(mutate: Mutation) -> None:
    history = clean()
    mutate(history)
    ends = {T: 9, U: 9, COPY: 9, OFFSETS_TOPIC: 9}
    history.crashes.append(Crash(life=1, at=8.0, power=True, synced_end=ends, kept_end=ends))
    assert judge(history).clean == (mutate is not never_complete_one)


def test_a_transaction_may_outlast_its_time_where_clocks_were_set() -> None:
    history = clean()
    never_complete_one(history)
    history.clocks_differ = True
    assert not judge(history).violations


@pytest.mark.parametrize(("at", "is_excused"), [(1.2, True), (5.5, False)])
def test_what_was_aborted_may_be_given_once_its_marker_was_lost(at: float, is_excused: bool) -> None:
    """Lost after it was begun and before it was given."""
    history = clean()
    history.fetches[1] = replace(history.fetches[1], aborted=())
    history.crashes.append(Crash(life=1, at=at, power=True, synced_end={}, kept_end={T: 0}))
    assert ("14 nothing open is read" not in judge(history).rules()) == is_excused


@pytest.mark.parametrize("fate", ["committed", "unknown"])
def test_what_another_aborted_may_be_given_early_once_that_marker_was_lost(
    fate: Fate,
) -> None:
    """What was committed in the end was not aborted before."""
    history = clean()
    read_before_the_commit_was_asked_for(history)
    assert judge(history).rules() == {"14 nothing open is read"}
    history.transactions = [
        replace(each, fate=fate) if each.fate == "committed" else each for each in history.transactions
    ]
    history.crashes.append(Crash(life=1, at=1.2, power=True, synced_end={}, kept_end={T: 0}))
    assert ("14 nothing open is read" in judge(history).rules()) == (fate == "committed")


def test_a_stock_client_passes_over_what_is_aborted_from_its_first_offset_on() -> None:
    """The same producer commits before, aborts, and commits again."""
    batches = (
        batch(0, 1, producer=A),
        marker(1, "commit", A),
        batch(2, 2, producer=A),
        batch(3, 3, producer=B),
        marker(4, "abort", A),
        batch(5, 4, producer=A),
        marker(6, "commit", A),
    )
    found = fetch(1.0, 0, *batches, aborted=((A[0], 2),))
    assert found.delivered() == [(0, 1), (3, 3), (5, 4)]
    assert replace(found, is_committed=False, offset=3).delivered() == [(3, 3), (5, 4)]
