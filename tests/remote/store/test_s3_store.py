"""The S3 store on a real MinIO, over a line that loses, cuts and changes what it carries."""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError

from remote.store.metered import StoreStats
from remote.store.object_store import Fault, NoSuchObject, NoSuchUpload, ObjectStore, PutResult, StoreError
from remote.store.ranges import RangeClient
from remote.store.s3_store import CONFLICT_TRIES, KeySource, S3Store
from remote.store.sigv4 import Keys
from remote.store.stores import harden
from remote.store.upload import put_from, remove
from tests.compat.peers import unique
from tests.remote.store.bare import bare_s3, wall_ms
from tests.remote.store.listing import listed
from tests.remote.store.proxy import Line, Proxy, Say, proxy_to
from tools.versus.minio import MinioServer

pytestmark = pytest.mark.minio


class Bench:
    """One store behind the proxy, one that asks MinIO directly."""

    def __init__(self, server: MinioServer, bucket: str, proxy: Proxy, *, is_lane: bool) -> None:
        prefix = unique("s3")
        self.proxy = proxy
        self.store = bare_s3(server, server.url(bucket, prefix, port=proxy.port), is_lane=is_lane)
        self.direct = bare_s3(server, server.url(bucket, prefix))


@pytest.fixture
async def bench(
    request: pytest.FixtureRequest, minio_server: MinioServer, bucket: str
) -> AsyncIterator[Bench]:
    async with proxy_to(minio_server.port) as proxy:
        bench = Bench(minio_server, bucket, proxy, is_lane=getattr(request, "param", False))
        yield bench
        await bench.store.close()
        await bench.direct.close()


on_each_way = pytest.mark.parametrize("bench", [False, True], indirect=True, ids=["usual", "lane"])
"""A lane puts over other connections, and must tell the same truth."""


async def fault_of(store: S3Store, key: str = "k") -> StoreError:
    with pytest.raises(StoreError) as caught:
        await store.get(key)
    return caught.value


# --- the conditional put ---


@on_each_way
async def test_a_put_that_was_done_but_whose_reply_was_lost_is_unknown_and_reading_tells(
    bench: Bench,
) -> None:
    bench.proxy.will(Line.REPLY_LOST)
    assert await bench.store.put_if_absent("k", b"mine") is PutResult.UNKNOWN
    assert await bench.store.get("k") == b"mine"
    assert await bench.store.put_if_absent("k", b"mine") is PutResult.LOST


@on_each_way
async def test_a_put_that_never_arrived_is_unknown_and_may_be_sent_again(bench: Bench) -> None:
    bench.proxy.will(Line.REQUEST_LOST)
    assert await bench.store.put_if_absent("k", b"mine") is PutResult.UNKNOWN
    with pytest.raises(NoSuchObject):
        await bench.store.get("k")
    assert await bench.store.put_if_absent("k", b"mine") is PutResult.WON


@on_each_way
@pytest.mark.parametrize("line", [Line.REPLY_LOST, Line.REQUEST_LOST])
async def test_nothing_below_sends_a_put_again_on_a_connection_that_breaks(bench: Bench, line: Line) -> None:
    """An HTTP client that does turns a win into a loss: the second request finds the first one's object."""
    await bench.store.put("warm", b"the connection is kept")
    bench.proxy.will(line)
    assert await bench.store.put_if_absent("k", b"mine") is PutResult.UNKNOWN
    assert [seen.method for seen in bench.proxy.seen] == ["PUT", "PUT"]


@on_each_way
@pytest.mark.parametrize("status", [500, 502, 503, 504, 403, 404, 429])
@pytest.mark.parametrize("after", [False, True])
async def test_every_other_answer_to_a_put_is_unknown(bench: Bench, status: int, after: bool) -> None:
    assert await bench.store.put_if_absent("first", b"allowed") is PutResult.WON
    bench.proxy.will(Say(status, "SlowDown" if status == 503 else "", after=after))
    assert await bench.store.put_if_absent("k", b"mine") is PutResult.UNKNOWN
    assert (await listed(bench.direct, "k") == ["k"]) is after


