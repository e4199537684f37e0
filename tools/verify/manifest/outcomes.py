"""What an error says of a send: refused for certain, or nobody knows.

Owns that judgement, by Kafka's error codes. Does not own clients' exceptions (confluent, aiokafka).
Invariant: a send counts as failed only when no attempt at it can have been appended; in doubt it is unknown.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Outcome(IntEnum):
    OK = 0
    FAIL = 1
    UNKNOWN = 2


ALWAYS_REFUSED: Final = frozenset(
    {
        10,  # MESSAGE_TOO_LARGE
        17,  # INVALID_TOPIC_EXCEPTION
        18,  # RECORD_LIST_TOO_LARGE
        21,  # INVALID_REQUIRED_ACKS
        29,  # TOPIC_AUTHORIZATION_FAILED
        31,  # CLUSTER_AUTHORIZATION_FAILED
        32,  # INVALID_TIMESTAMP
        43,  # UNSUPPORTED_FOR_MESSAGE_FORMAT
        44,  # POLICY_VIOLATION
        76,  # UNSUPPORTED_COMPRESSION_TYPE
        87,  # INVALID_RECORD
    }
)
"""What is wrong with the record itself, which each attempt finds: none was appended."""


def outcome_of(error_code: int) -> Outcome:
    """Judge a broker's last answer.

    Whatever is not listed leaves it open whether the record is there: NOT_ENOUGH_REPLICAS (19) and the like
    say that this attempt was not appended, but one before it, whose answer was lost or came from a leader
    that was one no more, may have been. librdkafka makes such attempts with `retries` 0 too.
    """
    return Outcome.FAIL if error_code in ALWAYS_REFUSED else Outcome.UNKNOWN
