"""An honest producer in a process of its own: a small request every few milliseconds, and how long each took.

Owns the connection and the clock on it; what it saw is told line by line on stdout, once for each line on
stdin, and then begun anew. Does not own the broker, nor what a wait is held to.
Invariant: a wait counts from the moment its request is sent until its whole answer is here. What the broker
or the probe itself spent ready to run without a processor is told apart, since no broker can help that.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Final, Self

from protocol import messages
from protocol.apis import Api
from protocol.records import build_batch
from tests.clients.blocking import PRODUCE_VERSION, BlockingClient, produce_fields
from tests.compat.samples import FIRST_MS
from tests.hostile.memory import run_delay_s
from tests.processes import ROOT

EVERY_S: Final = 0.003
_LARGE_EVERY_S: Final = 0.1
_LARGE_BYTES: Final = 100_000
TIMEOUT_S: Final = 60.0
_TELL_S: Final = 2 * TIMEOUT_S
_NICE: Final = -5
_HEADERS_BYTES: Final = 100


@dataclass(slots=True, kw_only=True)
class Seen:
    """What the probe saw since it was last asked."""

    answers: int = 0
    refused: int = 0
    """Answers with an error."""
    lost: int = 0
    """Requests without an answer: the connection ended, or the answer took a minute."""
    longest_ms: float = 0.0
    """The longest wait, less what was spent ready to run without a processor."""
    longest_raw_ms: float = 0.0
    waits_ms: list[float] = field(default_factory=list)

    def quantile_ms(self, share: float) -> float:
        waits = sorted(self.waits_ms)
        return waits[min(int(len(waits) * share), len(waits) - 1)] if waits else 0.0


class Watcher:
    """A process of a client that is asked now and then what it has seen; it ends when it is left."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def tell(self) -> Seen:
        """What it saw since this was last asked. A request that is under way is waited for."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("tell\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], _TELL_S)
        line = self._process.stdout.readline() if ready else ""
        assert line, "it has ended, or hangs"
        return Seen(**json.loads(line))


class Probe(Watcher):
    def __init__(self, bootstrap: str, topic: str, *, broker_pid: int, size_bytes: int = 1000) -> None:
        super().__init__(__name__, bootstrap, topic, str(size_bytes), str(broker_pid))


def run(bootstrap: str, topic: str, size_bytes: int, broker_pid: int) -> None:
    batch = bytes(build_batch([(None, bytes(size_bytes - _HEADERS_BYTES), (), FIRST_MS)]))
    frame = messages.encode_request(
        Api.PRODUCE, PRODUCE_VERSION, 1, "probe", produce_fields(topic, 0, batch, acks=1)
    )
    every_s = EVERY_S if size_bytes < _LARGE_BYTES else _LARGE_EVERY_S
    client: BlockingClient | None = None
    seen = Seen()
    while True:
        began_s, delay_s = time.perf_counter(), delays_s(broker_pid)
        try:
            if client is None:
                client = BlockingClient(bootstrap, timeout_s=TIMEOUT_S)
            client.socket.sendall(frame)
            answer = client.frame()
        except OSError:
            seen.lost += 1
            client = None
        else:
            seen.answers += 1
            _, response = messages.decode_response(Api.PRODUCE, PRODUCE_VERSION, answer)
            seen.refused += response.responses[0].partition_responses[0].error_code != 0
        wait_s = time.perf_counter() - began_s
        excused_s = delays_s(broker_pid) - delay_s
        seen.waits_ms.append(round(wait_s * 1000, 3))
        seen.longest_raw_ms = max(seen.longest_raw_ms, wait_s * 1000)
        seen.longest_ms = max(seen.longest_ms, (wait_s - excused_s) * 1000)
        if is_asked(every_s):
            if not sys.stdin.readline():
                return
            answer_with(seen)
            seen = Seen()


def is_asked(within_s: float) -> bool:
    """Whether there is a line on stdin, or its end."""
    return bool(select.select([sys.stdin], [], [], within_s)[0])


def answer_with(seen: Seen) -> None:
    sys.stdout.write(json.dumps(asdict(seen)) + "\n")
    sys.stdout.flush()


def delays_s(broker_pid: int) -> float:
    """How long the broker and the probe have waited for a processor in all; 0 once the broker is gone."""
    try:
        return run_delay_s(broker_pid) + run_delay_s(os.getpid())
    except OSError:
        return 0.0


if __name__ == "__main__":
    with contextlib.suppress(PermissionError):
        os.nice(_NICE)
    run(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
