"""Long work that can be interrupted: a generator that yields wherever something else may go first.

Owns: the type and how such work is run in one go. Does not own: who runs it piece by piece (broker.turns).
Invariant: at most about 100 µs of work lie between two yields, and nothing is half done at a yield.

What a yield interrupts finds the world changed when it goes on: it looks things up again by name, and
iterates over nothing that others change.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import wraps
from heapq import merge
from typing import Any, Final, ParamSpec, Protocol, TypeAlias, TypeVar


class Ordered(Protocol):
    def __lt__(self, other: Any, /) -> bool: ...


T = TypeVar("T")
P = ParamSpec("P")
OrderedT = TypeVar("OrderedT", bound=Ordered)

_FREED: Final = 256
_SORTED: Final = 512
_SORTED_CHARS: Final = 1 << 20
"""Names that are sorted at once: so many, or so many characters."""

Work: TypeAlias = Generator[None, None, T]
"""Yields between its pieces and returns its result."""


def at_once(begin: Callable[P, Work[T]]) -> Callable[P, T]:
    """Return the plain function of one that works in steps."""

    @wraps(begin)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return finish(begin(*args, **kwargs))

    return run


def finish(work: Work[T]) -> T:
    """Run it to its end at once: for what is known to be small, and for tests."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


def in_order(names: Iterable[OrderedT]) -> Work[list[OrderedT]]:
    """Return them sorted; what they come from must not change meanwhile."""
    runs: list[list[OrderedT]] = []
    for some in _portions(names, _SORTED, _SORTED_CHARS):
        runs.append(sorted(some))
        yield
    if len(runs) <= 1:
        return runs[0] if runs else []
    found: list[OrderedT] = []
    for some in _portions(merge(*runs), _SORTED // 4, _SORTED_CHARS // 4):
        found += some
        yield
    return found


def _portions(items: Iterable[T], count: int, chars: int) -> Iterator[list[T]]:
    """Yield them in lists of so many, or of so many characters where they are long texts: those that differ
    in their ends are read in full to be compared."""
    some: list[T] = []
    left = chars
    for item in items:
        some.append(item)
        if isinstance(item, str):
            left -= len(item)
        if len(some) >= count or left <= 0:
            yield some
            some, left = [], chars
    if some:
        yield some


def let_go(kept: list[Any]) -> Work[None]:
    """Empty a list of many things that nothing else has, bit by bit: to free them takes time too."""
    while kept:
        del kept[-_FREED:]
        yield


def let_go_of_all(kept: dict[Any, Any]) -> Work[None]:
    """`let_go` for a mapping."""
    while kept:
        for _ in range(min(len(kept), _FREED)):
            kept.popitem()
        yield
