"""Ports for processes that are started here and have to be told theirs.

Owns the choice. Does not own who listens. Invariant: what is returned is free now, and no client's outgoing
connection takes it.
"""

from __future__ import annotations

import contextlib
import secrets
import socket

from tools.console import Failure


def free_port() -> int:
    """Return a port below the ephemeral range: no client's outgoing connection takes it before its broker
    does."""
    for _ in range(200):
        port = 12000 + secrets.randbelow(18000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise Failure("no free port between 12000 and 30000")
