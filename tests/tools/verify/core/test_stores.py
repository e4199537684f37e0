"""One contract for all sources; what is an error of the place and what is not; that nothing is written."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import pickle
import random
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from botocore.session import get_session
from hypothesis import given
from hypothesis import strategies as st

from remote.store.location import BadStoreUrl, S3Location, parse_store_url
from tests.compat.peers import unique
from tools.verify.core import stores
from tools.verify.core.stores import (
    BadSourceUrl,
    FileSource,
    Gone,
    Listed,
    S3Source,
    Source,
    SourceFailed,
    TooLarge,
    open_source,
)
from tools.versus.minio import KEYS, MinioServer

Put = Callable[[str, bytes], None]
READ_ONLY = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Allow", "Action": ["s3:GetObject", "s3:ListBucket"], "Resource": ["arn:aws:s3:::*"]}
    ],
}


def client_of(server: MinioServer, service: str = "s3") -> Any:
    return get_session().create_client(
        service,
        endpoint_url=server.endpoint,
        region_name="us-east-1",
        aws_access_key_id=KEYS.access_key,
        aws_secret_access_key=KEYS.secret_key,
    )


@pytest.fixture
def no_old_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client is kept with the credentials that it found; nothing is tried for long."""
    monkeypatch.setattr(stores, "_clients", {})
    monkeypatch.setattr(stores, "ATTEMPTS_MAX", 2)


@pytest.fixture
def reader(minio_server: MinioServer, monkeypatch: pytest.MonkeyPatch, no_old_clients: None) -> None:
    """Credentials in the environment that may read and nothing else."""
    told = client_of(minio_server, "sts").assume_role(
        RoleArn="arn:x:ignored:by:minio:yes", RoleSessionName="reader", Policy=json.dumps(READ_ONLY)
    )["Credentials"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", told["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", told["SecretAccessKey"])
    monkeypatch.setenv("AWS_SESSION_TOKEN", told["SessionToken"])


@pytest.fixture(params=["file", "directory", pytest.param("s3", marks=pytest.mark.minio)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Source, Put]:
    if request.param == "s3":
        request.getfixturevalue("reader")
        server: MinioServer = request.getfixturevalue("minio_server")
        prefix, client = unique("source"), client_of(server)
        bucket = request.getfixturevalue("bucket")
        return open_source(server.url(bucket, prefix)), lambda key, data: client.put_object(
            Bucket=bucket, Key=f"{prefix}/{key}", Body=data
        )

    def put(key: str, data: bytes) -> None:
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(data)

    return open_source(tmp_path.as_uri() if request.param == "file" else str(tmp_path)), put


# --- what they all do ---------------------------------------------------------------------------------------


def test_what_lies_there_is_listed_in_order_with_size_and_age(place: tuple[Source, Put]) -> None:
    source, put = place
    keys = ["a-b", "a/b", "a/b.c", "a/c/d", "a0", "ab/c", "b"]
    for key in reversed(keys):
        put(key, key.encode())
    found = list(source.list())
    assert [(row.key, row.size) for row in found] == [(key, len(key)) for key in keys]
    assert max(row.modified_ms for row in found) - min(row.modified_ms for row in found) < 60_000
    assert all(row.modified_ms > 1_700_000_000_000 for row in found)
    for prefix in ("a", "a/", "a/b", "a/c/", "a/c/d", "b", "c", "a/d/", "b/"):
        assert [row.key for row in source.list(prefix)] == [key for key in keys if key.startswith(prefix)]


def test_ranges_are_cut_at_the_end(place: tuple[Source, Put]) -> None:
    source, put = place
    put("a/b", b"0123456789")
    ranges = {(0, 4): b"0123", (4, 4): b"4567", (8, 4): b"89", (10, 4): b"", (99, 1): b"", (3, 0): b""}
    assert {one: source.read("a/b", *one) for one in ranges} == ranges
    assert source.read_all("a/b", 10) == b"0123456789"
    assert source.counts.received == 20
    assert source.counts.requests >= 6


def test_an_empty_object_is_an_object(place: tuple[Source, Put]) -> None:
    source, put = place
    put("e", b"")
    assert [(row.key, row.size) for row in source.list()] == [("e", 0)]
    assert (source.read("e", 0, 8), source.read_all("e", 0)) == (b"", b"")


def test_what_is_not_there_is_gone(place: tuple[Source, Put]) -> None:
    source, put = place
    put("a/b", b"x")
    for key in ("a", "c", "a/b/c"):
        for read in (lambda key=key: source.read(key, 0, 4), lambda key=key: source.read_all(key, 4)):
            with pytest.raises(Gone):
                read()


def test_what_is_too_large_is_not_read(place: tuple[Source, Put]) -> None:
    source, put = place
    put("a", b"x" * 11)
    with pytest.raises(TooLarge, match="11 bytes, more than 10"):
        source.read_all("a", 10)
    assert source.counts.received == 0


def read_in_another_process(source: Source) -> tuple[bytes, int]:
    return source.read("a", 0, 4), source.counts.requests


def test_a_source_goes_to_other_processes(place: tuple[Source, Put]) -> None:
    source, put = place
    put("a", b"1234")
    assert source.read("a", 0, 1) == b"1"
    assert pickle.loads(pickle.dumps(source)) == source
    assert b"secret" not in pickle.dumps(source)
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            data, requests = pool.apply(read_in_another_process, (source,))
        assert data == b"1234"
        assert requests == 1


def test_no_source_has_a_way_to_write() -> None:
    for kind in (FileSource, S3Source):
        offered = {name for name in dir(kind) if not name.startswith("_")}
        assert {"list", "read", "read_all", "counts"} <= offered
        assert not [
            name for name in offered if any(word in name for word in ("put", "write", "delete", "create"))
        ]


# --- files --------------------------------------------------------------------------------------------------


def test_only_what_is_open_for_reading_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"1")
    flags: list[int] = []
    opening = os.open

    def noted(path: Any, wanted: int, *more: Any, **named: Any) -> int:
        flags.append(wanted)
        return opening(path, wanted, *more, **named)

    monkeypatch.setattr(os, "open", noted)
    source = FileSource(str(tmp_path))
    assert (source.read("a", 0, 1), source.read_all("a", 1)) == (b"1", b"1")
    assert len(flags) == 2
    assert not any(one & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC) for one in flags)


