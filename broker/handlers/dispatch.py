"""From a frame to its handler and back: the only place where exceptions become error codes.

Owns: which handler an API has, what a broken request costs the client (its connection), what a failed one is
answered, and the request counters. Does not own: framing and order (network), meaning (handlers). Invariant:
every request gets one answer, or its connection is closed; a client's mistake is one line in the log and
never a stack trace.

Produce and Fetch have handlers of their own shape (they work on the frame and may stall or pipeline); all
other APIs are `Handler`s over decoded requests. What a request may do (its principal, its quota) joins here
and in the Produce template as a decision that was prepared when the connection or its metadata changed, not
as work for each request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from broker.net.server import Answer, Connection, Disconnect, Frame
from broker.replicas.partition import Partition
from protocol.apis import KNOWN, PEER, SERVED, Api, PeerApi, is_supported
from protocol.errors import ErrorCode, KafkaError, MalformedRequest
from protocol.messages import Fields, decode_request, encode_response, get
from protocol.wire import RequestHead, parse_head

if TYPE_CHECKING:
    from broker.server import Components

logger = logging.getLogger(__name__)

_HEAD: Final = Struct(">Ii").unpack_from
_API_VERSIONS_FALLBACK: Final = 0
_SIZE: Final = Struct(">i")
FOR_THE_CONTROLLER: Final = frozenset(
    {
        Api.CREATE_TOPICS,
        Api.DELETE_TOPICS,
        Api.CREATE_PARTITIONS,
        Api.ELECT_LEADERS,
        Api.ALTER_PARTITION_REASSIGNMENTS,
        Api.LIST_PARTITION_REASSIGNMENTS,
        Api.UNREGISTER_BROKER,
        Api.DESCRIBE_QUORUM,
    }
)
"""Any broker takes these from a client; the controller alone can answer them."""
PASSED_ON: Final = FOR_THE_CONTROLLER | {Api.ALTER_CONFIGS, Api.INCREMENTAL_ALTER_CONFIGS}
"""The last two by their handlers, because a broker judges its own settings first."""


@dataclass(slots=True, kw_only=True)
class Context:
    """What a handler knows about a request besides its body."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    connection: Connection
    broker: Components
    is_passed_on: bool = False
    """By the broker that a client had asked, to this one as the controller."""


Handler: TypeAlias = Callable[[Context, Any], "Fields | Awaitable[Fields]"]


class FrameHandler(Protocol):
    """Handles a frame of one API as a whole."""

    def handle(
        self, connection: Connection, frame: Frame, *, version: int, correlation_id: int, body_at: int
    ) -> Answer: ...


class ProduceFrames(FrameHandler, Protocol):
    def repeat(self, connection: Connection, frames: Sequence[Frame], at: int, answers: list[Any]) -> int:
        """Handles frames from `at` on while they are Produces whose head was seen before; where it stopped.
        `handle` does the same by the long way."""


class FetchFrames(FrameHandler, Protocol):
    def repeat(self, connection: Connection, frame: Frame) -> Answer:
        """Answers a Fetch that goes on as the last one did; None for any other, which `handle` takes."""


