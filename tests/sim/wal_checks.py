"""Owns the rules about the WAL tier: streams with one end, slices that are what replicas have, nothing read
before it counts, nothing gone that is needed, nothing left that is not.

What is in the tier is read from the bucket's journal, not asked of a broker. The rules of the logs themselves
(nothing acked is lost, replicas agree) hold whatever way the records came; they are in checks.py and
replica_checks.py.

Invariant: a rule looks only at values; the same history gives the same verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from uuid import UUID

from remote.keys import Stream, WalPart, parse_floors_key, parse_tier_key, parse_wal_key, wal_key
from remote.wal.combined_object import INDEXED_OBJECTS, Row
from tests.sim.checks import LATEST, Case
from tests.sim.history import FinalLog, TopicPartition
from tests.sim.tier_checks import FINISHED
from tests.sim.wallog import Fold, SeenStream, Slice, is_replaced, lineage, valid_end

METADATA_TOPIC = "__remote_wal_log_metadata"
OURS = "__"
"""Topics of the brokers' own: compaction makes other batches of theirs, and nobody hydrates them."""


def fold_of(case: Case) -> Fold:
    """Of the whole journal; worked out once for a case."""
    found = case.wal
    if not isinstance(found, Fold):
        found = case.wal = Fold(case.history.wal_changes)
    return found


def _names(case: Case) -> dict[str, str]:
    """Of each topic by its id."""
    return {state.topic_id: state.tp[0] for slot in case.history.slots for state in slot.partitions}


# streams ----------------------------------------------------------------------------------------------------


def objects_are_as_written(case: Case) -> Iterator[str]:
    """11 (WAL) What is put is whole, lies where it says, and has the CRCs that it says."""
    yield from fold_of(case).wrong


def streams_end_once(case: Case) -> Iterator[str]:
    """17 (WAL) A stream is written by one incarnation of its broker, ends at one seal, which no boundary
    passes, and what lies at a number is never another object."""
    fold = fold_of(case)
    for seen in fold.streams.values():
        yield from seen.wrong
        for seq, each in seen.objects.items():
            if each.node != seen.stream.node_id or each.table.head.writer != seen.stream[:2]:
                writer = each.table.head.writer
                yield f"{seen.stream}, {seq} was put by node {each.node} and names the writer {writer}"
        yield from _begins_after_its_seal(case, fold, seen)


def _begins_after_its_seal(case: Case, fold: Fold, seen: SeenStream) -> Iterator[str]:
    """A generation begins after the one before it was sealed, with an image at the seal's slot or later in
    which the broker lives."""
    if not seen.objects or seen.stream.generation == 0:
        return
    first = min(seen.objects.values(), key=lambda each: each.at)
    slot = min(each.table.head.metadata_seq for each in seen.objects.values())
    before = fold.streams.get(seen.stream._replace(generation=seen.stream.generation - 1))
    seals = [] if before is None else [each for each in before.seals.values() if not each.is_void]
    if not any(seal.at <= first.at for seal in seals):
        yield f"{seen.stream} began at {first.at:.3f}, before the generation before it was sealed"
    elif min(seal.head.metadata_seq for seal in seals) > slot:
        yield f"{seen.stream} began with the image of slot {slot}, below that of the seal before it"
    if not _lives(case, seen.stream, slot):
        yield f"{seen.stream} began with the image of slot {slot}, in which its broker does not live"


def _lives(case: Case, stream: Stream, seq: int) -> bool:
    states = [
        broker
        for slot in case.history.slots
        if slot.seq <= seq
        for broker in slot.brokers
        if broker.id == stream.node_id
    ]
    return bool(states) and states[-1].epoch == stream.broker_epoch and not states[-1].fenced


def few_are_under_way(case: Case) -> Iterator[str]:
    """20 (WAL) So few objects of a stream are under way at a time as may be; brokers hold no more than they
    may."""
    fold = Fold()
    for change in case.history.wal_changes:
        named = parse_wal_key(change.key)
        if named is not None and named.part is WalPart.OBJECT and change.kind == "put" and change.batches:
            seen = fold.streams.get(named.stream)
            counted = 0 if seen is None else len(seen.counted_at)
            if named.seq >= counted + case.history.wal_window:
                yield f"{named.stream} put {named.seq} at {change.at:.3f}, {counted} count"
        fold.note(change)
    for look in case.history.wal_looks:
        if look.most > look.limit:
            yield f"node {look.node} life {look.life}: {look.what} {look.most}, at most {look.limit}"


