"""Owns the verdict: each rule is a pure function from a history to the ways in which it was broken.

The rules carry the numbers of the project's list of invariants. Here are those that a client could state;
what replicas and the metadata log owe each other is in replica_checks.py, those that speak of tiers, of
transactions and of groups that a server assigns have files of their own. Does not own how a history came to
be.

Invariant: a rule looks only at values; the same history gives the same verdict, and each broken promise has
one rule that names it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import pairwise

from tests.sim.custody import Custody
from tests.sim.history import Fetch, History, ReplicaLog, Send, TopicPartition

ALL = -1
OFFSETS_TOPIC = ("__consumer_offsets", 0)
TRANSACTIONS_TOPIC = "__transaction_state"
LATEST = 1 << 62  # where a record went whose offset its client is not told


class Case:
    """A history, and what follows from it that several rules ask for."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.custody = Custody(history)
        self.wal: object = None
        """What the rules about the WAL tier folded from its journal."""
        self.book: object = None
        """What the rules about transactions worked out."""
        self._by_sequence: dict[object, list[Send]] = defaultdict(list)

    @cached_property
    def observations(self) -> list[tuple[TopicPartition, int, int]]:
        """Everything that claims a value for an offset and that could not be taken back."""
        return list(_observations(self))

    @cached_property
    def offsets_of_values(self) -> dict[tuple[TopicPartition, int], set[int]]:
        """Where each value was seen."""
        found: dict[tuple[TopicPartition, int], set[int]] = defaultdict(set)
        for tp, offset, value in self.observations:
            found[tp, value].add(offset)
        return found

    @cached_property
    def missing(self) -> list[tuple[Send, int, int]]:
        """Each acked value that is not at its offset in the final log, its send and that offset."""
        return list(_missing(self.history))

    def is_forgotten(self, tp: TopicPartition, offset: int, begin: float, end: float) -> bool:
        """Whether what was committed at this offset, seen between the two, was lost by all who had it."""
        return self.custody.is_lost(tp, offset, begin, end, was_synced=self._is_synced_first(tp))

    def is_stale(self, fetch: Fetch, offset: int) -> bool:
        """Whether a follower gave what the ISR had lost before: it serves what was committed until it hears
        from the leader that begins again without it."""
        is_follower = fetch.node != self.custody.leader_of(fetch.tp, fetch.leader_epoch)
        return is_follower and self.custody.was_lost_before(fetch.tp, offset, fetch.invoked)

    def is_void(self, fetch: Fetch, offset: int) -> bool:
        """Whether what this fetch brought had been taken back or was to be: whoever answered in an epoch that
        was over may not have heard what ended it, which counts as if it came after the answer was asked."""
        since = self.custody.last_of_epoch(fetch.tp, fetch.leader_epoch, fetch.invoked)
        return self.is_forgotten(fetch.tp, offset, since, fetch.done) or self.is_stale(fetch, offset)

    def _is_synced_first(self, tp: TopicPartition) -> bool:
        return self.history.single_replica_flush and self.custody.is_single(tp)

    def forgot_transactions(self, begin: float, end: float) -> bool:
        """Whether what a transaction coordinator knew between the two was lost by all who had it."""
        known = [tp for tp in self.custody.partitions() if tp[0] == TRANSACTIONS_TOPIC]
        if not self.custody.partitions():  # one broker, of which nothing but crashes is told
            known = [(TRANSACTIONS_TOPIC, 0)]
        return any(self.is_forgotten(tp, LATEST, begin, end) for tp in known)

    def was_taken_for_another(self, send: Send) -> bool:
        """Whether this may have been answered as the repetition of another batch: its producer got an epoch
        for a second time, from a coordinator that had lost what it knew."""
        if not send.transaction:
            return False
        if not self._by_sequence:
            for each in self.history.sends:
                if each.transaction:
                    self._by_sequence[each.tp, each.producer, each.sequence].append(each)
        return any(
            other.invoked < send.invoked and self.forgot_transactions(other.invoked, send.done)
            for other in self._by_sequence[send.tp, send.producer, send.sequence]
        )

    def may_lose(self, send: Send, offset: int) -> bool:
        """Whether this ack may have been taken back: for acks=all when everybody bound to it lost it, or it
        came after an unclean election that its leader had not heard of; for acks=1 also when its leader did
        not stay the leader."""
        if self.was_taken_for_another(send):
            return True
        custody = self.custody
        if send.acks != ALL and not custody.led_on(send.tp, send.node, send.since):
            return True
        if custody.was_overthrown(send.tp, send.node, send.since):
            return True
        was_synced = send.acks == ALL and self._is_synced_first(send.tp)
        return custody.is_lost(send.tp, offset, send.since, send.done, was_synced=was_synced)


