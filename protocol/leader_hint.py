"""The current leader, as Produce and Fetch responses tell it to a client that asked another broker (KIP-951).

Owns: the hint and its bytes. Does not own: which broker leads, which errors come with a hint.
Invariant: what is packed here is what the generated message types read (the property tests of produce.py and
fetch.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Final, NamedTuple

from protocol.primitives import INT32, NO_TAGS, pack_text, pack_uvarint

LEADER: Final = Struct(">ii")
"""The leader's id and its epoch."""


class Hint(NamedTuple):
    """The current leader, -1 for none, sent with NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH (KIP-951)."""

    leader_id: int
    leader_epoch: int
    address: Address | None
    """None where the client's listener does not reach it."""


class Address(NamedTuple):
    host: str
    port: int
    rack: str | None


def pack_leader(tag: int, hint: Hint | None) -> bytes:
    if hint is None:
        return NO_TAGS
    return b"\x01" + bytes((tag, 9)) + LEADER.pack(hint.leader_id, hint.leader_epoch) + NO_TAGS


def pack_endpoints(addresses: Mapping[int, Address]) -> bytes:
    if not addresses:
        return NO_TAGS
    out = [pack_uvarint(len(addresses) + 1)]
    for node_id, address in addresses.items():
        out.append(INT32.pack(node_id))
        out.append(pack_text(address.host, True))
        out.append(INT32.pack(address.port))
        out.append(pack_text(address.rack, True))
        out.append(NO_TAGS)
    body = b"".join(out)
    return b"\x01\x00" + pack_uvarint(len(body)) + body
