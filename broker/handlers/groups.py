"""Requests of the classic group protocol and of committed offsets, in every version, to commands and back.

Owns what a version lacks, renames or wants put otherwise, which topics and partitions exist, and where an
error goes in each response. Does not own groups (`broker.coordinators.groups.machine`) nor which broker
coordinates them (`broker.coordinators.groups.coordinator`).
Invariant: an error of one item stays with that item; every answer comes from the machine or the image alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from broker.control.image import Image, TopicImage
from broker.coordinators.groups.classic import (
    Heartbeat,
    Join,
    JoinReply,
    Leave,
    Leaver,
    Sync,
    SyncReply,
    join_error,
    sync_error,
)
from broker.coordinators.groups.machine import GroupMachine
from broker.coordinators.groups.membership import PROTOCOLS_MAX
from broker.coordinators.groups.offsets import Commit, DeleteGroups, DeleteOffsets, OffsetToCommit
from broker.handlers.coordinators import sorted_by_partition
from broker.handlers.later import Later
from broker.handlers.offset_rows import Named, OffsetRows, Row, to_commit
from broker.handlers.results import ROWS_AT_ONCE, cut_message
from protocol.apis import Api
from protocol.codec import Fields
from protocol.errors import ErrorCode, KafkaError
from protocol.stored.offsets import CommittedOffset
from protocol.work import Work

if TYPE_CHECKING:
    from broker.control.cluster import Cluster
    from broker.coordinators.groups.coordinator import GroupCoordinator
    from broker.handlers.dispatch import Context, Handler
    from broker.turns import Turns
    from protocol.requests.delete_groups import DeleteGroupsRequest
    from protocol.requests.describe_groups import DescribeGroupsRequest
    from protocol.requests.heartbeat import HeartbeatRequest
    from protocol.requests.join_group import JoinGroupRequest
    from protocol.requests.leave_group import LeaveGroupRequest
    from protocol.requests.list_groups import ListGroupsRequest
    from protocol.requests.offset_commit import OffsetCommitRequest, OffsetCommitRequestTopic
    from protocol.requests.offset_delete import OffsetDeleteRequest
    from protocol.requests.offset_fetch import OffsetFetchRequest
    from protocol.requests.sync_group import SyncGroupRequest

_MILLISECOND: Final = timedelta(milliseconds=1)
_NOT_ASKED: Final = -(2**31)
_GROUP_OPERATIONS: Final = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
"""READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS: all there is for a group."""
_LONG_ID: Final = 1_000
"""A group's partition is found by a walk over its id: one so long is a step of its own."""
_TOPIC_IDS_FROM: Final = 10
"""Version of OffsetCommit and of OffsetFetch; it has ids in place of names."""


class TopicAsked(NamedTuple):
    """A topic of an OffsetFetch, by name or by id. Its versions have two structs for it."""

    name: str | None
    topic_id: UUID | None
    partition_indexes: Sequence[int]


class Reader(NamedTuple):
    """Who asks for a group's offsets; most do not say that they are a member."""

    group_id: str
    member_id: str | None = None
    member_epoch: int = -1


