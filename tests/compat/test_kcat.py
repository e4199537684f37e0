"""kcat, where it is installed: what people type when they want to see whether a broker works."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

KCAT = shutil.which("kcat") or shutil.which("kafkacat")

pytestmark = pytest.mark.skipif(KCAT is None, reason="kcat is not installed")


def kcat(bootstrap: str, *args: str, stdin: str = "") -> str:
    assert KCAT is not None
    done = subprocess.run(
        [KCAT, "-b", bootstrap, *args], input=stdin, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_lists_writes_and_reads(bootstrap: str, topic: str) -> None:
    lines = [f"{n}:value {n}" for n in range(50)]
    kcat(bootstrap, "-P", "-t", topic, "-K", ":", "-z", "lz4", stdin="\n".join(lines) + "\n")
    read = kcat(bootstrap, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", "%k:%s\n")
    assert read.splitlines() == lines
    listed = json.loads(kcat(bootstrap, "-L", "-J"))
    assert topic in [entry["topic"] for entry in listed["topics"]]
    assert "offset 50" in kcat(bootstrap, "-Q", "-t", f"{topic}:0:-1")
