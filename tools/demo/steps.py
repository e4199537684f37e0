"""What the demo does, one step after the other, and what each has to show.

Owns the order of the steps, the topics, and when a step holds. Does not own brokers, load, looks or sums
(brokers, load, watcher, judgement) nor how anything is shown (picture, command).
Invariant: every wait has a bound; a step that does not hold ends the demo by Failure, with the reason; the
load goes on from its step to the read back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Final

from protocol.errors import ErrorCode, KafkaError
from protocol.records import iter_records
from tidewal import PROGRAM
from tools import topics
from tools.client import Client, RequestFailed
from tools.console import Failure
from tools.demo.brokers import LOOK_EVERY_S, NODES, Brokers, size_of
from tools.demo.judgement import RECORD_BYTES, Sums, differences, silence_s
from tools.demo.load import Notes, Producer, client_of
from tools.demo.picture import size_text
from tools.demo.state import BrokerState, Condition, DemoState, Outcome, PartitionState, Step
from tools.demo.watcher import Watcher, is_whole
from tools.topic_source import BrokerSource

COLD_TOPIC, WAL_TOPIC = "logs", "tails"
PARTITIONS: Final = 3
TOPICS: Final[Mapping[str, Mapping[str, str]]] = {
    COLD_TOPIC: {
        "min.insync.replicas": "2",
        "remote.storage.enable": "true",
        "segment.bytes": str(1 << 20),
        "local.retention.bytes": str(1 << 20),
    },
    WAL_TOPIC: {"min.insync.replicas": "2", "remote.wal.storage.enable": "true"},
}
SENT: Final = "sent"
"""The folder of the producers' manifest."""
BYTES_PER_S: Final = {COLD_TOPIC: 600_000, WAL_TOPIC: 300_000}
"""Of each partition."""
START_S: Final = 60.0
WITHIN_S: Final = 60.0
"""What a step waits for has to come within that."""
VERIFY_S: Final = 300.0
AGAIN_BATCHES: Final = 5
"""A producer goes on after a kill when so many of its batches were acknowledged since."""
REPLICATED: Final = "kafka_server_brokertopicmetrics_replicationbytesin_total"
READ_FROM_STORE: Final = ("tidewal_object_store_bytes_read_total", "tidewal_wal_store_bytes_read_total")
"""The WAL tier has connections and counters of its own."""


class LeftOut(Exception):
    """A step that cannot be done here; the others say what they say without it."""


