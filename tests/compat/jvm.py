"""Our Java programs beside Kafka's jars: its tools in one JVM, its clients in another, a word count.

Owns compiling tests/peers/java, and speaking to what runs there by lines of JSON. Does not own what a test
asserts, nor the brokers.
Invariant: every wait has a deadline, and a JVM that was started is gone when its `with` block ends.
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self

from tests.compat.peers import Java, until

SOURCES = Path(__file__).resolve().parent.parent / "peers" / "java"
COMPILE_S_MAX = 60.0
ANSWER_S = 60.0
EVENT_S = 40.0
GONE_S = 20.0

Event = dict[str, Any]


def compiled(java: Java, folder: Path) -> Java:
    """A Java that knows our classes as well."""
    done = subprocess.run(
        [
            "javac",
            "-nowarn",
            "-cp",
            java.class_path,
            "-d",
            str(folder),
            *map(str, sorted(SOURCES.glob("*.java"))),
        ],
        capture_output=True,
        text=True,
        timeout=COMPILE_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return java.with_classes(folder)


class Program:
    """A JVM that is spoken to over its stdin and stdout; its stderr goes to a file."""

    def __init__(self, java: Java, log: Path, main: str, *args: str) -> None:
        self.log = log
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(
                java.command(main, *args),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )
        self.lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def line(self, timeout_s: float) -> str | None:
        """The next line it printed; None when there is none in time."""
        try:
            found = self.lines.get(timeout=timeout_s)
        except queue.Empty:
            return None
        assert found is not None, self.last_words()
        return found

    def last_words(self) -> str:
        return f"{self.process.args} ended: {self.log.read_text(errors='replace')[-4000:]}"

    def kill(self) -> None:
        """SIGKILL, and wait."""
        self.process.kill()
        self.process.wait(timeout=GONE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()
        self._reader.join(GONE_S)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                _close(stream)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)


def _close(stream: IO[str]) -> None:
    try:
        stream.close()
    except BrokenPipeError:
        return  # what was still to be said to a JVM that is gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a tool said before it ended."""

    code: int
    out: str
    err: str

    @property
    def all(self) -> str:
        return self.out + self.err


class Tools(Program):
    """Kafka's command line tools, one after the other in one JVM."""

    def __init__(self, java: Java, log: Path) -> None:
        super().__init__(java, log, "Tools")

    def attempt(self, main: str, *args: str, timeout_s: float = ANSWER_S) -> Said:
        self.say(json.dumps({"main": main, "args": args}))
        answer = self.line(timeout_s)
        assert answer is not None, f"{main} {args} takes more than {timeout_s} s"
        return Said(**json.loads(answer))

    def run(self, main: str, *args: str) -> str:
        said = self.attempt(main, *args)
        assert said.code == 0, f"{main} {args} exited {said.code}:\n{said.out}\n{said.err}"
        return said.out


@dataclass(slots=True)
class Seen:
    """What a member of a group told so far."""

    partitions: tuple[str, ...] = ()
    """All it holds."""
    calls: list[tuple[str, int]] = field(default_factory=list)
    """How its listener was called: given, revoked or lost, and how many partitions."""
    records: list[Event] = field(default_factory=list)
    closed: Event | None = None


class Clients(Program):
    """Java consumers and producers in one JVM, by name."""

    def __init__(self, java: Java, log: Path) -> None:
        super().__init__(java, log, "Clients")
        self.members: dict[str, Seen] = {}
        self._answers: list[Event] = []

    # --- members of groups ---

    def consume(self, name: str, config: Mapping[str, Any], **subscription: str | Sequence[str]) -> None:
        """Starts a member of `topics`, `re2` (which the broker resolves) or `pattern` (the client)."""
        assert name not in self.members, "a member's name is used once"
        self.members[name] = Seen()
        self.say(json.dumps({"do": "consume", "name": name, "config": config, **subscription}))

    def leave(self, name: str, *, remains: bool = False) -> Event:
        """Closes a member; the event that tells so."""
        self.say(json.dumps({"do": "leave", "name": name, "remains": remains}))
        return self.closed(name)

    def closed(self, name: str) -> Event:
        return self.await_(lambda: self.members[name].closed, f"{name} to be closed")

    def holding(self, *names: str) -> list[tuple[str, ...]]:
        self.take()
        return [self.members[name].partitions for name in names]

    def records(self, *names: str) -> list[Event]:
        """What these told of, or all of them."""
        self.take()
        return [record for name in names or self.members for record in self.members[name].records]

    def await_(self, condition: Callable[[], Any], what: str, timeout_s: float = EVENT_S) -> Any:
        def found() -> Any:
            self.take()
            return condition()

        return until(found, what, timeout_s=timeout_s)

    # --- producers ---

    def do(self, name: str, what: str, **details: Any) -> Event:
        """What came of one act of a producer: an event `done` or `failed`."""
        self.say(json.dumps({"do": what, "name": name, **details}))
        deadline = time.monotonic() + ANSWER_S
        while not self._answers:
            self.take(0.05)
            assert time.monotonic() < deadline, f"{name} takes more than {ANSWER_S} s to {what}"
        return self._answers.pop()

    def done(self, name: str, what: str, **details: Any) -> Event:
        event = self.do(name, what, **details)
        assert event["event"] == "done", (what, event)
        return event

    def take(self, timeout_s: float = 0.0) -> None:
        """Takes note of what was told, once something was or the time is over."""
        for event in self._events(timeout_s):
            kind = event["event"]
            if kind in ("done", "failed"):
                self._answers.append(event)
                continue
            seen = self.members[event["name"]]
            if kind == "record":
                seen.records.append(event)
            elif kind == "assigned":
                seen.partitions = tuple(event.get("partitions", ()))
            elif kind in ("given", "revoked", "lost"):
                seen.calls.append((kind, event["count"]))
            elif kind == "closed":
                seen.closed = event
                seen.partitions = ()

    def _events(self, timeout_s: float) -> Iterator[Event]:
        line = self.line(timeout_s) if timeout_s or not self.lines.empty() else None
        while line is not None:
            yield json.loads(line)
            line = self.line(0) if not self.lines.empty() else None
