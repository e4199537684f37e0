"""A unit of a log as rows for its judge.

Owns the translation. Does not own the reading of a log (log_reading), nor its cutting into units (data_view).
Invariant: what was dropped for memory's sake is a row that says so; a log that does not say of which topic it
is gives what is wrong with it, and nothing to compare.
"""

from __future__ import annotations

from tools.verify.core.directory import Log
from tools.verify.core.facts import GENERAL, NotChecked, Row, Tally
from tools.verify.core.log_reading import check_log
from tools.verify.core.plan import LogUnit, unit_place
from tools.verify.core.stores import Source


def scan_log(source: Source, unit: LogUnit, *, has_records: bool = False) -> list[Row]:
    """Read the segments of a unit and what stands beside them, and with `has_records` sum their records.
    SourceFailed when the disk does not answer."""
    log = Log(
        unit.name,
        unit.topic,
        unit.partition,
        unit.topic_id,
        unit.files,
        unit.recovery_point,
        unit.high_watermark,
        unit.log_start,
        unit.is_live,
    )
    found = check_log(source, unit.directory, log, bases=unit.bases, has_records=has_records)
    place = unit_place(unit)
    rows: list[Row] = []
    if unit.topic_id:
        about = unit.topic_id, unit.partition
        if found.log is not None:
            rows.append((*about, found.log._replace(node=unit.node, is_live=unit.is_live)))
        for scanned in found.scans:
            for facts in (scanned.runs, scanned.producers, scanned.marks, scanned.digests):
                rows += [(*about, fact) for fact in facts]
        rows += [(*about, each) for each in found.records]
        rows += [(*about, each) for each in found.vanished]
        rows += [(*about, fault) for fault in found.faults]
    else:
        rows += [(*GENERAL, fault) for fault in found.faults]
    rows += [
        (*GENERAL, NotChecked(place, f"{scanned.dropped} facts of a segment were too many to keep"))
        for scanned in found.scans
        if scanned.dropped
    ]
    runs = [run for scanned in found.scans for run in scanned.runs]
    batches, records = sum(run.batches for run in runs), sum(run.records for run in runs)
    rows.append((*GENERAL, Tally(place, found.size, batches, records)))
    return rows
