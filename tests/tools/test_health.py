"""The health check, against what is no ready broker; tests/e2e/test_environment.py asks real ones."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tools import cli
from tools.health import HealthOptions, read_plainly


def answered(give: Callable[[socket.socket], None], *arguments: str, kind: str = "--bootstrap") -> int:
    """The exit code of a check whose connection `give` answers."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as threads:
        server.settimeout(20)

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(20)
                give(connection)

        served = threads.submit(serve)
        code = cli.run(["health", kind, f"127.0.0.1:{server.getsockname()[1]}", *arguments])
        served.result()
    return code


def told(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return str(line)


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # taken, and nobody listens
        port = held.getsockname()[1]
        assert cli.run(["health", "--bootstrap", f"127.0.0.1:{port}"]) == 1
    assert told(capsys) == f"tidewal: 127.0.0.1:{port}: Connection refused"


def test_silence_ends_at_the_deadline(capsys: pytest.CaptureFixture[str]) -> None:
    def wait_until_it_gives_up(connection: socket.socket) -> None:
        while connection.recv(100):
            pass

    assert answered(wait_until_it_gives_up, "--timeout", "0.2") == 1
    assert told(capsys).endswith("does not answer: it is starting, or hangs")


def test_an_answer_in_drops_ends_at_the_deadline(capsys: pytest.CaptureFixture[str]) -> None:
    def drip(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(b"\0\0\0")
        while connection.recv(100):
            pass

    assert answered(drip, "--timeout", "0.2") == 1
    assert told(capsys).endswith("does not answer: it is starting, or hangs")


@pytest.mark.parametrize("answer", [b"", b"\0" * 10, b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_what_is_no_broker(capsys: pytest.CaptureFixture[str], answer: bytes) -> None:
    def give(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(answer)

    assert answered(give) == 1
    assert told(capsys).endswith("is no Kafka broker, or it is stopping")


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        (b"HTTP/1.0 503 Service Unavailable\r\n\r\nnot ready\n", "is not ready (HTTP 503)"),
        (b"+PONG\r\n", "serves no admin pages"),
    ],
)
def test_an_admin_page_that_is_not_ready(capsys: pytest.CaptureFixture[str], answer: bytes, end: str) -> None:
    def give(connection: socket.socket) -> None:
        assert connection.recv(100).startswith(b"GET /readyz HTTP/1.0\r\n")
        connection.sendall(answer)

    assert answered(give, kind="--admin") == 1
    assert told(capsys).endswith(end)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--bootstrap", "a:1", "--admin", "a:2"], "--bootstrap and --admin are both given: give one"),
        (["--bootstrap", "9092"], "--bootstrap 9092: not HOST:PORT"),
        (["--admin", "x:0"], "--admin x:0: not HOST:PORT"),
    ],
)
def test_addresses_that_cannot_be_meant(
    capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    assert cli.run(["health", *arguments]) == 2
    assert told(capsys) == f"tidewal: {line}"


def test_only_what_is_spelt_out_is_read_without_typer() -> None:
    assert read_plainly([]) == HealthOptions()
    assert read_plainly(["--admin=a:1"]) == HealthOptions(admin="a:1")
    assert read_plainly(["--bootstrap", "a:1"]) == HealthOptions(bootstrap="a:1")
    for arguments in (["--help"], ["--boot", "a:1"], ["--admin"], ["--admin="], ["word"], ["--timeout", "1"]):
        assert read_plainly(arguments) is None
