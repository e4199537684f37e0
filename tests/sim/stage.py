"""Owns the stage a run is played on: brokers on one fabric and one bucket, clients, the truth about the
cluster, and the looks at it that only the audience has.

The truth is folded from the bucket's journal; no broker is asked. Does not own what happens on the stage
(scenario.py and the named scenarios) nor the faults (nemesis.py).

Invariant: everything random comes from the seed, through generators of their own for network, disks, stores,
brokers' lives and each client, so that a change in one of them leaves the others' choices alone.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from broker.config.values import ResourceType
from broker.control.image import Image
from broker.control.internal_topics import is_of_the_brokers
from protocol.apis import Api
from protocol.errors import ErrorCode
from protocol.records import BatchHeader
from remote.cold.segments import SegmentState
from remote.keys import parse_tier_key
from storage.log import AbstractLog
from tests.sim import census, inspection, leak_checks, metalog, salvage, tier
from tests.sim.client import BROKER_PORT, RETRY_S, Env, Lost, SimClient
from tests.sim.history import (
    NOTHING_ALONE,
    Batch,
    FinalLog,
    FoldSeen,
    Freed,
    HadAlone,
    History,
    MetaSlot,
    Remains,
    ReplicaLog,
    Sample,
    TierSeen,
    TopicPartition,
    TransactionSeen,
)
from tests.sim.inspection import FoundLog
from tests.sim.loop import SimFailure, SimLoop
from tests.sim.net import Fabric, NetworkProfile
from tests.sim.node import WALL_CLOCK_AT_ZERO_MS, Node, host_of
from tests.sim.plan import RACKS
from tests.sim.store import Bucket, StoreProfile
from tests.sim.transaction_checks import UNDER_WAY
from tests.sim.wal_watch import WalWatch

READY_S = 60.0
LOOK_S = 0.1
LOOK_AT_REST_S = 0.5
SETTLE_S = 90.0
WHOLE_S = 60.0
TIER_RESTS_S = 300.0
"""An orphan is deleted twice, with a wait between for a put that is late; each may meet a new leader."""
WAL_RESTS_S = 500.0
"""Boundaries are put every two minutes, what goes has a minute's grace, and each waits for its turn."""
REST_SLACK_S = 2.0
"""Who waits for minutes to pass does not ask ten times a second; less than half a broker's session."""
HEARD_S = 90.0
QUIESCE_S = 5.0
LEAVE_S = 12.0  # whoever vanished is missed after a session; the longest wait a client asks for is shorter
QUIET_DELETE_MS = 4_000
"""Time for every replica to hear of it and to have it on a disk that is now and then busy."""
PASSING = frozenset({ErrorCode.not_leader_or_follower.name, "lost"})
"""Of a leader that has changed since the client asked who leads."""
STEPS_PER_BROKER = 400_000


class Stuck(SimFailure):
    """Somebody did not come to an end; said by name in Stage.stuck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What an inspection found on one node."""

    node: int
    logs: dict[TopicPartition, FoundLog]


