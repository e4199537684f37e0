"""Every decoder under arbitrary bytes: hypothesis always, atheris by hand (`pytest -m fuzz
tests/protocol`).
"""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from importlib.util import find_spec

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.fuzz import TARGETS

SECONDS = 60


@pytest.mark.parametrize("target", TARGETS)
def test_arbitrary_bytes(target: str) -> None:
    @settings(max_examples=150)
    @given(st.binary(max_size=300))
    def run(data: bytes) -> None:
        TARGETS[target](data)

    run()


SEEDS = [
    b"\xff" * 200,
    b"\x7f\xff\xff\xff" * 50,
    b"\x00" * 200,
    b"\x80" * 200,
    b"\xff\xff\xff\xff\x07" * 40,
    b"\x00\x01\x7f\xff\xff\xff" * 30,
]


@pytest.mark.parametrize("target", TARGETS)
def test_hostile_bytes_cost_little_memory(target: str) -> None:
    """Every message type with the sizes attackers like, in front of and behind every prefix byte."""
    run = TARGETS[target]
    inputs = [bytes([first, second]) + seed for seed in SEEDS for first in range(32) for second in (0, 3, 9)]
    for data in inputs:  # loads what is loaded lazily
        run(data)
    tracemalloc.start()
    try:
        for data in inputs:
            run(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


@pytest.mark.fuzz
@pytest.mark.parametrize("target", TARGETS)
def test_coverage_guided(target: str, request: pytest.FixtureRequest) -> None:
    if "fuzz" not in request.config.getoption("-m"):
        pytest.skip("a minute each: pytest -m fuzz")
    if find_spec("atheris") is None:
        pytest.skip("atheris is not installed: pip install atheris")
    command = [sys.executable, "-m", "tests.protocol.fuzz", target, f"-max_total_time={SECONDS}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10 * SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
