"""How a node comes into its cluster: what its directories and the log say, then a registration.

Owns: the checks that refuse a start, the birth of a cluster, which node a joiner asks to be taken in and when
it takes the place of a controller that is gone, giving up what was on a directory that is gone. Does not own:
the rules of a registration (brokers.py), the files (directories.py), what a member does (cluster.py).

Invariants: nothing is written to a directory before the registration of its node is in the log. A directory
stays registered until it is there, or nothing that was alone in sync there is led any more: however often a
process ends on the way, its node does not lead an empty log in place of a lost one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from broker.config.broker import BrokerConfig
from broker.control.brokers import SECURITY_PROTOCOLS, RegisterBroker, election
from broker.control.command_queue import CommandQueue
from broker.control.commands import deciding
from broker.control.directories import (
    Directory,
    StartupError,
    advertised_endpoints,
    claimed_cluster,
    clean_epoch,
    is_emptied,
    mark_directories,
    missing_directories,
    read_directories,
)
from broker.control.image import Image, TopicImage
from broker.control.leaders import AlterPartition, IsrChange
from broker.control.member import Member
from broker.control.metadata_log import BrokenLog
from broker.control.metadata_records import (
    ClusterBorn,
    ControllerElected,
    PartitionImage,
    Record,
    encoding_records,
)
from broker.control.requests import ControllerClient
from broker.control.sessions import ElectionTimer
from broker.control.settings import Settings
from broker.endpoint import Endpoint
from broker.net.channel import PeerLost
from broker.ports import World
from protocol.apis import PeerApi
from protocol.codec import Fields
from protocol.errors import ErrorCode, KafkaError, error_code
from protocol.ids import encode_id
from remote.store.object_store import StoreError
from remote.store.probe import probe_conditions

HasLog = Callable[[TopicImage, int], bool]
"""Whether the log of a partition is here."""

RETRY_S = 0.2
GIVEN_UP_AT_ONCE = 1_000
PROBES = 3
REGISTER_ANSWER_S = 3.0
DUPLICATE_LOOK_S = 1.0
DUPLICATE_FOR_S = 60.0
"""How long another process must hold this node's id before this one gives up."""

logger = logging.getLogger(__name__)


