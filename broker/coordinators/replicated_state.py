"""Runs a pure state machine over one internal partition: decide, append, apply, answer.

Owns the order of commands, the one append in flight, which client waits for which reply, the machine's timer,
and reloading when the log and the machine may have parted; the place of transactions and their markers among
the records. Does not own what is decided (`broker.coordinators.machine`), nor the log.
Invariant: a command is decided on a state in which all it depends on is applied, and which the next leader
would read too; a reply leaves only after the records of its decision are durable and applied; after an append
of unknown outcome the machine is rebuilt from the log, and after an error that nobody foresaw, unless that
concerns one command alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from types import GeneratorType
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar, overload

from broker.coordinators.machine import (
    DecisionDraft,
    Encoded,
    Instant,
    Machine,
    Share,
    TransactionalProducer,
    in_steps,
)
from broker.decisions import Decision
from broker.turns import Turns
from protocol import records as batches
from protocol.compression import Codec
from protocol.errors import CorruptBatch, ErrorCode, KafkaError
from protocol.stored.schema import BadRecord
from protocol.work import Work, finish
from storage.log import CoordinatorBatch, NewMarker

logger = logging.getLogger(__name__)

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
R_contra = TypeVar("R_contra", contravariant=True)
RecordT = TypeVar("RecordT")
MachineT = TypeVar("MachineT", bound="Machine[Any, Any]")

QUEUED_COMMANDS_MAX: Final = 10_000
ROUND_BYTES_MAX: Final = 512 << 10
"""Decisions of one round stop here, so that a round stays one batch below the default max.message.bytes."""
BATCH_OVERHEAD_BYTES: Final = 1 << 10
RECORD_OVERHEAD_BYTES: Final = 32
STEPS_AT_ONCE: Final = 4
"""Of a command, on its arrival; most need none."""
RECORDS_PER_STEP: Final = 16
ALONE_BYTES_MAX: Final = 16 << 10
"""Of a round that is flushed without a task."""
ROUNDS_AT_ONCE: Final = 4
"""Of these, in one pass of the loop."""
PARTS_MAX: Final = 16
"""Of one round, each a batch of its own: they are appended in one go."""
REPLIES_PER_STEP: Final = 8
"""Whoever waits for a reply goes on in the next turn of the loop, and encodes it there."""
LOAD_SLICE_S: Final = 0.001
ROWS_PER_LOOK: Final = 64
"""A batch may have thousands of rows; to look at the clock takes a tenth of the time of one."""
LOAD_RETRY_S: Final = 1.0
UNFORESEEN_RETRY_MAX_S: Final = 60.0
"""Before a log is read again that led to an error which nobody foresaw: it will again, until it changes."""
REPLICATION_POLL_S: Final = 0.01
REPLICATION_POLL_MAX_S: Final = 0.2
STALL_MS: Final = 1_000
"""A timer this late shows that the whole process stood still, not that the clients are silent."""

_NOT_APPENDED: Final = frozenset(
    {
        ErrorCode.not_enough_replicas,
        ErrorCode.message_too_large,
        ErrorCode.record_list_too_large,
        ErrorCode.invalid_record,
    }
)
_AS_COORDINATOR: Final = {
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas_after_append: ErrorCode.coordinator_not_available,
    ErrorCode.request_timed_out: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
    ErrorCode.message_too_large: ErrorCode.unknown_server_error,
    ErrorCode.record_list_too_large: ErrorCode.unknown_server_error,
    ErrorCode.invalid_record: ErrorCode.unknown_server_error,
}


class Appended(Protocol):
    @property
    def first_offset(self) -> int: ...


OutcomeT = Appended | KafkaError


class CoordinatorLog(Protocol):
    """What a coordinator needs of the partitions of this broker."""

    async def append(
        self,
        topic: str,
        index: int,
        batch: bytearray,
        *,
        timeout_ms: int,
        expected_leader_epoch: int,
        is_own: bool = False,
    ) -> Appended:
        """Return once the batch is on every replica in sync; raise KafkaError otherwise. Nothing needs to be
        checked again of one that `is_own`: it was built here just now."""

    async def append_all(
        self,
        topic: str,
        index: int,
        batches: Sequence[CoordinatorBatch | NewMarker],
        *,
        timeout_ms: int,
        expected_leader_epoch: int,
    ) -> Sequence[Appended | KafkaError]:
        """Append in order; return once what was appended is on every replica in sync. A marker or a batch of
        a transaction that is refused stops no other; after a plain batch that is refused nothing is appended.
        Raise KafkaError where nothing was appended, or what was may be lost."""

    def stands_alone(self, topic: str, index: int) -> bool:
        """Whether there is a replica here and no other."""

    def append_alone(
        self, topic: str, index: int, batch: bytearray, *, expected_leader_epoch: int
    ) -> Appended:
        """`append` to a log that stands alone, at once."""

    def read_all(self, topic: str, index: int) -> Iterator[bytes]: ...

    def is_replicated(self, topic: str, index: int) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StateConfig:
    append_timeout_ms: int = 5_000
    codec: int = Codec.NONE
    batch_bytes_max: int = 1_048_588


class Status(Enum):
    LOADING = auto()
    ACTIVE = auto()
    CLOSED = auto()


class _Tick:
    """A deadline, queued among the commands so that what arrived before it is decided before it."""


_TICK: Final = _Tick()
_new_tuple = tuple.__new__
_MARKERS: Final = ("markers",)
"""The scope of markers, which no command has."""


class Asked(Protocol[R_co]):
    """A command, which may be decided in steps."""

    def decide(self, state: Any, means: Any, /) -> Decision[Any, R_co] | Work[Decision[Any, R_co]]: ...


class Reply(Protocol[R_contra]):
    """Where the outcome of a command is put: a future, or what does without one. It must not raise."""

    def done(self) -> bool: ...

    def set_result(self, result: R_contra, /) -> None: ...

    def set_exception(self, exception: KafkaError, /) -> None: ...


_Entry: TypeAlias = Asked[Any] | NewMarker | _Tick


_Touched: TypeAlias = "tuple[Hashable | None, Share | None, TransactionalProducer | None]"
"""What a command touches: its scope, and the part of that; and whose transaction its records are of."""
_ALL: Final[_Touched] = (None, None, None)


@dataclass(slots=True)
class _Part(Generic[RecordT]):
    """Decisions that share batches: plain ones, those of one transaction, or a marker."""

    producer: TransactionalProducer | None = None
    marker: NewMarker | None = None
    records: list[RecordT] = field(default_factory=list)
    encoded: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    replies: list[tuple[int, Any]] = field(default_factory=list)

    @property
    def is_plain(self) -> bool:
        return self.producer is None and self.marker is None


@dataclass(slots=True)
class _Round(Generic[RecordT]):
    """Decisions that share an append."""

    parts: list[_Part[RecordT]] = field(default_factory=list)
    scopes: dict[Hashable | None, str | None] = field(default_factory=dict)
    """What the records touch, and the kind of the commands where these shared it."""
    touched: set[tuple[Hashable, Hashable]] = field(default_factory=set)
    """The parts of shared scopes that nothing else may touch."""
    size: int = 0
    soft: bool = False

    def part(self, producer: TransactionalProducer | None) -> _Part[RecordT]:
        """Return the part for more records: the last one, if those are plain and it is."""
        parts = self.parts
        if not parts or producer is not None or not parts[-1].is_plain:
            parts.append(_Part(producer=producer))
        return parts[-1]

    def has_room(self, scope: Hashable, share: Share | None) -> bool:
        """Whether a command that touches so much of a scope depends on nothing that is in here of it."""
        if share is None or self.scopes[scope] != share.kind:
            return False
        return share.part is None or (scope, share.part) not in self.touched

    def touch(self, touched: _Touched) -> None:
        scope, share, _ = touched
        if share is None or self.scopes.get(scope, share.kind) != share.kind:
            self.scopes[scope] = None
            return
        self.scopes[scope] = share.kind
        if share.part is not None:
            self.touched.add((scope, share.part))


class Pace:
    """Let other tasks run between slices of long work."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._slice_end = loop.time() + LOAD_SLICE_S

    async def yield_if_due(self) -> None:
        if self._loop.time() > self._slice_end:
            await asyncio.sleep(0)
            self._slice_end = self._loop.time() + LOAD_SLICE_S