class GroupHandlers:
    def __init__(self, *, groups: GroupCoordinator, cluster: Cluster, turns: Turns) -> None:
        self._groups = groups
        self._cluster = cluster
        self._turns = turns

    def routes(self) -> Mapping[int, Handler]:
        return {
            Api.JOIN_GROUP: self.join_group,
            Api.SYNC_GROUP: self.sync_group,
            Api.HEARTBEAT: self.heartbeat,
            Api.LEAVE_GROUP: self.leave_group,
            Api.OFFSET_COMMIT: self.offset_commit,
            Api.OFFSET_FETCH: self.offset_fetch,
            Api.OFFSET_DELETE: self.offset_delete,
            Api.LIST_GROUPS: self.list_groups,
            Api.DESCRIBE_GROUPS: self.describe_groups,
            Api.DELETE_GROUPS: self.delete_groups,
        }

    # --- membership ---

    async def join_group(self, ctx: Context, request: JoinGroupRequest) -> Fields:
        groups = self._groups
        member_id = request.member_id
        session_timeout_ms = request.session_timeout // _MILLISECOND
        rebalance_timeout_ms = request.rebalance_timeout // _MILLISECOND
        instance_id = request.group_instance_id
        try:
            _check_group_id(request.group_id)
            groups.check_session_timeout(session_timeout_ms)
            if len(request.protocols) > PROTOCOLS_MAX:
                raise KafkaError(ErrorCode.invalid_request, f"more than {PROTOCOLS_MAX} protocols")
            reply: JoinReply = await groups.ask(
                request.group_id,
                Join(
                    group_id=request.group_id,
                    member_id=member_id,
                    new_member_id=groups.new_member_id(instance_id or ctx.client_id or "")
                    if not member_id
                    else "",
                    instance_id=instance_id,
                    client_id=ctx.client_id or "",
                    client_host=f"/{ctx.connection.peer_host}",
                    session_timeout_ms=session_timeout_ms,
                    rebalance_timeout_ms=session_timeout_ms
                    if rebalance_timeout_ms == -1
                    else rebalance_timeout_ms,
                    protocol_type=request.protocol_type,
                    protocols=tuple((p.name, bytes(p.metadata)) for p in request.protocols),
                    requires_known_member=ctx.api_version >= 4,
                    can_skip_assignment=ctx.api_version >= 9,
                ),
            )
        except KafkaError as error:
            reply = join_error(error.code, member_id)
        if ctx.api_version < 7 and reply["protocol_name"] is None:
            reply = {**reply, "protocol_name": ""}
        return {"throttle_time": 0, **reply}

    async def sync_group(self, ctx: Context, request: SyncGroupRequest) -> Fields:
        protocol_type, protocol_name = request.protocol_type, request.protocol_name
        try:
            if ctx.api_version >= 5 and (protocol_type is None or protocol_name is None):
                raise KafkaError(ErrorCode.inconsistent_group_protocol)
            _check_group_id(request.group_id)
            assignments = await self._turns.run(_assignments(request))
            reply: SyncReply = await self._groups.ask(
                request.group_id,
                Sync(
                    group_id=request.group_id,
                    member_id=request.member_id,
                    generation=request.generation_id,
                    instance_id=request.group_instance_id,
                    protocol_type=protocol_type,
                    protocol_name=protocol_name,
                    assignments=assignments,
                ),
            )
        except KafkaError as error:
            reply = sync_error(error.code)
        return {"throttle_time": 0, **reply}

    def heartbeat(self, ctx: Context, request: HeartbeatRequest) -> Fields | Later[ErrorCode]:
        later: Later[ErrorCode] = Later(_beaten, _not_beaten)
        try:
            _check_group_id(request.group_id)
            self._groups.tell(
                request.group_id,
                Heartbeat(
                    group_id=request.group_id,
                    member_id=request.member_id,
                    generation=request.generation_id,
                    instance_id=request.group_instance_id,
                ),
                later,
            )
        except KafkaError as error:
            return _not_beaten(error)
        return later

    async def leave_group(self, ctx: Context, request: LeaveGroupRequest) -> Fields:
        if ctx.api_version < 3:
            leavers: tuple[Leaver, ...] = (Leaver(request.member_id),)
        else:
            leavers = await self._turns.run(_leavers(request))
        top = ErrorCode.none
        errors: tuple[ErrorCode, ...] = ()
        try:
            _check_group_id(request.group_id)
            errors = await self._groups.ask(
                request.group_id, Leave(group_id=request.group_id, leavers=leavers)
            )
        except KafkaError as error:
            if error.code is ErrorCode.unknown_member_id:
                errors = (error.code,) * len(leavers)
            else:
                top = error.code
        if ctx.api_version < 3:
            return {"throttle_time": 0, "error_code": errors[0] if errors else top}
        members = await self._turns.run(_left(leavers, errors))
        return {"throttle_time": 0, "error_code": top, "members": members}

    # --- offsets ---

    async def offset_commit(self, ctx: Context, request: OffsetCommitRequest) -> Fields:
        rows: OffsetRows[OffsetToCommit] = OffsetRows()
        topics = await self._turns.run(_rows_to_commit(self._cluster.image, ctx, request, rows))
        if rows.wanted:
            errors = await self._commit(ctx, request, tuple(rows.wanted))
            await self._turns.run(rows.set_errors(errors))
        return {"throttle_time": 0, "topics": topics}

    async def _commit(
        self, ctx: Context, request: OffsetCommitRequest, offsets: tuple[OffsetToCommit, ...]
    ) -> tuple[ErrorCode, ...]:
        command = Commit(
            group_id=request.group_id,
            member_id=request.member_id,
            generation=request.generation_id_or_member_epoch,
            instance_id=request.group_instance_id,
            retention_ms=request.retention_time // _MILLISECOND,
            offsets=offsets,
            knows_epochs=ctx.api_version >= 9,
        )
        try:
            return await self._groups.ask(request.group_id, command)
        except KafkaError as error:
            return (error.code,) * len(offsets)

    def offset_fetch(self, ctx: Context, request: OffsetFetchRequest) -> Work[Fields]:
        is_stable_only = request.require_stable
        if ctx.api_version < 8:
            topics = (
                None
                if request.topics is None
                else (TopicAsked(one.name, None, one.partition_indexes) for one in request.topics)
            )
            reader = Reader(group_id=request.group_id)
            found = yield from self._fetch_group(ctx, reader, topics, is_stable_only)
            return {"throttle_time": 0, **found}
        by_id = ctx.api_version >= _TOPIC_IDS_FROM
        groups: list[Fields] = []
        answered: set[str] = set()
        rows, rows_max = 0, self._cluster.broker_config.request_rows_max
        for group in request.groups:
            yield
            if group.group_id in answered and rows >= rows_max:
                # Kafka repeats all of it as often as it is asked for.
                groups.append(
                    {"group_id": group.group_id, "topics": [], "error_code": ErrorCode.invalid_request}
                )
                continue
            answered.add(group.group_id)
            topics = (
                None
                if group.topics is None
                else (
                    TopicAsked(None if by_id else one.name, one.topic_id, one.partition_indexes)
                    for one in group.topics
                )
            )
            reader = Reader(
                group_id=group.group_id, member_id=group.member_id, member_epoch=group.member_epoch
            )
            found = yield from self._fetch_group(ctx, reader, topics, is_stable_only)
            rows += sum(len(topic["partitions"]) for topic in found["topics"])
            groups.append(found)
        return {"throttle_time": 0, "groups": groups}

    def _fetch_group(
        self, ctx: Context, reader: Reader, topics: Iterable[TopicAsked] | None, is_stable_only: bool
    ) -> Work[Fields]:
        image = self._cluster.image
        group_id = reader.group_id
        try:
            machine = self._groups.machine(group_id)
            machine.check_reader(group_id, reader.member_id, reader.member_epoch)
        except KafkaError as error:
            if ctx.api_version >= 2:
                return {"group_id": group_id, "topics": [], "error_code": error.code}
            failed: list[Fields] = []
            for asked in topics or ():
                partitions = yield from _all_failed(asked, error.code)
                failed.append({"name": asked.name, "partitions": partitions})
            return {"topics": failed}
        if topics is None:
            wants_ids = ctx.api_version >= _TOPIC_IDS_FROM
            rows = yield from _all_offsets(machine, image, group_id, is_stable_only, wants_ids=wants_ids)
        else:
            rows = []
            for asked in topics:
                rows.append((yield from _topic_offsets(machine, image, group_id, asked, is_stable_only)))
        return {"group_id": group_id, "topics": rows, "error_code": ErrorCode.none}

    async def offset_delete(self, ctx: Context, request: OffsetDeleteRequest) -> Fields:
        rows: OffsetRows[tuple[str, int]] = OffsetRows()
        topics = await self._turns.run(_rows_to_delete(self._cluster.image, request, rows))
        try:
            _check_group_id(request.group_id)
            command = DeleteOffsets(group_id=request.group_id, partitions=tuple(rows.wanted))
            errors = await self._groups.ask(request.group_id, command)
        except KafkaError as error:
            return {"throttle_time": 0, "error_code": error.code, "topics": ()}
        await self._turns.run(rows.set_errors(errors))
        return {"throttle_time": 0, "error_code": ErrorCode.none, "topics": topics}

    # --- administration ---

    def list_groups(self, ctx: Context, request: ListGroupsRequest) -> Work[Fields]:
        states = yield from _normal(request.states_filter)
        types = yield from _normal(request.types_filter)
        found: list[Fields] = []
        try:
            for machine in self._groups.machines():
                found += yield from machine.listed(states, types)
                yield
        except KafkaError as error:
            return {"throttle_time": 0, "error_code": error.code, "groups": ()}
        return {"throttle_time": 0, "error_code": ErrorCode.none, "groups": found}

    def describe_groups(self, ctx: Context, request: DescribeGroupsRequest) -> Work[Fields]:
        wants_operations = request.include_authorized_operations
        # Once each: a request that names a large group a thousand times must not get it as often.
        described: dict[str, Fields] = {}
        for at, group_id in enumerate(request.groups, 1):
            if group_id not in described:
                described[group_id] = yield from self._describe(ctx, group_id, wants_operations)
            if len(group_id) > _LONG_ID or at % ROWS_AT_ONCE == 0:
                yield
        return {"throttle_time": 0, "groups": list(described.values())}

    def _describe(self, ctx: Context, group_id: str, wants_operations: bool) -> Work[Fields]:
        try:
            machine = self._groups.machine(group_id)
            found = yield from machine.describe(group_id)
        except KafkaError as error:
            return _undescribed(group_id, error.code, "")
        operations = _GROUP_OPERATIONS if wants_operations else _NOT_ASKED
        if found is None:
            if ctx.api_version < 6:
                # To these clients a dead group is a group like any other.
                return {**_undescribed(group_id, ErrorCode.none, "Dead"), "authorized_operations": operations}
            missing = _undescribed(group_id, ErrorCode.group_id_not_found, "Dead")
            what = "is not a classic group" if group_id in machine.consumers else "not found"
            return {**missing, "error_message": cut_message(f"Group {group_id} {what}.")}
        return {
            **found,
            "error_code": ErrorCode.none,
            "error_message": None,
            "authorized_operations": operations,
        }

    async def delete_groups(self, ctx: Context, request: DeleteGroupsRequest) -> Fields:
        by_partition = await self._turns.run(
            sorted_by_partition(self._groups.partition_for, request.groups_names)
        )
        answers = await asyncio.gather(
            *(self._delete_some(ctx, group_ids) for group_ids in by_partition.values())
        )
        return {"throttle_time": 0, "results": [row for rows in answers for row in rows]}

    async def _delete_some(self, ctx: Context, group_ids: list[str]) -> list[Fields]:
        """Delete groups that share a partition of the coordinator."""
        try:
            errors = await self._groups.ask(group_ids[0], DeleteGroups(group_ids=tuple(group_ids)))
        except KafkaError as error:
            errors = (error.code,) * len(group_ids)
        return await self._turns.run(_deleted(group_ids, errors))


