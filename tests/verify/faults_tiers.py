"""Damage in the object store: the metadata log, cold segments, the WAL tier.

Owns: faults of objects of every kind, each with what is to be found. Does not own how faults are chosen
(faults). Invariant: a fault touches one object, or two that it swaps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from crc32c import crc32c

from tests.verify.cluster import Slot, random_uuid, record
from tests.verify.cold import COPY_FINISHED, DELETE_FINISHED, Copy
from tests.verify.faults import META, Expected, Plan, Planted, about, in_files
from tests.verify.faults_log import MISSING_REST
from tests.verify.kafka_bytes import short_id
from tests.verify.wal import WalObject
from tests.verify.world import OLD_S, STORE

WORN = "bad-crc", "bad-length", "bad-magic", "torn-tail", "trailing-bytes"


def at_key(key: str, *codes: str) -> Expected:
    return Expected(codes, place=key)


def edit(plan: Plan, key: str, at: int, flip: int = 0x40) -> None:
    data = bytearray(plan.files[STORE + key])
    data[at] ^= flip
    plan.files[STORE + key] = bytes(data)


# --- the metadata log ---


def quiet_slots(plan: Plan) -> list[int]:
    """Those on which nothing hangs, the last left out."""
    return list(range(plan.world.cluster.quiet_from, len(plan.world.cluster.slots)))


def slot_key(seq: int) -> str:
    return f"meta/{seq:020d}"


@in_files
def slot_missing(plan: Plan) -> Planted | None:
    if not plan.take(*META):
        return None
    seq = plan.rng.choice(quiet_slots(plan))
    del plan.files[STORE + slot_key(seq)]
    return Planted(
        "",
        [Expected(("meta-gap",), place=slot_key(seq))],
        [Expected(("meta-chain-broken",), place=slot_key(seq + 1))],
    )


@in_files
def slot_flipped(plan: Plan) -> Planted | None:
    if not plan.take(*META):
        return None
    seq = plan.rng.choice([*quiet_slots(plan), len(plan.world.cluster.slots)])
    size = len(plan.files[STORE + slot_key(seq)])
    edit(plan, slot_key(seq), plan.rng.randrange(size))
    return Planted(
        "",
        [at_key(slot_key(seq), "meta-bad-object")],
        [Expected(("meta-chain-broken",), place=slot_key(seq + 1))],
    )


def rewrite(plan: Plan, seq: int, records: list[list[Any]], controller_epoch: int | None = None) -> None:
    """Give a slot other records, with checksums and hashes that fit."""
    cluster = plan.world.cluster
    files = {key.removeprefix(STORE): data for key, data in plan.files.items() if key.startswith(STORE)}
    old = cluster.slots[seq - 1]
    epoch = old.controller_epoch if controller_epoch is None else controller_epoch
    cluster.rechain(files, seq, Slot(seq, epoch, records, old.put_id))
    for each in range(seq, len(cluster.slots) + 1):
        plan.files[STORE + slot_key(each)] = files[slot_key(each)]


def valid_slots(plan: Plan) -> list[int]:
    """Quiet ones that are not void."""
    cluster = plan.world.cluster
    return [
        seq
        for seq in [*quiet_slots(plan), len(cluster.slots)]
        if cluster.slots[seq - 1].controller_epoch == cluster.controller_epoch
    ]


@in_files
def slot_with_another_number(plan: Plan) -> Planted | None:
    """A whole object, under a key that is not its own."""
    seq = len(plan.world.cluster.slots)
    if not plan.take(*META):
        return None
    plan.files[STORE + slot_key(seq + 1)] = plan.files[STORE + slot_key(seq)]
    return Planted(
        "",
        [at_key(slot_key(seq + 1), "meta-bad-object")],
        [at_key(slot_key(seq + 1), "meta-chain-broken")],
    )


@in_files
def chain_broken(plan: Plan) -> Planted | None:
    if not plan.take(*META):
        return None
    cluster = plan.world.cluster
    seq = plan.rng.choice([*quiet_slots(plan), len(cluster.slots)])
    data = cluster.slots[seq - 1].encode(plan.rng.randbytes(32))
    plan.files[STORE + slot_key(seq)] = data
    previous = hashlib.sha256(data).digest()
    for slot in cluster.slots[seq:]:
        data = slot.encode(previous)
        previous = hashlib.sha256(data).digest()
        plan.files[STORE + slot_key(slot.seq)] = data
    return Planted("", [at_key(slot_key(seq), "meta-chain-broken")])


@in_files
def two_writers(plan: Plan) -> Planted | None:
    """A second broker is elected in an epoch that there was."""
    found = valid_slots(plan)
    if not found or not plan.take(*META):
        return None
    seq, epoch = plan.rng.choice(found), plan.world.cluster.controller_epoch
    rewrite(plan, seq, [record("ControllerElected", controller_id=77, controller_epoch=epoch)])
    return Planted("", [at_key(slot_key(seq), "meta-two-writers")])


@in_files
def unknown_record(plan: Plan) -> Planted | None:
    found = valid_slots(plan)
    if not found or not plan.take(*META):
        return None
    seq = plan.rng.choice(found)
    unknown = plan.rng.choice([["Teleported", 0, {}], ["TopicDeleted", 1, {"topic_id": "0" * 32}]])
    rewrite(plan, seq, [unknown])
    return Planted("", [at_key(slot_key(seq), "meta-unknown-record")])


@in_files
def snapshot_of_another_state(plan: Plan) -> Planted | None:
    """A snapshot that is not what the slots before it fold to."""
    cluster = plan.world.cluster
    found = [
        at
        for at in cluster.snapshots
        if at > cluster.boundary
        and all(STORE + slot_key(seq) in plan.files for seq in range(1, at + 1))
        and STORE + f"meta/snapshot/{at:020d}" in plan.files
    ]
    if not found or not plan.take(*META):
        return None
    at = plan.rng.choice(found)
    previous = hashlib.sha256(plan.files[STORE + slot_key(at)]).digest()
    more = record("ConfigChanged", resource_type=32, resource_name="other", name="a.b", value="c")
    key = f"meta/snapshot/{at:020d}"
    plan.files[STORE + key] = cluster.snapshot(at, previous, [*cluster.states[at], more])
    return Planted("", [at_key(key, "meta-snapshot-differs")])


@in_files
def unknown_key(plan: Plan) -> Planted | None:
    key = plan.rng.choice(
        [
            "rubbish",
            "meta/12",
            "meta/snapshot/1",
            f"tier/{'A' * 22}/00/{0:020d}-{'A' * 22}.log",
            f"tier/{'A' * 22}/0/{0:020d}-{'A' * 22}.LOG",
            "wal/1/none",
            "wal/01/floors",
            "ключ/ü",
        ]
    )
    if not plan.take(key):
        return None
    plan.files[STORE + key] = b"?"
    return Planted("", [at_key(key, "unknown-key")])


# --- cold segments ---


def finished(plan: Plan) -> Iterator[Copy]:
    copies = [copy for copy in plan.made.cold.copies if copy.state == COPY_FINISHED]
    yield from plan.candidates(copies)


def of_copy(copy: Copy, end: str, *codes: str, **more: Any) -> Expected:
    return about(copy.history, *codes, place=f"{copy.key}.{end}", **more)


def in_copy(copy: Copy, *codes: str) -> Expected:
    return about(copy.history, *codes, within=(copy.segment.base, copy.segment.end))


def take_copy(plan: Plan, copy: Copy, *, data: bool = True) -> bool:
    """Claim its objects, and the offsets if its data are touched."""
    if not data:
        return plan.take(copy.key + ".idx")
    return plan.take(
        copy.key + ".idx",
        copy.key + ".log",
        history=copy.history,
        first=copy.segment.base,
        end=copy.segment.end,
    )


@in_files
def cold_data_missing(plan: Plan) -> Planted | None:
    for copy in finished(plan):
        if take_copy(plan, copy):
            del plan.files[f"{STORE}{copy.key}.log"]
            return Planted("", [of_copy(copy, "log", "cold-missing-data")], [in_copy(copy, "gap")])
    return None


@in_files
def cold_index_missing(plan: Plan) -> Planted | None:
    for copy in finished(plan):
        if take_copy(plan, copy, data=False):
            del plan.files[f"{STORE}{copy.key}.idx"]
            return Planted("", [of_copy(copy, "idx", "cold-missing-index")])
    return None


@in_files
def cold_orphan(plan: Plan) -> Planted | None:
    """An object that nobody tells of, or of a copy that is told to be gone."""
    gone = [copy for copy in plan.made.cold.copies if copy.state == DELETE_FINISHED]
    whole = [copy for copy in plan.made.cold.copies if copy.state == COPY_FINISHED]
    end = plan.rng.choice(["log", "idx"])
    if gone and plan.rng.random() < 0.5:
        copy = plan.rng.choice(gone)
        key = f"{copy.key}.{end}"
    elif whole:
        copy = plan.rng.choice(whole)
        key = f"{copy.key[:-22]}{short_id(random_uuid(plan.rng))}.{end}"
    else:
        return None
    if not plan.take(key):
        return None
    plan.files[STORE + key] = copy.segment.data if end == "log" else copy.index_object(plan.world)
    plan.world.ages[STORE + key] = OLD_S
    return Planted("", [at_key(key, "cold-orphan")], [at_key(key, "cold-bad-index", "cold-swapped")])


@in_files
def cold_short(plan: Plan) -> Planted | None:
    for copy in finished(plan):
        if take_copy(plan, copy):
            positions = [*copy.segment.positions[1:], len(copy.segment.data) - 1]
            key = f"{STORE}{copy.key}.log"
            plan.files[key] = plan.files[key][: plan.rng.choice(positions)]
            return Planted(
                "",
                [of_copy(copy, "log", "cold-short")],
                [of_copy(copy, "log", "cold-range-crc", *WORN), in_copy(copy, *MISSING_REST)],
            )
    return None


@in_files
def cold_tail(plan: Plan) -> Planted | None:
    for copy in finished(plan):
        if take_copy(plan, copy):
            tail = plan.rng.choice([b"\0", bytes(100), copy.segment.batches[-1].data])
            plan.files[f"{STORE}{copy.key}.log"] += tail
            return Planted(
                "",
                [of_copy(copy, "log", "cold-tail")],
                [of_copy(copy, "log", "cold-range-crc", "offset-back", *WORN), in_copy(copy, "overlap")],
            )
    return None


@in_files
def cold_flipped(plan: Plan) -> Planted | None:
    for copy in finished(plan):
        if take_copy(plan, copy):
            number = plan.rng.randrange(len(copy.segment.batches))
            start, batch = copy.segment.positions[number], copy.segment.batches[number]
            edit(plan, copy.key + ".log", start + plan.rng.randrange(21, len(batch.data)))
            return Planted(
                "",
                [of_copy(copy, "log", "bad-crc", position=start)],
                [of_copy(copy, "log", "cold-range-crc")],
            )
    return None


@in_files
def cold_other_sum(plan: Plan) -> Planted | None:
    """The index object is whole, but names another checksum of the data."""
    for copy in finished(plan):
        if take_copy(plan, copy):
            copy.head["data_crc"] = crc32c(copy.segment.data) ^ 1
            plan.files[f"{STORE}{copy.key}.idx"] = copy.index_object(plan.world)
            return Planted(
                "",
                [
                    Expected(
                        ("cold-range-crc",), copy.history.topic.short_id, copy.history.number, beside=copy.key
                    )
                ],
            )
    return None


@in_files
def cold_index_flipped(plan: Plan) -> Planted | None:
    for copy in finished(plan):
        if take_copy(plan, copy, data=False):
            data = plan.files[f"{STORE}{copy.key}.idx"]
            edit(plan, copy.key + ".idx", plan.rng.randrange(int.from_bytes(data[6:10], "big")))
            return Planted("", [of_copy(copy, "idx", "cold-bad-index")])
    return None


@in_files
def cold_index_cut(plan: Plan) -> Planted | None:
    for copy in finished(plan):
        if take_copy(plan, copy, data=False):
            key = f"{STORE}{copy.key}.idx"
            data = plan.files[key]
            plan.files[key] = data[: plan.rng.randrange(len(data))]
            return Planted("", [of_copy(copy, "idx", "cold-bad-index", "cold-section-differs")])
    return None


@in_files
def cold_section_flipped(plan: Plan) -> Planted | None:
    for copy in finished(plan):
        data = plan.files.get(f"{STORE}{copy.key}.idx", b"")
        head = int.from_bytes(data[6:10], "big")
        if len(data) > head and take_copy(plan, copy, data=False):
            edit(plan, copy.key + ".idx", plan.rng.randrange(head, len(data)))
            return Planted("", [of_copy(copy, "idx", "cold-section-differs")])
    return None


@in_files
def cold_section_elsewhere(plan: Plan) -> Planted | None:
    """A section with fitting checksums that is not what the data give."""
    for copy in finished(plan):
        kinds = [kind for kind in range(2) if copy.section(kind)]
        if kinds and take_copy(plan, copy):
            kind = plan.rng.choice(kinds)
            data = bytearray(copy.section(kind))
            data[7] ^= 1
            copy.sections[kind] = bytes(data)
            plan.files[f"{STORE}{copy.key}.idx"] = copy.index_object(plan.world)
            return Planted(
                "", [of_copy(copy, "idx", "cold-section-differs", "index-differs", "timeindex-differs")]
            )
    return None


@in_files
def cold_swapped(plan: Plan) -> Planted | None:
    """The index objects of two copies under each other's keys."""
    copies = list(finished(plan))
    for one, other in pairwise(copies):
        keys = [f"{STORE}{copy.key}.idx" for copy in (one, other)]
        if one.key != other.key and plan.take(one.key + ".idx", other.key + ".idx"):
            plan.files[keys[0]], plan.files[keys[1]] = plan.files[keys[1]], plan.files[keys[0]]
            return Planted("", [of_copy(copy, "idx", "cold-swapped") for copy in (one, other)])
    return None


