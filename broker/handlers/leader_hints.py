"""Where a client should go that asked a broker which does not lead.

Owns: the hint of KIP-951 in answers to Produce and Fetch. Does not own: which answers carry one, or how it is
packed. Invariant: an address is given only of a broker that is alive, on the listener that the client uses.
"""

from __future__ import annotations

from uuid import UUID

from broker.control.image import Image
from protocol.leader_hint import Address, Hint
from protocol.primitives import TopicKey


def leader_hint(image: Image, topic: TopicKey, index: int, listener: str) -> Hint | None:
    """The leader, and its address on the listener that the client came by; None of an unknown partition."""
    name = image.topic_names.get(topic) if isinstance(topic, UUID) else topic
    found = None if name is None else image.partition(name, index)
    if found is None:
        return None
    leader = image.brokers.get(found.leader)
    endpoint = None if leader is None or leader.fenced else leader.endpoint(listener)
    address = None
    if leader is not None and endpoint is not None:
        address = Address(endpoint.host, endpoint.port, leader.rack)
    return Hint(found.leader, found.leader_epoch, address)
