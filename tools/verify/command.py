"""Options and help of `tidewal verify`, with typer.

Owns how the command line is spelt. Does not own what is asked and answered (asked); a line that is plainly
spelt gets by without this. Invariant: what an option may be is said once, there.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tools.verify.asked import Asked, answer


class Engine(StrEnum):
    local = "local"
    spark = "spark"


def _file(name: str, help_text: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(name, metavar="FILE", help=help_text, show_default=False)
    return option


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(verify)


def verify(
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The brokers' object store, as for tidewal broker --store.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="A broker's data directory; once for each broker and disk.",
            show_default=False,
        ),
    ] = None,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap",
            "-b",
            metavar="HOST:PORT",
            help="A broker to read the topics about the tiers from, where --data does not have them.",
            show_default=False,
        ),
    ] = None,
    manifest: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Manifests of producers, compared with the log; may be repeated.",
            show_default=False,
        ),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="NAME",
            help="Only this topic, by name or id; may be repeated.",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[Engine, typer.Option(help="Processes on this machine, or Spark.")] = Engine.local,
    master: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Of Spark.  [default: local[*]]", show_default=False),
    ] = None,
    workers: Annotated[
        int, typer.Option(metavar="N", min=0, max=1024, help="Processes of --engine local, 0: one a core.")
    ] = 0,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only tell what would be read, and what that costs.")
    ] = False,
    ledger: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Keep here what was proved: the next run reads what is new, one that was killed goes on.",
            show_default=False,
        ),
    ] = None,
    sample: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            help="Read this share of the data, above 0 and at most 1; all else is checked whole.",
        ),
    ] = 1.0,
    json_file: Annotated[str | None, _file("--json", "The report for programs; - is stdout.")] = None,
    html_file: Annotated[str | None, _file("--html", "The report as a page; - is stdout.")] = None,
    markdown_file: Annotated[
        str | None, _file("--markdown", "The report for a CI summary; - is stdout.")
    ] = None,
    repair_file: Annotated[
        str | None, _file("--repair-plan", "Where the good copy of each damaged range is; - is stdout.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as well.")] = False,
) -> int:
    """Prove from the bytes alone that a store and data directories hold what they should. Changes nothing.

    Exit code 0: clean. 1: something is wrong, as told. 2: it could not be found out.
    """
    files = {
        "--json": json_file,
        "--html": html_file,
        "--markdown": markdown_file,
        "--repair-plan": repair_file,
    }
    return answer(
        Asked(
            store=store,
            data=data or [],
            bootstrap=bootstrap,
            manifests=manifest or [],
            topics=topic or [],
            engine=engine.value,
            master=master,
            workers=workers,
            is_plan=plan,
            ledger=ledger,
            sample=sample,
            files={form: file for form, file in files.items() if file is not None},
            is_strict=strict,
        )
    )
