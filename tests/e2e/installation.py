"""Tidewal as people install it: the wheel of a source distribution, in an environment of its own.

Owns the build and the environment. Does not own the packages that Tidewal needs, which are those of this
environment. Invariant: nothing is fetched, and nothing of this checkout is found by an installed process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD_S_MAX = 300.0
SOURCES = ("broker", "protocol", "remote", "storage", "tools", "tidewal")
BUILD = "import sys, setuptools.build_meta as meta; getattr(meta, sys.argv[1])(sys.argv[2])"


def build(folder: Path) -> Path:
    """Return the wheel, built from the source distribution of this checkout."""
    tree = folder / "tree"
    tree.mkdir(parents=True)
    for source in SOURCES:
        shutil.copytree(ROOT / source, tree / source, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (*ROOT.glob("*.py"), *ROOT.glob("*.toml"), ROOT / "README.md", ROOT / "LICENSE"):
        shutil.copy(path, tree)
    _build(tree, "build_sdist", folder)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    _build(next(folder.glob("tidewal-*/")), "build_wheel", folder)
    return next(folder.glob("*.whl"))


def _build(tree: Path, what: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BUILD, what, str(folder)],
        cwd=tree,
        capture_output=True,
        text=True,
        timeout=BUILD_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def install(wheel: Path, folder: Path) -> Path:
    """Return the `bin` of a new environment with the wheel in it."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder)], timeout=BUILD_S_MAX, check=True
    )
    python = folder / "bin" / "python"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(python),
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
            wheel,
        ],
        timeout=BUILD_S_MAX,
        check=True,
    )
    site = next(folder.glob("lib/python*/site-packages"))
    # what is there is found after what the wheel brought; no .pth in it counts, so no checkout is found
    (site / "needed.pth").write_text(sysconfig.get_path("purelib"))
    return python.parent


def outside(folder: Path) -> dict[str, str]:
    """Return the environment of a user whose own packages are in `folder`, first of all.

    A session of Spark in this process has set PYSPARK_PYTHON to the Python of this checkout.
    """
    ours = ("PYTHON", "PYSPARK_", "SPARK_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**kept, "PYTHONPATH": str(folder)}
