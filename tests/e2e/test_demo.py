"""`tidewal demo` in real processes: a short run holds and leaves nothing, and neither does an interrupt."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

from tests.compat.peers import until
from tests.processes import ROOT, TIDEWAL

RUN_S_MAX = 240.0
STEPS = (
    *("start", "topics", "load", "WAL tier", "cold tier", "kill -9", "back", "empty disk"),
    *("read back", "verify", "stop"),
)


def environment(folder: Path) -> dict[str, str]:
    """All that the demo makes is below this folder, by which its processes are known too."""
    return {**os.environ, "TMPDIR": str(folder)}


def left_in(folder: Path) -> list[str]:
    """The processes whose command line names the folder."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended
        if str(folder) in words:
            lines.append(words)
    return lines


def test_a_short_run_holds_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [*TIDEWAL, "demo", "--seconds", "1"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment(tmp_path),
        timeout=RUN_S_MAX,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    *lines, last = done.stdout.splitlines()
    assert tuple(re.split(r" {2,}", line)[2] for line in lines) == STEPS, done.stdout
    assert {line[0] for line in lines} == {"+"}
    assert last.startswith("all steps held; ")
    cold = re.search(r"(\S+) records, (\S+) of them from the cold tier", done.stdout)
    assert cold is not None
    assert all(int(number.replace(",", "")) > 0 for number in cold.groups())
    assert list(tmp_path.iterdir()) == []
    assert left_in(tmp_path) == []


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    """The terminal sends it to all; here it comes while brokers run, to the demo alone."""
    process = subprocess.Popen(
        [*TIDEWAL, "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=environment(tmp_path),
    )
    try:
        until(lambda: len(left_in(tmp_path)) == 3, "three brokers", timeout_s=60.0)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=RUN_S_MAX)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, err) == (130, b""), out
    assert list(tmp_path.iterdir()) == []
    assert left_in(tmp_path) == []
