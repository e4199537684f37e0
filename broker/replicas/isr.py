"""Changes of the ISR on their way to the controller.

Owns: noticing followers that fell behind, collecting the proposals of all partitions led here, one request at
a time, and what each answer means. Does not own: which replica is in sync (partition), where the controller
is (cluster). Invariant: at most one request is under way; a proposal is asked for again until it is answered
for good or the partition has moved on by itself, which the image tells it; until then the partition counts
its maximal ISR, so a lost answer costs time and never an offset.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol

from broker.control.leaders import AlterPartition, IsrChange
from broker.net.channel import PeerLost
from broker.replicas.partition import IsrProposal, Partition, few_of
from protocol.codec import Fields
from protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

REQUEST_TIMEOUT_S: Final = 10.0
BACKOFF_MIN_S: Final = 0.05
BACKOFF_MAX_S: Final = 1.0
PROPOSALS_MAX: Final = 1_000
"""The most in one request; the rest goes with the next one."""
WATCHED_AT_ONCE: Final = 500

# The controller was asked in vain, but says what is true: the proposal was not done and will not be.
_NOT_DONE: Final = frozenset({ErrorCode.operation_not_attempted, ErrorCode.ineligible_replica})
# What was proposed is out of date, or done and more, and the image will tell; or the controller's own image
# is behind, so that it is worth asking again after a while.
_OUT_OF_DATE: Final = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.invalid_update_version,
        ErrorCode.invalid_request,
        ErrorCode.new_leader_elected,
    }
)


class Controller(Protocol):
    """The cluster, as far as ISR changes need it."""

    @property
    def broker_epoch(self) -> int: ...

    async def alter_partition(self, fields: Fields, *, timeout_s: float) -> Any:
        """Send AlterPartition to the controller, wherever it is; PeerLost or KafkaError without one."""


class ReplicaView(Protocol):
    """The replica manager, as far as ISR changes need it."""

    @property
    def node_id(self) -> int: ...
    @property
    def lag_s(self) -> float: ...
    @property
    def on_proposal(self) -> list[Callable[[Partition], None]]: ...
    def partitions(self) -> Iterator[Partition]: ...
    def wake_committed(self, partition: Partition) -> None: ...


class IsrChanges:
    def __init__(self, *, replicas: ReplicaView, controller: Controller) -> None:
        self._replicas = replicas
        self._controller = controller
        self._waiting: dict[Partition, None] = {}
        """Partitions with a proposal to send, in the order they came."""
        self._has_work = asyncio.Event()
        self.expands = 0
        self.shrinks = 0
        self.refusals = 0
        replicas.on_proposal.append(self._proposed)

    def __repr__(self) -> str:
        return f"<IsrChanges {len(self._waiting)} waiting, {self.expands} expands, {self.shrinks} shrinks>"

    def start(self, task_group: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        """Start watching and sending; return the tasks, to be stopped by the caller."""
        return [
            task_group.create_task(self._watch_for_ever(), name="isr watch"),
            task_group.create_task(self._send_for_ever(), name="isr changes"),
        ]

    async def _watch_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._replicas.lag_s / 2)
            for at, partition in enumerate(list(self._replicas.partitions())):
                self._look_at(partition)
                if at % WATCHED_AT_ONCE == WATCHED_AT_ONCE - 1:
                    await asyncio.sleep(0)

    def _look_at(self, partition: Partition) -> None:
        if partition.proposal is not None:
            self._proposed(partition)
        elif not partition.is_leader or len(partition.replicas) == 1:
            return
        else:
            partition.propose_shrink()
        # a follower outside the ISR whose time is up is not waited for any longer
        if partition.advance():
            self._replicas.wake_committed(partition)

    # --- asking ---

    def _proposed(self, partition: Partition) -> None:
        self._waiting[partition] = None
        self._has_work.set()

    async def _send_for_ever(self) -> None:
        backoff_s = BACKOFF_MIN_S
        while True:
            await self._has_work.wait()
            if await self._send_once():
                backoff_s = BACKOFF_MIN_S
            else:
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)

    async def _send_once(self) -> bool:
        """Send one request for all that wait. Return False when some of it has to be sent again."""
        asked = self._take()
        if not asked:
            return True
        fields = _command(asked, self._replicas.node_id, self._controller.broker_epoch).request_fields()
        try:
            response = await self._controller.alter_partition(fields, timeout_s=REQUEST_TIMEOUT_S)
        except (PeerLost, KafkaError) as error:
            logger.info("retrying %d ISR changes: %s", len(asked), error)
            self._again(asked)
            return False
        if response.error_code != ErrorCode.none:
            logger.info("retrying %d ISR changes: %s", len(asked), response.error_code.name)
            self._again(asked)
            return False
        return self._take_answers(asked, response)

    def _take(self) -> list[tuple[Partition, IsrProposal]]:
        asked: list[tuple[Partition, IsrProposal]] = []
        while self._waiting and len(asked) < PROPOSALS_MAX:
            partition = next(iter(self._waiting))
            del self._waiting[partition]
            if partition.proposal is not None:
                asked.append((partition, partition.proposal))
        if not self._waiting:
            self._has_work.clear()
        return asked

    def _again(self, asked: Iterable[tuple[Partition, IsrProposal]]) -> None:
        for partition, proposal in asked:
            if partition.proposal is proposal:
                self._proposed(partition)

    # --- answers ---

    def _take_answers(self, asked: list[tuple[Partition, IsrProposal]], response: Any) -> bool:
        answers = {
            (topic.topic_id, each.partition_index): each
            for topic in response.topics
            for each in topic.partitions
        }
        is_settled = True
        changed: dict[tuple[int, ...], list[str]] = {}
        for partition, proposal in asked:
            answer = answers.get((partition.topic_id, partition.index))
            if answer is not None and answer.error_code is ErrorCode.none:
                self.expands += proposal.expands
                self.shrinks += not proposal.expands
                changed.setdefault(tuple(answer.isr), []).append(f"{partition.topic}-{partition.index}")
            if partition.proposal is proposal and not self._settle(partition, proposal, answer):
                self._again([(partition, proposal)])
                is_settled = False
        for isr, names in changed.items():
            logger.info("ISR is now %s: %s", list(isr), few_of(names))
        return is_settled

    def _settle(self, partition: Partition, proposal: IsrProposal, answer: Any) -> bool:
        """Take the answer to one proposal. Return False when it has to be sent again."""
        if answer is None:
            return False
        code = answer.error_code
        if code is ErrorCode.none:
            moved = partition.committed(
                proposal,
                isr=tuple(answer.isr),
                leader_epoch=answer.leader_epoch,
                partition_epoch=answer.partition_epoch,
            )
            if moved:
                self._replicas.wake_committed(partition)
            return True
        self.refusals += 1
        if code in _NOT_DONE:
            if partition.withdraw(proposal):
                self._replicas.wake_committed(partition)
            return True
        if code in _OUT_OF_DATE:
            logger.info("%s: the controller answered %s to its ISR change", partition, code.name)
            return True
        logger.warning("%s: its ISR change failed with %s; retrying", partition, code.name)
        return False


def _command(
    asked: Iterable[tuple[Partition, IsrProposal]], node_id: int, broker_epoch: int
) -> AlterPartition:
    changes = tuple(
        IsrChange(
            topic_id=partition.topic_id,
            partition=partition.index,
            leader_epoch=proposal.leader_epoch,
            partition_epoch=proposal.partition_epoch,
            isr=tuple(
                (member, broker_epoch if member == node_id else epoch) for member, epoch in proposal.isr
            ),
        )
        for partition, proposal in asked
    )
    return AlterPartition(broker_id=node_id, broker_epoch=broker_epoch, changes=changes)