# 1 ----------------------------------------------------------------------------------------------------------


def acked_is_kept(case: Case) -> Iterator[str]:
    """1 No acked loss: an acked value is at its offset in the final log, unless deletion was asked for."""
    history = case.history
    deletable = _deletable(history)
    for send, offset, value in case.missing:
        log = history.logs.get(send.tp)
        if log is not None and offset < log.log_start_offset <= deletable.get(send.tp, 0):
            continue
        if not case.may_lose(send, offset):
            yield f"{send.tp} {value} acked at {offset} (acks={send.acks}, node {send.node}) is not there"


def _missing(history: History) -> Iterator[tuple[Send, int, int]]:
    found = {tp: _values_at(history, tp) for tp in history.logs}
    for send in history.sends:
        if send.result != "ok" or send.acks == 0:
            continue
        values = found.get(send.tp, {})
        for offset, value in enumerate(send.values, send.base_offset):
            if values.get(offset) != value:
                yield send, offset, value


def taken_back(case: Case) -> Iterator[tuple[Send, int]]:
    """Acks that are not there any more, as far as they may be: each value's send and offset."""
    for send, offset, _ in case.missing:
        log = case.history.logs.get(send.tp)
        if (log is None or offset >= log.log_start_offset) and case.may_lose(send, offset):
            yield send, offset


def deletes_stay_done(case: Case) -> Iterator[str]:
    """1 (deletion) What was deleted for certain does not come back: the log starts where the answer said, or
    later, whatever crashed meanwhile."""
    for delete in case.history.deletes:
        log = case.history.logs.get(delete.tp)
        if delete.result != "ok" or log is None or log.log_start_offset >= delete.before:
            continue
        if not any(each.is_unclean and each.at > delete.invoked for each in case.custody.moments(delete.tp)):
            start = log.log_start_offset
            yield f"{delete.tp} deleted before {delete.before} at {delete.done:.3f} starts at {start}"


def sync_is_kept(case: Case) -> Iterator[str]:
    """1 (disk) What can be read after a crash, and what recovery makes of it, reaches at least as far as the
    last sync; of topics that are deleted nothing need be kept, and what is made anew has the same name; of
    what moved away neither."""
    history = case.history
    deletable = _deletable(history)
    passing = {event.topic for slot in history.slots for event in slot.events if event.kind == "delete"}
    for crash in history.crashes:
        if crash.replaced:
            continue
        for tp, end in crash.synced_end.items():
            state = case.custody.at(tp, crash.at)
            is_held = state is None or crash.node in state.replicas
            is_owed = is_held and tp[0] not in passing and end > deletable.get(tp, 0)
            recovered_end = crash.kept_end if crash.recovered_end is None else crash.recovered_end
            for what, ends in (("readable", crash.kept_end), ("recovered", recovered_end)):
                if is_owed and ends.get(tp, 0) < end:
                    kept = ends.get(tp, 0)
                    yield f"{tp} node {crash.node} life {crash.life}: synced to {end}, {what} to {kept}"


def no_holes(case: Case) -> Iterator[str]:
    """1 (suffix) Whatever a crash takes, it takes from the end: the final offsets follow each other."""
    history = case.history
    for tp, log in history.logs.items():
        for before, after in pairwise(log.counted):
            if after.base_offset != before.next_offset:
                first, last = before.next_offset, after.base_offset - 1
                yield f"{tp} offsets {first} to {last} are missing in the middle"


# 2 ----------------------------------------------------------------------------------------------------------


def batches_are_whole(case: Case) -> Iterator[str]:
    """2 Unknown is consistent: of one send, all records are there, in one row, or none."""
    history = case.history
    offsets = case.offsets_of_values
    for send in history.sends:
        places = [sorted(offsets.get((send.tp, value), ())) for value in send.values]
        present = [place[0] for place in places if place]
        if not present or len(present) == len(send.values):
            if present and present != list(range(present[0], present[0] + len(present))):
                yield f"{send.tp} {send.values} is spread over {present}"
            continue
        log = history.logs[send.tp]
        if present == list(range(log.log_start_offset, log.log_start_offset + len(present))):
            continue  # the log begins inside this batch
        yield f"{send.tp} of {send.values} only {len(present)} records are there"


