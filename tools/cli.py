"""The entry point of `tidewal`: which command, and how every command ends.

Owns exit codes and the one line on stderr. Does not own options and help (tools.commands); `tidewal broker`,
`tidewal health` and `tidewal verify`, plainly spelt, get by without loading them, and `tidewal kafka-script`
takes the options of Kafka's scripts.
Invariant: bad input ends with one clear line on stderr and a non-zero exit code, never with a trace.
"""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from typing import TYPE_CHECKING, NoReturn

from tools.broker_command import read_plainly, run_broker
from tools.console import Failure, complain

if TYPE_CHECKING:
    from typer import TyperException

INTERRUPTED = 130
BROKEN_PIPE = 141


def main() -> NoReturn:
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run a command and return its exit code; nothing but a bug leaves as an exception."""
    if sys.stdout is None:  # started with it closed
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    elif isinstance(sys.stdout, TextIOWrapper):
        # a file name or a record may hold what the terminal cannot show
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        plainly = _run_plainly(arguments)
        code = _run_any(arguments) if plainly is None else plainly
        sys.stdout.flush()
    except Failure as failure:
        complain(f"tidewal: {failure}")
        return failure.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return BROKEN_PIPE
    except OSError as error:
        complain(f"tidewal: {error.strerror or error}")
        _drop_output()
        return 1
    return code


def _drop_output() -> None:
    """Discard what is still buffered: the interpreter would complain about it at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run_plainly(arguments: list[str]) -> int | None:
    """Run a command that needs no typer; None when this is none, or not spelt out."""
    match arguments[:1]:
        case ["broker"]:
            broker = read_plainly(arguments[1:])
            if broker is not None:
                run_broker(broker)
                return 0
        case ["health"]:
            from tools import health

            options = health.read_plainly(arguments[1:])
            if options is not None:
                health.run_health(options)
                return 0
        case ["verify"]:
            from tools.verify import asked

            question = asked.read_plainly(arguments[1:])
            if question is not None:
                return asked.answer(question)
        case ["kafka-script"]:
            from tools.kafka_scripts.command import run_script

            run_script(arguments[1:])
            return 0
    return None


def _run_any(arguments: list[str]) -> int:
    import typer

    from tools import commands

    command = typer.main.get_command(commands.app)
    try:
        result = command.main(args=arguments, prog_name="tidewal", standalone_mode=False)
    except typer.Abort:
        return INTERRUPTED
    except typer.TyperException as error:
        return _complain_of_usage(error)
    return result if isinstance(result, int) else 0


def _complain_of_usage(error: TyperException) -> int:
    context = getattr(error, "ctx", None)
    message = " ".join(error.format_message().split()).replace(": Value error, ", ": ")
    if message:
        command = context.command_path if context is not None else "tidewal"
        complain(f"tidewal: {message.removesuffix('.')} ({command} --help tells more)")
    return error.exit_code


if __name__ == "__main__":
    main()
