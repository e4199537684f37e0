"""This node's membership in its cluster: it joins, follows the metadata log, and writes it while it is the
controller.

Owns: `meta.properties`, birth and registration, the queue of commands and the slots they share, publishing
what was committed to the rest of the broker, the current view of configurations, this broker's producer ids.
Does not own: the rules of a command (controller.py), the fold (image.py), how a slot is won
(metadata_log.py).

Invariants: nothing is told to anyone before its slot is won. Commands of one slot are decided in order, each
seeing what those before it will do. Whoever loses a slot stops writing, and answers nothing it did not
commit.
"""

import asyncio
import base64
import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from broker.config import BrokerConfig, ConfigError, Listener, ResourceType, log_config, parse_properties
from broker.controller import (
    PRODUCER_ID_BLOCK,
    AllocateProducerIds,
    Command,
    CreateTopics,
    Decision,
    NewTopic,
    RegisterBroker,
    Rules,
    TopicResult,
    election,
)
from broker.image import ClusterBorn, Delta, Endpoint, Image, Record, TopicImage, encode_record
from broker.metadata_log import (
    GENESIS_HASH,
    SNAPSHOT_EVERY_SLOTS,
    BrokenLog,
    MetadataLog,
    ReadSlot,
    Survey,
)
from broker.ports import World
from protocol.errors import ErrorCode, KafkaError
from remote.object_store import StoreError
from storage.files import write_whole
from storage.policy import LogConfig

R = TypeVar("R")
DeltaListener = Callable[[Delta], Iterable[None] | None]

QUEUE_MAX_COMMANDS = 1_000
SLOT_MAX_COMMANDS = 500
SLOT_MAX_BYTES = 4 * 1024 * 1024
FOLLOW_INTERVAL_S = 1.0
# A follower whose next slot was collected finds nothing there: once a minute it asks how far the log was
# trimmed.
FOLLOW_BOUNDARY_EVERY = 60
JOIN_ATTEMPTS = 100
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
MADE_BY_THE_BROKER = frozenset({"__consumer_offsets", "__transaction_state"})

_log = logging.getLogger("broker.cluster")


class StartupError(Exception):
    """The broker must not start; one line for the person who started it."""


# --- meta.properties ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """One log directory, as its meta.properties and clean-shutdown marker describe it."""

    path: str
    cluster_id: str | None = None
    directory_id: UUID | None = None
    clean: bool = False
    clean_epoch: int = -1


def encode_uuid(value: UUID) -> str:
    """As Kafka writes ids: base64 for URLs, no padding."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def decode_uuid(text: str) -> UUID:
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(data) != 16:
        raise ValueError(f"not an id: {text!r}")
    return UUID(bytes=data)


def read_directory(path: str, text: str | None, marker: bytes | None, *, node_id: int) -> Directory:
    """StartupError unless a directory with these contents may be used by this node."""
    if text is None:
        return Directory(path=path)
    props = parse_properties(text)
    if props.get("version") != "1":
        raise StartupError(f"{path}: meta.properties has version {props.get('version')}, expected 1")
    if props.get("node.id") != str(node_id):
        raise StartupError(f"{path} belongs to node {props.get('node.id')}, but this is node {node_id}")
    cluster_id, directory_id = props.get("cluster.id"), props.get("directory.id")
    if not cluster_id:
        raise StartupError(f"{path}: meta.properties does not say which cluster it belongs to")
    try:
        parsed_id = None if directory_id is None else decode_uuid(directory_id)
    except ValueError:
        raise StartupError(f"{path}: meta.properties has a bad directory.id {directory_id!r}") from None
    return Directory(
        path=path,
        cluster_id=cluster_id,
        directory_id=parsed_id,
        clean=marker is not None,
        clean_epoch=_marker_epoch(marker),
    )


def _was_clean(directory: Directory, epoch: int) -> bool:
    """A directory that was never used holds nothing that a stop could have lost."""
    if directory.cluster_id is None:
        return True
    return directory.clean and directory.clean_epoch in (-1, epoch)


def _marker_epoch(marker: bytes | None) -> int:
    """The broker epoch in Kafka's marker, {"version": 0, "brokerEpoch": n}; -1 when it names none."""
    try:
        return int(json.loads(marker or b"{}").get("brokerEpoch", -1))
    except (ValueError, AttributeError, TypeError):
        return -1