# slices -----------------------------------------------------------------------------------------------------


def one_batch_per_offset(case: Case) -> Iterator[str]:
    """3 (WAL) What one leader epoch has at an offset is the same bytes in every slice, counted or not, and
    in every replica."""
    names = _names(case)
    seen: dict[tuple[str, int, int, int], str] = {}
    for stream in fold_of(case).streams.values():
        for seq, each in stream.objects.items():
            for row, batches in zip(each.table.rows, each.batches, strict=True):
                if names.get(str(row.topic_id), OURS).startswith(OURS):
                    continue
                for batch in batches:
                    place = str(row.topic_id), row.partition, batch.epoch, batch.base
                    if seen.setdefault(place, batch.digest) != batch.digest:
                        yield f"{place} in {stream.stream}, {seq} is another batch than in another slice"
    for sample in case.history.samples:
        state = case.custody.at(sample.tp, sample.at)
        if state is None:
            continue
        for log in sample.logs:
            for stored in log.counted:
                place = state.topic_id, sample.tp[1], stored.leader_epoch, stored.base_offset
                if seen.get(place, stored.digest) != stored.digest:
                    where = f"{sample.tp} on node {log.node} at {sample.at:.3f}"
                    yield f"{where}: {place} is another batch than in a slice"


def slices_are_in_the_log(case: Case) -> Iterator[str]:
    """10 (WAL) In the end every slice that counts, as far as no later epoch voids it, is in the log. What
    the slices of a later epoch have in its place is in the log instead, or what a copy in the cold tier has,
    where the lead was given back to the log of an earlier epoch: it is stored from there on only."""
    by_partition = fold_of(case).by_partition()
    for tp, log in case.history.logs.items():
        topic_id = _topic_id(case, tp)
        slices = by_partition.get((topic_id, tp[1]), []) if topic_id is not None else []
        starts = lineage(slices, log.epochs)
        state = case.custody.at(tp, float("inf"))
        if state is not None:  # of an epoch in which nothing was written neither row nor log tells
            starts.setdefault(state.leader_epoch, log.log_end_offset)
        there = {(batch.base_offset, batch.leader_epoch) for batch in log.batches}
        copied = _copied(case, topic_id, tp[1])
        for each in slices:
            end = valid_end(each.row, starts)
            for batch in each.batches:
                is_owed = log.log_start_offset < batch.next <= end
                if not is_owed or (batch.base, batch.epoch) in there:
                    continue
                epoch = each.row.leader_epoch
                is_void = epoch not in dict(log.epochs) and _was_given_back(case, tp, epoch)
                if is_void and any(start <= batch.base < stop for start, stop in copied):
                    continue
                if not is_replaced(each, batch.base, batch.next, slices, starts):
                    yield f"{tp} lacks {batch.base} of epoch {batch.epoch}, which {_place(each)} has"


def _copied(case: Case, topic_id: UUID | None, index: int) -> list[tuple[int, int]]:
    """From where to where the finished copies of a partition go, at the last look."""
    copies = case.history.tiers[-1].copies if case.history.tiers else ()
    whole = (each for each in copies if each.state == FINISHED and each.partition == (str(topic_id), index))
    return [(each.base, each.end) for each in whole]


def _was_given_back(case: Case, tp: TopicPartition, epoch: int) -> bool:
    """Whether an unclean election took the lead from this epoch."""
    return any(each.is_unclean and each.state.leader_epoch > epoch for each in case.custody.moments(tp))


def _topic_id(case: Case, tp: TopicPartition) -> UUID | None:
    state = case.custody.at(tp, float("inf"))
    return UUID(state.topic_id) if state is not None and state.topic_id else None


def _place(each: Slice) -> str:
    return f"{each.stream}, {each.seq}"


