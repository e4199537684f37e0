"""Subscriptions by regular expression.

Owns what a client is told of one that is not valid, and which topics one matches. Does not own compiling it
(`broker.coordinators.patterns`), who is subscribed by one (`broker.coordinators.groups.consumer_group`), nor
when topics are looked through. Invariant: nothing long is done at once, but by `matched`, which is for
another thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from broker.coordinators.patterns import InvalidPattern, compiled
from protocol.errors import ErrorCode, KafkaError
from protocol.work import Work, in_order

logger = logging.getLogger(__name__)

_TOPICS_AT_ONCE: Final = 24
_LARGE_PROGRAM: Final = 128
"""So many steps each character of a name may take where RE2's cache runs full: no work for the loop."""
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
        compiled(regex)
    except InvalidPattern as error:
        text = str(error)
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
    return bool(compiled(regex).programsize > _LARGE_PROGRAM)


def by_size(regexes: Iterable[str]) -> Work[tuple[list[str], list[str]]]:
    """Return those that are work for the loop, and the large ones."""
    small: list[str] = []
    large: list[str] = []
    for regex in regexes:
        # Compiling one may take as long as a turn.
        yield
        try:
            (large if is_large(regex) else small).append(regex)
        except InvalidPattern as error:
            logger.error("the expression %r of a group matches nothing here: %s", regex, error)
            small.append(regex)
    return small, large


def matched(regex: str, topics: Iterable[str]) -> tuple[str, ...]:
    """Return the topics that the expression matches as a whole, in order, however long that takes."""
    fullmatch = compiled(regex).fullmatch
    return tuple(name for name in sorted(topics) if fullmatch(name) is not None)


def matching(regexes: Iterable[str], topics: Iterable[str]) -> Work[dict[str, tuple[str, ...]]]:
    """Return the topics that each expression matches as a whole, in order; none of them is large. What is no
    expression here, though the broker that stored it took it for one, matches nothing.
    """
    names = yield from in_order(topics)
    found: dict[str, tuple[str, ...]] = {}
    for regex in regexes:
        yield
        matches = []
        found[regex] = ()
        try:
            fullmatch = compiled(regex).fullmatch
        except InvalidPattern:
            continue
        for at, name in enumerate(names, 1):
            if fullmatch(name) is not None:
                matches.append(name)
            if at % _TOPICS_AT_ONCE == 0:
                yield
        found[regex] = tuple(matches)
    return found
