"""Options and help of `tidewal verify`, with typer; where its answers go, and what it exits with.

Owns how the command line is spelt. Does not own verifying (verification) or what reports look like (report).
Invariant: exit 0 says that all was checked that was asked for and is sound, 1 that something is wrong, 2 that
nobody knows: a bad option, a store that is away or a bug never looks like either of the others.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tools.console import Failure, check_address, emit, emit_table

if TYPE_CHECKING:
    from tools.verify.core.outcome import Options, Outcome, Planned

UNFINISHED: Final = 2
STDOUT: Final = "-"
TOLD_MAX: Final = 300


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
    _check_files(files)
    _check_directories("--data", data or [])
    _check_directories("--manifest", manifest or [])
    if store is None and not data:
        raise Failure("verify needs --store or --data: there is nothing to read", exit_code=UNFINISHED)
    if bootstrap is not None:
        bootstrap = check_address(bootstrap, "--bootstrap", port_min=1)
    if not 0 < sample <= 1:
        raise Failure(f"--sample {sample:g}: not above 0 and at most 1", exit_code=UNFINISHED)
    if master is not None and engine is not Engine.spark:
        raise Failure("--master is for --engine spark", exit_code=UNFINISHED)
    if plan and (extra := [option for option, file in files.items() if file and option != "--json"]):
        raise Failure(f"--plan writes no {extra[0]}", exit_code=UNFINISHED)
    _check_ledger(ledger)
    _need_extras(engine)

    def answer() -> int:
        _settle()
        options = _options(
            store=store or "",
            data=tuple(map(str, data or [])),
            bootstrap=bootstrap or "",
            manifests=tuple(map(str, manifest or [])),
            topics=tuple(topic or []),
            engine=engine.value,
            master=master or "local[*]",
            workers=workers,
            ledger=str(ledger) if ledger is not None else "",
            sample=sample,
        )
        if plan:
            return _tell_plan(options, json_file)
        return _tell_outcome(options, files, is_strict=strict)

    return _finished(answer)


def _settle() -> None:
    """Load what a verification is made of, for good: no thread for matrices, of which there are none, and
    nothing of it is looked through for garbage again, here or in processes that are forked from this one."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.disable()
    import_module("tools.verify.verification")
    gc.freeze()
    gc.enable()


# --- options ---


def _options(**given: object) -> Options:
    from tools.verify.core.outcome import Options
    from tools.verify.core.stores import BadSourceUrl, open_source

    options = Options(**given)  # type: ignore[arg-type]
    if options.store:
        if "://" not in options.store:
            raise Failure(
                f"--store {options.store}: give file:///DIR or s3://BUCKET/PREFIX?endpoint=URL",
                exit_code=UNFINISHED,
            )
        try:
            open_source(options.store)
        except BadSourceUrl as error:
            raise Failure(f"--store {error}", exit_code=UNFINISHED) from None
    return options


def _check_files(files: dict[str, str | None]) -> None:
    if len(to_stdout := [option for option, file in files.items() if file == STDOUT]) > 1:
        raise Failure(f"{' and '.join(to_stdout)} cannot both go to stdout", exit_code=UNFINISHED)
    for option, file in files.items():
        if file is None or file == STDOUT:
            continue
        path = Path(file)
        why = ""
        if path.is_dir():
            why = "is a directory"
        elif not path.parent.is_dir():
            why = "no such directory"
        elif not os.access(path if path.exists() else path.parent, os.W_OK):
            why = "cannot be written"
        if why:
            raise Failure(f"{option} {file}: {why}", exit_code=UNFINISHED)


def _check_directories(option: str, directories: Sequence[Path]) -> None:
    for each in directories:
        if not each.is_dir():
            raise Failure(f"{option} {each}: no such directory", exit_code=UNFINISHED)
        if not os.access(each, os.R_OK | os.X_OK):
            raise Failure(f"{option} {each}: cannot be read", exit_code=UNFINISHED)
    resolved = [each.resolve() for each in directories]
    for at, each in enumerate(resolved):
        if each in resolved[:at]:
            raise Failure(f"{option} {directories[at]}: named twice", exit_code=UNFINISHED)


