"""What is said of generated data directories: nothing of whole ones, of damaged ones the damage.

Owns the reading of logs against the generator. Does not own what several places say together. Invariant: a
fault that is expected in a log, or beside one, is to be found there, and nothing else is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.verify import deck
from tests.verify.faults import Expected, Planted, compare, plant
from tests.verify.stores import NOW_MS, build
from tests.verify.world import OLD_S, World
from tools.verify.core.directory import list_directory
from tools.verify.core.findings import Finding
from tools.verify.core.log_reading import check_log
from tools.verify.core.stores import Counts, Gone, Listed, TooLarge

CODES = {
    *("bad-length", "bad-magic", "bad-crc", "torn-tail", "unclean-tail", "trailing-bytes", "offset-back"),
    *("count-mismatch", "epoch-back", "epoch-mismatch", "sequence-gap", "sequence-duplicate"),
    *("producer-epoch-back", "marker-without-transaction", "index-differs", "timeindex-differs"),
    *("txnindex-differs", "snapshot-differs", "epochs-differ", "checkpoint-outside-log"),
}
FAULTS = [
    *("flipped_body", "flipped_head", "bad_magic", "wild_length", "length_past_the_end"),
    *("torn_closed_segment", "torn_active_tail", "zeros_behind_a_closed_segment", "offset_back"),
    *("epoch_of_before", "index_elsewhere", "time_index_elsewhere", "aborted_elsewhere"),
    *("snapshot_with_bad_checksum", "snapshot_elsewhere", "epochs_elsewhere", "checkpoint_outside"),
    *("sequences_missing", "sequences_again", "producer_epoch_back", "marker_of_nothing", "wrong_count"),
]


@dataclass
class WorldSource:
    """What lies below a folder of a world."""

    world: World
    folder: str
    """With a slash at the end."""
    counts: Counts = field(default_factory=Counts)

    def list(self, prefix: str = "") -> Iterator[Listed]:
        for path in sorted(self.world.files):
            if path.startswith(self.folder + prefix):
                age_s = self.world.ages.get(path, OLD_S)
                key = path.removeprefix(self.folder)
                yield Listed(key, len(self.world.files[path]), self.world.now_ms - age_s * 1000)

    def read(self, key: str, start: int, size: int) -> bytes:
        if (data := self.world.files.get(self.folder + key)) is None:
            raise Gone(key)
        return data[start : start + size]

    def read_piece(self, key: str, start: int, size: int) -> memoryview:
        return memoryview(self.read(key, start, size))

    def read_all(self, key: str, limit: int) -> bytes:
        data = self.read(key, 0, 1 << 62)
        if len(data) > limit:
            raise TooLarge(key)
        return data


def directories(world: World) -> list[WorldSource]:
    return [WorldSource(world, f"d{number}/") for number in range(len(world.directories))]


def found_in(world: World) -> Iterator[Finding]:
    for number, source in enumerate(directories(world)):
        directory = list_directory(source, number)
        assert directory.faults == []
        for log in directory.logs:
            for one in check_log(source, number, log).faults:
                about = log.topic_id, log.partition, one.first, one.end
                yield Finding(one.code, *about, one.place, one.position, one.expected, one.actual)


def is_local(expected: Expected) -> bool:
    """Whether it is said of one log alone."""
    places = [each for each in (expected.place, expected.beside) if each is not None]
    return bool(CODES & {*expected.codes}) and all(":" in each for each in places)


def locally(planted: list[Planted]) -> list[Planted]:
    """What is to be found in logs; what else the same damage looks like may be."""
    return [
        Planted(
            each.name,
            [one for one in each.expected if is_local(one)],
            [*each.shadows, *(one for one in each.expected if not is_local(one))],
        )
        for each in planted
    ]


@pytest.mark.parametrize("first", range(0, 60, 12))
def test_nothing_is_found_in_whole_logs(first: int) -> None:
    for seed in range(first, first + 12):
        assert list(found_in(build(seed, NOW_MS))) == [], seed


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_a_log_is_named_and_nothing_else(name: str) -> None:
    seen = 0
    for seed in range(40):
        plan = plant(seed, NOW_MS, only={name}, count=2)
        if plan.planted and seen < 12:
            seen += 1
            assert compare(locally(plan.planted), list(found_in(plan.world))) == [], seed
    assert seen, name


def test_the_names_of_faults_are_those_of_the_deck() -> None:
    assert {*FAULTS} <= set(deck.NAMES)