# --- the WAL tier ---


def counting(plan: Plan) -> Iterator[tuple[Any, WalObject]]:
    found = [(life, each) for life in plan.made.wal.streams for each in life.counting if not each.is_young]
    yield from plan.candidates(found)


def lives_in(each: WalObject) -> list[Any]:
    return [(piece.history, piece.start, piece.end) for piece in each.slices]


def take_object(plan: Plan, each: WalObject, *more: Any) -> bool:
    """Claim an object and the offsets of all its slices."""
    stream = ("stream", each.stream)
    if not plan.is_free(each.key, stream, *more):
        return False
    if not all(plan.is_clear(*piece) for piece in lives_in(each)):
        return False
    for history, first, end in lives_in(each):
        plan.take(history=history, first=first, end=end)
    return plan.take(each.key, stream, *more)


def hidden(each: WalObject) -> list[Expected]:
    """What is not there if an object cannot be read."""
    return [
        about(history, "gap", "copies-differ", within=(first, end)) for history, first, end in lives_in(each)
    ]


@in_files
def wal_table_flipped(plan: Plan) -> Planted | None:
    for _, each in counting(plan):
        if take_object(plan, each):
            edit(plan, each.key, plan.rng.randrange(len(each.table(plan.world.cluster.id))))
            return Planted(
                "", [at_key(each.key, "wal-bad-object")], [*hidden(each), Expected(("wal-index-differs",))]
            )
    return None


