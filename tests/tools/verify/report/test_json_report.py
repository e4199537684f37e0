"""The JSON report is what its schema says, and nothing that differs from run to run is in it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from tests.tools.verify.report.outcomes import ID, hostile_outcome, outcome
from tools.verify.core.findings import CODES, Finding
from tools.verify.core.outcome import Effort, Outcome, Span, Unread
from tools.verify.report import json_report


def closed(schema: Any) -> Any:
    """The schema without the members that a later program may add: what is written must be described."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: closed(each) for name, each in schema.items()}
    return {**found, "additionalProperties": False} if "properties" in found else found


SCHEMA = closed(json.loads(json_report.SCHEMA.read_text()))
OUTCOMES = [
    outcome(),
    hostile_outcome(),
    outcome(*(Finding("bad-crc", ID, 0, 2 * n, 2 * n + 1, "p") for n in range(1500))),
    outcome(unread=(Unread("meta/1", "503"),)),
]


@pytest.mark.parametrize("told", OUTCOMES)
def test_it_is_what_the_schema_says(told: Outcome) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(json_report.render(told, is_strict=False)))


def test_the_schema_refuses_what_it_does_not_know() -> None:
    document = json.loads(json_report.render(OUTCOMES[1], is_strict=False))
    for change in ({"clock": 1}, {"version": 2}, {"exit_code": 3}, {"findings": [{}]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(SCHEMA).validate({**document, **change})


def test_two_engines_write_the_same() -> None:
    one = hostile_outcome()
    other = replace(one, effort=Effort(9.0, 9.0, 9, 9, 9))
    assert json_report.render(one, is_strict=True) == json_report.render(other, is_strict=True)


def test_every_code_is_listed_with_what_was_found_and_left_off() -> None:
    document = json_report.document(OUTCOMES[2], is_strict=False)
    codes = {each["code"]: each for each in document["codes"]}
    assert codes.keys() == CODES.keys()
    assert codes["bad-crc"]["findings"] == 1500 and codes["bad-crc"]["left_off"] == 500
    assert codes["gap"]["findings"] == 0
    assert len(document["findings"]) == 1000
    assert document["errors"] == 1500


def test_what_is_not_known_is_null() -> None:
    found = json_report.document(outcome(Finding("gap", ID, 0, 5, -1)), is_strict=False)["findings"][0]
    assert (found["topic"], found["first"], found["end"]) == ("orders", 5, None)
    assert found["place"] is None and found["position"] is None


@pytest.mark.parametrize(
    ("told", "result", "exit_code"),
    [(OUTCOMES[0], "clean", 0), (OUTCOMES[2], "findings", 1), (OUTCOMES[3], "unfinished", 2)],
)
def test_the_result(told: Outcome, result: str, exit_code: int) -> None:
    document = json_report.document(told, is_strict=False)
    assert (document["result"], document["exit_code"]) == (result, exit_code)


def test_spans_and_tiers() -> None:
    told = outcome()
    spans = (Span("wal", 0, 10, 7), Span("cold", 0, 10, 5))
    told = outcome(coverage=(told.coverage[0]._replace(spans=spans, damaged=((1, 2),)),))
    document = json_report.document(told, is_strict=False)
    assert document["tier_bytes"] == {"local": 0, "wal": 7, "cold": 5}
    assert document["coverage"][0]["spans"][0] == {
        "tier": "wal", "first": 0, "end": 10, "size": 7, "copies": 1,
    }  # fmt: skip
    assert document["coverage"][0]["damaged"] == [[1, 2]]
