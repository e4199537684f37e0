"""What it costs that a request which is answered later cannot be answered: its connection.

Owns: what becomes of the connection and of the log line. Does not own: the work, its answer, or places.
Invariant: a task that works for a connection either answers on it or closes it, and only a stop goes on from
here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from broker.net.connection import Connection
from protocol.errors import MalformedRequest


async def or_hang_up(
    connection: Connection, answering: Coroutine[Any, Any, None], what: str, logger: logging.Logger
) -> None:
    """Do what answers a request, and close the connection where that fails or is stopped. `what` names the
    request."""
    try:
        await answering
    except asyncio.CancelledError:
        connection.close()
        raise
    except MalformedRequest as error:
        connection.close(str(error))
    except Exception as error:
        logger.error("%s failed", what, exc_info=error)
        connection.close(f"{what} failed")
