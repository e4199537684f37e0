"""`tidewal health`: whether a broker answers and is ready, for the health checks of containers.

Owns: asking either port, and where the port is when only the environment tells. Does not own: what the
variables mean (tools.environment). A check runs every few seconds beside the broker, so nothing is loaded
that it can do without: its one request is written here by hand.
Invariant: it ends within its deadline, with one line either way.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tools.console import Failure, check_address, emit
from tools.plain_options import spelt_out

TIMEOUT_S = 5.0
_ANSWER_BYTES_MAX = 1 << 20
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
"""ApiVersions of version 0 without a client's name, length first: every broker answers it."""
_WILDCARDS = ("", "0.0.0.0", "::", "[::]")


@dataclass(slots=True, kw_only=True)
class HealthOptions:
    bootstrap: str | None = None
    admin: str | None = None
    timeout_s: float = TIMEOUT_S


def read_plainly(arguments: list[str]) -> HealthOptions | None:
    """Return the options, if each is spelt out with its value; None for help, mistakes and abbreviations."""
    given = spelt_out(arguments)
    if given is None:
        return None
    options = HealthOptions()
    for name, value in given:
        match name:
            case "--bootstrap":
                options.bootstrap = value
            case "--admin":
                options.admin = value
            case _:
                return None
    return options


def run_health(options: HealthOptions) -> None:
    """Say that the broker is ready; Failure when it is not, or does not answer in time."""
    if options.bootstrap is not None and options.admin is not None:
        raise Failure("--bootstrap and --admin are both given: give one", exit_code=2)
    if options.bootstrap is None and options.admin is None:
        options = _from_environment(options)
    text, name = (
        (options.admin, "--admin") if options.admin is not None else (options.bootstrap, "--bootstrap")
    )
    host, _, port = check_address(str(text), name, port_min=1).rpartition(":")
    host = "127.0.0.1" if host in _WILDCARDS else host
    address = f"{host}:{port}"
    ends_s = time.monotonic() + options.timeout_s
    with _told(address), _Connection(host, int(port), ends_s) as connection:
        if options.admin is not None:
            _ask_admin(connection, address)
        else:
            _ask_broker(connection, address)
    emit(f"{address} is ready")


def _from_environment(options: HealthOptions) -> HealthOptions:
    """Find the address where `tidewal broker --from-env` has it."""
    import os

    from tools.broker_command import BrokerOptions, from_environment, read_config, settled

    environment = from_environment(os.environ)
    admin = settled(BrokerOptions(), environment).admin
    if admin is not None:
        return HealthOptions(admin=admin, timeout_s=options.timeout_s)
    first = read_config(BrokerOptions(), environment).listeners[0]
    host = f"[{first.host}]" if ":" in first.host else first.host
    return HealthOptions(bootstrap=f"{host}:{first.port}", timeout_s=options.timeout_s)


class _Connection:
    """A connection all of whose waits end at one time."""

    def __init__(self, host: str, port: int, ends_s: float) -> None:
        self._ends_s = ends_s
        self._socket = socket.create_connection((host.strip("[]"), port), timeout=self._left_s())

    def __enter__(self) -> _Connection:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.settimeout(self._left_s())
        self._socket.sendall(data)

    def read(self, size: int) -> bytes:
        """Return so many bytes, or fewer when the other side has closed."""
        found = b""
        while len(found) < size:
            self._socket.settimeout(self._left_s())
            data = self._socket.recv(size - len(found))
            if not data:
                break
            found += data
        return found

    def _left_s(self) -> float:
        left_s = self._ends_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s


@contextmanager
def _told(address: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise Failure(f"{address} does not answer: it is starting, or hangs") from None
    except OSError as error:
        raise Failure(f"{address}: {error.strerror or error}") from None


def _ask_broker(connection: _Connection, address: str) -> None:
    connection.send(_API_VERSIONS)
    head = connection.read(10)
    size, correlation, error = struct.unpack(">iih", head) if len(head) == 10 else (0, 0, 0)
    if correlation != 1 or not 6 < size <= _ANSWER_BYTES_MAX:
        raise Failure(f"{address} is no Kafka broker, or it is stopping")
    if error:
        raise Failure(f"{address} answers with error {error}")


def _ask_admin(connection: _Connection, address: str) -> None:
    connection.send(b"GET /readyz HTTP/1.0\r\n\r\n")
    words = connection.read(32).split(b" ", 2)
    if len(words) != 3 or not words[0].startswith(b"HTTP/"):
        raise Failure(f"{address} serves no admin pages")
    if words[1] != b"200":
        raise Failure(f"{address} is not ready (HTTP {words[1].decode(errors='replace')})")
