"""Clients' requests that only the controller may decide, passed on to it from wherever they came.

Owns: the connections they take, asking again, and how long all of that may last. Does not own: which requests
these are (dispatch.py), who is the controller (cluster.py), answering one that was passed on (dispatch.py).

Invariants: a request is sent again only while it certainly was not heard. Its answer is given back when this
broker knows what the answer tells of. Nobody waits without a bound, or behind another one's slot.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from broker.control.command_queue import not_controller
from broker.net.channel import PeerLost
from protocol.apis import PeerApi
from protocol.errors import ErrorCode, KafkaError, error_code

if TYPE_CHECKING:
    from broker.control.cluster import Cluster

AT_ONCE = 32
RETRY_S = 0.2


class Forwarding:
    def __init__(self, cluster: Cluster, *, answer_s: float) -> None:
        self._cluster = cluster
        self._answer_s = answer_s
        self._lanes = list(range(AT_ONCE))
        """Answers on one connection come in order, and these may each wait for a slot."""
        self._has_lane = asyncio.Semaphore(AT_ONCE)

    def __repr__(self) -> str:
        return f"Forwarding({AT_ONCE - len(self._lanes)} under way)"

    async def ask(self, frame: bytes, *, principal: bytes = b"", client_host: bytes = b"") -> memoryview:
        """A client's request to the controller, and its answer back, both as they are.

        Unless whoever was asked said "not I", or nobody was there to hear, a client without an answer is told
        7: it may have happened.
        """
        try:
            async with asyncio.timeout(self._answer_s):
                await self._has_lane.acquire()
        except TimeoutError:
            raise KafkaError(ErrorCode.request_timed_out, "too much is asked of the controller") from None
        lane = self._lanes.pop()
        try:
            return await self._ask(frame, f"forward-{lane}", principal, client_host)
        finally:
            self._lanes.append(lane)
            self._has_lane.release()

    async def _ask(self, frame: bytes, lane: str, principal: bytes, client_host: bytes) -> memoryview:
        cluster, answer_s = self._cluster, self._answer_s
        fields = {"request_data": frame, "request_principal": principal, "client_host_address": client_host}
        give_up_s = cluster.now_s() + answer_s
        while True:
            try:
                channel = cluster.channels.to(cluster.controller_to_ask(), lane)
                answer = await channel.ask(PeerApi.ENVELOPE, 0, fields, timeout_s=answer_s)
            except PeerLost as lost:
                if not lost.refused:
                    raise KafkaError(ErrorCode.request_timed_out, "the controller did not answer") from lost
            else:
                if answer.error_code == ErrorCode.none:
                    await self._reach(answer.metadata_offset)
                    return memoryview(answer.response_data)
                if answer.error_code != ErrorCode.not_controller:
                    raise KafkaError(error_code(int(answer.error_code)))
            if cluster.now_s() > give_up_s:
                raise not_controller()
            await asyncio.sleep(RETRY_S)

    async def _reach(self, seq: int) -> None:
        await self._cluster.news_until(lambda: self._cluster.image.seq >= seq, self._answer_s)
