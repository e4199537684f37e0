"""What the demo takes for lost, doubled, altered or out of order, and how long a producer was silent."""

from __future__ import annotations

import pytest

from tools.demo.judgement import Sums, differences, silence_s, value_of


def sums_of(*numbers: int, series: int = 3) -> Sums:
    sums = Sums("logs-0", 3)
    for number in numbers:
        sums.add(value_of(series, number))
    return sums


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ((0, 1, 2), []),
        ((0, 1), ["logs-0: 3 records were acknowledged, 2 are there"]),
        ((0, 1, 2, 3), ["logs-0: 3 records were acknowledged, 4 are there"]),
        ((0, 2), ["logs-0: in place of record 1 there is record 2"]),
        ((0, 0, 1, 2), ["logs-0: in place of record 1 there is record 0"]),
        ((0, 2, 1), ["logs-0: in place of record 1 there is record 2"]),
    ],
)
def test_what_was_read_is_held_against_what_was_acknowledged(found: tuple[int, ...], told: list[str]) -> None:
    assert differences([sums_of(0, 1, 2)], [sums_of(*found)]) == told


def test_a_record_of_another_partition_is_told() -> None:
    wrong = differences([sums_of(0)], [sums_of(0, series=4)])
    assert wrong == ["logs-0: in place of record 0 there is record 0 of another partition"]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (value_of(3, 0)[:-1], "record 0 is altered"),
        (b"x", "in place of record 0 there is a value of 1 bytes"),
        (None, "in place of record 0 there is a value of 0 bytes"),
    ],
)
def test_an_altered_value_is_told(value: bytes | None, told: str) -> None:
    sums = Sums("logs-0", 3)
    sums.add(value)
    assert differences([sums_of(0)], [sums]) == [f"logs-0: {told}"]


def test_the_checksum_counts_besides() -> None:
    sent = sums_of(0, 1)
    sent.checksum ^= 1
    assert differences([sent], [sums_of(0, 1)]) == ["logs-0: 2 records are there, with another checksum"]


@pytest.mark.parametrize(
    ("acknowledged_s", "longest_s"),
    [
        ([1.0, 2.0, 9.0, 9.5], 7.0),  # from the last one before the kill
        ([6.0, 6.5, 9.5], 3.0),
        ([1.0, 2.0], 0.0),  # who waits until all went on never sees this
    ],
)
def test_silence_is_the_longest_time_without_an_acknowledgement(
    acknowledged_s: list[float], longest_s: float
) -> None:
    assert silence_s(acknowledged_s, 5.0) == longest_s
