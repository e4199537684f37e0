"""Write protocol/requests from kio's message schemas: `python -m tools.generate_requests` (`make requests`).

Owns: the text of those modules: one class for each request and each struct inside it, over the union of the
versions that are served. Does not own: the schemas (kio, protocol/peers.py), reading bytes into the classes
(the codec).
Invariant: the same schemas give the same text; a test compares it with what is in the tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from protocol.apis import KNOWN, ApiRow
from protocol.coding.schema import struct_schema
from protocol.messages import message_class

FOLDER = Path(__file__).resolve().parent.parent / "protocol" / "requests"

_TYPES = {
    "bool": "bool",
    "int8": "int",
    "int16": "int",
    "uint16": "int",
    "int32": "int",
    "int64": "int",
    "float64": "float",
    "error_code": "ErrorCode",
    "timedelta_i32": "timedelta",
    "timedelta_i64": "timedelta",
    "datetime_i64": "datetime",
    "uuid": "UUID",
    "string": "str",
    "bytes": "bytes",
    "records": "memoryview",
}

_ZEROS = {
    "bool": "False",
    "int": "0",
    "float": "0.0",
    "timedelta": "timedelta(0)",
    "UUID": "None",
    "str": '""',
    "bytes": 'b""',
}
"""What a field that the version lacks holds, if none declares a default."""

_IMPORTS = {
    "datetime": "from datetime import datetime",
    "timedelta": "from datetime import timedelta",
    "UUID": "from uuid import UUID",
    "ErrorCode": "from protocol.errors import ErrorCode",
}


@dataclass(slots=True, kw_only=True)
class _Field:
    name: str
    type: str
    """The type of one item, if it is an array."""
    is_array: bool
    is_nullable: bool = False
    declared: str | None = None
    """The default of the versions that declare one."""
    versions: list[int] = field(default_factory=list)

    @property
    def annotation(self) -> str:
        plain = f"tuple[{self.type}, ...]" if self.is_array else self.type
        return f"{plain} | None" if self.is_nullable else plain

    @property
    def zero(self) -> str:
        return "()" if self.is_array else _ZEROS[self.type]


@dataclass(slots=True, kw_only=True)
class _Struct:
    name: str
    versions: list[int] = field(default_factory=list)
    fields: dict[str, _Field] = field(default_factory=dict)
    instance: Any = None
    """What a field of this type holds by default."""


def render(row: ApiRow) -> str:
    """Return the module of one API."""
    structs: dict[str, _Struct] = {}
    for version in range(row.served_from, row.max_version + 1):
        _merge(struct_schema(message_class(int(row.api), version, "request")), version, structs)
    body = "".join(line for struct in reversed(structs.values()) for line in _class(struct))
    used = [text for name, text in _IMPORTS.items() if name in _words(body)]
    standard = _joined([text for text in used if "protocol" not in text] + ["from typing import Final"])
    own = [text for text in used if "protocol" in text] + ["from protocol.requests import RequestStruct"]
    span = _span(list(range(row.served_from, row.max_version + 1)))
    return (
        f'"""{row.name} requests, version{"s" if row.max_version > row.served_from else ""} {span}.\n\n'
        "Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.\n"
        '"""\n\nfrom __future__ import annotations\n\n'
        f"{standard}\n\n{chr(10).join(own)}\n{body}"
    )


def module_name(row: ApiRow) -> str:
    return f"{row.kio_name}.py"


def stale() -> list[str]:
    """Return the names of modules whose text is not what `render` gives, and of modules of no API."""
    wanted = {module_name(row): render(row) for row in KNOWN.values()}
    there = {path.name: path.read_text() for path in FOLDER.glob("*.py") if path.name != "__init__.py"}
    return sorted(name for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name))


def main() -> None:
    rows = {module_name(row): row for row in KNOWN.values()}
    for name in stale():
        if name in rows:
            (FOLDER / name).write_text(render(rows[name]))
        else:
            (FOLDER / name).unlink()