# 3 ----------------------------------------------------------------------------------------------------------


def one_value_per_offset(case: Case) -> Iterator[str]:
    """3 Whoever saw an offset saw the same value there."""
    seen: dict[tuple[TopicPartition, int], set[int]] = defaultdict(set)
    for tp, offset, value in case.observations:
        seen[tp, offset].add(value)
    for (tp, offset), values in seen.items():
        if len(values) > 1:
            yield f"{tp} offset {offset} was seen as {sorted(values)}"


# 4 ----------------------------------------------------------------------------------------------------------


def no_duplicates(case: Case) -> Iterator[str]:
    """4 A value has at most one offset: raw clients send once, retrying clients are idempotent."""
    for (tp, value), offsets in case.offsets_of_values.items():
        if len(offsets) > 1:
            yield f"{tp} {value} is at {sorted(offsets)}"


# 5 ----------------------------------------------------------------------------------------------------------


def no_phantoms(case: Case) -> Iterator[str]:
    """5 Every value was sent there, and not refused for certain."""
    history = case.history
    results: dict[tuple[TopicPartition, int], str] = {}
    for send in history.sends:
        for value in send.values:
            results[send.tp, value] = send.result
    for tp, offset, value in _read(history):
        result = results.get((tp, value))
        if result is None:
            yield f"{tp} {value} at {offset} was never sent there"
        elif result == "fail":
            yield f"{tp} {value} at {offset} had been refused"


# 6 ----------------------------------------------------------------------------------------------------------


def order_is_kept(case: Case) -> Iterator[str]:
    """6 Send order is offset order: on one connection, for one producer epoch, and in real time after an
    ack."""
    history = case.history
    final = {(tp, value): offset for tp, log in history.logs.items() for offset, value in log.pairs}
    placed = [
        (send, final[send.tp, send.values[0]]) for send in history.sends if (send.tp, send.values[0]) in final
    ]
    placed.sort(key=lambda pair: (pair[0].invoked, pair[0].values))
    last: dict[tuple[object, ...], int] = {}
    acked: dict[TopicPartition, list[tuple[float, int]]] = defaultdict(list)
    for send, offset in placed:
        key = (send.tp, send.client, send.producer if send.producer is not None else send.connection)
        if offset <= last.get(key, -1):
            yield f"{send.tp} {send.client} sent {send.values[0]} later, yet it is at {offset} <= {last[key]}"
        last[key] = max(offset, last.get(key, -1))
        before = max((at for done, at in acked[send.tp] if done < send.invoked), default=-1)
        if offset <= before:
            yield f"{send.tp} {send.values[0]} at {offset} was sent after {before} was acked"
        if send.result == "ok" and send.acks != 0:
            acked[send.tp].append((send.done, offset))


# 7 ----------------------------------------------------------------------------------------------------------


def fetches_are_contiguous(case: Case) -> Iterator[str]:
    """7 A consumer gets the record it asked for, then the next, and never goes back without a seek."""
    history = case.history
    expected: dict[tuple[str, TopicPartition], int] = {}
    for fetch in history.fetches:
        if fetch.result != "ok":
            continue
        key = (fetch.client, fetch.tp)
        if not fetch.seek and key in expected and fetch.offset != expected[key]:
            yield f"{fetch.tp} {fetch.client} fetched {fetch.offset}, not {expected[key]}"
        at = fetch.offset
        for batch in fetch.batches:
            if batch.base_offset > at or batch.next_offset <= at:
                got = f"{batch.base_offset}-{batch.next_offset - 1}"
                yield f"{fetch.tp} {fetch.client} at {at} got the batch {got}"
            at = batch.next_offset
        expected[key] = at


# 8 ----------------------------------------------------------------------------------------------------------


def read_stays_read(case: Case) -> Iterator[str]:
    """8 What a consumer was given is in the final log, and no further than the log's end."""
    history = case.history
    for fetch in history.fetches:
        log = history.logs.get(fetch.tp)
        end = log.log_end_offset if log is not None else 0
        for batch in fetch.batches:
            if batch.next_offset <= end:
                continue
            if not case.is_void(fetch, batch.next_offset - 1):
                yield f"{fetch.tp} {fetch.client} read up to {batch.next_offset}, the log ends at {end}"


