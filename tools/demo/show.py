"""How the demo is seen: a picture on a terminal, lines everywhere else.

Owns which of the two it is, and when the picture is drawn anew. Does not own what is in it (picture).
Invariant: a step that has ended is a line of its own in both; nothing but lines goes where no terminal is.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from rich.console import Console
from rich.live import Live

from tools.console import emit
from tools.demo.picture import glyphs_for, picture, step_line, styled_step
from tools.demo.state import DemoState, Step

DRAWN_EVERY_S: Final = 0.25


class Show(Protocol):
    def step(self, step: Step) -> None:
        """Show a step that has ended."""
        ...

    async def run(self, state: DemoState) -> None:
        """Show what changes, until cancelled."""
        ...


class Lines:
    def step(self, step: Step) -> None:
        emit(step_line(step))
        sys.stdout.flush()

    async def run(self, state: DemoState) -> None:
        """A line is written when its step has ended, and nothing in between."""


class Picture:
    def __init__(self, console: Console, live: Live) -> None:
        self._console = console
        self._live = live
        self._glyphs = glyphs_for(console.encoding)

    def step(self, step: Step) -> None:
        self._console.print(styled_step(step))

    async def run(self, state: DemoState) -> None:
        while True:
            self._live.update(picture(state, self._console.width, self._glyphs), refresh=True)
            await asyncio.sleep(DRAWN_EVERY_S)


@contextmanager
def shown(*, is_plain: bool) -> Iterator[Show]:
    """Show on stdout: the picture on a terminal that can move its cursor, unless lines are wanted."""
    console = Console()
    if is_plain or not console.is_terminal or console.is_dumb_terminal:
        yield Lines()
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield Picture(console, live)
