"""When a broker of `tidewal cluster` is started again, and what is said of one that ended. The processes
themselves are in tests/e2e/test_cluster_command.py.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Any

import pytest

from tools import supervisor
from tools.broker_command import BrokerOptions
from tools.console import Failure
from tools.supervisor import FAILED_STARTS_MAX, STEADY_AFTER_S, ManagedBroker, check_clean, describe_end


class NoProcess:
    """Stands in for subprocess.Popen."""

    def __init__(self, command: list[str], **_: Any) -> None:
        self.command = command
        self.pid = 1


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> ManagedBroker:
    monkeypatch.setattr(supervisor.subprocess, "Popen", NoProcess)
    return ManagedBroker(BrokerOptions(node_id=2, listen="127.0.0.1:0"))


@pytest.mark.parametrize(
    ("code", "says"),
    [(0, "exit code 0"), (3, "exit code 3"), (-9, "SIGKILL"), (-15, "SIGTERM"), (-77, "signal 77")],
)
def test_the_end_is_an_exit_code_or_a_signal(code: int, says: str) -> None:
    assert describe_end(code) == says


def live(broker: ManagedBroker, *, from_s: float, lived_s: float, is_ready: bool) -> float | None:
    broker.start(from_s)
    if is_ready:
        list(broker.read_lines(b"ready node=2 listen=127.0.0.1:4711 store=file:///x\n"))
    return broker.plan_restart(from_s + lived_s)


def test_one_that_ran_well_is_started_again_at_once(broker: ManagedBroker) -> None:
    assert live(broker, from_s=5.0, lived_s=STEADY_AFTER_S, is_ready=True) == 0.0
    assert broker.restart_at_s == 5.0 + STEADY_AFTER_S


@pytest.mark.parametrize(("lived_s", "is_ready"), [(STEADY_AFTER_S - 1, True), (1000.0, False)])
def test_one_that_keeps_failing_waits_longer_and_is_given_up(
    broker: ManagedBroker, lived_s: float, is_ready: bool
) -> None:
    pauses = [
        live(broker, from_s=0.0, lived_s=lived_s, is_ready=is_ready) for _ in range(FAILED_STARTS_MAX + 1)
    ]
    waited = list(takewhile(lambda pause: pause is not None, pauses))
    assert waited == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0]
    assert pauses[len(waited) :] == [None, None]
    assert broker.restart_at_s is None


def test_a_good_run_makes_up_for_failed_starts(broker: ManagedBroker) -> None:
    for _ in range(FAILED_STARTS_MAX - 1):
        assert live(broker, from_s=0.0, lived_s=1.0, is_ready=False)
    assert live(broker, from_s=0.0, lived_s=STEADY_AFTER_S, is_ready=True) == 0.0
    assert live(broker, from_s=0.0, lived_s=1.0, is_ready=False) == 0.5


def test_the_next_process_listens_where_the_first_one_did(broker: ManagedBroker) -> None:
    assert "127.0.0.1:0" in broker.start(0.0).command  # type: ignore[attr-defined]
    assert not broker.is_ready
    assert list(broker.read_lines(b"ready node=2 listen=127.0.0.1:47")) == []
    assert list(broker.read_lines(b"11 store=file:///x\nmore")) == [
        "ready node=2 listen=127.0.0.1:4711 store=file:///x"
    ]
    assert broker.is_ready
    assert "127.0.0.1:4711" in broker.start(1.0).command  # type: ignore[attr-defined]
    assert not broker.is_ready


def test_the_exit_code_tells_whether_all_was_clean() -> None:
    check_clean([])
    with pytest.raises(Failure, match=r"broker 2 \(SIGKILL\), broker 3 \(exit code 1\)$") as caught:
        check_clean(["broker 2 (SIGKILL)", "broker 3 (exit code 1)", "broker 3 (exit code 1)"])
    assert caught.value.exit_code == 1