# 9 ----------------------------------------------------------------------------------------------------------


def watermarks_are_ordered(case: Case) -> Iterator[str]:
    """9 log start <= LSO <= HW <= LEO at every sample, and none goes back within a leader epoch; a follower
    that crashed begins again with what it had noted of them."""
    history = case.history
    for tp, log in history.logs.items():
        last_stable = log.high_watermark if log.last_stable_offset is None else log.last_stable_offset
        marks = (log.log_start_offset, last_stable, log.high_watermark, log.log_end_offset)
        if list(marks) != sorted(marks):
            yield f"{tp} ends with log start, LSO, HW, LEO = {marks}"
    by_epoch: dict[tuple[TopicPartition, int, int, int], list[Fetch]] = defaultdict(list)
    for fetch in history.fetches:
        if fetch.result != "ok":
            continue
        if not fetch.log_start_offset <= fetch.last_stable_offset <= fetch.high_watermark:
            yield (
                f"{fetch.tp} showed log start {fetch.log_start_offset}, LSO {fetch.last_stable_offset},"
                f" HW {fetch.high_watermark}"
            )
        if fetch.batches and fetch.batches[-1].next_offset > fetch.high_watermark:
            yield f"{fetch.tp} served up to {fetch.batches[-1].next_offset}, past HW {fetch.high_watermark}"
        leader = case.custody.leader_of(fetch.tp, fetch.leader_epoch)
        begun_again = 0 if leader in (None, fetch.node) else _crashes_before(history, fetch)
        by_epoch[fetch.tp, fetch.leader_epoch, fetch.node, begun_again].append(fetch)
    for (tp, epoch, *_), fetches in by_epoch.items():
        yield from _never_back(tp, epoch, fetches)


def _crashes_before(history: History, fetch: Fetch) -> int:
    return sum(crash.node == fetch.node and crash.life < fetch.life for crash in history.crashes)


def _never_back(tp: TopicPartition, epoch: int, fetches: list[Fetch]) -> Iterator[str]:
    answered = sorted(fetches, key=lambda fetch: fetch.done)
    asked = sorted(fetches, key=lambda fetch: fetch.invoked)
    highest = (-1, -1, -1)
    position = 0
    for fetch in asked:
        while position < len(answered) and answered[position].done < fetch.invoked:
            highest = tuple(map(max, highest, _marks(answered[position])))  # type: ignore[assignment]
            position += 1
        for name, before, now in zip(("HW", "LSO", "log start"), highest, _marks(fetch), strict=True):
            if now < before:
                yield f"{tp} epoch {epoch}: {name} went back from {before} to {now}"


def _marks(fetch: Fetch) -> tuple[int, int, int]:
    return fetch.high_watermark, fetch.last_stable_offset, fetch.log_start_offset


# 11 ---------------------------------------------------------------------------------------------------------


def bytes_are_equal(case: Case) -> Iterator[str]:
    """11 A batch has the same bytes wherever it is seen."""
    history = case.history
    stored = {(tp, batch.base_offset): batch for tp, log in history.logs.items() for batch in log.counted}
    for fetch in history.fetches:
        for batch in fetch.batches:
            final = stored.get((fetch.tp, batch.base_offset))
            if final is None or final.values != batch.values:
                continue  # another rule's matter
            if final.digest != batch.digest and not case.is_void(fetch, batch.base_offset):
                yield f"{fetch.tp} the batch at {batch.base_offset} was read with other bytes than are stored"


def served_is_stored(case: Case) -> Iterator[str]:
    """11 (serving) What the healed broker serves is what its files hold."""
    history = case.history
    for tp, log in history.logs.items():
        if log.pairs != log.served:
            odd = sorted(set(log.pairs) ^ set(log.served))[:4]
            yield f"{tp} files and answers differ, first at {odd}"


# 12 ---------------------------------------------------------------------------------------------------------


