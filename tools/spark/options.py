"""The options of `format("tidewal")`: those of Spark's Kafka source, and where the bytes lie.

Owns their names, their values and what they exclude. Does not own what they lead to (reading).
Invariant: what is wrong with them is said in one line, before anything is read; an option that would change
what is read is never passed over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final

from tools.client import Address
from tools.verify.core.stores import BadSourceUrl, Source, open_source

RECORDS, BATCHES, RUNS = "records", "batches", "runs"
EARLIEST: Final = -2
LATEST: Final = -1
MIB: Final = 1 << 20
PASSED_OVER: Final = frozenset(
    {
        "groupidprefix",
        "fetchoffset.numretries",
        "fetchoffset.retryintervalms",
        "kafkaconsumer.polltimeoutms",
        "mintriggerdelay",
        "path",
    }
)
"""Of the Kafka source, without an effect on what is read; so are all of its consumer but two."""
KNOWN: Final = (
    "store", "data", "view", "kafka.bootstrap.servers", "kafka.isolation.level", "subscribe", "assign",
    "subscribePattern", "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp",
    "startingOffsetsByTimestamp", "endingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy",
    "includeHeaders", "failOnDataLoss", "minPartitions", "maxTaskBytes",
)  # fmt: skip


class BadOption(ValueError):
    """An option that cannot be. One line says why."""


@dataclass(frozen=True, slots=True)
class Point:
    """Where to begin or end, for each partition: one for all, or one for each that is named."""

    is_time: bool = False
    everywhere: int | None = EARLIEST
    """An offset or milliseconds; None: by partition."""
    each: Mapping[tuple[str, int], int] = field(default_factory=dict)

    def of(self, topic: str, partition: int) -> int:
        if self.everywhere is not None:
            return self.everywhere
        return self.each[topic, partition]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    store: str | None
    data: tuple[str, ...]
    bootstrap: str | None
    topics: tuple[str, ...]
    pattern: str | None
    assigned: Mapping[str, tuple[int, ...]] | None
    starting: Point
    ending: Point
    is_latest_without_match: bool
    """A start by time that no record matches is the end, and no error."""
    read_committed: bool
    headers: bool
    fail_on_data_loss: bool
    partitions_min: int
    task_bytes_max: int
    view: str

    def sources(self) -> list[Source]:
        urls = [*([self.store] if self.store is not None else []), *self.data]
        return [open_source(url) for url in urls]


def read_options(given: Mapping[str, str], *, is_stream: bool | None = False) -> ReadOptions:
    """Check the options of a read, None: of a batch or a stream. Raise BadOption."""
    options = {name.lower(): value for name, value in given.items()}
    _check_names(options)
    sources = _sources(options)
    topics, pattern, assigned = _topics(options)
    starting = _point(options, "starting", LATEST if is_stream else EARLIEST)
    ending = _point(options, "ending", LATEST)
    if is_stream is False and (LATEST in _offsets(starting) or EARLIEST in _offsets(ending)):
        which = "startingOffsets: latest" if LATEST in _offsets(starting) else "endingOffsets: earliest"
        raise BadOption(f"{which} would read nothing: a batch begins before it ends")
    if is_stream and any(name.startswith("ending") for name in options):
        raise BadOption("endingOffsets and the like are for batches: a stream has no end")
    strategy = _one_of(options, "startingOffsetsByTimestampStrategy", "error", ("error", "latest"))
    view = _one_of(options, "view", RECORDS, (RECORDS, BATCHES, RUNS))
    if view != RECORDS and (is_stream or "kafka.bootstrap.servers" in options):
        raise BadOption(f"view {view}: of what lies in a store or a data directory, read as a batch")
    level = "kafka.isolation.level"
    return ReadOptions(
        **sources,
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        starting=starting,
        ending=ending,
        is_latest_without_match=strategy == "latest",
        read_committed=_one_of(options, level, "read_uncommitted", ("read_uncommitted", "read_committed"))
        == "read_committed",
        headers=_flag(options, "includeHeaders", is_so=False),
        fail_on_data_loss=_flag(options, "failOnDataLoss", is_so=True),
        partitions_min=_number(options, "minPartitions", 0),
        task_bytes_max=_number(options, "maxTaskBytes", 64 * MIB),
        view=view,
    )


def _check_names(options: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in KNOWN}
    for name in sorted(options.keys() - known.keys() - PASSED_OVER):
        if name.startswith("kafka."):
            continue
        near = get_close_matches(name, known, 1)
        hint = f"did you mean {known[near[0]]}?" if near else f"there are {', '.join(KNOWN)}"
        raise BadOption(f"option {name} is not known: {hint}")


def _sources(options: Mapping[str, str]) -> dict[str, Any]:
    store = options.get("store")
    data = tuple(each.strip() for each in options.get("data", "").split(",") if each.strip())
    bootstrap = options.get("kafka.bootstrap.servers")
    if store is None and not data and bootstrap is None:
        raise BadOption("give store, data or kafka.bootstrap.servers: nothing says where the topic lies")
    try:
        for url in ([store] if store is not None else []) + list(data):
            open_source(url)
        for each in bootstrap.split(",") if bootstrap is not None else ():
            Address.parse(each)
    except (BadSourceUrl, ValueError) as error:
        raise BadOption(" ".join(f"{error}".split())) from None
    if store is not None and "://" not in store:
        raise BadOption(f"store {store}: give file:///DIR or s3://BUCKET/PREFIX; a data directory is `data`")
    if any("://" in each for each in data):
        raise BadOption(f"data {options['data']}: give paths of data directories, with commas between them")
    return {"store": store, "data": data, "bootstrap": bootstrap}


def _topics(
    options: Mapping[str, str],
) -> tuple[tuple[str, ...], str | None, Mapping[str, tuple[int, ...]] | None]:
    given = [name for name in ("subscribe", "assign", "subscribePattern") if name.lower() in options]
    if len(given) != 1:
        raise BadOption(
            f"give one of subscribe, assign, subscribePattern, not {' and '.join(given) or 'none'}"
        )
    text = options[given[0].lower()]
    if given == ["assign"]:
        found = _json("assign", text)
        assigned = {topic: tuple(sorted(set(each))) for topic, each in found.items() if _are_numbers(each)}
        if len(assigned) != len(found) or not found:
            raise BadOption('assign: give {"topic": [0, 1]}')
        return tuple(sorted(assigned)), None, assigned
    if given == ["subscribePattern"]:
        try:
            re.compile(text)
        except re.error as error:
            raise BadOption(f"subscribePattern {text}: {error}") from None
        return (), text, None
    topics = tuple(sorted({each.strip() for each in text.split(",") if each.strip()}))
    if not topics:
        raise BadOption("subscribe: no topic is named")
    return topics, None, None


def _are_numbers(found: Any) -> bool:
    return isinstance(found, list) and all(type(each) is int and each >= 0 for each in found)


def _point(options: Mapping[str, str], which: str, default: int) -> Point:
    """Read the strongest of the three options that say it, as Spark orders them."""
    everywhere, by_time, by_offset = (
        options.get(f"{which}{rest}") for rest in ("timestamp", "offsetsbytimestamp", "offsets")
    )
    if everywhere is not None:
        return Point(True, _number(options, f"{which}Timestamp", 0))
    if by_time is not None:
        return Point(True, None, _by_partition(f"{which}OffsetsByTimestamp", by_time, 0))
    if by_offset is None:
        return Point(False, default)
    word = by_offset.strip().lower()
    if word in ("earliest", "latest"):
        return Point(False, EARLIEST if word == "earliest" else LATEST)
    return Point(False, None, _by_partition(f"{which}Offsets", by_offset, EARLIEST))


def _offsets(point: Point) -> set[int]:
    if point.is_time:
        return set()
    return {point.everywhere} if point.everywhere is not None else set(point.each.values())


def _by_partition(name: str, text: str, least: int) -> dict[tuple[str, int], int]:
    found = {}
    for topic, each in _json(name, text).items():
        if not isinstance(each, dict):
            raise BadOption(f'{name}: give {{"topic": {{"0": 23}}}}')
        for number, value in each.items():
            if not (number.isascii() and number.isdigit() and type(value) is int and value >= least):
                raise BadOption(f'{name}: {number}: {value} in topic {topic}: give {{"topic": {{"0": 23}}}}')
            found[topic, int(number)] = value
    if not found:
        raise BadOption(f'{name}: give {{"topic": {{"0": 23}}}}')
    return found


def _json(name: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        raise BadOption(f"{name} {text[:80]}: not JSON") from None
    if not isinstance(found, dict):
        raise BadOption(f"{name} {text[:80]}: not a JSON object")
    return found


def _one_of(options: Mapping[str, str], name: str, default: str, values: tuple[str, ...]) -> str:
    found = options.get(name.lower(), default).strip().lower()
    if found not in values:
        raise BadOption(f"{name} {found}: not one of {', '.join(values)}")
    return found


def _flag(options: Mapping[str, str], name: str, *, is_so: bool) -> bool:
    return _one_of(options, name, "true" if is_so else "false", ("true", "false")) == "true"


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name.lower())
    if text is None:
        return default
    if not (text.strip().isascii() and text.strip().isdigit() and len(text) < 19):
        raise BadOption(f"{name} {text}: not a whole number")
    return int(text)