def test_names_with_a_dot_belong_to_a_store_and_count_in_a_directory(tmp_path: Path) -> None:
    for name in (".tmp/1", ".lock", "meta/.x", "meta/1", ".topic-0/0.log"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert [row.key for row in open_source(tmp_path.as_uri()).list()] == ["meta/1"]
    assert [row.key for row in open_source(str(tmp_path)).list()] == [
        ".lock", ".tmp/1", ".topic-0/0.log", "meta/.x", "meta/1",
    ]  # fmt: skip


def test_a_store_that_is_not_mounted_is_an_error_and_not_a_loss(tmp_path: Path) -> None:
    gone = FileSource(str(tmp_path / "gone"))
    for call in (lambda: list(gone.list()), lambda: gone.read("a", 0, 1), lambda: list(gone.list("meta/"))):
        with pytest.raises(SourceFailed, match="gone: "):
            call()
    with pytest.raises(SourceFailed, match="is it mounted"):
        list(FileSource(str(tmp_path)).list())
    assert list(FileSource(str(tmp_path), is_store=False).list()) == []


def test_a_disk_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"1")

    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pread", fail)
    with pytest.raises(SourceFailed, match="a: Input/output error"):
        FileSource(str(tmp_path)).read("a", 0, 1)


def test_what_is_no_file_is_neither_listed_nor_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "folder").mkdir()
    (tmp_path / "a").write_bytes(b"")
    source = FileSource(str(tmp_path))
    assert [row.key for row in source.list()] == ["a"]
    with pytest.raises(SourceFailed):
        source.read("pipe", 0, 1)
    with pytest.raises(Gone):
        source.read("folder", 0, 1)


