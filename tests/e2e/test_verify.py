"""Three brokers under load that are killed, stand still and stop, verified while they do: nothing is found.

Producers note what they sent, so that not only the bytes but also the acknowledgements are proved. Then
nothing runs any more, one byte of one replica is altered, and that is what is found.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.clusters import SETTLE_S, ClusterProcesses
from tests.compat.peers import until
from tests.e2e.proof import check_nothing_is_found, verified
from tools.verify.manifest.confluent_producer import ManifestProducer

PARTITIONS = 3
SHORT_S, LONG_S = 12.0, 600.0
SHORT_TIMES, LONG_TIMES = 2, 5
"""How often it is verified meanwhile."""
TOPIC = {
    "remote.wal.storage.enable": "true",
    "remote.storage.enable": "true",
    "segment.bytes": str(1 << 20),
    "file.delete.delay.ms": "1000",
}
SETTINGS = {
    "log.retention.check.interval.ms": "2000",
    "broker.session.timeout.ms": "3000",
    "remote.wal.log.manager.combiner.task.interval.ms": "100",
}
PRODUCERS: dict[str, dict[str, Any]] = {
    "careful": {"enable.idempotence": True},
    "hasty": {"acks": "1", "message.timeout.ms": 1500},
    "plain": {"acks": "all", "retries": 0, "message.timeout.ms": 3000},
}


class Load:
    """One producer that notes what it sends, each record once."""

    def __init__(
        self, name: str, config: dict[str, Any], cluster: ClusterProcesses, topic: str, sent: Path
    ) -> None:
        self.acknowledged = 0
        self._name, self._topic = name, topic
        self._producer = ManifestProducer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "client.id": name,
                "linger.ms": 5,
                "queue.buffering.max.messages": 2000,
                "log_level": 0,
                "error_cb": lambda _: None,
                **config,
            },
            sent,
            is_unique=True,
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(SETTLE_S + 60)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        def count(error: Any, message: Any) -> None:
            self.acknowledged += error is None

        number = 0
        while not self._stopping.is_set():
            number += 1
            value = f"{self._name} {number} ".encode() + b"x" * (number * 7919 % 1000)
            with suppress(BufferError):
                self._producer.produce(self._topic, value, f"{number % 100}", on_delivery=count)
            self._producer.poll(0.01)
        self._producer.close(timeout=SETTLE_S)


@contextmanager
def loads(cluster: ClusterProcesses, topic: str, sent: Path) -> Iterator[list[Load]]:
    started = [Load(name, config, cluster, topic, sent) for name, config in PRODUCERS.items()]
    try:
        yield started
    finally:
        for each in started:
            each.stop()


class Chaos:
    """Faults one after the other, in a thread of their own, until it is stopped."""

    def __init__(self, cluster: ClusterProcesses, random: Random, load: list[Load], topic: str) -> None:
        self.told: list[str] = []
        self.failure: BaseException | None = None
        self._cluster, self._random, self._load, self._topic = cluster, random, load, topic
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos")
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(3 * SETTLE_S)
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._fault()
                self._cluster.wait_whole(self._topic)
                goals = [each.acknowledged + 50 for each in self._load]
                until(
                    lambda goals=goals: all(
                        each.acknowledged >= goal for each, goal in zip(self._load, goals, strict=True)
                    ),
                    f"progress after {self.told}",
                    timeout_s=SETTLE_S,
                )
        except BaseException as error:
            self.failure = error

    def _fault(self) -> None:
        node_id = self._random.choice(self._cluster.node_ids)
        kind = self._random.choice(["kill", "kill", "stop", "pause", "kill all"])
        self.told.append(f"{kind} {node_id}")
        match kind:
            case "kill":
                self._cluster.kill(node_id)
                self._stopping.wait(self._random.uniform(0, 4))
                self._cluster.rise(node_id)
            case "kill all":
                self._cluster.kill(*self._cluster.node_ids)
                self._cluster.rise(*self._cluster.node_ids)
            case "stop":
                self._cluster.stop(node_id)
                self._cluster.rise(node_id)
            case _:
                with self._cluster.paused(node_id):
                    self._stopping.wait(self._random.uniform(1, 6))


def prove(tmp_path: Path, seconds: float, times: int, seed: int) -> None:
    sent = tmp_path / "sent"
    with ClusterProcesses(tmp_path / "brokers", settings=SETTINGS) as cluster:
        topic = cluster.make_topic(PARTITIONS, config=TOPIC)
        with loads(cluster, topic, sent) as load:
            chaos = Chaos(cluster, Random(seed), load, topic)
            try:
                began_s = time.monotonic()
                for number in range(times):
                    due_s = began_s + seconds * (number + 1) / times
                    threading.Event().wait(max(0.0, due_s - time.monotonic()))
                    document = verified(cluster, sent, tmp_path / f"{number}.json")
                    check_nothing_is_found(document, chaos.told, is_live=True)
            finally:
                chaos.stop()
        cluster.check_replicas_are_alike(topic, PARTITIONS)
        assert cluster.stop_all() == [0, 0, 0]
    check_nothing_is_found(verified(cluster, sent, tmp_path / "end.json"), chaos.told, is_live=False)
    print(f"seed {seed}: {chaos.told}; {sum(each.acknowledged for each in load)} acknowledged")  # noqa: T201

    victim = max(cluster.data(2).glob(f"{topic}-0/*.log"), key=lambda path: path.stat().st_size)
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    document = verified(cluster, sent, tmp_path / "altered.json")
    assert (document["exit_code"], len(document["findings"]), document["errors"]) == (1, 1, 1)
    assert document["findings"][0]["place"] == f"1:{topic}-0/{victim.name}"
    assert document["findings"][0]["code"] in ("bad-crc", "bad-length", "bad-magic", "replicas-differ")


def test_chaos_is_verified_while_it_goes_on(tmp_path: Path) -> None:
    prove(tmp_path, SHORT_S, SHORT_TIMES, seed=1)


@pytest.mark.chaos
def test_ten_minutes_of_chaos_are_verified_while_they_go_on(tmp_path: Path, chaos_seed: int) -> None:
    prove(tmp_path, LONG_S, LONG_TIMES, chaos_seed)
