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
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from broker.control.cluster import Cluster
from broker.handlers.error_replies import error_reply, unsupported_api_versions
from broker.handlers.produce_repeat import ProduceMemo
from broker.net.connection import Answer, AnswerSlot, Connection, Disconnect, Frame
from broker.replicas.partition import Partition
from broker.replicas.replica_manager import ReplicaManager
from protocol.apis import KNOWN, PEER, SERVED, Api, PeerApi, is_supported
from protocol.codec import Fields
from protocol.errors import ErrorCode, KafkaError, MalformedRequest
from protocol.messages import decode_request, encode_response
from protocol.wire import RequestHead, parse_head

if TYPE_CHECKING:
    from protocol.requests.envelope import EnvelopeRequest

logger = logging.getLogger(__name__)

_HEAD: Final = Struct(">Ii").unpack_from
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
"""Any broker takes these from a client; only the controller can answer them."""
PASSED_ON: Final = FOR_THE_CONTROLLER | {Api.ALTER_CONFIGS, Api.INCREMENTAL_ALTER_CONFIGS}
"""The last two are passed on by their handlers, because a broker checks its own settings first."""


@dataclass(slots=True, kw_only=True)
class Context:
    """What a handler knows about a request besides its body."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    connection: Connection
    is_passed_on: bool = False
    """Whether another broker, which the client had asked, passed it on to this one as the controller."""


Handler: TypeAlias = Callable[[Context, Any], "Fields | Awaitable[Fields]"]


class FrameHandler(Protocol):
    """What handles the frames of one API as a whole."""

    def handle(
        self, connection: Connection, frame: Frame, *, version: int, correlation_id: int, body_at: int
    ) -> Answer: ...


class ProduceFrames(FrameHandler, Protocol):
    def repeat(self, connection: Connection, frames: Sequence[Frame], at: int, answers: list[Answer]) -> int:
        """Handle frames from `at` on as long as each is a Produce with a known head; return the index of the
        first that is not. `handle` does the same by the long way."""


class FetchFrames(FrameHandler, Protocol):
    def repeat(self, connection: Connection, frame: Frame) -> Answer:
        """Answer a Fetch that continues the connection's last one; None for any other, which `handle`
        takes."""


class Memo(ProduceMemo):
    """What is remembered of a connection's requests."""

    __slots__ = ("last_fetch",)

    def __init__(self) -> None:
        super().__init__()
        self.last_fetch: object | None = None
        """The business of `FetchFrames`; None where its `repeat` cannot take a request."""


class Dispatcher:
    """The service behind the connections."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        replicas: ReplicaManager,
        inter_broker_listener: str,
        requests: list[int],
        errors: Counter[int],
        handlers: Mapping[int, Handler],
        produce: ProduceFrames,
        fetch: FetchFrames,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """Counts `requests` by API key, and `errors` that answer a whole request by their code."""
        missing = SERVED.keys() - handlers.keys() - {Api.PRODUCE, Api.FETCH}
        assert not missing, f"served without a handler: {missing}"
        self._cluster = cluster
        self._replicas = replicas
        self._inter_broker_listener = inter_broker_listener
        self._handlers = {int(api): handler for api, handler in handlers.items()}
        self._handlers[PeerApi.ENVELOPE] = self._envelope
        self._produce = produce
        self._repeat = produce.repeat
        self._fetch = fetch
        self._spawn = spawn
        self._counts = requests
        self._errors = errors
        self._logged: set[tuple[object, ...]] = set()
        self._written: list[Partition] = []

    def new_memo(self) -> Memo:
        return Memo()

    def repeat(self, connection: Connection, frames: Sequence[Frame], at: int, answers: list[Answer]) -> int:
        try:
            stop = self._repeat(connection, frames, at, answers)
        except Exception as error:
            self._log_once("a repeated Produce", error)
            raise Disconnect("internal error (see the log above)") from None
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
            raise Disconnect("internal error (see the log above)") from None

    def write_staged(self) -> list[Partition]:
        flushed = self._replicas.flush() if self._replicas.touched else []
        if not self._written:
            return flushed
        written, self._written = self._written, []
        return written + flushed

    def wake(self, written: list[Partition]) -> None:
        if written:
            self._replicas.wake(written)

    def _handle(
        self, connection: Connection, frame: Frame, api_key: int, version: int, correlation_id: int
    ) -> Answer:
        if api_key == Api.FETCH and connection.memo.last_fetch is not None:
            self._write_first()
            answer = self._fetch.repeat(connection, frame)
            if answer is not None:
                self._counts[api_key] += 1
                return answer
        if api_key in PEER:
            self._check_peer(connection, api_key)
        if not is_supported(api_key, version):
            if api_key == Api.API_VERSIONS:
                return unsupported_api_versions(correlation_id)
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
        if api_key in FOR_THE_CONTROLLER and not self._cluster.is_controller:
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
            is_passed_on=is_passed_on,
        )

    async def _forward(self, frame: bytes) -> bytes:
        answer = await self._cluster.forwarding.ask(frame)
        return _SIZE.pack(len(answer)) + answer

    async def _envelope(self, outer: Context, request: EnvelopeRequest) -> Fields:
        """Answer a client's request that another broker passes on, as if it had come here."""
        if not self._cluster.is_controller:
            return {"response_data": None, "error_code": ErrorCode.not_controller}
        try:
            data = await self._answer_embedded(outer.connection, request.request_data)
        except (MalformedRequest, StructError) as error:
            raise KafkaError(ErrorCode.invalid_request, str(error)) from None
        return {
            "response_data": data,
            "error_code": ErrorCode.none,
            "metadata_offset": self._cluster.image.seq,
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
        """Refuse a client what only brokers may ask. Nothing else tells a broker from a client."""
        listener = self._inter_broker_listener
        if connection.listener != listener or api_key not in self._handlers:
            raise Disconnect(f"{PEER[api_key].name} is for brokers, on listener {listener}")

    def _write_first(self) -> None:
        """Write the Produce requests before this request, which must see what they appended."""
        if self._replicas.touched:
            self._written.extend(self._replicas.flush())

    def _call(self, context: Context, request: object) -> Answer:
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
        self, context: Context, request: object, result: Awaitable[Fields | bytes], slot: AnswerSlot
    ) -> None:
        """Wait for a handler that could not answer at once, or for the answer of another broker."""
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

    def _failed(self, context: Context, request: object, error: Exception) -> bytes:
        code, message = ErrorCode.unknown_server_error, None
        if isinstance(error, KafkaError):
            code, message = error.code, error.message
        else:
            self._log_once(f"{KNOWN[context.api_key].name} version {context.api_version}", error)
        self._errors[code.value] += 1
        api_key, version = context.api_key, context.api_version
        try:
            fields = error_reply(api_key, version, request, code, message)
            if fields is not None:
                return encode_response(api_key, version, context.correlation_id, fields)
        except Exception as failure:
            self._log_once(f"the error reply of {KNOWN[api_key].name} version {version}", failure)
        why = f"{KNOWN[api_key].name} failed with {code.name}"
        raise Disconnect(f"{why}, and its response has no place for an error")

    def _log_once(self, what: str, error: Exception) -> None:
        """Log the stack of a bug once, and each repetition as one line."""
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        where = (type(error), None if trace is None else (trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        if where in self._logged:
            logger.error("%s failed again: %r", what, error)
        else:
            self._logged.add(where)
            logger.error("%s failed", what, exc_info=error)