def nothing_is_left_out(case: Case) -> Iterator[str]:
    """17 (WAL) The slices of a partition that count follow each other, over all epochs: none that is valid
    begins above where those before it end, but where the log began. What the cold tier has may be left
    out."""
    names = _names(case)
    cold = {
        (named.topic_id, named.partition)
        for change in case.history.tier_changes
        if (named := parse_tier_key(change.key)) is not None
    }
    for (topic_id, index), slices in fold_of(case).by_partition().items():
        name = names.get(str(topic_id))
        if name is None or name.startswith(OURS) or (topic_id, index) in cold:
            continue
        end = 0
        log = case.history.logs.get((name, index))
        starts = lineage(slices, () if log is None else log.epochs)
        for each in sorted(slices, key=lambda each: (each.row.leader_epoch, each.stream, each.seq)):
            valid = valid_end(each.row, starts)
            if valid == each.row.start:
                continue
            if each.row.start > max(end, each.row.log_start):
                yield (
                    f"{name}-{index}: {_place(each)} begins at {each.row.start},"
                    f" those before it end at {end}, the log begins at {each.row.log_start}"
                )
            end = max(end, valid)


def epochs_begin_where_the_log_says(case: Case) -> Iterator[str]:
    """12 (WAL) A slice names the epoch in which it was stored, and where that began, as the log has it, if
    not below the start that the log had then; its own records are of that epoch or an earlier one."""
    by_partition = fold_of(case).by_partition()
    for tp, log in case.history.logs.items():
        topic_id = _topic_id(case, tp)
        known = dict(log.epochs)
        for each in by_partition.get((topic_id, tp[1]), []) if topic_id is not None else []:
            row = each.row
            start = known.get(row.leader_epoch, row.epoch_start)
            if row.batch_epoch > row.leader_epoch:
                yield f"{tp}: {_place(each)} of epoch {row.leader_epoch} has records of {row.batch_epoch}"
            elif row.epoch_start > max(start, row.log_start) or (
                row.epoch_start < start and log.log_start_offset < start
            ):
                yield (
                    f"{tp}: {_place(each)} says that epoch {row.leader_epoch} began at {row.epoch_start},"
                    f" the log says {start}"
                )


# readers ----------------------------------------------------------------------------------------------------


def objects_come_before_pointers(case: Case) -> Iterator[str]:
    """11 (WAL) Nobody reads slices of an object before it counts, nor of one that never does."""
    fold = fold_of(case)
    for read in case.history.wal_reads:
        named = parse_wal_key(read.key)
        if named is None or named.part is not WalPart.OBJECT or named.stream.node_id == read.node:
            continue
        seen = fold.streams.get(named.stream)
        if seen is None or not seen.counts(named.seq, read.at):
            yield f"node {read.node} read {read.key} at {read.at:.3f}, which does not count"


def the_calm_send_nothing(case: Case) -> Iterator[str]:
    """17 (WAL) Where nothing is done to anybody, no record crosses between brokers but by the store, nobody
    leaves an ISR, and no stream is sealed."""
    if not case.history.is_calm:
        return
    for node, count in sorted(case.history.wal_direct.items()):
        if count:
            yield f"node {node} was sent {count} bytes of records"
    for tp in case.custody.partitions():
        before: tuple[int, ...] = ()
        for moment in case.custody.moments(tp):
            if not {*before} <= {*moment.state.isr}:
                yield f"{tp} slot {moment.seq}: the ISR shrank from {before} to {moment.state.isr}"
            before = moment.state.isr
    for seen in fold_of(case).streams.values():
        if seen.seals:
            yield f"{seen.stream} was sealed at {sorted(seen.seals)}"


# collection -------------------------------------------------------------------------------------------------


