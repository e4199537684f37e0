"""For the tests of `tidewal tier`: one broker for each file, a topic for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.compat.peers import unique
from tests.processes import BrokerProcess
from tests.tools.tier.tiered_topic import Tier
from tools.tier import reader


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as running:
        yield running


@pytest.fixture
def tier(
    process: BrokerProcess,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Tier]:
    made = Tier(process, unique("tiered"), capsys)
    monkeypatch.setattr(reader, "METADATA_TOPIC", made.metadata)
    yield made
    for path in made.root.glob("tier/*/*/*"):
        path.unlink()
