"""AWS Signature Version 4 for requests to S3, as pure functions of keys, request and time.

Owns: the canonical request and the headers that prove it. Does not own where keys come from, sending, the
clock. botocore's signer does the same ten times slower (80 against 8 µs, of 350 for a whole call) and reads
the clock by itself; the tests hold this one to it.

Invariant: every header that is given is signed. The body is not: it travels with its own checksum, which is
a signed header.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

SERVICE: Final = "s3"
UNSIGNED: Final = "UNSIGNED-PAYLOAD"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


def encode_path(path: str) -> str:
    return quote(path, safe="/-_.~")


def encode_query(pairs: Mapping[str, str]) -> str:
    """Return the query in the one order and spelling that a signature covers."""
    return "&".join(f"{quote(name, safe='-_.~')}={quote(pairs[name], safe='-_.~')}" for name in sorted(pairs))


class Signer:
    def __init__(self, region: str) -> None:
        self.region = region
        self._signed_for = ("", "")
        self._key = b""
        self._stamped = (-1, "")

    def sign(
        self, method: str, path: str, query: str, headers: Mapping[str, str], *, keys: Keys, now_ms: int
    ) -> dict[str, str]:
        """Return all headers to send. Path and query are encoded; header names are in lower case and include
        `host`.
        """
        at = self._stamp(now_ms // 1000)
        signed = {**headers, "x-amz-content-sha256": UNSIGNED, "x-amz-date": at}
        if keys.token is not None:
            signed["x-amz-security-token"] = keys.token
        names = sorted(signed)
        name_list = ";".join(names)
        lines = [method, path, query, *(f"{name}:{signed[name]}" for name in names), "", name_list, UNSIGNED]
        digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        scope = f"{at[:8]}/{self.region}/{SERVICE}/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{digest}"
        signature = hmac.digest(self._signing_key(keys, at[:8]), text.encode(), "sha256").hex()
        signed["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={keys.access_key}/{scope}, "
            f"SignedHeaders={name_list}, Signature={signature}"
        )
        return signed

    def _stamp(self, now_s: int) -> str:
        """Return the time as it is signed, kept because formatting takes as long as a hash."""
        if self._stamped[0] != now_s:
            self._stamped = (now_s, datetime.fromtimestamp(now_s, UTC).strftime("%Y%m%dT%H%M%SZ"))
        return self._stamped[1]

    def _signing_key(self, keys: Keys, day: str) -> bytes:
        """Return the key for a day and secret, kept because deriving it takes as long as all the rest."""
        if self._signed_for != (keys.secret_key, day):
            key = f"AWS4{keys.secret_key}".encode()
            for part in (day, self.region, SERVICE, "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._signed_for, self._key = (keys.secret_key, day), key
        return self._key