def _merge(schema: Any, version: int, structs: dict[str, _Struct]) -> None:
    struct = structs.setdefault(schema.cls.__name__, _Struct(name=schema.cls.__name__))
    assert version not in struct.versions, f"{struct.name} is two structs of version {version}"
    struct.versions.append(version)
    for one in (*schema.fields, *schema.tagged):
        kind = _TYPES[one.kafka_type] if one.struct is None else one.struct.__name__
        merged = struct.fields.setdefault(one.name, _Field(name=one.name, type=kind, is_array=one.is_array))
        assert (merged.type, merged.is_array) == (kind, one.is_array), f"{one.name} changes its type"
        merged.versions.append(version)
        merged.is_nullable |= one.is_nullable
        if one.default is not MISSING:
            default = _literal(one.default)
            assert merged.declared in (None, default), f"{one.name} changes its default"
            merged.declared = default
        if one.struct is not None:
            _merge(struct_schema(one.struct), version, structs)
            if isinstance(one.default, one.struct):
                structs[kind].instance = one.default


def _literal(value: Any) -> str:
    if isinstance(value, timedelta):
        return f"timedelta(milliseconds={value // timedelta(milliseconds=1)})"
    if isinstance(value, str):
        return f'"{value}"'
    if hasattr(value, "__flexible__"):
        return _constant(type(value).__name__)
    return repr(value)


def _constant(struct_name: str) -> str:
    return "DEFAULT" + "".join(f"_{char}" if char.isupper() else char.upper() for char in struct_name)


def _default_struct(value: Any) -> str:
    """Return the definition of the constant for a struct that is some field's default."""
    name = type(value).__name__
    values = ", ".join(f"{each}={_literal(getattr(value, each))}" for each in value.__slots__)
    return f"\n\n{_constant(name)}: Final = {name}({values})\n"


def _class(struct: _Struct) -> Iterator[str]:
    yield f"\n\nclass {struct.name}(RequestStruct):\n"
    if not struct.fields:
        yield "    __slots__ = ()\n"
        return
    names = [f'"{name}"' for name in sorted(struct.fields)]
    one_line = f"    __slots__ = ({', '.join(names)}{',' if len(names) == 1 else ''})\n"
    if len(one_line) <= 100:
        yield one_line
    else:
        yield from ("    __slots__ = (\n", *(f"        {name},\n" for name in names), "    )\n")
    yield "\n    def __init__(\n        self,\n        *,\n"
    for one in struct.fields.values():
        is_always_there = one.versions == struct.versions
        value = one.declared or (None if is_always_there else one.zero)
        default = "" if value is None else f" = {value}"
        since = "" if is_always_there else f"  # {_since(one.versions, struct.versions)}"
        yield f"        {one.name}: {one.annotation}{default},{since}\n"
    yield "    ) -> None:\n"
    for name in struct.fields:
        yield f"        self.{name}: Final = {name}\n"
    if struct.instance is not None:
        yield _default_struct(struct.instance)


def _since(versions: list[int], of: list[int]) -> str:
    if len(versions) == 1:
        return f"version {versions[0]}"
    if versions[-1] == of[-1]:
        return f"from version {versions[0]}"
    return f"up to version {versions[-1]}" if versions[0] == of[0] else f"versions {_span(versions)}"


def _span(versions: list[int]) -> str:
    low, high = versions[0], versions[-1]
    assert versions == list(range(low, high + 1)), "a field that comes, goes and comes again"
    return str(low) if low == high else f"{low} to {high}"


def _joined(imports: list[str]) -> str:
    """Return the imports in ruff's order, those from one module on one line."""
    names: dict[str, list[str]] = {}
    for text in imports:
        _, module, _, name = text.split()
        names.setdefault(module, []).append(name)
    return "\n".join(f"from {module} import {', '.join(names[module])}" for module in sorted(names))


def _words(text: str) -> set[str]:
    return set("".join(char if char.isidentifier() else " " for char in text).split())


if __name__ == "__main__":
    main()