def epochs_only_grow(case: Case) -> Iterator[str]:
    """12 Leader epochs never fall along the log, the cache says where each began, and no epoch outlives a
    crash."""
    history = case.history
    for tp, log in history.logs.items():
        epoch = -1
        for batch in log.counted:
            if batch.leader_epoch < epoch:
                yield f"{tp} epoch {batch.leader_epoch} at {batch.base_offset} follows {epoch}"
            epoch = max(epoch, batch.leader_epoch)
        yield from wrong_epoch_starts(log, str(tp))
    yield from _one_leader_per_epoch(history)


def wrong_epoch_starts(log: ReplicaLog, where: str) -> Iterator[str]:
    """Where the epoch cache and the batches differ."""
    cache = dict(log.epochs)
    if list(log.epochs) != sorted(log.epochs) or len({start for _, start in log.epochs}) != len(log.epochs):
        yield f"{where}: the epoch cache is not strictly increasing: {log.epochs}"
    starts: dict[int, int] = {}
    for batch in log.counted:
        starts.setdefault(batch.leader_epoch, max(batch.base_offset, log.begins))
    for epoch, start in starts.items():
        if cache.get(epoch) != start and not (start == log.begins and cache.get(epoch, start) <= start):
            yield f"{where}: epoch {epoch} begins at {start}, the cache says {cache.get(epoch)}"


def _one_leader_per_epoch(history: History) -> Iterator[str]:
    """After a clean stop nothing can be written a second time, so the node's next life may go on in the same
    epoch, also if it was preceded by one that ended before it served."""
    epoch_of = {
        (tp, value): batch.leader_epoch
        for tp, log in history.logs.items()
        for batch in log.counted
        for value in batch.values
    }
    lives: dict[tuple[TopicPartition, int], set[tuple[int, int]]] = defaultdict(set)
    for send in history.sends:
        if send.result == "ok" and send.attempts == 1 and (send.tp, send.values[0]) in epoch_of:
            lives[send.tp, epoch_of[send.tp, send.values[0]]].add((send.node, send.life))
    crashed = {(crash.node, crash.life) for crash in history.crashes if crash.was_ready}
    for (tp, epoch), who in lives.items():
        (node, first), (other, last) = min(who), max(who)
        if node != other:
            yield f"{tp} epoch {epoch} was appended to by nodes {sorted({node for node, _ in who})}"
        elif crashed & {(node, life) for life in range(first, last)}:
            yield f"{tp} epoch {epoch} was appended to in lives {first} to {last}, with a crash between"


# 16 ---------------------------------------------------------------------------------------------------------


def one_owner(case: Case) -> Iterator[str]:
    """16 In one generation a partition has at most one owner."""
    history = case.history
    owners: dict[tuple[str, int, TopicPartition], set[str]] = defaultdict(set)
    for sync in history.syncs:
        for tp in sync.assignment:
            owners[sync.group, sync.generation, tp].add(sync.member)
    for (group, generation, tp), members in owners.items():
        if len(members) > 1 and not _group_was_forgotten(case):
            yield f"{group} generation {generation}: {tp} is owned by {sorted(members)}"


def stale_is_rejected(case: Case) -> Iterator[str]:
    """16 After a newer generation was handed out, nothing of an older one is accepted."""
    history = case.history
    if _group_was_forgotten(case):
        return
    assigned = {beat.group for beat in history.beats}  # members of these have epochs of their own
    for group in sorted({sync.group for sync in history.syncs} - assigned):
        handed_out = sorted((sync.done, sync.generation) for sync in history.syncs if sync.group == group)
        claims: list[tuple[float, int, str]] = [
            (commit.invoked, commit.generation, f"commit {commit.tag}")
            for commit in history.commits
            if commit.group == group and commit.result == "ok" and commit.generation >= 0
        ]
        claims += [
            (beat.invoked, beat.generation, f"heartbeat of {beat.member}")
            for beat in history.heartbeats
            if beat.group == group and beat.result == "ok"
        ]
        for invoked, generation, what in claims:
            newest = max((known for done, known in handed_out if done < invoked), default=-1)
            if generation < newest:
                yield f"{group}: {what} of generation {generation} was accepted after {newest} was handed out"


