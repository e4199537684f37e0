"""Requests as handlers see them: one class for all versions of an API, with fields that mypy knows.

Owns: what the classes of this package share. The modules beside this one are written by
`tools/generate_requests.py` (`make requests`) from kio's message schemas, one for each API; a test fails
when they are stale. Does not own: reading them from bytes (the codec), responses.
Invariant: a field that the request's version lacks has the default that Kafka's own generated classes give
it: the declared one, else zero, false or empty. kio's conventions hold: a UUID of zeros is None, durations
are timedelta, times are datetime.

A module of this package is loaded with the first codec of its API. Import it for annotations only, under
TYPE_CHECKING: forty modules would slow down every start of a broker.
"""

from __future__ import annotations


class RequestStruct:
    """A request, or a struct inside one. Fields are Final: mypy refuses to set them."""

    __slots__: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({fields})"
