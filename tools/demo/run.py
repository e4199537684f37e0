"""One run of `tidewal demo`: its folder, the signals that end it, what is said at the end.

Owns these. Does not own the steps (steps) nor how they are shown (show).
Invariant: it returns only when every step held; whatever ends it, no process is left, and without --keep no
file of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tools.cluster_command import stop_on_signals
from tools.console import emit
from tools.demo.brokers import Brokers
from tools.demo.load import Notes
from tools.demo.show import Show, shown
from tools.demo.state import Outcome
from tools.demo.steps import COLD_TOPIC, SENT, WAL_TOPIC, Demo, missing_for_verify


class Interrupt:
    """What the signals do that end a command; it changes as the demo goes on."""

    def __init__(self) -> None:
        self.is_requested = False
        self._act: Callable[[], object] = _nothing
        stop_on_signals(self._request)

    def calls(self, act: Callable[[], object]) -> None:
        """Let it do this from now on, and at once when it was requested before."""
        self._act = act
        if self.is_requested:
            act()

    def _request(self) -> None:
        self.is_requested = True
        self._act()


def run_demo(*, load_s: float, keeps_running: bool, is_plain: bool) -> None:
    """Do all steps; Failure at the first that does not hold, KeyboardInterrupt when it was told to end."""
    interrupt = Interrupt()
    started_s = time.perf_counter()
    with _folder(is_kept=keeps_running) as folder, Brokers(folder) as brokers:
        with shown(is_plain=is_plain) as show, _interrupted_by_cancelling():
            demo = asyncio.run(_run(brokers, show, interrupt, load_s, keeps_running))
        interrupt.calls(brokers.request_stop)
        left_out = [step.name for step in demo.state.steps if step.outcome is Outcome.LEFT_OUT]
        held = f"all steps held but {', '.join(left_out)}, left out" if left_out else "all steps held"
        emit(f"{held}; {time.perf_counter() - started_s:.0f} s")
        if keeps_running:
            _tell_how_to_go_on(brokers)
            brokers.wait_ended()


async def _run(
    brokers: Brokers, show: Show, interrupt: Interrupt, load_s: float, keeps_running: bool
) -> Demo:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    cancel = task.cancel

    def request_cancel() -> None:
        loop.call_soon_threadsafe(cancel)

    interrupt.calls(request_cancel)
    try:
        notes: Notes | None = None
        if not missing_for_verify():
            from tools.demo.sent import SentNotes

            notes = SentNotes(brokers.folder / SENT)
        demo = Demo(brokers, load_s=load_s, keeps_running=keeps_running, notes=notes, on_step=show.step)
        drawing = asyncio.create_task(show.run(demo.state))
        try:
            await demo.run()
        finally:
            drawing.cancel()
            if notes is not None:
                notes.close()
        return demo
    finally:
        interrupt.calls(brokers.request_stop)


@contextlib.contextmanager
def _interrupted_by_cancelling() -> Iterator[None]:
    try:
        yield
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _tell_how_to_go_on(brokers: Brokers) -> None:
    bootstrap = str(brokers.addresses[0])
    emit(f"The cluster runs until Ctrl-C; any Kafka client reaches it at {bootstrap}.")
    emit(f"  tidewal offsets {COLD_TOPIC} {WAL_TOPIC} -b {bootstrap}")
    emit(f"  tidewal tier list {COLD_TOPIC} -b {bootstrap}")
    emit(f"Its folder stays: tidewal cluster --data {brokers.folder} starts it again.")


@contextlib.contextmanager
def _folder(*, is_kept: bool) -> Iterator[Path]:
    """Make a temporary folder; delete it at the end unless it is kept and all went well."""
    folder = Path(tempfile.mkdtemp(prefix="tidewal-demo-"))
    try:
        yield folder
    except BaseException:
        is_kept = False
        raise
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)


def _nothing() -> None:
    """Until it is told what to do there is nothing that could be ended."""
