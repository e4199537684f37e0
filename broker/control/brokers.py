"""Which brokers there are: registered, fenced, stopping, gone; and what each of them is given.

Owns: the commands by which a broker joins, is fenced and comes back, stops and leaves, as Kafka has them, and
producer ids. Does not own: sessions (what calls these commands, and when), what becomes of the partitions of
a broker that comes or goes (the fold, image.py).

Invariant: a broker is named with its epoch, so what was meant for an earlier incarnation changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from broker.control.commands import RECORDS_MAX_PER_COMMAND, Rules
from broker.control.elections import allows_unclean_anywhere, elect_unclean, partitions_of
from broker.control.image import BrokerImage, Image
from broker.control.metadata_records import (
    NO_LEADER,
    BrokerFenced,
    BrokerRegistered,
    BrokerStopping,
    BrokerUnregistered,
    ControllerElected,
    ProducerIdsAllocated,
    Record,
)
from broker.decisions import Decision
from broker.endpoint import Endpoint
from protocol.errors import ErrorCode, KafkaError
from protocol.work import Work

PRODUCER_ID_BLOCK = 1000
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""The security protocols, in the order of Kafka's numbers."""
DIRECTORY_IDS_RESERVED = 100


def election(image: Image, controller_id: int) -> ControllerElected:
    """The bump that makes a node the controller, once its slot is won."""
    return ControllerElected(controller_id=controller_id, controller_epoch=image.controller_epoch + 1)


def check_broker_epoch(image: Image, broker_id: int, broker_epoch: int) -> BrokerImage:
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise KafkaError(
            ErrorCode.stale_broker_epoch, f"No broker registration found for broker id {broker_id}"
        )
    if broker.epoch != broker_epoch:
        raise KafkaError(
            ErrorCode.stale_broker_epoch,
            f"Expected broker epoch {broker.epoch}, but got broker epoch {broker_epoch}",
        )
    return broker


def _with_unclean_elections(
    image: Image, rules: Rules, records: Iterable[Record], *, without: int = NO_LEADER
) -> Work[tuple[Record, ...]]:
    """The records, and in the same slot leaders for what they leave without one, where that is allowed; at
    most as many as a slot should hold, and the controller elects the others later."""
    records = tuple(records)
    if not (yield from allows_unclean_anywhere(image, rules.config)):
        return records
    ahead = image.copy()
    yield from ahead.folding(image.seq + 1, records)
    most = RECORDS_MAX_PER_COMMAND
    return (*records, *(yield from elect_unclean(ahead, rules.config, without=without, most=most)))


# --- joining ---


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker:
    """A new incarnation asks to be a member; its epoch is the slot its record wins.

    One that asks again, because it never heard the answer, keeps its epoch.
    """

    cluster_id: str
    broker_id: int
    incarnation: UUID
    directories: tuple[UUID, ...]
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    clean_epoch: int
    others_alive: frozenset[int] = field(default_factory=frozenset)
    """Brokers whose session another process holds: their id cannot be taken."""

    def decide(self, image: Image, rules: Rules) -> Work[Decision[Record, None]]:
        if image.cluster_id != self.cluster_id:
            raise KafkaError(
                ErrorCode.inconsistent_cluster_id,
                f"Expected cluster ID {image.cluster_id}, but got cluster ID {self.cluster_id}",
            )
        before = image.brokers.get(self.broker_id)
        is_known = before is not None and before.incarnation == self.incarnation
        if before is not None and not is_known and self.broker_id in self.others_alive:
            raise KafkaError(
                ErrorCode.duplicate_broker_registration,
                "Another broker is registered with that broker id. If the broker was recently restarted this "
                "should self-resolve once the heartbeat manager expires the broker's session.",
            )
        self._check_directories(image)
        if before is not None and is_known:
            return Decision(records=self._amendment(before))
        # A disk that was changed, or not closed in order, is the last place to look for records: the
        # controller asks again later, when nobody better came.
        records = yield from _with_unclean_elections(image, rules, (self.record(),), without=self.broker_id)
        return Decision(records=records)

    def record(self) -> BrokerRegistered:
        return BrokerRegistered(
            broker_id=self.broker_id,
            incarnation=self.incarnation,
            directories=self.directories,
            endpoints=self.endpoints,
            rack=self.rack,
            clean_epoch=self.clean_epoch,
        )

    def _amendment(self, before: BrokerImage) -> tuple[BrokerRegistered, ...]:
        if (before.directories, before.endpoints, before.rack) == (
            self.directories,
            self.endpoints,
            self.rack,
        ):
            return ()
        return (
            BrokerRegistered(
                broker_id=self.broker_id,
                incarnation=self.incarnation,
                directories=self.directories,
                endpoints=self.endpoints,
                rack=self.rack,
                fenced=before.fenced,
                epoch=before.epoch,
                stopping=before.stopping,
            ),
        )

    def _check_directories(self, image: Image) -> None:
        def refuse(why: str) -> KafkaError:
            return KafkaError(ErrorCode.invalid_registration, why)

        if not self.directories:
            raise refuse("No directories specified in request")
        if any(directory.int < DIRECTORY_IDS_RESERVED for directory in self.directories):
            raise refuse("Reserved directory ID in request")
        if len(set(self.directories)) != len(self.directories):
            raise refuse("Duplicate directory ID in request")
        for other in image.brokers.values():
            for directory in self.directories:
                if other.id != self.broker_id and directory in other.directories:
                    raise refuse(f"Broker {other.id} is already registered with directory {directory}")


