"""Patterns of transactional ids, in RE2's syntax, which Kafka's engine shares.

Owns: what a valid pattern is and how much memory one may take. Does not own: what is looked for with it.
Invariant: a match takes time in proportion to the id, whatever the pattern; one whose program is too large is
refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from protocol.errors import ErrorCode, KafkaError

PROGRAM_BYTES_MAX: Final = 1 << 20


def matcher(pattern: str | None) -> Callable[[str], bool]:
    """Return what tells whether an id matches as a whole; none, or an empty one, is matched by all."""
    if not pattern:
        return lambda transactional_id: True
    import re2  # asked for by few, and not by all brokers

    options = re2.Options()
    options.log_errors = False
    options.max_mem = PROGRAM_BYTES_MAX
    options.never_capture = True
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        raise KafkaError(ErrorCode.invalid_regular_expression, f"no pattern: {error}") from None
    return lambda transactional_id: compiled.fullmatch(transactional_id) is not None
