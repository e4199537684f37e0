"""Metrics of replication, under the names that Kafka has."""

from __future__ import annotations

from tests.broker.replication_driver import Replicas


def told(world: Replicas, node_id: int) -> dict[str, float]:
    """What a scrape of this node finds, of all that has no labels but the topic's."""
    return {
        sample.name.removeprefix("kafka_"): sample.value
        for family in world.nodes[node_id].components.metrics()
        for sample in family.samples
        if sample.labels in ({}, {"topic": "t"})
    }


def test_replication_is_measured_under_the_names_that_kafka_has() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, min_insync_replicas="2")
        await world.append(1, bytes(1000))
        await world.agree(1, 2)
        found, name = told(world, 1), "server_replicamanager"
        assert found[f"{name}_partitioncount"] == found[f"{name}_leadercount"] == 1
        assert found[f"{name}_atminisrpartitioncount"] == 1
        assert found[f"{name}_underreplicatedpartitions"] == found[f"{name}_underminisrpartitioncount"] == 0
        read = told(world, 2)["server_brokertopicmetrics_replicationbytesin_total"]
        assert found["server_brokertopicmetrics_replicationbytesout_total"] == read > 1000
        world.change(replicas=(1, 2, 3), adding=(3,))
        assert told(world, 1)[f"{name}_underreplicatedpartitions"] == 0, "it still has what it had before"
        await world.until(lambda: 3 in world.isr())
        world.kill(2)
        world.kill(3)
        found = told(world, 1)
        assert found[f"{name}_underreplicatedpartitions"] == found[f"{name}_underminisrpartitioncount"] == 1
        assert found[f"{name}_atminisrpartitioncount"] == 0
        assert found[f"{name}_isrexpands_total"] == 1
        assert found[f"{name}_failedisrupdates_total"] == found[f"{name}_isrshrinks_total"] == 0

    Replicas().run(main)


def test_elections_and_partitions_without_a_leader_are_counted() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        found, name = told(world, 2), "controller_kafkacontroller"
        assert found[f"{name}_offlinepartitionscount"] == found[f"{name}_activecontrollercount"] == 0
        world.kill(1)
        world.kill(2, is_noticed=False)
        await world.start(2)
        world.kill(2)
        assert told(world, 3)[f"{name}_offlinepartitionscount"] == 1
        world.change(replicas=(3, 2), leader=3, isr=(3,), unclean=True)
        found = told(world, 3)
        assert found[f"{name}_offlinepartitionscount"] == 0
        assert found["controller_controllerstats_leaderelections_total"] == 2
        assert found["controller_controllerstats_uncleanleaderelections_total"] == 1

    Replicas().run(main)
