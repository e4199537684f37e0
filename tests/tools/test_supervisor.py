"""When a broker of `tidewal cluster` is started again, what is said of one that ended, and what goes wrong
with processes, which are small programs here. Real brokers are in tests/e2e/test_cluster_command.py.
"""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from tests.compat.peers import until
from tools import supervisor
from tools.broker_command import BrokerOptions
from tools.cluster_command import stop_on_signals
from tools.console import Failure
from tools.supervisor import (
    FAILED_STARTS_MAX,
    STEADY_AFTER_S,
    ManagedBroker,
    Supervisor,
    check_clean,
    describe_end,
)


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
        check_clean(["broker 2 (SIGKILL)", "broker 3 (exit code 1)"])
    assert caught.value.exit_code == 1


# --- processes ---

READY = "import sys; print('ready node=1 listen=127.0.0.1:4711', flush=True)"


@pytest.fixture
def run_program(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Instead of brokers, run this program."""

    def run(program: str) -> None:
        monkeypatch.setattr(supervisor, "command_line", lambda options: [sys.executable, "-c", program])
        monkeypatch.setattr(supervisor, "FIRST_PAUSE_S", 0.01)

    return run


def stop_after(lines: int, *, brokers: int = 1) -> Supervisor:
    """A supervisor that stops when so many lines have come."""
    seen: list[str] = []

    def print_line(line: str) -> None:
        seen.append(line)
        if len(seen) == lines:
            watched.request_stop()

    options = [BrokerOptions(node_id=number + 1, listen="127.0.0.1:0") for number in range(brokers)]
    watched = Supervisor(options, restarts=True, print_line=print_line)
    return watched


def test_however_often_a_broker_ends_it_is_named_once(run_program: Callable[[str], None]) -> None:
    run_program(f"{READY}; sys.exit(3)")
    with stop_after(4) as watched:
        watched.watch()
    assert watched.unclean == ["broker 1 (exit code 3)"]


def test_a_machine_without_a_process_to_spare_is_asked_again(
    run_program: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_program(f"{READY}; sys.exit(3)")
    popen, starts = subprocess.Popen, 0

    def start(*arguments: Any, **options: Any) -> Any:
        nonlocal starts
        starts += 1
        if starts == 2:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        return popen(*arguments, **options)

    monkeypatch.setattr(supervisor.subprocess, "Popen", start)
    with stop_after(2) as watched:
        watched.watch()
    assert starts == 3
    assert capsys.readouterr().err.splitlines()[:2] == [
        "tidewal: broker 1 ended with exit code 3; it is started again in 0.01 s",
        "tidewal: cannot start broker 1: Resource temporarily unavailable; it is started again in 0.02 s",
    ]


def test_no_process_is_left_when_nothing_can_be_said_any_more(
    run_program: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_program(f"import signal, time; signal.signal(15, signal.SIG_IGN); {READY}; time.sleep(60)")
    monkeypatch.setattr(supervisor, "STOP_WITHIN_S", 0.1)

    def fail(line: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(supervisor, "complain", fail)
    processes = []
    with pytest.raises(OSError, match="Input/output error"), stop_after(2, brokers=2) as watched:
        processes = [broker.process for broker in watched.brokers]
        watched.watch()
    assert [process.returncode for process in processes if process is not None] == [-signal.SIGKILL] * 2
    assert watched.unclean == ["broker 1 (SIGKILL)", "broker 2 (SIGKILL)"]


@pytest.mark.parametrize("is_under_nohup", [False, True])
def test_a_closed_terminal_ends_it_in_order_unless_under_nohup(is_under_nohup: bool) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)}
    asked = []
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN if is_under_nohup else lambda *_: None)
        stop_on_signals(lambda: asked.append(True))
        for number in before:
            signal.raise_signal(number)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert len(asked) == (2 if is_under_nohup else 3)


def test_a_broker_that_is_killed_on_purpose_waits_to_be_started(
    run_program: Callable[[str], None], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Its end is no complaint, its next process comes when it is asked for, its stderr goes to its file."""
    run_program(f"import signal, sys; print('said', file=sys.stderr, flush=True); {READY}; signal.pause()")
    options = [BrokerOptions(node_id=7, listen="127.0.0.1:0"), BrokerOptions(node_id=8, listen="127.0.0.1:0")]
    with Supervisor(options, print_line=lambda line: None, said_to=tmp_path) as supervised:
        assert supervised.wait_ready()
        killed = supervised.broker(7)
        first = killed.process
        assert first is not None
        watching = threading.Thread(target=supervised.watch)
        watching.start()
        try:
            supervised.kill(7)
            until(lambda: killed.process is None, "the end of the first")
            with pytest.raises(Failure, match="broker 7 does not run"):
                supervised.kill(7)
            killed.is_ready = False
            supervised.start_again(7)
            until(lambda: killed.is_ready, "the second process")
            assert killed.process is not None
            assert killed.process.pid != first.pid
        finally:
            supervised.request_stop()
            watching.join()
    assert supervised.unclean == []
    assert capfd.readouterr().err == ""
    assert (tmp_path / "7.txt").read_text() == "said\nsaid\n"
