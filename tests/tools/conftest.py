"""For the tools' tests: every request the client sends is checked for misspelt fields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from protocol import messages, wire

_checked: set[tuple[int, str]] = set()


@pytest.fixture(autouse=True)
def no_misspelt_fields(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A key that no version has would be dropped in silence, because versions lack fields."""
    send = wire.Connection.send

    def checked(self: wire.Connection, api_key: int, api_version: int, fields: Any) -> tuple[int, bytes]:
        shape = (api_key, repr(_shape(fields)))
        if shape not in _checked:
            _checked.add(shape)
            assert messages.unknown_fields(api_key, "request", fields) == []
        return send(self, api_key, api_version, fields)

    monkeypatch.setattr(wire.Connection, "send", checked)
    yield


def _shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shape(item) for item in value]
    return None