def _beaten(code: ErrorCode) -> Fields:
    return {"throttle_time": 0, "error_code": code}


def _not_beaten(error: KafkaError) -> Fields:
    # While the coordinator loads no session can expire, so members may go on.
    is_loading = error.code is ErrorCode.coordinator_load_in_progress
    return _beaten(ErrorCode.none if is_loading else error.code)


def _assignments(request: SyncGroupRequest) -> Work[dict[str, bytes]]:
    assignments = {}
    for at, one in enumerate(request.assignments, 1):
        assignments[one.member_id] = bytes(one.assignment)
        if at % ROWS_AT_ONCE == 0:
            yield
    return assignments


def _leavers(request: LeaveGroupRequest) -> Work[tuple[Leaver, ...]]:
    leavers = []
    for one in request.members:
        leavers.append(Leaver(one.member_id, one.group_instance_id))
        if len(leavers) % ROWS_AT_ONCE == 0:
            yield
    return tuple(leavers)


def _left(leavers: Sequence[Leaver], errors: Sequence[ErrorCode]) -> Work[list[Fields]]:
    rows: list[Fields] = []
    for leaver, code in zip(leavers, errors, strict=False):
        rows.append(
            {"member_id": leaver.member_id, "group_instance_id": leaver.instance_id, "error_code": code}
        )
        if len(rows) % ROWS_AT_ONCE == 0:
            yield
    return rows


