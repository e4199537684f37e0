"""How every command talks: lines on stdout, one clear line on stderr when it cannot go on.

Owns the error a command ends with, plain output, and tables. Does not own progress bars (bench) or help
(typer).
Invariant: what goes to stdout is the answer and nothing else, so that it may be piped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


class Failure(Exception):
    """The command cannot do what was asked; the message is the one line the user sees."""

    def __init__(self, message: str, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def emit(line: str) -> None:
    sys.stdout.write(line + "\n")


def emit_json(value: object) -> None:
    emit(json.dumps(value, ensure_ascii=not (sys.stdout.encoding or "utf-8").lower().startswith("utf")))


def write_json(value: object, file: str) -> None:
    """Write to a file, or to stdout for `-`."""
    if file == "-":
        emit_json(value)
        return
    try:
        Path(file).write_text(json.dumps(value, indent=2) + "\n")
    except OSError as error:
        raise Failure(f"--json {file}: {error.strerror}") from None


def check_writable(file: str | None) -> None:
    """Failure for a file that cannot be written: before the run, not after it."""
    if file not in (None, "-") and not Path(str(file)).parent.is_dir():
        raise Failure(f"--json {file}: no such directory")


def complain(line: str) -> None:
    sys.stderr.write(line + "\n")


def emit_table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Print aligned columns under upper-case heads; numbers to the right, an absent value as `-`."""
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    heads = [column.replace("_", " ").upper() for column in columns]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    numeric = [
        bool(rows) and all(isinstance(row.get(column), int | float | None) for row in rows)
        for column in columns
    ]
    for line in (heads, *cells):
        padded = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        )
        emit("  ".join(padded).rstrip())


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    return str(value)


def read_pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise Failure(f"{option} {text}: not KEY=VALUE", exit_code=2)
        pairs[key.strip()] = value.strip()
    return pairs


def is_port(text: str) -> bool:
    return len(text) <= 5 and text.isascii() and text.isdigit() and int(text) < 65536


def check_address(text: str, option: str, *, port_min: int) -> str:
    host, colon, port = text.strip().rpartition(":")
    if not colon or not is_port(port) or int(port) < port_min:
        raise Failure(f"{option} {text}: not HOST:PORT", exit_code=2)
    return f"{host}:{port}"
