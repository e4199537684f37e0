"""Work that a command has done by a cluster, from the addresses as they were given.

Owns: the client's life around it, and the one line for what the brokers refuse or do not answer. Does not own
what is asked. Invariant: what the brokers say ends as a Failure, by Kafka's name for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from tools.console import Failure

if TYPE_CHECKING:
    from tools.client import Client


def ask(
    bootstrap: str,
    timeout_s: float,
    work: Callable[[Client], Awaitable[None]],
    *,
    exit_code: int = 1,
    named: str = "--bootstrap",
) -> None:
    """Do the work with a client of these brokers; `exit_code` is for a request that fails, `named` is the
    option that the addresses are from."""
    from protocol.errors import KafkaError
    from tools.client import Address, Client, RequestFailed

    try:
        addresses = [Address.parse(text) for text in bootstrap.split(",")]
    except ValueError as error:
        raise Failure(f"{named}: {error}", exit_code=2) from None

    async def asked() -> None:
        async with Client(addresses, deadline_s=timeout_s) as client:
            await work(client)

    try:
        asyncio.run(asked())
    except RequestFailed as error:
        raise Failure(str(error), exit_code=exit_code) from None
    except KafkaError as error:
        reason = error.code.name.upper()
        text = f"{error.message} ({reason})" if error.message else reason
        raise Failure(text, exit_code=exit_code) from None
