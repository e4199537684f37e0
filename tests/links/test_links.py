"""What both kinds of links must do: let through, cut both ways or one, delay, lose, slow down, and undo it.

At each end an echo answers what it hears; packets have a test of their own, without devices.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.compat.peers import until
from tests.links import namespaces
from tests.links.namespaces import Namespaces
from tests.links.proxies import Proxies
from tests.links.rules import CLIENTS, CUT, Links, Rule
from tests.links.traffic import QUEUE_S_MAX, UNDER_WAY_MAX, Traffic
from tests.processes import ROOT

ECHO = """
import socket, sys, threading
host, port = sys.argv[1].rsplit(":", 1)
server = socket.create_server((host, int(port)))
print("ready", flush=True)
def echo(found):
    while piece := found.recv(65536):
        found.sendall(piece)
    found.close()
while True:
    threading.Thread(target=echo, args=[server.accept()[0]], daemon=True).start()
"""
HELLO = b"\0\0\0\x10\0\x12\0\0\0\0\0\1\0\3raw!!!"
"""As a client begins: the size, the API and its version, a number, and its name."""
PATIENCE_S, DEAF_S = 20.0, 0.5


@contextlib.contextmanager
def echo_at(links: Links, end: int) -> Iterator[subprocess.Popen[str]]:
    seat = links.seat(end)
    process = subprocess.Popen(
        [*seat.within, sys.executable, "-c", ECHO, seat.listen], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def connect(links: Links, end: int) -> socket.socket:
    host, _, port = links.seat(end).found_at.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def echoed(line: socket.socket, *, patience_s: float = PATIENCE_S) -> float | None:
    """How long an answer took; None when there is none in that time, and it is taken later."""
    line.settimeout(patience_s)
    began_s = time.monotonic()
    line.sendall(HELLO)
    return None if take(line) is None else time.monotonic() - began_s


def take(line: socket.socket) -> bytes | None:
    found = b""
    try:
        while len(found) < len(HELLO):
            piece = line.recv(len(HELLO) - len(found))
            if not piece:
                raise ConnectionResetError("the peer has gone")
            found += piece
    except TimeoutError:
        assert not found
        return None
    assert found == HELLO
    return found


@pytest.fixture(params=["namespaces", "TCP proxies"])
def between(request: pytest.FixtureRequest) -> Iterator[Links]:
    if request.param == "namespaces" and (missing := namespaces.why_not()) is not None:
        pytest.skip(f"no namespaces here: {missing}")
    with (Namespaces if request.param == "namespaces" else Proxies)([1, 2, CLIENTS]) as links:
        yield links


def test_what_is_cut_arrives_when_it_is_undone_and_nobody_else_is_cut(between: Links) -> None:
    with echo_at(between, 1), echo_at(between, 2), connect(between, 1) as line, connect(between, 2) as other:
        assert echoed(line) is not None
        for fault in (between.cut(1), between.cut_one_way(1), between.deaf(1)):
            with fault:
                assert echoed(line, patience_s=DEAF_S) is None
                assert echoed(other) is not None
            line.settimeout(PATIENCE_S)
            assert take(line) == HELLO


def test_nobody_hears_that_a_peer_vanished_before_the_cut_is_undone(between: Links) -> None:
    with echo_at(between, 1) as echo, connect(between, 1) as line:
        assert echoed(line) is not None
        with between.cut(1):
            echo.kill()
            echo.wait()
            assert echoed(line, patience_s=DEAF_S) is None
        line.settimeout(PATIENCE_S)
        with pytest.raises(ConnectionError):
            take(line)


def test_delay_is_each_way(between: Links) -> None:
    with echo_at(between, 1), connect(between, 1) as line, between.delay(1, delay_s=0.1):
        answered_s = echoed(line)
        assert answered_s is not None
        assert answered_s >= 0.2


def test_what_a_lossy_or_slow_link_takes_arrives_in_the_end(between: Links) -> None:
    with echo_at(between, 1), connect(between, 1) as line:
        for fault in (between.lossy(1, loss=0.2), between.slow(1, bytes_per_s=10_000.0)):
            with fault:
                assert all(echoed(line) is not None for _ in range(5))


def test_what_a_killed_run_left_behind_is_swept_by_the_next() -> None:
    if (missing := namespaces.why_not()) is not None:
        pytest.skip(f"no namespaces here: {missing}")
    script = (
        "import os, signal, subprocess\n"
        "from tests.links.namespaces import Namespaces\n"
        "links = Namespaces([1, 'clients']).__enter__()\n"
        "left = subprocess.Popen([*links.seat(1).within, 'sleep', '600'], stdout=subprocess.DEVNULL)\n"
        "print(links.name(1), left.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    left, pid = killed.stdout.split()
    assert killed.returncode == -signal.SIGKILL
    assert left in namespaces.ip("netns", "list")
    assert namespaces.ip("netns", "pids", left).split() == [pid]

    def is_swept() -> bool:
        with Namespaces([1, CLIENTS]):
            pass
        return left not in namespaces.ip("netns", "list")

    until(is_swept, "the next run to find what the last one left")
    assert not is_running(int(pid))


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


# --- packets ---


LINK = (1, 2)


def test_without_a_rule_a_packet_goes_on_at_once() -> None:
    traffic = Traffic(Random(1))
    traffic.rule({LINK: CUT})
    assert not traffic.take(LINK, b"lost", 0.0)
    assert traffic.take((2, 1), b"back", 0.0)
    traffic.rule({})
    assert traffic.take(LINK, b"there", 1.0)
    assert traffic.next_s() is None


def test_a_delayed_packet_arrives_after_its_delay_and_a_cut_loses_it() -> None:
    traffic = Traffic(Random(1))
    traffic.rule({LINK: Rule(delay_s=0.5)})
    assert not traffic.take(LINK, b"first", 1.0)
    assert not traffic.take(LINK, b"second", 1.1)
    assert traffic.next_s() == 1.5
    assert traffic.arrived(1.5) == [(LINK, b"first")]
    traffic.rule({LINK: CUT})
    assert traffic.arrived(9.0) == []


def test_a_slow_link_sends_one_after_the_other_and_drops_what_it_cannot_hold() -> None:
    traffic = Traffic(Random(1))
    traffic.rule({LINK: Rule(bytes_per_s=1000.0)})
    packet = b"x" * 100
    for _ in range(100):
        traffic.take(LINK, packet, 0.0)
    arrived = traffic.arrived(100.0)
    assert len(arrived) == pytest.approx(QUEUE_S_MAX * 1000.0 / len(packet), abs=1)


def test_what_is_under_way_is_bounded() -> None:
    traffic = Traffic(Random(1))
    traffic.rule({LINK: Rule(delay_s=1.0)})
    for _ in range(UNDER_WAY_MAX + 10):
        traffic.take(LINK, b"", 0.0)
    assert len(traffic.arrived(1.0)) == UNDER_WAY_MAX


def test_as_many_are_lost_as_the_rule_says() -> None:
    traffic = Traffic(Random(1))
    traffic.rule({LINK: Rule(loss=0.05)})
    through = sum(traffic.take(LINK, b"", 0.0) for _ in range(10_000))
    assert 9_400 < through < 9_600


def test_rules_on_one_link_add_up() -> None:
    both = Rule(delay_s=0.1, loss=0.5, bytes_per_s=10.0) & Rule(delay_s=0.2, loss=0.5, bytes_per_s=5.0)
    assert both == Rule(delay_s=pytest.approx(0.3), loss=0.75, bytes_per_s=5.0)
    assert (both & CUT).is_cut
