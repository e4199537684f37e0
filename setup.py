"""The packages of the application lie at the top of a checkout and in a folder of `tidewal` in a wheel.

Owns that mapping, which pyproject.toml has no words for. Does not own anything else about the distribution.
Invariant: nothing called `tools`, `storage` or the like is installed beside other people's packages.
"""

from __future__ import annotations

from setuptools import find_packages, setup

FOLDER = "tidewal._app"
TOPS = ("broker", "protocol", "remote", "storage", "tools")
DATA = {
    "broker.config": ["data/*"],
    "protocol": ["data/*"],
    "tools": ["spark_worker.sh"],
    "tools.verify.report": ["schema-*.json"],
}
found = find_packages(include=[*TOPS, *(f"{top}.*" for top in TOPS)])
setup(
    packages=["tidewal", *(f"{FOLDER}.{package}" for package in found)],
    package_dir={f"{FOLDER}.{top}": top for top in TOPS},
    package_data={f"{FOLDER}.{package}": files for package, files in DATA.items()},
)
