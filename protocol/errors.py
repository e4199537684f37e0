"""What can be wrong: Kafka's error codes, bytes that are no request, bytes that are no record batch.

Owns: KafkaError, the answer a client gets; MalformedRequest, which closes the connection without an answer;
CorruptBatch. Does not own: which rule is broken.
Invariant: a code is chosen where the rule it states is checked, and turned into a response in one place.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

__all__ = [
    "CorruptBatch",
    "ErrorCode",
    "FrameTooLarge",
    "KafkaError",
    "MalformedRequest",
    "TooManyRows",
    "error_code",
]


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


class TooManyRows(MalformedRequest):
    """A message with more rows than it may have: structs and items of arrays, nested ones counted."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.rows = rows

    def __str__(self) -> str:
        return f"{self.rows} rows or more"


class FrameTooLarge(MalformedRequest):
    """A frame whose size is negative or above the limit."""


class CorruptBatch(Exception):
    """Bytes that are no record batch: where they start and why."""

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(at, reason)
        self.at = at
        self.reason = reason

    def __str__(self) -> str:
        return f"at {self.at}: {self.reason}"


def error_code(value: int) -> ErrorCode:
    """The code for a number a peer sent; unknown numbers are unknown_server_error, as in Kafka's clients."""
    try:
        return ErrorCode(value)
    except ValueError:
        return ErrorCode.unknown_server_error
