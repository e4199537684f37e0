"""The requests and responses of every API and version.

Owns: which schema a version has, reading and writing whole messages. Does not own: how bytes and values map
(codec.py), the framing (wire.py), Produce and Fetch as the broker reads and packs them (produce.py and
fetch.py).

Requests are decoded to the classes of protocol.requests, which have the fields of all versions; responses to
kio's dataclasses, of which `get` asks for a field that some versions lack. Writing takes `Fields` for any
version.
Invariant: a version that is not served has no codec; nothing of a version is loaded before it is first used.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import cache
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from kio.static.constants import EntityType

from protocol.apis import KNOWN, is_supported, request_header_version, response_header_version
from protocol.codec import ELEMENTS_MAX, EntityCodec, Fields
from protocol.coding.schema import Schema, struct_schema
from protocol.coding.writing_in_turns import PIECE_BYTES
from protocol.errors import MalformedRequest
from protocol.peers import EXTENDED
from protocol.primitives import NO_LIMIT, Buffer, pack_text, skip_tags
from protocol.work import Work

if TYPE_CHECKING:
    from kio.static.protocol import Entity

Kind: TypeAlias = Literal["request", "response"]

_REQUEST_HEAD = Struct(">ihhi")
_RESPONSE_HEAD = Struct(">ii")
_INT32 = Struct(">i")

_ELEMENTS_MAX: dict[Kind, int] = {"request": ELEMENTS_MAX, "response": 1 << 22}
"""Metadata for 200,000 partitions passes; what a broker answers to our own questions may be larger."""


def get(entity: Any, name: str, default: Any = None) -> Any:
    """Return a field of a decoded response that its version may lack."""
    return getattr(entity, name, default)


def decode_request(api_key: int, version: int, body: memoryview) -> Any:
    """Return the request whose header `wire.parse_head` has read. Bytes after it are ignored, as in Kafka."""
    return codec(api_key, version, "request").decode(body)


def encode_response(api_key: int, version: int, correlation_id: int, fields: Fields) -> bytes:
    """Return the whole frame: size, header, body."""
    out = bytearray(_RESPONSE_HEAD.pack(0, correlation_id))
    if response_header_version(api_key, version) == 1:
        out.append(0)
    codec(api_key, version, "response").write(out, fields)
    _INT32.pack_into(out, 0, len(out) - 4)
    return bytes(out)


def is_short_response(api_key: int, version: int) -> bool:
    """Whether there is nothing in this response that could be long, as no array can."""
    return codec(api_key, version, "response").is_short


def decode_request_in_turns(
    api_key: int, version: int, body: memoryview, *, rows_max: int, kept: list[Any]
) -> Work[Any]:
    """Return what `decode_request` does; see `EntityCodec.decode_in_turns`."""
    return codec(api_key, version, "request").decode_in_turns(body, rows_max=rows_max, kept=kept)


def encode_response_in_turns(
    api_key: int, version: int, correlation_id: int, fields: Fields, kept: list[Any]
) -> Work[list[bytes]]:
    """Return what `encode_response` does, in pieces; see `EntityCodec.encode_in_turns`."""
    pieces = yield from codec(api_key, version, "response").encode_in_turns(fields, kept)
    tags = b"\x00" if response_header_version(api_key, version) == 1 else b""
    size = _RESPONSE_HEAD.size - 4 + len(tags) + sum(map(len, pieces))
    head = _RESPONSE_HEAD.pack(size, correlation_id) + tags
    if pieces and len(pieces[0]) <= PIECE_BYTES * 2:
        pieces[0] = head + pieces[0]
    else:
        pieces.insert(0, head)
    return pieces


def encode_request(
    api_key: int, version: int, correlation_id: int, client_id: str | None, fields: Fields
) -> bytes:
    """Return the whole frame: size, header, body."""
    return bytes(request_frame(api_key, version, correlation_id, client_id, fields))


def request_frame(
    api_key: int, version: int, correlation_id: int, client_id: str | None, fields: Fields
) -> bytearray:
    """`encode_request` for what may be large and is written at once: not copied."""
    out = bytearray(_REQUEST_HEAD.pack(0, api_key, version, correlation_id))
    out += pack_text(client_id, False)
    if request_header_version(api_key, version) == 2:
        out.append(0)
    codec(api_key, version, "request").write(out, fields)
    _INT32.pack_into(out, 0, len(out) - 4)
    return out


def encode_request_in_turns(
    api_key: int,
    version: int,
    correlation_id: int,
    client_id: str | None,
    fields: Fields,
    kept: list[Any],
) -> Work[list[bytes]]:
    """Return what `encode_request` does without its size, in pieces; see `EntityCodec.encode_in_turns`."""
    head = _REQUEST_HEAD.pack(0, api_key, version, correlation_id)[4:] + pack_text(client_id, False)
    if request_header_version(api_key, version) == 2:
        head += b"\x00"
    pieces = yield from codec(api_key, version, "request").encode_in_turns(fields, kept)
    return [head, *pieces]


def decode_response(api_key: int, version: int, frame: Buffer) -> tuple[int, Any]:
    """Return (correlation id, response) of a frame without its size. Record sets are views on the frame."""
    correlation_id, body = _response_body(api_key, version, frame)
    return correlation_id, codec(api_key, version, "response").decode(body)


def decode_response_in_turns(
    api_key: int, version: int, frame: Buffer, kept: list[Any]
) -> Work[tuple[int, Any]]:
    """Return what `decode_response` does; see `EntityCodec.decode_in_turns`."""
    correlation_id, body = _response_body(api_key, version, frame)
    one = codec(api_key, version, "response")
    return correlation_id, (yield from one.decode_in_turns(body, rows_max=NO_LIMIT, kept=kept))


def _response_body(api_key: int, version: int, frame: Buffer) -> tuple[int, memoryview]:
    view = memoryview(frame)
    try:
        (correlation_id,) = _INT32.unpack_from(view)
    except StructError as error:
        raise MalformedRequest(f"response header: {error}") from error
    at = skip_tags(view, 4) if response_header_version(api_key, version) == 1 else 4
    return correlation_id, view[at:]


def entity(api_key: int, version: int, fields: Fields, kind: Kind = "request") -> Any:
    """Return the message of these fields, as a peer would decode it."""
    one = codec(api_key, version, kind)
    return one.decode(memoryview(one.encode(fields)))


def load(api_key: int, version: int) -> None:
    """Load what decodes and encodes this version now rather than on first use."""
    codec(api_key, version, "request")
    codec(api_key, version, "response")


def unknown_fields(api_key: int, kind: Kind, fields: Fields) -> list[str]:
    """Return dotted names of keys that no version of this API has: misspelt by a handler. For tests: it loads
    every version.
    """
    row = KNOWN[api_key]
    versions = range(row.served_from, row.max_version + 1)
    return _unknown([codec(api_key, version, kind).schema for version in versions], fields, "")


@cache
def codec(api_key: int, version: int, kind: Kind) -> EntityCodec:
    """Return what decodes and encodes this message; requests decode to the classes of protocol.requests."""
    cls = message_class(api_key, version, kind)
    classes = None
    if kind == "request":
        classes = importlib.import_module(f"{__package__}.requests.{KNOWN[api_key].kio_name}")
    return EntityCodec(cls, _ELEMENTS_MAX[kind], classes)


def message_class(api_key: int, version: int, kind: Kind) -> type[Entity]:
    """Return kio's dataclass of a message, the schema, or ours where the message has fields of our own."""
    if not is_supported(api_key, version):
        raise MalformedRequest(f"API {api_key} version {version} is not served")
    extended = EXTENDED.get((api_key, version, kind))
    if extended is not None:
        return extended
    module = importlib.import_module(f"kio.schema.{KNOWN[api_key].kio_name}.v{version}.{kind}")
    wanted = EntityType[kind]
    found: type[Entity] = next(c for c in vars(module).values() if getattr(c, "__type__", None) is wanted)
    return found


def _unknown(schemas: Sequence[Schema], values: Fields, path: str) -> list[str]:
    bad: list[str] = []
    for key, value in values.items():
        found = [f for schema in schemas for f in (*schema.fields, *schema.tagged) if f.name == key]
        if not found:
            bad.append(path + key)
            continue
        nested = [struct_schema(field.struct) for field in found if field.struct is not None]
        if nested:
            items = value if isinstance(value, (list, tuple)) else [value]
            for item in items:
                if isinstance(item, Mapping):
                    bad.extend(name for name in _unknown(nested, item, f"{path}{key}.") if name not in bad)
    return bad
