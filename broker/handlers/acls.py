"""DescribeAcls, CreateAcls, DeleteAcls: what Kafka without an authorizer answers, in every version.

Owns: the refusal of each request, row by row as Kafka shapes it. Does not own: any ACL; there is none.
Invariant: the answer depends on the request alone, so any broker gives it and the controller is not asked;
a request with an element of value 0 (UNKNOWN) is none of Kafka's, and costs the connection as it does there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from broker.handlers.results import rows
from protocol.apis import Api
from protocol.codec import Fields
from protocol.errors import ErrorCode, MalformedRequest
from protocol.work import Work

if TYPE_CHECKING:
    from broker.handlers.dispatch import Context, Handler
    from protocol.requests.create_acls import AclCreation, CreateAclsRequest
    from protocol.requests.delete_acls import DeleteAclsFilter, DeleteAclsRequest
    from protocol.requests.describe_acls import DescribeAclsRequest

_UNKNOWN: Final = 0
"""Kafka's code for a resource type, pattern type, operation or permission that a client does not know."""
_OF_A_BROKER: Final = "No Authorizer is configured on the broker"
_OF_A_CONTROLLER: Final[Fields] = {
    "error_code": ErrorCode.security_disabled,
    "error_message": "No Authorizer is configured.",
}


class AclHandlers:
    def routes(self) -> Mapping[int, Handler]:
        return {
            Api.DESCRIBE_ACLS: self.describe_acls,
            Api.CREATE_ACLS: self.create_acls,
            Api.DELETE_ACLS: self.delete_acls,
        }

    def describe_acls(self, ctx: Context, request: DescribeAclsRequest) -> Fields:
        _check_filter(request)
        return {
            "throttle_time": 0,
            "error_code": ErrorCode.security_disabled,
            "error_message": _OF_A_BROKER,
            "resources": [],
        }

    def create_acls(self, ctx: Context, request: CreateAclsRequest) -> Work[Fields]:
        results = yield from rows(_not_created, request.creations)
        return {"throttle_time": 0, "results": results}

    def delete_acls(self, ctx: Context, request: DeleteAclsRequest) -> Work[Fields]:
        results = yield from rows(_not_deleted, request.filters)
        return {"throttle_time": 0, "filter_results": results}


def _not_created(creation: AclCreation) -> Fields:
    _check(
        creation.resource_type,
        creation.resource_pattern_type,
        creation.operation,
        creation.permission_type,
    )
    return _OF_A_CONTROLLER


def _not_deleted(asked: DeleteAclsFilter) -> Fields:
    _check_filter(asked)
    return {**_OF_A_CONTROLLER, "matching_acls": []}


def _check_filter(asked: DescribeAclsRequest | DeleteAclsFilter) -> None:
    _check(asked.resource_type_filter, asked.pattern_type_filter, asked.operation, asked.permission_type)


def _check(*codes: int) -> None:
    if _UNKNOWN in codes:
        raise MalformedRequest("an ACL of an UNKNOWN resource type, pattern type, operation or permission")
