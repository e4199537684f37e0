"""The CPU of a command and of all it starts: `python -m tools.versus.whole_cpu COMMAND…`, JSON on stdout.

Owns the count. Does not own what the command does; what it prints is passed over.
Invariant: a process that outlives the one who started it is counted too, because it is handed to this one,
which waits until the last has ended; one that does not end is a failure and no figure.
"""

from __future__ import annotations

import ctypes
import os
import resource
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
    try:
        exit_code = child.wait(RUN_S_MAX)
    except subprocess.TimeoutExpired:
        child.kill()
        complain(f"whole_cpu: {command[0]} took more than {RUN_S_MAX:.0f} s")
        return 1
    wall_s = time.perf_counter() - began
    if not _have_ended(time.perf_counter() + LEFT_S_MAX):
        complain(f"whole_cpu: what {command[0]} started has not ended {LEFT_S_MAX:.0f} s after it")
        return 1
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    emit_json(
        {
            "exit_code": exit_code,
            "wall_s": wall_s,
            "cpu_s": used.ru_utime + used.ru_stime,
            "peak_mb": used.ru_maxrss / 1024,
        }
    )
    return 0


def _have_ended(deadline_s: float) -> bool:
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        if not pid:
            if time.perf_counter() > deadline_s:
                return False
            threading.Event().wait(POLL_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
