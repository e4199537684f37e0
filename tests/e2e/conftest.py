"""A broker process that can be killed and comes back on the same address and the same data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compat.peers import stable_port
from tests.processes import BrokerProcess

StartBroker = Callable[..., BrokerProcess]


class Phoenix:
    """`kill` is kill -9; `rise` starts the next process where the last one was."""

    def __init__(self, start: StartBroker, data: Path, **options: Any) -> None:
        self._start = start
        self.data = data
        self._options = options
        self.bootstrap = f"127.0.0.1:{stable_port()}"
        self.process = self.rise()

    def rise(self) -> BrokerProcess:
        self.process = self._start(self.data, listen=self.bootstrap, **self._options)
        return self.process

    def kill_and_rise(self) -> None:
        self.process.kill()
        self.rise()


@pytest.fixture
def phoenix(start_broker: StartBroker, tmp_path: Path) -> Iterator[Phoenix]:
    yield Phoenix(start_broker, tmp_path / "data")