def _deleted(group_ids: Sequence[str], errors: Sequence[ErrorCode]) -> Work[list[Fields]]:
    rows: list[Fields] = []
    for group_id, code in zip(group_ids, errors, strict=True):
        rows.append({"group_id": group_id, "error_code": code})
        if len(rows) % ROWS_AT_ONCE == 0:
            yield
    return rows


def _normal(names: Sequence[str]) -> Work[set[str]]:
    """Return the names of a filter, of which neither case nor spaces around them count."""
    normal = set()
    for at, name in enumerate(names, 1):
        normal.add(name.strip().lower())
        if at % ROWS_AT_ONCE == 0:
            yield
    return normal


def _rows_to_commit(
    image: Image, ctx: Context, request: OffsetCommitRequest, rows: OffsetRows[OffsetToCommit]
) -> Work[list[Fields]]:
    """Return the answer but for the errors of what is to be committed."""
    topics: list[Fields] = []
    for asked in request.topics:
        topic, missing = _find_topic(image, asked, ctx.api_version)
        yield
        answered = yield from rows.add(topic, asked.partitions, to_commit, missing)
        if answered or topic is None:
            topics.append({"name": asked.name, "topic_id": asked.topic_id, "partitions": answered})
    return topics


def _rows_to_delete(
    image: Image, request: OffsetDeleteRequest, rows: OffsetRows[tuple[str, int]]
) -> Work[list[Fields]]:
    """Return the answer but for the errors of what is to be deleted."""
    topics: list[Fields] = []
    for asked in request.topics:
        topic = image.topics.get(asked.name)
        yield
        answered = yield from rows.add(topic, asked.partitions, _to_delete)
        if answered or topic is None:
            topics.append({"name": asked.name, "partitions": answered})
    return topics


