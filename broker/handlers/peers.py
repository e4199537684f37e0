"""What brokers ask of each other about membership.

Owns: the shapes of these answers. Does not own: what they lead to (cluster.py, controller.py), telling a
broker from a client and passing on clients' requests (dispatch.py).
Invariant: whoever asks gets an answer it can act on; a refusal is one of Kafka's codes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from protocol.apis import PeerApi
from protocol.errors import KafkaError
from protocol.messages import Fields

if TYPE_CHECKING:
    from broker.dispatch import Context, Handler


async def broker_heartbeat(ctx: Context, request: Any) -> Fields:
    return await ctx.broker.cluster.roll_call.heartbeat(request, ctx.connection)


async def broker_registration(ctx: Context, request: Any) -> Fields:
    try:
        return await ctx.broker.cluster.roll_call.register(request)
    except KafkaError as error:
        return {"throttle_time": 0, "error_code": error.code, "broker_epoch": -1}


HANDLERS: dict[int, Handler] = {
    PeerApi.BROKER_HEARTBEAT: broker_heartbeat,
    PeerApi.BROKER_REGISTRATION: broker_registration,
}
