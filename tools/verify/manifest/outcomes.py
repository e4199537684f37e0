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

REFUSED_AT_FIRST: Final = frozenset(
    {
        2,  # CORRUPT_MESSAGE
        3,  # UNKNOWN_TOPIC_OR_PARTITION
        5,  # LEADER_NOT_AVAILABLE
        19,  # NOT_ENOUGH_REPLICAS
    }
)
"""This attempt was not appended; one before it, whose answer was lost, may have been."""


def outcome_of(error_code: int, *, is_retried: bool) -> Outcome:
    """Judge a broker's last answer.

    A timeout (7), NOT_LEADER_OR_FOLLOWER (6), NOT_ENOUGH_REPLICAS_AFTER_APPEND (20), KAFKA_STORAGE_ERROR (56)
    and whatever is not listed leave it open whether the record is there.
    """
    if error_code in ALWAYS_REFUSED or (error_code in REFUSED_AT_FIRST and not is_retried):
        return Outcome.FAIL
    return Outcome.UNKNOWN