# --- fenced and back ---


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceBrokers:
    """Fence brokers whose sessions have ended, in one slot; not one that is back as another incarnation."""

    brokers: tuple[tuple[int, int], ...]
    """(broker id, broker epoch)"""

    def decide(self, image: Image, rules: Rules) -> Work[Decision[Record, None]]:
        records = [
            BrokerFenced(broker_id=broker_id, broker_epoch=broker_epoch, fenced=True)
            for broker_id, broker_epoch in dict.fromkeys(self.brokers)
            if image.is_live(broker_id) and image.brokers[broker_id].epoch == broker_epoch
        ]
        if not records:
            return Decision()
        return Decision(records=(yield from _with_unclean_elections(image, rules, records)))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfenceBroker:
    """Unfence a broker whose session is back; one that is stopping stays fenced."""

    broker_id: int
    broker_epoch: int

    def decide(self, image: Image, rules: Rules) -> Work[Decision[Record, None]]:
        broker = check_broker_epoch(image, self.broker_id, self.broker_epoch)
        if not broker.fenced or broker.stopping:
            return Decision()
        back = BrokerFenced(broker_id=self.broker_id, broker_epoch=self.broker_epoch, fenced=False)
        return Decision(records=(yield from _with_unclean_elections(image, rules, (back,))))


# --- leaving ---


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlledShutdown:
    """Let a broker stop; it asks again until the answer is yes.

    The answer is no while what the broker leads is being given to others: these must hear of it first. What
    the broker alone is in sync with no other can take, so it does not keep it from stopping.
    """

    broker_id: int
    broker_epoch: int

    def decide(self, image: Image, rules: Rules) -> Work[Decision[Record, bool]]:
        broker = check_broker_epoch(image, self.broker_id, self.broker_epoch)
        if broker.fenced or broker.stopping:
            return Decision(response=True)
        moves = yield from partitions_of(
            image, lambda each: each.leader == self.broker_id and len(each.isr) > 1
        )
        stopping = BrokerStopping(broker_id=self.broker_id, broker_epoch=self.broker_epoch)
        return Decision(response=not moves, records=(stopping,))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBroker:
    """Remove a broker for good. The controller cannot be removed: its cluster would have no leader."""

    broker_id: int

    def decide(self, image: Image, rules: Rules) -> Work[Decision[Record, None]]:
        broker = image.brokers.get(self.broker_id)
        if broker is None:
            raise KafkaError(
                ErrorCode.broker_id_not_registered,
                f"Broker ID {self.broker_id} is not currently registered",
            )
        if self.broker_id == image.controller_id:
            raise KafkaError(
                ErrorCode.invalid_request,
                f"Broker ID {self.broker_id} is the controller: stop it, and unregister it when another "
                "broker has taken over",
            )
        gone = BrokerUnregistered(broker_id=broker.id, broker_epoch=broker.epoch)
        return Decision(records=(yield from _with_unclean_elections(image, rules, (gone,))))


# --- producer ids ---


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIds:
    broker_id: int
    broker_epoch: int

    def decide(self, image: Image, rules: Rules) -> Decision[Record, range]:
        check_broker_epoch(image, self.broker_id, self.broker_epoch)
        first = image.next_producer_id
        if first > 0x7FFFFFFFFFFFFFFF - PRODUCER_ID_BLOCK:
            raise KafkaError(ErrorCode.unknown_server_error, "Exhausted all producerIds")
        block = range(first, first + PRODUCER_ID_BLOCK)
        record = ProducerIdsAllocated(
            broker_id=self.broker_id, broker_epoch=self.broker_epoch, next_producer_id=block.stop
        )
        return Decision(response=block, records=(record,))