def test_a_link_that_leads_back_ends(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(SourceFailed, match="folders in folders"):
        list(FileSource(str(tmp_path)).list())


def test_a_name_that_is_not_unicode_is_listed_so_that_it_can_be_shown(tmp_path: Path) -> None:
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff"))).write_bytes(b"")
    (row,) = FileSource(str(tmp_path)).list()
    assert row[:2] == Listed("a\\xff", 0, 0)[:2]


@given(
    st.lists(st.sampled_from(["..", ".", "", "a", "\0", "/etc/passwd"]), min_size=1, max_size=4).map("/".join)
)
def test_no_key_leads_out_of_the_directory(key: str) -> None:
    if key not in ("a", "a/a", "a/a/a", "a/a/a/a"):
        with pytest.raises(Gone):
            FileSource("/").read(key, 0, 1)


# --- S3 -----------------------------------------------------------------------------------------------------


@pytest.mark.minio
def test_what_only_reads_may_not_write(reader: None, minio_server: MinioServer, bucket: str) -> None:
    """The credentials of these tests are those that `tidewal verify` is to be given."""
    source = open_source(minio_server.url(bucket))
    assert isinstance(source, S3Source)
    with pytest.raises(Exception, match="AccessDenied"):
        source._client().put_object(Bucket=bucket, Key="x", Body=b"")


@pytest.mark.minio
def test_a_listing_goes_on_over_pages(
    reader: None, minio_server: MinioServer, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "PAGE_KEYS", 7)
    prefix, client = unique("pages"), client_of(minio_server)
    keys = [f"k/{number:05d}" for number in range(16)]
    for key in keys:
        client.put_object(Bucket=bucket, Key=f"{prefix}/{key}", Body=b"")
    source = open_source(minio_server.url(bucket, prefix))
    assert [row.key for row in source.list("k/")] == keys
    assert source.counts.requests == 3


@pytest.mark.minio
def test_what_the_store_does_not_say_is_an_error(
    reader: None, minio_server: MinioServer, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = open_source(minio_server.url("no-such-bucket"))
    for call in (
        lambda: list(absent.list()),
        lambda: absent.read("a", 0, 1),
        lambda: absent.read_all("a", 1),
    ):
        with pytest.raises(SourceFailed, match="NoSuchBucket"):
            call()
    monkeypatch.setattr(stores, "_clients", {})
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    with pytest.raises(SourceFailed, match="SignatureDoesNotMatch"):
        open_source(minio_server.url(bucket)).read("a", 0, 1)


def test_without_credentials_it_says_so(monkeypatch: pytest.MonkeyPatch, no_old_clients: None) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    with pytest.raises(SourceFailed, match="credentials"):
        open_source("s3://abc/?endpoint=http://127.0.0.1:9").read("a", 0, 1)


class Scripted(BaseHTTPRequestHandler):
    """Answers each request with the next of the server's replies: (status, told length, body)."""

    def do_GET(self) -> None:
        status, length, body = self.server.replies.pop(0)  # type: ignore[attr-defined]
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, no_old_clients: None) -> Iterator[tuple[Source, list[Any]]]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    with ThreadingHTTPServer(("127.0.0.1", 0), Scripted) as server:
        server.replies = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield open_source(f"s3://abc/?endpoint=http://127.0.0.1:{server.server_port}"), server.replies  # type: ignore[attr-defined]
        server.shutdown()
        thread.join()


def test_a_body_that_breaks_off_is_asked_for_again(scripted: tuple[Source, list[Any]]) -> None:
    source, replies = scripted
    replies += [(206, 4, b"12"), (206, 4, b"1234")]
    assert source.read("a", 0, 4) == b"1234"
    replies += [(200, 4, b"12")] * 2
    with pytest.raises(SourceFailed):
        source.read_all("a", 4)
    assert replies == []


def test_a_server_error_is_tried_again_and_then_an_error(scripted: tuple[Source, list[Any]]) -> None:
    source, replies = scripted
    replies += [(503, 0, b""), (206, 4, b"1234")]
    assert source.read("a", 0, 4) == b"1234"
    replies += [(500, 0, b"")] * 2
    with pytest.raises(SourceFailed):
        source.read("a", 0, 4)


def test_a_store_without_ranges_does_not_fill_the_memory(scripted: tuple[Source, list[Any]]) -> None:
    source, replies = scripted
    replies.append((200, 1 << 40, b"x"))
    with pytest.raises(SourceFailed, match="no ranges"):
        source.read("a", 0, 4)


def test_nobody_listens(no_old_clients: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    with pytest.raises(SourceFailed, match="connect"):
        open_source("s3://abc/?endpoint=http://127.0.0.1:9").read("a", 0, 1)


# --- URLs ---------------------------------------------------------------------------------------------------

URLS = [
    "s3://abc", "s3://abc/", "s3://abc/x/y/", "s3://abc/x?region=eu-central-1", "s3://a.b.c/x",
    "s3://abc/x?endpoint=http://127.0.0.1:9000&region=x", "s3://abc/%20", "s3://abc/..", "s3://abc?a=b",
    "s3://abc#f", "s3://k:s@abc/", "s3://AB", "s3://", "http://x", "", "file://host/x", "file://", "file:///x",
    "s3://abc?endpoint=ftp://x", "s3://abc?endpoint=http://x/y", "s3://abc?region=-", "s3://abc?region",
    "s3://[abc", "s3://abc?endpoint=https://[::1]:9000",
]  # fmt: skip
ENVIRONS: list[dict[str, str]] = [
    {},
    {"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "x"},
    {"AWS_DEFAULT_REGION": "us-west-2", "AWS_ENDPOINT_URL": "http://h:1"},
    {"AWS_ENDPOINT_URL_S3": "https://h", "AWS_ENDPOINT_URL": "http://h:1"},
    {"AWS_ENDPOINT_URL": "nonsense"},
]


@pytest.mark.parametrize("environ", ENVIRONS)
@pytest.mark.parametrize("url", URLS)
def test_a_url_names_the_place_that_it_names_to_a_broker(url: str, environ: dict[str, str]) -> None:
    try:
        location = parse_store_url(url, environ)
    except BadStoreUrl:
        with pytest.raises(BadSourceUrl) as refused:
            open_source(url, environ)
        assert "\n" not in str(refused.value)
        assert "k:s" not in str(refused.value)
        return
    source = open_source(url, environ)
    if isinstance(location, S3Location):
        assert isinstance(source, S3Source)
        assert (source.bucket, source.prefix, source.region) == (
            location.bucket,
            location.prefix,
            location.region,
        )
        host = f"s3.{source.region}.amazonaws.com"
        if location.in_host:
            assert location.host == f"abc.{host}"
        assert (source.endpoint or f"https://{host}") == f"{location.scheme}://{location.host}".replace(
            "//abc.", "//"
        )
    else:
        assert source == FileSource(location.path)


def test_a_path_is_a_data_directory() -> None:
    assert open_source("build/data") == FileSource("build/data", is_store=False)
    with pytest.raises(BadSourceUrl):
        open_source("ftp://x")


@pytest.mark.parametrize("may_map", [False, True])
def test_a_piece_is_what_a_read_gives_whether_it_is_copied_or_mapped(
    may_map: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "_may_map", may_map)
    monkeypatch.setattr(stores, "MAP_BYTES", 1)
    data = random.Random(1).randbytes(20_000)
    (tmp_path / "a").write_bytes(data)
    (tmp_path / "empty").touch()
    for source in (FileSource(str(tmp_path)), FileSource(str(tmp_path), is_store=False)):
        for start, size in ((0, 20_000), (0, 5), (4096, 4096), (4097, 9000), (15_000, 90_000), (20_000, 1)):
            assert source.read_piece("a", start, size) == data[start : start + size], (start, size)
        assert source.read_piece("a", 30_000, 10) == source.read_piece("empty", 0, 10) == b""
        assert source.counts.received == 20_000 + 5 + 4096 + 9000 + 5000
        with pytest.raises(Gone):
            source.read_piece("b", 0, 10)
