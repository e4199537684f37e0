"""Subscriptions by regular expression, in RE2's syntax, which Kafka's engine shares.

Owns what a valid expression is, how much memory one may take, and which topics it matches. Does not own who
is subscribed by one (`broker.coordinators.groups.consumer_group`), nor when topics are looked through.
Invariant: a match takes time in proportion to the topic's name, whatever the expression; an expression whose
program is too large is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

import re2

from protocol.errors import ErrorCode, KafkaError
from protocol.work import Work

logger = logging.getLogger(__name__)

PROGRAM_BYTES_MAX: Final = 1 << 20
_TOPICS_AT_ONCE: Final = 24
_LARGE_PROGRAM: Final = 128
"""So many steps each character of a name may take where RE2's cache runs full: no work for the loop."""
_COMPILED_MAX: Final = 128
_AS_KAFKA_SAYS: Final = {
    "missing ]": "missing closing ]",
    "missing )": "missing closing )",
    "unexpected )": "regexp/syntax: internal error",
    "no argument for repetition operator": "missing argument to repetition operator",
    "invalid repetition size": "invalid repeat count",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid named capture group": "invalid named capture",
    "trailing \\": "trailing backslash at end of expression",
}


def check_regex(regex: str) -> None:
    """Raise KafkaError unless it is a regular expression of RE2."""
    try:
        _compile(regex)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        kind = text.partition(":")[0]
        if text.startswith("invalid perl operator: (?<"):
            kind = "invalid named capture group"
        raise KafkaError(
            ErrorCode.invalid_regular_expression,
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: "
            f"{_AS_KAFKA_SAYS.get(kind, kind)}.",
        ) from None


def is_large(regex: str) -> bool:
    """Whether to match it in another thread, which RE2 lets run beside the loop."""
    return bool(_compile(regex).programsize > _LARGE_PROGRAM)


def by_size(regexes: Iterable[str]) -> Work[tuple[list[str], list[str]]]:
    """Return those that are work for the loop, and the large ones."""
    small: list[str] = []
    large: list[str] = []
    for regex in regexes:
        # Compiling one may take as long as a turn.
        yield
        try:
            (large if is_large(regex) else small).append(regex)
        except re2.error as error:
            logger.error("the expression %r of a group matches nothing here: %s", regex, error)
            small.append(regex)
    return small, large


def matched(regex: str, topics: Iterable[str]) -> tuple[str, ...]:
    """Return the topics that the expression matches as a whole, in order, however long that takes."""
    fullmatch = _compile(regex).fullmatch
    return tuple(name for name in sorted(topics) if fullmatch(name) is not None)


def matching(regexes: Iterable[str], topics: Iterable[str]) -> Work[dict[str, tuple[str, ...]]]:
    """Return the topics that each expression matches as a whole, in order; none of them is large. What is no
    expression here, though the broker that stored it took it for one, matches nothing.
    """
    names = sorted(topics)
    found: dict[str, tuple[str, ...]] = {}
    for regex in regexes:
        yield
        matches = []
        found[regex] = ()
        try:
            fullmatch = _compile(regex).fullmatch
        except re2.error:
            continue
        for at, name in enumerate(names, 1):
            if fullmatch(name) is not None:
                matches.append(name)
            if at % _TOPICS_AT_ONCE == 0:
                yield
        found[regex] = tuple(matches)
    return found


@lru_cache(maxsize=_COMPILED_MAX)
def _compile(regex: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PROGRAM_BYTES_MAX
    options.never_capture = True
    return re2.compile(regex, options)
