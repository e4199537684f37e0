"""Data directories of real brokers, made once and only read.

Owns when they are made. Does not own what is in them (real_logs). Invariant: whoever alters one has a copy.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.compat.peers import ApacheKafka, Java
from tests.tools.verify.core import real_logs

KINDS = [
    "ours-stopped",
    "ours-killed",
    pytest.param("kafka-stopped", marks=pytest.mark.kafka),
    pytest.param("kafka-killed", marks=pytest.mark.kafka),
]


def real_directory(kind: str, request: Any) -> Path:
    """The data directory of a broker of ours, or of Apache Kafka, that was stopped or killed."""
    whose, _, how = kind.partition("-")
    root = request.getfixturevalue("tmp_path_factory").getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # one for all workers
    folder = root / f"real-{whose}"
    with (root / f"real-{whose}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            if whose == "kafka":
                java = Java(request.getfixturevalue("kafka_home"))
                real_logs.make_kafkas(ApacheKafka(folder, java, settings=real_logs.KAFKAS))
            else:
                real_logs.make_ours(folder)
            (folder / "made").touch()
    return folder / (how if whose == "ours" else {"stopped": "data", "killed": "killed"}[how])


@pytest.fixture(params=KINDS)
def made(request: pytest.FixtureRequest) -> Path:
    """Every kind of data directory, not to be written to."""
    return real_directory(request.param, request)


@pytest.fixture(params=KINDS[:3])
def copied(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy to be altered: of a broker of ours, stopped and killed, and of Apache Kafka, stopped."""
    made = real_directory(request.param, request)
    return Path(shutil.copytree(made, tmp_path / "copied", copy_function=shutil.copy2))
