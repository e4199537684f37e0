"""One broker from its configuration, its world and its cluster: every part made once, in plain code.

Owns: which part gets which other part, and what a changed configuration of the broker reaches. Does not own:
the parts, nor when they start and stop (server). Invariant: nothing runs and no file is opened in here, so a
process, a simulation and a test's driver get the same broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from os.path import join
from typing import Final

from broker.admin.counters import Counters
from broker.background import Background, run_offloaded
from broker.components import Components
from broker.config.broker import BrokerConfig
from broker.config.tiering import TOPIC_METADATA_MANAGER
from broker.config.topics import log_config
from broker.config.values import ResourceType
from broker.control.cluster import Cluster
from broker.control.directories import StartupError
from broker.control.image import Delta
from broker.control.internal_topics import REMOTE_LOG_METADATA
from broker.coordinators.groups.coordinator import GroupCoordinator
from broker.coordinators.tier.metadata import TierMetadata
from broker.coordinators.transactions.coordinator import TransactionCoordinator
from broker.coordinators.transactions.marker_sender import MarkerSender
from broker.coordinators.transactions.marker_writer import MarkerWriter
from broker.coordinators.transactions.offset_commits import TransactionalCommits
from broker.coordinators.transactions.verification import TransactionVerifier
from broker.handlers.acls import AclHandlers
from broker.handlers.api_versions import ApiVersionsHandler
from broker.handlers.configs import ConfigHandlers
from broker.handlers.consumer_groups import ConsumerGroupHandlers
from broker.handlers.coordinators import CoordinatorHandlers
from broker.handlers.dispatch import Dispatcher
from broker.handlers.features import FeatureHandlers
from broker.handlers.fetch import Fetch
from broker.handlers.follower_fetch import FollowerFetch
from broker.handlers.groups import GroupHandlers
from broker.handlers.log_dirs import LogDirHandlers
from broker.handlers.markers import MarkerHandlers
from broker.handlers.metadata import MetadataHandlers
from broker.handlers.offsets import OffsetHandlers
from broker.handlers.peers import PeerHandlers
from broker.handlers.produce import Produce
from broker.handlers.produce_append import Commands
from broker.handlers.producers import ProducerHandlers
from broker.handlers.replicas import ReplicaHandlers
from broker.handlers.short_commits import ShortCommits
from broker.handlers.topics import TopicHandlers
from broker.handlers.transactional_offsets import TransactionalOffsetHandlers
from broker.handlers.transactions import TransactionHandlers
from broker.loop_monitor import LoopMonitor
from broker.net.descriptors import DescriptorRoom
from broker.net.server import Limits, NetworkServer
from broker.ports import World
from broker.replicas.fetch_sessions import FetchSessions
from broker.replicas.isr import IsrChanges
from broker.replicas.markers import MarkerLogs
from broker.replicas.nearest import ReplicaSelector
from broker.replicas.pressure import Pressure
from broker.replicas.purgatory import Purgatory
from broker.replicas.replica_fetchers import ReplicaFetchers
from broker.replicas.replica_manager import ReplicaManager
from broker.replicas.restore import Restores
from broker.replicas.throttle import Throttle
from broker.replicas.tier_reads import TierReads
from broker.replicas.tiering import Tiering
from broker.replicas.wal.parts import WalParts
from broker.turns import Turns
from broker.wal_tier import WalTier, build_wal_tier
from protocol.apis import Api
from protocol.work import let_go_of_all
from remote.cold.chunks import ChunkCache
from remote.cold.copier import Copier
from remote.cold.copies import OpenCopies
from remote.cold.expirer import Expirer
from remote.cold.flights import Spawn
from remote.cold.guard import GuardedManager
from remote.cold.index_cache import DIRECTORY as INDEX_CACHE
from remote.cold.index_cache import IndexCache
from remote.cold.index_repair import IndexRepair
from remote.cold.metadata_manager import MetadataManager
from remote.cold.object_tier import ObjectTier
from remote.cold.pacing import Pacer
from remote.cold.plugins import load_manager, load_metadata_manager
from remote.cold.reader import RemoteReader
from remote.cold.rebuild import Rebuilder, RebuildingManager
from remote.cold.removal import Removal
from remote.cold.storage_manager import PieceManager, StorageManager
from remote.plugin import BadPlugin
from remote.wal.stats import WalStats
from storage.cleaner import CleanerSettings
from storage.files import DiskFiles
from storage.log_manager import LogManager
from storage.maintenance import Intervals

PLENTY_BYTES_PER_S: Final = 1 << 40
"""A copy quota above it is none."""


def build(config: BrokerConfig, world: World, cluster: Cluster, *, fail: Callable[[str], None]) -> Components:
    """`fail` ends the broker: no log directory is left."""
    loop = asyncio.get_running_loop()
    background = Background()
    spawn = background.spawn
    turns = cluster.turns
    purgatory = Purgatory(loop)
    wal_stats = WalStats()

    def directory_failed(path: str, error: OSError) -> None:
        replicas.directory_failed(path, error)
        if len(logs.offline_dirs) == len(logs.dirs):
            # as Kafka does: nothing is left to serve, and the operator should know
            fail(f"every log directory has failed: {', '.join(logs.dirs)}")

    logs = LogManager(
        files=world.files,
        dirs=config.log_dirs,
        now_ms=world.now_ms,
        random=world.random,
        defaults=log_config(config, {}),
        on_dir_failure=directory_failed,
        background=lambda job, done: spawn(run_offloaded(world, job, done)),
        intervals=_intervals(config),
        cleaner=_cleaner(config),
        producer_expiration_ms=config.producer_id_expiration_ms,
    )
    replicas = ReplicaManager(
        node_id=config.node_id,
        world=world,
        logs=logs,
        purgatory=purgatory,
        log_config=cluster.log_config,
        spawn=spawn,
        clock=loop.time,
        lag_ms=config.replica_lag_time_max_ms,
        flush_single=config.log_flush_single_replica,
    )
    sessions = FetchSessions(
        max_sessions=config.max_incremental_fetch_session_cache_slots,
        randrange=world.random.randrange,
        discard=lambda named: spawn(turns.run(let_go_of_all(named))),
    )
    wal_parts = WalParts(is_enabled=config.remote_log_wal_storage_system_enable, image=lambda: cluster.image)
    fetchers = ReplicaFetchers(
        replicas=replicas,
        hydrates=wal_parts.hydrates,
        channels=cluster.channels,
        broker_epoch=lambda: cluster.broker_epoch,
        config=lambda: cluster.broker_config,
        throttle=_throttle(config, lambda: cluster.broker_config.follower_replication_throttled_rate),
    )
    follower_fetch = FollowerFetch(
        node_id=config.node_id,
        throttle=_throttle(config, lambda: cluster.broker_config.leader_replication_throttled_rate),
        replicas=replicas,
        cluster=cluster,
        sessions=sessions,
        purgatory=purgatory,
        now_ms=world.now_ms,
        spawn=spawn,
        turns=turns.own,
        max_bytes=config.fetch_max_bytes,
        wal_stats=wal_stats,
    )
    # the cluster's listeners hear of a change in the order in which they subscribe
    cluster.subscribe(replicas.apply)
    wal: WalTier | None = None
    if config.remote_log_wal_storage_system_enable:
        wal = build_wal_tier(
            config=config,
            world=world,
            cluster=cluster,
            replicas=replicas,
            parts=wal_parts,
            stats=wal_stats,
            fail=fail,
        )
        fetchers.hydrator = wal.hydrator
        cluster.subscribe(fetchers.image_changed)
    tier_metadata: MetadataManager | None = None
    tiering = restores = tier_reads = None
    if config.remote_log_storage_system_enable:
        storage = _storage_manager(config, world)
        tier_metadata = _metadata_manager(config, world, cluster, replicas, turns.own, storage)
        tiering = _tiering(
            config=config,
            world=world,
            cluster=cluster,
            replicas=replicas,
            logs=logs,
            metadata=tier_metadata,
            storage=storage,
        )
        cluster.subscribe(tiering.image_changed)
        reads_quota = _reads_quota(config, cluster)
        rebuilder = Rebuilder(
            storage=storage,
            metadata=tier_metadata,
            quota=reads_quota,
            cluster_id=lambda: cluster.image.cluster_id,
            offload=world.offload,
            spawn=spawn,
            block_bytes=world.tier_sizes.block_bytes,
        )
        rebuilding = RebuildingManager(storage, rebuilder)
        restores = Restores(
            node_id=config.node_id,
            metadata=tier_metadata,
            storage=rebuilding,
            config=lambda: cluster.broker_config,
            spawn=spawn,
            is_tier_there=lambda: REMOTE_LOG_METADATA in cluster.image.topics,
        )
        restores.on_epochs.append(tiering.look_again)
        replicas.on_role.append(restores.role_changed)
        replicas.restorer = fetchers.restores = restores
        tier_reads = _tier_reads(
            config=config,
            world=world,
            cluster=cluster,
            metadata=tier_metadata,
            storage=rebuilding,
            quota=reads_quota,
            spawn=spawn,
        )
        rebuilder.on_rebuilt.append(tier_reads.reader.copies.keep_rebuilt)
        if isinstance(storage, ObjectTier) and isinstance(tier_metadata, TierMetadata):
            tiering.index_repair = IndexRepair(
                broker_id=config.node_id,
                objects=storage,
                metadata=tier_metadata,
                removal=tiering.removal,
                tenure_of=tiering.tenure_of,
                spawn=spawn,
            )
            rebuilder.on_rebuilt.append(tiering.index_repair.begin)
    fetch = Fetch(
        followers=follower_fetch,
        near=ReplicaSelector(lambda: cluster.image) if config.is_rack_aware else None,
        tier=tier_reads,
        replicas=replicas,
        cluster=cluster,
        sessions=sessions,
        purgatory=purgatory,
        now_ms=world.now_ms,
        spawn=spawn,
        turns=turns,
        rows_max=lambda: cluster.broker_config.request_rows_max,
        max_bytes=config.fetch_max_bytes,
    )
    commands: list[Commands] = [tier_metadata] if isinstance(tier_metadata, TierMetadata) else []
    if wal is not None:
        commands.append(wal.telling)
    verifier = TransactionVerifier(
        node_id=config.node_id,
        image=lambda: cluster.image,
        channels=cluster.channels,
        coordinator=None,
        spawn=spawn,
        turns=turns,
        timeout_s=lambda: cluster.broker_config.request_timeout_ms / 1000,
    )
    produce = Produce(
        replicas=replicas,
        cluster=cluster,
        purgatory=purgatory,
        now_ms=world.now_ms,
        offload=world.offload,
        spawn=spawn,
        turns=turns,
        rows_max=lambda: cluster.broker_config.request_rows_max,
        verifier=verifier,
        commands=commands,
    )
    isr = IsrChanges(replicas=replicas, controller=cluster)
    counters = Counters()
    if tiering is not None:
        _give_way(world, cluster, counters, tiering)
    cluster.subscribe(lambda delta: _follow_configs(components, delta))
    groups = GroupCoordinator(config=config, world=world, cluster=cluster, replicas=replicas, turns=turns.own)
    markers = MarkerWriter(
        logs=MarkerLogs(replicas=replicas, turns=turns.own, now_ms=world.now_ms),
        groups=groups,
        turns=turns.own,
        timeout_ms=lambda: cluster.broker_config.request_timeout_ms,
    )
    transactions = TransactionCoordinator(
        config=config,
        world=world,
        cluster=cluster,
        replicas=replicas,
        turns=turns.own,
        markers=MarkerSender(
            node_id=config.node_id,
            image=lambda: cluster.image,
            peers=cluster.channels,
            local=markers,
            run=turns.own.run,
            spawn=spawn,
            timeout_s=config.request_timeout_ms / 1000,
        ),
        new_producer_id=lambda: cluster.producer_ids.next(),
    )
    verifier.coordinator = transactions
    cluster.subscribe(counters.follow)
    if wal is not None:
        cluster.subscribe(wal.collecting.image_changed)  # after all of whom it tells
    dispatcher = Dispatcher(
        cluster=cluster,
        replicas=replicas,
        inter_broker_listener=config.inter_broker_listener,
        requests=counters.requests,
        errors=counters.errors,
        handlers={
            **OffsetHandlers(
                replicas=replicas,
                purgatory=purgatory,
                turns=turns,
                offload=world.offload,
                tier=tier_reads,
            ).routes(),
            **ProducerHandlers(replicas=replicas, cluster=cluster).routes(),
            **LogDirHandlers(
                logs=logs, files=world.files, log_dirs=config.log_dirs, absolute_path=world.absolute_path
            ).routes(),
            **CoordinatorHandlers(
                groups=groups, transactions=transactions, cluster=cluster, turns=turns
            ).routes(),
            **TransactionHandlers(
                transactions=transactions,
                groups=groups,
                cluster=cluster,
                now_ms=world.now_ms,
                turns=turns,
                offload=world.offload,
            ).routes(),
            **GroupHandlers(groups=groups, cluster=cluster, turns=turns).routes(),
            **MarkerHandlers(writer=markers, turns=turns).routes(),
            **TransactionalOffsetHandlers(
                commits=TransactionalCommits(
                    groups=groups,
                    logs=replicas,
                    verifier=verifier,
                    is_enabled=lambda: cluster.broker_config.transaction_partition_verification_enable,
                    timeout_ms=lambda: cluster.broker_config.request_timeout_ms,
                ),
                cluster=cluster,
                turns=turns,
            ).routes(),
            **ConsumerGroupHandlers(
                groups=groups, turns=turns, is_on=lambda: cluster.serves_consumer_groups
            ).routes(),
            **ApiVersionsHandler(cluster=cluster).routes(),
            **AclHandlers().routes(),
            **FeatureHandlers(cluster=cluster).routes(),
            **MetadataHandlers(cluster=cluster).routes(),
            **TopicHandlers(cluster=cluster).routes(),
            **ConfigHandlers(cluster=cluster).routes(),
            **ReplicaHandlers(
                cluster=cluster, logs=logs, now_ms=world.now_ms, absolute_path=world.absolute_path
            ).routes(),
            **PeerHandlers(cluster=cluster).routes(),
        },
        produce=produce,
        fetch=fetch,
        short={Api.OFFSET_COMMIT: ShortCommits(groups=groups, cluster=cluster)},
        spawn=spawn,
        turns=turns,
        large_bytes=world.large_request_bytes,
        rows_max=lambda: cluster.broker_config.request_rows_max,
    )
    network = NetworkServer(
        loop=loop,
        network=world.network,
        service=dispatcher,
        limits=_limits(config),
        has_room=DescriptorRoom(logs.release_files),
    )
    if isinstance(world.files, DiskFiles):
        world.files.make_room = logs.release_files
    components = Components(
        config=config,
        world=world,
        background=background,
        logs=logs,
        cluster=cluster,
        turns=turns,
        loop_monitor=LoopMonitor(loop=loop, world=world, at_work=turns.at_work),
        purgatory=purgatory,
        replicas=replicas,
        isr=isr,
        fetchers=fetchers,
        fetch_sessions=sessions,
        follower_fetch=follower_fetch,
        groups=groups,
        transactions=transactions,
        verifier=verifier,
        markers=markers,
        tier_metadata=tier_metadata,
        tiering=tiering,
        restores=restores,
        tier_reads=tier_reads,
        wal_stats=wal_stats,
        wal_parts=wal_parts,
        wal=wal,
        counters=counters,
        network=network,
    )
    return components


def _follow_configs(components: Components, delta: Delta) -> None:
    if any(resource is ResourceType.BROKER for resource, _name in delta.configs_changed):
        take_configs(components)


def take_configs(components: Components) -> None:
    """Put the broker's own dynamic configuration into force where it reaches more than topics' logs."""
    config, logs = components.cluster.broker_config, components.logs
    components.network.limits = _limits(config)
    logs.cleaner = _cleaner(config)
    if logs.producer_expiration_ms != config.producer_id_expiration_ms:
        logs.producer_expiration_ms = config.producer_id_expiration_ms
        for held in logs.logs.values():
            held.producer_expiration_ms = config.producer_id_expiration_ms


def _storage_manager(config: BrokerConfig, world: World) -> PieceManager:
    name = config.remote_log_storage_manager_class_name
    if name is None:
        return ObjectTier(world.store, tempo=world.tempo, part_bytes=world.tier_sizes.part_bytes)
    try:
        made = load_manager(
            name,
            config.remote_storage_manager_configs,
            class_path=config.remote_log_storage_manager_class_path,
        )
    except BadPlugin as error:
        raise StartupError(str(error)) from None
    return GuardedManager(made)


def _metadata_manager(
    config: BrokerConfig,
    world: World,
    cluster: Cluster,
    replicas: ReplicaManager,
    turns: Turns,
    storage: StorageManager,
) -> MetadataManager:
    """Make the manager that is configured; Kafka's own stands for this broker's."""
    name = config.remote_log_metadata_manager_class_name
    if name == TOPIC_METADATA_MANAGER:
        return TierMetadata(
            config=config, world=world, cluster=cluster, replicas=replicas, turns=turns, storage=storage
        )
    try:
        return load_metadata_manager(
            name,
            config.remote_metadata_manager_configs,
            class_path=config.remote_log_metadata_manager_class_path,
        )
    except BadPlugin as error:
        raise StartupError(str(error)) from None


def _give_way(world: World, cluster: Cluster, counters: Counters, tiering: Tiering) -> None:
    """Let uploads rest while records are written and read, but keep to the quota and to what is written."""

    def floor() -> float:
        quota = cluster.broker_config.remote_log_manager_copy_max_bytes_per_second
        return max(tiering.closed_per_s(), quota if quota < PLENTY_BYTES_PER_S else 0)

    requests = counters.requests
    world.tempo.give_way(served=lambda: requests[Api.PRODUCE] + requests[Api.FETCH], floor=floor)


def _tiering(
    *,
    config: BrokerConfig,
    world: World,
    cluster: Cluster,
    replicas: ReplicaManager,
    logs: LogManager,
    metadata: MetadataManager,
    storage: StorageManager,
) -> Tiering:
    clock = asyncio.get_running_loop().time
    removal = Removal(
        broker_id=config.node_id, storage=storage, metadata=metadata, now_ms=world.now_ms, clock=clock
    )
    copier = Copier(
        broker_id=config.node_id,
        cluster_id=lambda: cluster.image.cluster_id,
        storage=storage,
        metadata=metadata,
        removal=removal,
        quota=Pacer(
            rate=lambda: cluster.broker_config.remote_log_manager_copy_max_bytes_per_second,
            samples=config.remote_log_manager_copy_quota_window_num,
            sample_s=config.remote_log_manager_copy_quota_window_size_seconds,
        ),
        custom_bytes_max=config.remote_log_metadata_custom_metadata_max_bytes,
        now_ms=world.now_ms,
        random=world.random,
        block_bytes=world.tier_sizes.block_bytes,
        offload=world.offload,
        tempo=world.tempo,
    )
    return Tiering(
        config=lambda: cluster.broker_config,
        replicas=replicas,
        metadata=metadata,
        storage=storage,
        copier=copier,
        expirer=Expirer(
            broker_id=config.node_id,
            metadata=metadata,
            copier=copier,
            removal=removal,
            now_ms=world.now_ms,
        ),
        removal=removal,
        pressure=Pressure(
            files=world.files,
            offload=world.offload,
            replicas=replicas,
            logs=logs,
            min_free_bytes=lambda: cluster.broker_config.log_dir_min_free_bytes,
            now_ms=world.now_ms,
            clock=clock,
        ),
    )


def _tier_reads(
    *,
    config: BrokerConfig,
    world: World,
    cluster: Cluster,
    metadata: MetadataManager,
    storage: RebuildingManager,
    quota: Pacer,
    spawn: Spawn,
) -> TierReads:
    def fetch_wait_s() -> float:
        return cluster.broker_config.remote_fetch_max_wait_ms / 1000

    indexes = IndexCache(
        files=world.files,
        directory=join(config.log_dirs[0], INDEX_CACHE),
        bytes_max=lambda: cluster.broker_config.remote_log_index_file_cache_total_size_bytes,
        offload=world.offload,
        spawn=spawn,
    )
    copies = OpenCopies(
        storage=storage,
        chunks=ChunkCache(
            spawn,
            parallel=lambda: cluster.broker_config.remote_log_reader_threads,
            chunk_bytes=world.tier_sizes.chunk_bytes,
        ),
        indexes=indexes,
        files=world.files,
        offload=world.offload,
    )
    reader = RemoteReader(
        metadata=metadata,
        copies=copies,
        quota=quota,
        spawn=spawn,
        barrier_wait_s=fetch_wait_s,
    )
    return TierReads(
        reader=reader,
        rebuilder=storage.rebuilder,
        fetch_wait_s=fetch_wait_s,
        list_wait_s=lambda: cluster.broker_config.remote_list_offsets_request_timeout_ms / 1000,
        pending_max=config.remote_log_reader_max_pending_tasks,
    )


def _reads_quota(config: BrokerConfig, cluster: Cluster) -> Pacer:
    return Pacer(
        rate=lambda: cluster.broker_config.remote_log_manager_fetch_max_bytes_per_second,
        samples=config.remote_log_manager_fetch_quota_window_num,
        sample_s=config.remote_log_manager_fetch_quota_window_size_seconds,
    )


def _throttle(config: BrokerConfig, rate: Callable[[], int]) -> Throttle:
    return Throttle(
        rate=rate,
        clock=asyncio.get_running_loop().time,
        samples=config.replication_quota_window_num,
        sample_s=config.replication_quota_window_size_seconds,
    )


def _cleaner(config: BrokerConfig) -> CleanerSettings:
    return CleanerSettings(
        enabled=config.log_cleaner_enable,
        dedupe_bytes=config.log_cleaner_dedupe_buffer_size,
        io_max_bytes_per_second=config.log_cleaner_io_max_bytes_per_second,
    )


def _intervals(config: BrokerConfig) -> Intervals:
    return Intervals(
        retention_ms=config.log_retention_check_interval_ms,
        recovery_points_ms=config.log_flush_offset_checkpoint_interval_ms,
        log_starts_ms=config.log_flush_start_offset_checkpoint_interval_ms,
        high_watermarks_ms=config.replica_high_watermark_checkpoint_interval_ms,
        initial_delay_ms=config.log_initial_task_delay_ms,
    )


def _limits(config: BrokerConfig) -> Limits:
    return Limits(
        request_bytes=config.socket_request_max_bytes,
        connections=config.max_connections,
        connections_per_ip=config.max_connections_per_ip,
        connections_per_ip_overrides=config.max_connections_per_ip_overrides,
        creation_rate=config.max_connection_creation_rate,
        idle_ms=config.connections_max_idle_ms,
        queued_bytes=config.queued_max_request_bytes,
        backlog=config.socket_listen_backlog_size,
    )
