"""`tidewal store create` on a MinIO that has the bucket, has it not, or will not have it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from tests.compat.peers import unique
from tools import cli
from tools.versus.minio import MinioServer


@pytest.fixture
def keys(minio_server: MinioServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in minio_server.environ.items():
        monkeypatch.setenv(name, value)


@pytest.mark.minio
@pytest.mark.usefixtures("keys")
def test_a_bucket_is_made_once_and_kept(
    minio_server: MinioServer, capsys: pytest.CaptureFixture[str]
) -> None:
    name = unique("made")
    url = minio_server.url(name, "prefix")
    assert cli.run(["store", "probe", url]) == 1
    capsys.readouterr()
    for _ in range(2):
        assert cli.run(["store", "create", url]) == 0
        assert capsys.readouterr().out == f"bucket {name} is there\n"
    assert cli.run(["store", "probe", url]) == 0


class Accepts(BaseHTTPRequestHandler):
    """Says yes to every PUT, and keeps its body; MinIO makes a bucket whatever region is named."""

    bodies: ClassVar[list[bytes]] = []

    def do_PUT(self) -> None:
        self.bodies.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *arguments: object) -> None: ...


@pytest.mark.parametrize("region", ["us-east-1", "eu-west-1"])
def test_a_region_is_named_where_it_is_not_the_default(region: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    Accepts.bodies.clear()
    with HTTPServer(("127.0.0.1", 0), Accepts) as server, ThreadPoolExecutor(1) as pool:
        answered = pool.submit(server.handle_request)
        url = f"s3://made/?endpoint=http://127.0.0.1:{server.server_port}&region={region}"
        assert cli.run(["store", "create", url]) == 0
        answered.result(timeout=10)
    (body,) = Accepts.bodies
    assert (b"<LocationConstraint>eu-west-1</LocationConstraint>" in body) is (region == "eu-west-1")
    assert (body == b"") is (region == "us-east-1")


@pytest.mark.minio
def test_a_refusal_is_one_line(
    minio_server: MinioServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "knows-this-one")
    assert cli.run(["store", "create", minio_server.url(unique("refused"))]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "put was answered 403" in line


def test_a_directory_needs_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["store", "create", f"file://{tmp_path}/store"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "makes its directory by itself" in line
    assert not (tmp_path / "store").exists()