def meta_properties(*, cluster_id: str, node_id: int, directory_id: UUID) -> bytes:
    lines = (
        f"cluster.id={cluster_id}",
        f"directory.id={encode_uuid(directory_id)}",
        f"node.id={node_id}",
        "version=1",
    )
    return "".join(f"{line}\n" for line in lines).encode()


def advertised_endpoints(
    config: BrokerConfig, *, host_name: str, ports: Mapping[str, int]
) -> tuple[Endpoint, ...]:
    """What clients are told: the host's name for a wildcard, the real port where 0 was asked for."""

    def endpoint(listener: Listener) -> Endpoint:
        return Endpoint(
            listener=listener.name,
            host=host_name if listener.is_wildcard else listener.host,
            port=listener.port or ports.get(listener.name, 0),
            protocol=listener.protocol,
        )

    return tuple(map(endpoint, config.advertised))


# --- the member --------------------------------------------------------------------------------------------


class Cluster:
    """Start it once listeners are bound and the log directories are locked."""

    def __init__(
        self,
        config: BrokerConfig,
        world: World,
        *,
        on_fenced: Callable[[str], None] | None = None,
    ) -> None:
        self.image = Image()
        self.broker_config = config
        self.broker_epoch = -1
        self.incarnation = self._new_id_from(world)
        self.directory_ids: dict[str, UUID] = {}
        self.is_controller = False
        self._config = config
        self._world = world
        self._log = MetadataLog(world.store, world.random)
        self._on_fenced = on_fenced
        self._last_hash = GENESIS_HASH
        self._listeners: list[DeltaListener] = []
        self._queue: deque[tuple[Command[Any], asyncio.Future[Any]]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._task_group: asyncio.TaskGroup | None = None
        self._writer: asyncio.Task[None] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._stopping = False
        self._log_configs: dict[str, LogConfig] = {}
        self._producer_ids: deque[range] = deque()
        self._fetching_ids: asyncio.Task[None] | None = None
        self._no_producer_ids: str | None = None

    def __repr__(self) -> str:
        role = "controller" if self.is_controller else "member"
        return f"Cluster(node={self._config.node_id}, {role}, queue={len(self._queue)}, {self.image!r})"

    @property
    def node_id(self) -> int:
        return self._config.node_id

    def subscribe(self, listener: DeltaListener) -> None:
        """Call `listener` after each slot that is applied once start() has returned; it must not fail. One
        that has much to do answers with its slices, and others are served between them."""
        self._listeners.append(listener)

    # --- joining ---

    async def start(
        self,
        *,
        ports: Mapping[str, int] | None = None,
        task_group: asyncio.TaskGroup | None = None,
        clean: bool | None = None,
    ) -> None:
        """Read the log or give birth to it, register, and be ready to serve.

        `ports` are the real ones of the listeners. `clean` says whether the logs were closed by a clean stop,
        where the caller knows; otherwise the markers in the log directories do.
        """
        self._task_group = task_group
        directories = self._read_directories()
        try:
            await self._join(directories, ports or {}, clean)
        except (BrokenLog, StoreError) as error:
            raise StartupError(str(error)) from error
        self._write_directories(directories)
        self._take_configs()
        _log.info("node %d joined cluster %s: %r", self.node_id, self.image.cluster_id, self.image)

    async def _join(
        self, directories: Sequence[Directory], ports: Mapping[str, int], clean: bool | None
    ) -> None:
        claimed = self._claimed_cluster(directories)
        self.directory_ids = {d.path: d.directory_id or self._new_id() for d in directories}
        survey = await self._log.survey()
        if survey.is_empty and claimed is not None:
            raise StartupError(
                f"{directories[0].path} belongs to cluster {claimed}, whose metadata log is not in this "
                "object store: use the store it was made with, or an empty data directory"
            )
        if not survey.is_empty:
            await self._load(survey)
        for _ in range(JOIN_ATTEMPTS):
            self._check_membership(claimed, directories)
            records = self._first_records(directories, ports, clean)
            if await self._commit(records) is not None:
                self.is_controller = True
                self.broker_epoch = self.image.seq
                return
            await self._catch_up()
        raise StartupError(
            "another process keeps writing the metadata log of this cluster with this node's id"
        )

    def _first_records(
        self, directories: Sequence[Directory], ports: Mapping[str, int], clean: bool | None
    ) -> list[Record]:
        born = [] if self.image.cluster_id else [ClusterBorn(cluster_id=encode_uuid(self._new_id()))]
        registration = RegisterBroker(
            cluster_id=self.image.cluster_id,
            broker_id=self.node_id,
            incarnation=self.incarnation,
            directories=tuple(self.directory_ids.values()),
            endpoints=advertised_endpoints(self._config, host_name=self._world.host_name, ports=ports),
            rack=self._config.broker_rack,
            clean_epoch=self._clean_epoch(directories, clean),
        )
        return [*born, election(self.image, self.node_id), registration.record()]

    def _clean_epoch(self, directories: Sequence[Directory], clean: bool | None) -> int:
        before = self.image.brokers.get(self.node_id)
        if before is None:
            return -1
        if clean is None:
            clean = all(_was_clean(d, before.epoch) for d in directories)
        # With a disk gone, what it held may be written a second time.
        complete = set(before.directories) <= set(self.directory_ids.values())
        return before.epoch if clean and complete else -1

    def _check_membership(self, claimed: str | None, directories: Sequence[Directory]) -> None:
        image = self.image
        if claimed is not None and image.cluster_id != claimed:
            raise StartupError(
                f"{directories[0].path} belongs to cluster {claimed}, but this object store to "
                f"{image.cluster_id}: use the store it was made with, or an empty data directory"
            )
        if image.controller_id not in (-1, self.node_id):
            raise StartupError(
                f"the object store belongs to node {image.controller_id} of cluster {image.cluster_id}: "
                f"start it with node.id={image.controller_id}, or give node {self.node_id} a store of its own"
            )

    @staticmethod
    def _claimed_cluster(directories: Sequence[Directory]) -> str | None:
        claims = {d.cluster_id: d.path for d in directories if d.cluster_id is not None}
        if len(claims) > 1:
            raise StartupError(
                "the log directories belong to different clusters: "
                + ", ".join(f"{path} to {cluster_id}" for cluster_id, path in claims.items())
            )
        return next(iter(claims), None)

    def _read_directories(self) -> list[Directory]:
        """Those that can be read; one bad disk does not keep a broker with several from starting."""
        found = []
        problem = ""
        for path in self._config.log_dirs:
            try:
                self._world.files.makedirs(path)
                text = self._read_file(f"{path}/{META_PROPERTIES}")
                marker = self._read_file(f"{path}/{CLEAN_SHUTDOWN}")
            except (OSError, UnicodeDecodeError) as error:
                problem = f"log directory {path} cannot be used: {error}"
                _log.error("%s", problem)
                continue
            decoded = None if text is None else text.decode("utf-8", "replace")
            found.append(read_directory(path, decoded, marker, node_id=self.node_id))
        if not found:
            raise StartupError(problem)
        return found

    def _read_file(self, path: str) -> bytes | None:
        try:
            return self._world.files.read(path)
        except FileNotFoundError:
            return None

    def _write_directories(self, directories: Sequence[Directory]) -> None:
        """Mark new ones as this node's; one bad disk is left to whoever writes its logs."""
        problem = ""
        failed = 0
        for directory in directories:
            if directory.cluster_id is not None and directory.directory_id is not None:
                continue
            data = meta_properties(
                cluster_id=self.image.cluster_id,
                node_id=self.node_id,
                directory_id=self.directory_ids[directory.path],
            )
            path = f"{directory.path}/{META_PROPERTIES}"
            try:
                write_whole(self._world.files, path, data)
            except OSError as error:
                problem = f"{path} cannot be written: {error.strerror or error}"
                _log.error("%s", problem)
                failed += 1
        if failed == len(directories):
            raise StartupError(problem)

    # --- reading the log ---

    async def _load(self, survey: Survey) -> None:
        """Start from the newest snapshot, or from nothing, and read on to the tail."""
        if survey.boundary and not survey.snapshots:
            raise BrokenLog(f"the metadata log was trimmed to slot {survey.boundary} and has no snapshot")
        if survey.snapshots:
            newest = survey.snapshots[-1]
            found = await self._log.snapshot(newest)
            if found is None:
                raise BrokenLog(f"the snapshot of metadata slot {newest} is gone")
            self.image.apply_slot(newest, found.records)
            self._last_hash = found.hash
        await self._catch_up()
        if survey.slots and survey.slots[-1] > self.image.seq:
            raise BrokenLog(f"metadata slot {self.image.seq + 1} is missing")

    async def _catch_up(self, *, is_routine: bool = False) -> list[Delta]:
        """Apply what others committed.

        The boundary is read after the slots: below it a slot may be one that a sleeper put where a collected
        one had been. Whoever is behind it has missed slots for good. A routine look that finds nothing costs
        one GET.
        """
        slots = await self._log.read_on(self.image.seq)
        if is_routine and not slots:
            return []
        boundary = await self._log.boundary()
        if boundary > self.image.seq:
            raise BrokenLog(f"the log was trimmed to slot {boundary}, this node knows it to {self.image.seq}")
        return [self._apply_read(slot) for slot in slots]

    def _apply_read(self, slot: ReadSlot) -> Delta:
        if slot.previous_hash != self._last_hash:
            raise BrokenLog(f"metadata slot {slot.seq} does not follow the one before it")
        self._last_hash = slot.hash
        if slot.controller_epoch < self.image.controller_epoch:
            # Written by a controller that was already replaced: the slot is used up and says nothing.
            return self.image.apply_slot(slot.seq, ())
        return self.image.apply_slot(slot.seq, slot.records)

    # --- writing it ---

    async def submit(self, command: Command[R], *, timeout_ms: int | None = None) -> R:
        """Decide a command, commit its records, and return its response; KafkaError if that cannot be."""
        if self._stopping or not self.is_controller:
            raise KafkaError(ErrorCode.not_controller, "This broker is not the controller.")
        if len(self._queue) >= QUEUE_MAX_COMMANDS:
            raise KafkaError(ErrorCode.request_timed_out, "Too many metadata changes are waiting.")
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._queue.append((command, future))
        if self._writer is None or self._writer.done():
            self._writer = self._spawn(self._write())
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                return await future
        except TimeoutError:
            raise KafkaError(ErrorCode.request_timed_out) from None
        finally:
            del future  # which an error, by its traceback, would keep alive together with itself

    async def _write(self) -> None:
        """Commands that wait while a slot is being won share the next one."""
        answers: list[tuple[asyncio.Future[Any], _Decided]] = []
        try:
            while self._queue and self.is_controller:
                records, answers = self._decide_slot()
                if records:
                    delta = await self._commit(records)
                    if delta is None:
                        await self._step_down()
                        return
                    await self._publish(delta)
                for future, decided in answers:
                    _answer(future, decided)
                if records:
                    self._keep_house()
        except (BrokenLog, StoreError) as error:
            self._be_fenced(f"the metadata log cannot be written: {error}")
        finally:
            # Whatever ended this, nobody is left waiting: what is answered already stays answered.
            self._fail(future for future, _ in answers)
            if not self.is_controller:
                self._fail_waiting()

    def _decide_slot(self) -> "tuple[list[Record], list[tuple[asyncio.Future[Any], _Decided]]]":
        ahead = self.image.copy()
        rules = self.rules()
        records: list[Record] = []
        answers: list[tuple[asyncio.Future[Any], _Decided]] = []
        size = 0
        while self._queue and len(answers) < SLOT_MAX_COMMANDS and size < SLOT_MAX_BYTES:
            command, future = self._queue.popleft()
            if future.done():
                continue
            decided = _decide(command, ahead, rules)
            answers.append((future, decided))
            if isinstance(decided, Decision):
                for record in decided.records:
                    ahead.apply(record, self.image.seq + 1)
                    size += len(encode_record(record))
                records += decided.records
        return records, answers

    def rules(self) -> Rules:
        return Rules(config=self.broker_config, new_id=self._new_id, pick=self._world.random.randrange)

    async def _commit(self, records: Sequence[Record]) -> Delta | None:
        """Win the next slot for these records and apply them; None when another writer has it."""
        seq = self.image.seq + 1
        ahead = self.image.copy()
        ahead.apply_slot(seq, records)
        won = await self._log.win(
            seq,
            controller_epoch=ahead.controller_epoch,
            previous_hash=self._last_hash,
            records=map(encode_record, records),
        )
        if won is None:
            return None
        self._last_hash = won
        return self.image.apply_slot(seq, records)

    async def _publish(self, delta: Delta) -> None:
        self._take_configs(delta)
        for listener in self._listeners:
            for _ in listener(delta) or ():
                await asyncio.sleep(0)

    async def _step_down(self) -> None:
        """A slot was lost: someone else is the controller, or was. Follow."""
        self.is_controller = False
        self._fail_waiting()
        await self._follow_once()
        if not self._stopping:
            self._spawn(self._follow())

    async def _follow(self) -> None:
        looks = 0
        while not self._stopping and self._is_member():
            await asyncio.sleep(FOLLOW_INTERVAL_S)
            looks += 1
            await self._follow_once(is_routine=looks % FOLLOW_BOUNDARY_EVERY != 0)

    async def _follow_once(self, *, is_routine: bool = False) -> None:
        try:
            deltas = await self._catch_up(is_routine=is_routine)
        except (BrokenLog, StoreError) as error:
            self._be_fenced(f"the metadata log cannot be read: {error}")
            return
        for delta in deltas:
            await self._publish(delta)
        if not self._is_member():
            self._be_fenced(f"another process runs as node {self.node_id} of this cluster")

    def _is_member(self) -> bool:
        me = self.image.brokers.get(self.node_id)
        return me is not None and me.incarnation == self.incarnation

    def _be_fenced(self, reason: str) -> None:
        """Final for this process: whoever owns it must stop it."""
        self.is_controller = False
        self._fail_waiting()
        if self._stopping:
            return
        self._stopping = True
        _log.error("node %d is out of its cluster: %s", self.node_id, reason)
        if self._on_fenced is not None:
            self._on_fenced(reason)

    def _fail_waiting(self) -> None:
        waiting = [future for _, future in self._queue]
        self._queue.clear()
        self._fail(waiting)

    @staticmethod
    def _fail(waiting: "Iterable[asyncio.Future[Any]]") -> None:
        for future in waiting:
            _answer(future, KafkaError(ErrorCode.not_controller, "This broker is not the controller."))

    def _keep_house(self) -> None:
        """Every so many slots a snapshot, then what is old enough goes; one round at a time."""
        if self.image.seq % SNAPSHOT_EVERY_SLOTS or (self._keeper is not None and not self._keeper.done()):
            return
        self._keeper = self._spawn(self._snapshot_and_trim(self.image.copy(), self._last_hash))

    async def _snapshot_and_trim(self, image: Image, last_hash: bytes) -> None:
        now_ms = self._world.now_ms()
        try:
            await self._log.write_snapshot(image, last_hash=last_hash, at_ms=now_ms)
            removed = await self._log.trim(now_ms)
        except StoreError as error:
            _log.error("the metadata log could not be trimmed: %s", error)
            return
        _log.info("snapshot of metadata slot %d written, %d old objects deleted", image.seq, removed)

    # --- what the rest of the broker asks for ---

    def log_config(self, topic: str) -> LogConfig:
        """The settings a topic's logs go by now."""
        found = self._log_configs.get(topic)
        if found is None:
            overrides = self.image.config(ResourceType.TOPIC, topic)
            found = self._log_configs[topic] = log_config(self.broker_config, overrides)
        return found

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False, timeout_ms: int | None = None
    ) -> list[TopicResult]:
        command = CreateTopics(topics=tuple(topics), validate_only=validate_only)
        return await self.submit(command, timeout_ms=timeout_ms)

    def internal_topic(self, name: str) -> NewTopic:
        """How Kafka makes its own topics."""
        config = self.broker_config
        if name == "__consumer_offsets":
            return NewTopic(
                name=name,
                partitions=config.offsets_topic_num_partitions,
                replication_factor=config.offsets_topic_replication_factor,
                configs=(
                    ("cleanup.policy", "compact"),
                    ("compression.type", "producer"),
                    ("segment.bytes", str(config.offsets_topic_segment_bytes)),
                ),
            )
        if name == "__transaction_state":
            return NewTopic(
                name=name,
                partitions=config.transaction_state_log_num_partitions,
                replication_factor=config.transaction_state_log_replication_factor,
                configs=(
                    ("cleanup.policy", "compact"),
                    ("compression.type", "uncompressed"),
                    ("min.insync.replicas", str(config.transaction_state_log_min_isr)),
                    ("segment.bytes", str(config.transaction_state_log_segment_bytes)),
                    ("unclean.leader.election.enable", "false"),
                ),
            )
        raise ValueError(f"not an internal topic: {name}")

    async def ensure_internal(self, name: str, *, timeout_ms: int | None = None) -> TopicImage:
        """The internal topic, made if it is not there; COORDINATOR_NOT_AVAILABLE while it cannot be."""
        found = self.image.topics.get(name)
        if found is not None:
            return found
        try:
            (result,) = await self.create_topics([self.internal_topic(name)], timeout_ms=timeout_ms)
        except KafkaError as error:
            raise KafkaError(ErrorCode.coordinator_not_available, error.message) from error
        found = self.image.topics.get(name)
        if found is None:
            reason = None if result.error is None else result.error.message
            raise KafkaError(ErrorCode.coordinator_not_available, reason)
        return found

    async def next_producer_id(self) -> int:
        """A producer id no one else has; COORDINATOR_LOAD_IN_PROGRESS while there is none.

        The next block is asked for while a tenth of this one is left.
        """
        while not self._producer_ids:
            await self._wait_for_producer_ids()
        block = self._producer_ids.popleft()
        if len(block) > 1:
            self._producer_ids.appendleft(block[1:])
        if sum(map(len, self._producer_ids)) <= PRODUCER_ID_BLOCK // 10 and self.is_controller:
            self._fetch_producer_ids()
        return block[0]

    async def _wait_for_producer_ids(self) -> None:
        """All who wait share one command, and each waits for it no longer than a request may last."""
        timeout_s = self._config.request_timeout_ms / 1000
        done, _ = await asyncio.wait({self._fetch_producer_ids()}, timeout=timeout_s)
        if not done or self._no_producer_ids is not None:
            # Kafka's clients try again after this one; not_controller would be news to a producer.
            raise KafkaError(ErrorCode.coordinator_load_in_progress, self._no_producer_ids)

    def _fetch_producer_ids(self) -> "asyncio.Task[None]":
        if self._fetching_ids is None or self._fetching_ids.done():
            self._fetching_ids = self._spawn(self._add_producer_ids())
        return self._fetching_ids

    async def _add_producer_ids(self) -> None:
        command = AllocateProducerIds(broker_id=self.node_id, broker_epoch=self.broker_epoch)
        self._no_producer_ids = None
        try:
            self._producer_ids.append(await self.submit(command))
        except KafkaError as error:
            # Nobody may be waiting for it: the next id that is missed asks again.
            self._no_producer_ids = str(error)

    async def stop(self) -> None:
        """Write nothing more. A slot under way may yet be won; the next start reads it."""
        self._stopping = True
        self.is_controller = False
        self._fail_waiting()
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _take_configs(self, delta: Delta | None = None) -> None:
        """Bring the typed views up to date with the image."""
        if delta is not None:
            for topic in (*delta.topics_deleted, *delta.topics_created.values()):
                self._log_configs.pop(topic.name, None)
            for resource, name in delta.configs_changed:
                if resource is ResourceType.TOPIC:
                    self._log_configs.pop(name, None)
            if not any(resource is ResourceType.BROKER for resource, _ in delta.configs_changed):
                return
        try:
            self.broker_config = self._config.with_dynamic(
                default=self.image.config(ResourceType.BROKER, ""),
                broker=self.image.config(ResourceType.BROKER, str(self.node_id)),
            )
        except ConfigError as error:
            # Committed by a release that allowed it: the last good view stays in force.
            _log.error("dynamic broker configuration is not taken: %s", error)
            return
        self._log_configs.clear()

    def _new_id(self) -> UUID:
        return self._new_id_from(self._world)

    @staticmethod
    def _new_id_from(world: World) -> UUID:
        """Like Kafka's, an id never begins with a dash: command lines would take it for an option."""
        while True:
            made = UUID(bytes=world.random.randbytes(16), version=4)
            if not encode_uuid(made).startswith("-"):
                return made

    def _spawn(self, work: Any) -> "asyncio.Task[None]":
        owner = self._task_group or asyncio.get_running_loop()
        task: asyncio.Task[None] = owner.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


_Decided = Decision[Any] | Exception


def _decide(command: Command[Any], image: Image, rules: Rules) -> _Decided:
    try:
        return command.decide(image, rules)
    except Exception as error:  # an unexpected one belongs to whoever asked, like an expected one
        return error


def _answer(future: "asyncio.Future[Any]", decided: _Decided) -> None:
    if future.done():
        return
    if isinstance(decided, Decision):
        future.set_result(decided.response)
    else:
        future.set_exception(decided)
