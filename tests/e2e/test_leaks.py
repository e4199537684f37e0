"""What clients make a broker keep is gone with them: tasks, files, connections, sessions, waits, groups.

Owns the comparison of a broker at rest before and after. Does not own the visits (tests.soak.visits), nor
memory, which is for `make soak`.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from protocol.apis import Api
from tests.clients.blocking import FETCH_VERSION, BlockingClient
from tests.compat.peers import until
from tests.processes import BrokerProcess
from tests.soak.figures import scrape
from tests.soak.visits import VISITS, Topic, Visit, batch_of, fetch_fields, prepare
from tools.ports import free_port

AT_ONCE = 20
TIMES = 20
REST_S_MAX = 30.0
SETTINGS = {
    "connections.max.idle.ms": "3000",  # a sweep every 0.3 s finds who left while nothing was read
    "group.initial.rebalance.delay.ms": "50",
    "group.min.session.timeout.ms": "500",
    "log.flush.single.replica": "true",  # so that acks=all waits
    "log.segment.delete.delay.ms": "100",
    "offsets.topic.num.partitions": "1",
}
GUESTS = ("connections", "waiting requests", "waits at partitions", "groups", "logs to be deleted")
"""Of none of these the broker has any by itself."""


class Hotel:
    """A broker, and what it held when it had seen every kind of guest once and all had left."""

    def __init__(self, process: BrokerProcess, admin: str) -> None:
        self.process = process
        self.surplus: dict[str, int] = {}
        self._admin = admin
        prepare(process.bootstrap)
        self.receive(VISITS)
        self._at_rest = until(self._empty, "the guests to be gone", REST_S_MAX)

    def receive(self, visits: tuple[Visit, ...]) -> None:
        with ThreadPoolExecutor(AT_ONCE) as guests:
            list(guests.map(lambda visit: visit(self.process.bootstrap), visits))

    def is_as_before(self) -> bool:
        """Threads are a pool's, which fills up to its bound as it is used."""
        self.surplus = {what: more for what, more in self.more().items() if more > 0 and what != "threads"}
        return not self.surplus

    def more(self) -> dict[str, int]:
        return {what: count - self._at_rest[what] for what, count in scrape(self._admin).held.items()}

    def _empty(self) -> dict[str, int]:
        held = scrape(self._admin).held
        return {} if any(held[what] for what in GUESTS) else held


@pytest.fixture(scope="module")
def hotel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hotel]:
    admin = f"127.0.0.1:{free_port()}"
    folder = tmp_path_factory.mktemp("leaks") / "data"
    with BrokerProcess(folder, settings=SETTINGS, arguments=("--admin", admin)) as process:
        yield Hotel(process, admin)


@pytest.mark.parametrize("visit", VISITS, ids=lambda visit: visit.__name__)
def test_nothing_is_kept_of_a_client_that_left(hotel: Hotel, visit: Visit) -> None:
    hotel.receive((visit,) * TIMES)
    try:
        until(hotel.is_as_before, "nothing to be left", REST_S_MAX)
    except AssertionError as error:
        error.add_note(f"left: {hotel.surplus}")
        raise
    assert "Traceback" not in hotel.process.stderr


def test_a_client_that_stays_keeps_no_file_of_what_is_deleted(hotel: Hotel) -> None:
    """Its connection, having produced there, and its session, having read there, know the partitions."""
    with BlockingClient(hotel.process.bootstrap) as staying:
        sessions = []
        for _ in range(TIMES):
            with Topic(hotel.process.bootstrap) as topic:
                assert staying.produce(topic.name, 0, batch_of(b"v")).error_code == 0
                opening = fetch_fields(topic.name, session_epoch=0)
                sessions.append(staying.call(Api.FETCH, FETCH_VERSION, **opening).session_id)
        until(lambda: hotel.more()["open files"] <= 1, "the files to be closed", REST_S_MAX)
        for session in sessions:
            closing = fetch_fields("", session_id=session, session_epoch=-1, topics=[])
            staying.call(Api.FETCH, FETCH_VERSION, **closing)
