"""What a real broker leaves in store and data directory, while it runs, once it was killed, and stopped."""

from __future__ import annotations

from pathlib import Path

from tests.tools.verify.left_behind import LeftBehind, leave
from tools.verify.core.outcome import Exit, Options, Outcome
from tools.verify.verification import verify


def verified(left: LeftBehind, **more: object) -> Outcome:
    given: dict[str, object] = {
        "store": left.url,
        "data": (str(left.data),),
        "workers": 1,
    }
    return verify(Options(**{**given, **more}))  # type: ignore[arg-type]


def altered(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def test_a_broker_is_verified_whatever_becomes_of_it_and_one_byte_is_one_finding(tmp_path: Path) -> None:
    left, broker = leave(tmp_path, keep_running=True)
    try:
        told = {"bootstrap": broker.bootstrap}
        for more in ({}, told, {"data": ()}, {"data": (), **told}):
            outcome = verified(left, **more)
            assert (outcome.findings, outcome.unread) == ((), ()), more
        broker.kill()
        outcome = verified(left)
        assert (outcome.findings, outcome.unread, outcome.unchecked) == ((), (), ())
        broker.rise()
        assert verified(left).findings == ()
        assert broker.process.terminate() == 0
        outcome = verified(left)
        assert outcome.exit_code(is_strict=True) is Exit.CLEAN
        assert outcome.unchecked == ()
        tiers = {span.tier for each in outcome.coverage for span in each.spans}
        assert tiers == {"local", "wal", "cold"}
    finally:
        broker.close()
    store = Path(left.url.removeprefix("file://"))
    for path in (
        max(store.glob("tier/*/*/*.log"), key=lambda one: one.stat().st_size),
        max(one for one in store.glob("wal/*/*/0*") if one.stat().st_size > 500),
        max(left.data.glob("plain-0/*.log"), key=lambda one: one.stat().st_size),
    ):
        before = path.read_bytes()
        altered(path, len(before) - 1)
        findings = verified(left).findings
        assert len(findings) == 1, (path, findings)
        found = findings[0]
        assert found.code == "bad-crc"
        assert found.place.endswith(path.name)
        path.write_bytes(before)
    assert verified(left).findings == ()
