"""What groups that the server assigns need to know of the cluster's topics.

Owns which topic a name stands for, how many partitions it has, and the hash by which a group notices that its
topics have changed. Does not own the topics (`broker.control.image`).
Invariant: the hash of a group depends on the topics and on nothing else; two groups of the same topics have
the same one. It need not be Kafka's: a group that comes from Kafka is assigned once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from struct import Struct
from typing import Final
from uuid import UUID

from broker.control.image import Image, TopicImage
from protocol.work import Work, in_order

_HASHED_AT_ONCE: Final = 64
_HASH: Final = Struct(">q")
_PARTITION: Final = Struct(">i")


class Topics:
    """The topics of the cluster's image, as it is when asked."""

    def __init__(self, image: Callable[[], Image]) -> None:
        self._image = image
        self._hashes: dict[str, tuple[TopicImage, bytes]] = {}
        self.created_in = 0
        """The version that last brought a new topic."""

    def __repr__(self) -> str:
        return f"<Topics {len(self._hashes)} hashed>"

    @property
    def version(self) -> int:
        return self._image().seq

    def names(self) -> list[str]:
        return list(self._image().topics)

    def id_of(self, name: str) -> UUID | None:
        topic = self._image().topics.get(name)
        return None if topic is None else topic.id

    def name_of(self, topic_id: UUID) -> str | None:
        return self._image().topic_names.get(topic_id)

    def partitions_of(self, topic_id: UUID) -> int:
        """Return how many partitions it has; none, if it is gone."""
        topic = self._image().topic_by_id(topic_id)
        return 0 if topic is None else len(topic.partitions)

    def ids_of(self, names: Iterable[str]) -> Iterator[UUID]:
        for name in names:
            topic_id = self.id_of(name)
            if topic_id is not None:
                yield topic_id

    def forget(self, names: Iterable[str]) -> None:
        """Drop what was kept of topics that have gone."""
        for name in names:
            self._hashes.pop(name, None)

    def hash_of(self, names: Iterable[str]) -> Work[int]:
        """Return the hash of those of the topics that exist; 0 for none."""
        found = []
        for at, name in enumerate((yield from in_order(names)), 1):
            topic = self._image().topics.get(name)
            if topic is not None:
                found.append((yield from self._hash_of_one(topic)))
            if at % _HASHED_AT_ONCE == 0:
                yield
        if not found:
            return 0
        (value,) = _HASH.unpack(blake2b(b"".join(found), digest_size=_HASH.size).digest())
        return int(value)

    def _hash_of_one(self, topic: TopicImage) -> Work[bytes]:
        known = self._hashes.get(topic.name)
        if known is not None and known[0] is topic:
            return known[1]
        brokers = self._image().brokers
        hashed = blake2b(topic.id.bytes, digest_size=_HASH.size)
        hashed.update(topic.name.encode())
        for at, partition in enumerate(topic.partitions, 1):
            racks = sorted(
                broker.rack or "" for broker in map(brokers.get, partition.replicas) if broker is not None
            )
            hashed.update(_PARTITION.pack(at) + "\0".join(racks).encode())
            if at % _HASHED_AT_ONCE == 0:
                yield
        self._hashes[topic.name] = topic, hashed.digest()
        return self._hashes[topic.name][1]