@in_files
def wal_slice_flipped(plan: Plan) -> Planted | None:
    for _, each in counting(plan):
        if each.slices and take_object(plan, each):
            number = plan.rng.randrange(len(each.slices))
            piece, start = each.slices[number], each.positions(plan.world.cluster.id)[number]
            edit(plan, each.key, start + plan.rng.randrange(21, len(piece.batches[0].data)))
            return Planted(
                "",
                [about(piece.history, "bad-crc", place=each.key, position=start)],
                hidden(each),
            )
    return None


@in_files
def wal_short(plan: Plan) -> Planted | None:
    for _, each in counting(plan):
        if each.slices and take_object(plan, each):
            size = len(plan.files[STORE + each.key])
            keep = plan.rng.randrange(len(each.table(plan.world.cluster.id)), size)
            plan.files[STORE + each.key] = plan.files[STORE + each.key][:keep]
            worn = [about(piece.history, "wal-slice-crc", *WORN, place=each.key) for piece in each.slices]
            return Planted("", [at_key(each.key, "wal-short")], [*hidden(each), *worn])
    return None


@in_files
def wal_tail(plan: Plan) -> Planted | None:
    for _, each in counting(plan):
        if each.slices and take_object(plan, each):
            plan.files[STORE + each.key] += bytes(plan.rng.choice([1, 80]))
            return Planted("", [at_key(each.key, "wal-tail")])
    return None


