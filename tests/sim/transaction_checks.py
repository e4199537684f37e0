"""Owns the rules about transactions: what consumers of committed data may be given, what becomes of one
transaction in all its partitions, what a copy owes, and that none stays open.

A transaction whose commit nobody asked for is never given to such a consumer, nor is any before that moment;
so whatever a transaction reads was decided before its own commit was asked for, and no two transactions can
have read each other. Does not own what a single log owes its clients (checks.py), nor offsets that are
committed without a transaction.

Invariant: a rule looks only at values. That all who were bound to keep a marker, or what a coordinator knew,
have lost it excuses a transaction that is not whole or stays open, and what was aborted, also by another one
of its transactional id before its own producer asked for anything, and is given after its marker was lost;
nothing excuses what is given of a transaction that is committed before that was asked for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from math import inf
from typing import Literal

from tests.sim.checks import LATEST, OFFSETS_TOPIC, Case
from tests.sim.history import Fetch, History, Origin, ReplicaLog, Send, TopicPartition, Transaction

State = Literal["plain", "committed", "aborted", "open"]
"""What a record in a log is: outside any transaction, or what became of its transaction there."""


def states_in(log: ReplicaLog) -> dict[int, tuple[int, State]]:
    """The value and the state of every record at or above the log start, by offset."""
    found: dict[int, tuple[int, State]] = {}
    waiting: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for batch in log.counted:
        producer = batch.producer[0]
        if batch.marker:
            ended: State = "committed" if batch.marker == "commit" else "aborted"
            found.update({offset: (value, ended) for offset, value in waiting.pop(producer, [])})
        elif batch.is_transactional:
            waiting[producer] += batch.pairs()
        else:
            found.update({offset: (value, "plain") for offset, value in batch.pairs()})
    for pairs in waiting.values():
        found.update({offset: (value, "open") for offset, value in pairs})
    return {offset: found[offset] for offset in sorted(found) if offset >= log.begins}


class Book:
    """What follows from a history that several of these rules ask for."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.history: History = case.history
        self.by_key = {each.key: each for each in self.history.transactions}

    @cached_property
    def sends(self) -> dict[str, list[Send]]:
        """The sends of each transaction."""
        found: dict[str, list[Send]] = defaultdict(list)
        for send in self.history.sends:
            if send.transaction:
                found[send.transaction].append(send)
        return found

    @cached_property
    def of_value(self) -> dict[tuple[TopicPartition, int], Transaction]:
        """The transaction of each value that was sent in one."""
        return {
            (send.tp, value): self.by_key[key]
            for key, sends in self.sends.items()
            if key in self.by_key
            for send in sends
            for value in send.values
        }

    @cached_property
    def states(self) -> dict[TopicPartition, dict[int, tuple[int, State]]]:
        return {tp: states_in(log) for tp, log in self.history.logs.items()}

    @cached_property
    def offsets(self) -> dict[TopicPartition, dict[int, int]]:
        """Where each value is in the final log."""
        return {
            tp: {value: offset for offset, (value, _) in states.items()} for tp, states in self.states.items()
        }

    def may_forget(self, tp: TopicPartition, since: float) -> bool:
        """Whether a marker that was written there after `since`, or what a coordinator knew, was lost by all
        who were bound to keep it."""
        return self.case.is_forgotten(tp, LATEST, since, inf) or self.case.forgot_transactions(since, inf)


def book_of(case: Case) -> Book:
    if not isinstance(case.book, Book):
        case.book = Book(case)
    return case.book


# 14 ---------------------------------------------------------------------------------------------------------


def nothing_open_is_read(case: Case) -> Iterator[str]:
    """14 Who reads what is committed is given nothing of a transaction that was aborted, or whose commit
    nobody had asked for yet; its own producer neither."""
    book = book_of(case)
    for fetch in book.history.fetches:
        if not fetch.is_committed:
            continue
        for offset, value in fetch.delivered():
            found = book.of_value.get((fetch.tp, value))
            if found is None:
                continue
            is_early = found.asked is None or fetch.done < found.asked
            if found.fate != "aborted" and not is_early:
                continue
            if found.fate != "committed" and case.custody.was_lost_between(
                fetch.tp, LATEST, found.begun, fetch.done
            ):
                continue  # its marker is lost, which leaves it to the next one of its producer
            what = f"{fetch.tp} {fetch.client} was given {value} at {offset} of {found.key}"
            why = ", which aborted" if found.fate == "aborted" else " before its commit was asked for"
            yield f"{what}{why}"


