"""Owns the rule about what may be left: once the world is whole, every client gone and nothing under way, a
living broker has its standing tasks, one held fetch and one held heartbeat for each peer, and nothing else.

Does not own the count (census.py).
Invariant: a rule looks only at values; what is not allowed by name is a leak.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from broker.control.forwarding import FORWARDED_AT_ONCE
from tests.sim.checks import Case
from tests.sim.history import Census

STANDING = (
    "Broker._clean",
    "Broker._maintain",
    "Broker._run",
    "Cluster._send_heartbeats",
    "Cluster._follow",
    "Cluster._rebalance",
    "Cluster._watch",
    "GroupCoordinator._expire_for_ever",
    "IsrChanges._send_for_ever",
    "IsrChanges._watch_for_ever",
    "Node._live",
    "Pressure.watch_for_ever",
    "Tiering._tick_for_ever",
    "TransactionCoordinator._expire_for_ever",
)
"""Tasks that every broker has from its start to its stop; a new one is entered here."""
OF_THE_WAL_TIER = ("Uploader._run", "WalTelling._run", "WalTopicLeader._repair", "WalCollecting.run")
"""Tasks of which it has one where the WAL tier may be used."""
# A broker that stopped following is watched for until it fetches again: its last session tells of no end.
WAITERS_FOR_EACH_PEER = ("FollowerFetchWait", "most watchers of a partition")
# heartbeats, ISR changes, questions, looks, events of either tier, reading them; what is
# forwarded. And fetches, in lanes of their own for what is read in the WAL tier and for the rest.
CHANNELS_FOR_EACH_PEER = 7 + FORWARDED_AT_ONCE
IN_FLIGHT = 1
TIER_PARTITIONS_MAX = 2
"""Of the metadata topic, in the simulation; a broker that leads some is asked for all of them at once."""


def leaks(census: Census) -> Iterator[str]:
    """Everything this broker holds and should not; everything it should and does not."""
    peers = len(census.others)
    followed = len(census.followed)
    heartbeats = peers if census.is_controller else 0
    least = {**dict.fromkeys(STANDING, 1), "Fetcher._run": followed}
    waiting = ("Dispatcher._finish", "Dispatcher._answer_large")
    most = {**least, **dict.fromkeys(waiting, heartbeats), **_tier_tasks(census)}
    most |= {"Fetcher._run": followed * census.lanes, **dict.fromkeys(OF_THE_WAL_TIER, 1)}
    for uneven in _uneven("tasks of", census.tasks, least, most):
        yield f"{uneven} (those that run as long as the broker are STANDING in leak_checks.py)"
    watched_lanes = max(census.lanes, census.watched_lanes)
    waiters = {**dict.fromkeys(WAITERS_FOR_EACH_PEER, peers * watched_lanes)}
    if census.lanes > 1:
        waiters["most watchers of a partition"] += 1  # the uploader
    if census.node in census.tier_leaders:
        waiters.update({"FetchWait": peers, "consumers": peers * TIER_PARTITIONS_MAX})
    yield from _uneven("waiters:", census.waiters, {}, waiters)
    if census.overdue:
        yield f"{census.overdue} waiters are past their deadline"
    for peer, state in census.connections:
        if state == "gone":
            yield f"a connection of {peer}, which is gone and said so"
    yield from _foreign_connections(census)
    if census.counted_connections != len(census.connections):
        yield f"it counts {census.counted_connections} connections and has {len(census.connections)}"
    for number in census.silent_beats:
        yield f"heartbeats of node {number} over a connection that is lost"
    for name, length in census.queues.items():
        if name != "in flight to a peer" or length > IN_FLIGHT:
            yield f"{name}: {length}"
    yield from census.no_more
    for path in census.deleted:
        yield f"{path} was deleted and is open"


def _tier_tasks(census: Census) -> dict[str, int]:
    """Whoever leads some of the tier's metadata sweeps it, for a while longer than it leads; the others read
    it."""
    readers = len({*census.tier_leaders} - {census.node})
    return {"Sweep.run": 1, "_Reader.run": readers} if census.tier_leaders else {}


def _uneven(
    what: str, held: Mapping[str, int], least: Mapping[str, int], most: Mapping[str, int]
) -> Iterator[str]:
    for kind in sorted(held.keys() | least.keys()):
        count = held.get(kind, 0)
        if not least.get(kind, 0) <= count <= most.get(kind, 0):
            yield f"{what} {kind}: {count}, not {least.get(kind, 0)} to {most.get(kind, 0)}"


def _foreign_connections(census: Census) -> Iterator[str]:
    """Nobody but brokers is there any more; each keeps one connection for each purpose, also to itself."""
    there = Counter(peer for peer, state in census.connections if state == "open")
    peers = {f"broker-{number}" for number in (census.node, *census.others)}
    for peer, count in sorted(there.items()):
        most = CHANNELS_FOR_EACH_PEER + census.lanes if peer in peers else 0
        if count > most:
            yield f"{count} connections of {peer}, at most {most}"


def nothing_is_leaked(case: Case) -> Iterator[str]:
    """20 Nothing leaked: what every broker holds in the end is what it needs."""
    for census in case.history.censuses:
        for leak in leaks(census):
            yield f"node {census.node} life {census.life}: {leak}"


RULES: dict[str, Callable[[Case], Iterable[str]]] = {"20 nothing leaked": nothing_is_leaked}
