"""What an installation brings is what the code imports, and no more."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("protocol", "storage", "remote", "broker", "tools", "tidewal")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
THROUGH_ANOTHER = {"yarl": "aiohttp", "botocore": "aiobotocore", "click": "typer"}
"""Part of the interface of a package that is declared."""
NAMED_OTHERWISE = {"re2": "google_re2"}
"""Imported by another name than it is installed by."""


def names(requirements: list[str]) -> set[str]:
    found = (re.match(r"[A-Za-z0-9-]+", requirement) for requirement in requirements)
    return {match[0].replace("-", "_") for match in found if match is not None}


def imported() -> set[str]:
    found: set[str] = set()
    modules = list(ROOT.glob("*_tidewal.py"))
    for package in PACKAGES:
        modules += (ROOT / package).rglob("*.py")
    for path in modules:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module)
    roots = {name.partition(".")[0] for name in found}
    return roots - set(sys.stdlib_module_names) - set(PACKAGES) - {"tests", "pytest"}


def test_what_is_imported_is_declared_and_the_other_way_round() -> None:
    named = {**THROUGH_ANOTHER, **NAMED_OTHERWISE}
    needed = {named.get(name, name) for name in imported()}
    extras = PROJECT["optional-dependencies"]
    declared = names(PROJECT["dependencies"]).union(
        *(names(extras[extra]) for extra in ("bench", "verify", "parquet", "spark", "testcontainers"))
    )
    assert needed == declared - {"tidewal"}, "an extra may take in others"


def test_a_broker_needs_few_packages_and_no_client() -> None:
    assert len(PROJECT["dependencies"]) <= 10
    assert "confluent_kafka" not in names(PROJECT["dependencies"])
