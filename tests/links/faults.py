"""The kinds of fault that strike a broker or its links, and which of them a round has.

Owns what each does to its victim and undoes, and the plan: the same for the same seed. Does not own the load
or the figures. Invariant: a fault strikes one broker; all is undone when it returns.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from tests.clusters import ClusterProcesses
from tests.links.rules import CLIENTS, STORE, Links

ROLES: Final = ("leader", "controller")
"""A leader that is not the controller, and the controller. Each follows others as well."""
FAULTS_PER_ROUND = 6
CALMS_PER_ROUND = 2
"""A quarter of the time nothing is done, which shows what the figures are then."""
CALM: Final = "nothing"
LAST_S, CALM_S = (8.0, 14.0), (4.0, 8.0)
"""How long a fault lasts: shorter and longer than a session."""
FLAP_S = 1.0
DELAY_S, LOSS = 0.1, 0.05
SLOW_BYTES_PER_S = 50_000.0


@dataclass(slots=True)
class Scene:
    cluster: ClusterProcesses
    links: Links

    def wait(self, seconds: float) -> None:
        """A fault lasts as long as it was given."""
        threading.Event().wait(seconds)

    def others(self, victim: int) -> list[int]:
        return [node_id for node_id in self.cluster.node_ids if node_id != victim]


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """One fault of a plan."""

    kind: str
    role: str
    seconds: float


Fault = Callable[[Scene, int, float], None]


def killed(scene: Scene, victim: int, seconds: float) -> None:
    scene.cluster.kill(victim)
    scene.wait(seconds)
    scene.cluster.rise(victim)


def paused(scene: Scene, victim: int, seconds: float) -> None:
    with scene.cluster.paused(victim):
        scene.wait(seconds)


def cut_off(scene: Scene, victim: int, seconds: float) -> None:
    with scene.links.cut(victim):
        scene.wait(seconds)


def unheard(scene: Scene, victim: int, seconds: float) -> None:
    with scene.links.cut_one_way(victim):
        scene.wait(seconds)


def deaf(scene: Scene, victim: int, seconds: float) -> None:
    with scene.links.deaf(victim):
        scene.wait(seconds)


def half_open(scene: Scene, victim: int, seconds: float) -> None:
    """It dies while nobody can hear it: its connections stay open at the other ends."""
    with scene.links.cut(victim):
        scene.cluster.kill(victim)
        scene.wait(seconds)
    scene.cluster.rise(victim)


def cut_from_one(scene: Scene, victim: int, seconds: float) -> None:
    """Both see the third, the clients and the store."""
    with scene.links.cut(victim, scene.others(victim)[0]):
        scene.wait(seconds)


def cut_from_brokers(scene: Scene, victim: int, seconds: float) -> None:
    with scene.links.cut(victim, *scene.others(victim)):
        scene.wait(seconds)


def cut_from_store(scene: Scene, victim: int, seconds: float) -> None:
    with scene.links.cut(victim, STORE):
        scene.wait(seconds)


def cut_from_clients(scene: Scene, victim: int, seconds: float) -> None:
    with scene.links.cut(victim, CLIENTS):
        scene.wait(seconds)


def flapping(scene: Scene, victim: int, seconds: float) -> None:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        with scene.links.cut(victim):
            scene.wait(FLAP_S)
        scene.wait(FLAP_S)


def slow_to_store(scene: Scene, victim: int, seconds: float) -> None:
    with scene.links.slow(victim, STORE, bytes_per_s=SLOW_BYTES_PER_S):
        scene.wait(seconds)


def far_away(scene: Scene, victim: int, seconds: float) -> None:
    with scene.links.delay(victim, delay_s=DELAY_S):
        scene.wait(seconds)


def lossy(scene: Scene, victim: int, seconds: float) -> None:
    with scene.links.lossy(victim, loss=LOSS):
        scene.wait(seconds)


FAULTS: Final[dict[str, Fault]] = {
    "kill -9": killed,
    "pause": paused,
    "cut off": cut_off,
    "half-open": half_open,
    "not heard": unheard,
    "hears nothing": deaf,
    "cut from a broker": cut_from_one,
    "cut from brokers": cut_from_brokers,
    "cut from the store": cut_from_store,
    "cut from clients": cut_from_clients,
    "cut every second": flapping,
    f"{SLOW_BYTES_PER_S / 1000:.0f} KB/s to the store": slow_to_store,
    f"{DELAY_S * 1000:.0f} ms each way": far_away,
    f"{LOSS:.0%} lost": lossy,
}
OF_THE_STORE: Final = frozenset(
    kind for kind, fault in FAULTS.items() if fault in (cut_from_store, slow_to_store)
)


def plan(seed: int, *, has_store: bool) -> list[Strike]:
    """The faults of a round. Rounds one after the other deal out the same shuffled deck, so that a few of
    them have had every kind on every role."""
    random = Random(seed)
    deck = [(kind, role) for kind in FAULTS for role in ROLES if has_store or kind not in OF_THE_STORE]
    Random(0).shuffle(deck)
    first = seed * FAULTS_PER_ROUND
    strikes = [
        Strike(kind=kind, role=role, seconds=round(random.uniform(*LAST_S), 1))
        for kind, role in (deck[number % len(deck)] for number in range(first, first + FAULTS_PER_ROUND))
    ]
    for _ in range(CALMS_PER_ROUND):
        calm = Strike(kind=CALM, role="", seconds=round(random.uniform(*CALM_S), 1))
        strikes.insert(random.randint(0, len(strikes)), calm)
    return strikes


def happen(strike: Strike, scene: Scene, victim: int) -> None:
    if strike.kind == CALM:
        scene.wait(strike.seconds)
    else:
        FAULTS[strike.kind](scene, victim, strike.seconds)
