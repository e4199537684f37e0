"""The fixtures of `pytest_tidewal` in runs of pytest as a user has them: settings, failures, all ends."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.compat.peers import until
from tests.e2e.test_cluster_command import is_running
from tests.processes import ROOT
from tidewal import PROGRAM

RUN_S_MAX = 240.0
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "TIDEWAL_COMMAND": shlex.join([sys.executable, PROGRAM])}
PYTEST = (
    sys.executable,
    "-m",
    "pytest",
    "-p",
    "pytest_tidewal",
    "-p",
    "no:randomly",
    "-p",
    "no:asyncio",
    "-q",
)


def run(
    folder: Path, *arguments: str, tests: str = "", env: Mapping[str, str] | None = None
) -> tuple[int, str]:
    if tests:
        (folder / "test_theirs.py").write_text(tests)
    done = subprocess.run(
        [*PYTEST, *arguments],
        cwd=folder,
        env={**os.environ, **ENVIRONMENT, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )
    return done.returncode, done.stdout


def test_the_examples_pass(tmp_path: Path) -> None:
    folder = tmp_path / "examples"
    shutil.copytree(ROOT / "examples" / "testing", folder, ignore=shutil.ignore_patterns("__pycache__"))
    code, told = run(folder)
    assert code == 0, told
    assert "3 passed" in told


def test_a_failure_shows_what_the_broker_logged_during_that_test(tmp_path: Path) -> None:
    code, told = run(
        tmp_path,
        tests="def test_good(tidewal_broker):\n    tidewal_broker.restart()\n"
        "def test_bad(tidewal_broker):\n    tidewal_broker.restart()\n    assert False\n"
        "def test_without_a_broker():\n    assert False\n",
    )
    assert code == 1
    assert told.count("log of tidewal broker 1") == 1
    assert told.count("node 1 stopped") == 1, "that of one restart"


def test_properties_come_from_the_ini_file_and_the_command_line_wins(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\ntidewal_properties =\n    num.partitions = 3\n    num.io.threads=many\n"
    )
    test = "def test_it(tidewal_broker):\n    pass\n"
    code, told = run(tmp_path, tests=test)
    assert code == 1
    assert "ended before it was ready" in told
    assert re.search("tidewal: .*num.io.threads", told), told
    assert run(tmp_path, "--tidewal-set", "num.io.threads=2")[0] == 0
    code, told = run(tmp_path, "--tidewal-set", "num.io.threads")
    assert "--tidewal-set num.io.threads: not KEY=VALUE" in told


def test_each_worker_of_a_run_in_parallel_has_a_broker_of_its_own(tmp_path: Path) -> None:
    tests = (
        "import pathlib, pytest\n"
        "@pytest.mark.parametrize('number', range(4))\n"
        "def test_it(tidewal_broker, tidewal_topic, number, worker_id):\n"
        "    pathlib.Path(worker_id).write_text(tidewal_broker.bootstrap_servers)\n"
    )
    code, told = run(tmp_path, "-n", "2", "--dist", "each", tests=tests)
    assert code == 0, told
    assert len({path.read_text() for path in tmp_path.glob("gw*")}) == 2


def test_a_command_that_is_not_there_is_named(tmp_path: Path) -> None:
    test = "def test_it(tidewal_broker):\n    pass\n"
    _, told = run(tmp_path, tests=test, env={"TIDEWAL_COMMAND": "/nowhere/tidewal"})
    assert "cannot run /nowhere/tidewal broker" in told


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.usefixtures("heard_signals")
def test_no_broker_outlives_the_run(tmp_path: Path, end: signal.Signals) -> None:
    (tmp_path / "test_theirs.py").write_text(
        "import pathlib, sys\n"
        "def test_it(tidewal_broker, tidewal_cluster):\n"
        "    pids = [broker.pid for broker in (tidewal_broker, *tidewal_cluster.brokers)]\n"
        "    pathlib.Path('new').write_text(repr(pids))\n"
        "    pathlib.Path('new').rename('pids')\n"
        "    open('endless').read()\n"
    )
    os.mkfifo(tmp_path / "endless")
    with subprocess.Popen(
        PYTEST,
        cwd=tmp_path,
        env={**os.environ, **ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            until((tmp_path / "pids").exists, "brokers", timeout_s=RUN_S_MAX)
            pids = [int(word) for word in re.findall(r"\d+", (tmp_path / "pids").read_text())]
            assert len(pids) == 4
            process.send_signal(end)
            process.communicate(timeout=RUN_S_MAX)
        finally:
            process.kill()
    until(lambda: not any(map(is_running, pids)), "an end of the brokers", timeout_s=60)
