"""The process of a broker: how it is set up."""

from __future__ import annotations

import gc
from typing import Any

from broker.process import GC_THRESHOLDS

OBJECTS_MAX = 45_000
"""What a collection may look through while the loop waits: 10 ms."""


def test_while_rows_are_made_no_collection_looks_through_many_of_them() -> None:
    before, looked_at = gc.get_threshold(), []

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            young = range(info["generation"] + 1)
            looked_at.append(sum(len(gc.get_objects(generation=each)) for each in young))

    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.callbacks.append(note)
    try:
        rows = [[at] for at in range(200_000)]
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*before)
        gc.unfreeze()
    assert len(rows) == 200_000
    assert len(looked_at) > 10
    assert max(looked_at) < OBJECTS_MAX
