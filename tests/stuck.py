"""Whether the tests that `tests/broker/config/effects.tsv` names see what each setting does.

Owns: holding one setting at its default whatever a test sets, and running its test, which must fail then.
Does not own: the table, or that it names every setting (tests/broker/config/test_effects.py). Invariant: a
test that passes although its setting is stuck is told by name, and the exit code is 1.

`python -m tests.stuck [NAME…]`; a setting of topics is `topic:NAME`.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from broker.config import broker
from broker.config.topics import LOG_FIELDS
from broker.config.values import ResourceType
from broker.control.image import Image
from storage.policy import LogConfig

TABLE = Path(__file__).parent / "broker" / "config" / "effects.tsv"
OF_TOPICS = "topic:"
FAILED = 1


def read_table() -> dict[str, str]:
    """Return the test of each setting."""
    lines = TABLE.read_text().splitlines()[1:]
    return dict(line.split("\t") for line in lines)


@contextlib.contextmanager
def stuck(name: str) -> Iterator[None]:
    """Hold one setting at its default."""
    if name.startswith(OF_TOPICS):
        with _stuck_topic(name.removeprefix(OF_TOPICS)):
            yield
    else:
        with _stuck_broker(name):
            yield


@contextlib.contextmanager
def _stuck_topic(name: str) -> Iterator[None]:
    field = LOG_FIELDS[name]
    (default,) = (each.default for each in fields(LogConfig) if each.name == field)
    make, kept = LogConfig.__init__, Image.config

    def held(self: LogConfig, **values: Any) -> None:
        make(self, **{**values, field: default})

    def without(image: Image, resource: int, of: str) -> dict[str, str]:
        found = kept(image, resource, of)
        return {key: text for key, text in found.items() if key != name or resource != ResourceType.TOPIC}

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(LogConfig, "__init__", held)
        patched.setattr(Image, "config", without)
        yield


@contextlib.contextmanager
def _stuck_broker(name: str) -> Iterator[None]:
    build, read = broker._build, broker._by_known_names

    def without(given: Mapping[str, str]) -> dict[str, str]:
        return {key: text for key, text in given.items() if key != name}

    def held(*, dynamic_default: Mapping[str, str], dynamic_broker: Mapping[str, str], **rest: Any) -> Any:
        return build(dynamic_default=without(dynamic_default), dynamic_broker=without(dynamic_broker), **rest)

    def held_file(properties: Mapping[str, str]) -> Any:
        static, aliased = read(properties)
        return without(static), aliased

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(broker, "_build", held)
        patched.setattr(broker, "_by_known_names", held_file)
        yield


def does_fail(test: str) -> bool:
    """Return whether a test fails, whatever it leaves behind."""
    off = ("randomly", "cacheprovider", "unraisableexception")
    # what is imported already cannot be rewritten for asserts that explain themselves
    arguments = ["-q", "-x", "--assert=plain", *(f"-pno:{plugin}" for plugin in off), test]
    unread = io.StringIO()
    with contextlib.redirect_stdout(unread), contextlib.redirect_stderr(unread):
        return pytest.main(arguments) == FAILED


def is_seen(name: str, test: str) -> bool:
    with stuck(name):
        if does_fail(test):
            return True
    # what a module makes when it is imported was made before it was stuck
    alone = [sys.executable, "-m", "tests.stuck", "--alone", name]
    return subprocess.run(alone, check=False).returncode == 0


def main(names: list[str]) -> int:
    table = read_table()
    if names[:1] == ["--alone"]:
        with stuck(names[1]):
            return 0 if does_fail(table[names[1]]) else 1
    unseen = []
    for name in names or table:
        if is_seen(name, table[name]):
            sys.stdout.write(f"{name}: seen\n")
        else:
            unseen.append(name)
            sys.stdout.write(f"{name}: {table[name]} passes although it is stuck\n")
        sys.stdout.flush()
    return 1 if unseen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