@in_files
def wal_missing(plan: Plan) -> Planted | None:
    """An object in the middle of its stream."""
    for life, each in counting(plan):
        above = [other for other in life.counting if other.seq > each.seq]
        if (above or life.seal) and take_object(plan, each):
            del plan.files[STORE + each.key]
            later = [expected for other in above for expected in hidden(other)]
            return Planted(
                "",
                [at_key(each.key, "wal-gap")],
                [
                    *hidden(each),
                    *later,
                    Expected(("wal-orphan", "wal-metadata-differs", "wal-index-differs")),
                ],
            )
    return None


@in_files
def wal_swapped(plan: Plan) -> Planted | None:
    """An object that says it is another."""
    for life, each in counting(plan):
        others = [other for other in life.counting if other.seq != each.seq]
        if others and take_object(plan, each):
            plan.files[STORE + each.key] = plan.rng.choice(others).data(plan.world.cluster.id)
            return Planted(
                "", [at_key(each.key, "wal-swapped")], [*hidden(each), Expected(("wal-index-differs",))]
            )
    return None


@in_files
def wal_index_flipped(plan: Plan) -> Planted | None:
    found = [life.index_key(first) for life in plan.made.wal.streams for first, _ in life.indexes]
    for key in plan.candidates(found):
        if plan.take(key):
            edit(plan, key, plan.rng.randrange(len(plan.files[STORE + key])))
            return Planted("", [at_key(key, "wal-bad-object", "wal-index-differs")])
    return None


