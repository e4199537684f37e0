"""Damage in the data directories of brokers.

Owns: faults of `.log` files and of the files beside them, of checkpoints and directories, each with what is
to be found. Does not own how faults are chosen (faults). Invariant: a fault touches one file of one replica.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from crc32c import crc32c

from tests.verify import kafka_bytes as kafka
from tests.verify.cluster import random_uuid
from tests.verify.faults import META, Expected, Plan, Planted, about, in_files
from tests.verify.kafka_bytes import Batch, short_id
from tests.verify.world import Replica, Segment

Spot = tuple[Replica, Segment, Batch, int]
"""A batch in a file of a replica, and where it begins."""


def spots(plan: Plan, *, only_closed: bool = False) -> Iterator[Spot]:
    found = [
        (replica, segment, batch, position)
        for replica in plan.world.replicas
        if not replica.is_diverged and not replica.history.topic.name.startswith("__")
        for segment in replica.segments
        if not (only_closed and segment is replica.segments[-1])
        for batch, position in zip(segment.batches, segment.positions, strict=True)
    ]
    yield from plan.candidates(found)


def take(plan: Plan, spot: Spot, *, whole: bool = False) -> bool:
    """Claim a batch, or all that follows it in its file with what stands beside the file."""
    replica, segment, batch, _ = spot
    path = replica.path(segment)
    if not plan.is_free((path, batch.base), ("whole", path)):
        return False
    if whole:
        beside = [
            name
            for name in plan.files
            if name.startswith(f"{replica.folder}/") and not name.endswith("partition.metadata")
        ]
        things = [("whole", path), *((path, each.base) for each in segment.batches), *beside]
        return plan.take(*things, history=replica.history, first=batch.base, end=segment.end)
    return plan.take((path, batch.base), path, history=replica.history, first=batch.base, end=batch.end)


def edit(plan: Plan, path: str, at: int, data: bytes) -> None:
    old = plan.files[path]
    plan.files[path] = old[:at] + data + old[at + len(data) :]


def at_batch(plan: Plan, spot: Spot, *codes: str) -> Expected:
    replica, segment, batch, position = spot
    is_live = not plan.world.directories[replica.directory].is_clean
    if is_live and segment is replica.segments[-1] and batch is segment.batches[-1]:
        codes = *codes, "unclean-tail"  # nothing tells it from what a crash leaves
    return about(replica.history, *codes, place=plan.world.place(replica.path(segment)), position=position)


def behind(plan: Plan, spot: Spot, *codes: str) -> Expected:
    """What an unreadable rest of a file may hide."""
    replica, segment, batch, _ = spot
    return about(replica.history, *codes, within=(batch.base, segment.end))


def beside(plan: Plan, spot: Spot, *codes: str) -> Expected:
    """Of the files of the log, or of the checkpoints of its directory."""
    return about(spot[0].history, *codes, beside=f"{spot[0].directory}:")


MISSING_REST = "gap", "replica-short", "replicas-differ", "copies-differ"
DERIVED = (
    "index-differs",
    "timeindex-differs",
    "txnindex-differs",
    "aborted-index-differs",
    "snapshot-differs",
    "epochs-differ",
    "checkpoint-outside-log",
)


@in_files
def flipped_body(plan: Plan) -> Planted | None:
    """A bit behind the head of a batch."""
    for spot in spots(plan):
        replica, segment, batch, position = spot
        if len(batch.data) > kafka.HEAD_SIZE and take(plan, spot):
            path = replica.path(segment)
            at = position + plan.rng.randrange(kafka.HEAD_SIZE, len(batch.data))
            edit(plan, path, at, bytes([plan.files[path][at] ^ 1 << plan.rng.randrange(8)]))
            return Planted("", [at_batch(plan, spot, "bad-crc")])
    return None


@in_files
def flipped_head(plan: Plan) -> Planted | None:
    """A bit in what the head of a batch says of producers, times or counts, or in its checksum."""
    for spot in spots(plan):
        replica, segment, _, position = spot
        if take(plan, spot):
            at = position + plan.rng.choice([17, 18, 19, 20, *range(27, 61)])
            path = replica.path(segment)
            edit(plan, path, at, bytes([plan.files[path][at] ^ 1 << plan.rng.randrange(8)]))
            return Planted("", [at_batch(plan, spot, "bad-crc")])
    return None


@in_files
def bad_magic(plan: Plan) -> Planted | None:
    for spot in spots(plan):
        replica, segment, _, position = spot
        if take(plan, spot):
            edit(plan, replica.path(segment), position + 16, bytes([plan.rng.choice([0, 1, 3, 255])]))
            return Planted("", [at_batch(plan, spot, "bad-magic")])
    return None


@in_files
def wild_length(plan: Plan) -> Planted | None:
    for spot in spots(plan, only_closed=True):
        replica, segment, _, position = spot
        if take(plan, spot, whole=True):
            length = plan.rng.choice([-1, 0, 48, -(1 << 31)])
            edit(plan, replica.path(segment), position + 8, struct.pack(">i", length))
            return Planted(
                "",
                [at_batch(plan, spot, "bad-length")],
                [behind(plan, spot, *MISSING_REST), beside(plan, spot, *DERIVED)],
            )
    return None


@in_files
def length_past_the_end(plan: Plan) -> Planted | None:
    for spot in spots(plan, only_closed=True):
        replica, segment, _, position = spot
        if take(plan, spot, whole=True):
            length = plan.rng.choice([(1 << 31) - 1, len(segment.data)])
            edit(plan, replica.path(segment), position + 8, struct.pack(">i", length))
            return Planted(
                "",
                [at_batch(plan, spot, "bad-length", "torn-tail")],
                [behind(plan, spot, *MISSING_REST), beside(plan, spot, *DERIVED)],
            )
    return None


@in_files
def torn_closed_segment(plan: Plan) -> Planted | None:
    for spot in spots(plan, only_closed=True):
        replica, segment, batch, position = spot
        if take(plan, spot, whole=True):
            keep = position + plan.rng.randrange(1, len(batch.data))
            path = replica.path(segment)
            plan.files[path] = plan.files[path][:keep]
            return Planted(
                "",
                [at_batch(plan, spot, "torn-tail")],
                [behind(plan, spot, *MISSING_REST), beside(plan, spot, *DERIVED)],
            )
    return None


@in_files
def torn_active_tail(plan: Plan) -> Planted | None:
    """What a crash leaves: half a batch behind the last."""
    for spot in spots(plan):
        replica, segment, batch, _ = spot
        is_last = segment is replica.segments[-1] and batch is segment.batches[-1]
        path = replica.path(segment)
        if not is_last or plan.world.directories[replica.directory].is_clean:
            continue
        if plan.take(
            ("tail", path), ("whole", path), history=replica.history, first=batch.base, end=batch.end
        ):
            piece = batch.data[: plan.rng.randrange(13, len(batch.data))]
            plan.files[path] += (batch.end).to_bytes(8, "big") + piece[8:]
            place = plan.world.place(path)
            return Planted(
                "", [about(replica.history, "unclean-tail", place=place, position=len(segment.data))]
            )
    return None


@in_files
def zeros_behind_a_closed_segment(plan: Plan) -> Planted | None:
    for spot in spots(plan, only_closed=True):
        replica, segment, batch, _ = spot
        path = replica.path(segment)
        if batch is not segment.batches[-1] or not plan.is_clear(replica.history, batch.base, segment.end):
            continue  # damage of the last batch would reach this far
        if plan.take(
            ("tail", path), ("whole", path), history=replica.history, first=batch.base, end=segment.end
        ):
            plan.files[path] += bytes(plan.rng.choice([1, 11, 12, 61, 200]))
            place = plan.world.place(path)
            return Planted(
                "",
                [
                    about(
                        replica.history,
                        "trailing-bytes",
                        "torn-tail",
                        "bad-length",
                        place=place,
                        position=len(segment.data),
                    )
                ],
            )
    return None


@in_files
def offset_back(plan: Plan) -> Planted | None:
    """The base offset is no part of the checksum."""
    for spot in spots(plan):
        replica, segment, batch, position = spot
        before = [each for each in segment.batches if each.base < batch.base]
        if not before or replica.history.is_compacted:
            continue
        if not plan.is_clear(replica.history, before[-1].base, batch.end) or not take(plan, spot, whole=True):
            continue
        at = before[-1].base
        edit(plan, replica.path(segment), position, at.to_bytes(8, "big"))
        return Planted(
            "",
            [at_batch(plan, spot, "offset-back")],
            [
                about(replica.history, *MISSING_REST, "overlap", within=(at, batch.end)),
                about(replica.history, "manifest-altered", "manifest-loss", within=(at, batch.end)),
                beside(plan, spot, *DERIVED),
            ],
        )
    return None


@in_files
def epoch_of_before(plan: Plan) -> Planted | None:
    """The leader epoch is no part of the checksum either. Of what lies below the log start no list of epochs
    tells any more, and the batch before tells of lower ones alone."""
    for spot in spots(plan):
        replica, segment, batch, position = spot
        earlier = [each for each in segment.batches if each.base < batch.base]
        if not batch.epoch or not earlier:
            continue
        epoch = plan.rng.randrange(batch.epoch)
        is_told = earlier[-1].epoch > epoch or any(first <= batch.base for _, first in replica.epochs)
        if is_told and take(plan, spot, whole=True):
            edit(plan, replica.path(segment), position + 12, epoch.to_bytes(4, "big"))
            return Planted(
                "",
                [at_batch(plan, spot, "epoch-back", "epoch-mismatch")],
                [
                    behind(plan, spot, "replicas-differ", "copies-differ", "epoch-mismatch"),
                    beside(plan, spot, *DERIVED),
                ],
            )
    return None


@in_files
def altered_value(plan: Plan) -> Planted | None:
    """A batch of one replica says something else, with a checksum that fits."""
    for spot in spots(plan):
        replica, segment, batch, position = spot
        others = [
            each
            for each in plan.world.of(replica.history)
            if each is not replica and each.start <= batch.base and min(each.high, replica.high) >= batch.end
        ]
        plain = next((each for each in batch.records if each.value), None)
        if not others or plain is None or batch.codec != kafka.NONE or batch.marker is not None:
            continue
        if replica.history.is_compacted:
            continue  # each replica compacts for itself
        if not plan.is_clear(replica.history, batch.base - 1, batch.end + 1):
            continue  # differences that touch are told as one
        if not take(plan, spot):
            continue
        data = bytearray(batch.data)
        at = data.rindex(plain.value or b"")
        data[at] ^= 0x55
        kafka.recheck(data)
        edit(plan, replica.path(segment), position, bytes(data))
        found = about(replica.history, "replicas-differ", "copies-differ", within=(batch.base, batch.end))
        return Planted("", [found])
    return None


# --- beside a segment ---


def sidecars(plan: Plan, suffix: str) -> Iterator[tuple[Replica, Segment, str]]:
    found = [
        (replica, segment, path)
        for replica in plan.world.replicas
        for segment in replica.segments
        if (path := replica.path(segment, suffix)) in plan.files and plan.files[path]
    ]
    yield from plan.candidates(found)


def take_beside(plan: Plan, replica: Replica, segment: Segment, path: str) -> bool:
    """Claim a file beside a segment whose batches are sound and will be. After a crash an index may tell of
    more than there is."""
    if segment is replica.segments[-1] and not plan.world.directories[replica.directory].is_clean:
        return False
    return plan.take(
        path, history=replica.history, first=segment.base, end=max(segment.end, segment.base + 1)
    )


def in_file(plan: Plan, replica: Replica, path: str, *codes: str) -> Expected:
    return about(replica.history, *codes, place=plan.world.place(path))


@in_files
def index_elsewhere(plan: Plan) -> Planted | None:
    for replica, segment, path in sidecars(plan, ".index"):
        if take_beside(plan, replica, segment, path):
            data = bytearray(plan.files[path])
            at = plan.rng.randrange(0, len(data), 8) + plan.rng.choice([0, 4])
            value = int.from_bytes(data[at : at + 4], "big") + plan.rng.choice([1, 7, 1 << 20])
            data[at : at + 4] = value.to_bytes(4, "big")
            if plan.rng.random() < 0.2:
                data = bytearray(plan.files[path][:-3])
            plan.files[path] = bytes(data)
            return Planted("", [in_file(plan, replica, path, "index-differs")])
    return None


@in_files
def time_index_elsewhere(plan: Plan) -> Planted | None:
    for replica, segment, path in sidecars(plan, ".timeindex"):
        if take_beside(plan, replica, segment, path):
            data = bytearray(plan.files[path])
            at = plan.rng.randrange(0, len(data), 12)
            time = int.from_bytes(data[at : at + 8], "big") + plan.rng.choice([-1, 10_000_000])
            data[at : at + 8] = time.to_bytes(8, "big")
            plan.files[path] = bytes(data)
            return Planted("", [in_file(plan, replica, path, "timeindex-differs")])
    return None


@in_files
def aborted_elsewhere(plan: Plan) -> Planted | None:
    for replica, segment, path in sidecars(plan, ".txnindex"):
        if replica.history.is_compacted or replica.history.log_start > segment.base:
            continue
        entries = replica.history.aborted_in(segment.base, segment.end)
        if entries and entries[0].first >= replica.start and plan.take(path, history=replica.history):
            is_live = not plan.world.directories[replica.directory].is_clean
            may_lack = is_live and entries[0].last >= replica.recovery  # after a crash
            if plan.rng.random() < 0.3 and not may_lack:
                plan.files[path] = b""
            else:
                data = bytearray(plan.files[path])
                data[2:10] = (int.from_bytes(data[2:10], "big") + 1).to_bytes(8, "big")
                plan.files[path] = bytes(data)
            return Planted("", [in_file(plan, replica, path, "txnindex-differs", "aborted-index-differs")])
    return None


@in_files
def snapshot_with_bad_checksum(plan: Plan) -> Planted | None:
    return _snapshot(plan, is_checked=False)


@in_files
def snapshot_elsewhere(plan: Plan) -> Planted | None:
    return _snapshot(plan, is_checked=True)


def _snapshot(plan: Plan, *, is_checked: bool) -> Planted | None:
    found = [
        (replica, path)
        for replica in plan.world.replicas
        if not replica.history.is_compacted and not replica.is_diverged
        for path in plan.files
        if path.startswith(f"{replica.folder}/") and path.endswith(".snapshot")
    ]
    for replica, path in plan.candidates(found):
        at = int(path[-29:-9])
        inside = [
            number
            for number, each in enumerate(replica.history.state_at(at).producers.values())
            if each.last_offset >= replica.start
        ]
        if inside and plan.take(path, history=replica.history):
            data = bytearray(plan.files[path])
            row = 10 + plan.rng.choice(inside) * 46
            if is_checked:
                sequence = int.from_bytes(data[row + 10 : row + 14], "big") ^ 1
                data[row + 10 : row + 14] = sequence.to_bytes(4, "big")
                data[2:6] = crc32c(bytes(data[6:])).to_bytes(4, "big")
            else:
                data[plan.rng.randrange(2, len(data))] ^= 0x10
            plan.files[path] = bytes(data)
            return Planted("", [in_file(plan, replica, path, "snapshot-differs")])
    return None


@in_files
def epochs_elsewhere(plan: Plan) -> Planted | None:
    for replica in plan.candidates(list(plan.world.replicas)):
        path = f"{replica.folder}/leader-epoch-checkpoint"
        starts = [batch.base for segment in replica.segments for batch in segment.batches]
        inside = [at for at, each in enumerate(replica.epochs) if at and each[1] in starts[1:]]
        if not inside or not plan.take(path, history=replica.history):
            continue
        epochs = list(replica.epochs)
        at = plan.rng.choice(inside)
        epochs[at] = epochs[at][0], epochs[at][1] + 1
        is_live = not plan.world.directories[replica.directory].is_clean
        may_lack = is_live and epochs[at] == epochs[-1] and epochs[at][1] > replica.recovery
        if plan.rng.random() < 0.4 and not may_lack:  # a crash may take the newest
            del epochs[at]
        plan.files[path] = kafka.epochs_file(epochs)
        return Planted(
            "",
            [in_file(plan, replica, path, "epochs-differ")],
            [about(replica.history, "epoch-mismatch", beside=plan.world.place(replica.folder))],
        )
    return None


# --- directories ---


@in_files
def checkpoint_outside(plan: Plan) -> Planted | None:
    for replica in plan.candidates(list(plan.world.replicas)):
        name = plan.rng.choice(
            [
                "replication-offset-checkpoint",
                "recovery-point-offset-checkpoint",
                "log-start-offset-checkpoint",
            ]
        )
        path = f"d{replica.directory}/{name}"
        if not plan.is_free(path) or replica.history.topic.name.startswith("__remote"):
            continue
        key = f"{replica.history.topic.name} {replica.history.number} "
        lines = plan.files[path].decode().splitlines()
        at = next((at for at, line in enumerate(lines) if line.startswith(key)), None)
        if at is None or not plan.take((path, key), ("start", replica.history.id)):
            continue
        if name.startswith("log-start") and not plan.take(history=replica.history):
            continue
        last = {"first": max(replica.end - 1, 0), "end": replica.end + 1}
        if not name.startswith("log-start") and not plan.take(history=replica.history, **last):
            continue  # where the log ends must be known
        lines[at] = f"{key}{replica.end + plan.rng.choice([1, 1000])}"
        plan.files[path] = ("\n".join(lines) + "\n").encode()
        found = about(replica.history, "checkpoint-outside-log", place=plan.world.place(path))
        return Planted("", [found], [about(replica.history, "replica-short")])
    return None


@in_files
def unknown_directory(plan: Plan) -> Planted | None:
    if not plan.take(*META):
        return None  # without the image nobody knows which topics there are
    number = plan.rng.randrange(len(plan.world.directories))
    folder = f"d{number}/ghost-{len(plan.planted)}"
    topic_id = random_uuid(plan.rng)
    batch = Batch(0, 0, 0, (kafka.Rec(0, 0, None, b"ghost"),), 1, 1)
    plan.files[f"{folder}/partition.metadata"] = f"version: 0\ntopic_id: {short_id(topic_id)}".encode()
    plan.files[f"{folder}/{0:020d}.log"] = kafka.encode_batch(batch)
    plan.files[f"{folder}/leader-epoch-checkpoint"] = kafka.epochs_file([(0, 0)])
    return Planted("", [Expected(("directory-unknown",), beside=plan.world.place(folder))])


@in_files
def directory_of_another(plan: Plan) -> Planted | None:
    number = plan.rng.randrange(len(plan.world.directories))
    path = f"d{number}/meta.properties"
    if not plan.take(path, *META):
        return None
    what = plan.rng.choice(["cluster.id", "directory.id"])
    lines = [
        f"{what}={short_id(random_uuid(plan.rng))}" if line.startswith(what) else line
        for line in plan.files[path].decode().splitlines()
    ]
    plan.files[path] = ("\n".join(lines) + "\n").encode()
    return Planted("", [Expected(("meta-directory-differs",), place=plan.world.place(path))])
