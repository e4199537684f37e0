"""The marker of a clean stop: what each log of a directory looked like.

Owns: the format of `.kafka_cleanshutdown`, putting it there and taking it away durably. Does not own: whether
a stop was clean (log_manager), whether a note still fits its log (loader). Invariant: a marker is off the
disk before anything in its directory changes.

Kafka writes the same file, ignores our field in it and removes it when it starts, so what is noted there can
only be as old as the last clean stop.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from os.path import join
from uuid import UUID

from storage.files import Files, write_whole
from storage.loader import CleanState

CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
NOTES_VERSION = 2


def take_marker(files: Files, path: str) -> bytes | None:
    """Read and remove the marker of a directory: durably, or a later crash would look like that stop."""
    marker = join(path, CLEAN_SHUTDOWN)
    try:
        text = files.read(marker)
    except FileNotFoundError:
        return None
    files.unlink(marker)
    files.fsync_dir(path)
    return text


def put_marker(files: Files, path: str, text: bytes) -> None:
    write_whole(files, join(path, CLEAN_SHUTDOWN), text)


def encode_notes(notes: Mapping[str, CleanState], broker_epoch: int) -> bytes:
    rows = {
        name: [
            state.topic_id.hex if state.topic_id else None,
            state.segments,
            state.log_end_offset,
            state.mtime_ms,
            state.newest_timestamp,
            state.epochs,
            state.has_producers,
        ]
        for name, state in notes.items()
    }
    content = {"version": 0, "brokerEpoch": broker_epoch, "notesVersion": NOTES_VERSION, "logs": rows}
    return json.dumps(content, separators=(",", ":")).encode()


def decode_notes(data: bytes) -> dict[str, CleanState]:
    """Return what a clean stop noted; empty for a marker Kafka wrote, or one that cannot be read."""
    try:
        content = json.loads(data)
        if content.get("notesVersion") != NOTES_VERSION:
            return {}
        return {name: _decode_note(*row) for name, row in content["logs"].items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


def _decode_note(
    topic_id: str | None,
    segments: list[tuple[int, int]],
    log_end_offset: int,
    mtime_ms: int,
    newest_timestamp: int,
    epochs: list[tuple[int, int]],
    has_producers: bool,
) -> CleanState:
    return CleanState(
        topic_id=UUID(hex=topic_id) if topic_id else None,
        segments=[(base, size) for base, size in segments],
        log_end_offset=log_end_offset,
        mtime_ms=mtime_ms,
        newest_timestamp=newest_timestamp,
        epochs=[(epoch, start) for epoch, start in epochs],
        has_producers=has_producers,
    )
