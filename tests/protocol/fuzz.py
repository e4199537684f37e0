"""What every decoder promises for arbitrary bytes, as functions a fuzzer can call.

A target takes bytes and returns, or raises something the decoder does not promise: that is a finding.
hypothesis calls them in every test run; `python -m tests.protocol.fuzz TARGET [libFuzzer options]` lets
atheris explore.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from protocol import messages, records, wire
from protocol.apis import SERVED
from protocol.checksum import crc32c
from protocol.compression import Codec, decompress
from protocol.errors import CorruptBatch, KafkaError, MalformedRequest
from protocol.stored.consumer import decode_assignment, decode_subscription, subscribed_topics
from protocol.stored.offsets import decode_coordinator_record
from protocol.stored.schema import BadRecord
from protocol.stored.slots import decode_slot


def request(data: bytes) -> None:
    """A frame as a client may send it."""
    try:
        head = wire.parse_head(data)
        messages.decode_request(head.api_key, head.api_version, memoryview(data)[head.body_at :])
    except MalformedRequest:
        pass


def body(data: bytes) -> None:
    """The first two bytes choose a message type, the rest is its body: finds deeper faster than `request`."""
    if len(data) < 2:
        return
    row = list(SERVED.values())[data[0] % len(SERVED)]
    version = row.served_from + data[1] % (row.max_version - row.served_from + 1)
    for kind in ("request", "response"):
        try:
            messages.codec(row.api, version, kind).decode(data[2:])
        except MalformedRequest:
            pass


def frames(data: bytes) -> None:
    """A stream cut by its own bytes gives the frames it gives in one piece, or fails like it."""
    limit = 1 << 16

    def read(cuts: list[int]) -> tuple[list[bytes], bool, int]:
        reader, got, at = wire.FrameReader(limit), [], 0
        try:
            for size in cuts:
                while size:
                    room = reader.get_buffer()
                    part = data[at : at + min(size, len(room))]
                    room[: len(part)] = part
                    at, size = at + len(part), size - len(part)
                    got += [bytes(frame) for frame in reader.received(len(part))]
        except MalformedRequest:
            pass
        return got, reader.error is not None, 0 if reader.error else reader.pending

    cuts, left = [], len(data)
    for byte in data:
        if not left:
            break
        cuts.append(min(left, byte + 1))
        left -= cuts[-1]
    assert read(cuts) == read([len(data)] if data else [])


def record_set(data: bytes) -> None:
    try:
        for at, header in records.iter_batches(data):
            for record in records.iter_records(data, at, header):
                if header.is_control:
                    records.parse_control(record)
    except CorruptBatch:
        pass
    try:
        records.check_produced(data, version=9, walk=True)
    except KafkaError:
        pass


def record_section(data: bytes) -> None:
    """The bytes behind a header whose sizes and CRC are right; the first says codec and count."""
    if not data:
        return
    batch = bytearray(records.build_batch([(None, None, [], 0)])[: records.HEADER_SIZE]) + data[1:]
    batch[8:12] = (len(batch) - records.OVERHEAD).to_bytes(4, "big")
    batch[22] = data[0] & 7
    batch[60] = data[0] >> 3
    batch[17:21] = records.crc_of(batch, 0, len(batch)).to_bytes(4, "big")
    try:
        assert sum(1 for _ in records.iter_records(batch)) == data[0] >> 3
    except CorruptBatch:
        pass


def compressed(data: bytes) -> None:
    for codec in Codec:
        try:
            assert len(decompress(codec, data, limit=1 << 20)) <= max(1 << 20, len(data))
        except CorruptBatch:
            pass


def persisted(data: bytes) -> None:
    key, value = data[: len(data) // 2], data[len(data) // 2 :]
    decoders: list[Callable[[], object]] = [
        lambda: decode_coordinator_record(key, value),
        lambda: decode_coordinator_record(data, None),
        lambda: decode_coordinator_record(b"\0\1\0\1g\0\1t\0\0\0\0", data),
        lambda: decode_coordinator_record(b"\0\2\0\1g", data),
        lambda: decode_subscription(data),
        lambda: decode_assignment(data),
        lambda: subscribed_topics(data),
        lambda: decode_slot(data),
        lambda: decode_slot(b"TWM1" + crc32c(data).to_bytes(4, "big") + data),
    ]
    for decode in decoders:
        try:
            decode()
        except BadRecord:
            pass


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (request, body, frames, record_set, record_section, compressed, persisted)
}


def main(arguments: list[str]) -> None:
    import atheris

    target = TARGETS[arguments[1]]
    atheris.instrument_all()
    atheris.Setup([arguments[0], *arguments[2:]], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv)
