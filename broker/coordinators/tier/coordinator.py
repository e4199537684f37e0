"""The metadata of the cold tier where this broker leads it: one replicated machine for each partition of the
metadata topic it leads.

Owns: the life of these machines (loaded with leadership, closed without), and asking them, for this broker
and for the others that send commands as a Produce. Does not own: what is decided (machine), how a machine is
run (broker.coordinators.replicated_state), where a broker reads what it does not lead (readers).
Invariant: a machine lives exactly as long as this broker leads its partition in one leader epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeAlias

from broker.control.image import Image
from broker.coordinators.replicated_state import ReplicatedState, Status
from broker.coordinators.shell.log import CoordinatorLog, StateConfig
from broker.coordinators.tier.commands import parse_commands
from broker.coordinators.tier.machine import TOPIC, TierCommand, TierMachine
from broker.turns import Turns
from protocol.errors import ErrorCode, KafkaError
from protocol.records import Buffer
from remote.cold.segments import TieredPartition
from storage.policy import LogConfig

TierState: TypeAlias = ReplicatedState[TierMachine]


class ReplicaLog(Protocol):
    def epoch_for_offset(self, offset: int) -> int | None: ...


class Replica(Protocol):
    @property
    def log(self) -> ReplicaLog: ...


class LeadershipSource(CoordinatorLog, Protocol):
    """The replica manager, as far as it concerns this coordinator."""

    @property
    def node_id(self) -> int: ...
    @property
    def on_leadership(self) -> list[Callable[[str, int, int | None], None]]: ...

    def replica(self, topic: str, index: int) -> Replica | ErrorCode: ...


class Listener(Protocol):
    """Who is told what a machine does."""

    def leads(self, index: int) -> None:
        """The leadership began or ended."""

    def loaded(self, index: int, machine: TierMachine) -> None: ...

    def applied(self, index: int, machine: TierMachine, partition: TieredPartition) -> None: ...


class TierCoordinator:
    def __init__(
        self,
        *,
        inter_broker_listener: str,
        replicas: LeadershipSource,
        image: Callable[[], Image],
        log_config: Callable[[str], LogConfig],
        now_ms: Callable[[], int],
        turns: Turns,
        listener: Listener,
    ) -> None:
        self._inter_broker_listener = inter_broker_listener
        self._replicas = replicas
        self._image = image
        self._log_config = log_config
        self._now_ms = now_ms
        self._turns = turns
        self._listener = listener
        self._config = StateConfig()
        self._states: dict[int, TierState] = {}
        self._leader_epochs: dict[int, int] = {}
        self._tasks: asyncio.TaskGroup | None = None
        replicas.on_leadership.append(self._leadership_changed)

    def __repr__(self) -> str:
        return f"<TierCoordinator {sorted(self._states)}>"

    def start(self, task_group: asyncio.TaskGroup) -> None:
        """Coordinate what this broker leads already, and what it will lead."""
        self._tasks = task_group
        for index, leader_epoch in self._leader_epochs.items():
            self._open(index, leader_epoch)

    def stop(self) -> None:
        self._tasks = None
        states, self._states = self._states, {}
        for state in states.values():
            state.close()

    # --- asking ---

    def leads(self, index: int) -> bool:
        """Whether this broker leads it, as its log and its image say."""
        state = self._states.get(index)
        return state is not None and self._is_leader(index, state.leader_epoch)

    def is_loaded(self, index: int) -> bool:
        """Whether what this broker leads is all there."""
        return self.leads(index) and self._states[index].status is Status.ACTIVE

    def machines(self) -> Iterator[tuple[int, TierMachine]]:
        """Yield what is led and loaded."""
        for index in sorted(self._states):
            if self.is_loaded(index):
                yield index, self._states[index].machine

    @property
    def led(self) -> int:
        return len(self._states)

    def epoch_before(self, index: int, end: int) -> int | None:
        """Return the leader epoch of the row before `end` in this broker's own log, if it has one."""
        found = self._replicas.replica(TOPIC, index)
        return None if isinstance(found, ErrorCode) else found.log.epoch_for_offset(end - 1)

    async def ask(self, index: int, command: TierCommand) -> int:
        """Return an end below which the event is, once it is durable and applied; raise KafkaError where it
        is refused or this broker is not the one to ask."""
        state = self._states.get(index)
        if state is None:
            raise KafkaError(ErrorCode.not_leader_or_follower, f"another broker leads {TOPIC}-{index}")
        await state.ask(command)
        return state.machine.end

    def accept(
        self, listener: str, topic: str, index: int, records: Buffer | None, *, version: int
    ) -> Callable[[], Coroutine[Any, Any, int]] | None:
        """Read the commands in what another broker produces; None when a client does. What is returned
        carries them out and gives the offset of the last."""
        if topic != TOPIC or listener != self._inter_broker_listener:
            return None
        commands = parse_commands(records, version=version)
        return None if commands is None else partial(self._ask_all, index, commands)

    async def _ask_all(self, index: int, commands: Sequence[TierCommand]) -> int:
        """Ask in the order of the commands; the first refusal is the answer, and stops no other."""
        answers = await asyncio.gather(*(self._ask_one(index, command) for command in commands))
        ends = []
        for answer in answers:
            if isinstance(answer, KafkaError):
                raise answer
            ends.append(answer)
        return max(ends) - 1

    async def _ask_one(self, index: int, command: TierCommand) -> int | KafkaError:
        """`ask` for one of several, whose refusal is read once all are answered, if that comes to pass."""
        try:
            return await self.ask(index, command)
        except KafkaError as error:
            return error

    # --- following ---

    def adopt_configs(self) -> None:
        """Take the largest batch that the topic allows now."""
        bytes_max = self._log_config(TOPIC).max_message_bytes
        if bytes_max != self._config.batch_bytes_max:
            self._config = replace(self._config, batch_bytes_max=bytes_max)
            for state in self._states.values():
                state.config = self._config

    def _leadership_changed(self, topic: str, index: int, leader_epoch: int | None) -> None:
        if topic != TOPIC:
            return
        state = self._states.pop(index, None)
        if state is not None:
            state.close()
        if leader_epoch is None:
            self._leader_epochs.pop(index, None)
        else:
            self._leader_epochs[index] = leader_epoch
            if self._tasks is not None:
                self._open(index, leader_epoch)
        self._listener.leads(index)

    def _open(self, index: int, leader_epoch: int) -> None:
        self.adopt_configs()
        state: TierState = ReplicatedState(
            topic=TOPIC,
            index=index,
            leader_epoch=leader_epoch,
            make_machine=lambda: TierMachine(
                image=self._image,
                leads=partial(self._is_leader, index, leader_epoch),
                on_loaded=partial(self._listener.loaded, index),
                on_applied=partial(self._listener.applied, index),
            ),
            partitions=self._replicas,
            now_ms=self._now_ms,
            spawn=self._spawn,
            turns=self._turns,
            config=self._config,
        )
        self._states[index] = state
        state.start()

    def _is_leader(self, index: int, leader_epoch: int) -> bool:
        partition = self._image().partition(TOPIC, index)
        return partition is not None and (partition.leader, partition.leader_epoch) == (
            self._replicas.node_id,
            leader_epoch,
        )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._tasks is None:
            work.close()
        else:
            self._tasks.create_task(work)
