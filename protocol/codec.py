"""A codec for any message that a kio-style dataclass describes, compiled from it on first use.

Owns: one codec for each class, and its bounds. Does not own: how fields are read and written (coding), which
schema an API's version has (messages.py), headers and framing (wire.py), Produce and Fetch by hand
(produce.py, fetch.py).

Reading gives kio's dataclasses, or the class of the same name in a module of classes (attribute names are
kio's: `timeout` is a timedelta). Writing takes `Fields`: nested dictionaries under kio's attribute names,
written once for all versions. Keys the version lacks are dropped, absent ones get the schema's default, a
required one that is missing is a bug and raises. Milliseconds may be given where kio has timedelta or
datetime, ints where it has enums.

Invariant: whatever the bytes, decoding gives a value or MalformedRequest, in memory bounded by the bytes'
length.

Large messages are read and written in turns (`protocol.work`), with the same results and errors: whatever an
array or a long field takes is cut into pieces of about 50 µs. A reader or writer in turns is made only for
what can be long; the plain one of a field that is always short serves both forms.

kio has a reader and a writer, but its native reader allocates what an array's count field asks for before it
looks at the bytes: five bytes from anybody abort the process. It also rejects tagged fields it does not know,
which Kafka skips (KIP-482), and copies record sets, which here are views on the frame for the log to stamp
in place. kio's writer takes three times as long and needs the dataclasses built first.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import error as StructError
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from protocol.coding.reading import Cursor, entity_reader
from protocol.coding.reading_in_turns import entity_reader_in_turns
from protocol.coding.schema import struct_schema
from protocol.coding.writing import entity_writer
from protocol.coding.writing_in_turns import Pieces, entity_writer_in_turns
from protocol.errors import MalformedRequest
from protocol.primitives import Buffer
from protocol.work import Work

if TYPE_CHECKING:
    from kio.static.protocol import Entity

Fields: TypeAlias = Mapping[str, Any]

ELEMENTS_MAX = 1 << 18
"""Structs, or eights of plain array items, in one message, if a codec is given no other bound; each takes
about 3 µs of the loop."""


class EntityCodec:
    """Reader and writer of one kio dataclass, or of any with the same metadata (see stored).

    Decoding gives the class itself, or the one of its name in `classes`, and so for the structs inside.
    """

    __slots__ = ("_elements_max", "_read", "_read_in_turns", "_write_in_turns", "schema", "write")

    def __init__(
        self,
        cls: type[Entity],
        elements_max: int = ELEMENTS_MAX,
        classes: ModuleType | None = None,
    ) -> None:
        self.schema = struct_schema(cls)
        self._elements_max = elements_max
        self._read = entity_reader(cls, classes)
        self._read_in_turns = entity_reader_in_turns(cls, classes)
        self.write = entity_writer(cls)
        self._write_in_turns = entity_writer_in_turns(cls)

    def __repr__(self) -> str:
        return f"EntityCodec({self.schema.cls.__module__}.{self.schema.cls.__name__})"

    @property
    def is_short(self) -> bool:
        return self._write_in_turns is None

    def decode(self, body: Buffer) -> Any:
        """Return the value that `body` starts with."""
        cursor = Cursor(memoryview(body), self._elements_max)
        try:
            return self._read(cursor)
        except (StructError, OverflowError) as error:
            raise MalformedRequest(f"{self.schema.cls.__name__} at {cursor.at}: {error}") from error

    def decode_in_turns(self, body: Buffer, *, rows_max: int, kept: list[Any]) -> Work[Any]:
        """Return what `decode` does, or raise TooManyRows before anything is made of the row too many.

        Whatever is an item of an array also goes to `kept`, for the caller to let go of it in turns.
        """
        cursor = Cursor(memoryview(body), self._elements_max, rows_max, kept)
        try:
            if self._read_in_turns is None:
                return self._read(cursor)
            return (yield from self._read_in_turns(cursor))
        except (StructError, OverflowError) as error:
            raise MalformedRequest(f"{self.schema.cls.__name__} at {cursor.at}: {error}") from error

    def encode(self, fields: Fields) -> bytes:
        out = bytearray()
        self.write(out, fields)
        return bytes(out)

    def encode_in_turns(self, fields: Fields, kept: list[Any]) -> Work[list[bytes]]:
        """Return what `encode` does, in pieces. Items of arrays go to `kept`, as in `decode_in_turns`."""
        out = Pieces(kept)
        if self._write_in_turns is None:
            self.write(out.data, fields)
        else:
            yield from self._write_in_turns(out, fields)
        return out.end()
