"""The frame of a slot of the cluster's metadata log: one object `meta/<seq>`.

Owns: the frame, its checksum and the hash that chains the slots. Does not own: what the records of a slot
mean (broker/control), where it is put.
Invariant: a slot with a flipped bit, cut or with records that do not add up is BadRecord.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from struct import Struct

from protocol.checksum import crc32c
from protocol.primitives import Buffer
from protocol.stored.schema import BadRecord
from protocol.work import Work, finish

RECORDS_PER_PIECE = 64
HASHED_PER_PIECE = 1 << 16

_SLOT_MAGIC = b"TWM1"
_SLOT_CRC = Struct(">4sI")
_SLOT_HEAD = Struct(">QI16s32sI")
_SLOT_RECORD = Struct(">I")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One object `meta/<seq>`: a batch of records, which controller wrote it, and what came before."""

    seq: int
    controller_epoch: int
    put_id: bytes
    """16 bytes that tell our own write from another's when the answer was lost."""
    previous_hash: bytes
    """32 bytes: `slot_hash` of the slot before."""
    records: tuple[bytes, ...] = ()


def encode_slot(slot: Slot) -> bytes:
    return finish(encoding_slot(slot))


def encoding_slot(slot: Slot) -> Work[bytes]:
    """Encode it in turns: a snapshot holds a record for each topic."""
    assert len(slot.put_id) == 16, slot.put_id
    assert len(slot.previous_hash) == 32, slot.previous_hash
    body = bytearray(
        _SLOT_HEAD.pack(slot.seq, slot.controller_epoch, slot.put_id, slot.previous_hash, len(slot.records))
    )
    for at, record in enumerate(slot.records, 1):
        body += _SLOT_RECORD.pack(len(record))
        body += record
        if at % RECORDS_PER_PIECE == 0:
            yield
    return _SLOT_CRC.pack(_SLOT_MAGIC, crc32c(body)) + body


def decode_slot(data: Buffer) -> Slot:
    """The slot; BadRecord for anything but exactly what `encode_slot` makes."""
    return finish(decoding_slot(data))


def decoding_slot(data: Buffer) -> Work[Slot]:
    """Decode it in turns, as `decode_slot` does at once."""
    body_at = _SLOT_CRC.size
    at = body_at + _SLOT_HEAD.size
    if len(data) < at:
        raise BadRecord(f"slot of {len(data)} bytes")
    magic, crc = _SLOT_CRC.unpack_from(data)
    if magic != _SLOT_MAGIC:
        raise BadRecord(f"slot starts with {magic!r}")
    if crc32c(memoryview(data)[body_at:]) != crc:
        raise BadRecord("slot fails its CRC")
    seq, controller_epoch, put_id, previous_hash, count = _SLOT_HEAD.unpack_from(data, body_at)
    records = []
    for number in range(count):
        if number % RECORDS_PER_PIECE == RECORDS_PER_PIECE - 1:
            yield
        if len(data) - at < _SLOT_RECORD.size:
            raise BadRecord("slot is cut inside its records")
        (size,) = _SLOT_RECORD.unpack_from(data, at)
        at += _SLOT_RECORD.size
        if len(data) - at < size:
            raise BadRecord("slot is cut inside a record")
        records.append(bytes(data[at : at + size]))
        at += size
    if at != len(data):
        raise BadRecord(f"{len(data) - at} bytes after the last record of a slot")
    return Slot(
        seq=seq,
        controller_epoch=controller_epoch,
        put_id=put_id,
        previous_hash=previous_hash,
        records=tuple(records),
    )


def slot_hash(data: Buffer) -> bytes:
    """What the next slot names as `previous_hash`; 32 zero bytes before the first."""
    return finish(hashing_slot(data))


def hashing_slot(data: Buffer) -> Work[bytes]:
    """Hash it in turns, as `slot_hash` does at once."""
    view, digest = memoryview(data), sha256()
    for at in range(0, len(view), HASHED_PER_PIECE):
        digest.update(view[at : at + HASHED_PER_PIECE])
        yield
    return digest.digest()
