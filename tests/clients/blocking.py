"""A client that hides nothing: one socket, one request at a time, no retries, every answer as it came.

Owns framing on a blocking socket and the few requests the tests need. Does not own retries or metadata:
a test wants to see exactly what one request led to.
"""

from __future__ import annotations

import socket
from itertools import count
from types import TracebackType
from typing import Any, Self

from protocol import messages
from protocol.apis import Api

PRODUCE_VERSION = 9
FETCH_VERSION = 12
FETCH_BYTES_MAX = 1 << 20


class BlockingClient:
    def __init__(self, bootstrap: str, *, timeout_s: float = 20.0) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_ids = count(1)
        self._got = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def call(self, api: Api, version: int, **fields: Any) -> Any:
        correlation_id = next(self._correlation_ids)
        self.socket.sendall(messages.encode_request(api, version, correlation_id, "raw", fields))
        answered, response = messages.decode_response(api, version, self.frame())
        assert answered == correlation_id
        return response

    def post(self, api: Api, version: int, **fields: Any) -> None:
        """Send and expect nothing."""
        request = messages.encode_request(api, version, next(self._correlation_ids), "raw", fields)
        self.socket.sendall(request)

    def frame(self) -> bytes:
        """The next response without its size; ConnectionError when the broker closed instead. May be called
        again after a TimeoutError: what had come is kept.
        """
        self._receive(4)
        end = 4 + int.from_bytes(self._got[:4], "big")
        self._receive(end)
        frame = bytes(self._got[4:end])
        del self._got[:end]
        return frame

    def _receive(self, size: int) -> None:
        while len(self._got) < size:
            piece = self.socket.recv(1 << 16)
            if not piece:
                raise ConnectionError("closed by the broker")
            self._got += piece

    def produce(self, topic: str, partition: int, batch: bytes, *, acks: int = -1) -> Any:
        """The partition's part of the answer."""
        answer = self.call(Api.PRODUCE, PRODUCE_VERSION, **produce_fields(topic, partition, batch, acks=acks))
        return answer.responses[0].partition_responses[0]

    def fetch(
        self, topic: str, partition: int, offset: int, *, max_bytes: int = FETCH_BYTES_MAX, wait_ms: int = 0
    ) -> Any:
        """The partition's part of the answer."""
        answer = self.call(
            Api.FETCH,
            FETCH_VERSION,
            replica_id=-1,
            max_wait=wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[
                {
                    "topic": topic,
                    "partitions": [
                        {
                            "partition": partition,
                            "current_leader_epoch": -1,
                            "fetch_offset": offset,
                            "last_fetched_epoch": -1,
                            "log_start_offset": -1,
                            "partition_max_bytes": max_bytes,
                        }
                    ],
                }
            ],
            forgotten_topics_data=[],
            rack_id="",
        )
        return answer.responses[0].partitions[0]

    def read_bytes(self, topic: str, partition: int, offset: int = 0) -> bytes:
        """All batches from `offset` to the high watermark, as they came."""
        read = bytearray()
        while True:
            part = self.fetch(topic, partition, offset)
            assert part.error_code == 0, part.error_code
            if not part.records or offset >= part.high_watermark:
                return bytes(read)
            for header_at, size in batch_bounds(part.records):
                read += part.records[header_at : header_at + size]
                base = int.from_bytes(part.records[header_at : header_at + 8], "big")
                offset = base + int.from_bytes(part.records[header_at + 23 : header_at + 27], "big") + 1


def batch_bounds(data: bytes) -> list[tuple[int, int]]:
    """(position, size) of every whole batch; a fetch may end in a part of one."""
    bounds, at = [], 0
    while at + 12 <= len(data):
        size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        if at + size > len(data):
            break
        bounds.append((at, size))
        at += size
    return bounds


def produce_fields(topic: str, partition: int, batch: bytes, *, acks: int) -> dict[str, Any]:
    return {
        "transactional_id": None,
        "acks": acks,
        "timeout": 10_000,
        "topic_data": [{"name": topic, "partition_data": [{"index": partition, "records": batch}]}],
    }
