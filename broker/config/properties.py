"""Java properties files.

Owns: reading one as Java does. Does not own: what the names mean (broker). Invariant: any text is some
properties.
"""

from __future__ import annotations

import re
from collections.abc import Iterator


def parse_properties(text: str) -> dict[str, str]:
    """Read a Java properties file: comments, continued lines, escapes; `=`, `:` or blanks after the name."""
    return dict(_pairs(text))


def contradictions(text: str) -> list[str]:
    """Name what a file sets more than once, to different values: the last one counts."""
    values: dict[str, set[str]] = {}
    for name, value in _pairs(text):
        values.setdefault(name, set()).add(value)
    return [name for name, found in values.items() if len(found) > 1]


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for line in _logical_lines(text):
        match = _PROPERTY.fullmatch(line)
        assert match is not None, line
        yield _unescape(match[1]), _unescape(match[2])


_PROPERTY = re.compile(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.?))", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


def _logical_lines(text: str) -> Iterator[str]:
    lines = iter(re.split(r"\r\n|\r|\n", text))
    for line in lines:
        whole = line.lstrip(" \t\f")
        if not whole or whole[0] in "#!":
            continue
        while (len(whole) - len(whole.rstrip("\\"))) % 2:
            whole = whole[:-1] + next(lines, "").lstrip(" \t\f")
        yield whole


def _unescape(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        return chr(int(match[1], 16)) if match[1] else _ESCAPES.get(match[2], match[2])

    return _ESCAPE.sub(plain, text) if "\\" in text else text
