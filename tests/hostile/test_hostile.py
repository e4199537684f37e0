"""The small form: one large request of each API, and honest clients are served meanwhile.

Which shapes are sent hangs on the seed of the run's order, which is printed; a failure names its shape.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from struct import pack

import pytest

from protocol.apis import Api
from protocol.messages import decode_response
from tests.compat.peers import until
from tests.e2e.load import batch_of
from tests.hostile.ground import ELSEWHERE, Ground, Hostile
from tests.hostile.memory import peak_bytes, reset_peak, rss_bytes
from tests.hostile.shapes import Kind, Shape, request
from tests.hostile.sweep import chosen, known_for

ROWS = 20_000
BYTES_MAX = 8 << 20
PEAK_BYTES_MAX = 256 << 20
PATIENCE_S = 30.0
LEFT_BYTES_MAX = 32 << 20


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with Ground(tmp_path_factory.mktemp("hostile") / "data") as ground:
        yield ground


def test_a_large_request_of_each_api_is_answered_and_stops_nobody(ground: Ground) -> None:
    """Twice, since what an allocator keeps for later use is in the way of what leaks."""
    shapes = list(chosen(random.getrandbits(32)))
    for shape in shapes:
        check(ground, shape)
    rest, held = rss_bytes(ground.pid), {}
    for shape in shapes:
        check(ground, shape)
        held[str(shape)] = rss_bytes(ground.pid) - rest
    until(
        lambda: rss_bytes(ground.pid) - rest < LEFT_BYTES_MAX,
        f"memory to be given back; held after each: {held}",
    )
    assert "Traceback" not in ground.broker.stderr


def check(ground: Ground, shape: Shape) -> None:
    rest = rss_bytes(ground.pid)
    ground.seen()
    reset_peak(ground.pid)
    was_answered = answered(ground, shape)
    seen = ground.seen()
    assert seen.answers > 0, shape
    assert not seen.lost, shape
    assert not seen.refused, shape
    assert peak_bytes(ground.pid) - rest < PEAK_BYTES_MAX, shape
    assert was_answered or shape.kind is Kind.TAGS, f"{shape} lost its connection"


def test_who_announces_much_and_falls_silent_does_not_keep_others_from_sending(tmp_path: Path) -> None:
    """Six of one address hold more than all requests may; a large one of another passes all the same."""
    announced, part = 1 << 20, bytes(900_000)
    limits = {"queued.max.request.bytes": str(4 * announced), "socket.request.max.bytes": str(announced)}
    with Ground(tmp_path / "data", settings=limits) as ground, ExitStack() as stack:
        for _ in range(6):
            silent = stack.enter_context(ground.dial(source=ELSEWHERE))
            silent.sendall(announced.to_bytes(4, "big") + pack(">hhih", Api.PRODUCE, 9, 1, 0) + part)
        with ground.client(timeout_s=PATIENCE_S) as honest:
            large = bytes(batch_of(bytes(700_000)))
            assert honest.produce(ground.known.topic, 0, large).error_code == 0


def test_long_names_leave_nothing(tmp_path: Path) -> None:
    """64 MB of them in all: small allocations that follow keep the heap from shrinking by itself."""
    shape = Shape(api=Api.CREATE_TOPICS, version=7, path=("topics",), kind=Kind.LONGEST)
    with Ground(tmp_path / "data") as ground:
        frame, _ = request(shape, known_for(ground, shape), rows_max=ROWS, bytes_max=64 << 20)
        rest = rss_bytes(ground.pid)
        with Hostile(ground.dial()) as connection:
            connection.socket.sendall(frame)
            assert connection.answer() is not None
        until(lambda: rss_bytes(ground.pid) - rest < LEFT_BYTES_MAX, "memory to be given back")


def answered(ground: Ground, shape: Shape) -> bool:
    """Whether it has a sound answer."""
    ground.ensure_topic(ground.known.topic)
    frame, _ = request(shape, known_for(ground, shape), rows_max=ROWS, bytes_max=BYTES_MAX)
    with ExitStack() as stack:
        connection = stack.enter_context(Hostile(ground.dial()))
        connection.socket.sendall(frame)
        answer = connection.answer()
    if answer is None:
        return False
    correlation_id, _ = decode_response(shape.api, shape.version, answer)
    assert correlation_id == 1, shape
    return True