class Truth:
    """The cluster as its metadata log tells it, up to the newest slot in the bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._reader = metalog.Reader()
        self._read = 0
        self.slots: list[MetaSlot] = []

    @property
    def image(self) -> Image:
        journal = self._bucket.journal
        while self._read < len(journal):
            change = journal[self._read]
            self._read += 1
            name = change.key.removeprefix(metalog.SLOTS)
            if change.kind == "put" and name.isdigit() and int(name) > self._reader.image.seq:
                self.slots.append(self._reader.read(int(name), change))
        return self._reader.image

    def topic_configs(self, topic: str) -> Mapping[str, str]:
        return self.image.config(ResourceType.TOPIC, topic)


class Stage:
    def __init__(
        self,
        seed: str,
        *,
        brokers: int,
        properties: Mapping[str, str],
        network: NetworkProfile | None = None,
        keep_trace: bool = False,
    ) -> None:
        self.seed = seed
        self.loop = SimLoop(keep_trace=keep_trace, max_steps=brokers * STEPS_PER_BROKER)
        self.history = History(single_replica_flush=properties.get("log.flush.single.replica") == "true")
        self.fabric = Fabric(self.loop, random.Random(f"{seed}/network"), network)
        self.bucket = Bucket(lambda: WALL_CLOCK_AT_ZERO_MS + int(self.loop.now * 1000))
        self.store = StoreProfile()  # the store itself; each node's line is its own
        self.bucket.said_of = self._said_of
        self.bucket.alone_in = self._alone_in
        self.wal = WalWatch(self)
        self.bucket.wal_gone_of = self.wal.note_gone
        self._local: dict[tuple[int, int], dict[TopicPartition, tuple[int, int]]] = {}
        """By node and life, then by partition: the log's generation and where its files began."""
        self.truth = Truth(self.bucket)
        self._metadata_log = tier.MetadataLog()
        self._copies: dict[int, tuple[list[object], list[tier.Copy]]] = {}
        self._objects = tier.Objects()
        self.stuck: list[str] = []
        self._clients: list[SimClient] = []
        self.nodes = {
            number: Node(
                loop=self.loop,
                fabric=self.fabric,
                history=self.history,
                bucket=self.bucket,
                common=self.store,
                node_id=number,
                seed=seed,
                properties={"broker.rack": RACKS[number % len(RACKS)], **properties},
                topic_configs=self.truth.topic_configs,
            )
            for number in range(1, brokers + 1)
        }
        self.env = Env(
            loop=self.loop,
            fabric=self.fabric,
            history=self.history,
            hosts=[host_of(number) for number in self.nodes],
            now_ms=self.nodes[1].now_ms,
            ends=self.ends,
            patience_s=(2.0,) if brokers == 1 else (2.0, 25.0),
        )

    # who and where ------------------------------------------------------------------------------------------

    def client(self, name: str) -> SimClient:
        self._clients.append(SimClient(self.env, name, random.Random(f"{self.seed}/{name}")))
        return self._clients[-1]

    def living(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.is_alive]

    def ready(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.is_ready]

    def controller(self) -> Node | None:
        return self.nodes.get(self.truth.image.controller_id)

    def leader(self, tp: TopicPartition) -> Node | None:
        partition = self.truth.image.partition(*tp)
        return None if partition is None else self.nodes.get(partition.leader)

    def isr(self, tp: TopicPartition) -> tuple[int, ...]:
        partition = self.truth.image.partition(*tp)
        return () if partition is None else partition.isr

    def partitions_of(self, topics: Iterable[str]) -> list[TopicPartition]:
        """As the metadata log has them by now."""
        image = self.truth.image
        return [(name, each.index) for name in topics for each in image.topics[name].partitions]

    def ends(self, tp: TopicPartition) -> tuple[tuple[int, int], ...]:
        """Where every replica ends: as its broker has it, or as its disk was left."""
        ends = [(number, node.log_end(tp)) for number, node in self.nodes.items()]
        return tuple((number, end) for number, end in ends if end is not None)

    def broken(self) -> list[str]:
        """Partitions that have no leader, move, or have replicas that are not in sync."""
        partitions = [
            (topic.name, partition)
            for topic in self.truth.image.topics.values()
            for partition in topic.partitions
        ]
        return [
            f"{name}-{it.index} led by {it.leader}, {it.isr} of {it.replicas}, moves: {it.is_reassigned}"
            for name, it in partitions
            if it.leader < 0 or set(it.isr) != set(it.replicas) or it.is_reassigned
        ]

    def uneven(self, partitions: Sequence[TopicPartition]) -> list[str]:
        """Partitions of which some replica lacks something, or has not heard that everybody has it."""
        found = []
        for tp in partitions:
            partition = self.truth.image.partition(*tp)
            replicas = () if partition is None else partition.replicas
            logs = {number: self.nodes[number].log(tp) for number in replicas}
            marks = {
                number: None if log is None else (log.high_watermark, log.log_end_offset)
                for number, log in logs.items()
            }
            if len(set(marks.values())) > 1 or any(
                mark is None or mark[0] != mark[1] for mark in marks.values()
            ):
                found.append(f"{tp} {partition}: HW and end by node {marks}")
        return found

    def log_range(self, tp: TopicPartition) -> tuple[int, int]:
        """The leader's log start and high watermark."""
        leader = self.leader(tp)
        log = None if leader is None else leader.log(tp)
        return (0, 0) if log is None else (log.log_start_offset, log.high_watermark)

    def orphans(self) -> list[TopicPartition]:
        """Partitions whose last in-sync replica lost its disk: nobody but an operator can bring them back."""
        return [
            (topic.name, partition.index)
            for topic in self.truth.image.topics.values()
            for partition in topic.partitions
            if partition.leader < 0 and not partition.isr
        ]

    # waiting ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Switch every machine on at once, in a healthy world."""
        ready = [node.begin() for node in self.nodes.values()]
        await asyncio.wait(ready, timeout=READY_S)
        late = [number for number, node in self.nodes.items() if not node.is_ready]
        if late:
            raise SimFailure(f"brokers {late} did not start in a healthy world")
        self.watch_local_starts()

    async def eventually(
        self, what: str, is_so: Callable[[], object], *, seconds: float, every_s: float = 0.05
    ) -> None:
        """Liveness: what has to come true, in virtual time; looked at often."""
        deadline = self.loop.now + seconds
        while not is_so():
            if self.loop.now > deadline:
                self.stuck.append(f"{what}: not within {seconds:g} s")
                raise Stuck(self.stuck[-1])
            await asyncio.sleep(every_s)

    async def settled(
        self,
        what: str,
        exceptions: Callable[[], list[str]],
        *,
        seconds: float = WHOLE_S,
        every_s: float = 0.05,
    ) -> None:
        """Eventually without exceptions; those that are left are said by name."""
        try:
            await self.eventually(what, lambda: not exceptions(), seconds=seconds, every_s=every_s)
        except Stuck:
            self.stuck += exceptions()
            raise

    async def finish(self, tasks: Sequence[asyncio.Task[None]], *, seconds: float = SETTLE_S) -> None:
        """Liveness: everybody who lives comes to an end; what ended in an error raises it."""
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=seconds)
        self.stuck += sorted(f"{task.get_name()} did not finish within {seconds:g} s" for task in late)
        for task in tasks:
            if task not in late:
                task.result()
        if late:
            raise Stuck("; ".join(self.stuck))

    async def quietly_deleted(self, client: SimClient, tp: TopicPartition, before: int) -> None:
        """Liveness of a deletion in a healthy cluster: asked of the leader, it is answered well at once. The
        cluster is not healthy while a connection is frozen: a follower of which nobody wants anything waits
        for an answer on it until replica.socket.timeout.ms has passed, in sync all the while. Nor is it while
        a broker is down, by a fault that outlasted the healing, and its session is not over."""
        deletes = self.history.deletes
        while True:
            was_frozen, crashes = self.fabric.has_frozen, len(self.history.crashes)
            await client.delete_records(tp, before, timeout_ms=QUIET_DELETE_MS)
            if deletes[-1].result == "ok":
                return
            is_late = deletes[-1].error == ErrorCode.request_timed_out.name
            has_lost_one = len(self.history.crashes) > crashes or len(self.ready()) < len(self.nodes)
            if deletes[-1].error not in PASSING and not (is_late and (was_frozen or has_lost_one)):
                self.stuck.append(f"DeleteRecords of {tp} before {before} ended with {deletes[-1].error}")
                return

    # healing ------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Nothing fails any more from now on; who is down stays down until somebody starts it."""
        self.loop.trace("healing")
        self.fabric.heal()
        self.store.heal()
        self.store.let_go()
        for node in self.nodes.values():
            for line in (node.line, node.wal_line):
                line.heal()
                line.let_go()
            node.hold.let_go()
            node.resume()
            node.disk.disarm()
            if node.process is not None and node.files is not None:
                node.process.die_at_step = None
                node.files.die_at_change = None
            if node.may_break:
                # A failed log directory stays failed until somebody looks after it and restarts the broker.
                node.kill()
                node.may_break = False

    async def become_whole(self) -> None:
        """After healing: everybody is up, and every replica is back in its ISR."""
        await self.eventually(
            "every broker is up",
            lambda: len(self.ready()) == len(self.nodes),
            seconds=READY_S,
        )
        if self.orphans():
            operator = self.client("operator")
            await self.finish([operator.start(operator.elect_unclean(self.orphans()))])
        await self.settled("every replica is in sync", self.broken)

    # looks --------------------------------------------------------------------------------------------------

    def sample(self, partitions: Sequence[TopicPartition]) -> None:
        """Every replica as it is now, mid-way: the bytes on its disk and the HW its broker knows."""
        copies = self.see_tier()
        disks = {
            number: salvage.segments(node.disk.snapshot(), node.log_dirs)
            for number, node in self.nodes.items()
            if node.is_ready and not node.may_break
        }
        for tp in partitions:
            logs = [
                self._replica(number, tp, tuple(inspection.batches_of(found[tp])), copies)
                for number, found in disks.items()
                if tp in found and self.nodes[number].log(tp) is not None
            ]
            self.history.samples.append(Sample(at=self.loop.now, tp=tp, logs=tuple(logs)))

    def _replica(
        self,
        number: int,
        tp: TopicPartition,
        batches: tuple[Batch, ...],
        copies: Sequence[tier.Copy],
        *,
        is_whole: bool = False,
    ) -> ReplicaLog:
        """`is_whole` when `batches` begin at the log start, wherever the files do."""
        log = self.nodes[number].log(tp)
        assert log is not None
        topic = self.truth.image.topics.get(tp[0])
        start, local = log.log_start_offset, log.local_log_start_offset
        readable_to = None
        tier_epochs: dict[int, int] = {}
        is_leader = self.leader(tp) is self.nodes[number]
        if topic is not None and start < local and is_leader and self._is_tier_told():
            tiered = self._tiered(tp, log, copies)
            readable_to = tiered[-1].batch.next_offset if tiered else start
            for stored in tiered:
                tier_epochs.setdefault(stored.batch.leader_epoch, max(stored.batch.base_offset, start))
        return ReplicaLog(
            node=number,
            log_start_offset=log.log_start_offset,
            high_watermark=log.high_watermark,
            log_end_offset=log.log_end_offset,
            batches=batches,
            epochs=tuple(log.epochs.entries()),
            local_log_start_offset=None if is_whole else log.local_log_start_offset,
            tiered_end=log.tiered_end,
            readable_to=readable_to,
            last_stable_offset=log.last_stable_offset,
            is_leader=is_leader,
            tier_epochs=tuple(tier_epochs.items()),
            has_all_epochs=is_whole or not log.epochs_incomplete,
        )

    def _tiered(
        self, tp: TopicPartition, log: AbstractLog, copies: Sequence[tier.Copy]
    ) -> tuple[tier.Stored, ...]:
        """What a log may read from the tier, before its files begin."""
        return self._objects.of_lineage(
            log.log_start_offset,
            log.local_log_start_offset,
            partition=(self.truth.image.topics[tp[0]].id, tp[1]),
            epochs=log.epochs.entries(),
            found=copies,
            objects=self.bucket.objects,
        )

    def tier_said(self, index: int) -> list[object]:
        """What the leader of a partition of the tier's metadata has of it on its disk; nothing while it is
        down: what a crash left there may be less than others have."""
        leader = self.leader((tier.METADATA_TOPIC, index))
        if leader is None or not leader.is_ready:
            return []
        return self._metadata_log.said(leader.disk, leader.log_dirs, index)

    def _is_tier_told(self) -> bool:
        """Whether all that is committed about the tier can be seen."""
        leaders = [self.leader(tp) for tp in self._tier_partitions()]
        return all(leader is not None and leader.is_ready for leader in leaders)

    def tier_copies(self) -> list[tier.Copy]:
        """Every copy that these leaders speak of."""
        return [copy for _, index in self._tier_partitions() for copy in self._copies_of(index)]

    def _copies_of(self, index: int) -> list[tier.Copy]:
        said = self.tier_said(index)
        known = self._copies.get(index)
        if known is None or known[0] is not said:
            known = self._copies[index] = said, tier.copies(said)
        return known[1]

    def _said_of(self, key: str) -> str:
        """What is said of the copy that has this object; empty for nothing."""
        named = parse_tier_key(key)
        mine = (copy for copy in self.tier_copies() if named is not None and copy.id == named.segment_id)
        return next((copy.state for copy in mine if key in copy.keys), "")

    def _alone_in(self, key: str, data: bytes) -> HadAlone:
        """What the copy that had this data object and was finished had alone; nothing where copies go by
        retention or because a tier was switched off."""
        if self.history.forgets:
            return NOTHING_ALONE
        said = [one for _, index in self._tier_partitions() for one in self.tier_said(index)]
        copies = tier.copies(said)
        copy = next((copy for copy in copies if key == copy.keys[0]), None)
        if copy is None or not tier.was_finished(copy, said):
            return NOTHING_ALONE
        topic = self.truth.image.topic_by_id(copy.topic_id)
        if topic is None:
            return NOTHING_ALONE
        tp = topic.name, copy.index
        leader = self.leader(tp)
        log = None if leader is None else leader.log(tp)
        if log is None or not self._is_tier_told():
            return NOTHING_ALONE
        alone = self._objects.had_alone(copy, data, log.log_start_offset, copies, self.bucket.objects)
        epochs, end = log.epochs.entries(), log.log_end_offset
        shared = tuple((at, epoch) for at, epoch in alone if at < end and tier.epoch_at(epochs, at) == epoch)
        return HadAlone(tp, shared, tuple(place for place in alone if place not in shared))

    def watch_local_starts(self) -> None:
        """Look now and then, from now on, at where the files of each tiered log begin: what goes from there
        is in the tier. And at what brokers hold for the WAL tier."""
        self._look_at_local_starts()
        if self.bucket.wal_journal:
            self.wal.look()
        every_s = LOOK_AT_REST_S if self.loop.slack_s else LOOK_S
        self.loop.call_later(every_s, self.watch_local_starts, context=contextvars.Context())

    def _look_at_local_starts(self) -> None:
        copies: list[tier.Copy] | None = None
        for node in self.nodes.values():
            if not node.is_ready or node.broker is None:
                continue
            seen = self._local.setdefault((node.id, node.life), {})
            for tp, log in node.broker.components.logs.logs.items():
                if not log.is_tiered:
                    continue
                now = log.generation, log.local_log_start_offset
                before = seen.get(tp)
                if now == before:
                    continue
                seen[tp] = now
                if before is None or now[0] != before[0]:
                    continue
                copies = self.tier_copies() if copies is None else copies
                self._note_freed(node, tp, log, before[1], copies)

    def _note_freed(
        self, node: Node, tp: TopicPartition, log: AbstractLog, was: int, copies: Sequence[tier.Copy]
    ) -> None:
        leader = self.leader(tp)
        led = None if leader is None else leader.log(tp)
        topic = self.truth.image.topics.get(tp[0])
        if topic is None or led is None or not self._is_tier_told():
            return
        start = max(was, log.log_start_offset, led.log_start_offset)
        end = log.local_log_start_offset
        if start >= end:
            return
        found = self._objects.of_lineage(
            start,
            end,
            partition=(topic.id, tp[1]),
            epochs=log.epochs.entries(),
            found=copies,
            objects=self.bucket.objects,
        )
        readable_to = found[-1].batch.next_offset if found else start
        self.history.freed.append(
            Freed(at=self.loop.now, tp=tp, node=node.id, start=start, end=end, readable_to=readable_to)
        )

    def _tier_partitions(self) -> list[TopicPartition]:
        image = self.truth.image
        return self.partitions_of([tier.METADATA_TOPIC]) if tier.METADATA_TOPIC in image.topics else []

    def see_tier(self, *, is_final: bool = False) -> list[tier.Copy]:
        """Note what the tier's metadata says and what is in the bucket, in one moment."""
        copies, objects = self.tier_copies(), self.bucket.objects
        said = [(index, self.tier_said(index)) for _, index in self._tier_partitions()]
        self.history.tiers.append(
            TierSeen(
                at=self.loop.now,
                copies=tier.told(copies, objects),
                unreferenced=tier.unreferenced(copies, objects, self.bucket.uploads) if is_final else (),
                backward=tuple(what for _, each in said for what in tier.backward(each)),
                folds=tuple(self._folds(said)) if is_final else (),
                is_final=is_final,
            )
        )
        return copies

    def _folds(self, said: Sequence[tuple[int, list[object]]]) -> Iterator[FoldSeen]:
        """What each broker that follows a partition of the metadata knows of it, and what it says."""
        for index, each in said:
            yield tier.fold_seen(0, index, tier.copies(each))
            for node in self.ready():
                found = tier.fold_of(node, index)
                if found is not None:
                    yield found

    def restless_copies(self) -> list[str]:
        """Copies that are neither whole nor gone, and changes of objects that are still to come."""
        resting = (SegmentState.COPY_FINISHED.name, tier.GONE)
        unsettled = [str(copy) for copy in self.tier_copies() if copy.state not in resting]
        return unsettled + self.bucket.tier_under_way

    def inspect(self, partitions: Sequence[TopicPartition], nodes: Sequence[Node]) -> list[Found]:
        """Open copies of their disks as after a kill; whatever is not exact goes into the history."""
        found = []
        copies = self.tier_copies()

        def tiered(tp: TopicPartition, log: AbstractLog) -> list[BatchHeader]:
            if tp[0] not in self.truth.image.topics or log.log_start_offset >= log.local_log_start_offset:
                return []
            return [stored.header for stored in self._tiered(tp, log, copies)]

        for node in nodes:
            logs, recovery = inspection.inspect(
                node.disk,
                node.config,
                partitions,
                latest_ms=node.latest_ms(),
                topic_configs=self.truth.topic_configs,
                tiered=tiered,
                alive={tp: log for tp in partitions if (log := node.log(tp)) is not None},
            )
            self.history.recoveries.append(recovery)
            found.append(Found(node=node.id, logs=logs))
        return found

    async def final_state(self, partitions: Sequence[TopicPartition]) -> None:
        """Once nothing is under way any more: read everything as a client, then look at the files of every
        replica."""
        await asyncio.sleep(QUIESCE_S)
        passing = self.partitions_of(self.truth.image.topics.keys() - {tp[0] for tp in partitions})
        await self.settled("every replica has everything", lambda: self.uneven([*partitions, *passing]))
        self.loop.slack_s = REST_SLACK_S
        await self.settled("the tier is at rest", self.restless_copies, seconds=TIER_RESTS_S, every_s=1.0)
        await self.settled("the WAL tier is at rest", self.wal.restless, seconds=WAL_RESTS_S, every_s=5.0)
        self.loop.slack_s = 0.0
        reader, of_committed = self.client("reader"), self.client("reader of what is committed")
        served: dict[TopicPartition, tuple[tuple[int, int], ...]] = {}

        async def read() -> None:
            for tp in partitions:
                served[tp] = await read_all(reader, tp)
                if self.history.transactions:
                    await read_all(of_committed, tp, is_committed=True)
            for node in self.nodes.values():
                reader.home = (node.name, BROKER_PORT)
                await reader.refresh(None, is_final=True)

        await self.finish([reader.start(read())])
        await self._let_all_know_the_tier()
        copies = self.see_tier(is_final=True)
        found = self.inspect([*partitions, *passing], list(self.nodes.values()))
        self._keep_remains(passing, found, copies)
        for node in self.nodes.values():
            image = node.image()
            if image is not None:
                self.history.images.append(metalog.seen_by(image, node=node.id, life=node.life))
        for tp in partitions:
            self._keep_final(tp, served[tp], found, copies)
        self._keep_slots()
        self.wal.keep()
        await self._take_census()

    def unstable(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Partitions with a transaction that has not ended."""
        found = []
        for tp in partitions:
            leader = self.leader(tp)
            log = None if leader is None else leader.log(tp)
            if log is None or log.last_stable_offset < log.high_watermark:
                found.append(tp)
        return found

    async def end_transactions(self, partitions: Sequence[TopicPartition], *, seconds: float) -> None:
        """Give every transaction its time to end, and note what coordinators tell of them then. Whether one
        may be open still is for the rules to say, which know what was lost."""
        deadline = self.loop.now + seconds
        client = self.client("list of transactions")
        while True:
            found: list[TransactionSeen] = []
            await self.finish([client.start(self._list_transactions(client, found))])
            is_over = not self.unstable(partitions) and all(each.state not in UNDER_WAY for each in found)
            if is_over or self.loop.now > deadline:
                break
            await asyncio.sleep(0.5)
        self.history.transactions_seen += found

    async def _list_transactions(self, client: SimClient, found: list[TransactionSeen]) -> None:
        for node in self.nodes.values():
            fields = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}
            try:
                line = await client.line_at((node.name, BROKER_PORT))
                answer = await client.ask(Api.LIST_TRANSACTIONS, fields, line=line)
            except Lost:
                continue
            found += [
                TransactionSeen(transactional_id=each.transactional_id, state=each.transaction_state)
                for each in answer.transaction_states
            ]

    async def _let_all_know_the_tier(self) -> None:
        """What was decided or stored a moment ago is on its way to everybody; who never hears of it is
        judged."""
        deadline = self.loop.now + HEARD_S
        while self.loop.now < deadline:
            said = [(index, self.tier_said(index)) for _, index in self._tier_partitions()]
            known = {(fold.index, fold.copies) for fold in self._folds(said)}
            if not self.restless_copies() and not self.wal.restless() and len(known) == len(said):
                return
            await asyncio.sleep(0.5)

    async def _take_census(self) -> None:
        """Every client leaves; what is under way then has its time to end."""
        for client in self._clients:
            client.process.die()
        deadline = self.loop.now + LEAVE_S
        while True:
            await asyncio.sleep(0.5)
            self.loop.forget_finished()
            for node in self.nodes.values():
                node.forget_finished()
            image, connections = self.truth.image, self.fabric.connections
            has_used_wal = bool(self.bucket.wal_journal)
            found = [
                census.take(node, image, connections, at=self.loop.now, has_used_wal=has_used_wal)
                for node in self.ready()
            ]
            if self.loop.now > deadline or not any(any(leak_checks.leaks(each)) for each in found):
                break
        self.history.censuses += found

    def _keep_final(
        self,
        tp: TopicPartition,
        served: tuple[tuple[int, int], ...],
        found: Sequence[Found],
        copies: Sequence[tier.Copy],
    ) -> None:
        """Keep what the leader has, in the tier and in its files, and the same of every replica."""
        marks = [fetch for fetch in self.history.fetches if fetch.client == "reader" and fetch.tp == tp][-1]
        logs = {each.node: each.logs[tp] for each in found if tp in each.logs}
        final = logs[marks.node]
        starts = {number: log.log_start_offset for number in logs if (log := self.nodes[number].log(tp))}
        starts[marks.node] = marks.log_start_offset
        whole = {
            number: self._with_tiered(tp, log, starts.get(number, marks.log_start_offset), copies)
            for number, log in logs.items()
        }
        self.history.logs[tp] = FinalLog(
            node=marks.node,
            log_start_offset=marks.log_start_offset,
            last_stable_offset=marks.last_stable_offset,
            high_watermark=marks.high_watermark,
            log_end_offset=final.log_end_offset,
            batches=whole[marks.node],
            served=served,
            epochs=final.epochs,
        )
        replicas = [
            self._replica(number, tp, whole[number], copies, is_whole=True)
            for number in logs
            if self.nodes[number].log(tp) is not None
        ]
        self.history.samples.append(Sample(at=self.loop.now, tp=tp, logs=tuple(replicas), is_final=True))

    def _with_tiered(
        self, tp: TopicPartition, log: FoundLog, start: int, copies: Sequence[tier.Copy]
    ) -> tuple[Batch, ...]:
        """The log's batches, after those that it may read from the tier."""
        local = min((batch.base_offset for batch in log.batches), default=log.log_end_offset)
        tiered = self._objects.of_lineage(
            start,
            local,
            partition=(self.truth.image.topics[tp[0]].id, tp[1]),
            epochs=log.epochs,
            found=copies,
            objects=self.bucket.objects,
        )
        first = tiered[-1].batch.next_offset if tiered else 0
        return (
            *(stored.batch for stored in tiered),
            *(batch for batch in log.batches if batch.base_offset >= first),
        )

    def _whole(self, found: Found, tp: TopicPartition, copies: Sequence[tier.Copy]) -> tuple[Batch, ...]:
        """What is in a replica, in the tier and in its files."""
        log, known = found.logs.get(tp), self.nodes[found.node].log(tp)
        if log is None or known is None:
            return ()
        return self._with_tiered(tp, log, known.log_start_offset, copies)

    def _keep_remains(
        self, passing: Sequence[TopicPartition], found: Sequence[Found], copies: Sequence[tier.Copy]
    ) -> None:
        """Of topics that come and go: what is in the replicas of those that are there."""
        for tp in passing:
            topic = self.truth.image.topics[tp[0]]
            for each in found:
                is_made = not is_of_the_brokers(tp[0])
                if tp[1] == 0 and is_made and each.node in topic.partitions[0].replicas:
                    batches = self._whole(each, tp, copies)
                    values = tuple(value for batch in batches for value in batch.values)
                    self.history.remains.append(
                        Remains(node=each.node, topic=tp[0], topic_id=str(topic.id), values=values)
                    )

    def _keep_slots(self) -> None:
        assert self.truth.image is not None
        self.history.slots = tuple(self.truth.slots)
        self.history.tier_changes = list(self.bucket.tier_objects)
        self.history.collected_early = metalog.collected_early(self.bucket.journal)


async def read_all(
    reader: SimClient, tp: TopicPartition, *, is_committed: bool = False
) -> tuple[tuple[int, int], ...]:
    """Every (offset, value) from the log's start to the high watermark, or to the last stable offset."""
    at = begin = await reader.first_offset(tp)
    pairs: list[tuple[int, int]] = []
    is_seek = True
    while True:
        try:
            fetch = await reader.fetch(
                tp, at, max_bytes=1 << 20, max_wait_ms=0, seek=is_seek, is_committed=is_committed
            )
        except Lost:
            await reader.pause(RETRY_S)
            continue
        if fetch.result != "ok":
            await reader.pause(RETRY_S)
            continue
        is_seek = False
        for batch in fetch.batches:
            pairs += [pair for pair in batch.pairs() if pair[0] >= begin]
            at = batch.next_offset
        if at >= (fetch.last_stable_offset if is_committed else fetch.high_watermark):
            return tuple(pairs)