@in_files
def wal_index_elsewhere(plan: Plan) -> Planted | None:
    """An index object that repeats another table than the object has."""
    for life in plan.candidates(list(plan.made.wal.streams)):
        for first, last in life.indexes:
            key = life.index_key(first)
            compared = [each for each in life.objects[first : last + 1] if each.seq > life.boundary]
            if compared and plan.take(key, ("stream", life.stream)):
                compared[0].head["written_ms"] = compared[0].written_ms + 1
                plan.files[STORE + key] = plan.made.wal.index_object(life, first, last)
                return Planted("", [at_key(key, "wal-index-differs")])
    return None


@in_files
def wal_orphan(plan: Plan) -> Planted | None:
    """What a boundary took long ago, or a seal has voided, and is still there."""
    for life in plan.candidates([each for each in plan.made.wal.streams if each.boundary >= 0]):
        seq = plan.rng.randint(0, life.boundary)
        each = life.objects[seq]
        if plan.take(each.key):
            plan.files[STORE + each.key] = each.data(plan.world.cluster.id)
            plan.world.ages[STORE + each.key] = OLD_S
            return Planted("", [at_key(each.key, "wal-orphan")])
    return None


@in_files
def floors_flipped(plan: Plan) -> Planted | None:
    for node in plan.candidates(list(plan.made.wal.floors)):
        key = f"wal/{node}/floors"
        if plan.take(key):
            edit(plan, key, plan.rng.randrange(len(plan.files[STORE + key])))
            return Planted("", [at_key(key, "wal-floors-bad")])
    return None


