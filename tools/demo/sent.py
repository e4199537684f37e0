"""What the demo's producers sent, as a manifest for `tidewal verify`.

Owns how an acknowledged batch is noted. Does not own the file (tools.verify.manifest). It needs the extra
`verify`: whoever imports it has looked whether that is there.
Invariant: of each record there is a note when it was acknowledged, with its offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tools.verify.core.manifest_digests import NULL_HASH, hash_of
from tools.verify.manifest.files import open_manifest
from tools.verify.manifest.outcomes import Outcome
from tools.verify.manifest.writer import NO_OFFSET


class SentNotes:
    def __init__(self, folder: Path) -> None:
        self._manifest = open_manifest(
            folder, writer="demo", is_idempotent=True, is_ordered=True, is_unique=True, keeps_rows=True
        )

    def close(self) -> None:
        """Write the end of the manifest; without it a verification takes the producers for killed."""
        self._manifest.close()

    def note(self, topic: str, partition: int, first_offset: int, values: Sequence[bytes]) -> None:
        """Note an acknowledged batch; its first offset is negative where the answer did not name it."""
        number = self._manifest.topic(topic)
        for at, value in enumerate(values):
            self._manifest.note(
                number,
                partition,
                order=self._manifest.send(),
                key_hash=NULL_HASH,
                value_hash=hash_of(value),
                outcome=Outcome.OK,
                offset=first_offset + at if first_offset >= 0 else NO_OFFSET,
            )
