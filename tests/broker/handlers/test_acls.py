"""ACLs are refused in every version as Kafka refuses them without an authorizer, row by row."""

from __future__ import annotations

from typing import Any

import pytest

from broker.control.cluster import Cluster
from protocol.apis import Api
from protocol.codec import Fields
from protocol.errors import ErrorCode
from tests.broker.handlers.cluster_client import run
from tests.broker.raw_client import RawClient
from tests.broker.requests import Client, versions
from tests.conftest import MakeBroker

TOPIC, READ, ALLOW, LITERAL = 2, 3, 3, 3
ACL: Fields = {
    "resource_type": TOPIC,
    "resource_name": "t",
    "resource_pattern_type": LITERAL,
    "principal": "User:somebody",
    "host": "*",
    "operation": READ,
    "permission_type": ALLOW,
}
FILTER: Fields = {
    "resource_type_filter": TOPIC,
    "resource_name_filter": None,
    "pattern_type_filter": LITERAL,
    "principal_filter": None,
    "host_filter": None,
    "operation": READ,
    "permission_type": ALLOW,
}


@pytest.mark.parametrize("version", versions(Api.DESCRIBE_ACLS))
def test_what_is_described_is_that_there_is_no_authorizer(version: int) -> None:
    async def story(client: Client, member: Cluster) -> None:
        answer = await client.ask(Api.DESCRIBE_ACLS, version, **FILTER)
        assert answer.error_code is ErrorCode.security_disabled
        assert answer.error_message == "No Authorizer is configured on the broker"
        assert answer.resources == ()

    run(story)


@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("version", versions(Api.CREATE_ACLS))
def test_each_row_is_refused_by_itself(version: int, rows: int) -> None:
    def said(results: Any) -> list[tuple[ErrorCode, str]]:
        return [(row.error_code, row.error_message) for row in results]

    async def story(client: Client, member: Cluster) -> None:
        refused = [(ErrorCode.security_disabled, "No Authorizer is configured.")] * rows
        created = await client.ask(Api.CREATE_ACLS, version, creations=[ACL] * rows)
        assert said(created.results) == refused
        deleted = await client.ask(Api.DELETE_ACLS, version, filters=[FILTER] * rows)
        assert said(deleted.filter_results) == refused
        assert all(row.matching_acls == () for row in deleted.filter_results)

    run(story)


@pytest.mark.parametrize("rows", [2, 2000])
@pytest.mark.parametrize(
    "element", ["resource_type", "resource_pattern_type", "operation", "permission_type"]
)
async def test_an_element_of_no_kind_costs_the_connection(
    make_broker: MakeBroker, element: str, rows: int, caplog: pytest.LogCaptureFixture
) -> None:
    broker = await make_broker()
    asked = {
        "resource_type": "resource_type_filter",
        "resource_pattern_type": "pattern_type_filter",
    }.get(element, element)
    one, wanted = {**ACL, element: 0}, {**FILTER, asked: 0}
    requests: list[tuple[Api, Fields]] = [
        (Api.CREATE_ACLS, {"creations": [ACL] * (rows - 1) + [one]}),
        (Api.DELETE_ACLS, {"filters": [FILTER] * (rows - 1) + [wanted]}),
        (Api.DESCRIBE_ACLS, wanted),
    ]
    for api, fields in requests:
        async with await RawClient.open(broker) as client:
            await client.send(client.encode(api, 3, dict(fields)))
            assert await client.is_closed()
    assert "Traceback" not in caplog.text
