"""A real `tidewal broker` in a process of its own, for tests that kill, restart or talk to it from outside.

Owns the process: start (waits for the ready line), kill, terminate, what it printed. Does not own its data
directory, so that a second process may follow the first on the same data.
Invariant: no wait here is without a deadline, and none is a fixed sleep.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

ROOT = Path(__file__).resolve().parent.parent
TIDEWAL: Sequence[str] = (sys.executable, "-m", "tools.cli")
READY_S_MAX = 30.0
SIGNALS_APART_S = 0.002
STOP_S_MAX = 40.0


class DidNotStart(Exception):
    """The process ended, or kept silent for too long, before its ready line; carries its stderr."""

    def __init__(self, why: str, returncode: int | None, stderr: str) -> None:
        super().__init__(f"{why}\n{stderr}")
        self.returncode = returncode
        self.stderr = stderr


class BrokerProcess:
    """One running broker. As a context manager it is killed at the end if it still runs."""

    def __init__(
        self,
        data: Path,
        *,
        listen: str | None = "127.0.0.1:0",
        settings: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        descriptors: int | None = None,
        program: Sequence[str] = TIDEWAL,
        cwd: Path = ROOT,
    ) -> None:
        self.data = data
        command = [*program, "broker", "--data", str(data), *arguments]
        if listen is not None:
            command += ["--listen", listen]
        for key, value in (settings or {}).items():
            command += ["--set", f"{key}={value}"]
        if descriptors is not None:
            command = ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh", *command]
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        self.started_s = time.monotonic()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            cwd=cwd,
            env={**os.environ, **(env or {})},
        )
        try:
            self.ready_line, self._stdout = self._await_ready()
        except BaseException:
            self.close()
            raise
        self.ready_s = time.monotonic() - self.started_s
        words = dict(word.split("=", 1) for word in self.ready_line.split()[1:])
        self.bootstrap = words["listen"]
        host, _, port = self.bootstrap.rpartition(":")
        self.host, self.port = host, int(port)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stderr(self) -> str:
        """Everything written to stderr so far."""
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace")

    def rest_of_stdout(self) -> bytes:
        """Everything written to stdout after the ready line, once the process has ended."""
        assert self.process.stdout is not None
        self._stdout += self.process.stdout.read()
        return self._stdout

    def kill(self) -> None:
        """SIGKILL, and wait: nothing is flushed, no marker is written."""
        self.process.kill()
        self.process.wait(timeout=10)

    def terminate(self, *, timeout_s: float = 20.0) -> int:
        """SIGTERM, and wait for the clean stop; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=timeout_s)

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._stderr.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _await_ready(self) -> tuple[str, bytes]:
        """Return the first line of stdout, and what was read behind it."""
        stdout = self.process.stdout
        assert stdout is not None
        deadline = self.started_s + READY_S_MAX
        collected = b""
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while b"\n" not in collected:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not selector.select(left_s):
                    raise DidNotStart(f"no ready line within {READY_S_MAX:.0f} s", None, self.stderr)
                chunk = os.read(stdout.fileno(), 4096)
                if not chunk:
                    returncode = self.process.wait(timeout=10)
                    raise DidNotStart(f"ended with {returncode} before it was ready", returncode, self.stderr)
                collected += chunk
        first, _, rest = collected.partition(b"\n")
        line = first.decode()
        if not line.startswith("ready "):
            raise DidNotStart(f"unexpected first line {line!r}", None, self.stderr)
        return line, rest


def signal_until_the_end(process: subprocess.Popen[bytes], kind: signal.Signals) -> None:
    """One signal after the other, so that some come at every stage of its exit; between them it gets on."""
    deadline_s = time.monotonic() + STOP_S_MAX
    while True:
        assert time.monotonic() < deadline_s, f"still there after {STOP_S_MAX:.0f} s of signals"
        process.send_signal(kind)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SIGNALS_APART_S)
            return
