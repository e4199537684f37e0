"""What the log tells of work that fails for a while."""

from __future__ import annotations

import logging

import pytest

from broker.replicas.trouble import TOLD_AGAIN_S, Trouble
from protocol.errors import ErrorCode, KafkaError


@pytest.fixture
def time() -> list[float]:
    return [0.0]


@pytest.fixture
def trouble(time: list[float]) -> Trouble:
    return Trouble("to be copied", lambda: time[0])


@pytest.fixture(autouse=True)
def everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def test_an_outage_costs_a_line_however_many_wait(trouble: Trouble, caplog: pytest.LogCaptureFixture) -> None:
    for attempt in range(3):
        for number in range(100):
            trouble.failed(number, f"t-{number}", OSError(f"503 {attempt}"))
    assert caplog.messages == ["t-0 waits to be copied and is tried again: OSError: 503 0"]
    assert len(trouble) == 100


def test_another_reason_is_told_and_what_lasts_is_told_again(
    trouble: Trouble, time: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    trouble.failed(1, "t-1", OSError("503"))
    trouble.failed(2, "t-2", KafkaError(ErrorCode.fenced_leader_epoch))
    trouble.failed(2, "t-2", KafkaError(ErrorCode.fenced_leader_epoch))
    time[0] = TOLD_AGAIN_S
    trouble.failed(2, "t-2", KafkaError(ErrorCode.fenced_leader_epoch))
    told = "t-2 waits to be copied and is tried again, as does another: FENCED_LEADER_EPOCH"
    assert caplog.messages[1:] == [told, told]


def test_the_end_is_told_once_nothing_fails(trouble: Trouble, caplog: pytest.LogCaptureFixture) -> None:
    trouble.ended(1)
    trouble.failed(1, "t-1", OSError("503"))
    trouble.failed(2, "t-2", OSError("503"))
    trouble.ended(1)
    assert len(caplog.messages) == 1
    trouble.ended(2)
    assert caplog.messages[1:] == ["nothing that failed before waits to be copied any more"]
    trouble.failed(1, "t-1", OSError("503"))
    assert len(caplog.messages) == 3
