"""`tidewal verify` of a cluster of processes, with what its producers noted of their sends.

Owns how it is started and when its report says that all is well. Does not own the cluster or the load.
Invariant: a proof that could not be made is no proof.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.clusters import ClusterProcesses
from tests.processes import ROOT

VERIFY_S_MAX = 300.0


def verified(
    cluster: ClusterProcesses, sent: Path, report: Path, *, env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    directories = [f"--data={cluster.data(node_id)}" for node_id in cluster.node_ids]
    line = ["verify", f"--store={cluster.store}", *directories, f"--manifest={sent}", f"--json={report}"]
    done = subprocess.run(
        [sys.executable, "-m", "tools.cli", *line],
        cwd=ROOT, capture_output=True, text=True, timeout=VERIFY_S_MAX, check=False,
        env={**os.environ, **(env or {})},
    )  # fmt: skip
    assert report.exists(), done.stderr
    document: dict[str, Any] = json.loads(report.read_text())
    assert document["exit_code"] == done.returncode
    return document


def check_nothing_is_found(document: dict[str, Any], told: list[str], *, is_live: bool) -> None:
    """Of a log that is being written the last batch may be there in part, which is told as a warning."""
    assert document["unread"] == [], (document["unread"], told)
    legal = {"unclean-tail"} if is_live else set()
    found = [each for each in document["findings"] if each["code"] not in legal]
    assert found == [], (found, told)
    assert document["exit_code"] == 0
    assert {each["what"] for each in document["unchecked"]} <= {"bootstrap"}, document["unchecked"]
    assert document["figures"]["scanned_bytes"] > 0
