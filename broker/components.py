"""The parts of one broker, by name.

Owns: nothing but the list. Does not own: their construction (build) or their life (server). Invariant: every
part is there once `build` has returned; what works on one of them takes that one, not this list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.admin.counters import Counters
from broker.background import Background
from broker.config.broker import BrokerConfig
from broker.control.cluster import Cluster
from broker.coordinators.groups.coordinator import GroupCoordinator
from broker.coordinators.transactions.coordinator import TransactionCoordinator
from broker.coordinators.transactions.marker_writer import MarkerWriter
from broker.coordinators.transactions.verification import TransactionVerifier
from broker.handlers.follower_fetch import FollowerFetch
from broker.loop_monitor import LoopMonitor
from broker.net.server import NetworkServer
from broker.ports import World
from broker.replicas.fetch_sessions import FetchSessions
from broker.replicas.isr import IsrChanges
from broker.replicas.purgatory import Purgatory
from broker.replicas.replica_fetchers import ReplicaFetchers
from broker.replicas.replica_manager import ReplicaManager
from broker.replicas.restore import Restores
from broker.replicas.tier_reads import TierReads
from broker.replicas.tiering import Tiering
from broker.replicas.wal.parts import WalParts
from broker.turns import Turns
from broker.wal_tier import WalTier
from remote.cold.metadata_manager import MetadataManager
from remote.wal.stats import WalStats
from storage.log_manager import LogManager

if TYPE_CHECKING:
    from prometheus_client import Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    config: BrokerConfig
    world: World
    background: Background
    logs: LogManager
    cluster: Cluster
    turns: Turns
    loop_monitor: LoopMonitor
    purgatory: Purgatory
    replicas: ReplicaManager
    isr: IsrChanges
    fetchers: ReplicaFetchers
    fetch_sessions: FetchSessions
    follower_fetch: FollowerFetch
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    verifier: TransactionVerifier
    markers: MarkerWriter
    tier_metadata: MetadataManager | None
    """None where the tiers are switched off."""
    tiering: Tiering | None
    restores: Restores | None
    tier_reads: TierReads | None
    wal_stats: WalStats
    wal_parts: WalParts
    wal: WalTier | None
    """None where it is switched off."""
    counters: Counters
    network: NetworkServer

    def metrics(self) -> Iterator[Metric]:
        """Every family that `/metrics` serves."""
        from broker.admin.metrics import collect

        return collect(
            counters=self.counters,
            loop_monitor=self.loop_monitor,
            replicas=self.replicas,
            logs=self.logs,
            isr=self.isr,
            fetch_sessions=self.fetch_sessions,
            network=self.network,
            groups=self.groups,
            transactions=self.transactions,
            now_ms=self.world.now_ms(),
            cluster=self.cluster,
            store_stats=self.world.store_stats,
            tiering=self.tiering,
            tier_reads=self.tier_reads,
            wal_store_stats=self.world.wal_store_stats,
            wal_stats=self.wal_stats if self.config.remote_log_wal_storage_system_enable else None,
        )
