"""Reading of units that are not what the listing saw."""

from __future__ import annotations

from pathlib import Path

from tools.verify.core.facts import Tally, Vanished
from tools.verify.core.keys import StreamKey, wal_key
from tools.verify.core.plan import Task, WalUnit
from tools.verify.core.scan import scan
from tools.verify.core.stores import FileSource, Listed
from tools.verify.core.tier_topics import ToldSlice

TOPIC_ID = "Xs2CwuS3S1qpx9T4mzJHsw"


def test_of_an_object_that_went_it_is_known_which_offsets_it_had(tmp_path: Path) -> None:
    stream = StreamKey(1, 3, 0)
    key = wal_key(stream, 7)
    told = ToldSlice(TOPIC_ID, 2, 16, 90, 4, 614, 616)
    units = [WalUnit(stream, 7, Listed(key, 100, 5), each) for each in ((told,), None)]
    task = Task(0, "wal", FileSource(str(tmp_path)), "", tuple(units), 200)
    scanned = ([row for row in each.rows if not isinstance(row[2], Tally)] for each in scan(task))
    first, second = filter(None, scanned)
    gone = ("", -1, Vanished(key, -1, -1))
    assert first == [(TOPIC_ID, 2, Vanished(key, 614, 616)), gone]
    assert second == [gone]