def _to_delete(topic: TopicImage, one: Named) -> tuple[str, int]:
    return topic.name, one.partition_index


def _topic_offsets(
    machine: GroupMachine, image: Image, group_id: str, asked: TopicAsked, is_stable_only: bool
) -> Work[Fields]:
    names = {"name": asked.name, "topic_id": asked.topic_id}
    name, topic_id = asked.name, asked.topic_id
    if name is None:
        name = image.topic_names.get(topic_id) if topic_id is not None else None
        if name is None:
            return {**names, "partitions": (yield from _all_failed(asked, ErrorCode.unknown_topic_id))}
    if topic_id is None:
        topic = image.topics.get(name)
        topic_id = topic.id if topic is not None else None
    partitions: list[Fields] = []
    for index in asked.partition_indexes:
        partitions.append(_offset_asked(machine, group_id, name, topic_id, index, is_stable_only))
        if len(partitions) % ROWS_AT_ONCE == 0:
            yield
    yield
    return {**names, "partitions": partitions}


def _offset_asked(
    machine: GroupMachine,
    group_id: str,
    topic: str,
    topic_id: UUID | None,
    index: int,
    is_stable_only: bool,
) -> Fields:
    if is_stable_only and machine.durable.is_pending(group_id, topic, index):
        return _no_offset(index, ErrorCode.unstable_offset_commit)
    offset = machine.durable.get(group_id, topic, index)
    if offset is None or _is_of_another(offset.topic_id, topic_id):
        return _no_offset(index)
    return _offset(index, offset)


