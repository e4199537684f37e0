"""What the pages for people name is there: files, make targets, links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = (
    "README.md",
    "TIERS.md",
    "VERIFYING.md",
    "CONTRIBUTING.md",
    "BENCHMARKS.md",
    "FORMAT.md",
    "TESTING.md",
)
PACKAGES = ("protocol", "storage", "remote", "broker", "tools", "tests")


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


@pytest.mark.parametrize("page", PAGES)
def test_files_that_a_page_names_are_there(page: str) -> None:
    named = re.findall(rf"`((?:{'|'.join(PACKAGES)})/[\w./-]+)`", text_of(page))
    missing = [name for name in named if not (ROOT / name).exists() and not (ROOT / f"{name}.py").exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES)
def test_targets_that_a_page_names_are_there(page: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE))
    commands = re.findall(r"(?:`|\$ )make ([a-z -]+)", text_of(page))
    named = {word for command in commands for word in command.split()}
    assert named <= targets


def test_a_known_bug_that_an_example_names_is_there() -> None:
    named = re.findall(r"--only ([a-z-]+)", text_of("Makefile") + text_of("CONTRIBUTING.md"))
    assert named
    assert [name for name in named if not (ROOT / "tests/mutants" / f"{name}.toml").exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", text_of(page))
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_readme_is_read_to_its_end() -> None:
    assert len(text_of("README.md").splitlines()) <= 200
