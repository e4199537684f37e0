"""What the machines have in common: names in messages."""

from __future__ import annotations

from collections.abc import Iterator

from broker.decisions import LISTED_MAX_CHARS, listed


def test_names_are_listed_as_far_as_a_message_goes() -> None:
    assert listed(["a", "b", "c"], ", ") == "a, b, c"
    assert listed([], ",") == ""
    looked_at = 0

    def names() -> Iterator[str]:
        nonlocal looked_at
        for at in range(100_000):
            looked_at += 1
            yield f"{at:099}"

    whole = ",".join(names())
    looked_at = 0
    cut = listed(names(), ",")
    assert looked_at == 10
    assert len(cut) >= LISTED_MAX_CHARS - 1
    assert whole.startswith(cut)
    assert len(listed(["x" * 30_000] * 3, ",")) == LISTED_MAX_CHARS
