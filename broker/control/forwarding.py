"""Clients' requests that only the controller may decide, passed on to it from wherever they came.

Owns: the connections they take, and how long one may take in all. Does not own: which requests these are
(dispatch.py), asking the controller (requests.py), answering one that was passed on (dispatch.py).

Invariants: an answer is given back when this broker knows what the answer tells of. Nothing waits without a
bound, or behind another request's slot.
"""

from __future__ import annotations

import asyncio

from broker.control.command_queue import not_controller
from broker.control.member import Member
from broker.control.requests import ControllerClient
from broker.net.channel import PeerLost
from protocol.apis import PeerApi
from protocol.errors import ErrorCode, KafkaError, error_code

FORWARDED_AT_ONCE = 32


class Forwarding:
    def __init__(self, member: Member, requests: ControllerClient, *, answer_s: float) -> None:
        self._member = member
        self._requests = requests
        self._answer_s = answer_s
        self._lanes = list(range(FORWARDED_AT_ONCE))
        """Answers on one connection come in order, and these may each wait for a slot."""
        self._has_lane = asyncio.Semaphore(FORWARDED_AT_ONCE)

    def __repr__(self) -> str:
        return f"Forwarding({FORWARDED_AT_ONCE - len(self._lanes)} under way)"

    async def ask(self, frame: bytes, *, principal: bytes = b"", client_host: bytes = b"") -> memoryview:
        """Send a client's request to the controller and return its answer, both as they are.

        Without an answer it raises REQUEST_TIMED_OUT, because it may have happened; but NOT_CONTROLLER if
        what was asked said so, or nothing was there to hear.
        """
        try:
            async with asyncio.timeout(self._answer_s):
                await self._has_lane.acquire()
        except TimeoutError:
            raise KafkaError(
                ErrorCode.request_timed_out, "too many requests to the controller are under way"
            ) from None
        lane = self._lanes.pop()
        try:
            return await self._ask(frame, f"forward-{lane}", principal, client_host)
        finally:
            self._lanes.append(lane)
            self._has_lane.release()

    async def _ask(self, frame: bytes, lane: str, principal: bytes, client_host: bytes) -> memoryview:
        answer_s = self._answer_s
        fields = {"request_data": frame, "request_principal": principal, "client_host_address": client_host}
        try:
            answer = await self._requests.ask(
                PeerApi.ENVELOPE, 0, fields, connection=lane, timeout_s=answer_s, again_for_s=answer_s
            )
        except PeerLost as lost:
            if lost.refused:
                raise not_controller() from lost
            raise KafkaError(ErrorCode.request_timed_out, "the controller did not answer") from lost
        if answer.error_code == ErrorCode.not_controller:
            raise not_controller()
        if answer.error_code != ErrorCode.none:
            raise KafkaError(error_code(int(answer.error_code)))
        seq = int(answer.metadata_offset)
        await self._member.wait_until(lambda: self._member.image.seq >= seq, answer_s)
        return memoryview(answer.response_data)
