"""Options and help of `tidewal demo`, with typer.

Owns how its command line is spelt. The work is in run. Invariant: nothing is loaded or made before the
command line is known to be right.
"""

from __future__ import annotations

from typing import Annotated, Final

import typer

LOAD_S: Final = 20.0


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(demo)


def demo(
    seconds: Annotated[
        float,
        typer.Option(metavar="N", min=1, max=3600, help="How long records flow before anything is killed."),
    ] = LOAD_S,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the cluster running until Ctrl-C, and its folder for good.")
    ] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="Lines in place of the picture, as where there is no terminal.")
    ] = False,
) -> None:
    """See three brokers lose a leader and a disk, and everything read back and verified.

    They run on this machine, in a temporary folder that holds their object store too. Meanwhile records are
    written to a topic of the cold tier and to one of the WAL tier. Exit code 0 only if every step held.
    """
    from tools.demo.run import run_demo

    run_demo(load_s=seconds, keeps_running=keep, is_plain=plain)
