"""What options of a read mean, and the one line that a wrong one is answered with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.spark.options import EARLIEST, LATEST, BadOption, read_options
from tools.spark.reading import with_brokers

STORE = {"store": "file:///nowhere"}
PLAIN = {**STORE, "subscribe": "t"}

WRONG = [
    ({"subscribe": "t"}, "give store, data or kafka.bootstrap.servers"),
    ({"store": "ftp://x", "subscribe": "t"}, "ftp://x: give file:///DIR"),
    ({"store": "/tmp", "subscribe": "t"}, "a data directory is `data`"),
    ({"data": "file:///x", "subscribe": "t"}, "give paths of data directories"),
    ({"kafka.bootstrap.servers": "nowhere", "subscribe": "t"}, "'nowhere' is not HOST:PORT"),
    (STORE, "give one of subscribe, assign, subscribePattern, not none"),
    ({**PLAIN, "assign": "{}"}, "not subscribe and assign"),
    ({**STORE, "assign": '{"t": [-1]}'}, "assign: give"),
    ({**STORE, "assign": "[]"}, "assign []: not a JSON object"),
    ({**STORE, "subscribePattern": "("}, "subscribePattern ("),
    ({**STORE, "subscribe": " , "}, "no topic is named"),
    ({**PLAIN, "startingOffset": "earliest"}, "did you mean startingOffsets?"),
    ({**PLAIN, "colour": "red"}, "option colour is not known: there are store, data"),
    ({**PLAIN, "startingOffsets": "latest"}, "startingOffsets: latest would read nothing"),
    ({**PLAIN, "endingOffsets": '{"t": {"0": -2}}'}, "endingOffsets: earliest would read nothing"),
    ({**PLAIN, "startingOffsets": "{"}, "startingOffsets {: not JSON"),
    ({**PLAIN, "startingOffsets": '{"t": 3}'}, "startingOffsets: give"),
    ({**PLAIN, "startingOffsets": '{"t": {"0": true}}'}, "0: True in topic t"),
    ({**PLAIN, "startingTimestamp": "yesterday"}, "startingTimestamp yesterday: not a whole number"),
    ({**PLAIN, "failOnDataLoss": "maybe"}, "failOnDataLoss maybe: not one of true, false"),
    ({**PLAIN, "kafka.isolation.level": "none"}, "not one of read_uncommitted, read_committed"),
    ({**PLAIN, "view": "rows"}, "view rows: not one of records, batches, runs"),
    ({**PLAIN, "view": "runs", "kafka.bootstrap.servers": "a:1"}, "view runs: of what lies in a store"),
]


@pytest.mark.parametrize(("options", "wanted"), WRONG)
def test_a_wrong_option(options: dict[str, str], wanted: str) -> None:
    with pytest.raises(BadOption) as raised:
        read_options(options)
    assert wanted in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(BadOption, match="a stream has no end"):
        read_options({**PLAIN, "endingTimestamp": "3"}, is_stream=True)
    assert read_options(PLAIN, is_stream=True).starting.everywhere == LATEST
    assert read_options(PLAIN).starting.everywhere == EARLIEST


def test_a_time_for_all_outweighs_offsets() -> None:
    offsets = json.dumps({"t": {"0": 5, "1": -2}})
    found = read_options({**PLAIN, "startingOffsets": offsets}).starting
    assert (found.of("t", 0), found.of("t", 1), found.is_time) == (5, EARLIEST, False)
    by_time = {**PLAIN, "startingOffsets": offsets, "STARTINGOFFSETSBYTIMESTAMP": json.dumps({"t": {"0": 9}})}
    found = read_options(by_time).starting
    assert (found.of("t", 0), found.is_time) == (9, True)
    found = read_options({**by_time, "startingTimestamp": "7"}).starting
    assert (found.of("t", 4), found.is_time) == (7, True)


def test_settings_of_the_consumer_are_passed_over() -> None:
    given = {
        **PLAIN,
        "kafka.fetch.max.wait.ms": "10",
        "kafkaConsumer.pollTimeoutMs": "9",
        "groupIdPrefix": "x",
    }
    assert read_options(given).topics == ("t",)


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    options = read_options({"store": f"file://{tmp_path}/none", "subscribe": "t"})
    with pytest.raises(Exception, match="No such file or directory"):
        with_brokers(options, lambda topics: topics)
