"""What can be wrong with what a peer sends: Kafka's error codes, and bytes that are no request at all.

Owns: KafkaError, the answer a client gets; MalformedRequest, which closes the connection without an answer.
Does not own: what is wrong with stored bytes (records.CorruptBatch).
Invariant: a code is chosen where the rule it states is checked, and turned into a response in one place.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

__all__ = ["ErrorCode", "FrameTooLarge", "KafkaError", "MalformedRequest", "error_code", "is_retriable"]


class KafkaError(Exception):
    """An answer with an error code, on its way to the client."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return self.code.name if self.message is None else f"{self.code.name}: {self.message}"


class MalformedRequest(Exception):
    """Bytes that are no message of the version they claim. Kafka closes the connection; so do we."""


class FrameTooLarge(MalformedRequest):
    """A frame whose size is negative or above the limit."""


def is_retriable(code: ErrorCode) -> bool:
    return code.retriable


def error_code(value: int) -> ErrorCode:
    """The code for a number a peer sent; unknown numbers are unknown_server_error, as in Kafka's clients."""
    try:
        return ErrorCode(value)
    except ValueError:
        return ErrorCode.unknown_server_error