def reads_are_exact(case: Case) -> Iterator[str]:
    """14 Of the range that an answer covers, a consumer is given all that is committed, and nothing else."""
    book = book_of(case)
    for fetch in book.history.fetches:
        if not fetch.is_committed or not fetch.batches:
            continue
        states = book.states.get(fetch.tp, {})
        log = book.history.logs.get(fetch.tp)
        if log is None:
            continue
        given = dict(fetch.delivered())
        first, end = max(fetch.offset, log.begins), min(fetch.batches[-1].next_offset, log.log_end_offset)
        for offset in range(first, end):
            value, state = states.get(offset, (None, "open"))
            was_given = offset in given
            if was_given == (state in ("plain", "committed")) or _is_taken_back(case, fetch, offset):
                continue
            if was_given:
                yield f"{fetch.tp} {fetch.client} was given {given[offset]} at {offset}, which is {state}"
            elif value is not None:
                yield f"{fetch.tp} {fetch.client} was not given {value} at {offset}, which is {state}"


def _is_taken_back(case: Case, fetch: Fetch, offset: int) -> bool:
    """Whether what was decided of this record by then may have been lost with its marker."""
    return any(
        case.is_void(fetch, each) for each in {offset, max(offset, fetch.last_stable_offset - 1), LATEST}
    )


def all_or_nothing(case: Case) -> Iterator[str]:
    """14 A transaction is committed in all its partitions or in none, and as its producer was told."""
    book = book_of(case)
    for key, sends in book.sends.items():
        found = book.by_key.get(key)
        if found is None:
            yield f"{key} was never told of"
            continue
        states = {tp: set(each) for tp, each in _states_of(book, sends).items()}
        seen: set[State] = set().union(*states.values()) if states else set()
        places = ", ".join(f"{tp}: {'+'.join(sorted(each))}" for tp, each in sorted(states.items()))
        if "plain" in seen:
            yield f"{key} is outside any transaction: {places}"
        may_forget = any(book.may_forget(tp, found.begun) for tp in states)
        if found.fate == "aborted" and "committed" in seen and not may_forget:
            yield f"{key} was aborted, yet is committed: {places}"
        is_torn = "committed" in seen and len(seen) > 1
        is_lost = found.fate == "committed" and bool(seen) and "committed" not in seen
        if (is_torn or is_lost) and not may_forget:
            yield f"{key} ({found.fate}) is not whole: {places}"


def _states_of(book: Book, sends: Iterable[Send]) -> dict[TopicPartition, list[State]]:
    """What became of the values that are still there."""
    found: dict[TopicPartition, list[State]] = defaultdict(list)
    for send in sends:
        at = book.offsets.get(send.tp, {})
        for value in send.values:
            if value in at:
                found[send.tp].append(book.states[send.tp][at[value]][1])
    return found


def zombies_write_nothing(case: Case) -> Iterator[str]:
    """14 In a log the epochs of a producer never fall: who was fenced there writes nothing more, and no
    marker of an earlier transaction comes after one of a later."""
    book = book_of(case)
    for tp, log in book.history.logs.items():
        newest: dict[int, int] = {}
        for batch in log.counted:
            producer_id, epoch = batch.producer
            if producer_id < 0:
                continue
            before = newest.get(producer_id, epoch)
            if epoch < before and not book.may_forget(tp, 0.0):
                what = batch.marker or str(batch.values)
                yield f"{tp} {what} of epoch {epoch} at {batch.base_offset} follows epoch {before}"
            newest[producer_id] = max(epoch, before)


def offsets_go_with_it(case: Case) -> Iterator[str]:
    """14 Offsets that are committed in a transaction count once its commit was asked for, not before."""
    book = book_of(case)
    commits = {commit.tag: commit for commit in book.history.commits if commit.transaction}
    for read in book.history.commit_reads:
        commit = commits.get(read.tag)
        found = None if commit is None else book.by_key.get(commit.transaction)
        if found is not None and (found.asked is None or read.done < found.asked):
            yield f"{read.group} {read.tp}: read {read.offset} of {found.key} before its commit was asked for"


