"""From a frame to its handler and back: the only place where exceptions become error codes.

Owns: which handler an API has, what a broken request costs the client (its connection), what a failed one is
answered, and the request counters. Does not own: framing and order (network), meaning (handlers). Invariant:
every request gets one answer, or its connection is closed; a client's mistake is one line in the log and
never a stack trace.

Produce and Fetch have handlers of their own shape (they work on the frame and may stall or pipeline); all
other APIs are `Handler`s over decoded requests.

A request of less than `large_bytes` is decoded, handled and encoded in one go, as far as its handler does. A
larger one is taken out of the read buffer and worked on in turns (`broker.turns`), a few of them at once
(`places`); what grows with its rows is let go of in turns as well. A handler that may take long whatever the
request is a generator, or asks `Turns` itself.

What a request may do (its principal, its quota) joins here
and in the Produce template as a decision that was prepared when the connection or its metadata changed, not
as work for each request.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from broker.control.cluster import Cluster
from broker.handlers.error_replies import error_reply, unsupported_api_versions
from broker.handlers.later import REMEMBERED_BYTES_MAX, Again, Later
from broker.handlers.places import Place, Places
from broker.handlers.produce_repeat import ProduceMemo
from broker.net.connection import Answer, AnswerSlot, Connection, Disconnect, Frame
from broker.net.sending import Bulk, answer_of
from broker.replicas.partition import Partition
from broker.replicas.replica_manager import ReplicaManager
from broker.turns import Turns
from protocol.apis import KNOWN, PEER, SERVED, Api, PeerApi, is_supported
from protocol.codec import Fields
from protocol.coding.writing_in_turns import PIECE_BYTES
from protocol.errors import ErrorCode, KafkaError, MalformedRequest, TooManyRows
from protocol.messages import (
    decode_request,
    decode_request_in_turns,
    encode_response,
    encode_response_in_turns,
    is_short_response,
)
from protocol.primitives import copied
from protocol.shapes import FrameShape
from protocol.wire import RequestHead, parse_head
from protocol.work import Work, finish, let_go

if TYPE_CHECKING:
    from protocol.requests.envelope import EnvelopeRequest

logger = logging.getLogger(__name__)

_FLAT: Final = (int, str)
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
        Api.UPDATE_FEATURES,
    }
)
"""Any broker takes these from a client; only the controller can answer them."""
PASSED_ON: Final = FOR_THE_CONTROLLER | {Api.ALTER_CONFIGS, Api.INCREMENTAL_ALTER_CONFIGS}
"""The last two are passed on by their handlers, because a broker checks its own settings first."""

LARGE_AT_ONCE: Final = 4
"""Of those that wait for the controller, and of all others: while it is away it holds up nothing else."""
_KEEPS_PLACE_BYTES: Final = 64 << 10
"""A request of so many bytes takes much memory while its handler waits, so it keeps its place."""
_WAITS_FOR_OTHERS: Final = frozenset({Api.JOIN_GROUP, Api.SYNC_GROUP, Api.DELETE_RECORDS, Api.LIST_OFFSETS})
"""Their handlers may wait for other clients, for as long as a client said, or for the tier. They keep no
place meanwhile: those whom they wait for may need it."""


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
    again: Again | None = None
    """Set by a handler that need not read the next request if that is like this one."""


Handler: TypeAlias = Callable[[Context, Any], "Fields | Awaitable[Fields] | Work[Fields] | Later[Any]"]
Pieces: TypeAlias = "list[bytes]"
"""A response frame."""


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


class ShortFrames(FrameHandler, Protocol):
    """Handles short requests of one API as frames. Its `handle` returns None for one that is to be decoded
    and given to the API's `Handler`, having done nothing."""

    def repeat(self, connection: Connection, frame: Frame, correlation_id: int) -> Answer:
        """Answer a request like the connection's last; None for any other, which `handle` takes."""


