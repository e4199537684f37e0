"""Options as Kafka's scripts take them.

Owns: splitting a command line into options, whose values follow `=` or are the next word. Does not own: which
there are (each script says). Invariant: an option that is not known is named, never skipped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from tools.console import Failure


@dataclass(slots=True)
class Given:
    """What a command line says."""

    script: str
    flags: set[str] = field(default_factory=set)
    values: dict[str, list[str]] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)

    def one(self, name: str) -> str | None:
        """Return the value of an option, the last one where it is repeated."""
        return self.values[name][-1] if name in self.values else None

    def need(self, name: str) -> str:
        value = self.one(name)
        if value is None:
            raise Failure(f"{self.script}: {name} is missing")
        return value

    def number(self, name: str, default: int, *, least: int = 0) -> int:
        text = self.one(name)
        if text is None:
            return default
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 18 and int(text) >= least):
            raise Failure(f"{self.script}: {name} {text}: not a number from {least}")
        return int(text)

    def pairs(self, name: str) -> dict[str, str]:
        """Return what an option KEY=VALUE says, which may be repeated."""
        found = {}
        for text in self.values.get(name, ()):
            key, equals, value = text.partition("=")
            if not equals or not key:
                raise Failure(f"{self.script}: {name} {text}: not KEY=VALUE")
            found[key] = value
        return found


def parse(
    script: str,
    arguments: Iterable[str],
    *,
    flags: Collection[str] = (),
    valued: Collection[str] = (),
    words: int = 0,
) -> Given:
    """Read a command line; Failure for what the script does not take."""
    given = Given(script)
    rest = iter(arguments)
    for word in rest:
        argument = word
        if argument[:1] == "-" and f"-{argument}".partition("=")[0] in {*flags, *valued}:
            argument = f"-{argument}"  # Kafka's scripts take one dash for two
        name, equals, value = argument.partition("=")
        if name in valued:
            text = value if equals else next(rest, None)
            if text is None:
                raise Failure(f"{script}: {name} has no value")
            given.values.setdefault(name, []).append(text)
        elif argument in flags:
            given.flags.add(argument)
        elif not argument.startswith("-") and len(given.words) < words:
            given.words.append(argument)
        else:
            known = ", ".join(sorted((*flags, *valued)))
            raise Failure(
                f"{script}: {argument} is not taken by this stand-in for Kafka's script, but {known}"
            )
    return given
