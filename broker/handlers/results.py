"""What the answers to operators' requests share: how long a decision may take, and how an error is given.

Owns: the wait of a request that names a time, the error of one item of a response. Does not own: an error of
the whole request (the dispatcher's error replies). Invariant: a message always fits into a response.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from broker.config.broker import BrokerConfig
from protocol.codec import Fields
from protocol.errors import ErrorCode, KafkaError

MESSAGE_MAX_CHARS: Final = 1_000
_MILLISECOND: Final = timedelta(milliseconds=1)


def decision_timeout_ms(timeout: timedelta, config: BrokerConfig) -> int:
    """How long a client waits; older ones that name no time wait as long as others do by default."""
    timeout_ms: int = timeout // _MILLISECOND
    return timeout_ms if timeout_ms > 0 else config.request_timeout_ms


def message_of(error: KafkaError) -> str | None:
    """The message for a response: it may quote as much as a string holds, and must fit one itself."""
    message = error.message
    if message is None or len(message) <= MESSAGE_MAX_CHARS:
        return message
    return f"{message[:MESSAGE_MAX_CHARS]}…"


def error_fields(error: KafkaError | None) -> Fields:
    """The error of one item, or none."""
    if error is None:
        return {"error_code": ErrorCode.none, "error_message": None}
    return {"error_code": error.code, "error_message": message_of(error)}
