"""`tidewal verify` as it is typed: its exit codes, what a wrong line ends with, and that it only reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.exceptions import ClientError

from tests.processes import BrokerProcess
from tools import cli
from tools.cli import run
from tools.verify import asked, command, verification
from tools.verify.core import stores
from tools.verify.core.outcome import Options, Planned, PlannedPart
from tools.verify.manifest.outcomes import Outcome
from tools.verify.manifest.writer import ManifestWriter
from tools.versus.minio import KEYS, MinioServer

WRONG = [
    ("", "verify needs --store or --data: there is nothing to read"),
    ("--store nonsense", "--store nonsense: give file:///DIR or s3://BUCKET/PREFIX?endpoint=URL"),
    ("--store http://x/y", "--store http://x/y: give file:///DIR"),
    ("--store s3://B", "--store s3://B: "),
    ("--data {tmp}/none", "--data {tmp}/none: no such directory"),
    ("--data {tmp} --data {tmp}/../{name}", "--data {tmp}/../{name}: named twice"),
    ("--data {tmp} --manifest {tmp}/none", "--manifest {tmp}/none: no such directory"),
    ("--data {tmp} --bootstrap nowhere", "--bootstrap nowhere: not HOST:PORT"),
    ("--data {tmp} --sample 0", "--sample 0: not above 0 and at most 1"),
    ("--data {tmp} --sample 1.5", "--sample 1.5: not above 0 and at most 1"),
    ("--data {tmp} --sample nan", "--sample nan: not above 0 and at most 1"),
    ("--data {tmp} --master local[2]", "--master is for --engine spark"),
    ("--data {tmp} --engine flink", "'flink' is not one of"),
    ("--data {tmp} --plan --html {tmp}/a", "--plan writes no --html"),
    ("--data {tmp} --json {tmp}", "--json {tmp}: is a directory"),
    ("--data {tmp} --html {tmp}/no/a.html", "--html {tmp}/no/a.html: no such directory"),
    ("--data {tmp} --json - --markdown -", "--json and --markdown cannot both go to stdout"),
    ("--data {tmp} --ledger {tmp}/file", "--ledger {tmp}/file: "),
    ("--data {tmp} --no-such", "No such option: --no-such"),
]


@pytest.mark.parametrize(("line", "wanted"), WRONG, ids=[line for line, _ in WRONG])
def test_a_wrong_line_is_told_in_one_line(
    line: str, wanted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    known = {"tmp": str(tmp_path), "name": tmp_path.name}
    assert run(["verify", *line.format(**known).split()]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and len(printed.err.splitlines()) == 1
    assert wanted.format(**known) in printed.err


@pytest.mark.parametrize(
    ("absent", "arguments", "wanted"),
    [
        ("numpy", [], "verify needs numpy: pip install 'tidewal[verify]'"),
        ("xxhash", [], "verify needs xxhash: pip install 'tidewal[verify]'"),
        ("pyspark", ["--engine", "spark"], "--engine spark needs PySpark: pip install 'tidewal[spark]'"),
    ],
)
def test_what_is_not_installed_is_named(
    absent: str,
    arguments: list[str],
    wanted: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asked, "find_spec", lambda name: None if name == absent else find_spec("json"))
    assert run(["verify", "--data", str(tmp_path), *arguments]) == 2
    assert capsys.readouterr().err == f"tidewal: {wanted}\n"


def test_a_bug_is_no_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise KeyError("x")

    with monkeypatch.context() as patch:
        patch.setattr(verification, "verify", fail)
        assert run(["verify", "--data", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "tidewal: could not finish: KeyError: 'x'\n"
    monkeypatch.setattr(stores, "open_source", fail)
    assert run(["verify", "--store", f"file://{tmp_path}"]) == 2
    assert capsys.readouterr().err == "tidewal: could not finish: KeyError: 'x'\n"


# --- on what a broker left ---


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a broker that was stopped, with its store in it."""
    data = tmp_path_factory.mktemp("left") / "data"
    with BrokerProcess(data) as broker:
        options = ["-b", broker.bootstrap]
        wal = "remote.wal.storage.enable=true"
        assert run(["topics", "create", "tails", "--partitions", "2", "--config", wal, *options]) == 0
        load = ["bench", "produce", "-q", "--topic", "tails", "--records", "3000", "--acks", "all"]
        assert run([*load, *options, "--manifest", str(data.parent / "sent")]) == 0
        assert broker.terminate() == 0
    return data


