"""Brokers and store in network namespaces of their own; every packet between them goes through the switch.

Owns: the namespaces, their addresses, and the switch. Does not own the processes in them. What a killed run
left behind is swept by the next: a place is free once nobody holds the lock of its number.
Invariant: whoever is in a namespace reaches the others through the switch alone.
"""

from __future__ import annotations

import fcntl
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.clusters import Seat
from tests.links.rules import CLIENTS, STORE, End, Links, Pair, Rule
from tests.links.switch import DEVICES, encode_rules
from tests.processes import ROOT

PREFIX, PROBE = "tidewal-links", "tidewal-probe-"
PLACES = 100
MTU = 9000
"""Fewer packets than on most links, so that the switch is not what is measured."""
BROKER_PORT, STORE_PORT = 9092, 9000
COMMAND_S_MAX = 20.0


def why_not() -> str | None:
    """What is missing for namespaces here."""
    if sys.platform != "linux":
        return "only Linux has network namespaces"
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "there is no `ip`"
    if not os.access(DEVICES, os.R_OK | os.W_OK):
        return f"there is no {DEVICES}"
    name = f"{PROBE}{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"no namespace could be made: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return None


class Namespaces(Links):
    kind = "namespaces"

    def __init__(self, ends: Sequence[End], *, seed: int = 0) -> None:
        """The clients' end is where this runs; every other gets a namespace."""
        super().__init__(ends)
        self._seed = seed
        self._stack = ExitStack()
        self._switch: subprocess.Popen[bytes] | None = None
        self._place = -1

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            sweep_left_behind()
            place = stack.enter_context(free_place())
            self._place = place.number
            stack.callback(sweep, self._place)
            self._switch = self._start_switch(stack, place)
            for end in self.ends:
                self._connect(end)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    # --- where each end is ---

    def address(self, end: End) -> str:
        return f"198.18.{self._place}.{self.ends.index(end) + 1}"

    def seat(self, end: End) -> Seat:
        address = f"{self.address(end)}:{STORE_PORT if end == STORE else BROKER_PORT}"
        return Seat(address, address, ("ip", "netns", "exec", self.name(end)))

    def store_port(self, broker: End) -> int:
        """Where that broker reaches the store."""
        return STORE_PORT

    def name(self, end: End) -> str:
        """Of its namespace."""
        return f"{PREFIX}-{self._place}-{end}"

    def _device(self, end: End) -> str:
        return f"tw{self._place}-{self.ends.index(end)}"

    def _connect(self, end: End) -> None:
        device, inside = self._device(end), []
        if end != CLIENTS:
            ip("netns", "add", self.name(end))
            ip("link", "set", device, "netns", self.name(end))
            inside = ["-netns", self.name(end)]
            ip(*inside, "link", "set", "lo", "up")
        ip(*inside, "address", "add", f"{self.address(end)}/24", "dev", device)
        ip(*inside, "link", "set", device, "mtu", str(MTU), "up")

    # --- the switch ---

    def _start_switch(self, stack: ExitStack, place: Place) -> subprocess.Popen[bytes]:
        """It holds the place as well, for as long as its devices are there."""
        ends = [[end, self.address(end), self._device(end)] for end in self.ends]
        switch = subprocess.Popen(
            [sys.executable, "-m", "tests.links.switch", json.dumps(ends), str(self._seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            pass_fds=[place.lock.fileno()],
        )
        stack.callback(end_switch, switch)
        hear(switch, "ready")
        return switch

    def _enforce(self, rules: Mapping[Pair, Rule]) -> None:
        assert self._switch is not None
        assert self._switch.stdin is not None
        self._switch.stdin.write(encode_rules(rules))
        self._switch.stdin.flush()
        hear(self._switch, "done")


class Place:
    """A number that no other run has; the kernel gives it back once nobody has `lock` open any more."""

    def __init__(self, number: int) -> None:
        self.number = number
        folder = Path(tempfile.gettempdir()) / PREFIX
        folder.mkdir(exist_ok=True)
        self.lock = (folder / f"{number}.lock").open("wb")

    def is_taken(self) -> bool:
        """Whether this took it."""
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.lock.close()


def free_place() -> Place:
    for number in range(PLACES):
        place = Place(number)
        if place.is_taken():
            return place
        place.lock.close()
    raise AssertionError(f"{PLACES} runs at once")


def sweep_left_behind() -> None:
    """What is of places that nobody has any more."""
    for number in {int(name[len(PREFIX) + 1 :].partition("-")[0]) for name in ours()}:
        with Place(number) as place:
            if place.is_taken():
                sweep(number)


def sweep(number: int) -> None:
    """Delete the namespaces of that place, and kill who is in them."""
    for name in ours():
        if name.startswith(f"{PREFIX}-{number}-"):
            for pid in ip("netns", "pids", name).split():
                os.kill(int(pid), signal.SIGKILL)
            ip("netns", "del", name)


def ours() -> list[str]:
    names = [line.split()[0] for line in ip("netns", "list").splitlines()]
    return [name for name in names if name.startswith(f"{PREFIX}-")]


def end_switch(switch: subprocess.Popen[bytes]) -> None:
    assert switch.stdin is not None
    assert switch.stdout is not None
    switch.stdin.close()
    switch.wait(timeout=COMMAND_S_MAX)
    switch.stdout.close()


def hear(switch: subprocess.Popen[bytes], word: str) -> None:
    assert switch.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(switch.stdout, selectors.EVENT_READ)
        assert selector.select(COMMAND_S_MAX), f"the switch does not say that it is {word}"
    said = os.read(switch.stdout.fileno(), 100)
    assert said == word.encode() + b"\n", f"the switch says {said!r} in place of {word}"


def ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=COMMAND_S_MAX, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr.strip()}"
    return done.stdout
