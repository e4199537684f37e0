"""The files of the tables, which came from a live broker.

Owns: where they are, and reading them, once and when broker.config.tables is imported; nothing else in
broker/config touches a file. Does not own: what is in them (tables). Invariant: none is written.
"""

from __future__ import annotations

from pathlib import Path


def read_table(name: str) -> str:
    return (Path(__file__).parent / "data" / f"{name}-configs.tsv").read_text(encoding="utf-8")