@pytest.fixture
def data(left: Path, tmp_path: Path) -> Path:
    """A copy of all of it, the producer's manifest in a folder beside it."""
    copied(left.parent / "sent", tmp_path / "sent")
    return copied(left, tmp_path / "data")


@pytest.fixture
def store(left: Path, tmp_path: Path) -> Path:
    """A copy of its store that a test may damage."""
    return copied(left / "store", tmp_path / "store")


def copied(source: Path, target: Path) -> Path:
    for path in source.rglob("*"):
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(source).parts):
            to = target / path.relative_to(source)
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(path.read_bytes())
    return target


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def verified(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
    capsys.readouterr()
    code = run(["verify", *arguments, "--json", "-"])
    return code, json.loads(capsys.readouterr().out)


def test_a_sound_store_is_clean(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [f"{tmp_path}/out.{kind}" for kind in ("html", "md", "repair")]
    options = [f"--html={files[0]}", f"--markdown={files[1]}", f"--repair-plan={files[2]}"]
    code, document = verified(f"--store=file://{store}", *options, capsys=capsys)
    assert (code, document["result"], document["findings"]) == (0, "clean", [])
    assert "data-directories" in {each["what"] for each in document["unchecked"]}
    assert {each["topic"] for each in document["coverage"]} >= {"tails"}
    assert document["tier_bytes"]["wal"] > 3_000_000
    assert "clean" in Path(files[0]).read_text() and "clean" in Path(files[1]).read_text()
    assert json.loads(Path(files[2]).read_text())["repairs"] == []


def test_one_altered_byte_is_one_finding(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    largest = max(
        (path for path in store.glob("wal/*/*/*") if path.is_file()), key=lambda p: p.stat().st_size
    )
    flip(largest, largest.stat().st_size // 2)
    code, document = verified(f"--store=file://{store}", capsys=capsys)
    assert (code, document["result"], document["errors"]) == (1, "findings", 1)
    (found,) = document["findings"]
    assert found["code"] == "bad-crc" and found["topic"] == "tails"
    assert found["place"] == str(largest.relative_to(store))
    assert run(["verify", f"--store=file://{store}"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "findings: 1 error, 0 warnings"


def test_store_directories_and_manifest_agree(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [f"--store=file://{data}/store", f"--data={data}", f"--manifest={data.parent}/sent"]
    code, document = verified(*options, capsys=capsys)
    assert (document["unread"], document["unchecked"], document["findings"], code) == ([], [], [], 0)
    assert document["tier_bytes"]["local"] > 3_000_000 and document["figures"]["records"] >= 3000
    assert document["counted"] == []


def test_what_was_acknowledged_and_is_nowhere_is_told_by_the_manifest_alone(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A log that lost its end looks whole: here one that never had it."""
    with ManifestWriter(data.parent / "sent" / "b.manifest", started_ms=1, clock=lambda: 0.0) as writer:
        topic = writer.topic("tails")
        for offset, acks in ((5000, -1), (5001, -1), (6000, 1)):
            order = writer.send()
            writer.note(
                topic,
                1,
                order=order,
                key_hash=0,
                value_hash=order,
                outcome=Outcome.OK,
                offset=offset,
                acks=acks,
            )
    options = [f"--store=file://{data}/store", f"--data={data}"]
    assert verified(*options, capsys=capsys)[0] == 0
    code, document = verified(*options, f"--manifest={data.parent}/sent", capsys=capsys)
    (found,) = document["findings"]
    assert (code, found["code"], found["topic"]) == (1, "manifest-loss", "tails")
    assert (found["partition"], found["first"], found["end"]) == (1, 5000, 5002)
    assert {each["what"]: each["amount"] for each in document["counted"]} == {"acks1-absent": 1}
    code, document = verified(*options, f"--manifest={data.parent}/sent", "--topic=other", capsys=capsys)
    assert document["findings"] == []


def test_the_plan_of_repairs_names_the_copy_in_the_store(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = max(data.glob("tails-*/*.log"), key=lambda path: path.stat().st_size)
    flip(damaged, damaged.stat().st_size // 2)
    options = [f"--store=file://{data}/store", f"--data={data}", f"--repair-plan={tmp_path}/plan.json"]
    code, document = verified(*options, capsys=capsys)
    (found,) = document["findings"]
    assert (code, found["place"]) == (1, f"0:{damaged.relative_to(data)}")
    plan = json.loads((tmp_path / "plan.json").read_text())
    offsets = [each for each in plan["repairs"] for _ in range(each["first"], each["end"])]
    assert len(offsets) == found["end"] - found["first"]
    assert {each["good"]["tier"] for each in offsets} == {"wal"}
    assert all((data / "store" / each["good"]["place"]).is_file() for each in plan["repairs"])


def test_warnings_count_where_it_is_strict(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (store / "somebody.txt").write_text("?")
    assert verified(f"--store=file://{store}", capsys=capsys)[0] == 0
    code, document = verified(f"--store=file://{store}", "--strict", capsys=capsys)
    assert (code, document["warnings"], document["is_strict"]) == (1, 1, True)


def test_a_store_that_is_not_there_is_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    code, document = verified(f"--store=file://{tmp_path}/empty", capsys=capsys)
    assert (code, document["result"]) == (2, "unfinished")
    assert "is it mounted" in document["unread"][0]["why"]
    assert run(["verify", f"--store=file://{tmp_path}/empty"]) == 2
    assert capsys.readouterr().out.startswith("could not be read: ")


def test_the_plan_reads_little_and_tells_the_price(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", f"--store=file://{store}", "--plan"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("to read: ") and "requests: " in told and "wal" in told
    assert run(["verify", f"--store=file://{store}", "--plan", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["format"] == "tidewal-verify-plan" and document["size"] > 3_000_000
    assert {each["kind"] for each in document["parts"]} == {"meta", "wal"}


def test_a_plan_is_told_in_lines() -> None:
    part = PlannedPart("cold", 5, 10**9, 1000)
    planned = Planned((part,), 7, 5, 10**9, 1_001, 0.5, "2026-05-01", 3_000_000)
    assert asked.plan_lines(planned) == [
        "to read: 5 objects and files, 1.0 GB, in 7 tasks",
        "requests: 1,001, about $0.50 at list prices of 2026-05-01",
        "proved before: 3.0 MB",
    ]


def test_what_is_given_is_what_is_asked(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Options] = []

    def plan(options: Options) -> Planned:
        given.append(options)
        return Planned((), 0, 0, 0, 0, 0.0, "")

    monkeypatch.setattr(verification, "plan", plan)
    line = f"--store file://{store} --data {tmp_path} --bootstrap h:1 --manifest {tmp_path} --topic a -t b"
    line += f" --engine spark --master local[3] --ledger {tmp_path}/new/ledger --sample 0.5 --plan"
    monkeypatch.setattr(asked, "find_spec", lambda name: find_spec("json"))
    monkeypatch.setenv("JAVA_HOME", "/java")
    assert run(["verify", *line.split()]) == 0
    (told,) = given
    assert told.store == f"file://{store}" and told.data == told.manifests == (str(tmp_path),)
    assert (told.bootstrap, told.topics, told.engine, told.master) == ("h:1", ("a", "b"), "spark", "local[3]")
    assert (told.ledger, told.sample) == (f"{tmp_path}/new/ledger", 0.5)
    assert (tmp_path / "new" / "ledger").is_dir()


@pytest.mark.parametrize(
    "line",
    [
        "",
        "--data a --data b --store file:///c --bootstrap h:1 --topic t --topic u --manifest m",
        "--data=a --json f --html=g --markdown h --repair-plan i --strict --ledger l",
        "--store s3://b --engine spark --master local[2] --plan",
        "--engine local",
    ],
)
def test_what_is_spelt_out_is_read_without_typer_to_the_same(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[asked.Asked] = []
    monkeypatch.setattr(command, "answer", found.append)
    cli._run_any(["verify", *line.split()])
    assert [asked.read_plainly(line.split())] == found


def test_what_is_not_spelt_out_is_for_typer() -> None:
    for line in ("--help", "--dat a", "-t a", "--json -", "--data", "--data=", "word", "--workers 2",
                 "--sample 0.5", "--engine flink"):  # fmt: skip
        assert asked.read_plainly(line.split()) is None, line


# --- with keys that may only read ---


@pytest.fixture
def reader(minio_server: MinioServer, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Gives this process keys that may list and read one bucket, and a client with all rights."""
    monkeypatch.setattr(stores, "_clients", {})  # a process keeps the keys that it began with
    client = botocore.session.get_session().create_client(
        "sts", "us-east-1", endpoint_url=minio_server.endpoint,
        aws_access_key_id=KEYS.access_key, aws_secret_access_key=KEYS.secret_key,
    )  # fmt: skip
    allowed = {
        "Effect": "Allow",
        "Action": ["s3:GetObject", "s3:ListBucket"],
        "Resource": [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"],
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    keys = client.assume_role(RoleArn="arn:aws:iam::1:role/r", RoleSessionName="reader", Policy=policy)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", keys["Credentials"]["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", keys["Credentials"]["SecretAccessKey"])
    monkeypatch.setenv("AWS_SESSION_TOKEN", keys["Credentials"]["SessionToken"])
    return botocore.session.get_session().create_client(
        "s3", "us-east-1", endpoint_url=minio_server.endpoint,
        aws_access_key_id=KEYS.access_key, aws_secret_access_key=KEYS.secret_key, aws_session_token=None,
    )  # fmt: skip


@pytest.mark.minio
def test_it_needs_no_more_than_to_read(
    reader: Any, left: Path, minio_server: MinioServer, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in sorted((left / "store").rglob("*")):
        key = str(path.relative_to(left / "store"))
        if path.is_file() and not key.startswith("."):
            reader.put_object(Bucket=bucket, Key=f"read/{key}", Body=path.read_bytes())
    mine = botocore.session.get_session().create_client("s3", "us-east-1", endpoint_url=minio_server.endpoint)
    with pytest.raises(ClientError, match="AccessDenied"):
        mine.put_object(Bucket=bucket, Key="read/new", Body=b"")
    code, document = verified("--store", minio_server.url(bucket, "read"), capsys=capsys)
    assert (document["unread"], document["findings"], code) == ([], [], 0)
    assert document["tier_bytes"]["wal"] > 3_000_000


@pytest.mark.minio
def test_keys_that_may_not_read_are_no_verdict(
    minio_server: MinioServer,
    bucket: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stores, "_clients", {})
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    code, document = verified("--store", minio_server.url(bucket, "read"), capsys=capsys)
    assert (code, document["result"]) == (2, "unfinished")


def test_nothing_is_written_to_a_directory(left: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {str(path): path.stat().st_mtime_ns for path in sorted(left.rglob("*"))}
    verified(f"--store=file://{left}/store", "--data", str(left), capsys=capsys)
    assert {str(path): path.stat().st_mtime_ns for path in sorted(left.rglob("*"))} == before
