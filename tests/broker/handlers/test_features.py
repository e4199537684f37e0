"""Features as a client sees them: ApiVersions lists them, UpdateFeatures changes their levels."""

from __future__ import annotations

from typing import Any

import pytest

from broker.control.cluster import Cluster
from broker.control.feature_levels import GROUP_VERSION, METADATA_VERSION, TRANSACTION_VERSION
from protocol.apis import Api
from protocol.errors import ErrorCode
from tests.broker.handlers.cluster_client import run
from tests.broker.requests import Client, versions

SOFTWARE = {"client_software_name": "test", "client_software_version": "1"}
DOWN = 2


async def listed(client: Client, version: int = 4) -> tuple[dict[str, Any], dict[str, Any]]:
    answer = await client.ask(Api.API_VERSIONS, version, **SOFTWARE)
    supported = {row.name: (row.min_version, row.max_version) for row in answer.supported_features}
    finalized = {
        row.name: (row.min_version_level, row.max_version_level) for row in answer.finalized_features
    }
    return supported, finalized


def asked(name: str, level: int, upgrade_type: int = 1) -> dict[str, Any]:
    return {
        "feature": name,
        "max_version_level": level,
        "upgrade_type": upgrade_type,
        "allow_downgrade": upgrade_type != 1,
    }


def test_a_client_is_told_the_features_it_can_read() -> None:
    async def story(client: Client, member: Cluster) -> None:
        levels = {GROUP_VERSION: (1, 1), METADATA_VERSION: (30, 30), TRANSACTION_VERSION: (2, 2)}
        ranges = {GROUP_VERSION: (0, 1), METADATA_VERSION: (7, 30), TRANSACTION_VERSION: (0, 2)}
        assert await listed(client) == (ranges, levels)
        assert await listed(client, 3) == ({METADATA_VERSION: (7, 30)}, levels)

    run(story)


@pytest.mark.parametrize("version", versions(Api.UPDATE_FEATURES))
def test_a_level_that_is_changed_is_told_with_a_newer_epoch(version: int) -> None:
    async def story(client: Client, member: Cluster) -> None:
        before = (await client.ask(Api.API_VERSIONS, 4, **SOFTWARE)).finalized_features_epoch
        answer = await client.ask(
            Api.UPDATE_FEATURES, version, feature_updates=[asked(TRANSACTION_VERSION, 1, DOWN)]
        )
        _, levels = await listed(client)
        if version == 0:  # allow_downgrade counts for nothing in Kafka
            assert answer.error_code is ErrorCode.invalid_update_version
            assert levels[TRANSACTION_VERSION] == (2, 2)
            return
        assert (answer.error_code, answer.error_message) == (ErrorCode.none, None)
        assert levels[TRANSACTION_VERSION] == (1, 1)
        if version == 1:
            told = [(row.feature, row.error_code, row.error_message) for row in answer.results]
            assert told == [(TRANSACTION_VERSION, ErrorCode.none, "NONE")]
        after = (await client.ask(Api.API_VERSIONS, 4, **SOFTWARE)).finalized_features_epoch
        assert after > before
        answer = await client.ask(
            Api.UPDATE_FEATURES, version, feature_updates=[asked(TRANSACTION_VERSION, 0, DOWN)]
        )
        assert TRANSACTION_VERSION not in (await listed(client))[1]

    run(story)


@pytest.mark.parametrize("version", versions(Api.UPDATE_FEATURES))
def test_what_is_refused_names_no_feature_by_itself(version: int) -> None:
    async def story(client: Client, member: Cluster) -> None:
        updates = [asked(GROUP_VERSION, 1), asked("no.such", 1)]
        answer = await client.ask(Api.UPDATE_FEATURES, version, feature_updates=updates)
        assert answer.error_code is ErrorCode.invalid_update_version
        assert "no.such" in answer.error_message
        assert version > 1 or answer.results == ()

    run(story)


def test_a_feature_named_twice_counts_as_it_is_named_last() -> None:
    async def story(client: Client, member: Cluster) -> None:
        updates = [asked(TRANSACTION_VERSION, 9), asked(TRANSACTION_VERSION, 1, DOWN)]
        answer = await client.ask(Api.UPDATE_FEATURES, 1, feature_updates=updates)
        assert answer.error_code is ErrorCode.none
        assert [row.feature for row in answer.results] == [TRANSACTION_VERSION] * 2
        assert member.image.features[TRANSACTION_VERSION] == 1

    run(story)


def test_nothing_is_changed_where_only_the_answer_is_wanted() -> None:
    async def story(client: Client, member: Cluster) -> None:
        seq = member.image.seq
        answer = await client.ask(
            Api.UPDATE_FEATURES, 2, feature_updates=[asked(GROUP_VERSION, 0, DOWN)], validate_only=True
        )
        assert answer.error_code is ErrorCode.none
        assert (member.image.seq, member.image.features[GROUP_VERSION]) == (seq, 1)

    run(story)
