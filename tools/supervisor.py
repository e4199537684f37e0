"""The broker processes of `tidewal cluster`: started, watched, started again and stopped.

Owns: each process, its ready line and where its stderr goes, what is said when one ends, when it is started
again, and which ones did not end cleanly; a kill that is asked for, and the start after it. Does not own:
what the brokers of a cluster are (tools.cluster_command).
Invariant: when the context is left, no process that was started here is left; the end of each one is reported
in one line, unless it was asked for; nothing here waits without a bound.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from tidewal import PROGRAM
from tools.broker_command import EXIT_WITH_STDIN, BrokerOptions
from tools.console import Failure, complain

STOP_WITHIN_S: Final = 30.0
READY_WITHIN_S: Final = 120.0
LOOK_EVERY_S: Final = 0.2
STEADY_AFTER_S: Final = 10.0
"""A broker which ends earlier than that counts as one which fails at its start."""
FIRST_PAUSE_S: Final = 0.5
PAUSE_S_MAX: Final = 30.0
FAILED_STARTS_MAX: Final = 8
"""So many in a row, and a broker is not started again: about a minute after the first."""


def restart_pause_s(failed_starts: int) -> float | None:
    """Return how long to wait before the next start; None means that it is given up."""
    if failed_starts >= FAILED_STARTS_MAX:
        return None
    return min(FIRST_PAUSE_S * 2 ** (failed_starts - 1), PAUSE_S_MAX) if failed_starts else 0.0


def describe_end(code: int) -> str:
    """Name the exit code, or the signal that ended the process."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def command_line(broker: BrokerOptions) -> list[str]:
    """Spell out the options of a broker for a process of its own."""
    command = [sys.executable, PROGRAM, "broker"]
    named = {"node-id": broker.node_id, "listen": broker.listen, "data": broker.data, "store": broker.store}
    if broker.admin is not None:
        named["admin"] = broker.admin
    for name, value in named.items():
        command += [f"--{name}", str(value)]
    for setting in broker.settings:
        command += ["--set", setting]
    if broker.exit_with_stdin:
        command.append(EXIT_WITH_STDIN)
    return command


