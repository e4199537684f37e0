"""Which partitions this broker follows, and from whom each of them is fetched.

Owns: the fetchers, one for each leader and lane; moving a partition to another one when its leader, its epoch
or its use of the WAL tier changes; bringing a log up from the tier in between. Does not own: fetching and
appending (fetcher), roles (replica manager), what a restore does (restore). Invariant: a partition has at
most one position, of the leader and the epoch that the image names; after `stop` nothing is appended.

Partitions that use the WAL tier have a task, a connection and a fetch session of their own, beside those of
the same leader that do not: a read of the store that takes long holds up no other report.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from broker.config.broker import BrokerConfig
from broker.control.image import Delta
from broker.control.metadata_records import NO_LEADER
from broker.replicas.fetch_position import Position
from broker.replicas.fetcher import Fetcher, ReplicaView
from broker.replicas.leader_questions import AskedLeader, LeaderQuestions, PeerChannels
from broker.replicas.partition import UNKNOWN, Partition
from broker.replicas.restore import Restores
from broker.replicas.throttle import Throttle
from protocol.errors import ErrorCode, KafkaError
from remote.wal.hydrator import Hydrator

LOOKED_AT_ONCE: Final = 256
RESTORE_PURPOSE: Final = "restore"
"""Questions about what is in the tier have a connection of their own: an answer to a Fetch may take long."""


class ReplicaFetchers:
    """All partitions this broker follows, by leader."""

    def __init__(
        self,
        *,
        replicas: ReplicaView,
        channels: PeerChannels,
        broker_epoch: Callable[[], int],
        config: Callable[[], BrokerConfig],
        throttle: Throttle,
        hydrates: Callable[[Partition], bool] = lambda _: False,
    ) -> None:
        """`hydrates` tells whether a partition is read from the WAL tier."""
        self.replicas = replicas
        self.channels = channels
        self.broker_epoch = broker_epoch
        self.config = config
        self.throttle = throttle
        self.restores: Restores | None = None
        """None where nothing is tiered."""
        self.hydrator: Hydrator | None = None
        """None where the WAL tier is switched off."""
        self.questions = LeaderQuestions(node_id=replicas.node_id, channels=channels, config=config)
        self._hydrates = hydrates
        self._fetchers: dict[tuple[int, bool], Fetcher] = {}
        """By leader, and whether it is asked for pointers."""
        self._positions: dict[Partition, Position] = {}
        self._tasks: asyncio.TaskGroup | None = None
        replicas.on_role.append(self.follow)

    def __repr__(self) -> str:
        return f"<ReplicaFetchers {list(self._fetchers.values())}>"

    def start(self, task_group: asyncio.TaskGroup) -> None:
        """Start a task for each leader that is followed now or later."""
        self._tasks = task_group
        for fetcher in self._fetchers.values():
            fetcher.start(task_group)

    def stop(self) -> None:
        """Cancel every task: nothing is appended from here on."""
        self._tasks = None
        for fetcher in self._fetchers.values():
            fetcher.stop()
        for position in self._positions.values():
            if position.restore is not None:
                position.restore.cancel()
        self._fetchers.clear()
        self._positions.clear()

    def follow(self, partition: Partition) -> None:
        """Take over a partition as it is now: led here, led elsewhere, without a leader, offline or gone."""
        known = self._positions.get(partition)
        takes_pointers = self.hydrator is not None and self._hydrates(partition)
        leads = partition.is_leader or partition.offline
        leader_id = NO_LEADER if leads else partition.leader_id
        lane = (leader_id, takes_pointers)
        if known is not None and (known.lane, known.leader_epoch) == (lane, partition.leader_epoch):
            return
        if known is not None:
            del self._positions[partition]
            self._forget(known)
        if leader_id in (NO_LEADER, self.replicas.node_id):
            return
        try:
            position = Position(partition, takes_pointers=takes_pointers)
        except KafkaError as error:
            self.replicas.partition_failed(partition, error)
            return
        self._positions[partition] = position
        fetcher = self._fetchers.get(lane)
        if fetcher is None:
            hydrator = self.hydrator if takes_pointers else None
            fetcher = self._fetchers[lane] = Fetcher(self, leader_id, hydrator)
            if self._tasks is not None:
                fetcher.start(self._tasks)
        fetcher.add(position)

    def image_changed(self, delta: Delta) -> Iterator[None]:
        """Look again at every partition, in portions, after a change of configurations: a topic may have
        begun to use the WAL tier, or not use it any more."""
        if not delta.configs_changed or self.hydrator is None:
            return
        for at, partition in enumerate(list(self._positions), 1):
            if partition in self._positions:
                self.follow(partition)
            if at % LOOKED_AT_ONCE == 0:
                yield

    def restore(self, position: Position) -> None:
        """Begin to bring a log up from the tier; it is fetched again once that is done."""
        if self.restores is None or self._tasks is None or position.restore is not None:
            return
        position.cuts(UNKNOWN)
        name = f"restore {position.partition.topic}-{position.partition.index}"
        position.restore = self._tasks.create_task(self._restore(self.restores, position), name=name)

    async def _restore(self, restores: Restores, position: Position) -> None:
        leader = AskedLeader(self.questions, position, purpose=RESTORE_PURPOSE)
        try:
            await restores.follow(
                position.partition, leader, lambda: self._positions.get(position.partition) is position
            )
        except KafkaError as error:
            if self._positions.get(position.partition) is position:
                self._not_restored(position, error)
            return
        finally:
            position.restore = None
        position.needs_reset = False
        position.is_verified = True
        fetcher = self._fetchers.get(position.lane)
        if fetcher is not None:
            fetcher.look_again(position)

    def _not_restored(self, position: Position, error: KafkaError) -> None:
        if error.code is ErrorCode.fenced_leader_epoch:
            position.is_stuck = True
        else:
            self._fetchers[position.lane].remove(position)
            self.replicas.partition_failed(position.partition, error)

    def _forget(self, position: Position) -> None:
        fetcher = self._fetchers[position.lane]
        fetcher.remove(position)
        if position.restore is not None:
            position.restore.cancel()
        if not fetcher.positions:
            fetcher.stop()
            del self._fetchers[position.lane]
