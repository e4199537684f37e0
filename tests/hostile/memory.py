"""What the kernel says of another process: its memory, its greatest memory, and how long it waited to run.

Owns reading and resetting these figures of a process by its id. Does not own what they are compared with.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

_RESET_PEAK: Final = "5"
"""What /proc/PID/clear_refs takes for: begin VmHWM anew."""


def rss_bytes(pid: int) -> int:
    return _status_bytes(pid, "VmRSS:")


def peak_bytes(pid: int) -> int:
    """The greatest memory since `reset_peak`."""
    return _status_bytes(pid, "VmHWM:")


def reset_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK)


def run_delay_s(pid: int) -> float:
    """For how long in all its main thread was ready to run and had no processor."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1]) / 1e9


def cpu_s(pid: int) -> float:
    """The processor time of its main thread."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def _status_bytes(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {name} of process {pid}")