class ManagedBroker:
    """One broker of the cluster: its process while it has one, and when it gets the next."""

    def __init__(self, options: BrokerOptions) -> None:
        self.options = options
        self.process: subprocess.Popen[bytes] | None = None
        self.is_ready = False
        self.restart_at_s: float | None = None
        self.is_killed = False
        """Its end was asked for and is not yet seen."""
        self._started_s = 0.0
        self._failed_starts = 0
        self._unread = b""

    def __repr__(self) -> str:
        pid = self.process.pid if self.process is not None else None
        return f"<ManagedBroker {self.name} pid={pid} restart_at_s={self.restart_at_s}>"

    @property
    def name(self) -> str:
        return f"broker {self.options.node_id}"

    def start(self, now_s: float, stderr: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
        """Start its process, whose stderr is this one's unless another is given."""
        self.is_ready, self.restart_at_s = False, None
        self._started_s, self._unread = now_s, b""
        # a signal from the terminal comes to the supervisor alone, which passes it on
        self.process = subprocess.Popen(
            command_line(self.options),
            # a pipe ends with this process, however it does
            stdin=subprocess.PIPE if self.options.exit_with_stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        )
        return self.process

    def read_lines(self, chunk: bytes) -> Iterator[str]:
        *whole, self._unread = (self._unread + chunk).split(b"\n")
        for line in whole:
            text = line.decode(errors="replace")
            if text.startswith("ready "):
                self.is_ready = True
                self._keep_port(text)
            yield text

    def _keep_port(self, ready_line: str) -> None:
        """Let the next process listen where this one does: that is where clients look for it."""
        words = dict(word.split("=", 1) for word in ready_line.split()[1:] if "=" in word)
        port = words.get("listen", "").rpartition(":")[2]
        host, _, asked = str(self.options.listen).rpartition(":")
        if port and asked == "0":
            self.options = replace(self.options, listen=f"{host}:{port}")

    def plan_restart(self, now_s: float) -> float | None:
        """Return the pause before the next start, which is due after it; None when there is none."""
        is_steady = self.is_ready and now_s - self._started_s >= STEADY_AFTER_S
        self._failed_starts = 0 if is_steady else self._failed_starts + 1
        pause_s = restart_pause_s(self._failed_starts)
        self.restart_at_s = None if pause_s is None else now_s + pause_s
        return pause_s


class Supervisor:
    """The processes of one cluster; as a context manager it stops those which are left."""

    def __init__(
        self,
        brokers: Iterable[BrokerOptions],
        *,
        restarts: bool = False,
        print_line: Callable[[str], None],
        said_to: Path | None = None,
        end: int | None = None,
    ) -> None:
        """With `said_to` the stderr of each broker is added to a file in that folder. `end` is a descriptor:
        when nothing can come from it any more, it is as if a stop was asked for."""
        self.unclean: list[str] = []
        """The brokers which ended with an error or by a signal that was not asked for, and how; each once."""
        self.brokers = [ManagedBroker(options) for options in brokers]
        self._restarts = restarts
        self._print_line = print_line
        self._said_to = said_to
        self._is_stopping = False
        self._selector = selectors.DefaultSelector()
        if end is not None:
            self._selector.register(end, selectors.EVENT_READ)

    def __enter__(self) -> Self:
        try:
            for broker in self.brokers:
                self._start(broker)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def request_stop(self) -> None:
        """End whatever waits here; safe in a signal handler."""
        self._is_stopping = True

    def kill(self, node_id: int) -> None:
        """End a broker by SIGKILL while another thread watches; it stays away until `start_again`."""
        broker = self.broker(node_id)
        process = broker.process
        if process is None:
            raise Failure(f"{broker.name} does not run")
        broker.is_killed = True
        process.kill()

    def start_again(self, node_id: int) -> None:
        """Let `watch` start a broker that was killed, once its process is gone."""
        self.broker(node_id).restart_at_s = time.monotonic()

    def broker(self, node_id: int) -> ManagedBroker:
        return next(broker for broker in self.brokers if broker.options.node_id == node_id)

    def wait_ready(self) -> bool:
        """Return whether all are ready, False when a stop was asked for first; Failure when one has ended."""
        deadline_s = time.monotonic() + READY_WITHIN_S
        while not all(broker.is_ready for broker in self.brokers):
            if self._is_stopping:
                return False
            if time.monotonic() > deadline_s:
                raise Failure(f"no ready cluster within {READY_WITHIN_S:.0f} s")
            for broker, code in self._look():
                raise Failure(f"{broker.name} ended with {describe_end(code)}; the others are stopped")
        return not self._is_stopping

    def watch(self) -> None:
        """Return when a stop was asked for, or when no broker is left and none is to be started again."""
        while not self._is_stopping and self._has_any():
            for broker, code in self._look():
                self._take_end(broker, code)
            now_s = time.monotonic()
            for broker in self.brokers:
                at_s = broker.restart_at_s
                is_due = at_s is not None and at_s <= now_s and broker.process is None
                if is_due and not self._is_stopping:
                    self._start_again(broker)

    def _has_any(self) -> bool:
        return any(broker.process is not None or broker.restart_at_s is not None for broker in self.brokers)

    def _start(self, broker: ManagedBroker) -> None:
        with contextlib.ExitStack() as stack:
            stderr = None
            if self._said_to is not None:
                stderr = stack.enter_context((self._said_to / f"{broker.options.node_id}.txt").open("ab"))
            stdout = broker.start(time.monotonic(), stderr).stdout
        assert stdout is not None
        self._selector.register(stdout, selectors.EVENT_READ, broker)

    def _start_again(self, broker: ManagedBroker) -> None:
        """Start a broker that ended. A machine without a process to spare for it now may have one later."""
        try:
            self._start(broker)
        except OSError as error:
            why = error.strerror or error
            complain(f"tidewal: cannot start {broker.name}: {why}; {self._plan_restart(broker)}")

    def _look(self) -> list[tuple[ManagedBroker, int]]:
        """Print the lines that came within a moment; return the brokers which have ended, and their codes."""
        for key, _ in self._selector.select(LOOK_EVERY_S):
            broker: ManagedBroker | None = key.data
            chunk = os.read(key.fd, 4096)
            if broker is None:
                if not chunk:
                    self._selector.unregister(key.fileobj)
                    self.request_stop()
                continue
            for line in broker.read_lines(chunk):
                self._print_line(line)
            if not chunk and broker.process is not None:
                self._selector.unregister(key.fileobj)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    broker.process.wait(LOOK_EVERY_S)
        found = []
        for broker in self.brokers:
            if broker.process is not None and (code := broker.process.poll()) is not None:
                self._release(broker)
                found.append((broker, code))
        return found

    def _release(self, broker: ManagedBroker) -> None:
        assert broker.process is not None
        stdout = broker.process.stdout
        assert stdout is not None
        if stdout in self._selector.get_map():
            self._selector.unregister(stdout)
        stdout.close()
        if broker.process.stdin is not None:
            broker.process.stdin.close()
        broker.process = None

    def _take_end(self, broker: ManagedBroker, code: int) -> None:
        """Report it, and plan what follows. A broker which ends cleanly was asked to, and stays away."""
        if broker.is_killed:
            broker.is_killed = False
            return
        if code:
            self._note_unclean(broker, code)
        follows = self._plan_restart(broker) if code and self._restarts else self._describe_left()
        complain(f"tidewal: {broker.name} ended with {describe_end(code)}; {follows}")

    def _note_unclean(self, broker: ManagedBroker, code: int) -> None:
        end = f"{broker.name} ({describe_end(code)})"
        if end not in self.unclean:
            self.unclean.append(end)

    def _plan_restart(self, broker: ManagedBroker) -> str:
        """Plan the next start of a broker that failed, and say when it is."""
        pause_s = broker.plan_restart(time.monotonic())
        if pause_s is None:
            return f"it failed {FAILED_STARTS_MAX} times in a row and is given up; {self._describe_left()}"
        return f"it is started again in {pause_s:g} s" if pause_s else "it is started again"

    def _describe_left(self) -> str:
        running = sum(broker.process is not None for broker in self.brokers)
        return f"{running} of {len(self.brokers)} go on" if running else "none is running"

    def _stop(self) -> None:
        """Stop all at once; each hands over to those which are left."""
        running = [(broker, process) for broker in self.brokers if (process := broker.process) is not None]
        stopped = [process for _, process in running if process.poll() is None]
        for process in stopped:
            process.terminate()
        deadline_s = time.monotonic() + STOP_WITHIN_S
        killed = []
        for broker, process in running:
            try:
                code = process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
                killed.append(broker)
            self._release(broker)
            # one that was just starting does not catch the signal yet
            if code and not broker.is_killed and not (code == -signal.SIGTERM and process in stopped):
                self._note_unclean(broker, code)
        self._selector.close()
        # only now: stderr may be gone with its terminal, and then the first line of it fails
        for broker in killed:
            complain(f"tidewal: {broker.name} did not stop within {STOP_WITHIN_S:.0f} s and was killed")


def check_clean(unclean: Sequence[str]) -> None:
    """Failure unless every broker ended cleanly."""
    if unclean:
        raise Failure(f"not every broker ended cleanly: {', '.join(unclean)}")