def copied_once(case: Case) -> Iterator[str]:
    """14 A copy has every record below the offset that its group has committed, once, and no other."""
    book = book_of(case)
    history = book.history
    for group, sources in history.copies_of.items():
        copies = _copies(book, group, set(sources))
        for origin, places in copies.items():
            if len(places) > 1 and not _lost_any(book, origin.tp, *(tp for tp, _ in places)):
                yield f"{group} copied {origin} to {places}"
        targets = {tp for places in copies.values() for tp, _ in places}
        for tp in sources:
            yield from _is_exact(book, group, tp, copies, targets)


def _is_exact(
    book: Book,
    group: str,
    tp: TopicPartition,
    copies: dict[Origin, list[tuple[TopicPartition, int]]],
    targets: set[TopicPartition],
) -> Iterator[str]:
    committed = _committed_at_the_end(book.history, group, tp)
    if committed is None or _lost_any(book, tp, *targets):
        return
    mine = {origin.offset: origin for origin in copies if origin.tp == tp}
    for offset, (value, state) in book.states.get(tp, {}).items():
        is_owed = offset < committed and state in ("plain", "committed")
        origin = mine.get(offset)
        if is_owed and origin is None:
            yield f"{group} has committed {committed} of {tp} and never copied {value} at {offset}"
        elif origin is not None and (not is_owed or origin.value != value):
            yield f"{group} copied {origin}, where {value} is {state} and {committed} is committed"


def _copies(
    book: Book, group: str, sources: set[TopicPartition]
) -> dict[Origin, list[tuple[TopicPartition, int]]]:
    """Where each record that was read has a committed copy."""
    found: dict[Origin, list[tuple[TopicPartition, int]]] = defaultdict(list)
    for send in book.history.sends:
        if not send.origins or not send.client.startswith(f"{group}-"):
            continue
        at = book.offsets.get(send.tp, {})
        for value, origin in zip(send.values, send.origins, strict=True):
            if value in at and book.states[send.tp][at[value]][1] == "committed" and origin.tp in sources:
                found[origin].append((send.tp, at[value]))
    return found


def _committed_at_the_end(history: History, group: str, tp: TopicPartition) -> int | None:
    reads = [read for read in history.commit_reads if (read.group, read.tp) == (group, tp)]
    return reads[-1].offset if reads else None


def _lost_any(book: Book, *tps: TopicPartition) -> bool:
    """Whether anything that a copy rests upon was ever lost."""
    return book.may_forget(OFFSETS_TOPIC, 0.0) or any(book.may_forget(tp, 0.0) for tp in tps)


# 15 ---------------------------------------------------------------------------------------------------------


def nothing_stays_open(case: Case) -> Iterator[str]:
    """15 Once faults are over and every transaction has had its time, the last stable offset is the high
    watermark, and no coordinator has one under way; unless clocks were set, by which that time is told."""
    book = book_of(case)
    if book.history.clocks_differ:
        return
    for tp, log in book.history.logs.items():
        opened = sorted(offset for offset, (_, state) in book.states[tp].items() if state == "open")
        stable = log.high_watermark if log.last_stable_offset is None else log.last_stable_offset
        is_behind = bool(book.history.transactions) and stable < log.high_watermark
        if not (opened or is_behind) or _was_forgotten_since(book, tp, opened):
            continue
        yield f"{tp} ends with LSO {log.last_stable_offset}, HW {log.high_watermark}, open {opened[:4]}"
    for group, tp in book.history.unstable:
        if not book.may_forget(OFFSETS_TOPIC, 0.0):
            yield f"what {group} has committed of {tp} is held by a transaction in the end"
    for seen in book.history.transactions_seen:
        if seen.state in UNDER_WAY:
            yield f"{seen.transactional_id} is {seen.state} in the end"


UNDER_WAY = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort"})


def _was_forgotten_since(book: Book, tp: TopicPartition, opened: list[int]) -> bool:
    """Whether who would end these transactions may have forgotten them."""
    of_value = (book.of_value.get((tp, book.states[tp][offset][0])) for offset in opened)
    begun = min((found.begun for found in of_value if found is not None), default=0.0)
    return book.may_forget(tp, begun)


RULES: dict[str, Callable[[Case], Iterable[str]]] = {
    "14 nothing open is read": nothing_open_is_read,
    "14 reads are exact": reads_are_exact,
    "14 all or nothing": all_or_nothing,
    "14 zombies write nothing": zombies_write_nothing,
    "14 offsets go with it": offsets_go_with_it,
    "14 copied once": copied_once,
    "15 nothing stays open": nothing_stays_open,
}
