"""UpdateFeatures: which level may become which, in Kafka's words, and what the metadata log keeps of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.control.feature_levels import (
    FIRST_LEVELS,
    GROUP_VERSION,
    METADATA_VERSION,
    ONLY_KAFKAS,
    SUPPORTED,
    TRANSACTION_VERSION,
)
from broker.control.features import FeatureUpdate, UpdateFeatures, UpgradeType
from broker.control.image import Image, difference
from broker.control.metadata_records import FeatureChanged
from protocol.errors import ErrorCode, KafkaError
from protocol.work import finish
from tests.broker.control.decisions import cluster, decided

UP, DOWN, UNSAFE = UpgradeType
PREFIX = "The update failed for all features since the following feature had an error: "
NOT_DOWN = (
    "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
    "downgrade."
)
# As Kafka 4.3.1 answers them, transaction.version at 2: name, level, type, the end of the message.
REFUSED = [
    (TRANSACTION_VERSION, 1, UP, NOT_DOWN),
    (TRANSACTION_VERSION, 3, UP, "Local controller 1 only supports versions 0-2"),
    (TRANSACTION_VERSION, 3, DOWN, "Local controller 1 only supports versions 0-2"),
    (TRANSACTION_VERSION, -1, DOWN, "A feature version cannot be less than 0."),
    (TRANSACTION_VERSION, 2, 0, "The controller does not support the given upgrade type."),
    (TRANSACTION_VERSION, 2, 4, "The controller does not support the given upgrade type."),
    (GROUP_VERSION, 5, UP, "Local controller 1 only supports versions 0-1"),
    (METADATA_VERSION, 31, UP, "Local controller 1 only supports versions 7-30"),
    (METADATA_VERSION, 6, UNSAFE, "Local controller 1 only supports versions 7-30"),
    (METADATA_VERSION, 29, UP, NOT_DOWN),
    ("no.such", 1, UP, "Local controller 1 does not support this feature."),
    ("no.such", 0, DOWN, "Feature no.such not found."),
    ("", 1, UP, "Local controller 1 does not support this feature."),
]
ALLOWED = [
    (TRANSACTION_VERSION, 2, UP),
    (TRANSACTION_VERSION, 2, DOWN),
    (TRANSACTION_VERSION, 1, DOWN),
    (TRANSACTION_VERSION, 0, UNSAFE),
    (GROUP_VERSION, 0, DOWN),
    (METADATA_VERSION, 30, UP),
    ("share.version", 0, DOWN),
]


def update(image: Image, name: str, level: int, upgrade_type: int, *, validate_only: bool = False) -> None:
    command = UpdateFeatures(updates={name: FeatureUpdate(level, upgrade_type)}, validate_only=validate_only)
    image.apply_slot(image.seq + 1, decided(image, command).records)


@pytest.mark.parametrize(("name", "level", "upgrade_type", "why"), REFUSED)
def test_what_is_refused(name: str, level: int, upgrade_type: int, why: str) -> None:
    with pytest.raises(KafkaError) as refused:
        update(cluster(), name, level, upgrade_type)
    assert refused.value.code is ErrorCode.invalid_update_version
    assert refused.value.message == f"{PREFIX}Invalid update version {level} for feature {name}. {why}"


@pytest.mark.parametrize("level", [7, 29])
def test_metadata_version_never_goes_down(level: int) -> None:
    for upgrade_type, why in (
        (DOWN, "Refusing to perform the requested downgrade because it might delete metadata information."),
        (UNSAFE, "Unsafe metadata downgrade is not supported in this version."),
    ):
        with pytest.raises(KafkaError) as refused:
            update(cluster(), METADATA_VERSION, level, upgrade_type)
        message = f"{PREFIX}Unsupported metadata.version downgrade from 30 to {level}. {why}"
        assert refused.value.message == message


@pytest.mark.parametrize(("name", "level", "upgrade_type"), ALLOWED)
def test_what_is_allowed(name: str, level: int, upgrade_type: int) -> None:
    for validate_only in (True, False):
        image = cluster()
        update(image, name, level, upgrade_type, validate_only=validate_only)
        before = FIRST_LEVELS.get(name, 0)
        assert image.features.get(name, 0) == (before if validate_only else level)


def test_a_level_comes_back_up() -> None:
    image = cluster()
    update(image, TRANSACTION_VERSION, 0, DOWN)
    with pytest.raises(KafkaError, match="Can't downgrade to a newer version"):
        update(image, TRANSACTION_VERSION, 1, DOWN)
    update(image, TRANSACTION_VERSION, 1, UP)
    update(image, TRANSACTION_VERSION, 2, UP)
    assert image.features == FIRST_LEVELS


def test_all_updates_happen_or_none() -> None:
    image = cluster()
    both = {GROUP_VERSION: FeatureUpdate(0, DOWN), TRANSACTION_VERSION: FeatureUpdate(9, UP)}
    with pytest.raises(KafkaError):
        decided(image, UpdateFeatures(updates=both))
    both[TRANSACTION_VERSION] = FeatureUpdate(1, DOWN)
    delta = image.apply_slot(image.seq + 1, decided(image, UpdateFeatures(updates=both)).records)
    assert (image.features[GROUP_VERSION], image.features[TRANSACTION_VERSION]) == (0, 1)
    assert delta.features_changed == both.keys()
    assert delta


def test_a_log_that_says_nothing_of_features_stands_for_the_first_levels() -> None:
    """Whatever a later release serves: these levels are in logs that it reads."""
    assert cluster().features == {GROUP_VERSION: 1, METADATA_VERSION: 30, TRANSACTION_VERSION: 2}


levels = st.builds(FeatureUpdate, st.integers(-1, 31), st.integers(0, 4))
updates = st.dictionaries(st.sampled_from([*SUPPORTED, *ONLY_KAFKAS, "no.such"]), levels, max_size=3)


@given(st.lists(updates, max_size=8))
def test_no_level_leaves_its_range(asked: list[dict[str, FeatureUpdate]]) -> None:
    image = cluster()
    for each in asked:
        before = image.copy()
        try:
            decision = decided(image, UpdateFeatures(updates=each))
        except KafkaError as refused:
            assert refused.code is ErrorCode.invalid_update_version
            assert image == before
            continue
        delta = image.apply_slot(image.seq + 1, decision.records)
        assert image.features.keys() == SUPPORTED.keys()
        assert all(level in SUPPORTED[name] for name, level in image.features.items())
        assert image.features[METADATA_VERSION] == 30
        assert finish(difference(before, image)).features_changed == delta.features_changed


def test_a_level_that_stays_makes_no_record() -> None:
    same = {TRANSACTION_VERSION: FeatureUpdate(2, UP), METADATA_VERSION: FeatureUpdate(30, UP)}
    assert decided(cluster(), UpdateFeatures(updates=same)).records == ()
    image = cluster()
    assert not image.apply_slot(image.seq + 1, [FeatureChanged(name=TRANSACTION_VERSION, level=2)])