def _all_failed(asked: TopicAsked, code: ErrorCode) -> Work[list[Fields]]:
    partitions: list[Fields] = []
    for index in asked.partition_indexes:
        partitions.append(_no_offset(index, code))
        if len(partitions) % ROWS_AT_ONCE == 0:
            yield
    yield
    return partitions


def _all_offsets(
    machine: GroupMachine, image: Image, group_id: str, is_stable_only: bool, *, wants_ids: bool
) -> Work[list[Fields]]:
    rows: list[Fields] = []
    for name in list(machine.durable.offsets.get(group_id, {})):
        topic = image.topics.get(name)
        if wants_ids and topic is None:
            # Without an id there is no way to say which topic this is.
            continue
        found: list[Fields] = []
        yield
        for at, index in enumerate(list(machine.durable.offsets.get(group_id, {}).get(name, {})), 1):
            if at % ROWS_AT_ONCE == 0:
                yield
            offset = machine.durable.get(group_id, name, index)
            if offset is None or (topic is not None and _is_of_another(offset.topic_id, topic.id)):
                continue
            is_pending = is_stable_only and machine.durable.is_pending(group_id, name, index)
            unstable = ErrorCode.unstable_offset_commit
            found.append(_no_offset(index, unstable) if is_pending else _offset(index, offset))
        if found:
            topic_id = topic.id if topic is not None else None
            rows.append({"name": name, "topic_id": topic_id, "partitions": found})
    return rows


def _offset(index: int, offset: CommittedOffset) -> Fields:
    return {
        "partition_index": index,
        "committed_offset": offset.offset,
        "committed_leader_epoch": offset.leader_epoch,
        "metadata": offset.metadata,
        "error_code": ErrorCode.none,
    }


def _no_offset(index: int, code: ErrorCode = ErrorCode.none) -> Fields:
    return {
        "partition_index": index,
        "committed_offset": -1,
        "committed_leader_epoch": -1,
        "metadata": "",
        "error_code": code,
    }


def _undescribed(group_id: str, code: ErrorCode, state: str) -> Row:
    return {
        "group_id": group_id,
        "error_code": code,
        "error_message": None,
        "group_state": state,
        "protocol_type": "",
        "protocol_data": "",
        "members": (),
        "authorized_operations": _NOT_ASKED,
    }


def _check_group_id(group_id: str) -> None:
    """Refuse the empty group id. Committing, fetching, describing and deleting its offsets is allowed, as in
    Kafka.
    """
    if not group_id:
        raise KafkaError(ErrorCode.invalid_group_id)


def _find_topic(
    image: Image, asked: OffsetCommitRequestTopic, version: int
) -> tuple[TopicImage | None, ErrorCode]:
    """Return the topic, by id where the version has ids, and the error for each missing partition."""
    if version < _TOPIC_IDS_FROM:
        return image.topics.get(asked.name), ErrorCode.unknown_topic_or_partition
    topic = image.topic_by_id(asked.topic_id) if asked.topic_id is not None else None
    missing = ErrorCode.unknown_topic_id if topic is None else ErrorCode.unknown_topic_or_partition
    return topic, missing


def _is_of_another(committed: UUID | None, asked: UUID | None) -> bool:
    """Whether an offset belongs to another topic of the same name, one that was deleted."""
    return committed is not None and asked is not None and committed != asked
