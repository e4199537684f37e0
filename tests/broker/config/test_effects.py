"""Each setting that passes for one with an effect names the test that sees it.

`effects.tsv` has the names; `python -m tests.stuck` proves that each test fails while its setting is held at
its default.
"""

from __future__ import annotations

import ast
from functools import cache

import pytest

from broker.config.broker import EFFECTIVE
from broker.config.tables import BROKER
from broker.config.topics import LOG_FIELDS
from tests.broker.config.described import ROOT
from tests.stuck import OF_TOPICS, read_table


def test_every_setting_with_an_effect_has_a_test_of_it() -> None:
    assert read_table().keys() == EFFECTIVE | {OF_TOPICS + name for name in LOG_FIELDS}
    assert BROKER.keys() >= EFFECTIVE


@cache
def functions_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text())
    return {each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("node", sorted(set(read_table().values())))
def test_the_test_of_a_setting_is_there(node: str) -> None:
    file, _, name = node.partition("::")
    assert name.startswith("test_")
    assert name in functions_in(file)