@on_each_way
async def test_why_a_put_has_no_answer_is_said_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """UNKNOWN carries no reason, so whoever reads the log gets it: when it begins and when it changes."""
    said = [Say(503, "SlowDown"), Say(503, "SlowDown"), Line.REPLY_LOST, Line.GOOD, Say(503, "SlowDown")]
    with caplog.at_level(logging.WARNING, "remote.store.s3_store"):
        bench.proxy.will(*said)
        for number in range(len(said)):
            await bench.store.put_if_absent(f"k/{number}", b"")
    lines = [record.getMessage() for record in caplog.records]
    assert [("SlowDown" in line, "is unknown" in line) for line in lines] == [
        (True, True),
        (False, True),
        (True, True),
    ]


async def test_a_conflict_is_tried_again_because_nothing_was_done(bench: Bench) -> None:
    bench.proxy.will(*[Say(409, "ConditionalRequestConflict")] * (CONFLICT_TRIES - 1))
    assert await bench.store.put_if_absent("k", b"mine") is PutResult.WON
    bench.proxy.will(Say(409, "ConditionalRequestConflict"))
    assert await bench.store.put_if_absent("k", b"mine") is PutResult.LOST
    bench.proxy.will(*[Say(409, "ConditionalRequestConflict")] * CONFLICT_TRIES)
    assert await bench.store.put_if_absent("other", b"mine") is PutResult.UNKNOWN


@pytest.mark.parametrize("bench", [True], indirect=True, ids=["lane"])
async def test_a_lane_leaves_a_conflict_to_who_asked(bench: Bench) -> None:
    """It may be a put of its own that is still under way: to wait here for its end would cost the time that
    the second put was to save."""
    bench.proxy.will(Say(409, "ConditionalRequestConflict"))
    assert await bench.store.put_if_absent("k", b"mine") is PutResult.UNKNOWN
    assert len(bench.proxy.seen) == 1
    assert await bench.store.put_if_absent("k", b"mine") is PutResult.WON


@on_each_way
async def test_large_bodies_arrive_whole(bench: Bench) -> None:
    for size in (1, 300_000, 5_000_000):
        body = random.Random(size).randbytes(size)
        assert await bench.store.put_if_absent(f"k/{size}", body) is PutResult.WON
        assert await bench.direct.get(f"k/{size}") == body


