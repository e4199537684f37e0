"""What whole runs of the simulation need of pytest: thousands of killed brokers have nothing to say, then or
when they are collected."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
    gc.collect()


# A request whose task is cancelled before its first step leaves a handler that never began.
NEVER_AWAITED = "ignore:coroutine .* was never awaited"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "quiet" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.filterwarnings(NEVER_AWAITED))
