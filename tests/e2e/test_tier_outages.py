"""A real broker whose tier is in a real S3 that refuses, hangs, is slow, loses replies or cuts bodies short.

Meanwhile it copies, in one request or in parts, expires, is read from, starts and takes a lost log from the
tier, as a leader or as a follower with an empty disk. It never ends over it, what is local goes on, no reader
is sent elsewhere; and once the store is well, nothing was lost, everything is copied, and nothing lies in the
store that nobody names, parts of uploads included. The default suite has weather for a handful of requests,
the long rounds a minute of each; how long producers and readers of local logs waited is printed there, not
judged.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.clients.blocking import BlockingClient
from tests.compat.peers import unique, until
from tests.e2e.load import batch_of
from tests.e2e.storm import InTurn, StormyStore, Weather, cuts_bodies, hangs, is_slow, loses_replies, refuses
from tests.e2e.tiered import (
    IN_PAIRS,
    LATER,
    SETTLE_S,
    TIERED,
    TieredBroker,
    TieredTopic,
    check_tier,
    in_sync,
    uploads_left,
)
from tests.remote.store.proxy import Line, Say
from tools.versus.minio import MinioServer

pytestmark = pytest.mark.minio

HITS = {hangs: 2, is_slow: 3}
"""Requests that have to suffer before the weather may end, for weather in which each one takes its time."""
HITS_OTHERWISE = 8
LONG_S = 60.0
CALM_ROUNDS = 300
"""What local logs take in good weather is measured over so many, in the rhythm of the others."""
WEATHERS = (refuses, hangs, is_slow, loses_replies, cuts_bodies)
LARGE = {**TIERED, "internal.segment.bytes": str(10 << 20)}
"""Segments that the store takes in two parts."""


@dataclass(slots=True)
class Watch:
    """A broker whose store is behind the weather, with a topic that is read and one that is not tiered."""

    broker: TieredBroker
    storm: StormyStore
    url: str
    env: dict[str, str]
    read: TieredTopic
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

    def endure(
        self,
        kind: Weather,
        least_s: float,
        *,
        only: str = "",
        hits: int | None = None,
        work: Callable[[], None],
    ) -> None:
        """Do it in that weather, and go on for so long, and until enough requests were hit."""
        enough = self.storm.hit + (HITS.get(kind, HITS_OTHERWISE) if hits is None else hits)
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

    def check_is_well(self, *topics: TieredTopic) -> None:
        """Everything is in the tier, once, and nothing else is in the store."""
        for topic in topics:
            topic.wait_tiered()
            topic.wait_no_loose_ends()
        assert check_tier(self.broker.bootstrap, self.url, env=self.env).problems == []
        assert uploads_left(self.url, self.storm.begun, env=self.env) == []

    def learn_what_is_usual(self) -> list[float]:
        """How long local work takes in good weather."""
        with BlockingClient(self.broker.bootstrap) as client:

            def is_enough() -> bool:
                self.go_on_locally(client)
                self.try_to_read(client)
                return len(self.waits_s) >= CALM_ROUNDS

            until(is_enough, "what is usual to be known", timeout_s=LONG_S + SETTLE_S, pause_s=0.05)
        calm, self.waits_s = self.waits_s, []
        return calm

    def tell_how_long(self, what: str, calm: list[float]) -> None:
        now = p99_ms(self.waits_s)
        print(f"{what}: a record in and out took {p99_ms(calm)} ms, and {now} then")  # noqa: T201


@dataclass(slots=True, kw_only=True)
class Scene(Watch):
    """A broker that does everything with the tier at once, and something beside it."""

    copied: TieredTopic
    expiring: TieredTopic

    def check_all_is_well(self) -> None:
        self.check_is_well(self.read, self.copied, self.expiring)
        for topic in (self.read, self.copied):
            topic.check(topic.read(0), 0)
        log_start = self.expiring.known_offset(-2)
        assert log_start > 0
        self.expiring.check(self.expiring.read(), log_start)


@dataclass(slots=True)
class Site:
    """The store with its weather, and what is to be closed."""

    minio: MinioServer
    bucket: str
    folder: Path
    closing: contextlib.ExitStack
    prefix: str = field(default_factory=lambda: unique("weather"))

    @property
    def url(self) -> str:
        return self.minio.url(self.bucket, self.prefix)

    def storm(self, delay_s: float) -> StormyStore:
        return self.closing.enter_context(StormyStore(self.minio.port, delay_s=delay_s))

    def broker(self, storm: StormyStore, **options: Any) -> TieredBroker:
        url = self.minio.url(self.bucket, self.prefix, port=storm.port)
        broker = TieredBroker(self.folder, url=url, env=self.minio.environ, **options)
        self.closing.callback(broker.close)
        return broker


@pytest.fixture
def site(minio_server: MinioServer, bucket: str, tmp_path: Path) -> Iterator[Site]:
    with contextlib.ExitStack() as closing:
        yield Site(minio_server, bucket, tmp_path, closing)


def make_scene(site: Site, delay_s: float) -> Scene:
    storm = site.storm(delay_s)
    broker = site.broker(storm)
    kept = {**TIERED, "retention.bytes": "60000"}
    local = broker.make_topic(config={}).name
    scene = Scene(
        broker,
        storm,
        site.url,
        site.minio.environ,
        read=broker.make_topic(),
        copied=broker.make_topic(),
        expiring=broker.make_topic(config=kept),
        local=local,
    )
    for topic in (scene.read, scene.expiring):
        topic.append(20)
        topic.wait_tiered()
    return scene


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
def test_bad_weather_in_the_store(site: Site) -> None:
    scene = make_scene(site, 0.5)
    for weather in WEATHERS:
        live_through(scene, weather, 0.0)


@pytest.mark.requirement("1241-15")
@pytest.mark.chaos
@pytest.mark.parametrize("weather", WEATHERS)
def test_a_minute_of_bad_weather_in_the_store(site: Site, weather: Weather) -> None:
    scene = make_scene(site, 5.0)
    calm = scene.learn_what_is_usual()
    live_through(scene, weather, LONG_S)
    scene.tell_how_long(weather.__name__, calm)


# --- uploads in parts ---


def make_watch(site: Site, delay_s: float) -> Watch:
    """A topic with large segments, of which one is in the tier."""
    storm = site.storm(delay_s)
    broker = site.broker(storm)
    local = broker.make_topic(config={}).name
    watch = Watch(broker, storm, site.url, site.minio.environ, broker.make_topic(config=LARGE), local)
    write_large(watch)
    watch.read.wait_tiered()
    return watch


def write_large(watch: Watch, segments: int = 1) -> None:
    """Somewhat more than so many segments."""
    watch.read.append(12 * segments, size=1_000_000)


def of_uploads(kind: Weather) -> Weather:
    def choose(method: str, path: str) -> Line | Say:
        is_part = ".log?" in path and method != "GET"
        return kind(method, path) if is_part else Line.GOOD

    return choose


def check_large(watch: Watch) -> None:
    watch.check_is_well(watch.read)
    assert len(watch.storm.begun) >= 2
    watch.read.check(watch.read.read(0), 0)


def test_an_upload_in_parts_in_bad_weather(site: Site) -> None:
    """All weathers come over one upload, from the request that begins it to the one that completes it."""
    watch = make_watch(site, 0.5)
    turns = InTurn((loses_replies, 1), (refuses, 2), (loses_replies, 1), (is_slow, 1), (hangs, 1))
    watch.endure(of_uploads(turns), 0.0, hits=turns.hits, work=lambda: write_large(watch))
    assert turns.is_last
    check_large(watch)


@pytest.mark.chaos
@pytest.mark.parametrize("weather", [refuses, hangs, is_slow, loses_replies])  # nothing reads an upload
def test_uploads_in_parts_in_a_minute_of_bad_weather(site: Site, weather: Weather) -> None:
    watch = make_watch(site, 5.0)
    calm = watch.learn_what_is_usual()
    watch.endure(of_uploads(weather), LONG_S, hits=2, work=lambda: write_large(watch, 4))
    check_large(watch)
    watch.tell_how_long(weather.__name__, calm)


# --- a follower with an empty disk ---


RESTORED_FROM = ".idx"
"""What a restore reads in the store; the leader has what it needs of it, and begins no copy meanwhile."""


@dataclass(slots=True, kw_only=True)
class Pair(Watch):
    """Its broker leads; `follower` is the other replica of what is read."""

    follower: TieredBroker

    def begin_empty(self) -> None:
        """The follower comes back with an empty disk, and the leader has some that is not in the tier."""
        self.follower.kill()
        shutil.rmtree(self.follower.data)
        self.read.append(2)
        self.follower.rise()

    def check_follower(self) -> None:
        """It is in sync, without the records that the tier has."""
        until(self.is_in_sync, "the follower", timeout_s=SETTLE_S)
        self.check_is_well(self.read)
        assert self.follower.process.process.poll() is None, self.follower.process.stderr
        segments = sorted((self.follower.data / f"{self.read.name}-0").glob("*.log"))
        assert int(segments[0].stem) > 0

    def is_in_sync(self) -> bool:
        return in_sync(self.broker.bootstrap, self.read.name) == {1, 2}

    def lead_by_the_follower(self) -> None:
        self.broker.kill()
        self.read.bootstrap = lambda: self.follower.bootstrap
        self.read.check(self.read.read(0), 0)


def make_pair(site: Site, delay_s: float) -> Pair:
    storm = site.storm(delay_s)
    leader, follower = (site.broker(storm, node_id=number, settings=IN_PAIRS) for number in (1, 2))
    local = leader.make_topic(config={}).name
    read = leader.make_topic((1, 2))
    pair = Pair(leader, storm, site.url, site.minio.environ, read, local, follower=follower)
    read.append(20)
    read.wait_tiered()
    until(pair.is_in_sync, "the follower", timeout_s=SETTLE_S)
    return pair


def test_a_follower_with_an_empty_disk_in_bad_weather(site: Site) -> None:
    """All weathers come over one restore, the one in which it may succeed last."""
    pair = make_pair(site, 0.5)
    turns = InTurn((refuses, 8), (hangs, 1), (loses_replies, 4), (cuts_bodies, 2), (is_slow, 1))
    pair.endure(turns, 0.0, only=RESTORED_FROM, hits=turns.hits, work=pair.begin_empty)
    pair.check_follower()
    pair.lead_by_the_follower()


@pytest.mark.chaos
@pytest.mark.parametrize("weather", WEATHERS)
def test_a_follower_with_an_empty_disk_in_a_minute_of_bad_weather(site: Site, weather: Weather) -> None:
    pair = make_pair(site, 5.0)
    calm = pair.learn_what_is_usual()
    pair.endure(weather, LONG_S, only=RESTORED_FROM, hits=1, work=pair.begin_empty)
    pair.check_follower()
    pair.tell_how_long(weather.__name__, calm)
    pair.lead_by_the_follower()


def p99_ms(waits_s: list[float]) -> str:
    return f"{1000 * sorted(waits_s)[int(0.99 * len(waits_s))]:.1f}"