@pytest.mark.parametrize("bench", [True], indirect=True, ids=["lane"])
async def test_a_lane_keeps_the_connection_of_a_put_that_was_done(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    connect = RangeClient._connect

    async def counted(client: RangeClient) -> object:
        opened.append(client)
        return await connect(client)

    monkeypatch.setattr(RangeClient, "_connect", counted)
    for number in range(3):
        assert await bench.store.put_if_absent(f"k/{number}", b"mine") is PutResult.WON
        assert await bench.store.get_range(f"k/{number}", 1, 3) == b"in"
    assert len(opened) == 1
    assert await bench.store.put_if_absent("k/1", b"other") is PutResult.LOST
    assert await bench.store.put_if_absent("k/3", b"mine") is PutResult.WON
    assert len(opened) == 2, "what refused may not have read the whole put"


@on_each_way
async def test_a_put_that_is_given_up_may_have_been_done(bench: Bench) -> None:
    bench.proxy.will(Line.REPLY_NEVER)
    putting = asyncio.create_task(bench.store.put_if_absent("k", b"mine"))
    await bench.proxy.holding.wait()
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    assert await bench.store.put_if_absent("k", b"other") is PutResult.LOST


@on_each_way
async def test_a_put_that_arrives_after_it_was_given_up_changes_nothing(bench: Bench) -> None:
    bench.proxy.will(Line.LATE)
    assert await bench.store.put_if_absent("k", b"late") is PutResult.UNKNOWN
    with pytest.raises(NoSuchObject):
        await bench.store.get("k")
    assert await bench.store.put_if_absent("k", b"again") is PutResult.WON
    bench.proxy.delivers.set()
    (answer,) = await asyncio.gather(*bench.proxy.late)
    assert answer.startswith(b"HTTP/1.1 412 ")
    assert await bench.store.get("k") == b"again"


@pytest.mark.parametrize("seed", range(5))
async def test_rivals_on_bad_lines_are_told_the_truth(
    minio_server: MinioServer, bucket: str, seed: int
) -> None:
    """Whoever wins or loses is right about it, and a read is what was put, whole."""
    rng, prefix, slots = random.Random(seed), unique("rivals"), 15
    faults = [Line.REQUEST_LOST, Line.REPLY_LOST, Line.BODY_CUT, Say(503, "SlowDown"), Say(500, after=True)]
    async with AsyncExitStack() as stack:
        rivals = []
        for _ in range(3):
            proxy = await stack.enter_async_context(proxy_to(minio_server.port))
            proxy.will(*(rng.choice(faults) if rng.random() < 0.4 else Line.GOOD for _ in range(10 * slots)))
            rival = bare_s3(minio_server, minio_server.url(bucket, prefix, port=proxy.port))
            stack.push_async_callback(rival.close)
            rivals.append(harden(rival, stats=StoreStats(), rng=rng))
        told: set[PutResult] = set()
        for slot in range(slots):
            bodies = [b"%d of %d" % (rival, slot) for rival in range(3)]
            results = await asyncio.gather(
                *(rival.put_if_absent(f"k/{slot}", body) for rival, body in zip(rivals, bodies, strict=True))
            )
            found = await asyncio.gather(
                *(rival.get(f"k/{slot}") for rival in rivals), return_exceptions=True
            )
            read = {body for body in found if isinstance(body, bytes)}
            assert len(read) <= 1
            for owner in read:
                assert all(
                    result is PutResult.UNKNOWN or (result is PutResult.WON) == (body == owner)
                    for result, body in zip(results, bodies, strict=True)
                )
            told.update(results)
        assert told == set(PutResult)


# --- reading ---


@pytest.mark.parametrize("line", [Line.BODY_CUT, Line.BYTE_FLIPPED])
async def test_a_body_that_is_not_whole_or_not_right_is_not_returned(bench: Bench, line: Line) -> None:
    await bench.store.put("k", b"0123456789")
    bench.proxy.will(line)
    assert (await fault_of(bench.store)).fault is Fault.CORRUPT
    assert await bench.store.get("k") == b"0123456789"


@pytest.mark.parametrize("line", [Line.BODY_CUT, Line.RANGE_IGNORED, Line.RANGE_WRONG, Line.RANGE_SHORT])
async def test_a_range_that_is_not_the_one_asked_for_is_not_returned(bench: Bench, line: Line) -> None:
    await bench.store.put("k", b"0123456789")
    bench.proxy.will(line)
    with pytest.raises(StoreError) as caught:
        await bench.store.get_range("k", 2, 7)
    assert caught.value.fault is Fault.CORRUPT
    assert await bench.store.get_range("k", 2, 7) == b"23456"


async def test_a_404_that_is_not_the_stores_own_says_nothing_about_the_object(bench: Bench) -> None:
    await bench.store.put("k", b"x")
    bench.proxy.will(Say(404))
    with pytest.raises(StoreError):
        await bench.store.get("k")
    bench.proxy.will(Say(404))
    with pytest.raises(StoreError):
        await bench.store.delete("k")
    assert await bench.store.get("k") == b"x"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (Line.REQUEST_LOST, Fault.CONNECTION),
        (Line.REPLY_LOST, Fault.CONNECTION),
        (Say(500, "InternalError"), Fault.SERVER),
        (Say(503, "SlowDownRead"), Fault.THROTTLED),
        (Say(429), Fault.THROTTLED),
        (Say(400, "RequestTimeout"), Fault.TIMEOUT),
        (Say(409, "OperationAborted"), Fault.CONFLICT),
        (Say(403, "AccessDenied"), Fault.DENIED),
        (Say(501, "NotImplemented"), Fault.REFUSED),
    ],
)
async def test_a_fault_has_its_name_and_passes(bench: Bench, line: Line | Say, fault: Fault) -> None:
    await bench.store.put("k", b"x")
    assert await bench.store.get("k") == b"x"
    bench.proxy.will(line)
    error = await fault_of(bench.store)
    assert (error.fault, error.permanent) == (fault, False)
    assert "\n" not in str(error)
    assert await bench.store.get("k") == b"x"


