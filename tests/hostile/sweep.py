"""The largest requests of every API, version and shape, one after the other, and what the worst of each cost.

Owns: in which sizes a shape is sent, what it may count on while it is sent (a member of a group, a fresh
group), the journal by which an interrupted sweep goes on, and the report. Does not own the shapes, nor the
measurement.
Invariant: each request is sent on a connection of its own, to a broker that serves one API alone; what is
over a limit is measured again, and the median of three counts.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Final

from protocol.apis import SERVED, Api
from protocol.messages import codec
from tests.compat.peers import until
from tests.hostile.ground import AFTER_S, Ground, Hostile, fresh_ground, pause
from tests.hostile.memory import peak_bytes, reset_peak, rss_bytes
from tests.hostile.shapes import TRANSACTIONAL, Kind, Known, Shape, request, shapes_of, versions
from tests.hostile.table import LEFT_MB_MAX, PEAK_MB_MAX, WAIT_MS_MAX, figure

ROWS_MAX: Final = 100_000
"""Rows of a request that is long and still answered, where the broker does not tell its bound."""
ROWS_SETTING: Final = "request.rows.max"
_UNBOUNDED: Final = 1 << 40
_SESSION_MS: Final = 6000
"""The shortest session that brokers allow: members are gone before it is looked what stays in memory."""
_numbers = count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One request of the sweep."""

    api: str
    shape: str
    rows: int
    mb: float
    wait_ms: float
    peak_mb: float
    outcome: str
    """answered, closed, silent, or dead when the broker did not survive it."""
    lost: int = 0

    @property
    def is_within(self) -> bool:
        sound = self.outcome in ("answered", "closed") and not self.lost
        return sound and self.wait_ms <= WAIT_MS_MAX and self.peak_mb <= PEAK_MB_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What stays in memory some time after all requests of an API."""

    api: str
    left_mb: float


def known_for(ground: Ground, shape: Shape) -> Known:
    """What a request finds on the broker: a member of a group of its own where it speaks for one."""
    names = {each.name for each in codec(shape.api, shape.version, "request").schema.fields}
    fields: dict[str, Any] = {"session_timeout": _SESSION_MS}
    if shape.api in TRANSACTIONAL:
        return begun(ground, replace(ground.known, fields=fields))
    if shape.api is Api.CONSUMER_GROUP_HEARTBEAT:
        return assigned(ground, replace(ground.known, fields=fields))
    if "member_id" in names:
        fields["group_id"] = f"group-{next(_numbers)}"
        if shape.api is not Api.JOIN_GROUP:
            return joined(ground, replace(ground.known, fields=fields))
    return replace(ground.known, fields=fields)


def joined(ground: Ground, known: Known) -> Known:
    group = known.fields["group_id"]
    with ground.client() as client:
        client.call(Api.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[group])
        answer = client.call(
            Api.JOIN_GROUP,
            3,
            group_id=group,
            session_timeout=_SESSION_MS,
            rebalance_timeout=_SESSION_MS,
            member_id="",
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": b""}],
        )
    assert answer.error_code == 0, answer
    return replace(known, member_id=answer.member_id, generation=answer.generation_id)


def begun(ground: Ground, known: Known) -> Known:
    """A producer of a transactional id of its own, with nothing open."""
    transactional_id = f"id-{next(_numbers)}"
    return replace(
        known, transactional_id=transactional_id, producer=begun_producer(ground, transactional_id)
    )


def begun_producer(ground: Ground, transactional_id: str) -> tuple[int, int]:
    with ground.client() as client:

        def begin() -> Any:
            client.call(Api.FIND_COORDINATOR, 4, key_type=1, coordinator_keys=[transactional_id])
            answer = client.call(
                Api.INIT_PRODUCER_ID,
                4,
                transactional_id=transactional_id,
                transaction_timeout=60_000,
                producer_id=-1,
                producer_epoch=-1,
            )
            return answer if answer.error_code == 0 else None

        answer = until(begin, f"a producer of {transactional_id}")
    return answer.producer_id, answer.producer_epoch


def assigned(ground: Ground, known: Known) -> Known:
    """A member of a group of its own that the broker assigns; what is sent is its next heartbeat."""
    group, member_id = f"group-{next(_numbers)}", "member"
    with ground.client() as client:

        def join() -> Any:
            client.call(Api.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[group])
            answer = client.call(
                Api.CONSUMER_GROUP_HEARTBEAT,
                1,
                group_id=group,
                member_id=member_id,
                member_epoch=0,
                rebalance_timeout=_SESSION_MS,
                subscribed_topic_names=[known.topic],
                topic_partitions=[],
            )
            return answer if answer.error_code == 0 else None

        answer = until(join, f"a member of {group}")
    return replace(
        known,
        member_id=member_id,
        generation=answer.member_epoch,
        fields={**known.fields, "group_id": group, "rebalance_timeout": _SESSION_MS},
    )


def bounds(shape: Shape, rows_max: int) -> list[int]:
    """In how many rows it is sent: as many as are answered, and as many as fit a frame."""
    return [_UNBOUNDED] if shape.kind in (Kind.BLOB, Kind.LONGEST) else [rows_max, _UNBOUNDED]


def rows_max_of(ground: Ground) -> int:
    with ground.client() as client:
        answer = client.call(
            Api.DESCRIBE_CONFIGS,
            4,
            resources=[
                {"resource_type": 4, "resource_name": "1", "configuration_keys": [ROWS_SETTING]},
            ],
        )
    values = [config.value for result in answer.results for config in result.configs]
    return int(values[0]) if values and values[0] else ROWS_MAX


def chosen(seed: int) -> Iterator[Shape]:
    """One shape of each API, other ones for each seed."""
    dice = random.Random(seed)
    for key in SERVED:
        found = [shape for api, version in versions() if api == key for shape in shapes_of(api, version)]
        yield dice.choice([each for each in found if each.kind is not Kind.BLOB] or found)


class Sweep:
    def __init__(self, journal: Path, *, newest_only: bool = False, only: Sequence[str] = ()) -> None:
        self._journal = journal
        self._newest_only = newest_only
        self._only = only
        self.sent: list[Sent] = []
        self.left: list[Left] = []
        if journal.exists():
            for line in journal.read_text().splitlines():
                row = json.loads(line)
                if "shape" in row:
                    self.sent.append(Sent(**row))
                else:
                    self.left.append(Left(**row))

    def run(self) -> Iterator[Sent | Left]:
        """Send what the journal does not have yet, telling each."""
        done = Counter(each.shape for each in self.sent)
        ended = {each.api for each in self.left}
        for key, row in SERVED.items():
            if row.name in ended or (self._only and row.name not in self._only):
                continue
            shapes = [
                shape
                for api, version in versions()
                if api == key and (not self._newest_only or version == row.max_version)
                for shape in shapes_of(api, version)
            ]
            yield from self._api(row.name, shapes, done)

    def _api(self, name: str, shapes: Sequence[Shape], done: Counter[str]) -> Iterator[Sent | Left]:
        todo = list(shapes)
        while todo:
            with fresh_ground() as ground:
                rows_max = rows_max_of(ground)
                rest = rss_bytes(ground.pid)
                while todo and ground.broker.process.poll() is None:
                    shape = todo.pop(0)
                    for rows in bounds(shape, rows_max)[done[str(shape)] :]:
                        yield self._note(self.sent, settled(ground, shape, rows, rest))
                        if ground.broker.process.poll() is not None:
                            break
                if ground.broker.process.poll() is None:
                    pause(AFTER_S)
                    left = (rss_bytes(ground.pid) - rest) / 1e6
                    yield self._note(self.left, Left(api=name, left_mb=left))

    def _note(self, rows: list[Any], row: Any) -> Any:
        rows.append(row)
        self._journal.parent.mkdir(exist_ok=True)
        with self._journal.open("a") as journal:
            journal.write(json.dumps(asdict(row)) + "\n")
        return row


def settled(ground: Ground, shape: Shape, rows_max: int, rest: int) -> Sent:
    """Send it, and twice more when it was slow: the median wait counts, and the worst of all else."""
    first = send(ground, shape, rows_max, rest)
    if first.wait_ms <= WAIT_MS_MAX or first.outcome == "dead":
        return first
    each = [first]
    while len(each) < 3 and each[-1].outcome != "dead":
        each.append(send(ground, shape, rows_max, rest))
    return replace(
        first,
        wait_ms=median(one.wait_ms for one in each),
        peak_mb=max(one.peak_mb for one in each),
        lost=max(one.lost for one in each),
        outcome=each[-1].outcome,
    )


def send(ground: Ground, shape: Shape, rows_max: int, rest: int) -> Sent:
    ground.ensure_topic(ground.known.topic)
    frame, rows = request(shape, known_for(ground, shape), rows_max=rows_max)
    ground.seen()
    reset_peak(ground.pid)
    with ExitStack() as stack:
        outcome = outcome_of(stack.enter_context(Hostile(ground.dial())), frame)
    is_dead = ground.broker.process.poll() is not None
    seen = ground.seen()
    return Sent(
        api=SERVED[shape.api].name,
        shape=str(shape),
        rows=rows,
        mb=len(frame) / 1e6,
        wait_ms=seen.longest_ms,
        peak_mb=0.0 if is_dead else (peak_bytes(ground.pid) - rest) / 1e6,
        outcome="dead" if is_dead else outcome,
        lost=seen.lost + seen.refused,
    )


def outcome_of(connection: Hostile, frame: bytearray) -> str:
    said = connection.ask(frame)
    return "answered" if "answered" in said else "closed" if "closed" in said else "silent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Worst:
    """One row of the report."""

    api: str
    requests: int
    answered: int
    closed: int
    wait: Sent
    peak: Sent
    left_mb: float
    unsound: tuple[str, ...]
    """What was neither answered nor closed, ended the broker, or had honest requests fail."""

    @property
    def is_within(self) -> bool:
        return (
            self.wait.wait_ms <= WAIT_MS_MAX
            and self.peak.peak_mb <= PEAK_MB_MAX
            and self.left_mb <= LEFT_MB_MAX
            and not self.unsound
        )


def worst(sent: Sequence[Sent], left: Sequence[Left]) -> list[Worst]:
    left_of = {each.api: each.left_mb for each in left}
    found = []
    for api in dict.fromkeys(each.api for each in sent):
        rows = [each for each in sent if each.api == api]
        outcomes = Counter(each.outcome for each in rows)
        found.append(
            Worst(
                api=api,
                requests=len(rows),
                answered=outcomes["answered"],
                closed=outcomes["closed"],
                wait=max(rows, key=lambda each: each.wait_ms),
                peak=max(rows, key=lambda each: each.peak_mb),
                left_mb=left_of.get(api, 0.0),
                unsound=tuple(
                    f"{each.shape}: {each.outcome}, {each.lost} lost"
                    for each in rows
                    if each.outcome not in ("answered", "closed") or each.lost
                ),
            )
        )
    return found


def markdown(rows: Sequence[Worst]) -> str:
    heads = [
        *("API", "requests", "answered", "closed", "longest wait, ms", "of", "peak above rest, MB", "of"),
        *("left after 10 s, MB", "unsound"),
    ]
    lines = [f"| {' | '.join(heads)} |", "|---|--:|--:|--:|--:|---|--:|---|--:|---|"]
    for row in rows:
        cells = [
            row.api if row.is_within else f"**{row.api}**",
            f"{row.requests:,}",
            f"{row.answered:,}",
            f"{row.closed:,}",
            figure(row.wait.wait_ms, WAIT_MS_MAX),
            of(row.wait),
            figure(row.peak.peak_mb, PEAK_MB_MAX),
            of(row.peak),
            figure(row.left_mb, LEFT_MB_MAX),
            "; ".join(row.unsound[:3]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    total = sum(row.requests for row in rows)
    within = sum(row.is_within for row in rows)
    return "\n".join(lines) + f"\n\n{total:,} requests, {within} of {len(rows)} APIs within\n"


def of(sent: Sent) -> str:
    return f"{sent.shape.partition(' ')[2]}, {sent.rows:,} rows"