def commits_move_offsets(case: Case) -> Iterator[str]:
    """16 A committed offset is that of the last accepted commit, or of one whose fate was open."""
    history = case.history
    commits = {commit.tag: commit for commit in history.commits}
    for read in history.commit_reads:
        earlier = [
            commit
            for commit in history.commits
            if (commit.group, commit.tp) == (read.group, read.tp)
            and commit.result == "ok"
            and commit.done < read.invoked
            and not case.is_forgotten(OFFSETS_TOPIC, LATEST, commit.invoked, commit.done)
        ]
        seen = commits.get(read.tag) if read.tag else None
        if seen is None:
            if read.offset >= 0:
                yield f"{read.group} {read.tp}: read {read.offset} ({read.tag!r}), which nobody committed"
            elif earlier:
                yield f"{read.group} {read.tp}: the commit {earlier[-1].tag} is gone"
            continue
        if seen.result == "fail":
            yield f"{read.group} {read.tp}: read {seen.tag}, which was refused"
        if seen.offset != read.offset:
            yield f"{read.group} {read.tp}: read {read.offset}, {seen.tag} had committed {seen.offset}"
        if seen.result == "ok" and any(commit.invoked > seen.done for commit in earlier):
            yield f"{read.group} {read.tp}: read {seen.tag}, which a later accepted commit had replaced"


def _group_was_forgotten(case: Case) -> bool:
    return any(
        case.is_forgotten(OFFSETS_TOPIC, LATEST, sync.invoked, sync.done) for sync in case.history.syncs
    )


# 18 ---------------------------------------------------------------------------------------------------------


def recovery_is_exact(case: Case) -> Iterator[str]:
    """18 Indexes, producer state and epochs equal those recomputed from the log; a second restart changes
    nothing."""
    history = case.history
    for recovery in history.recoveries:
        yield from recovery.differences


RULES: dict[str, Callable[[Case], Iterable[str]]] = {
    "1 acked is kept": acked_is_kept,
    "1 deletes stay done": deletes_stay_done,
    "1 sync is kept": sync_is_kept,
    "1 no holes": no_holes,
    "2 batches are whole": batches_are_whole,
    "3 one value per offset": one_value_per_offset,
    "4 no duplicates": no_duplicates,
    "5 no phantoms": no_phantoms,
    "6 order": order_is_kept,
    "7 contiguity": fetches_are_contiguous,
    "8 read stays read": read_stays_read,
    "9 watermarks": watermarks_are_ordered,
    "11 bytes": bytes_are_equal,
    "11 served is stored": served_is_stored,
    "12 epochs": epochs_only_grow,
    "16 one owner": one_owner,
    "16 stale is rejected": stale_is_rejected,
    "16 commits": commits_move_offsets,
    "18 recovery": recovery_is_exact,
}


# what several rules look at ---------------------------------------------------------------------------------


def _values_at(history: History, tp: TopicPartition) -> dict[int, int]:
    log = history.logs.get(tp)
    return dict(log.pairs) if log is not None else {}


def _read(history: History) -> Iterator[tuple[TopicPartition, int, int]]:
    """(partition, offset, value) of everything read, by consumers and at the end."""
    for tp, log in history.logs.items():
        for offset, value in log.pairs:
            yield tp, offset, value
    for fetch in history.fetches:
        for batch in fetch.batches:
            for offset, value in batch.pairs():
                yield fetch.tp, offset, value


def _observations(case: Case) -> Iterator[tuple[TopicPartition, int, int]]:
    history = case.history
    for tp, log in history.logs.items():
        for offset, value in log.pairs:
            yield tp, offset, value
        for offset, value in log.served:
            yield tp, offset, value
    lost: set[tuple[TopicPartition, int, int]] = set()
    for send in history.sends:
        if send.result == "ok" and send.acks != 0:
            for offset, value in enumerate(send.values, send.base_offset):
                if case.may_lose(send, offset):
                    lost.add((send.tp, offset, value))  # which others may still read who have not heard of it
                else:
                    yield send.tp, offset, value
    for fetch in history.fetches:
        for batch in fetch.batches:
            for offset, value in batch.pairs():
                if (fetch.tp, offset, value) not in lost and not case.is_void(fetch, offset):
                    yield fetch.tp, offset, value


def _deletable(history: History) -> dict[TopicPartition, int]:
    """How far clients asked each log to begin, or retention may have made it."""
    if history.forgets:
        return {tp: log.log_end_offset for tp, log in history.logs.items()}
    asked: dict[TopicPartition, int] = defaultdict(int)
    for delete in history.deletes:
        if delete.result != "fail":
            asked[delete.tp] = max(asked[delete.tp], delete.before)
    return asked