class Demo:
    """One run. `on_step` is told of each step when it has ended."""

    def __init__(
        self,
        brokers: Brokers,
        *,
        load_s: float,
        keeps_running: bool,
        notes: Notes | None,
        on_step: Callable[[Step], None],
    ) -> None:
        self._brokers = brokers
        self._load_s = load_s
        self._notes = notes
        self._on_step = on_step
        self._producers: list[Producer] = []
        self._victim = -1
        self._work: dict[str, Callable[[], Awaitable[str]]] = {
            "start": self._start,
            "topics": self._create_topics,
            "load": self._load,
            "WAL tier": self._wait_wal_tier,
            "cold tier": self._wait_cold_tier,
            "kill -9": self._kill_leader,
            "back": self._bring_back,
            "empty disk": self._empty_disk,
            "read back": self._read_back,
            "verify": self._verify,
        }
        if not keeps_running:
            self._work["stop"] = self._stop
        self.state = DemoState(
            steps=[Step(name=name) for name in self._work],
            brokers=[BrokerState(node_id=node_id) for node_id in brokers.node_ids],
        )

    async def run(self) -> None:
        """Do all steps; Failure at the first that does not hold."""
        self._stopping = asyncio.Event()
        try:
            async with contextlib.AsyncExitStack() as self._stack, asyncio.TaskGroup() as group:
                self._group = group
                self._background = [group.create_task(self._keep_time())]
                for step in self.state.steps:
                    await self._do(step)
                for task in self._background:
                    task.cancel()
        except BaseExceptionGroup as failed:
            raise _first_of(failed) from None

    async def _do(self, step: Step) -> None:
        started_s = time.perf_counter()
        step.outcome = Outcome.UNDER_WAY
        try:
            step.told = await self._work[step.name]()
            step.outcome = Outcome.HELD
        except LeftOut as reason:
            step.told, step.outcome = f"left out: {reason}", Outcome.LEFT_OUT
        except (Failure, KafkaError, RequestFailed, OSError) as failure:
            step.told, step.outcome = str(failure), Outcome.FAILED
            raise Failure(f"{step.name}: {failure}") from None
        finally:
            step.seconds = time.perf_counter() - started_s
            if step.outcome is not Outcome.UNDER_WAY:
                self._on_step(step)

    async def _keep_time(self) -> None:
        started_s = time.perf_counter()
        while True:
            self.state.elapsed_s = time.perf_counter() - started_s
            await asyncio.sleep(LOOK_EVERY_S)

    # --- the steps ---

    async def _start(self) -> str:
        await self._brokers.wait_ready(self._brokers.node_ids, START_S)
        for broker in self.state.brokers:
            broker.condition = Condition.RUNS
        self._client = await self._new_client()
        await self._wait(lambda: is_whole(self._client, NODES), "no cluster of three")
        where = ", ".join(map(str, self._brokers.addresses))
        return f"three brokers at {where}; store file://{self._brokers.store}"

    async def _create_topics(self) -> str:
        for name, configs in TOPICS.items():
            row = await topics.asked_for(
                self._client, name, partitions=PARTITIONS, replication=NODES, configs=configs
            )
            if row.error_code != ErrorCode.none:
                raise KafkaError(row.error_code, f"topic {name}")
        self._watcher = Watcher(self.state, self._brokers, await self._new_client(), list(TOPICS))
        await self._wait(lambda: is_whole(self._client, NODES), "no leader for every partition")
        await self._look_until(lambda found: len(found) == PARTITIONS * len(TOPICS), "no offsets")
        self._background.append(self._group.create_task(self._watcher.run()))
        of_each = f"{PARTITIONS} partitions with {NODES} replicas"
        return f"{COLD_TOPIC} (cold tier) and {WAL_TOPIC} (WAL tier), of each {of_each}"

    async def _load(self) -> str:
        for name in TOPICS:
            for partition in range(PARTITIONS):
                producer = Producer(
                    await self._new_client(),
                    name,
                    partition,
                    series=len(self._producers),
                    bytes_per_s=BYTES_PER_S[name],
                    notes=self._notes,
                )
                self._producers.append(producer)
        self._watcher.producers = self._producers
        self._writing = [
            self._group.create_task(producer.run(self._stopping)) for producer in self._producers
        ]
        started_s = time.perf_counter()
        await self._wait_count(self._counts(), "no acknowledgement for every producer")
        await asyncio.sleep(max(0.0, self._load_s - (time.perf_counter() - started_s)))
        records = sum(producer.sums.records for producer in self._producers)
        rate = records * RECORD_BYTES / (time.perf_counter() - started_s)
        return f"{records:,} records acknowledged by all in sync, {size_text(rate)}/s; it goes on"

    async def _wait_wal_tier(self) -> str:
        ends = {each.name: each.log_end for each in await self._watcher.look() if each.topic == WAL_TOPIC}
        await self._look_until(
            lambda found: all(
                (each.wal_end or 0) >= ends[each.name] for each in found if each.topic == WAL_TOPIC
            ),
            f"the tails of {WAL_TOPIC} were not in the store",
        )
        size = size_text(self.state.store.wal_bytes)
        return f"all {sum(ends.values()):,} records of {WAL_TOPIC} are in the store, {size}"

    async def _wait_cold_tier(self) -> str:
        await self._look_until(
            lambda found: all(
                (each.cold_end or 0) > each.log_start and each.local_start > each.log_start
                for each in found
                if each.topic == COLD_TOPIC
            ),
            f"no segment of each partition of {COLD_TOPIC} was copied and left the disk",
        )
        found = [each for each in self.state.partitions if each.topic == COLD_TOPIC]
        size = size_text(sum(each.cold_bytes for each in found))
        left = sum(each.local_start - each.log_start for each in found)
        return f"{size} of {COLD_TOPIC} copied; {left:,} of its records are in the store alone"

    async def _kill_leader(self) -> str:
        found = await self._watcher.look()
        first = next(each for each in found if each.topic == WAL_TOPIC)
        if first.leader is None:
            raise Failure(f"nobody leads {first.name}")
        self._victim = first.leader
        led = {each.name for each in found if each.leader == self._victim}
        killed_s = await self._brokers.kill(self._victim)
        self.state.broker(self._victim).condition = Condition.KILLED
        await self._wait_count(self._counts(), "not every producer went on")
        longest = max(
            silence_s(producer.acknowledged_s, killed_s)
            for producer in self._producers
            if producer.sums.name in led
        )
        return f"broker {self._victim}, leader of {len(led)}: longest silence of a producer {longest:.2f} s"

    async def _bring_back(self) -> str:
        await self._brokers.start_again(self._victim, START_S)
        self.state.broker(self._victim).condition = Condition.RUNS
        await self._wait(lambda: is_whole(self._client, NODES), "not every replica was in sync")
        return f"broker {self._victim} runs, every replica is in sync"

    async def _empty_disk(self) -> str:
        victim = next(node_id for node_id in self._brokers.node_ids if node_id != self._victim)
        broker = self.state.broker(victim)
        await self._brokers.kill(victim)
        size = size_of(self._brokers.data(victim), "*/*.log")
        self._brokers.empty_disk(victim)
        broker.condition = Condition.EMPTIED
        await self._wait_count(self._counts(), "not every producer went on")
        await self._brokers.start_again(victim, START_S)
        await self._wait(lambda: is_whole(self._client, NODES), "not every replica was in sync")
        broker.condition = Condition.RUNS
        seen = await asyncio.get_running_loop().run_in_executor(None, self._brokers.metrics, victim)
        leaders, store = seen.value(REPLICATED), sum(map(seen.value, READ_FROM_STORE))
        return (
            f"{size_text(size)} of broker {victim} deleted; in sync again with {size_text(leaders)} from "
            f"leaders, {size_text(store)} from the store"
        )

    async def _read_back(self) -> str:
        self._stopping.set()
        await asyncio.gather(*self._writing)
        if self._notes is not None:
            self._notes.close()
        found = await self._watcher.look()
        sent = [producer.sums for producer in self._producers]
        read = await asyncio.gather(*(self._read(producer) for producer in self._producers))
        if wrong := differences(sent, read):
            raise Failure("; ".join(wrong))
        cold = sum(each.local_start - each.log_start for each in found)
        records = sum(each.records for each in read)
        return f"{records:,} records, {cold:,} of them from the cold tier: each once, in order, unaltered"

    async def _read(self, producer: Producer) -> Sums:
        sums = Sums(producer.sums.name, producer.sums.series)
        async with client_of(self._brokers.addresses) as client:
            source = await BrokerSource(client, producer.topic).open()
            start, end = await source.bounds(producer.partition)
            async with contextlib.aclosing(source.read(producer.partition, start, end)) as pieces:
                async for piece in pieces:
                    if piece.batch is None or piece.header is None:
                        continue
                    for record in iter_records(piece.batch, 0, piece.header):
                        sums.add(record.value)
        return sums

    async def _verify(self) -> str:
        if missing := missing_for_verify():
            raise LeftOut(f"it needs {missing}: pip install 'tidewal[verify]'")
        report = self._brokers.folder / "verify.json"
        command = [sys.executable, PROGRAM, "verify", "--store", f"file://{self._brokers.store}"]
        for node_id in self._brokers.node_ids:
            command += ["--data", str(self._brokers.data(node_id))]
        command += ["--manifest", str(self._brokers.folder / SENT), "--json", str(report)]
        code, said = await _run(command, VERIFY_S)
        if not report.exists():
            raise Failure(f"tidewal verify ended with exit code {code}: {said}")
        return judged(code, json.loads(report.read_text()))

    async def _stop(self) -> str:
        await self._brokers.stop()
        for broker in self.state.brokers:
            broker.condition = Condition.STOPPED
        return "each broker handed over and ended cleanly"

    async def _new_client(self) -> Client:
        """Return a client that is closed when the demo ends."""
        return await self._stack.enter_async_context(client_of(self._brokers.addresses))

    # --- waiting ---

    def _counts(self) -> list[int]:
        return [len(producer.acknowledged_s) for producer in self._producers]

    async def _wait_count(self, counts: Sequence[int], what_else: str) -> None:
        """Wait until each producer was acknowledged some batches more."""
        await self._brokers.wait_until(
            lambda: all(
                now >= before + AGAIN_BATCHES for now, before in zip(self._counts(), counts, strict=True)
            ),
            what_else,
            WITHIN_S,
        )

    async def _wait(self, condition: Callable[[], Awaitable[bool]], what_else: str) -> None:
        ends_s = time.perf_counter() + WITHIN_S
        while not await condition():
            self._brokers.check()
            if time.perf_counter() > ends_s:
                raise Failure(f"{what_else} within {WITHIN_S:.0f} s")
            await asyncio.sleep(LOOK_EVERY_S)

    async def _look_until(
        self, condition: Callable[[Sequence[PartitionState]], bool], what_else: str
    ) -> None:
        async def holds() -> bool:
            with contextlib.suppress(KafkaError, RequestFailed):
                return condition(await self._watcher.look())
            return False

        await self._wait(holds, what_else)


