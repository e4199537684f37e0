"""The CPU of a command and of all it starts: `python -m tools.versus.whole_cpu COMMAND…`, JSON on stdout.

Owns the count. Does not own what the command does; what it prints is passed over.
Invariant: a process that outlives the one which started it is counted too, because it is handed to this one,
which waits until the last has ended; one that does not end is a failure and no figure. Of a process whose
parent does not care how it ended, as Spark's daemon does not of its workers, the kernel forgets what it took:
all are looked at on the way, and what was seen of them counts if it is more than what the kernel says.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from json import loads
from pathlib import Path

from tools.console import Failure, complain, emit_json

RUN_S_MAX = 900.0
LEFT_S_MAX = 30.0
POLL_S = 0.02
LOOK_S = 0.05
BECOME_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2)."""
ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    exit_code: int
    wall_s: float
    """Until the command itself ended."""
    cpu_s: float
    peak_mb: float
    """Of the largest process."""


def run(command: Sequence[str], environ: Mapping[str, str] | None = None) -> Ran:
    """Run a command to its end, and to that of all it started."""
    child = start(command, environ)
    told, _ = child.communicate(timeout=RUN_S_MAX + LEFT_S_MAX)
    return finished(child.returncode, told)


def start(command: Sequence[str], environ: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start it; `finished` takes what it prints."""
    return subprocess.Popen(
        [sys.executable, "-m", "tools.versus.whole_cpu", *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}", **(environ or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )


def finished(exit_code: int, told: str) -> Ran:
    if exit_code:
        raise Failure("a command that is measured did not end as it should")
    return Ran(**loads(told))


def main(command: Sequence[str]) -> int:
    if ctypes.CDLL(None, use_errno=True).prctl(BECOME_SUBREAPER, 1, 0, 0, 0):
        complain(
            f"whole_cpu: {os.strerror(ctypes.get_errno())}: what outlives its parent would not be counted"
        )
        return 1
    began = time.perf_counter()
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    seen: dict[tuple[int, str], float] = {}
    end = os.pidfd_open(child.pid)
    while (exit_code := child.poll()) is None:
        if time.perf_counter() - began > RUN_S_MAX:
            child.kill()
            complain(f"whole_cpu: {command[0]} took more than {RUN_S_MAX:.0f} s")
            return 1
        _look(os.getpid(), seen)
        select.select([end], [], [], LOOK_S)
    wall_s = time.perf_counter() - began
    if not _have_ended(time.perf_counter() + LEFT_S_MAX, seen):
        complain(f"whole_cpu: what {command[0]} started has not ended {LEFT_S_MAX:.0f} s after it")
        return 1
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    emit_json(
        {
            "exit_code": exit_code,
            "wall_s": wall_s,
            "cpu_s": max(used.ru_utime + used.ru_stime, sum(seen.values())),
            "peak_mb": used.ru_maxrss / 1024,
        }
    )
    return 0


def _look(above: int, seen: dict[tuple[int, str], float]) -> None:
    """Note what each process below one has taken by itself so far, by its number and when it began."""
    try:
        children = [
            child
            for task in Path(f"/proc/{above}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except (FileNotFoundError, ProcessLookupError):
        return  # it ended, and what it had is ours now
    for child in children:
        try:
            stat = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        seen[int(child), stat[19]] = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
        _look(int(child), seen)


def _have_ended(deadline_s: float, seen: dict[tuple[int, str], float]) -> bool:
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        if not pid:
            if time.perf_counter() > deadline_s:
                return False
            _look(os.getpid(), seen)
            threading.Event().wait(POLL_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
