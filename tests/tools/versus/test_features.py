"""The features' cost table and the modules without their counters, without any broker."""

from __future__ import annotations

import ast
import importlib

import pytest

from tools.versus import features, uncounted


def test_each_variant_is_told_with_its_ratio_to_the_first() -> None:
    names = [variant.name for variant in features.VARIANTS]
    costs = dict(zip(names, (4.0, 5.0, 6.0, 7.0, 8.0), strict=True))
    assert features.markdown({"raw": costs}).splitlines() == [
        f"| row | {' | '.join(names)} |",
        "| --- | --- | --- | --- | --- | --- |",
        "| raw | 4.00 µs CPU (1.00) | 5.00 µs CPU (1.25) | 6.00 µs CPU (1.50) | 7.00 µs CPU (1.75) "
        "| 8.00 µs CPU (2.00) |",
    ]


COUNTING = """
def handle(self, batches, stats):
    size = records = 0
    for batch in batches:
        size += len(batch)
        records += 1
    self._counts[0] += len(batches)
    stats.bytes_in += size
    self.partition.stats.messages_in += records
    return records
"""


def test_counters_and_what_is_summed_for_them_alone_are_left_out() -> None:
    tree, stripped = uncounted.without_counting(COUNTING, "a file")
    assert stripped == 4
    text = ast.unparse(tree)
    assert "records += 1" in text
    assert not any(gone in text for gone in ("size +=", "_counts", "bytes_in", "messages_in"))


@pytest.mark.parametrize("name", uncounted.MODULES)
def test_the_modules_of_the_request_path_count(name: str) -> None:
    spec = uncounted.Finder().find_spec(name, importlib.import_module(name.rpartition(".")[0]).__path__)
    assert spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader)
    assert spec.loader.get_code(name)