@on_each_way
async def test_a_store_that_falls_silent_is_not_waited_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remote.store.s3_store.SILENCE_S", 0.2)
    bench.proxy.will(Line.REPLY_NEVER, Line.REPLY_NEVER)
    assert (await fault_of(bench.store)).fault is Fault.TIMEOUT
    assert await bench.store.put_if_absent("k", b"mine") is PutResult.UNKNOWN
    assert await bench.direct.get("k") == b"mine"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"<not xml", "unreadable listing"),
        (b"<List><IsTruncated>true</IsTruncated></List>", "no NextContinuationToken"),
    ],
)
async def test_a_list_that_is_cut_is_not_taken_for_the_whole(
    bench: Bench, body: bytes, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Say, "encode", lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )
    bench.proxy.will(Say(200))
    with pytest.raises(StoreError, match=says) as caught:
        await bench.store.list("")
    assert caught.value.fault is Fault.CORRUPT


async def test_a_list_of_several_pages_is_one(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remote.store.s3_store.LIST_PAGE_KEYS", 3)
    keys = [f"a/{n}" for n in range(8)]
    for key in keys:
        await bench.store.put(key, b"")
    assert await listed(bench.store, "a/") == keys
    assert await listed(bench.store, "a/", after="a/1") == keys[2:]
    assert sum("list-type" in seen.path for seen in bench.proxy.seen) == 5


async def test_a_list_starts_within_its_prefix_or_at_it(bench: Bench) -> None:
    """Told to start before the prefix, older releases of MinIO answer with nothing."""
    await bench.direct.put("p/1", b"")
    for after in ("", "a", "p", "p/", "p/0"):
        assert await listed(bench.store, "p/", after=after) == ["p/1"]
    assert ["start-after" in seen.path for seen in bench.proxy.seen] == [False, False, False, True, True]
    assert await listed(bench.store, "p/", after="q") == []


async def test_what_is_no_key_of_ours_is_not_listed(
    minio_server: MinioServer, bench: Bench, bucket: str
) -> None:
    """A folder marker and a name with a space, as other tools leave them."""
    await bench.store.put("meta/1", b"")
    prefix = bench.store.location.prefix
    for name in ("meta/", "meta/a b", "meta/ü", ".hidden"):
        put_foreign(minio_server, bucket, f"{prefix}{name}")
    assert await listed(bench.store) == ["meta/1"]


def put_foreign(server: MinioServer, bucket: str, key: str) -> None:
    import botocore.session

    client = botocore.session.get_session().create_client(
        "s3",
        endpoint_url=server.endpoint,
        region_name="us-east-1",
        aws_access_key_id=server.environ["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=server.environ["AWS_SECRET_ACCESS_KEY"],
    )
    client.put_object(Bucket=bucket, Key=key, Body=b"")
    client.close()


# --- what an operator must mend ---


async def test_a_bucket_that_is_not_there(minio_server: MinioServer) -> None:
    store = bare_s3(minio_server, minio_server.url("no-such-bucket"))
    try:
        for call in (store.list(""), store.get("k"), store.put_if_absent("k", b"")):
            with pytest.raises(StoreError, match="NoSuchBucket") as caught:
                await call
            assert caught.value.permanent
    finally:
        await store.close()


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "x"}, "InvalidAccessKeyId"),
        ({"AWS_ACCESS_KEY_ID": "tidewal-test", "AWS_SECRET_ACCESS_KEY": "x"}, "SignatureDoesNotMatch"),
    ],
)
async def test_keys_that_are_not_right(
    minio_server: MinioServer, bucket: str, environ: dict[str, str], says: str
) -> None:
    store = bare_s3(minio_server, minio_server.url(bucket), environ)
    try:
        for call in (store.list(""), store.get("k"), store.put_if_absent("k", b"")):
            with pytest.raises(StoreError, match=says) as caught:
                await call
            assert caught.value.permanent
            assert caught.value.fault is Fault.DENIED
    finally:
        await store.close()


