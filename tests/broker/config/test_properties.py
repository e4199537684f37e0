"""Properties files are read as Java reads them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.config.properties import parse_properties


def test_properties_files_are_read_as_java_reads_them() -> None:
    text = (
        "# comment\n! comment\n\n  a=1\nb : 2\nc 3\nd=x\\\n    y\ne=\\u0041\\t\\=\n"
        "f\\:g=h\nempty\nlast=has = and : in it  "
    )
    assert parse_properties(text) == {
        "a": "1",
        "b": "2",
        "c": "3",
        "d": "xy",
        "e": "A\t=",
        "f:g": "h",
        "empty": "",
        "last": "has = and : in it  ",
    }


@given(st.text(alphabet="ab=: \\\n\t#!u0", max_size=40))
def test_any_text_is_some_properties(text: str) -> None:
    parse_properties(text)
