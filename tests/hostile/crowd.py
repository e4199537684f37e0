"""Eight connections that send large requests to the brokers of a cluster without a pause.

Owns the connections in a process of its own, and what became of their requests. Does not own the brokers.
Half of them go to the controller.
Invariant: no connection waits for another; one that is closed is made again at once.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Final, Self

from protocol.apis import SERVED, Api
from tests.clients.blocking import BlockingClient
from tests.hostile.ground import Hostile
from tests.hostile.shapes import Kind, Known, Shape, request
from tests.processes import ROOT

CONNECTIONS: Final = 8
_ROWS: Final = (100_000, 2_000_000)
"""What is answered, and what is refused where rows are bounded."""
_ANSWER_S: Final = 60.0
_AGAIN_S: Final = 0.01
_TARGETS: Final = (
    (Api.DESCRIBE_GROUPS, 5, "groups"),
    (Api.DELETE_TOPICS, 4, "topic_names"),
    (Api.FIND_COORDINATOR, 4, "coordinator_keys"),
    (Api.DELETE_GROUPS, 2, "groups_names"),
    (Api.CREATE_TOPICS, 7, "topics"),
    (Api.OFFSET_FETCH, 8, "groups.topics.partition_indexes"),
    (Api.METADATA, 12, "topics"),
    (Api.ELECT_LEADERS, 2, "topic_partitions.partitions"),
    (Api.DESCRIBE_CONFIGS, 4, "resources"),
    (Api.LIST_OFFSETS, 8, "topics.partitions"),
    (Api.FETCH, 12, "topics.partitions"),
    (Api.ALTER_PARTITION_REASSIGNMENTS, 1, "topics.partitions"),
)


class Crowd:
    """The process, seen from whoever measures. It attacks until it is left."""

    def __init__(self, addresses: Sequence[str], topic: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, topic, *addresses],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )
        self.outcomes: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            said, _ = self._process.communicate(timeout=2 * _ANSWER_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            said, _ = self._process.communicate()
        self.outcomes = json.loads(said) if said else {}


def attack(
    address: str, frames: Sequence[tuple[str, bytearray]], *, at: int, stop: Event, note: Note
) -> None:
    connection: Hostile | None = None
    while not stop.is_set():
        name, frame = frames[at % len(frames)]
        at += 1
        try:
            if connection is None:
                connection = Hostile(BlockingClient(address, timeout_s=_ANSWER_S).socket)
            said = connection.ask(frame)
        except OSError:
            said = "refused"
        note(name, said.split()[0] if "answered" not in said else "answered")
        if "answered" not in said:
            if connection is not None:
                connection.socket.close()
            connection = None
            stop.wait(_AGAIN_S)


class Note:
    def __init__(self) -> None:
        self._lock = Lock()
        self.counts: Counter[str] = Counter()

    def __call__(self, name: str, outcome: str) -> None:
        with self._lock:
            self.counts[f"{name}: {outcome}"] += 1


def run(topic: str, addresses: Sequence[str]) -> None:
    known = Known(topic=topic, fields={"session_epoch": -1})
    frames = [
        (
            SERVED[api].name,
            request(
                Shape(api=api, version=version, path=tuple(path.split(".")), kind=Kind.DISTINCT),
                known,
                rows_max=rows,
            )[0],
        )
        for rows in _ROWS
        for api, version, path in _TARGETS
    ]
    stop, note = Event(), Note()
    threads = [
        Thread(
            target=attack,
            args=(addresses[0 if number < CONNECTIONS // 2 else number % len(addresses)], frames),
            kwargs={"at": number * 3, "stop": stop, "note": note},
            daemon=True,
        )
        for number in range(CONNECTIONS)
    ]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    stop.set()
    sys.stdout.write(json.dumps(dict(sorted(note.counts.items()))))


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2:])