@on_each_way
async def test_what_was_allowed_once_may_be_allowed_again(bench: Bench) -> None:
    """Keys are rotated and clocks are mended while a broker runs: it must not die of that."""
    bench.proxy.will(Say(403, "AccessDenied"))
    assert (await fault_of(bench.store)).permanent
    with pytest.raises(NoSuchObject):
        await bench.store.get("k")
    bench.proxy.will(Say(403, "AccessDenied"))
    assert not (await fault_of(bench.store)).permanent


@on_each_way
async def test_an_operation_that_was_never_allowed_is_not_asked_for_ever(bench: Bench) -> None:
    assert await listed(bench.store) == []
    bench.proxy.will(Say(403, "AccessDenied"), Say(501, "NotImplemented"))
    for says in ("AccessDenied", "NotImplemented"):
        with pytest.raises(StoreError, match=says) as caught:
            await bench.store.put_if_absent("k", b"")
        assert caught.value.permanent


async def test_the_region_of_a_bucket_elsewhere_is_named(bench: Bench) -> None:
    bench.proxy.will(Say(301, "PermanentRedirect", headers="x-amz-bucket-region: eu-north-1\r\n"))
    assert "the bucket is in region eu-north-1, not us-east-1" in str(await fault_of(bench.store))


async def test_nobody_at_the_endpoint_is_no_reason_to_give_up(minio_server: MinioServer) -> None:
    store = bare_s3(minio_server, minio_server.url("bucket", port=1))
    try:
        error = await fault_of(store)
        assert (error.fault, error.permanent) == (Fault.CONNECTION, False)
        assert "127.0.0.1:1" in str(error)
        assert await store.put_if_absent("k", b"") is PutResult.UNKNOWN
    finally:
        await store.close()


@on_each_way
@pytest.mark.parametrize("hours", [-3, 3])
async def test_a_clock_that_is_wrong_is_corrected_by_the_stores(
    minio_server: MinioServer, bucket: str, hours: int, bench: Bench
) -> None:
    bench.store._now_ms = lambda: wall_ms() + hours * 3_600_000
    assert await bench.store.put_if_absent("k", b"mine") is PutResult.WON
    assert await bench.store.get("k") == b"mine"
    assert [seen.method for seen in bench.proxy.seen] == ["PUT", "PUT", "GET"]


# --- certificates ---


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Key and certificate in one file, of an authority nobody knows."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl to make a certificate with")
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    command = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=127.0.0.1"
    command += f" -addext subjectAltName=IP:127.0.0.1 -keyout {path} -out {path}.cert"
    subprocess.run([openssl, *command.split()], check=True, capture_output=True, timeout=30)
    path.write_text(path.read_text() + Path(f"{path}.cert").read_text())
    return path


async def test_an_endpoint_is_trusted_by_the_bundle_the_environment_names(
    minio_server: MinioServer, bucket: str, certificate: Path
) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)
    bundles = ("", "/nowhere/ca.pem", f"{certificate}.cert")
    async with proxy_to(minio_server.port, tls=tls) as proxy, AsyncExitStack() as stack:
        url = minio_server.url(bucket, unique("tls"), port=proxy.port).replace("http://", "https://")
        strange, nowhere, known = (
            bare_s3(minio_server, url, {**minio_server.environ, "AWS_CA_BUNDLE": bundle})
            for bundle in bundles
        )
        for store in (strange, nowhere, known):
            stack.push_async_callback(store.close)
        for store, says in (
            (strange, "certificate is not trusted"),
            (nowhere, "AWS_CA_BUNDLE /nowhere/ca.pem"),
        ):
            error = await fault_of(store)
            assert says in str(error)
            assert error.permanent
        assert await known.put_if_absent("k", bytes(3 << 20)) is PutResult.WON
        assert await known.get("k") == bytes(3 << 20)


