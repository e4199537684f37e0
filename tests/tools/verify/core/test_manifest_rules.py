"""Every rule of a manifest, as the writer wrote it, against a log that is right but for one thing."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tools.verify.core import manifest_rules
from tools.verify.core.findings import Counted, Finding
from tools.verify.core.manifest import id_text, read_manifests
from tools.verify.core.manifest_digests import record_digests
from tools.verify.core.manifest_rules import Columns, Wanted, compare
from tools.verify.manifest.outcomes import Outcome
from tools.verify.manifest.writer import ManifestWriter

TOPIC_ID = bytes(range(16))
TOPIC = id_text(TOPIC_ID)
Record = tuple[int, int, int]
"""Offset, key hash, value hash."""


@dataclass
class Send:
    order: int
    key_hash: int
    value_hash: int
    outcome: Outcome = Outcome.OK
    offset: int = -1
    partition: int = 0
    acks: int = -1
    batch: int = 0


@dataclass
class Play:
    """What a producer sent to one partition, and what the log of it holds; right, until a test alters it."""

    sends: list[Send] = field(default_factory=list)
    log: list[Record] = field(default_factory=list)
    log_start: int = 0
    is_compacted: bool = False
    exempt: tuple[tuple[int, int, str], ...] = ()
    is_idempotent: bool = True
    is_killed: bool = False
    keeps_rows: bool = True
    is_unique: bool = False

    def send(self, outcome: Outcome, *, is_stored: bool, **also: Any) -> Send:
        """Add a send whose record, if it is stored, comes at the end of the log."""
        number = len(self.sends) + 1
        send = Send(number, 1000 + number, 2000 + number * 7, outcome, **also)
        if is_stored:
            offset = self.log[-1][0] + 1 if self.log else 0
            self.log.append((offset, send.key_hash, send.value_hash))
            if outcome is Outcome.OK and "offset" not in also:
                send.offset = offset
        self.sends.append(send)
        return send

    def without(self, *offsets: int) -> None:
        self.log = [record for record in self.log if record[0] not in offsets]

    def run(self, folder: Path) -> manifest_rules.Compared:
        folder.mkdir(exist_ok=True)
        writer = ManifestWriter(
            folder / f"a{len(list(folder.iterdir()))}.manifest",
            started_ms=1,
            clock=lambda: 0.0,
            is_idempotent=self.is_idempotent,
            is_ordered=True,
            is_unique=self.is_unique,
            keeps_rows=self.keeps_rows,
        )
        topic = writer.topic("t", TOPIC_ID)
        for send in self.sends:
            writer.note(
                topic,
                send.partition,
                order=send.order,
                key_hash=send.key_hash,
                value_hash=send.value_hash,
                outcome=send.outcome,
                offset=send.offset,
                acks=send.acks,
                batch=send.batch,
            )
        if self.is_killed:
            writer.flush()
        else:
            writer.close()
        manifest = read_manifests([str(folder)], {})
        assert manifest.partitions() == {(TOPIC, 0)}
        stored = [record for record in self.log if record[0] >= self.log_start]
        digests = record_digests("log", *columns(stored))
        ranges = tuple(manifest.differing(TOPIC, 0, digests, self.log_start))
        wanted = Wanted(TOPIC, 0, self.log_start, ranges, self.exempt, self.is_compacted)

        def read(group: Sequence[Wanted]) -> Iterator[tuple[str, int, Columns]]:
            for each in group:
                for first, end in each.ranges:
                    own = [record for record in stored if first <= record[0] < end]
                    for at in range(0, len(own), 100):
                        yield each.topic_id, each.partition, columns(own[at : at + 100])

        found = compare(manifest, [wanted], read)
        found.findings.extend(manifest.findings)
        found.counted.extend(manifest.counted)
        return found


def columns(records: list[Record]) -> Columns:
    table = np.array(records, np.uint64).reshape(-1, 3)
    return table[:, 0].astype(np.int64), table[:, 1], table[:, 2]


def codes(found: manifest_rules.Compared) -> list[tuple[str, int, int]]:
    return [(each.code, each.first, each.end) for each in found.findings]


def amounts(found: manifest_rules.Compared) -> dict[str, int]:
    totals: dict[str, int] = {}
    for each in found.counted:
        totals[each.what] = totals.get(each.what, 0) + each.amount
    return totals


@pytest.fixture
def play() -> Play:
    """Forty thousand acknowledged records in three buckets, and sends with every other outcome."""
    play = Play()
    rng = random.Random(7)
    for number in range(40_000):
        play.send(Outcome.OK, is_stored=True)
        if number % 4000 == 0:
            play.send(Outcome.UNKNOWN, is_stored=True)
            play.send(Outcome.UNKNOWN, is_stored=False)
            play.send(Outcome.FAIL, is_stored=False)
            play.send(Outcome.UNKNOWN, is_stored=bool(rng.getrandbits(1)), partition=-1)
            play.send(Outcome.OK, is_stored=True, offset=-1)
    return play


def test_a_log_that_is_right_has_no_findings(play: Play, tmp_path: Path) -> None:
    found = play.run(tmp_path)
    assert codes(found) == []
    assert found.unchecked == []
    assert amounts(found) == {"unknown-present": 10, "unknown-absent": 10}


def test_equal_sums_are_not_looked_at_again(tmp_path: Path) -> None:
    play = Play()
    for _ in range(20_000):
        play.send(Outcome.OK, is_stored=True)
    found = play.run(tmp_path)
    assert codes(found) == []
    manifest = read_manifests([str(tmp_path)], {})
    assert manifest.differing(TOPIC, 0, record_digests("", *columns(play.log)), 0) == []
    play.without(17_000)
    digests = record_digests("", *columns(play.log))
    assert manifest.differing(TOPIC, 0, digests, 0) == [(16_384, 32_768)]
    assert manifest.differing(TOPIC, 0, digests, 17_500) == [(17_500, 32_768)]
    assert manifest.differing(TOPIC, 0, digests, 32_768) == []


def test_acknowledged_and_absent_is_lost_one_finding_for_each_range(play: Play, tmp_path: Path) -> None:
    acknowledged = [send.offset for send in play.sends if send.offset >= 0]
    lost = [acknowledged[5], *acknowledged[17_000:17_020], acknowledged[-1]]
    play.without(*lost)
    assert codes(play.run(tmp_path)) == [
        ("manifest-loss", lost[0], lost[0] + 1),
        ("manifest-loss", lost[1], lost[20] + 1),
        ("manifest-loss", lost[-1], lost[-1] + 1),
    ]


def test_a_log_that_is_gone_is_lost_to_the_last_bucket(play: Play, tmp_path: Path) -> None:
    play.log = []
    found = play.run(tmp_path)
    lost = sum(int(each.expected.split()[0]) for each in found.findings)
    assert {each.code for each in found.findings} == {"manifest-loss"}
    assert lost == sum(send.outcome is Outcome.OK for send in play.sends)


def test_what_only_the_leader_had_is_counted(play: Play, tmp_path: Path) -> None:
    for send in play.sends:
        send.acks = 1
    play.without(*range(20_000, 20_100))
    found = play.run(tmp_path)
    assert codes(found) == []
    absent = sum(20_000 <= send.offset < 20_100 for send in play.sends)
    assert amounts(found)["acks1-absent"] >= absent > 90


def test_what_the_start_of_the_log_passed_is_counted(play: Play, tmp_path: Path) -> None:
    play.log_start = 30_000
    found = play.run(tmp_path)
    assert codes(found) == []
    assert amounts(found)["log-start"] >= 16_000


def test_exempt_offsets_are_counted(play: Play, tmp_path: Path) -> None:
    play.without(*range(20_000, 20_100))
    play.exempt = ((20_000, 20_100, "dead"),)
    found = play.run(tmp_path)
    assert codes(found) == []
    assert amounts(found)["dead"] > 90


def test_compaction_may_take_what_has_a_later_record_of_its_key(play: Play, tmp_path: Path) -> None:
    play.is_compacted = True
    earlier, later = (send for send in play.sends if send.offset in (100, 39_000))
    later.key_hash = earlier.key_hash
    play.log[39_000] = 39_000, later.key_hash, later.value_hash
    play.without(100, 101)
    found = play.run(tmp_path)
    assert codes(found) == [("manifest-loss", 101, 102)]
    assert amounts(found)["compaction"] == 1


@pytest.mark.parametrize("column", [1, 2])
def test_other_bytes_at_an_acknowledged_offset_are_named(play: Play, tmp_path: Path, column: int) -> None:
    _, key_hash, value_hash = play.log[20_000]
    altered = [20_000, key_hash, value_hash]
    altered[column] ^= 1 << 63
    play.log[20_000] = altered[0], altered[1], altered[2]
    found = play.run(tmp_path)
    assert codes(found) == [("manifest-altered", 20_000, 20_001)]
    assert found.findings[0].expected == f"{key_hash:016x} {value_hash:016x}"
    assert found.findings[0].actual == f"{altered[1]:016x} {altered[2]:016x}"


def test_what_was_refused_and_is_there_is_a_phantom(play: Play, tmp_path: Path) -> None:
    refused = next(send for send in play.sends if send.outcome is Outcome.FAIL)
    end = play.log[-1][0] + 1
    play.log.append((end, refused.key_hash, refused.value_hash))
    assert codes(play.run(tmp_path)) == [("manifest-phantom", end, end + 1)]


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.UNKNOWN])
def test_a_second_copy_of_an_idempotent_send_is_named_in_another_bucket(
    play: Play, outcome: Outcome, tmp_path: Path
) -> None:
    stored = {record[1:] for record in play.log}
    sent = [(each.key_hash, each.value_hash) for each in play.sends[:9] if each.outcome is outcome]
    again = next(each for each in sent if each in stored)
    end = play.log[-1][0] + 1
    play.log.append((end, *again))
    assert codes(play.run(tmp_path)) == [("manifest-duplicate", end, end + 1)]


def test_without_idempotence_a_second_copy_is_counted(play: Play, tmp_path: Path) -> None:
    play.is_idempotent = False
    end = play.log[-1][0] + 1
    play.log.append((end, play.sends[0].key_hash, play.sends[0].value_hash))
    found = play.run(tmp_path)
    assert codes(found) == []
    assert amounts(found)["sent-again"] == 1


def test_a_killed_writer_may_have_sent_once_more(play: Play, tmp_path: Path) -> None:
    play.is_killed = True
    end = play.log[-1][0] + 1
    play.log.append((end, play.sends[0].key_hash, play.sends[0].value_hash))
    found = play.run(tmp_path)
    assert codes(found) == []
    assert amounts(found)["manifest-unfinished"] == 2


def test_a_killed_writer_of_unique_records_has_not(play: Play, tmp_path: Path) -> None:
    play.is_killed = play.is_unique = True
    end = play.log[-1][0] + 1
    play.log.append((end, play.sends[0].key_hash, play.sends[0].value_hash))
    assert codes(play.run(tmp_path)) == [("manifest-duplicate", end, end + 1)]


def test_records_of_others_are_counted(play: Play, tmp_path: Path) -> None:
    end = play.log[-1][0] + 1
    play.log += [(end + number, 5, 6) for number in range(300)]
    found = play.run(tmp_path)
    assert codes(found) == []
    assert amounts(found)["not-in-manifest"] == 300


def test_an_offset_is_acknowledged_for_one_send(play: Play, tmp_path: Path) -> None:
    play.sends.append(Send(len(play.sends) + 1, 1, 2, offset=25_000))
    found = play.run(tmp_path)
    assert ("manifest-duplicate", 25_000, 25_001) in codes(found)
    assert {code for code, _, _ in codes(found)} == {"manifest-duplicate", "manifest-order"}


@pytest.mark.parametrize("is_strong", [True, False], ids=["all", "1"])
def test_an_offset_that_its_leader_lost_may_be_given_to_another(
    play: Play, tmp_path: Path, is_strong: bool
) -> None:
    """Acknowledged with acks=1, then gone with the leader: what is there now is what came later."""
    lost = Send(len(play.sends) + 1, 1, 2, offset=25_000, acks=1)
    kept = next(send for send in play.sends if send.offset == 25_000)
    kept.acks = -1 if is_strong else 1
    play.sends.insert(0, lost)
    found = play.run(tmp_path)
    assert codes(found) == []
    assert amounts(found)["acks1-absent"] >= 1


def test_what_its_leader_lost_is_not_altered_by_what_nobody_noted(play: Play, tmp_path: Path) -> None:
    next(send for send in play.sends if send.offset == 25_000).acks = 1
    play.log[25_000] = 25_000, 5, 6
    found = play.run(tmp_path)
    assert codes(found) == []
    assert amounts(found)["acks1-absent"] == 1


def test_offsets_against_the_order_of_the_sends_are_named(play: Play, tmp_path: Path) -> None:
    first, second = (send for send in play.sends if send.offset in (30_000, 30_001))
    first.order, second.order = second.order, first.order
    assert codes(play.run(tmp_path)) == [("manifest-order", 30_000, 30_001)]


def test_answers_that_come_late_are_no_other_order(play: Play, tmp_path: Path) -> None:
    rng = random.Random(3)
    play.sends.sort(key=lambda send: send.order + rng.randrange(20_000))
    assert codes(play.run(tmp_path)) == []


@pytest.mark.parametrize("present", [0, 1, 2, 3])
def test_a_batch_of_unknown_outcome_is_there_whole_or_not_at_all(present: int, tmp_path: Path) -> None:
    play = Play()
    play.send(Outcome.OK, is_stored=True)
    for number in range(3):
        play.send(Outcome.UNKNOWN, is_stored=number < present, batch=9)
    torn = [("manifest-torn-batch", 1, 1 + present)] if present in (1, 2) else []
    assert codes(play.run(tmp_path)) == torn


@pytest.mark.parametrize("is_unique", [False, True])
def test_a_part_of_a_batch_may_be_what_a_killed_writer_sent(is_unique: bool, tmp_path: Path) -> None:
    """Unless it promised that no two sends are alike."""
    play = Play(is_killed=True, is_unique=is_unique)
    play.send(Outcome.OK, is_stored=True)
    for number in range(3):
        play.send(Outcome.UNKNOWN, is_stored=number < 1, batch=9)
    found = play.run(tmp_path)
    assert codes(found) == ([("manifest-torn-batch", 1, 2)] if is_unique else [])


def test_a_part_of_a_batch_may_be_of_a_file_that_nobody_can_read(tmp_path: Path) -> None:
    play = Play()
    (tmp_path / "unread.manifest").write_bytes(b"?" * 100)
    play.send(Outcome.OK, is_stored=True)
    for number in range(3):
        play.send(Outcome.UNKNOWN, is_stored=number < 1, batch=9)
    assert [code for code, _, _ in codes(play.run(tmp_path))] == ["manifest-bad-file"]


def test_acknowledged_without_an_offset_and_absent_is_lost(play: Play, tmp_path: Path) -> None:
    play.send(Outcome.OK, is_stored=False)
    assert codes(play.run(tmp_path)) == [("manifest-loss", -1, -1)]


# --- sums alone ---


def test_by_sums_alone_a_right_log_has_no_findings(play: Play, tmp_path: Path) -> None:
    play.keeps_rows = False
    found = play.run(tmp_path)
    assert (codes(found), found.unchecked) == ([], [])
    assert amounts(found) == {"unknown-present": 10, "unknown-absent": 10}


def test_by_sums_alone_a_loss_is_named_by_its_bucket(play: Play, tmp_path: Path) -> None:
    play.keeps_rows, play.is_unique = False, True
    play.without(20_001)
    assert codes(play.run(tmp_path)) == [("manifest-loss", 16_384, 32_768)]


def test_by_sums_alone_other_bytes_are_named_by_their_bucket(play: Play, tmp_path: Path) -> None:
    play.keeps_rows, play.is_unique = False, True
    play.log[20_001] = 20_001, 1, 1
    assert codes(play.run(tmp_path)) == [("manifest-altered", 16_384, 32_768)]


def test_by_sums_alone_records_of_others_are_unchecked_in_their_bucket(play: Play, tmp_path: Path) -> None:
    play.keeps_rows = False
    play.log.append((play.log[-1][0] + 1, 5, 6))
    found = play.run(tmp_path)
    assert codes(found) == []
    assert [each.what for each in found.unchecked] == ["manifest"]


# --- bounds ---


def test_more_rows_than_fit_are_compared_in_parts(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_rules, "ROWS_MAX", 20_000)
    wanted = Wanted(TOPIC, 0, 0, ((0, 16_384), (16_384, 32_768), (32_768, 49_152)))
    play.without(100, 39_990)
    assert codes(play.run(tmp_path)) == [("manifest-loss", 100, 101), ("manifest-loss", 39_990, 39_991)]
    manifest = read_manifests([str(tmp_path)], {})
    parts = list(manifest_rules.groups(manifest, [wanted]))
    assert [[each.ranges for each in part] for part in parts] == [
        [((0, 16_384),)],
        [((16_384, 32_768),)],
        [((32_768, 49_152),)],
    ]


def test_more_records_of_others_than_fit_are_told_as_unchecked(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_rules, "OTHERS_MAX", 50)
    end = play.log[-1][0] + 1
    play.log += [(end + number, 5, 6) for number in range(300)]
    found = play.run(tmp_path)
    assert codes(found) == []
    assert [each.what for each in found.unchecked] == ["manifest"]


def test_findings_and_counts_are_sorted_values(play: Play, tmp_path: Path) -> None:
    play.without(100, 30_000)
    found = play.run(tmp_path)
    assert found.findings == sorted(found.findings)
    assert all(isinstance(each, Finding) for each in found.findings)
    assert all(isinstance(each, Counted) for each in found.counted)


def test_by_sums_alone_what_may_be_missing_is_no_loss(play: Play, tmp_path: Path) -> None:
    play.keeps_rows = False
    play.without(*range(20_000, 20_005))
    play.exempt = ((20_001, 20_002, "damaged"),)
    found = play.run(tmp_path)
    assert codes(found) == []
    assert any("some are damaged" in each.why for each in found.unchecked)
    play.exempt, play.is_compacted = (), True
    assert codes(play.run(tmp_path / "more")) == []


def test_by_sums_alone_others_in_the_place_of_what_a_leader_lost_are_counted(tmp_path: Path) -> None:
    play = Play(keeps_rows=False, is_idempotent=False)
    for _ in range(9):
        play.send(Outcome.OK, is_stored=True, acks=1)
    play.log[5] = 5, 1, 1
    found = play.run(tmp_path)
    assert (codes(found), amounts(found)["acks1-absent"]) == ([], 1)


@pytest.mark.parametrize("is_there", [False, True])
def test_by_sums_alone_a_record_may_be_alike_a_send_without_an_answer(is_there: bool, tmp_path: Path) -> None:
    play = Play(keeps_rows=False)
    for _ in range(9):
        play.send(Outcome.OK, is_stored=True)
    again = play.send(Outcome.UNKNOWN, is_stored=is_there)
    again.key_hash, again.value_hash = play.sends[4].key_hash, play.sends[4].value_hash
    if is_there:
        play.log[-1] = play.log[-1][0], again.key_hash, again.value_hash
    found = play.run(tmp_path)
    assert (codes(found), found.unchecked) == ([], [])
    assert amounts(found).get("unknown-present", 0) == is_there
    play.without(0, 1, 2)
    assert codes(play.run(tmp_path / "more")) == [("manifest-loss", 0, 16_384)]
    play.log += [(20, 1, 1), (21, 2, 2), (22, 3, 3)]
    found = play.run(tmp_path / "others")
    assert (codes(found), len(found.unchecked)) == ([], 1)


def test_what_a_file_without_a_head_told_nobody_knows(tmp_path: Path) -> None:
    play = Play()
    for _ in range(9):
        play.send(Outcome.OK, is_stored=True)
    play.log.append((9, *play.log[3][1:]))
    assert codes(play.run(tmp_path)) == [("manifest-duplicate", 9, 10)]
    more = tmp_path / "more"
    more.mkdir()
    (more / "killed.manifest").touch()
    assert codes(play.run(more)) == []


def test_in_a_compacted_log_the_later_record_of_a_key_may_be_damaged(tmp_path: Path) -> None:
    play = Play(is_compacted=True)
    for _ in range(9):
        play.send(Outcome.OK, is_stored=True)
    play.without(3, 6)
    play.exempt = ((6, 7, "damaged"),)
    found = play.run(tmp_path)
    assert (codes(found), amounts(found)["damaged"]) == ([], 2)
    more = tmp_path / "more"
    play.exempt = ((2, 3, "damaged"),)
    assert codes(play.run(more)) == [("manifest-loss", 3, 4), ("manifest-loss", 6, 7)]
