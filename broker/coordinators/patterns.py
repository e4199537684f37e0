"""Regular expressions of clients, in RE2's syntax, which Kafka's engine shares.

Owns: what a valid one is, and how much time and memory it may take. Does not own: what is looked for with
it, nor what a client is told of one that is not valid. Invariant: to compile one takes at most about 10 ms,
which nothing interrupts; a match takes time in proportion to the text, whatever the expression.

RE2 bounds the program by its memory, and takes most of the time before it has one for what names many classes
of Unicode, each of which is some hundred ranges, and for repetitions, which it writes out.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

import re2

PROGRAM_BYTES_MAX: Final = 512 << 10
CLASSES_MAX: Final = 64
REPETITIONS_MAX: Final = 2_000
"""The sum of what all counted repetitions allow."""
TOO_LARGE: Final = "pattern too large - compile failed"
"""As RE2 says it."""
_COMPILED_MAX: Final = 128
_CLASS: Final = re.compile(r"\\[pP]")
_REPETITION: Final = re.compile(r"\{(\d{1,9})(?:,(\d{0,9}))?\}")


class InvalidPattern(Exception):
    """RE2's reason."""


@lru_cache(maxsize=_COMPILED_MAX)
def compiled(pattern: str) -> Any:
    """Return the expression; raise InvalidPattern."""
    if _is_long_work(pattern):
        raise InvalidPattern(TOO_LARGE)
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PROGRAM_BYTES_MAX
    options.never_capture = True
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
    raise InvalidPattern(text)


def _is_long_work(pattern: str) -> bool:
    repetitions = sum(max(map(int, filter(None, each.groups()))) for each in _REPETITION.finditer(pattern))
    return repetitions > REPETITIONS_MAX or len(_CLASS.findall(pattern)) > CLASSES_MAX
