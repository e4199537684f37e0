"""kill -9 of leaders, of followers and of the store itself, while followers read the leaders' tails from it.

Nothing acknowledged is lost, groups go on where they committed, replicas are alike byte for byte, and each
time all followers are pointed to the store again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_cluster_faults import work
from tests.e2e.wal import WAL, WalCluster
from tools.versus.minio import MinioServer

pytestmark = pytest.mark.minio

ROUNDS = 4
BUCKET = "wal"


class MortalMinio:
    """One MinIO after another on the same port and data."""

    def __init__(self, executable: Path, data: Path) -> None:
        self._executable = executable
        self._data = data
        self.server = MinioServer(executable, data)
        self.server.make_bucket(BUCKET)

    def kill(self) -> None:
        self.server.close()

    def rise(self) -> None:
        self.server = MinioServer(self._executable, self._data, port=self.server.port)


@pytest.fixture
def mortal(minio: Path, tmp_path: Path) -> Iterator[MortalMinio]:
    made = MortalMinio(minio, tmp_path / "minio")
    yield made
    made.kill()


@pytest.fixture
def wal(mortal: MortalMinio, tmp_path: Path) -> Iterator[WalCluster]:
    with WalCluster(tmp_path / "brokers", mortal.server, BUCKET, delay_s=1.0) as made:
        yield made


@pytest.mark.requirement("1176-34", "1176-29", "1176-18")
def test_whoever_is_killed_nothing_acknowledged_is_lost(wal: WalCluster, mortal: MortalMinio) -> None:
    live_through(wal, mortal, 1)


@pytest.mark.chaos
def test_whoever_is_killed_again_and_again(wal: WalCluster, mortal: MortalMinio) -> None:
    live_through(wal, mortal, ROUNDS)


def live_through(wal: WalCluster, mortal: MortalMinio, rounds: int) -> None:
    cluster = wal.cluster
    with work(cluster, config=WAL) as load:
        topics = (load.topic, load.raw_topic)
        wal.wait_on_pointers(*topics)
        for _ in range(rounds):
            for role in ("leader", "follower"):
                with load.through(f"kill -9 of the {role}"):
                    victim = load.member_that_is(role)
                    cluster.kill(victim)
                    load.go_on()
                    cluster.rise(victim)
                wal.wait_on_pointers(*topics)
            with load.through("kill -9 of the store"):
                mortal.kill()
                load.go_on()
                mortal.rise()
            wal.wait_on_pointers(*topics)
            with load.through("kill -9 of the leader without the store"):
                victim = load.member_that_is("leader")
                mortal.kill()
                load.go_on()
                cluster.kill(victim)
                mortal.rise()
                load.go_on()
                cluster.rise(victim)
            wal.wait_on_pointers(*topics)
