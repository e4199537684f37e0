"""Generated sequences of requests to Tidewal and to Apache Kafka: the same answer to every one of them.

`make differential` plays many; the suite plays a few, the same ones on every run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, given, seed, settings

from tests.compat.differential import Twins
from tests.compat.play import Player
from tests.compat.sequences import Step, sequences

pytestmark = pytest.mark.kafka

SEQUENCES_OF_A_SEED = 50


@pytest.fixture(scope="module")
def player(twins: Twins) -> Player:
    return Player(twins)


def test_generated_sequences_are_answered_alike(
    player: Player, differential_seed: int, record_property: Callable[[str, object], None]
) -> None:
    @seed(differential_seed)
    @settings(
        max_examples=SEQUENCES_OF_A_SEED,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(sequences())
    def answered_alike(sequence: Sequence[Step]) -> None:
        player.play(sequence)

    before = (player.played.sequences, player.played.requests)
    answered_alike()
    record_property("sequences", player.played.sequences - before[0])
    record_property("requests", player.played.requests - before[1])
