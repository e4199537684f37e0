"""Requests of the protocol by which the server assigns (KIP-848), in every version, to commands and back.

Owns what makes such a request invalid by itself, and the shape of the answers. Does not own groups
(`broker.coordinators.groups.modern`), nor which broker coordinates them
(`broker.coordinators.groups.coordinator`).
Invariant: a request that Kafka refuses before it looks at the group is refused here, in Kafka's words.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from broker.coordinators.groups.consumer_group import count_of
from broker.coordinators.groups.modern.heartbeat import ConsumerHeartbeat
from broker.coordinators.groups.modern.reconcile import Claim
from broker.handlers.later import Again, Later
from broker.handlers.results import ROWS_AT_ONCE, message_of
from protocol.apis import Api
from protocol.codec import Fields
from protocol.errors import ErrorCode, KafkaError
from protocol.primitives import Buffer, read_text
from protocol.work import Work, finish

if TYPE_CHECKING:
    from broker.coordinators.groups.coordinator import GroupCoordinator
    from broker.coordinators.groups.modern.heartbeat import HeartbeatReply
    from broker.handlers.dispatch import Context, Handler
    from broker.turns import Turns
    from protocol.requests.consumer_group_describe import ConsumerGroupDescribeRequest
    from protocol.requests.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
    from protocol.stored.consumer_groups import Owned

_MILLISECOND: Final = timedelta(milliseconds=1)
_OWN_MEMBER_ID_FROM: Final = 1
"""Version from which a member chooses its id."""
_LONG_ID: Final = 1_000
_NUMBERS_AT_ONCE: Final = 1_024
_SHORT_TOPICS: Final = 4
TOPICS_MAX: Final = 20_000
"""That one member may name; whoever wants more has an expression for them."""
_GROUP_OPERATIONS: Final = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
"""READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS: all there is for a group."""
_NOT_ASKED: Final = -(2**31)


class ConsumerGroupHandlers:
    def __init__(
        self, *, groups: GroupCoordinator, turns: Turns, is_on: Callable[[], bool] = lambda: True
    ) -> None:
        """`is_on` tells whether settings and features let groups of this protocol be served."""
        self._groups = groups
        self._turns = turns
        self._is_on = is_on

    def routes(self) -> Mapping[int, Handler]:
        return {
            Api.CONSUMER_GROUP_HEARTBEAT: self.heartbeat,
            Api.CONSUMER_GROUP_DESCRIBE: self.describe,
        }

    def heartbeat(
        self, ctx: Context, request: ConsumerGroupHeartbeatRequest
    ) -> Fields | Later[HeartbeatReply] | Awaitable[Fields]:
        self._check_on()
        try:
            _check(ctx, request, self._groups.consumer_assignors)
            work = self._command(ctx, request)
            if not _is_short(request):
                return self._long_heartbeat(request.group_id, work)
            command = finish(work)
            if command.tells_nothing_new and command.member_epoch > 0:
                ctx.again = Again(_epoch_places, partial(self._heartbeat_again, command))
            return self._tell(request.group_id, command)
        except KafkaError as error:
            return _refused(error)

    def _heartbeat_again(
        self, command: ConsumerHeartbeat, said: tuple[int, ...]
    ) -> Fields | Later[HeartbeatReply] | None:
        """Answer a heartbeat like that one, from the same client; None for one that leaves or joins."""
        (member_epoch,) = said
        if member_epoch <= 0:
            return None
        self._check_on()
        try:
            return self._tell(command.group_id, command.in_epoch(member_epoch))
        except KafkaError as error:
            return _refused(error)

    async def _long_heartbeat(self, group_id: str, work: Work[ConsumerHeartbeat]) -> Fields:
        try:
            answer = await self._tell(group_id, await self._turns.run(work)).wait()
        except KafkaError as error:
            return _refused(error)
        return answer if isinstance(answer, Mapping) else await self._turns.run(answer)

    def _tell(self, group_id: str, command: ConsumerHeartbeat) -> Later[HeartbeatReply]:
        def answered(reply: HeartbeatReply) -> Fields | Work[Fields]:
            self._groups.look_up_regexes(group_id)
            return _answer(reply)

        later: Later[HeartbeatReply] = Later(answered, _refused)
        self._groups.tell(group_id, command, later)
        return later

    def _check_on(self) -> None:
        if not self._is_on():
            raise KafkaError(ErrorCode.unsupported_version)

    def _command(self, ctx: Context, request: ConsumerGroupHeartbeatRequest) -> Work[ConsumerHeartbeat]:
        names = request.subscribed_topic_names
        if names is not None and len(names) > TOPICS_MAX:
            raise _invalid(f"more than {TOPICS_MAX} topic names")
        claims = None
        if request.topic_partitions is not None:
            claims = yield from _claims(request)
        return ConsumerHeartbeat(
            group_id=request.group_id,
            member_id=request.member_id or self._new_member_id(),
            member_epoch=request.member_epoch,
            instance_id=request.instance_id,
            rack_id=request.rack_id,
            rebalance_timeout_ms=request.rebalance_timeout // _MILLISECOND,
            topics=None if names is None else tuple(sorted(set(names))),
            regex=request.subscribed_topic_regex,
            assignor=request.server_assignor,
            claims=claims,
            client_id=ctx.client_id or "",
            client_host=f"/{ctx.connection.peer_host}",
        )

    def _new_member_id(self) -> str:
        """Return an id as Kafka makes them."""
        return urlsafe_b64encode(self._groups.new_uuid().bytes).rstrip(b"=").decode()

    def describe(self, ctx: Context, request: ConsumerGroupDescribeRequest) -> Work[Fields]:
        self._check_on()
        operations = _GROUP_OPERATIONS if request.include_authorized_operations else _NOT_ASKED
        # Once each: a request that names a large group a thousand times must not get it as often.
        described: dict[str, Fields] = {}
        for at, group_id in enumerate(request.group_ids, 1):
            if group_id not in described:
                described[group_id] = yield from self._describe(group_id, operations)
            if len(group_id) > _LONG_ID or at % ROWS_AT_ONCE == 0:
                yield
        return {"throttle_time": 0, "groups": list(described.values())}

    def _describe(self, group_id: str, operations: int) -> Work[Fields]:
        try:
            if not group_id:
                raise KafkaError(ErrorCode.invalid_group_id)
            found = yield from self._groups.machine(group_id).describe_consumers(group_id)
        except KafkaError as error:
            return {
                "group_id": group_id,
                "error_code": error.code,
                "error_message": message_of(error),
                "group_state": "",
                "group_epoch": 0,
                "assignment_epoch": 0,
                "assignor_name": "",
                "members": (),
                "authorized_operations": _NOT_ASKED,
            }
        return {
            **found,
            "error_code": ErrorCode.none,
            "error_message": None,
            "authorized_operations": operations,
        }


def _epoch_places(frame: Buffer, body_at: int) -> tuple[int]:
    """Return where a heartbeat has the epoch of its member: after the ids of the group and the member."""
    view = memoryview(frame)
    _, at = read_text(view, body_at, True)
    _, at = read_text(view, at, True)
    return (at,)


def _refused(error: KafkaError) -> Fields:
    return {
        "throttle_time": 0,
        "error_code": error.code,
        "error_message": message_of(error),
        "member_epoch": 0,
        "heartbeat_interval": 0,
    }


def _answer(reply: HeartbeatReply) -> Fields | Work[Fields]:
    assignment = reply["assignment"]
    fields = {
        "throttle_time": 0,
        "error_code": ErrorCode.none,
        "member_id": reply["member_id"],
        "member_epoch": reply["member_epoch"],
        "heartbeat_interval": reply["heartbeat_interval_ms"],
        "assignment": None,
    }
    if assignment is None:
        return fields
    work = _with_assignment(fields, assignment)
    is_short = len(assignment) < _SHORT_TOPICS and count_of(assignment) <= ROWS_AT_ONCE
    return finish(work) if is_short else work


def _with_assignment(fields: dict[str, object], assignment: Owned) -> Work[Fields]:
    fields["assignment"] = {"topic_partitions": (yield from _partitions(assignment))}
    return fields


def _check(ctx: Context, request: ConsumerGroupHeartbeatRequest, assignors: tuple[str, ...]) -> None:
    """Refuse what is wrong whatever the group."""
    epoch = request.member_epoch
    if ctx.api_version >= _OWN_MEMBER_ID_FROM or epoch > 0 or epoch == -1:
        _check_text(request.member_id, "MemberId can't be empty.")
    _check_text(request.group_id, "GroupId can't be empty.")
    _check_text(request.instance_id, "InstanceId can't be empty.")
    _check_text(request.rack_id, "RackId can't be empty.")
    if epoch == 0:
        if request.rebalance_timeout // _MILLISECOND == -1:
            raise _invalid("RebalanceTimeoutMs must be provided in first request.")
        if request.topic_partitions is None or request.topic_partitions:
            raise _invalid("TopicPartitions must be empty when (re-)joining.")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            raise _invalid(
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
            )
    elif epoch == -2:
        if request.instance_id is None:
            raise _invalid("InstanceId can't be null.")
    elif epoch < -2:
        raise _invalid("MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise KafkaError(
            ErrorCode.unsupported_assignor,
            f"ServerAssignor {request.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(assignors)}.",
        )


def _check_text(text: str | None, otherwise: str) -> None:
    if text is not None and not text.strip():
        raise _invalid(otherwise)


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_request, message)


def _is_short(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether it names so few topics that it is read in one step."""
    return (
        len(request.topic_partitions or ()) < _SHORT_TOPICS
        and len(request.subscribed_topic_names or ()) < _SHORT_TOPICS
    )


def _claims(request: ConsumerGroupHeartbeatRequest) -> Work[tuple[Claim, ...]]:
    claims = []
    for row in request.topic_partitions or ():
        partitions: set[int] = set()
        for at in range(0, len(row.partitions), _NUMBERS_AT_ONCE):
            partitions.update(row.partitions[at : at + _NUMBERS_AT_ONCE])
            if at:
                yield
        claims.append(Claim(row.topic_id, partitions))
        if len(claims) % ROWS_AT_ONCE == 0:
            yield
    return tuple(claims)


def _partitions(assignment: Owned) -> Work[list[Fields]]:
    rows: list[Fields] = []
    for topic_id, partitions in assignment.items():
        rows.append({"topic_id": topic_id, "partitions": sorted(partitions)})
        if len(rows) % ROWS_AT_ONCE == 0:
            yield
    return rows
