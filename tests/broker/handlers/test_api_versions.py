"""ApiVersions in every version, through the wire's encoding."""

from __future__ import annotations

import pytest

from broker.control.cluster import Cluster
from protocol.apis import SERVED, Api
from protocol.errors import ErrorCode
from tests.broker.handlers.cluster_client import (
    run,
)
from tests.broker.requests import Client, versions


@pytest.mark.parametrize("version", versions(Api.API_VERSIONS))
def test_api_versions_are_the_table(version: int) -> None:
    async def story(client: Client, member: Cluster) -> None:
        fields = {"client_software_name": "test-client", "client_software_version": "1.2.3"}
        answer = await client.ask(Api.API_VERSIONS, version, **(fields if version >= 3 else {}))
        assert answer.error_code is ErrorCode.none
        assert {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys} == {
            key: (row.min_version, row.max_version) for key, row in SERVED.items()
        }

    run(story)


@pytest.mark.parametrize(
    ("name", "version"),
    [("", "1"), ("a", ""), ("-a", "1"), ("a-", "1"), ("a b", "1"), ("a", "1/2"), ("ü", "1")],
)
def test_a_client_says_what_it_is_in_plain_words(name: str, version: str) -> None:
    async def story(client: Client, member: Cluster) -> None:
        answer = await client.ask(
            Api.API_VERSIONS, 3, client_software_name=name, client_software_version=version
        )
        assert answer.error_code is ErrorCode.invalid_request
        assert answer.api_keys == ()

    run(story)