# --- verification ---


def missing_for_verify() -> str:
    """Return what `tidewal verify` lacks here; nothing when it can run."""
    return " and ".join(name for name in ("numpy", "xxhash") if find_spec(name) is None)


def judged(exit_code: int, report: Mapping[str, Any]) -> str:
    """Say what a verification found; Failure unless it is clean."""
    if exit_code or report["result"] != "clean":
        codes = ", ".join(f"{each['code']} {each['findings']}" for each in report["codes"])
        unread = ", ".join(f"{each['place']}: {each['why']}" for each in report["unread"])
        raise Failure(f"tidewal verify says {report['result']}: {codes or unread}")
    figures = report["figures"]
    return (
        f"clean: {figures['batches']:,} batches with {figures['records']:,} records, all copies, "
        f"in {figures['objects'] + figures['files']:,} objects and files"
    )


async def _run(command: Sequence[str], within_s: float) -> tuple[int, str]:
    """Run a process to its end; return its exit code and what it said last on stderr."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        _, stderr = await asyncio.wait_for(process.communicate(), within_s)
    except TimeoutError:
        raise Failure(f"it did not end within {within_s:.0f} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    return process.returncode or 0, stderr.decode(errors="replace").strip().rpartition("\n")[2]


def _first_of(failed: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return what ended the demo: a broken promise rather than what was cancelled over it."""
    first = failed.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first