@in_files
def floors_of_another(plan: Plan) -> Planted | None:
    for node in plan.candidates(list(plan.made.wal.floors)):
        key, other = f"wal/{node}/floors", max(plan.world.cluster.brokers) + 1
        if plan.take(key):
            plan.world.cluster.brokers[other] = plan.world.cluster.brokers[node]
            plan.files[STORE + key] = plan.made.wal.floors_object(other, plan.made.wal.floors[node])
            del plan.world.cluster.brokers[other]
            return Planted("", [at_key(key, "wal-floors-bad", "wal-swapped")])
    return None


@in_files
def floors_moved_to_two_places(plan: Plan) -> Planted | None:
    """A whole object that says of a partition that it was stored once more, twice."""
    for node in plan.candidates(list(plan.made.wal.floors)):
        key = f"wal/{node}/floors"
        if plan.take(key):
            place = {"node": node, "broker_epoch": 1, "generation": 0, "seq": 0}
            rows = [row | {"moved": [place, place]} for row in plan.made.wal.floors[node]]
            plan.files[STORE + key] = plan.made.wal.floors_object(node, rows)
            return Planted("", [at_key(key, "wal-floors-bad")])
    return None


@in_files
def floors_promise_what_is_nowhere(plan: Plan) -> Planted | None:
    """A leader says that more is stored than anything holds: the end of the log is lost. Behind a lost object
    of a stream with the partition's slices it may be what that object held."""
    for history in plan.candidates(plan.users()):
        node = history.topic.partitions[history.number].leader
        rows = plan.made.wal.floors.get(node, [])
        own = [
            row for row in rows if (row["topic_id"], row["partition"]) == (history.topic.id, history.number)
        ]
        streams = [
            ("stream", life.stream)
            for life in plan.made.wal.streams
            if any(piece.history is history for each in life.objects for piece in each.slices)
        ]
        things = f"wal/{node}/floors", *META, *streams
        if own and not history.is_compacted and plan.take(*things, history=history):
            end = history.end + plan.rng.choice([1, 40])
            own[0]["stored_to"] = end
            plan.files[f"{STORE}wal/{node}/floors"] = plan.made.wal.floors_object(node, rows)
            return Planted("", [about(history, "gap", first=history.end, end=end)])
    return None


@in_files
def seal_flipped(plan: Plan) -> Planted | None:
    """What a seal says cannot be told from what an object says once its checksum fails."""
    for life in plan.candidates([each for each in plan.made.wal.streams if each.seal and not each.late]):
        assert life.seal is not None
        if plan.take(life.seal.key, ("stream", life.stream)):
            edit(plan, life.seal.key, plan.rng.randrange(len(plan.files[STORE + life.seal.key])))
            return Planted(
                "",
                [at_key(life.seal.key, "wal-seal-bad", "wal-bad-object")],
                [Expected(("wal-metadata-differs",))],
            )
    return None


@in_files
def seal_of_no_slot(plan: Plan) -> Planted | None:
    """A seal for the sake of a slot that there is not."""
    for life in plan.candidates([each for each in plan.made.wal.streams if each.seal]):
        assert life.seal is not None
        if plan.take(life.seal.key, ("stream", life.stream)):
            life.seal.metadata_seq = len(plan.world.cluster.slots) + 1000
            plan.files[STORE + life.seal.key] = life.seal.data(plan.world.cluster.id)
            return Planted("", [at_key(life.seal.key, "wal-seal-bad")])
    return None