def _check_ledger(ledger: Path | None) -> None:
    if ledger is None:
        return
    try:
        ledger.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failure(f"--ledger {ledger}: {error.strerror}", exit_code=UNFINISHED) from None


def _need_extras(engine: Engine) -> None:
    for module in ("numpy", "xxhash"):
        if find_spec(module) is None:
            raise Failure(f"verify needs {module}: pip install 'tidewal[verify]'", exit_code=UNFINISHED)
    if engine is not Engine.spark:
        return
    if find_spec("pyspark") is None:
        raise Failure("--engine spark needs PySpark: pip install 'tidewal[spark]'", exit_code=UNFINISHED)
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        raise Failure(
            "--engine spark needs Java 17 or newer: none on PATH or in JAVA_HOME", exit_code=UNFINISHED
        )


# --- answers ---


def _finished(work: Callable[[], int]) -> int:
    """Do the work; whatever ends it early, a bug included, leaves the question open."""
    try:
        return work()
    except (Failure, BrokenPipeError):
        raise
    except Exception as error:
        told = " ".join(str(error).split())[:TOLD_MAX]
        if not told or type(error).__module__ == "builtins":  # without its name it says little
            told = f"{type(error).__name__}: {told}".removesuffix(": ")
        raise Failure(f"could not finish: {told}", exit_code=UNFINISHED) from error


def _tell_outcome(options: Options, files: dict[str, str | None], *, is_strict: bool) -> int:
    from tools.verify.report import html_page, json_report, markdown, repair
    from tools.verify.report.progress import ProgressShown
    from tools.verify.verification import verify as verified

    progress = ProgressShown(sys.stderr, is_terminal=sys.stderr.isatty(), clock=time.monotonic)
    try:
        outcome = verified(options, progress)
    finally:
        progress.close()
    forms: dict[str, Callable[[Outcome], str]] = {
        "--json": lambda outcome: json_report.render(outcome, is_strict=is_strict),
        "--html": lambda outcome: html_page.render(outcome, is_strict=is_strict),
        "--markdown": lambda outcome: markdown.render(outcome, is_strict=is_strict),
        "--repair-plan": repair.render,
    }
    for option, file in files.items():
        if file is not None:
            _write(option, file, forms[option](outcome))
    if STDOUT not in files.values():
        for line in markdown.terminal_lines(outcome, is_strict=is_strict):
            emit(line)
    return int(outcome.exit_code(is_strict))


def _tell_plan(options: Options, json_file: str | None) -> int:
    from tools.verify.verification import plan as planned

    found = planned(options)
    if json_file is not None:
        _write("--json", json_file, json.dumps(plan_document(found), indent=1) + "\n")
    if json_file != STDOUT:
        for line in plan_lines(found):
            emit(line)
        emit_table(("kind", "objects", "size", "requests"), [each._asdict() for each in found.parts])
    return 0


def plan_document(planned: Planned) -> dict[str, object]:
    parts = [each._asdict() for each in planned.parts]
    return {"format": "tidewal-verify-plan", "version": 1, **planned._asdict(), "parts": parts}


def plan_lines(planned: Planned) -> list[str]:
    from tools.verify.report.summary import plain, size_text

    size, prices = size_text(planned.size), f"list prices of {plain(planned.price_date)}"
    lines = [
        f"to read: {planned.objects:,} objects and files, {size}, in {planned.tasks:,} tasks",
        f"requests: {planned.requests:,}, about ${planned.dollars:,.2f} at {prices}",
    ]
    if planned.proved_bytes:
        lines.append(f"proved before: {size_text(planned.proved_bytes)}")
    return lines


def _write(option: str, file: str, text: str) -> None:
    if file == STDOUT:
        sys.stdout.write(text)
        return
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise Failure(f"{option} {file}: {error.strerror}", exit_code=UNFINISHED) from None
