"""A real broker whose tier is in a real S3 that refuses, hangs, is slow, loses replies or cuts bodies short.

Meanwhile it copies, expires, is read from, starts and takes a lost log from the tier. It never ends over it,
what is local goes on, no reader is sent elsewhere; and once the store is well, nothing was lost, everything
is copied, and nothing lies in the store that nobody names. The default suite has weather for a handful of
requests, the long rounds a minute of each; how long producers and readers of local logs waited is printed
there, not judged.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.clients.blocking import BlockingClient
from tests.compat.peers import unique, until
from tests.e2e.load import batch_of
from tests.e2e.storm import StormyStore, Weather, cuts_bodies, hangs, is_slow, loses_replies, refuses
from tests.e2e.tiered import LATER, SETTLE_S, TIERED, TieredBroker, TieredTopic, check_tier
from tools.versus.minio import MinioServer

pytestmark = pytest.mark.minio

HITS = {hangs: 2, is_slow: 3}
"""Requests that have to suffer before the weather may end, for weather in which each one takes its time."""
HITS_OTHERWISE = 8
LONG_S = 60.0
CALM_ROUNDS = 300
"""What local logs take in good weather is measured over so many, in the rhythm of the others."""
WEATHERS = (refuses, hangs, is_slow, loses_replies, cuts_bodies)


@dataclass(slots=True)
class Scene:
    """A broker that does everything with the tier at once, and something beside it."""

    broker: TieredBroker
    storm: StormyStore
    url: str
    env: dict[str, str]
    read: TieredTopic
    copied: TieredTopic
    expiring: TieredTopic
    local: str
    waits_s: list[float] = field(default_factory=list)

    def go_on_locally(self, client: BlockingClient) -> None:
        """One record in and out again."""
        began_s = time.monotonic()
        answer = client.produce(self.local, 0, bytes(batch_of(b"local")))
        assert answer.error_code == 0, answer.error_code
        part = client.fetch(self.local, 0, answer.base_offset)
        assert (part.error_code, bool(part.records)) == (0, True)
        self.waits_s.append(time.monotonic() - began_s)

    def try_to_read(self, client: BlockingClient) -> None:
        """Perhaps it can, perhaps later; it is never told to go elsewhere."""
        part = client.fetch(self.read.name, 0, 0, wait_ms=100)
        assert part.error_code == 0 or part.error_code in LATER, part.error_code

    def endure(self, kind: Weather, least_s: float, *, only: str = "", work: Callable[[], None]) -> None:
        """Do it in that weather, and go on for so long, and until enough requests were hit."""
        enough = self.storm.hit + HITS.get(kind, HITS_OTHERWISE)
        ends_s = time.monotonic() + least_s
        with self.storm.weather(kind, only=only):
            work()
            with BlockingClient(self.broker.bootstrap) as client:

                def is_enough() -> bool:
                    self.go_on_locally(client)
                    self.try_to_read(client)
                    return self.storm.hit >= enough and time.monotonic() >= ends_s

                until(is_enough, "the weather to show", timeout_s=least_s + SETTLE_S, pause_s=0.05)
            assert self.broker.process.process.poll() is None, self.broker.process.stderr

    def check_all_is_well(self) -> None:
        for topic in (self.read, self.copied, self.expiring):
            topic.wait_tiered()
            topic.wait_no_loose_ends()
        assert check_tier(self.broker.bootstrap, self.url, env=self.env).problems == []
        for topic in (self.read, self.copied):
            topic.check(topic.read(0), 0)
        log_start = self.expiring.known_offset(-2)
        assert log_start > 0
        self.expiring.check(self.expiring.read(), log_start)


@pytest.fixture
def make_scene(minio_server: MinioServer, bucket: str, tmp_path: Path) -> Iterator[Callable[[float], Scene]]:
    closing: list[Callable[[], object]] = []

    def make(delay_s: float) -> Scene:
        storm = StormyStore(minio_server.port, delay_s=delay_s).__enter__()
        closing.append(lambda: storm.__exit__(None, None, None))
        prefix = unique("weather")
        env = minio_server.environ
        url = minio_server.url(bucket, prefix, port=storm.port)
        broker = TieredBroker(tmp_path, url=url, env=env)
        closing.append(broker.close)
        kept = {**TIERED, "retention.bytes": "60000"}
        local = broker.make_topic(config={}).name
        scene = Scene(
            broker,
            storm,
            minio_server.url(bucket, prefix),
            env,
            read=broker.make_topic(),
            copied=broker.make_topic(),
            expiring=broker.make_topic(config=kept),
            local=local,
        )
        for topic in (scene.read, scene.expiring):
            topic.append(20)
            topic.wait_tiered()
        return scene

    yield make
    for close in reversed(closing):
        close()


def live_through(scene: Scene, weather: Weather, least_s: float) -> None:
    def write() -> None:
        scene.copied.append(20)
        scene.expiring.append(20)

    def start_anew() -> None:
        scene.broker.kill()
        shutil.rmtree(scene.broker.data / f"{scene.read.name}-0")
        scene.broker.rise()

    scene.endure(weather, least_s, work=write)
    scene.check_all_is_well()
    scene.endure(weather, least_s, only="/tier/", work=start_anew)
    scene.check_all_is_well()


@pytest.mark.requirement("1241-15")
def test_bad_weather_in_the_store(make_scene: Callable[[float], Scene]) -> None:
    scene = make_scene(0.5)
    for weather in WEATHERS:
        live_through(scene, weather, 0.0)


@pytest.mark.requirement("1241-15")
@pytest.mark.chaos
@pytest.mark.parametrize("weather", WEATHERS)
def test_a_minute_of_bad_weather_in_the_store(make_scene: Callable[[float], Scene], weather: Weather) -> None:
    scene = make_scene(5.0)
    with BlockingClient(scene.broker.bootstrap) as client:

        def is_enough() -> bool:
            scene.go_on_locally(client)
            scene.try_to_read(client)
            return len(scene.waits_s) >= CALM_ROUNDS

        until(is_enough, "what is usual to be known", timeout_s=LONG_S + SETTLE_S, pause_s=0.05)
    calm, scene.waits_s = scene.waits_s, []
    live_through(scene, weather, LONG_S)
    print(f"{weather.__name__}: a record in and out took {p99_ms(calm)} ms, and {p99_ms(scene.waits_s)} then")  # noqa: T201


def p99_ms(waits_s: list[float]) -> str:
    return f"{1000 * sorted(waits_s)[int(0.99 * len(waits_s))]:.1f}"
