"""What `tidewal verify` is asked, and what it answers.

Owns the order in which options are looked at, where the answers go, and what it exits with. Does not own how
options are spelt with typer (command), verifying (verification) or what reports look like (report).
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tools.console import Failure, check_address, emit, emit_table
from tools.plain_options import spelt_out

if TYPE_CHECKING:
    from tools.verify.core.outcome import Options, Outcome, Planned

UNFINISHED: Final = 2
STDOUT: Final = "-"
TOLD_MAX: Final = 300
LOCAL, SPARK = "local", "spark"
FORMS: Final = ("--json", "--html", "--markdown", "--repair-plan")
"""Of the report."""


@dataclass(slots=True, kw_only=True)
class Asked:
    store: str | None = None
    data: list[Path] = field(default_factory=list)
    bootstrap: str | None = None
    manifests: list[Path] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)
    engine: str = LOCAL
    master: str | None = None
    workers: int = 0
    is_plan: bool = False
    ledger: Path | None = None
    sample: float = 1.0
    files: dict[str, str] = field(default_factory=dict)
    """By their form."""
    is_strict: bool = False


def read_plainly(arguments: Sequence[str]) -> Asked | None:
    """Return what is asked, if each option is spelt out with its value; None for help, mistakes and
    abbreviations, and for numbers."""
    given = spelt_out(arguments, flags=("--plan", "--strict"))
    if given is None:
        return None
    asked = Asked()
    for name, value in given:
        match name:
            case "--plan":
                asked.is_plan = True
            case "--strict":
                asked.is_strict = True
            case "--store":
                asked.store = value
            case "--data":
                asked.data.append(Path(value))
            case "--bootstrap":
                asked.bootstrap = value
            case "--manifest":
                asked.manifests.append(Path(value))
            case "--topic":
                asked.topics.append(value)
            case "--engine" if value in (LOCAL, SPARK):
                asked.engine = value
            case "--master":
                asked.master = value
            case "--ledger":
                asked.ledger = Path(value)
            case _ if name in FORMS:
                asked.files[name] = value
            case _:
                return None
    return asked


def answer(asked: Asked) -> int:
    """Do what is asked and return the exit code."""
    _check_files(asked.files)
    _check_directories("--data", asked.data)
    _check_directories("--manifest", asked.manifests)
    if asked.store is None and not asked.data:
        raise Failure("verify needs --store or --data: there is nothing to read", exit_code=UNFINISHED)
    if asked.bootstrap is not None:
        asked.bootstrap = check_address(asked.bootstrap, "--bootstrap", port_min=1)
    if not 0 < asked.sample <= 1:
        raise Failure(f"--sample {asked.sample:g}: not above 0 and at most 1", exit_code=UNFINISHED)
    if asked.master is not None and asked.engine != SPARK:
        raise Failure("--master is for --engine spark", exit_code=UNFINISHED)
    if asked.is_plan and (extra := [each for each in asked.files if each != "--json"]):
        raise Failure(f"--plan writes no {extra[0]}", exit_code=UNFINISHED)
    _check_ledger(asked.ledger)
    _need_extras(asked.engine)

    def answered() -> int:
        _settle()
        options = _options(
            store=asked.store or "",
            data=tuple(map(str, asked.data)),
            bootstrap=asked.bootstrap or "",
            manifests=tuple(map(str, asked.manifests)),
            topics=tuple(asked.topics),
            engine=asked.engine,
            master=asked.master or "local[*]",
            workers=asked.workers,
            ledger=str(asked.ledger) if asked.ledger is not None else "",
            sample=asked.sample,
        )
        if asked.is_plan:
            return _tell_plan(options, asked.files.get("--json"))
        return _tell_outcome(options, asked.files, is_strict=asked.is_strict)

    return _finished(answered)


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


def _check_files(files: Mapping[str, str]) -> None:
    if len(to_stdout := [option for option, file in files.items() if file == STDOUT]) > 1:
        raise Failure(f"{' and '.join(to_stdout)} cannot both go to stdout", exit_code=UNFINISHED)
    for option, file in files.items():
        if file == STDOUT:
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


def _need_extras(engine: str) -> None:
    for module in ("numpy", "xxhash"):
        if find_spec(module) is None:
            raise Failure(f"verify needs {module}: pip install 'tidewal[verify]'", exit_code=UNFINISHED)
    if engine != SPARK:
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


def _tell_outcome(options: Options, files: Mapping[str, str], *, is_strict: bool) -> int:
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
