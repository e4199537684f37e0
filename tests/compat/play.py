"""Playing a generated sequence on two brokers at once, and what to make of the answers.

Owns: one connection for each line of a sequence, answers that are long in coming (a join waits for the other
members), waiting until what Kafka promised has reached every part of it, what a broker gave under the name by
which later steps ask for it. Does not own the steps (sequences) or the normal form of an answer
(differential).
Invariant: both sides get the same steps in the same order, and no answer goes uncompared: one that both hold
back is waited for until the end of the sequence, unless its member asks again.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from struct import unpack_from
from typing import Any

from protocol.apis import Api, is_supported
from protocol.errors import ErrorCode, MalformedRequest
from protocol.messages import decode_response
from tests.clients.blocking import BlockingClient
from tests.compat.differential import Difference, Side, Twins, differences
from tests.compat.peers import until
from tests.compat.sequences import GROUPS, MEMBERS, TOPICS, TRANSACTIONS, Given, Step

# How long both may be silent before a request counts as held back; how long one may answer after the other.
SILENCE_S = 0.15
AFTER_S = 5.0
# Frames that may leave a broker waiting for more bytes.
OPEN_ENDED = frozenset({"size"})

CLIENT_METRICS = 16
CHANGES_METADATA = frozenset(
    {
        Api.CREATE_TOPICS,
        Api.DELETE_TOPICS,
        Api.CREATE_PARTITIONS,
        Api.ALTER_CONFIGS,
        Api.INCREMENTAL_ALTER_CONFIGS,
    }
)
ENDS_TRANSACTIONS = frozenset({Api.END_TXN, Api.INIT_PRODUCER_ID})
BEING_ENDED = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")


@dataclass(slots=True)
class Played:
    """What is counted."""

    sequences: int = 0
    requests: int = 0


class Differs(AssertionError):
    """The two answered differently; says which step, what was sent before it and what differs."""


class Line:
    """One connection to each side, with at most one request under way."""

    def __init__(self, twins: Twins) -> None:
        self.clients = [BlockingClient(side.bootstrap) for side in twins.sides]
        self.frames: list[bytes | str | None] = [None, None]
        self.sent_as = (0, 0)

    def send(self, frames: Sequence[bytes]) -> None:
        self.frames = [None, None]
        self.sent_as = unpack_from(">hh", frames[0] + bytes(8), 4)
        for at, (client, frame) in enumerate(zip(self.clients, frames, strict=True)):
            try:
                client.socket.sendall(frame)
            except ConnectionError:
                self.frames[at] = "closed"

    def wait(self, silence_s: float) -> bool:
        """Whether both have answered, or one has and the other kept silent for too long."""
        for at in (1, 0, 1, 0):
            if self.frames[at] is None:
                self._receive(at, silence_s if self.frames == [None, None] else AFTER_S)
        if self.frames == [None, None]:
            return False
        self.frames = ["no answer" if frame is None else frame for frame in self.frames]
        return True

    @property
    def is_closed(self) -> bool:
        return any(isinstance(frame, str) for frame in self.frames)

    def close(self) -> None:
        for client in self.clients:
            client.socket.close()

    def _receive(self, at: int, timeout_s: float) -> None:
        client = self.clients[at]
        client.socket.settimeout(max(timeout_s, 0.001))
        try:
            self.frames[at] = client.frame()
        except TimeoutError:
            pass
        except ConnectionError:
            self.frames[at] = "closed"


class Player:
    """Plays sequences one after the other on one pair of brokers."""

    def __init__(self, twins: Twins) -> None:
        self.twins = twins
        self.played = Played()
        self._barrier = twins.topic(prefix="seq-barrier")
        self._barriers = count(1)
        self._correlation_ids = count(1)
        self._lines: dict[str, Line] = {}
        self._held: list[tuple[int, Step, Line]] = []
        self._told: list[str] = []

    def play(self, sequence: Sequence[Step]) -> None:
        prefix = f"seq-{secrets.token_hex(4)}-"
        for side in self.twins.sides:
            side.remembered = {"prefix": prefix}
            side.labels = {}
        self._told = []
        try:
            for at, step in enumerate(sequence):
                self._play(at, step)
            self._end(len(sequence))
        finally:
            for line in [*self._lines.values(), *(line for _at, _step, line in self._held)]:
                line.close()
            self._lines.clear()
            self._held.clear()
            self._forget()
        self.played.sequences += 1

    def _play(self, at: int, step: Step) -> None:
        self._told.append(f"  {at}: {step!r}")
        self._give_up(step)
        line = self._lines.get(step.line)
        if line is None:
            line = self._lines[step.line] = Line(self.twins)
        correlation_id = next(self._correlation_ids)
        line.send([step.frame(side, correlation_id) for side in self.twins.sides])
        if is_silent(step):
            if line.wait(SILENCE_S):
                self._compare(at, step, line)
            self._lines.pop(step.line).close()
        elif line.wait(SILENCE_S):
            self._compare(at, step, line)
            if line.is_closed:
                self._lines.pop(step.line).close()
        else:
            self._held.append((at, step, self._lines.pop(step.line)))
        self._collect(0.0)

    def _give_up(self, step: Step) -> None:
        """Kafka never answers a member that asks again before it was answered; ours does."""
        for held in [held for held in self._held if held[1].line == step.line]:
            self._held.remove(held)
            held[2].close()

    def _collect(self, silence_s: float) -> None:
        """Compares what had been held back and has come."""
        for held in list(self._held):
            at, step, line = held
            if line.wait(silence_s):
                self._held.remove(held)
                self._told.append(f"  (the answer to {at})")
                self._compare(at, step, line)
                line.close()

    def _compare(self, at: int, step: Step, line: Line) -> None:
        self.played.requests += 1
        answers = [decoded(line.sent_as, frame) for frame in line.frames]
        for side, answer in zip(self.twins.sides, answers, strict=True):
            keep(side, step, answer)
        if step.api in CHANGES_METADATA:
            self._settle()
        if step.api in ENDS_TRANSACTIONS:
            self._end_transactions()
        ours, theirs = (
            own(side.plain(answer), side.remembered["prefix"])
            for side, answer in zip(self.twins.sides, answers, strict=True)
        )
        found = list(differences(ours, theirs))
        if found and not meant(step, ours, found):
            raise Differs(
                "\n".join(["", *self._told, f"  answers to {at} differ:", *(f"    {one}" for one in found)])
            )

    def _end(self, at: int) -> None:
        """Everybody leaves, which answers what was held back."""
        for group in GROUPS:
            members = [
                {
                    "member_id": Given(f"member {number} of {group.text}"),
                    "group_instance_id": None,
                    "reason": None,
                }
                for number in range(MEMBERS)
            ]
            self._play(at, Step(Api.LEAVE_GROUP, 4, {"group_id": group, "members": members}, line="end"))
        self._end_transactions()
        self._collect(SILENCE_S)

    def _settle(self) -> None:
        """Until every part of Kafka knows of the last change: it tells them one after the other, and a change
        that is made when another is visible is told when that other is through.
        """
        for _ in range(2):
            value = str(10_000_000 + next(self._barriers))
            resource = {"resource_type": 2, "resource_name": self._barrier}
            config = {"name": "retention.ms", "config_operation": 0, "value": value}
            side = self.twins.theirs
            side.client.call(
                Api.INCREMENTAL_ALTER_CONFIGS,
                1,
                resources=[{**resource, "configs": [config]}],
                validate_only=False,
            )

            def is_seen(side: Side = side, resource: Any = resource, value: str = value) -> bool:
                answer = side.client.call(
                    Api.DESCRIBE_CONFIGS,
                    4,
                    resources=[{**resource, "configuration_keys": ["retention.ms"]}],
                    include_synonyms=False,
                    include_documentation=False,
                )
                return bool(answer.results[0].configs[0].value == value)

            until(is_seen, "a change of metadata", pause_s=0.002)
        for side in self.twins.sides:
            self._learn(side)

    def _end_transactions(self) -> None:
        """Until both have written the markers of what was ended: who asks before must wait."""
        for side in self.twins.sides:

            def are_over(side: Side = side) -> bool:
                names = [name(side) for name in TRANSACTIONS]
                answer = side.client.call(Api.DESCRIBE_TRANSACTIONS, 0, transactional_ids=names)
                return not any(row.transaction_state in BEING_ENDED for row in answer.transaction_states)

            until(are_over, "transactions to be over", pause_s=0.002)

    def _learn(self, side: Side) -> None:
        answer = side.client.call(
            Api.METADATA,
            12,
            topics=[{"topic_id": None, "name": name(side)} for name in TOPICS],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        for topic in answer.topics:
            if topic.topic_id is not None:
                side.topic_ids[topic.name] = topic.topic_id

    def _forget(self) -> None:
        """The topics go, so that what a broker keeps does not grow with the sequences."""
        for side in self.twins.sides:
            names = [name(side) for name in TOPICS]
            side.client.call(Api.DELETE_TOPICS, 5, topic_names=names, timeout=10_000)
            for name in names:
                side.topic_ids.pop(name, None)


def is_silent(step: Step) -> bool:
    """Whether an open end or acks=0 leaves nothing to wait for."""
    return (step.damage is not None and step.damage.kind in OPEN_ENDED) or (
        step.api == Api.PRODUCE and step.fields.get("acks") == 0
    )


def decoded(sent_as: tuple[int, int], frame: bytes | str | None) -> Any:
    """The answer as its message; one that is none as it came, without its correlation id."""
    if not isinstance(frame, bytes):
        return frame
    api, version = sent_as
    if not is_supported(api, version):
        api, version = Api.API_VERSIONS, 0
    try:
        return decode_response(api, version, frame)[1]
    except MalformedRequest:
        return frame[4:]


def meant(step: Step, ours: Any, found: Sequence[Difference]) -> bool:
    """Whether tests/differences.tsv has a row for what they differ in; the answer is compared no further."""
    our, their = ({getattr(one, side) for one in found if is_leaf(one)} for side in ("ours", "theirs"))
    match step.api:
        case Api.PRODUCE:
            return all(one.path.endswith(".record_errors") for one in found)  # of a timestamp
        case Api.JOIN_GROUP:
            return ErrorCode.unknown_server_error in their  # pending without an instance id, now with one
        case Api.DESCRIBE_TOPIC_PARTITIONS:
            return ErrorCode.unknown_server_error in their  # an empty name
        case Api.FIND_COORDINATOR:
            return ErrorCode.invalid_request in our  # of a share group
        case Api.FETCH | Api.LIST_OFFSETS:
            return ErrorCode.unknown_server_error in their  # no such isolation level
        case Api.ALTER_CONFIGS | Api.INCREMENTAL_ALTER_CONFIGS:
            is_metrics = any(row["resource_type"] == CLIENT_METRICS for row in ours["responses"])
            return is_metrics or ErrorCode.unknown_server_error in their  # an unknown operation
        case Api.DESCRIBE_CONFIGS:
            return any(row["resource_type"] == CLIENT_METRICS for row in ours["results"])
        case Api.CREATE_TOPICS | Api.DELETE_TOPICS | Api.CREATE_PARTITIONS:
            # a timeout of nothing; partitions whose sum is beyond an int32
            return ErrorCode.request_timed_out in their or ErrorCode.policy_violation in our
        case _:
            return False


def is_leaf(difference: Difference) -> bool:
    return not isinstance(difference.ours, list | dict) and not isinstance(difference.theirs, list | dict)


def keep(side: Side, step: Step, answer: Any) -> None:
    """Under the step's name: what the broker gave."""
    if isinstance(answer, str | bytes) or not step.keeps:
        return
    kept = side.remembered
    if step.api == Api.JOIN_GROUP:
        if answer.member_id:
            kept[step.keeps] = answer.member_id
            side.labels[answer.member_id] = step.keeps
        if answer.generation_id > 0:
            kept[f"generation of {step.keeps.rpartition(' ')[2]}"] = answer.generation_id
    elif step.api == Api.FETCH:
        session_id = getattr(answer, "session_id", 0)
        if session_id and getattr(answer, "error_code", 0) == 0:
            opened = kept.get(step.keeps) != session_id
            kept[step.keeps] = session_id
            kept[f"{step.keeps} epoch"] = 1 if opened else kept[f"{step.keeps} epoch"] + 1
    elif step.api in ENDS_TRANSACTIONS and getattr(answer, "producer_id", None) not in (None, -1):
        kept[step.keeps] = answer.producer_id
        kept[f"{step.keeps} epoch"] = answer.producer_epoch
        side.labels[answer.producer_id] = step.keeps
    elif step.api == Api.CONSUMER_GROUP_HEARTBEAT and answer.error_code == 0:
        kept[f"{step.keeps} epoch"] = max(answer.member_epoch, 0)
        if answer.assignment is not None:
            kept[f"{step.keeps} owned"] = [
                {"topic_id": row.topic_id, "partitions": list(row.partitions)}
                for row in answer.assignment.topic_partitions
            ]


def own(value: Any, prefix: str) -> Any:
    """Without what other sequences left behind in answers that list everything."""
    if isinstance(value, Mapping):
        return {name: own(item, prefix) for name, item in value.items()}
    if isinstance(value, list):
        return [own(item, prefix) for item in value if not is_foreign(item, prefix)]
    return value


def is_foreign(item: Any, prefix: str) -> bool:
    if not isinstance(item, Mapping):
        return False
    names = [item.get(name) for name in ("name", "topic", "group_id", "resource_name", "transactional_id")]
    return any(
        isinstance(name, str) and name.startswith("seq-") and not name.startswith(prefix) for name in names
    )
