"""Ids of topics, directories and copies, as Kafka writes them: 22 characters of base64 for URLs, no padding.

Owns: that text, there and back. Does not own: how an id is drawn. Invariant: each id has one text; any other
that would decode to it is refused, so two names never stand for one thing.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from uuid import UUID


def encode_id(value: UUID) -> str:
    return urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def decode_id(text: str) -> UUID:
    """Return the id; ValueError for any other text than `encode_id` makes."""
    data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(data) != 16 or encode_id(found := UUID(bytes=data)) != text:
        raise ValueError(f"not an id: {text!r}")
    return found
