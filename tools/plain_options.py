"""Options that are spelt out, read without typer, which takes longer to load than some commands to run.

Owns what counts as spelt out. Does not own which options a command has, nor what it makes of their values.
Invariant: what typer would refuse, or read otherwise, is none of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


def spelt_out(arguments: Sequence[str], flags: Collection[str] = ()) -> list[tuple[str, str]] | None:
    """Return each option with its value, which is empty for one of the `flags`; None for help and mistakes.
    An abbreviation is returned as if it were an option: no command knows it."""
    found: list[tuple[str, str]] = []
    rest = iter(arguments)
    for argument in rest:
        if argument in flags:
            found.append((argument, ""))
            continue
        name, equals, value = argument.partition("=")
        if not equals:
            value = next(rest, "-")
        if not value or value.startswith("-") or name in flags:
            return None
        found.append((name, value))
    return found
