"""A broker of its own for each attack: what exists on it, its probe, and what an attack costs.

Owns the process, the probe, the names that attacks may count on, and the measurement. Does not own the
attacks.
Invariant: memory and waits are counted from a broker at rest until some time after the last connection of the
attack is closed, so that what closing costs is counted too.
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from protocol.apis import Api
from tests.clients.blocking import BlockingClient
from tests.compat.peers import stable_port, until
from tests.e2e.load import batch_of
from tests.hostile.memory import peak_bytes, reset_peak, rss_bytes
from tests.hostile.probe import Probe, Seen
from tests.hostile.shapes import Known
from tests.processes import BrokerProcess

AFTER_S: Final = 10.0
ELSEWHERE: Final = "127.0.0.2"
"""Another address than that of the honest clients."""
ANSWER_S: Final = 60.0
LARGE_BYTES: Final = 300_000
"""What a second probe produces: more than fits any read buffer that a connection has at hand."""
_SETTINGS: Final = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "6"}
_READ_BYTES: Final = 1 << 20
_PROBED: Final = "probed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    wait_ms: float
    """The longest wait of a probe, less what was spent ready to run without a processor."""
    raw_wait_ms: float
    peak_mb: float
    """The greatest memory above rest."""
    left_mb: float
    """What is left of it some time after the attack."""
    answers: int
    lost: int
    """Requests of honest clients that were refused or had no answer."""
    note: str = ""
    """What became of the attack, for the reader."""


class Ground:
    """A broker with honest clients, to be attacked."""

    def __init__(
        self, folder: Path, *, settings: Mapping[str, str] | None = None, has_large_probe: bool = False
    ) -> None:
        self._stack = ExitStack()
        self.admin = f"127.0.0.1:{stable_port()}"
        self.broker = self._stack.enter_context(
            BrokerProcess(
                folder, arguments=("--admin", self.admin), settings={**_SETTINGS, **(settings or {})}
            )
        )
        self.bootstrap = self.broker.bootstrap
        try:
            self.make_topic(_PROBED)
            sizes = [1000, LARGE_BYTES] if has_large_probe else [1000]
            self._probes = [self._probe(size) for size in sizes]
            self.known = self._make_known()
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def pid(self) -> int:
        return self.broker.pid

    def client(self, *, timeout_s: float = ANSWER_S) -> BlockingClient:
        return BlockingClient(self.bootstrap, timeout_s=timeout_s)

    def dial(self, *, source: str = "") -> socket.socket:
        """A connection of a client, from an address of its own if one is given."""
        host, _, port = self.bootstrap.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=ANSWER_S, source_address=(source, 0))

    def make_topic(self, name: str, *, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        configs = [{"name": key, "value": value} for key, value in (config or {}).items()]
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": 1,
            "assignments": [],
            "configs": configs,
        }
        with self.client() as client:
            client.call(Api.CREATE_TOPICS, 7, topics=[topic], timeout=30_000, validate_only=False)
            until(
                lambda: client.produce(name, partitions - 1, bytes(batch_of(b"first"))).error_code == 0,
                f"the topic {name}",
            )

    def ensure_topic(self, name: str) -> None:
        """Make it again when a request has deleted it."""
        with self.client() as client:
            is_there = client.produce(name, 0, bytes(batch_of(b"again"))).error_code == 0
        if not is_there:
            self.make_topic(name)

    def topic_id(self, name: str) -> Any:
        with self.client() as client:
            answer = client.call(
                Api.METADATA,
                12,
                topics=[{"topic_id": None, "name": name}],
                allow_auto_topic_creation=False,
                include_topic_authorized_operations=False,
            )
        return answer.topics[0].topic_id

    def commit(self, group: str, topic: str, partitions: int) -> None:
        rows = [
            {"partition_index": index, "committed_offset": 1, "committed_metadata": ""}
            for index in range(partitions)
        ]
        with self.client() as client:

            def is_committed() -> bool:
                client.call(Api.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[group])
                topics = [{"name": topic, "partitions": rows}]
                answer = client.call(Api.OFFSET_COMMIT, 8, group_id=group, member_id="", topics=topics)
                return bool(answer.topics[0].partitions[0].error_code == 0)

            until(is_committed, f"offsets of {group}")

    def log_dir(self) -> str:
        with self.client() as client:
            return str(client.call(Api.DESCRIBE_LOG_DIRS, 4, topics=[]).results[0].log_dir)

    def metrics(self) -> dict[str, float]:
        """All samples of /metrics by name and labels as they are written."""
        with urllib.request.urlopen(f"http://{self.admin}/metrics", timeout=ANSWER_S) as answer:
            lines = answer.read().decode().splitlines()
        return {
            name: float(value)
            for name, value in (line.rsplit(" ", 1) for line in lines if line and line[0] != "#")
        }

    def seen(self) -> Seen:
        """What all probes saw since this was last asked, as of one."""
        each = [probe.tell() for probe in self._probes]
        return Seen(
            answers=sum(one.answers for one in each),
            refused=sum(one.refused for one in each),
            lost=sum(one.lost for one in each),
            longest_ms=max(one.longest_ms for one in each),
            longest_raw_ms=max(one.longest_raw_ms for one in each),
            waits_ms=[wait for one in each for wait in one.waits_ms],
        )

    def measure(self, attack: Callable[[ExitStack], str | None], *, after_s: float = AFTER_S) -> Measured:
        """Do it, close what it opened, wait, and tell what it cost."""
        self.seen()
        rest = rss_bytes(self.pid)
        reset_peak(self.pid)
        with ExitStack() as stack:
            note = attack(stack) or ""
        pause(after_s)
        seen = self.seen()
        return Measured(
            wait_ms=seen.longest_ms,
            raw_wait_ms=seen.longest_raw_ms,
            peak_mb=(peak_bytes(self.pid) - rest) / 1e6,
            left_mb=(rss_bytes(self.pid) - rest) / 1e6,
            answers=seen.answers,
            lost=seen.lost + seen.refused,
            note=note,
        )

    def _probe(self, size_bytes: int) -> Probe:
        return self._stack.enter_context(
            Probe(self.bootstrap, _PROBED, broker_pid=self.pid, size_bytes=size_bytes)
        )

    def _make_known(self) -> Known:
        self.make_topic("known")
        self.commit("known", "known", 1)
        return Known(
            topic_id=self.topic_id("known"), log_dir=self.log_dir(), batch=bytes(batch_of(b"x" * 100))
        )


@dataclass(slots=True)
class Hostile:
    """One connection of an attack, which reads answers without looking at them."""

    socket: socket.socket
    _buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(_READ_BYTES)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, *frames: bytes | bytearray | memoryview) -> bool:
        """Whether all of it was taken; False when the broker hangs up, or takes no more for a long time."""
        try:
            for frame in frames:
                self.socket.sendall(frame)
        except OSError:
            return False
        return True

    def answer_bytes(self) -> int | None:
        """The size of the next answer, read and dropped; None when the broker hung up instead."""
        try:
            head = self._exactly(4, keep=True)
            size = int.from_bytes(head, "big")
            self._exactly(size)
        except ConnectionError:
            return None
        return size

    def answer(self) -> bytes | None:
        """The next answer without its size; None when the broker hung up instead."""
        try:
            return self._exactly(int.from_bytes(self._exactly(4, keep=True), "big"), keep=True)
        except ConnectionError:
            return None

    def ask(self, frame: bytes | bytearray | memoryview) -> str:
        """Send one request and tell what became of it."""
        was_sent = self.send(frame)
        try:
            size = self.answer_bytes()
        except TimeoutError:
            return "no answer"
        if size is None:
            return "closed" if was_sent else "closed while it was sent"
        return f"{size / 1e6:.1f} MB answered"

    def _exactly(self, size: int, *, keep: bool = False) -> bytes:
        kept = bytearray()
        while size:
            got = self.socket.recv_into(self._buffer[: min(size, _READ_BYTES)])
            if not got:
                raise ConnectionResetError("closed by the broker")
            if keep:
                kept += self._buffer[:got]
            size -= got
        return bytes(kept)


def hostile(ground: Ground, stack: ExitStack) -> Hostile:
    return stack.enter_context(Hostile(ground.dial()))


@contextlib.contextmanager
def fresh_ground(**options: Any) -> Iterator[Ground]:
    with tempfile.TemporaryDirectory() as folder, Ground(Path(folder) / "data", **options) as ground:
        yield ground


def pause(seconds: float) -> None:
    """Let time pass: what is measured here is a span of it."""
    threading.Event().wait(seconds)
