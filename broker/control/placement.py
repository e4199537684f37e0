"""Where the replicas of new partitions go.

Owns: the choice of brokers for partitions that a request does not assign, and the checks of those it does.
Does not own: how many partitions and replicas there are (topics.py), elections (elections.py). Invariant: a
replica list names each broker once, and the leader of a new partition is active.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from broker.control.commands import Rules
from broker.control.image import BrokerImage, Image
from broker.control.metadata_records import PartitionImage, new_partition
from protocol.errors import ErrorCode, KafkaError
from protocol.work import Work

PLACED_AT_ONCE = 16


def place_new(
    image: Image, rules: Rules, *, first: int, count: int, replication_factor: int
) -> Work[tuple[PartitionImage, ...]]:
    start = rules.pick(max(1, len(image.brokers)))
    staying = [broker for broker in image.brokers.values() if not broker.stopping]
    placed = place(staying, partitions=count, replication_factor=replication_factor, start=start)
    partitions: list[PartitionImage] = []
    for at, replicas in enumerate(placed):
        if at % PLACED_AT_ONCE == 0:
            yield
        partitions.append(new_partition(first + at, replicas, tuple(filter(image.is_active, replicas))))
    return tuple(partitions)


def place(
    brokers: Sequence[BrokerImage], *, partitions: int, replication_factor: int, start: int
) -> Iterator[tuple[int, ...]]:
    """Replicas for each partition, leader first.

    Leaders are live and follow each other in turn, one rack after the other. Each further replica goes to a
    rack that has fewest of them, there to a live broker while there is one.
    """
    live = _striped([broker for broker in brokers if not broker.fenced])
    if not live:
        raise KafkaError(ErrorCode.invalid_replication_factor, "All brokers are currently fenced.")
    if replication_factor > len(brokers):
        raise KafkaError(
            ErrorCode.invalid_replication_factor,
            f"The target replication factor of {replication_factor} cannot be reached because only "
            f"{len(brokers)} broker(s) are registered or some brokers have all their log directories "
            "cordoned.",
        )
    fenced = _striped([broker for broker in brokers if broker.fenced])
    return (
        _replicas(live, fenced, leader=start + at, shift=(start + at) // len(live), count=replication_factor)
        for at in range(partitions)
    )


def _striped(brokers: Iterable[BrokerImage]) -> list[BrokerImage]:
    """One broker of each rack in turn."""
    racks: dict[str, list[BrokerImage]] = {}
    for broker in sorted(brokers, key=lambda broker: broker.id):
        racks.setdefault(broker.rack or "", []).append(broker)
    columns = [racks[rack] for rack in sorted(racks)]
    depth = max(map(len, columns), default=0)
    return [column[row] for row in range(depth) for column in columns if row < len(column)]


def _replicas(
    live: list[BrokerImage], fenced: list[BrokerImage], *, leader: int, shift: int, count: int
) -> tuple[int, ...]:
    at = leader % len(live)
    others = live[at + 1 :] + live[:at]
    turn = shift % len(others) if others else 0
    candidates = others[turn:] + others[:turn] + fenced
    chosen = [live[at].id]
    in_rack = Counter([live[at].rack])
    while len(chosen) < count:
        broker = min(candidates, key=lambda broker: (in_rack[broker.rack], broker.fenced))
        candidates.remove(broker)
        chosen.append(broker.id)
        in_rack[broker.rack] += 1
    return tuple(chosen)


def check_assignment(image: Image, replicas: tuple[int, ...], replication_factor: int | None) -> None:
    def refuse(why: str) -> KafkaError:
        return KafkaError(
            ErrorCode.invalid_replica_assignment, f"The manual partition assignment includes {why}"
        )

    if not replicas:
        raise refuse("an empty replica list.")
    counts = Counter(replicas)
    wrong = min((id_ for id_, count in counts.items() if count > 1 or id_ not in image.brokers), default=None)
    if wrong is not None and wrong not in image.brokers:
        raise refuse(f"broker {wrong}, but no such broker is registered.")
    if wrong is not None:
        raise refuse(f"the broker {wrong} more than once.")
    if replication_factor is not None and len(replicas) != replication_factor:
        raise refuse(
            f"a partition with {len(replicas)} replica(s), but this is not consistent with previous "
            f"partitions, which have {replication_factor} replica(s)."
        )


def assigned_partition(image: Image, index: int, replicas: tuple[int, ...]) -> PartitionImage:
    isr = tuple(filter(image.is_active, replicas))
    if not isr:
        raise KafkaError(
            ErrorCode.invalid_replica_assignment,
            f"All brokers specified in the manual partition assignment for partition {index} are fenced "
            "or in controlled shutdown.",
        )
    return new_partition(index, replicas, isr)