def boundaries_come_first(case: Case) -> Iterator[str]:
    """17 (WAL) An object goes after a boundary took it, or because it never counts; seals and boundaries
    stay."""
    fold = Fold()
    for change in case.history.wal_changes:
        named = parse_wal_key(change.key)
        if named is not None and change.kind == "delete":
            seen = fold.streams.get(named.stream) or SeenStream(named.stream)
            last = named.seq + (INDEXED_OBJECTS - 1 if named.part is WalPart.INDEX else 0)
            if named.part is WalPart.BOUNDARY:
                yield f"{change.key} was deleted at {change.at:.3f}"
            elif named.seq in seen.seals and not seen.seals[named.seq].is_void:
                if named.part is WalPart.OBJECT:
                    yield f"the seal {change.key} was deleted at {change.at:.3f}"
            elif last > seen.boundary and not (seen.end is not None and named.seq > seen.end):
                yield f"{change.key} was deleted at {change.at:.3f}, the boundary is {seen.boundary}"
        fold.note(change)


def what_goes_is_not_needed(case: Case) -> Iterator[str]:
    """17 (WAL) What goes with an object is below the log's start, in the cold tier, void, in another slice,
    or with a replica, unless all who had it lost it."""
    for gone in case.history.wal_gone:
        if not case.custody.was_lost_before(gone.tp, gone.end - 1, gone.at):
            yield (
                f"{gone.tp} {gone.start} to {gone.end - 1} went with {gone.key} at {gone.at:.3f},"
                f" replicas end at {dict(gone.ends)}"
            )


def nothing_is_left_over(case: Case) -> Iterator[str]:
    """17 (WAL) In the end no object is left below a boundary or above a seal, nor one from the beginning of
    a stream of which everything is below where a log starts or of a topic that is no more."""
    fold = fold_of(case)
    left = {*case.history.wal_left}
    live = {(_topic_id(case, tp), tp[1]): log for tp, log in case.history.logs.items()}
    existing = set(_names(case)) - {
        event.topic_id for slot in case.history.slots for event in slot.events if event.kind == "delete"
    }
    for key in sorted(left):
        named = parse_wal_key(key)
        if named is None:
            if parse_floors_key(key) is None:
                yield f"{key} is no object of the WAL tier"
            continue
        seen = fold.streams.get(named.stream)
        if named.part is not WalPart.OBJECT or seen is None or named.seq in seen.seals:
            continue
        if named.seq <= seen.boundary:
            yield f"{key} is left below the boundary {seen.boundary}"
        elif seen.end is not None and named.seq > seen.end:
            yield f"{key} is left above the seal at {seen.end}"
    for seen in fold.streams.values():
        for seq in range(seen.boundary + 1, len(seen.counted_at)):
            rows = seen.objects[seq].table.rows
            logs = (live.get((row.topic_id, row.partition)) for row in rows)
            if not all(_is_dead(row, existing, log) for row, log in zip(rows, logs, strict=True)):
                break
            if wal_key(seen.stream, seq) in left:
                yield f"{wal_key(seen.stream, seq)} is left, of which nothing is needed"


def the_topic_tells_what_is_there(case: Case) -> Iterator[str]:
    """17 (WAL) In the end the topic about the tier tells of every object that counts, and of none that is
    gone, unless all who were told lost it."""
    partitions = (tp for tp in case.custody.partitions() if tp[0] == METADATA_TOPIC)
    if not any(case.is_forgotten(tp, LATEST, 0.0, float("inf")) for tp in partitions):
        yield from case.history.wal_untold


def _is_dead(row: Row, existing: set[str], log: FinalLog | None) -> bool:
    return str(row.topic_id) not in existing or (log is not None and row.end <= log.log_start_offset)


RULES: dict[str, Callable[[Case], Iterable[str]]] = {
    "11 WAL objects": objects_are_as_written,
    "17 WAL streams": streams_end_once,
    "20 WAL bounds": few_are_under_way,
    "3 WAL batches": one_batch_per_offset,
    "10 WAL slices": slices_are_in_the_log,
    "12 WAL epochs": epochs_begin_where_the_log_says,
    "17 WAL is whole": nothing_is_left_out,
    "11 WAL pointers": objects_come_before_pointers,
    "17 WAL calm": the_calm_send_nothing,
    "17 WAL boundaries": boundaries_come_first,
    "17 WAL gone is not needed": what_goes_is_not_needed,
    "17 WAL nothing left over": nothing_is_left_over,
    "17 WAL is told": the_topic_tells_what_is_there,
}
