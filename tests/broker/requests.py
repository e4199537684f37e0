"""Requests to handlers without a network: through the real encoding both ways, in any version."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping
from types import SimpleNamespace
from typing import Any, cast

from broker.handlers.dispatch import Context, Handler
from broker.handlers.error_replies import error_reply
from protocol.apis import KNOWN, Api, PeerApi
from protocol.codec import Fields
from protocol.errors import KafkaError
from protocol.messages import decode_response, encode_response, entity, unknown_fields
from protocol.work import finish

# Fields without a default in the schema, for requests that do not care.
NOT_ASKED_FOR: Fields = {
    "include_cluster_authorized_operations": False,
    "include_fenced_brokers": False,
    "include_topic_authorized_operations": False,
}


def versions(api: Api | PeerApi) -> list[int]:
    row = KNOWN[api]
    return list(range(row.served_from, row.max_version + 1))


class Client:
    """What a client of one listener sees of these handlers."""

    def __init__(self, handlers: Mapping[int, Handler], *, listener: str = "PLAINTEXT") -> None:
        self._handlers = handlers
        self._connection = SimpleNamespace(listener=listener)

    async def ask(self, api: Api | PeerApi, version: int, **fields: Any) -> Any:
        """The response as the client decodes it."""
        request = entity(api, version, {**NOT_ASKED_FOR, **fields})
        context = Context(
            api_key=api,
            api_version=version,
            correlation_id=1,
            client_id="test",
            connection=cast(Any, self._connection),
        )
        answer = await self._answer(self._handlers[api], context, request)
        data = encode_response(api, version, context.correlation_id, answer)
        return decode_response(api, version, data[4:])[1]

    async def _answer(self, handler: Callable[[Context, Any], Any], context: Context, request: Any) -> Fields:
        try:
            found = handler(context, request)
            if isinstance(found, Generator):
                found = finish(found)
            answer: Fields = await found if asyncio.iscoroutine(found) else found
        except KafkaError as error:
            failed = finish(
                error_reply(context.api_key, context.api_version, request, error.code, error.message)
            )
            assert failed is not None
            return failed
        assert not (unknown := unknown_fields(context.api_key, "response", answer)), unknown
        return answer