class Dispatcher:
    """The service behind the connections."""

    def __init__(
        self,
        *,
        components: Components,
        handlers: Mapping[int, Handler],
        produce: ProduceFrames,
        fetch: FetchFrames,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        missing = SERVED.keys() - handlers.keys() - {Api.PRODUCE, Api.FETCH}
        assert not missing, f"served without a handler: {missing}"
        self._components = components
        self._replicas = components.replicas
        self._handlers = {int(api): handler for api, handler in handlers.items()}
        self._handlers[PeerApi.ENVELOPE] = self._envelope
        self._produce = produce
        self._repeat = produce.repeat
        self._fetch = fetch
        self._spawn = spawn
        self._counts = components.metrics.requests
        self._errors = components.metrics.errors
        self._logged: set[tuple[object, ...]] = set()
        self._written: list[Partition] = []

    def repeat(self, connection: Connection, frames: Sequence[Frame], at: int, answers: list[Any]) -> int:
        try:
            stop = self._repeat(connection, frames, at, answers)
        except Exception as error:
            self._log_once("a repeated Produce", error)
            raise Disconnect("it asked for something this broker fails at") from None
        self._counts[Api.PRODUCE] += stop - at
        return stop

    def handle(self, connection: Connection, frame: Frame) -> Answer:
        try:
            kind, correlation_id = _HEAD(frame)
            return self._handle(connection, frame, kind >> 16, kind & 0xFFFF, correlation_id)
        except Disconnect:
            raise
        except MalformedRequest as error:
            raise Disconnect(str(error)) from None
        except StructError:
            raise Disconnect(f"a request of {len(frame)} bytes has no header") from None
        except Exception as error:
            self._log_once("a request", error)
            raise Disconnect("it asked for something this broker fails at") from None

    def settle(self) -> list[Partition]:
        flushed = self._replicas.flush() if self._replicas.touched else []
        if not self._written:
            return flushed
        written, self._written = self._written, []
        return written + flushed

    def settled(self, settlement: list[Partition]) -> None:
        if settlement:
            self._replicas.wake(settlement)

    def _handle(
        self, connection: Connection, frame: Frame, api_key: int, version: int, correlation_id: int
    ) -> Answer:
        if api_key == Api.FETCH and connection.fetch_seen is not None:
            self._write_first()
            answer = self._fetch.repeat(connection, frame)
            if answer is not None:
                self._counts[api_key] += 1
                return answer
        if api_key in PEER:
            self._check_peer(connection, api_key)
        if not is_supported(api_key, version):
            if api_key == Api.API_VERSIONS:
                return _unsupported_api_versions(correlation_id)
            row = KNOWN.get(api_key)
            name = f"API {api_key}" if row is None else row.name
            raise Disconnect(f"{name} version {version} is not served")
        self._counts[api_key] += 1
        head = parse_head(frame)
        if api_key == Api.PRODUCE:
            return self._produce.handle(
                connection, frame, version=version, correlation_id=correlation_id, body_at=head.body_at
            )
        self._write_first()
        if api_key == Api.FETCH:
            return self._fetch.handle(
                connection, frame, version=version, correlation_id=correlation_id, body_at=head.body_at
            )
        context = self._context(connection, head)
        request = decode_request(api_key, version, memoryview(frame)[head.body_at :])
        if api_key in FOR_THE_CONTROLLER and not self._components.cluster.is_controller:
            slot = connection.slot()
            self._spawn(self._finish(context, request, self._forward(bytes(frame)), slot))
            return slot
        return self._call(context, request)

    def _context(self, connection: Connection, head: RequestHead, *, is_passed_on: bool = False) -> Context:
        return Context(
            api_key=head.api_key,
            api_version=head.api_version,
            correlation_id=head.correlation_id,
            client_id=head.client_id,
            connection=connection,
            broker=self._components,
            is_passed_on=is_passed_on,
        )

    async def _forward(self, frame: bytes) -> bytes:
        answer = await self._components.cluster.forwarding.ask(frame)
        return _SIZE.pack(len(answer)) + answer

    async def _envelope(self, outer: Context, request: Any) -> Fields:
        """A client's request that another broker passes on: answered as if it had come here."""
        cluster = self._components.cluster
        if not cluster.is_controller:
            return {"response_data": None, "error_code": ErrorCode.not_controller}
        try:
            data = await self._answer_embedded(outer.connection, request.request_data)
        except (MalformedRequest, StructError) as error:
            raise KafkaError(ErrorCode.invalid_request, str(error)) from None
        return {
            "response_data": data,
            "error_code": ErrorCode.none,
            "metadata_offset": cluster.image.seq,
        }

    async def _answer_embedded(self, connection: Connection, frame: bytes) -> bytes:
        head = parse_head(frame)
        if head.api_key not in PASSED_ON:
            raise KafkaError(ErrorCode.invalid_request, "only requests to the controller are passed on")
        context = self._context(connection, head, is_passed_on=True)
        request = decode_request(head.api_key, head.api_version, memoryview(frame)[head.body_at :])
        try:
            result = self._handlers[head.api_key](context, request)
            fields = result if isinstance(result, Mapping) else await result
            data = encode_response(head.api_key, head.api_version, head.correlation_id, fields)
        except Exception as error:
            data = self._failed(context, request, error)
        return data[_SIZE.size :]

    def _check_peer(self, connection: Connection, api_key: int) -> None:
        """The one place that tells a broker from a client."""
        listener = self._components.config.inter_broker_listener
        if connection.listener != listener or api_key not in self._handlers:
            raise Disconnect(f"{PEER[api_key].name} is for brokers, on listener {listener}")

    def _write_first(self) -> None:
        """What a request reads must include the Produce requests before it."""
        if self._replicas.touched:
            self._written.extend(self._replicas.flush())

    def _call(self, context: Context, request: Any) -> Answer:
        connection = context.connection
        try:
            result = self._handlers[context.api_key](context, request)
            if isinstance(result, Mapping):
                data = encode_response(context.api_key, context.api_version, context.correlation_id, result)
                connection.unsent += len(data)
                return data
        except Exception as error:
            return self._failed(context, request, error)
        slot = connection.slot()
        self._spawn(self._finish(context, request, result, slot))
        return slot

    async def _finish(
        self, context: Context, request: Any, result: Awaitable[Fields | bytes], slot: Any
    ) -> None:
        """Waits for a handler that could not answer at once, or for the answer of another broker."""
        try:
            fields = await result
            data = (
                fields
                if isinstance(fields, bytes)
                else encode_response(context.api_key, context.api_version, context.correlation_id, fields)
            )
        except asyncio.CancelledError:
            context.connection.close()
            raise
        except Exception as error:
            try:
                data = self._failed(context, request, error)
            except Disconnect as gone:
                context.connection.close(str(gone))
                return
        context.connection.answer(slot, data)
        context.connection.resume()

    def _failed(self, context: Context, request: Any, error: Exception) -> bytes:
        code, message = ErrorCode.unknown_server_error, None
        if isinstance(error, KafkaError):
            code, message = error.code, error.message
        else:
            self._log_once(f"{KNOWN[context.api_key].name} version {context.api_version}", error)
        self._errors[code.value] += 1
        api_key, version = context.api_key, context.api_version
        cannot_say = f"{KNOWN[api_key].name} failed with {code.name} and cannot say so"
        try:
            fields = error_reply(api_key, version, request, code, message)
            if fields is not None:
                return encode_response(api_key, version, context.correlation_id, fields)
        except Exception as failure:
            self._log_once(f"the error reply of {KNOWN[api_key].name} version {version}", failure)
        raise Disconnect(cannot_say)

    def _log_once(self, what: str, error: Exception) -> None:
        """The stack of a bug once, its repetitions as one line each."""
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        where = (type(error), None if trace is None else (trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        if where in self._logged:
            logger.error("%s failed again: %r", what, error)
        else:
            self._logged.add(where)
            logger.error("%s failed", what, exc_info=error)


def _unsupported_api_versions(correlation_id: int) -> bytes:
    """KIP-511: version 0 with the ranges, whatever version was asked."""
    ranges = [
        {"api_key": int(key), "min_version": row.min_version, "max_version": row.max_version}
        for key, row in SERVED.items()
    ]
    fields = {"error_code": ErrorCode.unsupported_version, "api_keys": ranges}
    return encode_response(Api.API_VERSIONS, _API_VERSIONS_FALLBACK, correlation_id, fields)


# ---------------------------------------------------------------------------------------------- error replies


def error_reply(
    api_key: int, version: int, request: Any, code: ErrorCode, message: str | None = None
) -> Fields | None:
    """A response that says nothing but the error, where this API has a place for it, else None."""
    shape = _SHAPES.get(api_key)
    if shape is not None:
        return shape(version, request, {"error_code": code, "error_message": message})
    return {"error_code": code, "error_message": message, "throttle_time": 0, **_EMPTY.get(api_key, {})}


_Error: TypeAlias = dict[str, Any]


def _by_partition(topics: str, index: str, **rest: Any) -> Callable[[int, Any, _Error], Fields]:
    """Topics with partitions, each with the error and what else the schema requires."""

    def shape(version: int, request: Any, error: _Error) -> Fields:
        answered = []
        for topic in get(request, "topics", ()) or ():
            partitions = []
            for asked in get(topic, "partitions", None) or get(topic, "partition_indexes", ()):
                number = asked if isinstance(asked, int) else get(asked, index, None)
                if number is None:
                    number = get(asked, "partition", 0)
                partitions.append({"partition_index": number, "partition": number, **error, **rest})
            name = get(topic, "name", get(topic, "topic", ""))
            answered.append(
                {"name": name, "topic": name, "topic_id": get(topic, "topic_id"), "partitions": partitions}
            )
        return {topics: answered, "throttle_time": 0, "error_code": error["error_code"]}

    return shape


def _by_item(items: str, answered: str, *names: str, **rest: Any) -> Callable[[int, Any, _Error], Fields]:
    """One error for each thing asked for, named as it was."""

    def shape(version: int, request: Any, error: _Error) -> Fields:
        out = []
        for item in get(request, items, ()) or ():
            named = {name: get(item, name) for name in names} if names else {"group_id": item}
            out.append({**named, **error, **rest})
        return {answered: out, "throttle_time": 0, "error_code": error["error_code"]}

    return shape


def _delete_topics(version: int, request: Any, error: _Error) -> Fields:
    names = [{"name": topic.name, "topic_id": topic.topic_id} for topic in get(request, "topics", ()) or ()]
    names += [{"name": name, "topic_id": None} for name in get(request, "topic_names", ()) or ()]
    return {"responses": [{**name, **error} for name in names], "throttle_time": 0}


def _metadata(version: int, request: Any, error: _Error) -> Fields:
    topics = [
        {
            # the response takes null for a name two versions later than the request
            "name": topic.name or ("" if version < 12 else None),
            "topic_id": get(topic, "topic_id"),
            "is_internal": False,
            "partitions": [],
            "error_code": error["error_code"],
        }
        for topic in get(request, "topics", ()) or ()
    ]
    return {
        "brokers": [],
        "cluster_id": None,
        "controller_id": -1,
        "topics": topics,
        "throttle_time": 0,
        "error_code": error["error_code"],
    }


def _find_coordinator(version: int, request: Any, error: _Error) -> Fields:
    nowhere = {"node_id": -1, "host": "", "port": -1, **error}
    keys = get(request, "coordinator_keys", ()) or ()
    return {**nowhere, "coordinators": [{"key": key, **nowhere} for key in keys], "throttle_time": 0}


def _elect_leaders(version: int, request: Any, error: _Error) -> Fields:
    results = [
        {
            "topic": topic.topic,
            "partition_result": [{"partition_id": index, **error} for index in topic.partitions],
        }
        for topic in request.topic_partitions or ()
    ]
    return {"replica_election_results": results, "throttle_time": 0, "error_code": error["error_code"]}


def _alter_partition_reassignments(version: int, request: Any, error: _Error) -> Fields:
    responses = [
        {
            "name": topic.name,
            "partitions": [{"partition_index": each.partition_index, **error} for each in topic.partitions],
        }
        for topic in request.topics
    ]
    return {"responses": responses, "throttle_time": 0, **error}


def _alter_replica_log_dirs(version: int, request: Any, error: _Error) -> Fields:
    results = [
        {
            "topic_name": topic.name,
            "partitions": [{"partition_index": index, **error} for index in topic.partitions],
        }
        for chosen in request.dirs
        for topic in chosen.topics
    ]
    return {"results": results, "throttle_time": 0}


_SHAPES: Final[Mapping[int, Callable[[int, Any, _Error], Fields]]] = {
    Api.LIST_OFFSETS: _by_partition("topics", "partition_index"),
    Api.OFFSET_COMMIT: _by_partition("topics", "partition_index"),
    Api.DELETE_RECORDS: _by_partition("topics", "partition_index", low_watermark=-1),
    Api.OFFSET_FOR_LEADER_EPOCH: _by_partition("topics", "partition", leader_epoch=-1, end_offset=-1),
    Api.DESCRIBE_PRODUCERS: _by_partition("topics", "partition_index", active_producers=[]),
    Api.METADATA: _metadata,
    Api.FIND_COORDINATOR: _find_coordinator,
    Api.DELETE_TOPICS: _delete_topics,
    Api.CREATE_TOPICS: _by_item("topics", "topics", "name", topic_id=None, configs=[]),
    Api.CREATE_PARTITIONS: _by_item("topics", "results", "name"),
    Api.DELETE_GROUPS: _by_item("groups_names", "results"),
    Api.DESCRIBE_GROUPS: _by_item(
        "groups", "groups", group_state="", protocol_type="", protocol_data="", members=[]
    ),
    Api.DESCRIBE_CONFIGS: _by_item("resources", "results", "resource_type", "resource_name", configs=[]),
    Api.ALTER_CONFIGS: _by_item("resources", "responses", "resource_type", "resource_name"),
    Api.INCREMENTAL_ALTER_CONFIGS: _by_item("resources", "responses", "resource_type", "resource_name"),
    Api.ELECT_LEADERS: _elect_leaders,
    Api.ALTER_PARTITION_REASSIGNMENTS: _alter_partition_reassignments,
    Api.ALTER_REPLICA_LOG_DIRS: _alter_replica_log_dirs,
}

_EMPTY: Final[Mapping[int, Fields]] = {
    Api.API_VERSIONS: {"api_keys": []},
    Api.OFFSET_FETCH: {"topics": [], "groups": []},
    Api.JOIN_GROUP: {
        "generation_id": -1,
        "protocol_name": "",
        "protocol_type": "",
        "leader": "",
        "member_id": "",
        "members": [],
    },
    Api.SYNC_GROUP: {"assignment": b""},
    Api.LEAVE_GROUP: {"members": []},
    Api.LIST_GROUPS: {"groups": []},
    Api.INIT_PRODUCER_ID: {"producer_id": -1, "producer_epoch": -1},
    Api.DESCRIBE_LOG_DIRS: {"results": []},
    Api.OFFSET_DELETE: {"topics": []},
    Api.DESCRIBE_CLUSTER: {"cluster_id": "", "controller_id": -1, "brokers": []},
    Api.DESCRIBE_TOPIC_PARTITIONS: {"topics": []},
    Api.LIST_CONFIG_RESOURCES: {"config_resources": []},
    Api.LIST_PARTITION_REASSIGNMENTS: {"topics": []},
    Api.DESCRIBE_QUORUM: {"topics": [], "nodes": []},
    PeerApi.ALTER_PARTITION: {"topics": []},
    PeerApi.ALLOCATE_PRODUCER_IDS: {"producer_id_start": 0, "producer_id_len": 0},
}
