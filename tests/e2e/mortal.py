"""`tidewal broker` that kills itself, as kill -9 does, at a step that a test names while it runs.

Owns: reading which step is meant, and dying before or after a call of it. Does not own which steps there are.
Run as `python -m tests.e2e.mortal broker …` with MORTAL_STEP in its environment, the path of a file. A file
that is there at the start counts from then on; one that is written later counts after SIGUSR1, and is deleted
once it does. Invariant: the broker's own code is as it is shipped up to that call; only the times which it
waits for late requests, and before its first round of retention, are over at once, and parts of uploads to a
directory are small, so that every copy has several.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
import signal
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NoReturn

STEP_FILE: Final = "MORTAL_STEP"
SMALL_PARTS: Final = "MORTAL_SMALL_PARTS"
"""Set where the store takes parts of any size."""
LATE_S: Final = 0.2
PART_BYTES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The `number`th call of `target` (`module:function`, `module:Class.method`) whose arguments, as they
    are shown, have `match` in them."""

    target: str
    when: str
    match: str = ""
    number: int = 1

    def __str__(self) -> str:
        name = self.target.partition(":")[2]
        return f"{self.when} {name}({self.match})" + (f" #{self.number}" if self.number > 1 else "")

    def write(self, path: Path) -> None:
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(asdict(self)))
        temporary.rename(path)


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still here after SIGKILL")


def arm(step: Step) -> None:
    module, _, path = step.target.partition(":")
    *outer, name = path.split(".")
    owner: Any = functools.reduce(getattr, outer, import_module(module))
    setattr(owner, name, deadly(getattr(owner, name), step))


def deadly(call: Callable[..., Any], step: Step) -> Callable[..., Any]:
    seen = 0

    def is_meant(*args: object, **named: object) -> bool:
        nonlocal seen
        seen += re.search(step.match, repr((args, named))) is not None
        return seen == step.number

    @functools.wraps(call)
    def plain(*args: Any, **named: Any) -> Any:
        is_last = is_meant(*args, **named)
        if is_last and step.when == "before":
            die()
        answer = call(*args, **named)
        if is_last:
            die()
        return answer

    @functools.wraps(call)
    async def awaited(*args: Any, **named: Any) -> Any:
        is_last = is_meant(*args, **named)
        if is_last and step.when == "before":
            die()
        answer = await call(*args, **named)
        if is_last:
            die()
        return answer

    return awaited if inspect.iscoroutinefunction(call) else plain


def hurry() -> None:
    from broker.coordinators.tier import sweep
    from remote.cold import removal, sizes
    from storage import maintenance

    removal.LATE_UPLOAD_S = sweep.LATE_UPLOAD_S = LATE_S  # type: ignore[attr-defined]
    sweep.SWEEP_EVERY_S = 1.0  # type: ignore[misc]
    if os.environ.get(SMALL_PARTS):
        defaults(sizes.TierSizes)["part_bytes"] = PART_BYTES
    defaults(maintenance.Intervals)["initial_delay_ms"] = 0


def defaults(kind: type) -> dict[str, Any]:
    """What its keyword arguments are when they are left out."""
    named = vars(kind)["__init__"].__kwdefaults__
    assert isinstance(named, dict)
    return named


def main() -> None:
    path = Path(os.environ[STEP_FILE])

    def arm_now(*_: object) -> None:
        arm(Step(**json.loads(path.read_text())))
        path.unlink()

    hurry()
    if path.exists():
        arm_now()
    signal.signal(signal.SIGUSR1, arm_now)
    from tools.cli import main as broker

    broker()


if __name__ == "__main__":
    main()
