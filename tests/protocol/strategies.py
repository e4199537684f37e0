"""Values that requests are drawn from, and the request a peer sends as the generated reader reads it."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from protocol.apis import Api
from protocol.messages import decode_request, encode_request
from protocol.wire import parse_head

names = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=20)
ids = st.uuids().filter(lambda value: value.int != 0)
indexes = st.integers(0, 2**31 - 1)
int64s = st.integers(-1, 2**63 - 1)
epochs = st.integers(-1, 2**31 - 1)
produce_versions = st.integers(3, 13)
fetch_versions = st.integers(4, 18)


def request_of(api: Api, version: int, fields: dict[str, Any]) -> tuple[memoryview, int, Any]:
    frame = memoryview(bytearray(encode_request(api, version, 5, "client", fields)))[4:]
    body_at = parse_head(frame).body_at
    return frame, body_at, decode_request(api, version, frame[body_at:])