class ReplicatedState(Generic[MachineT]):
    def __init__(
        self,
        *,
        topic: str,
        index: int,
        leader_epoch: int,
        make_machine: Callable[[], MachineT],
        partitions: CoordinatorLog,
        now_ms: Callable[[], int],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        turns: Turns,
        config: StateConfig,
    ) -> None:
        self.topic = topic
        self.index = index
        self.leader_epoch = leader_epoch
        self.status = Status.LOADING
        self.config = config
        """May be replaced at any time; the next append uses it."""
        self._make_machine = make_machine
        self._machine: MachineT = make_machine()
        self._partitions = partitions
        self._now_ms = now_ms
        self._spawn = spawn
        self._turns = turns
        self._loop = asyncio.get_running_loop()
        self._active = asyncio.Event()
        self._waiting: dict[int, Reply[Any]] = {}
        self._next_token = 0
        self._queue: deque[tuple[_Entry, int]] = deque()
        self._round: _Round[Any] = _Round()
        self._is_flush_due = False
        self._is_flushing = False
        self._begun: Work[None] | None = None
        """A decision that takes longer than a command may at once; nothing else is decided before its end."""
        self._was_paused = False
        """Whether the peers are still to be given their full time again."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0
        self._append_error: ErrorCode | None = None
        """Why the last append failed; logged when that begins and when the reason changes."""

    def __repr__(self) -> str:
        return (
            f"<ReplicatedState {self.topic}-{self.index} epoch={self.leader_epoch} "
            f"{self.status.name.lower()} {len(self._queue)} queued, {len(self._waiting)} waiting>"
        )

    @property
    def machine(self) -> MachineT:
        """Return the machine, for reading what is applied; raise KafkaError unless it is active."""
        self._check_active()
        return self._machine

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def start(self) -> None:
        self._spawn(self._load())

    def close(self, code: ErrorCode = ErrorCode.not_coordinator) -> None:
        """Stop coordinating, because another broker or none does now; fail every client that waits."""
        if self.status is Status.CLOSED:
            return
        self._set_status(Status.CLOSED)
        self._fail_all(code)

    async def wait_settled(self) -> None:
        """Return when it is loaded or closed."""
        await self._active.wait()

    @overload
    async def ask(self, command: NewMarker) -> None: ...
    @overload
    async def ask(self, command: Asked[R]) -> R: ...
    async def ask(self, command: Asked[R] | NewMarker) -> R | None:
        """Return the response, once it is durable. Cancelling drops the response; the command stands."""
        self._check_active()
        future: asyncio.Future[Any] = self._loop.create_future()
        token = self._expect(future)
        try:
            self._give(command, token)
            response: R | None = await future
            return response
        finally:
            self._waiting.pop(token, None)
            del future  # which an error, by its traceback, would keep alive together with itself

    def tell(self, command: Asked[R], reply: Reply[R]) -> None:
        """`ask` for one that is no task: the reply is given the response, or the error, at once or once it is
        durable. Raise KafkaError where it is not asked at all."""
        self._check_active()
        token = self._expect(reply)
        try:
            self._give(command, token)
        except BaseException:
            self._waiting.pop(token, None)
            raise

    def _expect(self, reply: Reply[Any]) -> int:
        token = self._next_token
        self._next_token += 1
        self._waiting[token] = reply
        return token

    def _give(self, command: _Entry, token: int) -> None:
        if self._is_busy or not self._may_decide(command):
            self._enqueue(command, token)
        else:
            self._decide(command, token)

    async def write_marker(self, marker: NewMarker) -> None:
        """End a transaction: return once its marker is durable and applied."""
        await self.ask(marker)

    def _check_active(self) -> None:
        if self.status is Status.LOADING:
            raise KafkaError(ErrorCode.coordinator_load_in_progress)
        if self.status is Status.CLOSED:
            raise KafkaError(ErrorCode.not_coordinator)

    # --- deciding ---

    @property
    def _is_busy(self) -> bool:
        return self._is_flushing or self._begun is not None or bool(self._queue)

    def _now(self) -> Instant:
        return _new_tuple(Instant, (int(self._loop.time() * 1000), self._now_ms()))

    def _may_decide(self, command: _Entry) -> bool:
        """Whether nothing the command depends on is still on its way into the log."""
        scopes = self._round.scopes
        if not scopes:
            return True
        if isinstance(command, _Tick) or None in scopes or self._round.size > ROUND_BYTES_MAX:
            return False
        if len(self._round.parts) >= PARTS_MAX:
            return False
        if isinstance(command, NewMarker):
            return True  # what it changes, no decision of a scope depends on
        scope = self._machine.scope(command)
        if scope is None:
            return False
        return scope not in scopes or self._round.has_room(scope, self._machine.share(command))

    def _enqueue(self, command: _Entry, token: int) -> None:
        if len(self._queue) >= QUEUED_COMMANDS_MAX:
            raise KafkaError(
                ErrorCode.coordinator_not_available, "too many requests are queued for this coordinator"
            )
        self._queue.append((command, token))
        self._flush_soon()

    def _decide(self, command: _Entry, token: int) -> None:
        """Decide it at once; where that takes longer, the flush goes on with it."""
        try:
            work = self._begin(command, token)
            if work is None:
                return
            for _ in range(STEPS_AT_ONCE):
                next(work)
        except StopIteration:
            return
        except Exception as error:
            self._begin_again(error)
            return
        self._begun = work
        self._flush_soon()

    def _begin(self, command: _Entry, token: int) -> Work[None] | None:
        """Decide it as far as that needs no steps; return what is left."""
        machine = self._machine
        if isinstance(command, NewMarker):
            self._round.parts.append(_Part(marker=command, replies=[(token, None)]))
            self._round.scopes[_MARKERS] = None
            self._flush_soon()
            return None
        draft: DecisionDraft[Any] = DecisionDraft(self._now(), token)
        if isinstance(command, _Tick):
            return self._deciding(machine, command, _ALL, draft, self._ticking(machine, draft.now))
        touched = machine.scope(command), machine.share(command), getattr(command, "producer", None)
        made: Any  # a cast is a call
        try:
            made = machine.decide(command, draft)
        except KafkaError as error:
            self._fail(token, error)
            return None
        except Exception as error:
            self._decision_failed(machine, command, draft, error)
            return None
        if isinstance(made, GeneratorType):
            return self._deciding(machine, command, touched, draft, made)
        return self._decided(machine, touched, token, made)

    def _ticking(self, machine: MachineT, now: Instant) -> Work[Decision[Any, Any]]:
        if self._was_paused:
            self._was_paused = False
            yield from in_steps(machine.resume(now))
        decision: Decision[Any, Any] = yield from in_steps(machine.tick(now))
        return decision

    def _deciding(
        self,
        machine: MachineT,
        command: _Entry,
        touched: _Touched,
        draft: DecisionDraft[Any],
        work: Work[Decision[Any, Any]],
    ) -> Work[None]:
        try:
            decision = yield from work
        except KafkaError as error:
            self._fail(draft.token, error)
            return
        except Exception as error:
            self._decision_failed(machine, command, draft, error)
            return
        if not self._is_run_by(machine):
            return
        rest = self._decided(machine, touched, draft.token, decision)
        if rest is not None:
            yield from rest

    def _decided(
        self, machine: MachineT, touched: _Touched, token: int, decision: Decision[Any, Any]
    ) -> Work[None] | None:
        """Take what was decided into the round; return what is left of that."""
        replies = decision.replies
        if decision.response is not None:
            replies += ((token, decision.response),)
        if not decision.records:
            return self._answering(replies)
        encoded: list[Encoded] = []
        if len(decision.records) <= RECORDS_PER_STEP:
            made: Any
            for record in decision.records:
                made = machine.encode(record)
                if made.__class__ is not tuple:
                    break
                encoded.append(made)
            else:
                self._take(touched, decision, encoded, replies)
                return None
        return self._taking(machine, touched, decision, encoded, replies)

    def _answering(self, replies: tuple[tuple[int, Any], ...]) -> Work[None]:
        yield from self._answer(replies)
        self._arm_timer()

    def _decision_failed(
        self, machine: MachineT, command: _Entry, draft: DecisionDraft[Any], error: Exception
    ) -> None:
        """Fail the command that could not be decided, and those that it was about to answer: it changed
        nothing durable, and nobody answers these any more. A tick has taken deadlines that would not come
        again."""
        self._tell_unforeseen(f"{type(command).__name__.strip('_')} failed", error)
        if not self._is_run_by(machine):
            return
        if isinstance(command, _Tick):
            self._reload(ErrorCode.unknown_server_error, pause_s=LOAD_RETRY_S)
        else:
            for waiting in (*(waiting for waiting, _ in draft.replies), draft.token):
                self._fail(waiting, KafkaError(ErrorCode.unknown_server_error))

    def _tell_unforeseen(self, what: str, error: Exception) -> None:
        logger.error("%s-%d: %s", self.topic, self.index, what, exc_info=error)

    def _is_run_by(self, machine: MachineT) -> bool:
        """Whether what was decided, or read, with this machine counts still."""
        return self.status is Status.ACTIVE and self._machine is machine

    def _taking(
        self,
        machine: MachineT,
        touched: _Touched,
        decision: Decision[Any, Any],
        encoded: list[Encoded],
        replies: tuple[tuple[int, Any], ...],
    ) -> Work[None]:
        """`_take` once the other records are encoded too."""
        for at, record in enumerate(decision.records[len(encoded) :], 1):
            encoded.append((yield from in_steps(machine.encode(record))))
            if at % RECORDS_PER_STEP == 0:
                yield
        if self._is_run_by(machine):
            self._take(touched, decision, encoded, replies)

    def _take(
        self,
        touched: _Touched,
        decision: Decision[Any, Any],
        encoded: list[Encoded],
        replies: tuple[tuple[int, Any], ...],
    ) -> None:
        pending = self._round
        size = largest = 0
        for key, value in encoded:
            record_size = len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES
            size += record_size
            if record_size > largest:
                largest = record_size
        if self._is_surely_refused(largest) and not decision.soft:
            # Alone: in a batch it would fail what was decided together with it.
            logger.info("%s-%d: a record of %d bytes is refused", self.topic, self.index, largest)
            for refused, _ in replies:
                self._fail(refused, KafkaError(coordinator_error(ErrorCode.message_too_large)))
            return
        part = pending.part(touched[2])
        part.records += decision.records
        part.encoded += encoded
        part.replies += replies
        pending.size += size
        pending.touch(touched)
        pending.soft = pending.soft or decision.soft
        self._flush_soon()
        self._arm_timer()

    def _is_surely_refused(self, record_size: int) -> bool:
        """Whether no batch may hold the record, which the log would find."""
        config = self.config
        is_plain = config.codec == Codec.NONE
        return is_plain and record_size + batches.HEADER_SIZE > config.batch_bytes_max

    # --- appending ---

    def _flush_soon(self) -> None:
        """Flush after this pass of the loop, so that commands that arrived together share one append."""
        if not (self._is_flush_due or self._is_flushing):
            self._is_flush_due = True
            self._loop.call_soon(self._start_flush)

    def _start_flush(self) -> None:
        self._is_flush_due = False
        if self.status is not Status.ACTIVE or self._is_flushing:
            return
        self._is_flushing = True
        try:
            is_short = self._is_short()
            if is_short:
                self._flush_short(goes_on=False)
        except Exception as error:
            self._is_flushing = False
            self._begin_again(error)
            return
        if not is_short:
            self._spawn(self._flush())
        elif self.status is Status.ACTIVE and (self._begun or self._round.parts or self._queue):
            self._flush_soon()

    def _is_short(self) -> bool:
        """Whether the next round takes no turns and has nobody to wait for."""
        pending = self._round
        if self._begun is not None or len(pending.parts) != 1:
            return False
        part = pending.parts[0]
        if (
            not part.is_plain
            or len(part.records) > RECORDS_PER_STEP
            or len(part.replies) > REPLIES_PER_STEP
            or pending.size > ALONE_BYTES_MAX
            or pending.size > self.config.batch_bytes_max - BATCH_OVERHEAD_BYTES
        ):
            return False
        return self._partitions.stands_alone(self.topic, self.index)

    def _flush_short(self, *, goes_on: bool) -> None:
        """Append, apply and answer the next round, which `_is_short`; `goes_on` is whether a flush does."""
        pending, self._round = self._round, _Round()
        (part,) = pending.parts
        machine = self._machine
        try:
            appended = self._partitions.append_alone(
                self.topic,
                self.index,
                finish(self._build(part.encoded)),
                expected_leader_epoch=self.leader_epoch,
            )
        except KafkaError as error:
            self._is_flushing = goes_on
            self._append_failed(pending, error, is_partly_applied=False)
        else:
            self._append_error = None
            finish(self._apply_all(machine, part.records, appended.first_offset))
            # who is answered may ask again at once
            self._is_flushing = goes_on
            if self._is_run_by(machine):
                finish(self._answer(part.replies))
        if self.status is Status.ACTIVE:
            self._arm_timer()

    async def _flush(self) -> None:
        short = 0
        try:
            while self.status is Status.ACTIVE and (self._begun or self._round.parts or self._queue):
                if self._begun is not None:
                    work, self._begun = self._begun, None
                    await self._turns.run(work)
                if self._is_short():
                    self._flush_short(goes_on=True)
                    short += 1
                    if short % ROUNDS_AT_ONCE == 0:
                        await asyncio.sleep(0)
                    await self._turns.run(self._drain())
                    continue
                pending, self._round = self._round, _Round()
                if not pending.parts:
                    pass
                elif len(pending.parts) == 1 and pending.parts[0].is_plain:
                    if not await self._append(pending, pending.parts[0]):
                        return
                elif not await self._append_parts(pending):
                    return
                await self._turns.run(self._drain())
        except Exception as error:
            self._begin_again(error)
        finally:
            self._is_flushing = False

    def _begin_again(self, error: Exception) -> None:
        """Go by what the log says: a decision may be half taken, or its records durable and half applied."""
        self._tell_unforeseen("what was decided is lost, or comes from the log", error)
        if self.status is Status.ACTIVE:
            self._reload(ErrorCode.unknown_server_error, pause_s=LOAD_RETRY_S)

    def _drain(self) -> Work[None]:
        while self.status is Status.ACTIVE and self._queue and self._may_decide(self._queue[0][0]):
            work = self._begin(*self._queue.popleft())
            if work is not None:
                yield from work
            yield

    async def _append(self, pending: _Round[Any], part: _Part[Any]) -> bool:
        """Return True when the round, of one plain part, is durable, applied and answered."""
        machine = self._machine
        applied = 0
        for size in self._split(part.encoded):
            batch = await self._turns.run(self._build(part.encoded[applied : applied + size]))
            if not self._is_run_by(machine):
                return False
            try:
                appended = await self._partitions.append(
                    self.topic,
                    self.index,
                    batch,
                    timeout_ms=self.config.append_timeout_ms,
                    expected_leader_epoch=self.leader_epoch,
                    is_own=True,
                )
            except KafkaError as error:
                return self._append_failed(pending, error, is_partly_applied=applied > 0)
            self._append_error = None
            records = part.records[applied : applied + size]
            await self._turns.run(self._apply_all(machine, records, appended.first_offset))
            if not self._is_run_by(machine):
                return False
            applied += size
        await self._turns.run(self._answer(part.replies))
        self._arm_timer()
        return True

    async def _append_parts(self, pending: _Round[Any]) -> bool:
        """`_append` for a round with transactions or markers in it."""
        machine = self._machine
        appended: list[CoordinatorBatch | NewMarker] = []
        counts: list[list[int]] = []
        for part in pending.parts:
            if part.marker is not None:
                appended.append(part.marker)
                counts.append([0])
                continue
            counts.append(list(self._split(part.encoded)))
            at = 0
            for size in counts[-1]:
                data = await self._turns.run(self._build(part.encoded[at : at + size], part.producer))
                at += size
                producer = part.producer
                verified = None if producer is None else producer.verified
                appended.append(CoordinatorBatch(data, producer is not None, verified))
        if not self._is_run_by(machine):
            return False
        try:
            outcomes = await self._partitions.append_all(
                self.topic,
                self.index,
                appended,
                timeout_ms=self.config.append_timeout_ms,
                expected_leader_epoch=self.leader_epoch,
            )
        except KafkaError as error:
            return self._append_failed(pending, error, is_partly_applied=False)
        self._append_error = None
        following = iter(outcomes)
        parted: ErrorCode | None = None
        for part, sizes in zip(pending.parts, counts, strict=True):
            refused = await self._turns.run(self._settle(machine, part, sizes, following))
            if not self._is_run_by(machine):
                return False
            if refused is None:
                await self._turns.run(self._answer(part.replies))
                continue
            why, is_partly = refused
            code = coordinator_error(why.code)
            if is_partly or (part.is_plain and (pending.soft or why.code not in _NOT_APPENDED)):
                parted = code
                continue
            for token, _ in part.replies:
                self._fail(token, KafkaError(code, why.message))
        if not self._is_run_by(machine):
            return False  # closed while the last part was answered
        if parted is not None:
            self._reload(parted)
            return False
        self._arm_timer()
        return True

    def _settle(
        self, machine: MachineT, part: _Part[Any], sizes: list[int], outcomes: Iterator[OutcomeT]
    ) -> Work[tuple[KafkaError, bool] | None]:
        """Apply what was appended of a part; return why the rest was not, and whether there is more than
        that."""
        refused: KafkaError | None = None
        at = 0
        for size in sizes:
            outcome = next(outcomes)
            if isinstance(outcome, KafkaError):
                refused = refused or outcome
            elif part.marker is not None:
                marker = part.marker
                yield from in_steps(
                    machine.apply_marker(producer_id=marker.producer_id, committed=marker.committed)
                )
            elif refused is None:
                producer_id = -1 if part.producer is None else part.producer.producer_id
                records = part.records[at : at + size]
                yield from self._apply_all(machine, records, outcome.first_offset, producer_id)
                at += size
        return None if refused is None else (refused, at > 0)

    def _apply_all(
        self, machine: MachineT, records: list[Any], first_offset: int, producer_id: int = -1
    ) -> Work[None]:
        for at, record in enumerate(records):
            if not self._is_run_by(machine):
                return
            try:
                machine.apply(record, offset=first_offset + at, producer_id=producer_id)
            except Exception as error:
                error.add_note(f"of {type(record).__name__} at offset {first_offset + at}")
                raise
            if at % RECORDS_PER_STEP == RECORDS_PER_STEP - 1:
                yield

    def _split(self, encoded: list[tuple[bytes, bytes | None]]) -> Iterator[int]:
        """Yield the number of records of each batch; one that is too large goes alone and is refused."""
        limit = self.config.batch_bytes_max - BATCH_OVERHEAD_BYTES
        count = size = 0
        for key, value in encoded:
            record_size = len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES
            if count and size + record_size > limit:
                yield count
                count = size = 0
            count += 1
            size += record_size
        yield count

    def _build(
        self, encoded: list[tuple[bytes, bytes | None]], producer: TransactionalProducer | None = None
    ) -> Work[bytearray]:
        now_ms = self._now_ms()
        if producer is None:
            return batches.build_pairs_in_steps(encoded, now_ms, codec=self.config.codec)
        return batches.build_pairs_in_steps(
            encoded,
            now_ms,
            codec=self.config.codec,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            transactional=True,
        )

    def _append_failed(self, pending: _Round[Any], error: KafkaError, *, is_partly_applied: bool) -> bool:
        """Return True when the machine still equals the log and may go on."""
        if self.status is not Status.ACTIVE:
            return False
        code = coordinator_error(error.code)
        if self._append_error is not error.code:
            self._append_error = error.code
            logger.warning(
                "%s-%d: append failed, clients get %s: %s", self.topic, self.index, code.name, error
            )
        if error.code in _NOT_APPENDED and not pending.soft and not is_partly_applied:
            for part in pending.parts:
                for token, _ in part.replies:
                    self._fail(token, KafkaError(code))
            return True
        self._reload(code)
        return False

    # --- answering ---

    def _answer(self, replies: Sequence[tuple[int, Any]]) -> Work[None]:
        for at, (token, reply) in enumerate(replies, 1):
            future = self._waiting.pop(token, None)
            if future is not None and not future.done():
                future.set_result(reply)
            if at % REPLIES_PER_STEP == 0:
                yield

    def _fail(self, token: int, error: KafkaError) -> None:
        future = self._waiting.pop(token, None)
        if future is not None and not future.done():
            future.set_exception(error)

    def _fail_all(self, code: ErrorCode) -> None:
        """Drop everything that was decided or asked; fail every client that waits with this code."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._queue.clear()
        self._begun = None
        self._round = _Round()
        for token in list(self._waiting):
            self._fail(token, KafkaError(code))

    # --- time ---

    def _arm_timer(self) -> None:
        at_ms = self._machine.next_deadline_ms()
        if self._timer is not None:
            if at_ms is not None and self._timer_at_ms <= at_ms:
                return
            self._timer.cancel()
            self._timer = None
        if at_ms is not None:
            # Kept here, because uvloop returns a handle without a time for one that is past.
            self._timer_at_ms = at_ms
            self._timer = self._loop.call_at(at_ms / 1000, self._deadline_passed, at_ms)

    def _deadline_passed(self, planned_ms: int) -> None:
        self._timer = None
        if self.status is not Status.ACTIVE:
            return
        now = self._now()
        if now.mono_ms - planned_ms > STALL_MS:
            logger.warning(
                "%s-%d: the broker was paused; every member gets its full session timeout again",
                self.topic,
                self.index,
            )
            self._was_paused = True
        if self._is_busy or not self._may_decide(_TICK):
            self._queue.append((_TICK, -1))
            self._flush_soon()
        else:
            self._decide(_TICK, -1)

    # --- loading ---

    def _reload(self, code: ErrorCode, *, pause_s: float = 0.0) -> None:
        self._set_status(Status.LOADING)
        self._fail_all(code)
        self._spawn(self._load(pause_s))

    def _set_status(self, status: Status) -> None:
        self.status = status
        if status is Status.LOADING:
            self._active.clear()
        else:
            self._active.set()

    async def _load(self, pause_s: float = 0.0) -> None:
        if pause_s:
            await self._pause(pause_s)
        while self.status is Status.LOADING:
            try:
                machine = await self._replay()
                await self._wait_replicated()
                await self._turns.run(self._activate(machine))
            except (KafkaError, OSError, CorruptBatch) as error:
                await self._load_failed(error)
            except Exception as error:
                self._tell_unforeseen("cannot be loaded, will try again", error)
                pause_s = min(max(2 * pause_s, LOAD_RETRY_S), UNFORESEEN_RETRY_MAX_S)
                await self._pause(pause_s)

    def _activate(self, machine: MachineT) -> Work[None]:
        """Have it build its soft state, and go by it. Nothing comes between: who hears from a machine that it
        is loaded finds it active, and one that is closed before says nothing."""
        if self.status is not Status.LOADING:
            return
        yield from in_steps(machine.loaded(self._now()))
        if self.status is Status.LOADING:
            self._machine = machine
            self._set_status(Status.ACTIVE)
            self._arm_timer()

    async def _wait_replicated(self) -> None:
        """Wait until no election can lose what was read back, which may be uncommitted. A follower that does
        not fetch it leaves the ISR, which ends the wait.
        """
        pause_s = REPLICATION_POLL_S
        while self.status is Status.LOADING and not self._partitions.is_replicated(self.topic, self.index):
            await self._pause(pause_s)
            pause_s = min(2 * pause_s, REPLICATION_POLL_MAX_S)

    async def _load_failed(self, error: Exception) -> None:
        """Log the error and pause, unless the log only went with the leadership."""
        if self.status is Status.LOADING:
            logger.error("%s-%d cannot be loaded, will try again: %s", self.topic, self.index, error)
            await self._pause(LOAD_RETRY_S)

    async def _pause(self, most_s: float) -> None:
        """Wait before the next attempt, unless it is closed meanwhile."""
        try:
            async with asyncio.timeout(most_s):
                await self._active.wait()
        except TimeoutError:
            return

    async def _replay(self) -> MachineT:
        """Build a machine from the log. Of plain records only the last of each key is decoded, which saves
        most of the work: a compacted log may lack the others anyway.
        """
        machine = self._make_machine()
        latest: dict[bytes, batches.Record] = {}
        pace = Pace(self._loop)
        for chunk in self._partitions.read_all(self.topic, self.index):
            for at, header in batches.iter_batches(chunk):
                rows = batches.iter_records(chunk, at, header)
                if header.is_control or header.is_transactional:
                    await self._apply_latest(machine, latest, pace)
                    await self._turns.run(self._apply_in_order(machine, header, rows))
                else:
                    for number, row in enumerate(rows):
                        if row.key is not None:
                            latest.pop(row.key, None)
                            latest[row.key] = row
                        if number % ROWS_PER_LOOK == ROWS_PER_LOOK - 1:
                            await pace.yield_if_due()
                await pace.yield_if_due()
        await self._apply_latest(machine, latest, pace)
        return machine

    async def _apply_latest(self, machine: MachineT, latest: dict[bytes, batches.Record], pace: Pace) -> None:
        for row in latest.values():
            self._apply(machine, row, producer_id=-1)
            await pace.yield_if_due()
        latest.clear()

    def _apply_in_order(
        self, machine: MachineT, header: batches.BatchHeader, rows: Iterator[batches.Record]
    ) -> Work[None]:
        for number, row in enumerate(rows, 1):
            if number % ROWS_PER_LOOK == 0:
                yield
            if not header.is_control:
                self._apply(machine, row, producer_id=header.producer_id)
                continue
            kind, _, _ = batches.parse_control(row)
            if kind in (batches.ControlType.ABORT, batches.ControlType.COMMIT):
                committed = kind == batches.ControlType.COMMIT
                yield from in_steps(machine.apply_marker(producer_id=header.producer_id, committed=committed))

    def _apply(self, machine: MachineT, row: batches.Record, *, producer_id: int) -> None:
        record = self._decode(machine, row)
        if record is not None:
            machine.apply(record, offset=row.offset, producer_id=producer_id)

    def _decode(self, machine: MachineT, row: batches.Record) -> Any:
        """Return None for what a newer or foreign writer left: such a record must not fail its partition."""
        if row.key is None:
            return None
        try:
            return machine.decode(row.key, row.value)
        except BadRecord as error:
            logger.error(
                "%s-%d: ignored the record at offset %d: %s", self.topic, self.index, row.offset, error
            )
            return None


def coordinator_error(code: ErrorCode) -> ErrorCode:
    """Return what a client of a coordinator gets when the coordinator's own log fails."""
    return _AS_COORDINATOR.get(code, code)
