"""Transactions and groups that the server assigns, on the stage: coordinators that die at each step of an
end, zombies, producers that stop in the middle, copiers and members that fall silent. A script plays, then
everything heals and the history is judged by the rules of any seed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import pytest

from tests.sim.client import OF_TRANSACTIONS, SimClient
from tests.sim.copier import Copier, Membership
from tests.sim.history import History, TopicPartition
from tests.sim.node import Node, node_of
from tests.sim.plan import OF_SUBSCRIBERS
from tests.sim.stage import Stage
from tests.sim.subscriber import SESSION_S, Subscriber
from tests.sim.transactor import FIRST, SECOND, Fenced, TransactionalProducer
from tests.sim.verdict import Verdict, judge
from tests.sim.workload import Consumer, Member, read_commit

T: tuple[TopicPartition, ...] = (("t", 0), ("t", 1))
COPY: tuple[TopicPartition, ...] = (("o", 0), ("o", 1))
TIMEOUT_MS = 3000
COPIERS = "copiers"
VERSIONS = pytest.mark.parametrize("version", [FIRST, SECOND])

pytestmark = pytest.mark.usefixtures("quiet")


class Act:
    """A cluster with two topics, what a script does in it, and its end."""

    def __init__(self, name: str, *, brokers: int = 1, replicas: int = 3) -> None:
        copies = str(min(3, brokers))
        properties = {
            "log.dirs": "/data",
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": str(min(2, brokers)),
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
            "group.initial.rebalance.delay.ms": "0",
            "auto.create.topics.enable": "false",
            "log.flush.single.replica": "true",
            **OF_SUBSCRIBERS,
        }
        self.stage = Stage(name, brokers=brokers, properties=properties)
        self.brokers = brokers
        self.replicas = min(replicas, brokers)
        self.history: History = self.stage.history
        self._number = 0

    def perform(self, script: Callable[[Act], Awaitable[None]]) -> Verdict:
        self.stage.loop.run(self._perform(script))
        return judge(self.history)

    async def _perform(self, script: Callable[[Act], Awaitable[None]]) -> None:
        stage = self.stage
        await stage.start()
        admin = stage.client("admin")
        for topic in ("t", "o"):
            making = admin.create_topic_surely(topic, 2, {}, replicas=self.replicas)
            await stage.finish([admin.start(making)])
        reader = stage.client("consumer of what is committed")
        consumer = Consumer(client=reader, partitions=[*T, *COPY], pause_s=0.1, is_committed=True)
        reading = reader.start(consumer.run())
        await script(self)
        stage.heal()
        for node in stage.nodes.values():
            if not node.is_alive:
                node.begin()
        await stage.become_whole()
        stage.env.stopping = True
        await stage.finish([reading])
        await stage.end_transactions([*T, *COPY], seconds=TIMEOUT_MS / 1000 + 10.0)
        for group in sorted({commit.group for commit in self.history.commits}):
            await self.read_commits(group)
        await stage.final_state([*T, *COPY])

    # the cast -----------------------------------------------------------------------------------------------

    def producer(
        self,
        name: str,
        version: int,
        *,
        transactional_id: str = "x",
        on_end: Callable[[str], None] = lambda _: None,
    ) -> TransactionalProducer:
        self._number += 1
        return TransactionalProducer(
            client=self.stage.client(name),
            number=self._number,
            transactional_id=transactional_id,
            timeout_ms=TIMEOUT_MS,
            version=version,
            on_end=on_end,
        )

    async def does(self, client: SimClient, work: Awaitable[object]) -> None:
        """Have a client do this, and wait until it has."""

        async def run() -> None:
            await work

        await self.stage.finish([client.start(run())])

    async def read_commits(self, group: str) -> None:
        client = self.stage.client(f"committed by {group}")

        async def read() -> None:
            for tp in T:
                while await read_commit(client, group, tp) is None:
                    pass

        await self.does(client, read())

    def coordinator_of(self, producer: TransactionalProducer) -> Node:
        host, _ = producer.client.coordinators[OF_TRANSACTIONS, producer.transactional_id]
        return self.stage.nodes[node_of(host)]

    def fates(self) -> list[str]:
        return [each.fate for each in self.history.transactions]

    def committed(self, tps: Sequence[TopicPartition]) -> set[int]:
        """The values that whoever read what is committed was given."""
        return {
            value
            for fetch in self.history.fetches
            if fetch.is_committed and fetch.tp in tps
            for _, value in fetch.delivered()
        }


def sent_in(act: Act, key: str) -> set[int]:
    return {value for send in act.history.sends if send.transaction == key for value in send.values}


# producers --------------------------------------------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("brokers", [1, 3])
def test_what_is_committed_is_read_and_what_is_aborted_is_not(brokers: int, version: int) -> None:
    act = Act(f"plain {version}", brokers=brokers)

    async def script(act: Act) -> None:
        producer = act.producer("a", version)

        async def work() -> None:
            await producer.begin_anew()
            for commits in (True, False, True):
                await producer.ended(lambda: producer.send([(T[0], 2), (T[1], 1)]), commits=commits)

        await act.does(producer.client, work())

    assert not act.perform(script).violations
    assert act.fates() == ["committed", "aborted", "committed"]
    assert act.committed(T) == sent_in(act, "a/1") | sent_in(act, "a/3")


async def ends_under_a_kill(act: Act, version: int, steps: int, *, commits: bool) -> None:
    """Three transactions; so many steps after the end of the second is asked for its coordinator dies, or who
    leads one of its partitions."""
    asked = 0

    def kill(host: str) -> None:
        nonlocal asked
        asked += 1
        victim = act.coordinator_of(producer) if steps % 2 else act.stage.leader(T[1])
        if asked == 2 and victim is not None and victim.process is not None:
            victim.process.die_in_steps(steps, power=False)

    producer = act.producer("a", version, on_end=kill)

    async def send(number: int) -> None:
        await producer.send([(T[0], 1), (T[1], 1)])
        await producer.send_offsets("g", "", -1, {T[0]: number})

    async def work() -> None:
        await producer.begin_anew()
        for number, ends_well in enumerate((True, commits, True)):
            await producer.ended(partial(send, number), commits=ends_well)

    task = producer.client.start(work())
    keeper = act.stage.loop.create_task(_restart_the_dead(act), name="keeper")
    await act.stage.finish([task])
    keeper.cancel()


async def _restart_the_dead(act: Act) -> None:
    while True:
        await act.stage.eventually(
            "somebody dies", lambda: len(act.stage.living()) < act.brokers, seconds=1e9, every_s=0.5
        )
        for node in act.stage.nodes.values():
            if not node.is_alive:
                node.begin()


@VERSIONS
@pytest.mark.parametrize("brokers", [1, 3])
@pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
def test_a_coordinator_may_die_at_each_step_of_an_end(brokers: int, version: int, commits: bool) -> None:
    for steps in range(1, 120, 15):
        act = Act(f"steps {steps}", brokers=brokers)
        verdict = act.perform(lambda act, at=steps: ends_under_a_kill(act, version, at, commits=commits))  # type: ignore[misc]
        assert not verdict.violations, f"after {steps} steps"
        assert act.fates() == ["committed", "committed" if commits else "aborted", "committed"]


@VERSIONS
def test_a_zombie_cannot_commit_and_what_it_wrote_is_aborted(version: int) -> None:
    act = Act("zombie", brokers=3)

    async def script(act: Act) -> None:
        first, second = act.producer("a", version), act.producer("b", version)

        async def work() -> None:
            await first.begin_anew()
            first.begin()
            await first.send([(T[0], 1), (T[1], 1)])
            await second.begin_anew()
            await second.ended(lambda: second.send([(T[0], 1)]))
            with pytest.raises(Fenced):
                await first.commit()

        await act.does(first.client, work())

    assert not act.perform(script).violations
    fates = {each.key: each.fate for each in act.history.transactions}
    assert fates == {"b/1": "committed", "a/1": "aborted"}
    assert act.committed(T) == sent_in(act, "b/1")


@VERSIONS
def test_what_a_producer_leaves_open_is_aborted_when_its_time_is_over(version: int) -> None:
    act = Act("left open", brokers=3)

    async def script(act: Act) -> None:
        producer = act.producer("a", version)

        async def work() -> None:
            await producer.begin_anew()
            producer.begin()
            await producer.send([(T[0], 1), (T[1], 1)])
            producer.walk_away()

        await act.does(producer.client, work())
        assert act.stage.unstable(T) == list(T)
        stable = "the transaction is aborted"
        await act.stage.eventually(stable, lambda: not act.stage.unstable(T), seconds=TIMEOUT_MS / 1000 + 2.0)

    assert not act.perform(script).violations
    assert act.committed(T) == set()


@VERSIONS
def test_offsets_of_a_transaction_count_once_it_is_committed(version: int) -> None:
    act = Act("offsets", brokers=3)

    async def script(act: Act) -> None:
        producer = act.producer("a", version)
        client = producer.client
        seen: list[int] = []

        async def see(*, is_stable: bool = False) -> None:
            found = await read_commit(client, "g", T[0], is_stable=is_stable)
            seen.append(-2 if found is None else found.offset)

        async def work() -> None:
            await producer.begin_anew()
            for offset, commits in ((5, False), (7, True)):

                async def send(at: int = offset) -> None:
                    await producer.send([(T[1], 1)])
                    await producer.send_offsets("g", "", -1, {T[0]: at})
                    await see()
                    await see(is_stable=True)

                await producer.ended(send, commits=commits)
                while await read_commit(client, "g", T[0]) is None:
                    pass
                await see(is_stable=True)

        await act.does(client, work())
        assert seen == [-1, -2, -1, -1, -2, 7]

    assert not act.perform(script).violations


@VERSIONS
def test_no_marker_is_written_before_the_decision_is_durable(version: int) -> None:
    """Two of three replicas of the coordinator's log are away, which takes nothing then; the partitions that
    are to be told are on the third alone."""
    act = Act("undecided", brokers=3, replicas=1)

    async def script(act: Act) -> None:
        stage, producer = act.stage, act.producer("a", version)

        producer.timeout_ms = 60_000  # nothing but its producer ends it

        async def begin() -> None:
            producer.begin()
            await producer.send([(tp, 1) for tp in T])

        async def move_here() -> None:
            admin = stage.client("mover")
            for tp in T:
                await admin.reassign(tp, [coordinator.id])

        await act.does(producer.client, producer.begin_anew())
        coordinator = act.coordinator_of(producer)
        await act.does(producer.client, move_here())
        await stage.settled("all is in its place", stage.broken)
        await act.does(producer.client, begin())
        for node in stage.nodes.values():
            if node is not coordinator:
                node.kill()
        state = "__transaction_state", 0
        await stage.eventually("it is alone", lambda: stage.isr(state) == (coordinator.id,), seconds=60.0)
        image = coordinator.image
        alone = stage.truth.image.seq
        await stage.eventually("it knows", lambda: image().seq >= alone, seconds=10.0)  # type: ignore[union-attr]
        committing = producer.client.start(producer.commit())
        await asyncio.sleep(5.0)
        assert stage.unstable(T) == list(T), "a marker was written"
        assert not committing.done()
        for node in stage.nodes.values():
            if not node.is_alive:
                node.begin()
        await stage.finish([committing])

    assert not act.perform(script).violations
    assert act.fates() == ["committed"]
    assert act.committed(T) == sent_in(act, "a/1")


@VERSIONS
def test_markers_are_written_once_while_their_end_cannot_be_noted(version: int) -> None:
    """The replicas of the coordinator's log die with the decision in one of them alone: no election can lose
    it, yet the log takes nothing more."""
    act = Act("not noted", brokers=3, replicas=1)

    async def script(act: Act) -> None:
        stage = act.stage

        def kill_others(host: str) -> None:
            for node in stage.nodes.values():
                if node.name != host:
                    node.kill()

        producer = act.producer("a", version, on_end=kill_others)
        producer.timeout_ms = 60_000

        async def write_here() -> None:
            admin = stage.client("mover")
            for tp in T:
                await admin.reassign(tp, [coordinator.id])
            producer.begin()
            await producer.send([(tp, 1) for tp in T])

        await act.does(producer.client, producer.begin_anew())
        coordinator = act.coordinator_of(producer)
        await act.does(producer.client, write_here())
        committing = producer.client.start(producer.commit())
        await stage.eventually("it is told", lambda: not stage.unstable(T), seconds=60.0)
        ends = [stage.ends(tp) for tp in T]
        await asyncio.sleep(5.0)
        assert [stage.ends(tp) for tp in T] == ends
        for node in stage.nodes.values():
            if not node.is_alive:
                node.begin()
        await stage.finish([committing])

    assert not act.perform(script).violations
    assert act.fates() == ["committed"]


@VERSIONS
def test_a_transaction_is_not_over_before_each_partition_has_its_marker(version: int) -> None:
    """The leader of one of them is away when the transaction ends."""
    act = Act("a leader is away", brokers=3, replicas=1)

    async def script(act: Act) -> None:
        stage, producer = act.stage, act.producer("a", version)

        async def begin() -> None:
            await producer.begin_anew()
            producer.begin()
            await producer.send([(tp, 1) for tp in T])

        async def spread() -> None:
            admin = stage.client("mover")
            others = [number for number in stage.nodes if number != coordinator.id]
            for tp, number in zip(T, others, strict=True):
                await admin.reassign(tp, [number])

        await act.does(producer.client, begin())
        coordinator = act.coordinator_of(producer)
        await act.does(producer.client, spread())
        await stage.settled("all is in its place", stage.broken)
        away = stage.leader(T[1])
        assert away is not None
        away.kill()
        await act.does(producer.client, producer.commit())
        await stage.eventually("the other is told", lambda: not stage.unstable(T[:1]), seconds=20.0)
        away.begin()

    assert not act.perform(script).violations
    assert act.fates() == ["committed"]
    assert act.committed(T) == sent_in(act, "a/1")


# copiers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_subscriber", [False, True], ids=["classic", "assigned by the server"])
@VERSIONS
def test_copiers_that_are_killed_doubled_and_paused_copy_all_once(version: int, is_subscriber: bool) -> None:
    act = Act("copy", brokers=3)
    act.history.copies_of[COPIERS] = T

    async def script(act: Act) -> None:
        stage = act.stage
        producer = act.producer("a", SECOND, transactional_id="input")

        async def fill() -> None:
            await producer.begin_anew()
            for number in range(12):
                await producer.ended(lambda: producer.send([(T[0], 2), (T[1], 1)]), commits=number % 3 > 0)
                await producer.client.pause(0.3)

        def copier(name: str) -> SimClient:
            of_copies = act.producer(f"{COPIERS}-{name}", version, transactional_id=f"copier-{name[0]}")
            client = of_copies.client
            membership: Membership
            if is_subscriber:
                membership = Subscriber(client=client, group=COPIERS, topics=("t",))
            else:
                membership = Member(client=client, group=COPIERS, partitions=T, rounds=0)
            tasks.append(client.start(Copier(producer=of_copies, membership=membership, targets=COPY).run()))
            return client

        tasks: list[object] = []
        filling = producer.client.start(fill())
        first, second = copier("1"), copier("2")
        await stage.eventually("copies are made", lambda: act.committed(COPY), seconds=60.0)
        first.process.pause()
        third = copier("1b")  # under the id of the first
        await stage.finish([filling])
        second.process.die()
        first.process.resume()
        wanted = {value for each in range(1, 13) if (each - 1) % 3 > 0 for value in sent_in(act, f"a/{each}")}

        def copied() -> bool:
            given = act.committed(COPY)
            found = {
                origin.value
                for send in act.history.sends
                for value, origin in zip(send.values, send.origins, strict=bool(send.origins))
                if value in given
            }
            return found == wanted

        await stage.eventually("all is copied", copied, seconds=60.0)
        third.process.die()
        first.process.die()

    assert not act.perform(script).violations


# members ----------------------------------------------------------------------------------------------------


def test_a_member_that_falls_silent_loses_its_place_and_what_it_commits_then_is_refused() -> None:
    act = Act("members", brokers=3)

    async def script(act: Act) -> None:
        members = [
            Subscriber(client=act.stage.client(name), group="g", topics=("t",)) for name in ("m1", "m2")
        ]

        async def until(is_so: Callable[[], bool], *who: Subscriber) -> None:
            while not is_so():
                for member in who:
                    if await member.join() is not None:
                        await member.heartbeat()
                await who[0].client.pause(0.5)

        async def work() -> None:
            one, two = members
            await until(lambda: set(one.owned) == set(T), one)
            await until(lambda: len(one.owned) == len(two.owned) == 1, one, two)
            old = one.owned[0]
            epoch = one.epoch
            await until(lambda: set(two.owned) == set(T), two)
            code = await one.committer.commit(old, 9, member=one.member_id, generation=epoch)
            assert code.name == "unknown_member_id"
            assert not await one.heartbeat()
            await until(lambda: len(one.owned) == len(two.owned) == 1, one, two)
            await two.leave()
            await until(lambda: set(one.owned) == set(T), one)

        before = act.stage.loop.now
        await act.does(members[0].client, work())
        assert act.stage.loop.now - before > SESSION_S

    assert not act.perform(script).violations


def test_a_partition_is_given_when_it_was_given_up() -> None:
    """The first member, which owns both, is told to give one up and takes its time."""
    act = Act("given up", brokers=3)

    async def script(act: Act) -> None:
        one, two = (
            Subscriber(client=act.stage.client(name), group="g", topics=("t",)) for name in ("m1", "m2")
        )

        async def beat(*members: Subscriber) -> None:
            for member in members:
                if await member.join() is not None:
                    await member.heartbeat()
            await one.client.pause(0.5)

        async def work() -> None:
            while set(one.owned) != set(T):
                await beat(one)
            epoch = one.epoch
            await beat(two)
            while set(one.owned) == set(T):
                await beat(one)
            given_up = next(tp for tp in T if tp not in one.owned)
            for _ in range(4):
                await beat(two)
                assert two.owned == (), "its owner has not said that it gave it up"
            while not two.owned:
                await beat(one, two)
            assert two.owned == (given_up,)
            code = await one.committer.commit(given_up, 9, member=one.member_id, generation=epoch)
            assert code.name == "stale_member_epoch"
            code = await two.committer.commit(given_up, 9, member=two.member_id, generation=two.epoch)
            assert code.name == "none"

        await act.does(one.client, work())

    assert not act.perform(script).violations


def test_a_static_member_that_leaves_for_now_finds_what_it_owned() -> None:
    act = Act("static", brokers=1)

    async def script(act: Act) -> None:
        client = act.stage.client("m")
        members = [
            Subscriber(client=client, group="g", topics=("t",), instance=name) for name in ("i1", "i2")
        ]

        async def beat(*who: Subscriber) -> None:
            for member in who:
                if await member.join() is not None:
                    await member.heartbeat()
            await client.pause(0.5)

        async def work() -> None:
            one, two = members
            while not len(one.owned) == len(two.owned) == 1:
                await beat(one, two)
            had = one.owned
            await one.leave(for_now=True)
            for _ in range(4):
                await beat(two)
                assert len(two.owned) == 1, "nobody is given what it comes back for"
            again = Subscriber(client=client, group="g", topics=("t",), instance="i1")
            while not again.owned:
                await beat(two, again)
            assert again.owned == had

        await act.does(client, work())

    assert not act.perform(script).violations


def test_classic_members_and_those_the_server_assigns_share_a_group() -> None:
    act = Act("both", brokers=3)

    async def script(act: Act) -> None:
        classic = Member(client=act.stage.client("classic"), group="g", partitions=T, rounds=0)
        assigned = Subscriber(client=act.stage.client("assigned"), group="g", topics=("t",))

        async def live(member: Membership) -> None:
            while not over:
                if await member.join() is not None:
                    await member.heartbeat()
                await asyncio.sleep(0.4)

        def shared() -> bool:
            sizes = len(classic.owned), len(assigned.owned)
            return sizes == (1, 1) and {*classic.owned, *assigned.owned} == set(T)

        over = False
        tasks = [classic.client.start(live(classic))]
        alone = "the classic member owns all"
        await act.stage.eventually(alone, lambda: set(classic.owned) == set(T), seconds=30)
        tasks.append(assigned.client.start(live(assigned)))
        await act.stage.eventually("both own one", shared, seconds=60)
        over = True
        await act.stage.finish(tasks)

    assert not act.perform(script).violations