class Memo(ProduceMemo):
    """What is remembered of a connection's requests."""

    __slots__ = ("holder", "last_commit", "last_fetch", "last_heartbeat")

    def __init__(self) -> None:
        super().__init__()
        self.holder: object | None = None
        """What fetch sessions are held for, once there is one."""
        self.last_fetch: object | None = None
        """The business of `FetchFrames`; None where its `repeat` cannot take a request."""
        self.last_commit: object | None = None
        """The same for the `ShortFrames` of OffsetCommit."""
        self.last_heartbeat: _Last | None = None
        """The last ConsumerGroupHeartbeat, if one like it need not be read."""


class _Last(NamedTuple):
    """A request that may come again."""

    shape: FrameShape
    context: Context
    request: object
    again: Again


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
        short: Mapping[int, ShortFrames],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        turns: Turns,
        large_bytes: int,
        rows_max: Callable[[], int],
    ) -> None:
        """Counts `requests` by API key, and `errors` that answer a whole request by their code. A request
        with a body of `large_bytes` is a large one, and may have `rows_max` rows; what is smaller has fewer.
        """
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
        self._short = {int(api): handler for api, handler in short.items()}
        self._spawn = spawn
        self._turns = turns
        self._at_work = turns.at_work
        self._large_bytes = large_bytes
        self._rows_max = rows_max
        self._places = Places(LARGE_AT_ONCE)
        self._controller_places = Places(LARGE_AT_ONCE)
        self._counts = requests
        self._errors = errors
        self._logged: set[tuple[object, ...]] = set()
        self._written: list[Partition] = []

    def new_memo(self) -> Memo:
        return Memo()

    def repeat(self, connection: Connection, frames: Sequence[Frame], at: int, answers: list[Answer]) -> int:
        at_work = self._at_work
        at_work.request = (Api.PRODUCE, connection.peer_host, connection.peer_port)
        try:
            stop = self._repeat(connection, frames, at, answers)
        except Exception as error:
            self._log_once("a repeated Produce", error)
            raise Disconnect("internal error (see the log above)") from None
        finally:
            at_work.request = None
        self._counts[Api.PRODUCE] += stop - at
        return stop

    def handle(self, connection: Connection, frame: Frame) -> Answer:
        try:
            kind, correlation_id = _HEAD(frame)
            self._at_work.request = (kind >> 16, connection.peer_host, connection.peer_port)
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
        finally:
            self._at_work.request = None

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
        elif api_key == Api.OFFSET_COMMIT and connection.memo.last_commit is not None:
            answer = self._repeat_short(connection, frame, api_key, correlation_id)
            if answer is not None:
                return answer
        elif api_key == Api.CONSUMER_GROUP_HEARTBEAT and connection.memo.last_heartbeat is not None:
            answer = self._beat_again(connection.memo.last_heartbeat, frame, correlation_id)
            if answer is not None:
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
        if len(frame) - head.body_at >= self._large_bytes:
            slot = connection.slot()
            self._spawn(self._answer_large(context, connection.keep(frame), head.body_at, slot))
            return slot
        short = self._short.get(api_key)
        if short is not None:
            answer = self._ask_short(short, context, frame, head.body_at)
            if answer is not None:
                return answer
        request = decode_request(api_key, version, memoryview(frame)[head.body_at :])
        if api_key in FOR_THE_CONTROLLER and not self._cluster.is_controller:
            slot = connection.slot()
            self._spawn(self._finish(context, request, self._forward(bytes(frame)), slot))
            return slot
        answer = self._call(context, request)
        if api_key == Api.CONSUMER_GROUP_HEARTBEAT:
            self._remember(context, request, frame, head.body_at)
        return answer

    def _remember(self, context: Context, request: object, frame: Frame, body_at: int) -> None:
        again, context.again = context.again, None
        last = None
        if again is not None and len(frame) <= REMEMBERED_BYTES_MAX:
            shape = FrameShape(frame, again.places(frame, body_at), "i")
            last = _Last(shape, context, request, again)
        context.connection.memo.last_heartbeat = last

    def _beat_again(self, last: _Last, frame: Frame, correlation_id: int) -> Answer:
        """Answer a request like the last one; None for any other."""
        found = last.shape.read(frame)
        if found is None:
            return None
        self._write_first()
        like = last.context
        context = Context(
            api_key=like.api_key,
            api_version=like.api_version,
            correlation_id=correlation_id,
            client_id=like.client_id,
            connection=like.connection,
        )
        try:
            result = last.again.handle(found)
            if result is None:
                return None
            answer = self._answer_to(context, last.request, result)
        except Exception as error:
            answer = _answer_of(context.connection, finish(self._failed(context, last.request, error, [])))
        self._counts[like.api_key] += 1
        return answer

    def _ask_short(self, short: ShortFrames, context: Context, frame: Frame, body_at: int) -> Answer:
        api_key, version = context.api_key, context.api_version
        try:
            return short.handle(
                context.connection,
                frame,
                version=version,
                correlation_id=context.correlation_id,
                body_at=body_at,
            )
        except Exception as error:
            request = decode_request(api_key, version, memoryview(frame)[body_at:])
            return _answer_of(context.connection, finish(self._failed(context, request, error, [])))

    def _repeat_short(
        self, connection: Connection, frame: Frame, api_key: int, correlation_id: int
    ) -> Answer:
        self._write_first()
        try:
            answer = self._short[api_key].repeat(connection, frame, correlation_id)
        except Exception as error:
            head = parse_head(frame)
            request = decode_request(api_key, head.api_version, memoryview(frame)[head.body_at :])
            context = self._context(connection, head)
            answer = _answer_of(connection, finish(self._failed(context, request, error, [])))
        if answer is not None:
            self._counts[api_key] += 1
        return answer

    def _context(self, connection: Connection, head: RequestHead, *, is_passed_on: bool = False) -> Context:
        return Context(
            api_key=head.api_key,
            api_version=head.api_version,
            correlation_id=head.correlation_id,
            client_id=head.client_id,
            connection=connection,
            is_passed_on=is_passed_on,
        )

    async def _forward(self, frame: bytes) -> Pieces:
        answer = await self._cluster.forwarding.ask(frame)
        return await self._turns.run(_sized(answer))

    async def _envelope(self, outer: Context, request: EnvelopeRequest) -> Fields:
        """Answer a client's request that another broker passes on, as if it had come here."""
        if not self._cluster.is_controller:
            return {"response_data": None, "error_code": ErrorCode.not_controller}
        try:
            data = await self._answer_embedded(outer.connection, request.request_data)
        except (MalformedRequest, StructError, Disconnect) as error:
            # the connection is the other broker's, which did nothing wrong
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
        kept: list[Any] = []
        request = await self._decoded(context, memoryview(frame)[head.body_at :], kept)
        pieces = await self._answered(context, request, self._ask(context, request), kept)
        del request
        await self._turns.run(let_go(kept))
        return (await self._turns.run(copied(pieces)))[_SIZE.size :]

    def _check_peer(self, connection: Connection, api_key: int) -> None:
        """Refuse a client what only brokers may ask. Nothing else tells a broker from a client."""
        listener = self._inter_broker_listener
        if connection.listener != listener or api_key not in self._handlers:
            raise Disconnect(f"{PEER[api_key].name} is for brokers, on listener {listener}")
        connection.is_peer = True

    def _write_first(self) -> None:
        """Write the Produce requests before this request, which must see what they appended."""
        if self._replicas.touched:
            self._written.extend(self._replicas.flush())

    def _call(self, context: Context, request: object) -> Answer:
        connection = context.connection
        try:
            result = self._handlers[context.api_key](context, request)
            return self._answer_to(context, request, result)
        except Exception as error:
            return _answer_of(connection, finish(self._failed(context, request, error, [])))

    def _answer_to(
        self,
        context: Context,
        request: object,
        result: Fields | Awaitable[Fields] | Work[Fields] | Later[Any],
    ) -> Answer:
        """Return the answer that a handler has given, or a slot for it."""
        connection = context.connection
        if isinstance(result, Later):
            if not result.done():
                slot = connection.slot()
                result.then(partial(self._settled, context, request, result, slot))
                return slot
            result = result.answer()
        if isinstance(result, Mapping):
            data = encode_response(context.api_key, context.api_version, context.correlation_id, result)
            connection.unsent += len(data)
            return data
        later: Awaitable[Fields | Pieces]
        if isinstance(result, Generator):
            work = self._worked(context, result)
            done = self._turns.begin(work)
            if done is not None:
                return _answer_of(connection, done[0])
            later = self._turns.go_on(work)
        else:
            later = result
        slot = connection.slot()
        self._spawn(self._finish(context, request, later, slot))
        return slot

    def _settled(self, context: Context, request: object, later: Later[Any], slot: AnswerSlot) -> None:
        """Answer what had to wait for a coordinator."""
        connection = context.connection
        answer: bytes | Bulk
        try:
            try:
                result = later.answer()
                if not isinstance(result, Mapping):
                    work = self._turns.run(self._worked(context, result))
                    self._spawn(self._finish(context, request, work, slot))
                    return
                answer = encode_response(context.api_key, context.api_version, context.correlation_id, result)
            except Exception as error:
                answer = answer_of(finish(self._failed(context, request, error, [])))
        except Disconnect as gone:
            connection.close(str(gone))
            return
        connection.answer(slot, answer)
        connection.resume()

    def _worked(self, context: Context, result: Work[Fields]) -> Work[Pieces]:
        """Do what a handler began, and encode it."""
        fields = yield from result
        return (yield from self._encoded(context, fields, []))

    async def _finish(
        self, context: Context, request: object, result: Awaitable[Fields | Pieces], slot: AnswerSlot
    ) -> None:
        """Wait for a handler that could not answer at once, or for the answer of another broker."""
        connection = context.connection
        self._at_work.begin_task((context.api_key, connection.peer_host, connection.peer_port))
        try:
            pieces = await self._answered(context, request, result, [])
        except asyncio.CancelledError:
            connection.close()
            raise
        except Disconnect as gone:
            connection.close(str(gone))
            return
        finally:
            self._at_work.end_task()
        connection.answer(slot, answer_of(pieces))
        connection.resume()

    async def _answer_large(self, context: Context, frame: Frame, body_at: int, slot: AnswerSlot) -> None:
        """Decode, handle and encode in turns, in one of the few places, which is free again once nothing but
        the answer is left. A client that went away before there was a place is not served."""
        connection = context.connection
        kept: list[Any] = []
        waits_for_controller = context.api_key in PASSED_ON or context.api_key == PeerApi.ENVELOPE
        place = Place(self._controller_places if waits_for_controller else self._places)
        self._at_work.begin_task((context.api_key, connection.peer_host, connection.peer_port))
        try:
            # what brokers ask of each other waits for no client
            if context.api_key not in PEER or context.api_key == PeerApi.ENVELOPE:
                connection.waiter = place
                has_place = await place.take()
                connection.waiter = None
                if not has_place:
                    connection.let_go()
                    return
            request = await self._decoded(context, memoryview(frame)[body_at:], kept)
            if context.api_key in FOR_THE_CONTROLLER and not self._cluster.is_controller:
                result: Awaitable[Fields | Pieces] = self._forward(await self._turns.run(copied([frame])))
            else:
                waits_outside = len(frame) < _KEEPS_PLACE_BYTES or context.api_key in _WAITS_FOR_OTHERS
                result = self._ask(context, request, place if waits_outside else None)
            del frame
            pieces = await self._answered(context, request, result, kept)
            del request, result
            connection.answer(slot, answer_of(pieces))
            del pieces
            connection.resume()
            await self._turns.run(let_go(kept))
        except asyncio.CancelledError:
            connection.close()
            raise
        except Disconnect as gone:
            connection.close(str(gone))
            connection.let_go()
        except Exception as error:
            self._log_once("a large request", error)
            connection.close("internal error (see the log above)")
            connection.let_go()
        finally:
            place.give_back()
            self._at_work.end_task()

    async def _decoded(self, context: Context, body: memoryview, kept: list[Any]) -> Any:
        """Return the request; its rows are in `kept` afterwards, to be let go of in turns."""
        rows_max = self._rows_max()
        try:
            return await self._turns.run(self._decoding(context, body, rows_max, kept))
        except TooManyRows as error:
            asked = f"{KNOWN[context.api_key].name} version {context.api_version}"
            why = f"{asked}: {error}, and request.rows.max is {rows_max}"
        except MalformedRequest as error:
            why = str(error)
        await self._turns.run(let_go(kept))
        raise Disconnect(why)

    def _decoding(self, context: Context, body: memoryview, rows_max: int, kept: list[Any]) -> Work[Any]:
        api_key, version = context.api_key, context.api_version
        return (yield from decode_request_in_turns(api_key, version, body, rows_max=rows_max, kept=kept))

    async def _ask(self, context: Context, request: Any, place: Place | None = None) -> Fields:
        """Return what the handler answers; `place` is given back for as long as the handler waits."""
        result = self._handlers[context.api_key](context, request)
        if isinstance(result, Later):
            result = self._waited(result)
        if isinstance(result, Mapping):
            return result
        if isinstance(result, Generator):
            return await self._turns.run(result)
        if place is None:
            return await result
        place.give_back()
        try:
            fields = await result
        except Exception:
            await place.take_again()
            raise
        await place.take_again()
        return fields

    async def _waited(self, later: Later[Any]) -> Fields:
        result = await later.wait()
        return result if isinstance(result, Mapping) else await self._turns.run(result)

    async def _answered(
        self, context: Context, request: object, result: Awaitable[Fields | Pieces], kept: list[Any]
    ) -> Pieces:
        """Return the response to what comes of `result`, or to its failure."""
        try:
            answer = await result
            if not isinstance(answer, Mapping):
                return answer
            if is_short_response(context.api_key, context.api_version) or _is_flat(answer):
                api_key, version = context.api_key, context.api_version
                return [encode_response(api_key, version, context.correlation_id, answer)]
            return await self._turns.run(self._encoded(context, answer, kept))
        except Exception as error:
            return await self._turns.run(self._failed(context, request, error, kept))

    def _encoded(self, context: Context, fields: Fields, kept: list[Any]) -> Work[Pieces]:
        api_key, version = context.api_key, context.api_version
        return (yield from encode_response_in_turns(api_key, version, context.correlation_id, fields, kept))

    def _failed(self, context: Context, request: object, error: Exception, kept: list[Any]) -> Work[Pieces]:
        """Return the response that tells of the error, which keeps nothing of where it was raised. A request
        that a handler finds malformed costs the connection, as one that cannot be decoded."""
        if isinstance(error, MalformedRequest):
            raise Disconnect(str(error))
        code, message = ErrorCode.unknown_server_error, None
        name, version = KNOWN[context.api_key].name, context.api_version
        if isinstance(error, KafkaError):
            code, message = error.code, error.message
        else:
            self._log_once(f"{name} version {version}", error)
        _drop_traces(error)
        self._errors[code.value] += 1
        try:
            fields = yield from error_reply(context.api_key, version, request, code, message)
            if fields is not None:
                return (yield from self._encoded(context, fields, kept))
        except Exception as failure:
            self._log_once(f"the error reply of {name} version {version}", failure)
            _drop_traces(failure)
        raise Disconnect(f"{name} failed with {code.name}, and its response has no place for an error")

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


def _sized(answer: memoryview) -> Work[Pieces]:
    """Return an answer that was passed back as a frame."""
    pieces = [_SIZE.pack(len(answer)) + answer[:PIECE_BYTES]]
    for at in range(PIECE_BYTES, len(answer), PIECE_BYTES):
        yield
        pieces.append(bytes(answer[at : at + PIECE_BYTES]))
    return pieces


def _is_flat(fields: Fields) -> bool:
    """Whether an answer has no row and nothing else that may be long."""
    return all(value is None or isinstance(value, _FLAT) for value in fields.values())


def _answer_of(connection: Connection, pieces: Pieces) -> bytes | Bulk:
    """Return the answer to the request in hand."""
    connection.unsent += sum(map(len, pieces))
    return answer_of(pieces)


def _drop_traces(error: BaseException | None) -> None:
    """Let go of the frames that an error went through, and with them of what those held."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
