"""The WAL tier of one broker: every part of it made once, started and stopped together.

Owns: which part gets which other part, and in which order they begin and end. Does not own: the parts, and
what of the rest of the broker they are put into (build). Invariant: nothing runs before `start`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from broker.background import Background
from broker.config.broker import BrokerConfig
from broker.control.cluster import Cluster
from broker.control.directories import StartupError
from broker.coordinators.wal.telling import WalTelling
from broker.ports import World
from broker.replicas.replica_manager import ReplicaManager
from broker.replicas.wal.collecting import WalCollecting
from broker.replicas.wal.leading import ClusterWriter, WalLeading
from broker.replicas.wal.parts import WalParts
from remote.plugin import BadPlugin
from remote.store.object_store import StoreError
from remote.wal.hydrator import Hydrator
from remote.wal.object_wal import ObjectWal
from remote.wal.plugins import load_wal_manager
from remote.wal.sources import UploadSettings
from remote.wal.stats import WalStats
from remote.wal.storage_manager import WalStorageManager
from remote.wal.uploader import Uploader

CLOSE_S_MAX: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WalTier:
    manager: WalStorageManager
    uploader: Uploader
    leading: WalLeading
    collecting: WalCollecting
    telling: WalTelling
    hydrator: Hydrator

    async def start(self, task_group: asyncio.TaskGroup, background: Background) -> None:
        await self.collecting.learn()
        self.uploader.start(task_group)
        self.leading.start()
        background.spawn(self.collecting.run())
        self.telling.start(task_group)

    async def stop(self) -> None:
        """Store what is there within a second, say so within another, and tell nothing more."""
        self.leading.stop()
        await self.uploader.stop()
        await self.collecting.stop()
        self.telling.stop()

    async def close(self) -> None:
        """Close what keeps the objects. One of others may fail at it or take long, which is no reason to
        leave the logs as they are."""
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(CLOSE_S_MAX):
                await self.manager.close()


def build_wal_tier(
    *,
    config: BrokerConfig,
    world: World,
    cluster: Cluster,
    replicas: ReplicaManager,
    parts: WalParts,
    stats: WalStats,
    fail: Callable[[str], None],
) -> WalTier:
    """`fail` ends the broker: another process takes itself for this one. What follows the image is subscribed
    here, but for `collecting`, which is to hear of a change after all of whom it tells."""
    manager = make_wal_manager(config, world)
    uploader = Uploader(
        manager=manager,
        writer=ClusterWriter(cluster),
        settings=lambda: _upload_settings(cluster.broker_config),
        stats=stats,
        offload=world.offload,
        now_ms=world.now_ms,
        cpu_s=world.cpu_s,
        random=world.random,
        fail=fail,
    )
    leading = WalLeading(parts=parts, replicas=replicas, uploader=uploader, stats=stats)
    cluster.subscribe(leading.image_changed)
    collecting = WalCollecting(
        node_id=config.node_id,
        control=cluster,
        replicas=replicas,
        parts=parts,
        store=manager.store,
        stats=stats,
        rng=world.random,
        now_ms=world.now_ms,
    )
    leading.known_stored = collecting.known_stored
    collecting.on_cold_lost.append(leading.begin_anew)
    collecting.on_floors.append(leading.move_some)
    telling = WalTelling(
        config=config,
        now_ms=world.now_ms,
        cluster=cluster,
        replicas=replicas,
        store=manager.store,
        stats=stats,
    )
    collecting.on_deleted.append(telling.deleted)
    collecting.on_gone.append(telling.stream_changed)
    uploader.on_counted += [collecting.counted, telling.counted]
    uploader.on_stream += [collecting.stream_changed, telling.stream_changed]
    hydrator = Hydrator(
        manager,
        at_once=config.remote_wal_log_manager_thread_pool_size,
        stats=stats,
        clock=asyncio.get_running_loop().time,
    )
    return WalTier(
        manager=manager,
        uploader=uploader,
        leading=leading,
        collecting=collecting,
        telling=telling,
        hydrator=hydrator,
    )


def make_wal_manager(config: BrokerConfig, world: World) -> WalStorageManager:
    """Make what keeps the WAL tier's objects: the manager that is named, or the broker's own lane to its
    store."""
    if (name := config.remote_log_wal_storage_manager_class_name) is not None:
        try:
            return load_wal_manager(
                name,
                config.remote_wal_storage_manager_configs,
                class_path=config.remote_log_wal_storage_manager_class_path,
            )
        except BadPlugin as error:
            raise StartupError(str(error)) from None
    return ObjectWal(world.wal_store or world.store, rng=world.random, stats=world.wal_store_stats)


def _upload_settings(config: BrokerConfig) -> UploadSettings:
    return UploadSettings(
        interval_s=config.remote_wal_log_manager_combiner_task_interval_ms / 1000,
        object_bytes=config.remote_wal_log_manager_combiner_task_upload_bytes,
        in_flight=config.remote_wal_log_manager_combiner_thread_pool_size,
        slices=config.remote_wal_log_manager_combiner_queue_size,
        custom_bytes=config.remote_log_metadata_custom_metadata_max_bytes,
    )
