"""`tidewal store probe` on stores that are fit, that are not, and that are not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from remote.store.object_store import ObjectStore, PutResult
from remote.store.wrapper import StoreWrapper
from tests.compat.peers import unique
from tools import cli, store_probe
from tools.versus.minio import MinioServer


def test_a_directory_is_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    url = f"file://{tmp_path}/store"
    assert cli.run(["store", "probe", url, "--json", str(report)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == ["CHECK", "RESULT", "WHY"]
    assert printed[-1] == "fit for a cluster"
    found = json.loads(report.read_text())
    assert (found["url"], found["fit"]) == (url, True)
    assert {check["complaint"] for check in found["checks"]} == {None}
    assert {"put", "put_if_absent", "get", "get_range", "list", "delete"} < {
        latency["operation"] for latency in found["latencies"]
    }


def test_json_may_be_all_that_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["store", "probe", f"file://{tmp_path}/store", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["fit"] is True


class IgnoresConditions(StoreWrapper):
    async def put_if_absent(self, key: str, data: bytes) -> PutResult:
        await self.inner.put(key, data)
        return PutResult.WON


def test_a_store_that_ignores_conditions_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store_at = store_probe.store_at

    def cheating(*arguments: object) -> ObjectStore:
        return IgnoresConditions(store_at(*arguments))  # type: ignore[arg-type]

    monkeypatch.setattr(store_probe, "store_at", cheating)
    assert cli.run(["store", "probe", f"file://{tmp_path}/store"]) == 1
    captured = capsys.readouterr()
    assert "broken" in captured.out
    assert "fit for a cluster" not in captured.out
    (line,) = captured.err.splitlines()
    assert "must not hold a cluster: one winner for each key: 20 of 20 keys" in line


@pytest.mark.minio
def test_a_bucket_is_fit(
    minio_server: MinioServer,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in minio_server.environ.items():
        monkeypatch.setenv(name, value)
    assert cli.run(["store", "probe", minio_server.url(bucket, unique("probe"))]) == 0
    assert "fit for a cluster" in capsys.readouterr().out


@pytest.mark.minio
@pytest.mark.parametrize(
    ("bucket_name", "secret", "says"),
    [("no-such-bucket", None, "NoSuchBucket"), ("ready", "wrong", "SignatureDoesNotMatch")],
)
def test_what_an_operator_must_mend_is_one_line(
    minio_server: MinioServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    bucket_name: str,
    secret: str | None,
    says: str,
) -> None:
    environ = minio_server.environ
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", environ["AWS_ACCESS_KEY_ID"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret or environ["AWS_SECRET_ACCESS_KEY"])
    assert cli.run(["store", "probe", minio_server.url(bucket_name)]) == 1
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert says in line
    assert captured.out == ""


def test_nobody_at_the_endpoint_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    assert cli.run(["store", "probe", "s3://bucket?endpoint=http://127.0.0.1:1"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "http://127.0.0.1:1: cannot connect" in line
