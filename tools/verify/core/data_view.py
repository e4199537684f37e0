"""The data directories as one look at them shows: whose they are, and which logs are to be read.

Owns what directories and logs say of themselves against the cluster's metadata, and their cut into pieces.
Does not own listing a directory (directory) or reading a log (log_scan). Invariant: a log is read under the
id of its topic that it says itself; one that says none goes by its name, if the cluster has that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tools.verify.core.directory import DIRECTORY_UNKNOWN, PROPERTIES, Directory, Log, list_directory
from tools.verify.core.facts import Fault
from tools.verify.core.findings import Finding, Severity, declare
from tools.verify.core.meta_fold import State
from tools.verify.core.outcome import Unread
from tools.verify.core.plan import LogUnit
from tools.verify.core.stores import Source, SourceFailed

META_DIRECTORY_DIFFERS = declare(
    "meta-directory-differs",
    Severity.ERROR,
    "A data directory says that it belongs to another cluster or broker than the metadata log does.",
    "It is not this broker's, or the broker came up with another directory; do not start it with this one.",
)


class OwnLog(NamedTuple):
    """A log with where it lies."""

    directory: int
    node: int
    """Of the broker, -1 unknown."""
    topic_id: str
    log: Log


@dataclass(slots=True)
class DataView:
    """What one look at all directories gave."""

    directories: list[Directory] = field(default_factory=list)
    logs: list[OwnLog] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)

    @property
    def files(self) -> int:
        return sum(len(own.log.files) for own in self.logs)

    @property
    def size(self) -> int:
        return sum(each.size for own in self.logs for each in own.log.files)

    @property
    def is_live(self) -> bool:
        """Whether any of their brokers may be running."""
        return any(not each.is_clean for each in self.directories)


def view_directories(sources: Sequence[Source], states: Sequence[State]) -> DataView:
    """List the directories. `states`: of the cluster, the newest last."""
    found = DataView()
    by_name = {topic.name: topic.topic_id for state in states for topic in state.topics.values()}
    for number, source in enumerate(sources):
        try:
            directory = list_directory(source, number)
        except SourceFailed as error:
            found.unread.append(Unread(f"{number}:", str(error)))
            continue
        found.directories.append(directory)
        node = directory.properties.get("node.id", "")
        for log in directory.logs:
            topic_id = log.topic_id or by_name.get(log.topic, "")
            own = OwnLog(number, int(node) if node.isdecimal() and len(node) < 10 else -1, topic_id, log)
            found.logs.append(own)
    return found


def log_units(view: DataView, size_max: int) -> Iterator[LogUnit]:
    """Yield the pieces of all logs that say to which topic they belong."""
    for own in view.logs:
        log = own.log
        if not own.topic_id:
            continue
        for bases in log.parts(size_max):
            yield LogUnit(
                own.directory, own.node, log.name, log.topic, own.topic_id, log.partition, log.files,
                log.recovery_point, log.high_watermark, log.log_start, log.is_live, bases,
            )  # fmt: skip


def judge_directories(view: DataView, states: Sequence[State], *, has_image: bool) -> list[Finding]:
    """Say what is wrong with directories and with logs that cannot be anybody's.

    `states`: of the cluster, before and after the listing. `has_image`: whether they lack nothing.
    """
    found: list[Finding] = []
    for directory in view.directories:
        ids = {own.log.name: own for own in view.logs if own.directory == directory.number}
        for name, fault in directory.faults:
            own = ids.get(name)
            found.append(_finding(fault, own.topic_id if own else "", own.log.partition if own else -1))
        if has_image:
            found += _strange(directory, states)
    topics = {topic_id for state in states for topic_id in state.topics}
    told = {(each.place.partition("/")[0]) for each in found}
    for own in view.logs:
        place = f"{own.directory}:{own.log.name}"
        if place in told:
            continue
        if not own.topic_id:
            found.append(Finding(DIRECTORY_UNKNOWN, place=place, actual="it does not say to which topic"))
        elif has_image and own.topic_id not in topics:
            found.append(Finding(DIRECTORY_UNKNOWN, own.topic_id, own.log.partition, place=place))
    return found


def _finding(fault: Fault, topic_id: str, partition: int) -> Finding:
    return Finding(
        fault.code, topic_id, partition, fault.first, fault.end, fault.place, fault.position, fault.expected,
        fault.actual,
    )  # fmt: skip


def _strange(directory: Directory, states: Sequence[State]) -> Iterator[Finding]:
    place = f"{directory.number}:{PROPERTIES}"
    properties = directory.properties
    for name, known in (
        ("cluster.id", {state.cluster_id for state in states}),
        ("node.id", {str(number) for state in states for number in state.brokers}),
        ("directory.id", set(_directories(states, properties.get("node.id", "")))),
    ):
        if (told := properties.get(name, "")) not in known and known:
            expected = " or ".join(sorted(known))
            yield Finding(META_DIRECTORY_DIFFERS, place=place, expected=f"{name} {expected}", actual=told)


def _directories(states: Sequence[State], node: str) -> Iterable[str]:
    for state in states:
        for broker in state.brokers.values():
            if str(broker.id) == node:
                yield from broker.directories
