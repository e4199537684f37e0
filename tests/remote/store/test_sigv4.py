"""Signatures are those of botocore's signer, which is held to be right."""

from __future__ import annotations

import string
from datetime import UTC, datetime
from typing import Any

import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remote.store.sigv4 import Keys, Signer, encode_path, encode_query

NOW_MS = 1_790_000_000_123
PLAIN = string.ascii_letters + string.digits
path = st.lists(st.text(PLAIN + "-_.~=+ %é", min_size=1, max_size=12), min_size=1, max_size=4).map("/".join)
query = st.dictionaries(
    st.sampled_from(["list-type", "prefix", "start-after", "uploads"]), st.text(max_size=20)
)
headers = st.dictionaries(
    st.sampled_from(["if-none-match", "range", "x-amz-checksum-crc32c", "x-amz-meta-a"]),
    st.text(PLAIN + "*=-+/", min_size=1, max_size=20),
)


def botocores(
    method: str, url: str, headers: dict[str, str], keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    at = datetime.fromtimestamp(NOW_MS / 1000, UTC)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: at)
    request = AWSRequest(method=method, url=url, headers=dict(headers))
    request.context["client_config"] = Unsigned()
    signer = botocore.auth.S3SigV4Auth(
        Credentials(keys.access_key, keys.secret_key, keys.token), "s3", "eu-central-1"
    )
    signer.add_auth(request)
    return {name.lower(): value for name, value in request.headers.items()}


class Unsigned:
    s3 = {"payload_signing_enabled": False}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    method=st.sampled_from(["GET", "PUT", "DELETE"]),
    path=path,
    query=query,
    headers=headers,
    token=st.none() | st.text(PLAIN, min_size=1, max_size=30),
)
def test_it_signs_as_botocore_does(
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    path: str,
    query: dict[str, str],
    headers: dict[str, str],
    token: str | None,
) -> None:
    keys = Keys(access_key="AKIDEXAMPLE", secret_key="wJalrXUtnFEMI/K7MDENG", token=token)
    headers = {"host": "store.example:9000", **headers}
    encoded_path, encoded_query = encode_path(f"/bucket/{path}"), encode_query(query)
    ours = Signer("eu-central-1").sign(method, encoded_path, encoded_query, headers, keys=keys, now_ms=NOW_MS)
    url = f"http://store.example:9000{encoded_path}" + (f"?{encoded_query}" if encoded_query else "")
    assert ours == botocores(method, url, headers, keys, monkeypatch)


def test_a_new_day_and_new_keys_sign_anew() -> None:
    signer = Signer("us-east-1")

    def sign(keys: Keys, now_ms: int) -> Any:
        return signer.sign("GET", "/b/k", "", {"host": "h"}, keys=keys, now_ms=now_ms)["authorization"]

    first, second = Keys(access_key="a", secret_key="s"), Keys(access_key="a", secret_key="t")
    signed = [sign(keys, now_ms) for keys in (first, second) for now_ms in (NOW_MS, NOW_MS + 86_400_000)]
    assert len(set(signed)) == 4
    assert sign(first, NOW_MS) == signed[0]


def test_secrets_are_not_shown() -> None:
    shown = repr(Keys(access_key="AKID", secret_key="very-secret", token="token"))
    assert "AKID" in shown
    assert "secret" not in shown.replace("secret_key", "")
    assert "token" not in shown
