"""Values are read and written as Kafka does."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config.values import ConfigError, ConfigType, format_value, parse_value, shown


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("BOOLEAN", " True ", True),
        ("INT", "+5", 5),
        ("INT", "-2147483648", -(2**31)),
        ("LONG", "9223372036854775807", 2**63 - 1),
        ("SHORT", "-1", -1),
        ("DOUBLE", "1.7976931348623157E308", 1.7976931348623157e308),
        ("DOUBLE", ".5", 0.5),
        ("LIST", " a , b,c ", ("a", "b", "c")),
        ("LIST", "", ()),
        ("STRING", " x ", "x"),
    ],
)
def test_values_are_read_as_kafka_reads_them(kind: str, text: str, value: object) -> None:
    assert parse_value(ConfigType[kind], "name", text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("BOOLEAN", "yes"),
        ("INT", "2147483648"),
        ("INT", "1_000"),
        ("INT", "1.0"),
        ("INT", ""),
        ("SHORT", "32768"),
        ("LONG", "0x10"),
        ("DOUBLE", "nan"),
        ("DOUBLE", "1e"),
        ("INT", "\u0661"),
        ("LONG", "1" * 5_000),
        ("DOUBLE", "1e999"),
        ("DOUBLE", "1" * 500),
    ],
)
def test_what_is_no_value_is_refused_by_name(kind: str, text: str) -> None:
    with pytest.raises(
        ConfigError, match=re.escape(f"Invalid value {shown(text)} for configuration some.name: ")
    ):
        parse_value(ConfigType[kind], "some.name", text)


@given(st.text())
def test_whatever_is_shown_is_one_short_line(text: str) -> None:
    assert shown(text).isprintable()
    assert len(shown(text)) <= 10 * len(text)
    assert shown("x" + text * 2_000).startswith("x")
    assert len(shown("\n" * 5_000)) < 2_100
    if text.isprintable() and len(text) <= 1_000:
        assert shown(text) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5"),
        (1.0, "1.0"),
        (1e7, "1.0E7"),
        (1.5e-4, "1.5E-4"),
        (12345678.0, "1.2345678E7"),
        (0.0, "0.0"),
    ],
)
def test_doubles_are_written_as_java_writes_them(value: float, text: str) -> None:
    assert format_value(value) == text


@pytest.mark.parametrize(
    ("kind", "text"), [("DOUBLE", "1" * 200_000 + "x"), ("LIST", "a" + " " * 200_000 + "b")]
)
def test_a_long_value_takes_no_longer_than_its_length(kind: str, text: str) -> None:
    """A value may be as long as a request; what takes its square would stop the broker for hours."""
    with suppress(ConfigError):
        assert parse_value(ConfigType[kind], "name", text) == (text,)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_survive(value: float) -> None:
    text = format_value(value)
    assert text is not None
    assert float(text) == value


@given(st.text(max_size=30), st.sampled_from(list(ConfigType)))
def test_reading_a_value_gives_a_value_or_says_why_not(text: str, kind: ConfigType) -> None:
    try:
        parse_value(kind, "name", text)
    except ConfigError as error:
        assert "name" in str(error)
