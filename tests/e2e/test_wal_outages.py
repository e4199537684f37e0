"""Three real brokers whose followers read from a real S3 that refuses, hangs, is slow, or that one of them
cannot reach.

Clients go on meanwhile, and with acks=all too: what has waited for the store for two seconds is sent. Nothing
is lost, no replica falls out of sync, no broker grows with what waits, and followers are pointed to the store
again within ten seconds of its end. The default suite has some seconds of each, the long rounds a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.compat.peers import until
from tests.e2e.storm import Weather, hangs, is_slow, loses_replies, refuses, trickles
from tests.e2e.test_cluster_faults import Work, work
from tests.e2e.wal import DIRECT_IN, HYDRATED, SHRINKS, WAL, Bulk, Leadership, WalCluster
from tools.versus.minio import MinioServer

pytestmark = pytest.mark.minio

SHORT_S, LONG_S = 3.0, 60.0
"""The first is longer than what waits for the store before it is sent."""
SLOW_S = 3.0
"""Longer than an attempt may take."""
OF_THE_TIER = "/wal/"


MakeWal = Callable[..., WalCluster]


@pytest.fixture
def make_wal(minio_server: MinioServer, bucket: str, tmp_path: Path) -> Iterator[MakeWal]:
    with ExitStack() as stack:

        def make(**options: Any) -> WalCluster:
            made = WalCluster(tmp_path / "brokers", minio_server, bucket, **options)
            return stack.enter_context(made)

        yield make


def endure(wal: WalCluster, load: Work, kind: Weather, least_s: float, **where: Any) -> None:
    """Clients go on in that weather for so long; afterwards all is as it was."""
    began_s, name = time.monotonic(), kind.__name__
    load.told.append(f"{name} from {time.strftime('%H:%M:%S')} on")
    with Leadership(wal.cluster, load.topic) as leaders:
        try:
            with wal.weather(kind, **where):
                load.go_on()
                until(
                    lambda: time.monotonic() >= began_s + least_s,
                    "the weather to be over",
                    timeout_s=least_s + 5,
                )
                load.go_on()
                assert wal.cluster.are_running()
                assert wal.cluster.is_whole(load.topic)
                assert wal.cluster.is_whole(load.raw_topic)
            load.told[-1] += f", back after {wal.wait_on_pointers(load.topic, load.raw_topic):.1f} s"
        finally:
            for each in load.stock.silences(began_s):
                led = leaders.during(each.partition, each.began_s, each.began_s + each.length_s)
                load.told[-1] += (
                    f"\n  partition {each.partition}: acknowledgements stood still for {each.length_s:.1f} s,"
                    f" {each.began_s - began_s:.1f} s after it began ({led})"
                )
            print(load.told[-1])  # noqa: T201


def shrinks(wal: WalCluster) -> float:
    return wal.told().value(SHRINKS)


@pytest.mark.requirement("1176-42", "1176-31")
def test_bad_weather_in_the_store(make_wal: MakeWal) -> None:
    wal = make_wal(delay_s=SLOW_S)
    with work(wal.cluster, config=WAL) as load:
        wal.wait_on_pointers(load.topic, load.raw_topic)
        before, began = shrinks(wal), wal.resident_mb()
        for kind in (refuses, hangs):
            endure(wal, load, kind, SHORT_S, only=OF_THE_TIER)
        assert shrinks(wal) == before
        wal.check_memory(began)


@pytest.mark.requirement("1176-42", "1176-36")
def test_one_follower_is_cut_from_the_store(make_wal: MakeWal) -> None:
    """It is sent what the others read from the store."""
    wal = make_wal(delay_s=SLOW_S)
    with work(wal.cluster, config=WAL) as load:
        wal.wait_on_pointers(load.topic, load.raw_topic)
        before = shrinks(wal)
        cut = load.member_that_is("follower")
        others = [node_id for node_id in wal.cluster.node_ids if node_id != cut]
        was_cut, was = wal.told(cut), wal.told(*others)
        endure(wal, load, hangs, SHORT_S, only=OF_THE_TIER, of=[cut])
        assert (wal.told(cut) - was_cut).value(DIRECT_IN) > 0
        assert (wal.told(*others) - was).value(HYDRATED) > 0
        assert shrinks(wal) == before


@pytest.mark.chaos
@pytest.mark.parametrize("weather", [refuses, hangs, is_slow, trickles, loses_replies])
def test_a_minute_of_bad_weather_in_the_store(make_wal: MakeWal, weather: Weather) -> None:
    """The whole store, the cluster's metadata too; much is written meanwhile."""
    outlast(make_wal(delay_s=SLOW_S), weather, range(0))


@pytest.mark.chaos
@pytest.mark.parametrize("weather", [refuses, hangs, trickles])
def test_one_follower_is_cut_from_the_store_for_a_minute(make_wal: MakeWal, weather: Weather) -> None:
    outlast(make_wal(delay_s=SLOW_S), weather, range(1))


def outlast(wal: WalCluster, weather: Weather, cut: range) -> None:
    topic = wal.cluster.make_topic(config=WAL)
    bulk = Bulk(wal.cluster, topic)
    with work(wal.cluster, config=WAL) as load, bulk:
        wal.wait_on_pointers(load.topic, load.raw_topic)
        before, began = shrinks(wal), wal.resident_mb()
        where: dict[str, Any] = {"of": [load.member_that_is("follower")], "only": OF_THE_TIER} if cut else {}
        endure(wal, load, weather, LONG_S, **where)
        wal.check_memory(began)
        assert shrinks(wal) == before
    assert bulk.acknowledged
    wal.cluster.check_replicas_are_alike(topic, 1)


@pytest.mark.requirement("1176-01", "1176-58")
def test_the_tier_is_switched_off_and_on_under_load(make_wal: MakeWal) -> None:
    wal = make_wal(delay_s=SLOW_S)
    with work(wal.cluster, config=WAL) as load:
        wal.wait_on_pointers(load.topic, load.raw_topic)
        for is_on in (False, True):
            for topic in (load.topic, load.raw_topic):
                wal.switch(topic, is_on=is_on)
            load.go_on()
            if is_on:
                wal.wait_on_pointers(load.topic, load.raw_topic)
            else:
                wal.wait_on_bytes()