# --- keys ---


def denied(what: str, fault: Fault, *, permanent: bool = False) -> StoreError:
    return StoreError(what, fault=fault, permanent=permanent)


@pytest.fixture
def no_machine_credentials(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere/config")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere/credentials")
    return monkeypatch


async def test_keys_from_the_usual_variables() -> None:
    environ = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t"}
    assert await KeySource(environ).current(denied) == Keys(access_key="a", secret_key="s", token="t")


async def test_keys_from_a_profile(
    no_machine_credentials: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("aws") / "credentials"
    path.write_text("[default]\naws_access_key_id = a\naws_secret_access_key = s\n")
    no_machine_credentials.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    source = KeySource({})
    for _ in range(2):
        assert await source.current(denied) == Keys(access_key="a", secret_key="s")


async def test_no_keys_at_all(no_machine_credentials: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match="set AWS_ACCESS_KEY_ID") as caught:
        await KeySource({}).current(denied)
    assert caught.value.permanent


async def test_a_profile_that_is_not_there(no_machine_credentials: pytest.MonkeyPatch) -> None:
    no_machine_credentials.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(StoreError, match="nobody") as caught:
        await KeySource({}).current(denied)
    assert caught.value.permanent


@pytest.mark.parametrize(
    "refusal",
    [
        ClientError({"Error": {"Code": "Throttling", "Message": "Rate exceeded"}}, "AssumeRole"),
        RuntimeError("the refreshed credentials are still expired"),
        TimeoutError("no answer"),
    ],
    ids=["refused", "expired", "silent"],
)
async def test_keys_that_cannot_be_renewed_now_are_an_answer_that_is_missing(
    no_machine_credentials: pytest.MonkeyPatch, refusal: Exception
) -> None:
    """A renewal ends with whatever its provider raises."""

    class Role:
        renews = True

        async def get_frozen_credentials(self) -> SimpleNamespace:
            if not self.renews:
                raise refusal
            return SimpleNamespace(access_key="a", secret_key="s", token="t")

    role = Role()

    async def chain(session: object) -> Role:
        return role

    no_machine_credentials.setattr("aiobotocore.session.AioSession.get_credentials", chain)
    source = KeySource({})
    keys = await source.current(denied)
    role.renews = False
    with pytest.raises(StoreError) as caught:
        await source.current(denied)
    assert not caught.value.permanent
    role.renews = True
    assert await source.current(denied) == keys


# --- uploads in parts ---

PART_BYTES = 5 << 20
"""S3 refuses an object with a smaller part before its last."""
WHOLE = random.Random(1).randbytes(2 * PART_BYTES + 100)
REQUESTS = 5
"""An upload of WHOLE is one to begin, three parts, one to complete."""


async def read(start: int, end: int) -> bytes:
    return WHOLE[start:end]


async def put_whole(store: ObjectStore) -> None:
    await put_from(store, "k", len(WHOLE), read, part_bytes=PART_BYTES)


async def begun(store: S3Store) -> tuple[str, list[tuple[int, str]]]:
    """An upload of one part, to be completed or not."""
    upload = await store.begin_upload("k")
    return upload, [(1, await store.put_part("k", upload, 1, b"0123456789", start=0))]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remote.store.upload.PAUSE_FIRST_S", 0.01)


@pytest.mark.parametrize(
    "line",
    [
        Line.REQUEST_LOST,
        Line.REPLY_LOST,
        Line.BODY_CUT,
        Say(503, "SlowDown"),
        Say(500, "InternalError", after=True),
        Say(502, after=True),
        Say(200, "InternalError"),
        Say(200, "InternalError", after=True),
    ],
    ids=str,
)
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("at", range(REQUESTS))
async def test_an_upload_gets_over_what_happens_to_each_of_its_requests(
    bench: Bench, at: int, line: Line | Say
) -> None:
    bench.proxy.will(*[Line.GOOD] * at, line)
    await put_whole(harden(bench.store, stats=StoreStats(), rng=random.Random(1)))
    assert await bench.direct.get("k") == WHOLE
    assert await bench.direct.list_uploads("k") == []


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("seed", range(5))
async def test_uploads_on_a_bad_line_are_whole_and_leave_nothing(bench: Bench, seed: int) -> None:
    rng = random.Random(seed)
    faults = [Line.REQUEST_LOST, Line.REPLY_LOST, Line.BODY_CUT, Say(503, "SlowDown"), Say(500, after=True)]
    bench.proxy.will(*(rng.choice(faults) if rng.random() < 0.3 else Line.GOOD for _ in range(30)))
    await put_whole(harden(bench.store, stats=StoreStats(), rng=rng))
    assert await bench.direct.get("k") == WHOLE
    for left in await bench.direct.list_uploads("k"):  # what said that nothing was left may have been lost
        await bench.direct.abort_upload(left.key, left.upload)


@pytest.mark.parametrize("line", [Say(404, "NoSuchUpload", after=True), Say(200, "NoSuchUpload", after=True)])
async def test_an_upload_that_is_gone_because_it_was_completed_is_complete(bench: Bench, line: Say) -> None:
    upload, parts = await begun(bench.store)
    bench.proxy.will(line)
    await bench.store.complete_upload("k", upload, parts, 10)
    assert await bench.direct.get("k") == b"0123456789"


@pytest.mark.parametrize("there", [b"", b"012345678"])
async def test_an_upload_that_is_gone_and_no_object_is_not_complete(bench: Bench, there: bytes) -> None:
    upload, parts = await begun(bench.store)
    if there:
        await bench.direct.put("k", there)
    bench.proxy.will(Say(404, "NoSuchUpload"))
    with pytest.raises(NoSuchUpload):
        await bench.store.complete_upload("k", upload, parts, 10)


async def test_a_completion_that_fails_after_it_began_well_is_no_completion(bench: Bench) -> None:
    """The store answers 200 before it has put the parts together."""
    upload, parts = await begun(bench.store)
    bench.proxy.will(Say(200, "InternalError"))
    with pytest.raises(StoreError, match="InternalError") as caught:
        await bench.store.complete_upload("k", upload, parts, 10)
    assert not caught.value.permanent
    assert await listed(bench.direct) == []
    await bench.store.complete_upload("k", upload, parts, 10)
    assert await bench.direct.get("k") == b"0123456789"


@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("code", ["InvalidPart", "EntityTooSmall"])
async def test_parts_that_the_store_does_not_take_are_not_offered_again(
    bench: Bench, status: int, code: str
) -> None:
    bench.proxy.will(*[Line.GOOD] * (REQUESTS - 1), Say(status, code))
    with pytest.raises(StoreError, match=code) as caught:
        await put_whole(harden(bench.store, stats=StoreStats(), rng=random.Random(1)))
    assert caught.value.permanent
    assert await bench.direct.list_uploads("k") == []
    assert await listed(bench.direct) == []


async def test_a_part_that_was_changed_on_its_way_is_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = await bench.store.begin_upload("k")
    monkeypatch.setattr("remote.store.s3_store._checksum_of", lambda data: "AAAAAA==")
    with pytest.raises(StoreError):
        await bench.store.put_part("k", upload, 1, b"0123456789", start=0)


@pytest.mark.parametrize("at", range(REQUESTS))
async def test_a_cancelled_upload_leaves_nothing_in_the_bucket(bench: Bench, at: int) -> None:
    bench.proxy.will(*[Line.GOOD] * at, *[Line.REPLY_NEVER] * (2 if 0 < at < REQUESTS - 1 else 1))
    job = asyncio.create_task(put_whole(harden(bench.store, stats=StoreStats(), rng=random.Random(1))))
    await bench.proxy.holding.wait()
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert await bench.direct.list_uploads("k") == []


@pytest.mark.usefixtures("quick")
async def test_what_is_left_of_an_upload_is_listed_under_its_key_and_removed_with_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remote.store.upload.PATIENCE_S", 0.1)
    bench.proxy.will(Line.GOOD, *[Say(503, "SlowDown")] * 200)
    with pytest.raises(StoreError, match="SlowDown"):
        await put_whole(bench.store)
    (left,) = await bench.direct.list_uploads("k")
    assert left.key == "k"
    assert abs(left.begun_ms - wall_ms()) < 60_000
    await remove(bench.direct, "k")
    assert await bench.direct.list_uploads("k") == []


@pytest.mark.usefixtures("quick")
async def test_a_server_that_closes_what_is_idle_between_parts_costs_no_upload(bench: Bench) -> None:
    """Also when it closes just as the next part is sent."""
    bench.proxy.will(*[Line.CLOSED] * 50)
    stats = StoreStats()
    await put_whole(harden(bench.store, stats=stats, rng=random.Random(1)))
    assert await bench.direct.get("k") == WHOLE
    assert await bench.direct.list_uploads("k") == []


async def test_an_upload_goes_on_when_the_store_was_killed_and_is_back(minio: Path, tmp_path: Path) -> None:
    in_a_thread = partial(asyncio.get_running_loop().run_in_executor, None)
    server = await in_a_thread(MinioServer, minio, tmp_path)
    await in_a_thread(server.make_bucket, "tidewal")
    servers, starting = [server], []

    async def read_and_kill(start: int, end: int) -> bytes:
        if start == PART_BYTES and len(servers) == 1 and not starting:
            servers.pop().close()
            starting.append(in_a_thread(partial(MinioServer, minio, tmp_path, port=server.port)))
        return WHOLE[start:end]

    store = harden(bare_s3(server, server.url("tidewal")), stats=StoreStats(), rng=random.Random(1))
    try:
        await put_from(store, "k", len(WHOLE), read_and_kill, part_bytes=PART_BYTES)
        assert await store.get("k") == WHOLE
        assert await store.list_uploads("k") == []
    finally:
        await store.close()
        servers += await asyncio.gather(*starting)
        for running in servers:
            running.close()


async def test_a_list_of_uploads_of_several_pages_is_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remote.store.s3_store.LIST_PAGE_KEYS", 2)
    uploads = [await bench.store.begin_upload("k") for _ in range(5)]
    assert sorted(left.upload for left in await bench.store.list_uploads("k")) == sorted(uploads)
    await remove(bench.store, "k")
    assert await bench.store.list_uploads("k") == []


@pytest.mark.parametrize(
    "body", [b"<not xml", b"<L><Upload><Key>k</Key></Upload></L>", b"<InitiateMultipart/>"]
)
async def test_what_a_store_says_unreadably_is_no_answer(
    bench: Bench, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefixed = body.replace(b"<Key>", b"<Key>" + bench.store.location.prefix.encode())
    monkeypatch.setattr(
        Say, "encode", lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(prefixed) + prefixed
    )
    if b"Initiate" not in body:
        bench.proxy.will(Say(200))
        with pytest.raises(StoreError, match="unreadable") as caught:
            await bench.store.list_uploads("k")
        assert caught.value.fault is Fault.CORRUPT
    bench.proxy.will(Say(200))
    with pytest.raises(StoreError, match="unreadable"):
        await bench.store.begin_upload("k")


async def test_a_closed_store_is_not_opened_again(bench: Bench) -> None:
    await bench.store.close()
    with pytest.raises(StoreError, match="closed"):
        await bench.store.get("k")
