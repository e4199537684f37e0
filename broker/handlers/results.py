"""What answers share: how long a decision may take, how an error is given, and how many rows are made, or
names looked at, between two turns.

Owns: the wait of a request that names a time, the error of one item of a response. Does not own: an error of
the whole request (the dispatcher's error replies). Invariant: a message always fits into a response.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from itertools import islice
from typing import Final, TypeVar

from broker.config.broker import BrokerConfig
from broker.decisions import Refusal
from protocol.codec import Fields
from protocol.errors import ErrorCode, KafkaError
from protocol.work import Work

T = TypeVar("T")
R = TypeVar("R")

ROWS_AT_ONCE: Final = 16
"""Rows, of a microsecond or a few each, between two turns."""
NAMES_AT_ONCE: Final = 64
MESSAGE_MAX_CHARS: Final = 1_000
_MILLISECOND: Final = timedelta(milliseconds=1)


def decision_timeout_ms(timeout: timedelta, config: BrokerConfig) -> int:
    """How long a client waits; older ones that name no time wait as long as others do by default."""
    timeout_ms: int = timeout // _MILLISECOND
    return timeout_ms if timeout_ms > 0 else config.request_timeout_ms


def message_of(error: KafkaError | Refusal) -> str | None:
    """The message for a response: it may quote as much as a string holds, and must fit one itself."""
    return None if error.message is None else cut_message(error.message)


def cut_message(message: str) -> str:
    return message if len(message) <= MESSAGE_MAX_CHARS else f"{message[:MESSAGE_MAX_CHARS]}…"


def error_fields(error: Refusal | None) -> Fields:
    """The error of one item, or none."""
    if error is None:
        return {"error_code": ErrorCode.none, "error_message": None}
    return {"error_code": error.code, "error_message": message_of(error)}


def rows(make: Callable[[T], R], items: Iterable[T]) -> Work[list[R]]:
    """Make a row of each, in turns."""
    made: list[R] = []
    for at, item in enumerate(items, 1):
        made.append(make(item))
        if at % ROWS_AT_ONCE == 0:
            yield
    return made


def distinct(items: Iterable[T]) -> Work[dict[T, None]]:
    """Return each of them once, in their order, put together in turns."""
    rest = iter(items)
    found: dict[T, None] = {}
    while some := dict.fromkeys(islice(rest, NAMES_AT_ONCE)):
        found.update(some)
        yield
    return found
