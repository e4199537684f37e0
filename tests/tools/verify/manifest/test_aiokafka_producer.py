"""What aiokafka answers is in the manifest, and agrees with the log, through kills of either side."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from aiokafka.errors import MessageSizeTooLargeError

from tests.compat.peers import stable_port
from tests.processes import BrokerProcess
from tests.tools.verify.manifest.against_log import judged
from tests.tools.verify.manifest.test_confluent_producer import ROOT, make_topic
from tools.verify.core.manifest import open_rows
from tools.verify.core.manifest_files import Guarantee, Outcome
from tools.verify.manifest import outcomes
from tools.verify.manifest.aiokafka_producer import ManifestProducer, _outcome

StartBroker = Callable[..., BrokerProcess]


async def test_every_record_is_noted_with_its_batch(broker_process: BrokerProcess, tmp_path: Path) -> None:
    topic = make_topic(broker_process.bootstrap, 3)
    client = ManifestProducer(
        tmp_path / "m",
        is_unique=True,
        bootstrap_servers=broker_process.bootstrap,
        enable_idempotence=True,
        linger_ms=2,
        value_serializer=lambda value: None if value is None else value.encode(),
    )
    await client.start()
    futures = [
        await client.send(topic, None if number == 7 else f"value {number}", key=b"k%d" % (number % 50))
        for number in range(2000)
    ]
    told = [(await future).offset for future in futures]
    await client.stop()
    found = judged(tmp_path / "m", broker_process.bootstrap, topic, 3)
    assert (found.findings, found.counted) == ([], {})
    assert found.outcomes == {Outcome.OK: 2000} and found.log_records == 2000
    (file,) = found.manifest.files
    assert file.is_whole and file.head.guarantees == Guarantee(7)
    rows: Any = np.concatenate([rows for _, rows in open_rows(file)])
    rows = rows[np.argsort(rows["order"])]
    assert rows["offset"].tolist() == told
    for number in np.unique(rows["batch"]):
        own = rows[rows["batch"] == number]
        assert len(set(own["partition"].tolist())) == 1
        first = own["offset"].min()
        assert own["offset"].tolist() == list(range(first, first + len(own)))
    assert 0 not in rows["batch"] and len(np.unique(rows["batch"])) < 2000


async def test_a_refused_record_fails_and_one_that_raises_is_no_send(
    broker_process: BrokerProcess, tmp_path: Path
) -> None:
    topic = make_topic(broker_process.bootstrap, max_message_bytes="500")
    client = ManifestProducer(tmp_path / "m", bootstrap_servers=broker_process.bootstrap, acks="all")
    await client.start()
    await client.send_and_wait(topic, b"small")
    with pytest.raises(MessageSizeTooLargeError):
        await client.send_and_wait(topic, b"x" * 2000)
    with pytest.raises(MessageSizeTooLargeError):
        await client.send_and_wait(topic, b"x" * 2_000_000)
    with pytest.raises(TypeError, match="use send"):
        await client.send_batch(client.create_batch(), topic, partition=0)
    await client.stop()
    found = judged(tmp_path / "m", broker_process.bootstrap, topic, 1)
    assert found.findings == [] and found.outcomes == {Outcome.OK: 1, Outcome.FAIL: 1}


async def test_what_has_no_answer_is_unknown(start_broker: StartBroker, tmp_path: Path) -> None:
    address = f"127.0.0.1:{stable_port()}"
    broker = start_broker(listen=address)
    topic = make_topic(address)
    client = ManifestProducer(
        tmp_path / "m", is_unique=True, bootstrap_servers=address, acks="all", request_timeout_ms=600
    )
    await client.start()
    await client.send_and_wait(topic, b"before")
    broker.kill()
    futures = [await client.send(topic, b"after %d" % number) for number in range(50)]
    futures[3].cancel()
    await asyncio.wait(futures, timeout=30)
    await client.stop()
    broker.close()
    start_broker(listen=address)
    found = judged(tmp_path / "m", address, topic, 1)
    assert found.findings == [] and found.manifest.files[0].is_whole
    assert found.outcomes == {Outcome.OK: 1, Outcome.UNKNOWN: 50}
    assert found.counted["unknown-present"] + found.counted["unknown-absent"] == 50


async def test_kills_of_the_broker_lose_nothing_that_is_noted(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    address = f"127.0.0.1:{stable_port()}"
    broker = start_broker(listen=address)
    topic = make_topic(address, 2)
    acknowledged, is_over, progress = 0, False, asyncio.Condition()
    client = ManifestProducer(
        tmp_path / "m", is_unique=True, bootstrap_servers=address, enable_idempotence=True
    )
    await client.start()

    async def load(name: int) -> None:
        nonlocal acknowledged
        number = 0
        while not is_over:
            number += 1
            futures = [
                await client.send(topic, b"%d %d %d" % (name, number, each), partition=name % 2)
                for each in range(20)
            ]
            await asyncio.wait(futures)
            async with progress:
                acknowledged += sum(not each.cancelled() and each.exception() is None for each in futures)
                progress.notify_all()

    async with asyncio.TaskGroup() as group:
        for name in range(4):
            group.create_task(load(name))
        for _ in range(3):
            goal = acknowledged + 300
            async with asyncio.timeout(60), progress:
                await progress.wait_for(lambda goal=goal: acknowledged >= goal)
            broker.kill()
            broker.close()
            broker = await asyncio.to_thread(start_broker, listen=address)  # noqa: TID251
        is_over = True
    await client.stop()
    found = judged(tmp_path / "m", address, topic, 2)
    assert found.findings == [] and found.outcomes[Outcome.OK] >= 900
    assert found.manifest.files[0].is_whole


WRITER = """
import asyncio, sys
from tools.verify.manifest import outcomes
from tools.verify.manifest.aiokafka_producer import ManifestProducer, _outcome
address, topic, folder = sys.argv[1:]

async def main():
    client = ManifestProducer(folder, bootstrap_servers=address, enable_idempotence=True)
    await client.start()
    number = 0
    while True:
        futures = [await client.send(topic, b"%d" % (number + each), partition=0) for each in range(200)]
        number += 200
        await asyncio.wait(futures)
        if number == 20_000:
            print("go", flush=True)

asyncio.run(main())
"""


def test_a_killed_writer_leaves_a_manifest_that_agrees_with_the_log(
    broker_process: BrokerProcess, tmp_path: Path
) -> None:
    topic = make_topic(broker_process.bootstrap)
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, broker_process.bootstrap, topic, str(tmp_path / "m")],
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert writer.stdout is not None
    try:
        assert writer.stdout.readline() == b"go\n"
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait(10)
        writer.stdout.close()
    found = judged(tmp_path / "m", broker_process.bootstrap, topic, 1)
    assert found.findings == [] and not found.manifest.files[0].is_whole
    assert 16_384 <= found.outcomes[Outcome.OK] <= found.log_records


async def test_a_duplicate_whose_offset_the_broker_forgot_is_acknowledged_without_one() -> None:
    """aiokafka counts on from the base offset of the batch, which is −1 then."""
    loop = asyncio.get_running_loop()
    future, whole = loop.create_future(), loop.create_future()
    future.set_result(SimpleNamespace(offset=3))
    whole.set_result(SimpleNamespace(offset=-1))
    assert _outcome(future, SimpleNamespace(future=whole)) == (outcomes.Outcome.OK, -1)
    sound = loop.create_future()
    sound.set_result(SimpleNamespace(offset=0))
    assert _outcome(future, SimpleNamespace(future=sound)) == (outcomes.Outcome.OK, 3)
