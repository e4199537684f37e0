"""The wheel beside other people's folders: `tools` and `tests` of a project stay theirs, and ours ours."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.e2e.installation import build, install, outside
from tests.e2e.test_cluster_command import ClusterCommand
from tests.processes import BrokerProcess
from tools.spark_session import quick_jvm

THEIRS = ("tools", "storage", "tests", "broker", "protocol", "remote")
"""Packages of a project, each of which notes who imports it."""
COMMAND_S_MAX = 300.0
pytestmark = pytest.mark.skipif(
    int(importlib.metadata.version("setuptools").partition(".")[0]) < 77,
    reason="setuptools is old: make setup",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("build"))


@pytest.fixture(scope="module")
def bin_folder(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(wheel, tmp_path_factory.mktemp("installed") / "venv")


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """A user's folder; at the end nothing of it was imported but by their own program."""
    folder = tmp_path / "project"
    for name in THEIRS:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(
            f"import sys\nopen({str(folder / 'imported')!r}, 'a').write(f'{name} in {{sys.argv}}\\n')\n"
        )
        (folder / name / "helpers.py").write_text(f"WHOSE = 'the user, in {name}'\n")
    yield folder
    assert not (folder / "imported").exists(), (folder / "imported").read_text()


def run(project: Path, *command: str | Path) -> str:
    folder = Path(command[0]).parent
    done = subprocess.run(
        [str(word) for word in command],
        cwd=project,
        # as in an environment that is activated
        env=outside(project) | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=COMMAND_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_wheel_takes_no_name_that_others_use(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0].removesuffix(".py") for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "tidewal",
        "pyspark_tidewal",
        "pytest_tidewal",
        "testcontainers_tidewal",
    }


def test_a_program_of_the_user_finds_its_own_packages(bin_folder: Path, project: Path) -> None:
    program = project / "program.py"
    program.write_text(
        "import importlib, importlib.metadata, json, tidewal\n"
        f"found = [importlib.import_module(f'{{name}}.helpers').WHOSE for name in {THEIRS}]\n"
        "print(json.dumps([found, importlib.metadata.version('tidewal')]))\n"
    )
    found, version = json.loads(run(project, bin_folder / "python", program))
    (project / "imported").unlink()
    assert found == [f"the user, in {name}" for name in THEIRS]
    assert version == importlib.metadata.version("tidewal")


def test_commands_run_in_a_folder_with_packages_of_the_same_names(bin_folder: Path, project: Path) -> None:
    """More is verified than one process reads by itself, so workers are started there too."""
    tidewal = bin_folder / "tidewal"
    data = project / "data"
    with BrokerProcess(data, program=[str(tidewal)], env=outside(project), cwd=project) as broker:
        at = ("-b", broker.bootstrap)
        run(project, tidewal, "topics", "create", "t", "--partitions", "2", *at)
        load = ("--topic", "t", "--records", "40000", "--record-size", "1000", "--quiet")
        run(project, tidewal, "bench", "produce", *load, *("--bootstrap", broker.bootstrap))
        told = run(project, bin_folder / "python", "-m", "tidewal", "offsets", "t", *at)
        assert "LOG END" in told
        assert broker.terminate() == 0
    told = run(project, tidewal, "verify", "--engine", "local", "--data", data)
    assert "40,000" in told, told


def test_the_fixtures_are_there_for_tests_of_the_user(bin_folder: Path, project: Path) -> None:
    (project / "test_theirs.py").write_text(
        "def test_it(tidewal_broker, tidewal_topic):\n    assert tidewal_broker.logs()\n"
    )
    told = run(project, bin_folder / "python", "-m", "pytest", "-q", "-p", "no:asyncio", "test_theirs.py")
    assert "1 passed" in told


def test_brokers_of_a_cluster_are_processes_of_the_same_installation(
    bin_folder: Path, project: Path, tmp_path: Path
) -> None:
    with (tmp_path / "stderr").open("w+b") as stderr:
        cluster = ClusterCommand(
            project / "data",
            stderr,
            *("--brokers", "2", "--listen", "127.0.0.1:0"),
            program=[str(bin_folder / "python"), "-m", "tidewal"],
            cwd=project,
            env=outside(project),
        )
        try:
            cluster.wait_ready()
            run(project, bin_folder / "tidewal", "topics", "create", "t", "-b", ",".join(cluster.addresses))
            cluster.process.terminate()
            assert cluster.ended() == 0
        finally:
            cluster.close()


@pytest.mark.spark
@pytest.mark.skipif(find_spec("pyspark") is None or shutil.which("java") is None, reason="make spark")
def test_a_worker_of_spark_reads_topics_and_runs_functions_of_the_user(
    bin_folder: Path, project: Path
) -> None:
    """Their session, their folder, one Python worker for both: each finds the `tools` that it means."""
    data = project / "data"
    with BrokerProcess(
        data, program=[str(bin_folder / "tidewal")], env=outside(project), cwd=project
    ) as broker:
        load = ("--topic", "t", "--records", "1000", "--quiet", "--bootstrap", broker.bootstrap)
        run(project, bin_folder / "tidewal", "bench", "produce", *load)
        assert broker.terminate() == 0
    jvm = {"spark.driver.extraJavaOptions": quick_jvm()}
    program = project / "job.py"
    program.write_text(
        "import tools.helpers\n"
        "from pyspark.sql import SparkSession\n"
        "from pyspark.sql.functions import udf\n"
        f"settings = {{'spark.ui.enabled': 'false', 'spark.sql.shuffle.partitions': '1', **{jvm}}}\n"
        "spark = SparkSession.builder.master('local[1]').config(map=settings).getOrCreate()\n"
        "options = {'data': 'data', 'subscribe': 't'}\n"
        "rows = spark.read.format('tidewal').options(**options).load()\n"
        "def whose(value):\n"
        "    from storage.helpers import WHOSE\n"
        "    return f'{WHOSE}, {tools.helpers.WHOSE}'\n"
        "print(rows.count())\n"
        "print([row[0] for row in rows.select(udf(whose)('value')).distinct().collect()])\n"
        'print(rows.where("length(value) > 0").count())\n'
    )
    told = run(project, bin_folder / "python", program).splitlines()
    (project / "imported").unlink()
    assert told == ["1000", "['the user, in storage, the user, in tools']", "1000"]