class Joining:
    """`read`, then `join`, once each."""

    def __init__(
        self,
        member: Member,
        queue: CommandQueue,
        requests: ControllerClient,
        settings: Settings,
        config: BrokerConfig,
        world: World,
        *,
        lead: Callable[[ControllerElected], bool],
    ) -> None:
        self._member = member
        self._queue = queue
        self._requests = requests
        self._settings = settings
        self._config = config
        self._world = world
        self._lead = lead
        """Called when this node's bump is in the log: whether it leads now."""
        self._node_id = config.node_id
        self._ledger = member.ledger
        self._now_s = member.now_s
        self._timer = ElectionTimer(world.random.uniform)
        self._directories: list[Directory] = []
        self._directory_ids: dict[str, UUID] = {}
        self._endpoints: tuple[Endpoint, ...] = ()
        self._refusals = 0
        """How often this node heard that another process has its id."""

    def __repr__(self) -> str:
        return f"Joining(node={self._node_id}, directories={self._directories})"

    @property
    def _image(self) -> Image:
        return self._ledger.image

    async def read(self) -> dict[str, UUID]:
        """Load the log into the ledger; return the ids of the directories by their paths."""
        directories = read_directories(self._world.files, self._config.log_dirs, node_id=self._node_id)
        claimed = claimed_cluster(directories)
        try:
            survey = await self._ledger.survey()
            if survey.is_empty and claimed is not None:
                raise StartupError(
                    f"{directories[0].path} belongs to cluster {claimed}, whose metadata log is not in this "
                    "object store: use the store it was made with, or an empty data directory"
                )
            # An empty one too: whether objects may be read is to be known before this node is a member.
            await self._ledger.load(survey)
        except (BrokenLog, StoreError) as error:
            raise StartupError(str(error)) from error
        self._directories = directories
        self._directory_ids = {d.path: d.directory_id or self._member.new_id() for d in directories}
        self._check_cluster(claimed)
        self._tell_if_emptied()
        return self._directory_ids

    def _tell_if_emptied(self) -> None:
        """Say that this node comes back without what it had: it starts as a new one would."""
        if len(self._directories) < len(self._config.log_dirs) or not is_emptied(
            self._image.brokers.get(self._node_id), self._directories
        ):
            return
        held = [
            partition
            for topic in self._image.topics.values()
            for partition in topic.partitions
            if self._node_id in partition.replicas
        ]
        alone = sum(partition.isr == (self._node_id,) for partition in held)
        if held:
            logger.log(
                logging.ERROR if alone else logging.WARNING,
                "%s is empty, and node %d of cluster %s had replicas of %d partitions: of %d it had the only "
                "copy in sync, and nothing is left of these but what is in the cold tier; if the data is "
                "elsewhere, stop this broker now, put it back, and start again",
                ", ".join(directory.path for directory in self._directories),
                self._node_id,
                self._image.cluster_id,
                len(held),
                alone,
            )

    async def join(self, ports: Mapping[str, int]) -> int:
        """Register this node; return the broker epoch of this life."""
        self._endpoints = advertised_endpoints(self._config, host_name=self._world.host_name, ports=ports)
        try:
            await self._register()
        except (BrokenLog, StoreError, KafkaError) as error:
            raise StartupError(str(error)) from error
        mark_directories(
            self._world.files,
            self._directories,
            self._directory_ids,
            cluster_id=self._image.cluster_id,
            node_id=self._node_id,
        )
        return self._image.brokers[self._node_id].epoch

    async def _register(self) -> None:
        """Become a member through the controller; where there is none, by becoming it in the same slot."""
        self._timer.restart(self._now_s())
        is_checked = False
        while True:
            self._check_cluster(claimed_cluster(self._directories))
            if not is_checked and self._image.brokers.keys() - {self._node_id}:
                await self._check_conditions()
                is_checked = True
            registration = self._registration()
            if await self._must_stand():
                if await self._stand(registration):
                    return
            elif await self._is_taken_in(registration):
                return
            if await self._ledger.catch_up():
                self._timer.restart(self._now_s())

    async def _check_conditions(self) -> None:
        """Refuse a store that does not honour conditional puts: they are all that several nodes have between
        them.

        A store that cannot be asked now is not refused: the next node that joins asks again.
        """
        store, rival = self._world.store, self._world.rival_store
        if rival is None:
            return
        try:
            for _ in range(PROBES):
                try:
                    found = await probe_conditions(store, rival, self._world.random)
                except StoreError as error:
                    logger.warning(
                        "could not verify that the object store honours conditional puts: %s", error
                    )
                    await asyncio.sleep(RETRY_S)
                    continue
                if not found.is_sound:
                    raise StartupError(
                        "the object store does not honour conditional puts and cannot hold a cluster of "
                        f"several nodes: {found.complaints[0]}"
                    )
                return
        finally:
            await rival.close()

    def _registration(self) -> RegisterBroker:
        before = self._image.brokers.get(self._node_id)
        here = tuple(self._directory_ids.values())
        return self._registration_with(
            (*here, *missing_directories(before, here)),
            clean_epoch(before, self._directories, self._directory_ids),
        )

    def _registration_with(self, directories: tuple[UUID, ...], clean_epoch: int) -> RegisterBroker:
        return RegisterBroker(
            cluster_id=self._image.cluster_id,
            broker_id=self._node_id,
            incarnation=self._member.incarnation,
            directories=directories,
            endpoints=self._endpoints,
            rack=self._config.broker_rack,
            clean_epoch=clean_epoch,
        )

    async def _must_stand(self) -> bool:
        """Whether there is no controller to ask: none yet, an earlier life of this node, one that is gone."""
        image = self._image
        if not image.cluster_id or self._timer.has_expired(self._now_s()):
            return True
        if image.controller_id != self._node_id:
            return False
        return await self._does_earlier_life_answer() is False

    async def _does_earlier_life_answer(self) -> bool | None:
        """Whether an earlier process of this node still listens; None if it is silent. Where it listened on
        an address of this one, it is gone."""
        before = self._member.endpoint_of(self._node_id)
        if before is None or before in self._endpoints:
            return False
        return await self._member.is_listening(self._node_id)

    async def _stand(self, registration: RegisterBroker) -> bool:
        if await self._does_earlier_life_answer():
            # A controller would know of its session; where there is none, it would take us for its successor.
            await self._wait_for_earlier_life()
            return False
        born = [] if self._image.cluster_id else [ClusterBorn(cluster_id=encode_id(self._member.new_id()))]
        image, turns = self._image.kept(), self._member.turns.own
        taken_in = await turns.run(deciding(registration, image, self._settings.rules()))
        bump = election(image, self._node_id)
        records: list[Record] = [*born, bump, *taken_in.records]
        encoded = await turns.run(encoding_records(records))
        epoch = bump.controller_epoch
        if await self._ledger.commit(records, encoded, after=image.seq, controller_epoch=epoch) is None:
            return False
        return self._lead(bump)

    async def _is_taken_in(self, registration: RegisterBroker) -> bool:
        controller = self._image.controller_id
        try:
            answer = await self._ask_to_register(controller, registration)
        except PeerLost as lost:
            if lost.refused and self._image.controller_id == controller:
                return await self._stand(registration)
            await asyncio.sleep(RETRY_S)
            return False
        code = answer.error_code
        if code == ErrorCode.none:
            await self._ledger.catch_up()
            return self._member.is_member()
        if code == ErrorCode.not_controller:
            await asyncio.sleep(RETRY_S)
            return False
        if code == ErrorCode.duplicate_broker_registration:
            await self._wait_for_earlier_life()
            return False
        if code in (ErrorCode.request_timed_out, ErrorCode.stale_broker_epoch):
            await asyncio.sleep(RETRY_S)
            return False
        raise StartupError(f"the controller refuses to register node {self._node_id}: {code.name.upper()}")

    async def _ask_to_register(self, controller: int, registration: RegisterBroker) -> Any:
        fields = _registration_fields(registration)
        channel = self._member.channels.to(controller, "control")
        return await channel.ask(PeerApi.BROKER_REGISTRATION, 4, fields, timeout_s=REGISTER_ANSWER_S)

    # --- directories that are gone ---

    async def settle(self, has_log: HasLog) -> None:
        """Give up what this node alone was in sync with and has no log of, where a missing directory may have
        had it; then forget the directory. To be called as a member, before anything is served.
        """
        if len(self._directories) < len(self._config.log_dirs):
            return  # one of them may be the one that seems to be gone
        here = tuple(self._directory_ids.values())
        is_told, trouble = False, ""
        while True:
            if not self._member.is_member():
                raise StartupError(f"node {self._node_id} is out of its cluster")
            me = self._image.brokers[self._node_id]
            gone = missing_directories(me, here)
            if not gone:
                return
            lost, seq = self._lost(has_log), self._image.seq
            if lost and not is_told:
                is_told = True
                logger.error(
                    "a log directory is missing; it held the only in-sync copy of %d partitions", len(lost)
                )
            try:
                if lost:
                    await self._give_up(lost[:GIVEN_UP_AT_ONCE])
                else:
                    await self._amend(self._registration_with(here, -1))
            except (PeerLost, KafkaError) as error:
                if str(error) != trouble:
                    trouble = str(error)
                    logger.warning(
                        "postponed giving up the partitions of a missing log directory: %s", trouble
                    )
                await asyncio.sleep(RETRY_S)
            await self._member.wait_until(lambda seq=seq: self._image.seq > seq, RETRY_S)  # type: ignore[misc]

    def _lost(self, has_log: HasLog) -> list[tuple[TopicImage, PartitionImage]]:
        """The partitions that only this node is in sync with, and has no log of. One at its first partition
        epoch was made after this node registered, and has no log yet."""
        return [
            (topic, partition)
            for topic in self._image.topics.values()
            for partition in topic.partitions
            if partition.isr == (self._node_id,)
            and partition.partition_epoch
            and not has_log(topic, partition.index)
        ]

    async def _give_up(self, lost: list[tuple[TopicImage, PartitionImage]]) -> None:
        changes = tuple(
            IsrChange(
                topic_id=topic.id,
                partition=partition.index,
                leader_epoch=partition.leader_epoch,
                partition_epoch=partition.partition_epoch,
                isr=(),
            )
            for topic, partition in lost
        )
        command = AlterPartition(
            broker_id=self._node_id, broker_epoch=self._member.broker_epoch, changes=changes
        )
        if self._member.is_controller:
            await self._queue.submit(command)
        else:
            fields = command.request_fields()
            _check_answer(await self._requests.alter_partition(fields, timeout_s=REGISTER_ANSWER_S))

    async def _amend(self, registration: RegisterBroker) -> None:
        if self._member.is_controller:
            await self._queue.submit(registration)
        else:
            controller = self._member.controller_to_ask()
            _check_answer(await self._ask_to_register(controller, registration))

    async def _wait_for_earlier_life(self) -> None:
        """Wait for the session of an earlier process of this node to end; that of a living one does not."""
        self._timer.restart(self._now_s())
        if not self._refusals:
            logger.warning(
                "another process runs as node %d, or did a moment ago: waiting up to %.0f s for it to end",
                self._node_id,
                DUPLICATE_FOR_S,
            )
        self._refusals += 1
        if self._refusals * DUPLICATE_LOOK_S > DUPLICATE_FOR_S:
            raise StartupError(
                f"another process runs as node {self._node_id} of this cluster: stop it, or give this one "
                "another node.id"
            )
        await asyncio.sleep(DUPLICATE_LOOK_S)

    def _check_cluster(self, claimed: str | None) -> None:
        if claimed is not None and self._image.cluster_id != claimed:
            raise StartupError(
                f"{self._directories[0].path} belongs to cluster {claimed}, but this object store to "
                f"{self._image.cluster_id}: use the store it was made with, or an empty data directory"
            )


def _check_answer(answer: Any) -> None:
    if answer.error_code != ErrorCode.none:
        raise KafkaError(error_code(int(answer.error_code)))


def _registration_fields(registration: RegisterBroker) -> Fields:
    return {
        "broker_id": registration.broker_id,
        "cluster_id": registration.cluster_id,
        "incarnation_id": registration.incarnation,
        "listeners": [
            {
                "name": endpoint.listener,
                "host": endpoint.host,
                "port": endpoint.port,
                "security_protocol": SECURITY_PROTOCOLS.index(endpoint.protocol),
            }
            for endpoint in registration.endpoints
        ],
        "features": [],
        "rack": registration.rack,
        "log_dirs": list(registration.directories),
        "previous_broker_epoch": registration.clean_epoch,
    }
