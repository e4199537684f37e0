"""The list of known bugs fits the source as it is now; whether each is caught is asked by `make mutants`."""

from __future__ import annotations

import ast

import pytest

from tests.mutants.mutant import ROOT, Mutant, Stale, read_all

EXAMPLE = Mutant(
    name="example", title="An example.", file="a.py", old="a < b", new="a <= b", tests=("sim: --seeds 3",)
)


@pytest.mark.parametrize("mutant", read_all(), ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_source(mutant: Mutant) -> None:
    broken = mutant.apply((ROOT / mutant.file).read_text())
    assert mutant.old != mutant.new
    ast.parse(broken)
    assert mutant.title
    assert mutant.tests


@pytest.mark.parametrize("mutant", read_all(), ids=lambda mutant: mutant.name)
def test_what_must_catch_it_is_there(mutant: Mutant) -> None:
    for node in mutant.nodes:
        path, _, test = node.partition("::")
        assert (ROOT / path).exists(), path
        name = test.split("::")[-1].partition("[")[0]
        assert f"def {name}(" in (ROOT / path).read_text() if test else True, node
    for arguments in mutant.simulations:
        assert "--seeds" in arguments
    assert not mutant.seeds or mutant.seeds.startswith("--seeds ")


@pytest.mark.parametrize("source", ["b < a", "a < b; a < b"])
def test_a_place_that_is_not_there_once_is_an_error(source: str) -> None:
    with pytest.raises(Stale, match=r"example: `old` is found [02] times in a\.py"):
        EXAMPLE.apply(source)


def test_a_mutant_changes_its_place_alone() -> None:
    assert EXAMPLE.apply("x = a < b  # a, b") == "x = a <= b  # a, b"
    assert EXAMPLE.simulations == (("--seeds", "3"),)
