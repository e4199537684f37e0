"""Logs of real brokers: nothing is found in them, and of each thing that is altered exactly that."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest
from crc32c import crc32c

from tests.tools.verify.core.logs import batch
from tests.verify import kafka_bytes
from tools.verify.core.batches import batches
from tools.verify.core.directory import Log, list_directory
from tools.verify.core.facts import Fault, Vanished
from tools.verify.core.heads import Batch
from tools.verify.core.log_reading import LogFacts, check_log
from tools.verify.core.plan import LIMITLESS
from tools.verify.core.stores import FileSource, Gone, SourceFailed, open_source

T = TypeVar("T")


def read(root: Path, log: Log, **more: tuple[int, int]) -> LogFacts:
    return check_log(open_source(str(root)), 0, log, **more)


def logs_of(root: Path) -> dict[str, Log]:
    return {log.name: log for log in list_directory(open_source(str(root)), 0).logs}


def all_faults(root: Path) -> list[Fault]:
    return [fault for log in logs_of(root).values() for fault in read(root, log).faults]


@pytest.mark.requirement("1176-16")
def test_nothing_is_found_in_the_logs_of_a_real_broker(made: Path) -> None:
    total = 0
    for log in logs_of(made).values():
        found = read(made, log)
        assert found.faults == []
        assert found.vanished == []
        assert found.log is not None
        assert found.log.first == log.bases[0]
        assert found.log.end >= log.high_watermark
        assert [scanned.dropped for scanned in found.scans] == [0] * len(log.bases)
        total += sum(run.batches for scanned in found.scans for run in scanned.runs)
    assert total > 300


def test_a_log_in_pieces_gives_what_the_whole_gives(made: Path) -> None:
    for log in logs_of(made).values():
        whole = read(made, log)
        parts = [read(made, log, bases=part) for part in log.parts(7_000)]
        assert [fault for part in parts for fault in part.faults] == []
        assert [scanned for part in parts for scanned in part.scans] == whole.scans
        assert [part.log for part in parts[:-1]] == [None] * (len(parts) - 1)
        assert parts[-1].log == whole.log


# --- one thing altered ---


class Spot(NamedTuple):
    """A batch of a real log."""

    path: Path
    batch: Batch
    data: bytes
    """Of the file."""

    @property
    def place(self) -> str:
        return f"0:{self.path.parent.name}/{self.path.name}"

    def write(self, at: int, data: bytes, *, is_checked: bool = False) -> None:
        changed = bytearray(self.data)
        start, end = self.batch.position, self.batch.position + self.batch.size
        changed[start + at : start + at + len(data)] = data
        if is_checked:
            changed[start + 17 : start + 21] = struct.pack(">I", crc32c(bytes(changed[start + 21 : end])))
        self.path.write_bytes(changed)


def spots(root: Path, name: str, *, is_closed: bool = True) -> Iterator[Spot]:
    """The batches in the middle of closed segments, or the last of the active one."""
    paths = sorted((root / name).glob("*.log"))
    for path in paths[1:-1] if is_closed else paths[-1:]:
        data = path.read_bytes()
        yield from (Spot(path, each, data) for each in list(batches(data))[2 if is_closed else -1 :])


def first_spot(root: Path, name: str, wanted: Callable[[Spot], bool] = lambda _: True) -> Spot:
    return next(spot for spot in spots(root, name) if wanted(spot) and spot.batch.size > 80)


def sole(root: Path, code: str, place: str, position: int | None = None) -> Fault:
    (fault,) = all_faults(root)
    assert (fault.code, fault.place) == (code, place)
    if position is not None:
        assert fault.position == position
    return fault


def test_a_flipped_bit_is_found_where_it_is(copied: Path) -> None:
    spot = first_spot(copied, "plain-0")
    spot.write(70, bytes([spot.data[spot.batch.position + 70] ^ 4]))
    fault = sole(copied, "bad-crc", spot.place, spot.batch.position)
    assert (fault.first, fault.end) == (spot.batch.base_offset, spot.batch.last_offset + 1)


def test_a_flipped_bit_in_the_last_batch_is_not_told_of_checkpoints_too(copied: Path) -> None:
    (spot,) = spots(copied, "sums-0", is_closed=False)
    spot.write(60, bytes([spot.data[spot.batch.position + 60] ^ 4]))
    log = logs_of(copied)["sums-0"]
    is_cut = log.is_live and log.recovery_point <= spot.batch.base_offset
    sole(copied, "unclean-tail" if is_cut else "bad-crc", spot.place, spot.batch.position)


def test_another_magic_is_found(copied: Path) -> None:
    spot = first_spot(copied, "mixed-0")
    spot.write(16, b"\1")
    sole(copied, "bad-magic", spot.place, spot.batch.position)


def test_a_length_that_cannot_be_is_found(copied: Path) -> None:
    spot = first_spot(copied, "plain-0")
    spot.write(8, struct.pack(">i", -5))
    sole(copied, "bad-length", spot.place, spot.batch.position)


def test_a_closed_segment_that_ends_within_a_batch_is_torn(copied: Path) -> None:
    spot = list(spots(copied, "plain-0"))[-1]
    spot.path.write_bytes(spot.data[: spot.batch.position + 70])
    (fault,) = (fault for fault in all_faults(copied) if fault.place == spot.place)
    assert (fault.code, fault.position, fault.first) == (
        "torn-tail",
        spot.batch.position,
        spot.batch.base_offset,
    )


def test_zeros_behind_a_closed_segment_are_found(copied: Path) -> None:
    spot = first_spot(copied, "plain-0")
    spot.path.write_bytes(spot.data + bytes(30))
    sole(copied, "trailing-bytes", spot.place, len(spot.data))


def test_half_a_batch_at_the_end_is_legal_only_where_a_broker_was_killed(copied: Path) -> None:
    (spot,) = spots(copied, "plain-0", is_closed=False)
    piece = batch(spot.batch.last_offset + 1, [b"x" * 40])[:77]
    spot.path.write_bytes(spot.data + piece)
    is_live = logs_of(copied)["plain-0"].is_live
    sole(copied, "unclean-tail" if is_live else "torn-tail", spot.place, len(spot.data))


def test_sequences_that_are_missing_are_found(copied: Path) -> None:
    seen: dict[int, int] = {}

    def is_middle(spot: Spot) -> bool:
        one = spot.batch
        was, seen[one.producer_id] = seen.get(one.producer_id, -1), one.base_sequence
        return 0 <= was < one.base_sequence and not one.is_control and one.producer_id >= 0

    spot = first_spot(copied, "plain-0", is_middle)
    following = [
        each
        for path in sorted(spot.path.parent.glob("*.log"))
        for each in (Spot(path, one, path.read_bytes()) for one in batches(path.read_bytes()))
        if each.batch.producer_id == spot.batch.producer_id
        and each.batch.base_offset >= spot.batch.base_offset
    ]
    for each in following:
        fresh = each._replace(data=each.path.read_bytes())
        fresh.write(53, struct.pack(">i", each.batch.base_sequence + 3), is_checked=True)
    faults = [each for each in all_faults(copied) if each.code != "snapshot-differs"]
    assert [(each.code, each.place, each.position) for each in faults] == [
        ("sequence-gap", spot.place, spot.batch.position)
    ]


def test_an_altered_leader_epoch_is_found_and_its_neighbours_are_not_accused(copied: Path) -> None:
    spot = first_spot(copied, "plain-0")
    spot.write(12, struct.pack(">i", spot.batch.leader_epoch + 7))
    fault = sole(copied, "epoch-mismatch", spot.place, spot.batch.position)
    assert fault.actual == str(spot.batch.leader_epoch + 7)


def altered(path: Path, at: int, change: Callable[[int], int], form: str = ">i") -> None:
    data = bytearray(path.read_bytes())
    (value,) = struct.unpack_from(form, data, at)
    struct.pack_into(form, data, at, change(value))
    path.write_bytes(data)


@pytest.mark.parametrize("at", [0, 4])
def test_an_index_that_leads_elsewhere_is_found(copied: Path, at: int) -> None:
    path = next(each for each in sorted((copied / "plain-0").glob("*.index")) if each.stat().st_size >= 16)
    altered(path, 8 + at, lambda value: value + 1)
    sole(copied, "index-differs", f"0:plain-0/{path.name}", 8)


@pytest.mark.parametrize(("at", "form"), [(0, ">q"), (8, ">i")])
def test_a_time_index_that_names_another_time_or_offset_is_found(copied: Path, at: int, form: str) -> None:
    paths = sorted((copied / "sums-0").glob("*.timeindex"))
    path = next(each for each in paths[:-1] if each.stat().st_size >= 24)
    altered(path, at, lambda value: value + 1, form)
    sole(copied, "timeindex-differs", f"0:sums-0/{path.name}", 0)


@pytest.mark.parametrize("at", [2, 10, 18, 26])
def test_an_aborted_transaction_that_is_another_is_found(copied: Path, at: int) -> None:
    paths = [each for each in sorted((copied / "mixed-0").glob("*.txnindex")) if each.stat().st_size]
    if not paths:
        pytest.skip("no transactions in it")
    altered(paths[0], at, lambda value: value + 1, ">q")
    sole(copied, "txnindex-differs", f"0:mixed-0/{paths[0].name}", 0)


def test_an_aborted_transaction_that_is_not_there_is_found(copied: Path) -> None:
    paths = [each for each in sorted((copied / "mixed-0").glob("*.txnindex")) if each.stat().st_size]
    if not paths:
        pytest.skip("no transactions in it")
    log = logs_of(copied)["mixed-0"]
    path = next(each for each in paths if not log.is_live or int(each.stem) < log.recovery_point)
    path.write_bytes(path.read_bytes()[:-34])
    sole(copied, "txnindex-differs", f"0:mixed-0/{path.name}")


@pytest.mark.parametrize("at", [10, 14, 22, 26, 34, 38])
def test_a_snapshot_that_says_something_else_is_found(copied: Path, at: int) -> None:
    paths = sorted((copied / "plain-0").glob("*.snapshot"))
    path = next(each for each in paths if each.stat().st_size >= 56)
    data = bytearray(path.read_bytes())
    data[10 + at] ^= 1
    struct.pack_into(">I", data, 2, crc32c(bytes(data[6:])))
    path.write_bytes(data)
    found = sole(copied, "snapshot-differs", f"0:plain-0/{path.name}")
    assert found.first == int(path.stem)
    data[2] ^= 1
    path.write_bytes(data)
    assert "checksum" in sole(copied, "snapshot-differs", f"0:plain-0/{path.name}", 2).actual


def test_epochs_that_begin_elsewhere_are_found(copied: Path) -> None:
    path = copied / "plain-0" / "leader-epoch-checkpoint"
    known = read(copied, logs_of(copied)["plain-0"]).log
    assert known is not None
    entries = [(epoch, start) for epoch, start in known.epochs if start < known.end]
    entries[-1] = entries[-1][0], entries[-1][1] + 1
    path.write_bytes(kafka_bytes.epochs_file(entries))
    sole(copied, "epochs-differ", "0:plain-0/leader-epoch-checkpoint")
    path.write_text("0\n1\nx\n")
    sole(copied, "epochs-differ", "0:plain-0/leader-epoch-checkpoint", 4)


@pytest.mark.parametrize(
    "name",
    ["recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint"],
)
def test_a_checkpoint_past_the_end_is_found(copied: Path, name: str) -> None:
    path = copied / name
    topic = "trimmed" if name.startswith("log-start") else "sums"
    end = read(copied, logs_of(copied)[f"{topic}-0"]).log
    assert end is not None
    lines = path.read_text().splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith(f"{topic} 0 "))
    lines[at] = f"{topic} 0 {end.end + 1}"
    path.write_text("\n".join(lines) + "\n")
    fault = sole(copied, "checkpoint-outside-log", f"0:{name}")
    assert (fault.first, fault.end) == (end.end, end.end + 1)


# --- while it changes ---


class Growing(FileSource):
    """A directory whose broker goes on."""

    def opened(self, key: str, read: Callable[[int], T]) -> T:
        if key.endswith(".log") and key.startswith("plain"):
            with open(f"{self.root}/{key}", "ab") as file:
                file.write(b"more")
        return super().opened(key, read)


def test_what_is_appended_later_is_not_read(copied: Path) -> None:
    log = logs_of(copied)["plain-0"]
    assert check_log(Growing(str(copied), is_store=False), 0, log).faults == []


class Going(FileSource):
    def opened(self, key: str, read: Callable[[int], T]) -> T:
        if key.endswith(".log"):
            raise Gone(key)
        return super().opened(key, read)


def test_a_segment_that_went_meanwhile_is_no_fault(copied: Path) -> None:
    log = logs_of(copied)["plain-0"]
    found = check_log(Going(str(copied), is_store=False), 0, log)
    assert found.faults == []
    assert [each.first for each in found.vanished] == log.bases
    assert [each.end for each in found.vanished] == [*log.bases[1:], LIMITLESS]
    assert isinstance(found.vanished[0], Vanished)


class Failing(FileSource):
    def opened(self, key: str, read: Callable[[int], T]) -> T:
        raise SourceFailed(key)


def test_a_disk_that_does_not_answer_is_no_fault(copied: Path) -> None:
    with pytest.raises(SourceFailed):
        check_log(Failing(str(copied), is_store=False), 0, logs_of(copied)["plain-0"])
