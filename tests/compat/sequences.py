"""Generated sequences of requests: sound ones that build on each other, and every way to get one wrong.

Owns: what a step is, the names by which steps speak of what a broker will give (ids, generations, sessions),
one strategy for each API, and unusual values for every field of every version, found in the message classes.
Does not own sending and comparing (play). Invariant: a sequence is drawn whole before it is played, from
nothing but hypothesis, so a seed names it and shrinking works; what it needs to know of the answers it says
by reference (`Given`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from uuid import UUID

from hypothesis import strategies as st

from protocol.apis import SERVED, Api
from protocol.compression import Codec
from protocol.messages import codec, encode_request
from protocol.records import build_batch
from tests.compat.differential import (
    SPOILED,
    Side,
    TopicId,
    commit_fields,
    fetch_fields,
    join_fields,
    list_offsets_fields,
    new_topic,
    offset_fetch_fields,
    produce_fields,
)
from tests.compat.samples import FIRST_MS

T = TypeVar("T")
Draw = Callable[[st.SearchStrategy[T]], T]

SCENES_MAX = 12
UNUSUAL_MAX = 2


# --- what a step speaks of --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Given:
    """A value that a broker gave earlier in the sequence, or `otherwise` when it did not."""

    what: str
    plus: int = 0
    otherwise: Any = "nobody"

    def __call__(self, side: Side) -> Any:
        value = side.remembered.get(self.what, self.otherwise)
        return value + self.plus if self.plus else value

    def __repr__(self) -> str:
        return f"<{self.what}{f' {self.plus:+}' if self.plus else ''}>"


@dataclass(frozen=True, slots=True)
class Named:
    """A name that no other sequence uses."""

    text: str

    def __call__(self, side: Side) -> str:
        return str(side.remembered["prefix"]) + self.text

    def __repr__(self) -> str:
        return f"<{self.text}>"


@dataclass(frozen=True, slots=True)
class Batch:
    """A record batch by what is special about it."""

    count: int = 1
    size: int = 5
    key: bytes | None = None
    codec: int = 0
    producer: tuple[Any, Any, int] | None = None
    """Id, epoch, sequence; the first two may be what a broker gave."""
    transactional: bool = False
    after_ms: int = 0
    spoiled: str = ""

    def __call__(self, side: Side) -> bytes:
        producer_id, epoch, sequence = side.resolve(list(self.producer or (-1, -1, -1)))
        batch = bytes(
            build_batch(
                [(self.key, b"v" * self.size, (), FIRST_MS + self.after_ms + at) for at in range(self.count)],
                codec=self.codec,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
                transactional=self.transactional,
            )
        )
        return SPOILED[self.spoiled](batch) if self.spoiled else batch

    def __repr__(self) -> str:
        default = Batch()
        told = [
            f"{name}={getattr(self, name)!r}"
            for name in Batch.__slots__
            if getattr(self, name) != getattr(default, name)
        ]
        return f"Batch({', '.join(told)})"


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing done to a whole frame (without its size): it then is what no encoder of ours makes."""

    kind: str
    at: int
    value: int = 0

    def __call__(self, frame: bytes) -> bytes:
        body = bytearray(frame[4:])
        size = len(body)
        at = self.at % max(1, len(body))
        if self.kind == "cut":
            del body[-1 - self.at % max(1, len(body)) :]
            size = len(body)
        elif self.kind == "append":
            body += bytes([self.value]) * (1 + self.at % 9)
            size = len(body)
        elif self.kind == "flip":
            body[at] ^= self.value or 0xFF
        elif self.kind == "insert":
            body.insert(at, self.value)
            size = len(body)
        elif self.kind == "remove":
            del body[at]
            size = len(body)
        elif self.kind == "api key":
            body[0:2] = self.value.to_bytes(2, "big", signed=True)
        elif self.kind == "version":
            body[2:4] = self.value.to_bytes(2, "big", signed=True)
        else:
            assert self.kind == "size"
            size = self.value
        return size.to_bytes(4, "big", signed=True) + bytes(body)


@dataclass(frozen=True, slots=True)
class Step:
    api: Api
    version: int
    fields: Mapping[str, Any]
    line: str = ""
    """Which connection it uses; the first of all when empty."""
    keeps: str = ""
    """Under which name what its answer gave is remembered."""
    unusual: tuple[str, ...] = ()
    damage: Damage | None = None

    def __repr__(self) -> str:
        told = "".join(f"\n      {name} = {value!r}" for name, value in self.fields.items())
        notes = [f"line {self.line}"] if self.line else []
        notes += [f"keeps {self.keeps}"] if self.keeps else []
        notes += [f"unusual {', '.join(self.unusual)}"] if self.unusual else []
        notes += [str(self.damage)] if self.damage else []
        return f"{self.api.name} v{self.version} {'; '.join(notes)}{told}"

    def frame(self, side: Side, correlation_id: int) -> bytes:
        frame = encode_request(
            self.api,
            self.version,
            correlation_id,
            "twin",
            side.resolve(_known(self.api, self.version, self.fields)),
        )
        return self.damage(frame) if self.damage else frame


def _known(api: Api, version: int, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Without what this version lacks."""
    schema = codec(api, version, "request").schema
    names = {field.name for field in (*schema.fields, *schema.tagged)}
    return {name: value for name, value in fields.items() if name in names}


# --- drawing ----------------------------------------------------------------------------------------------

TOPICS = tuple(Named(f"t{number}") for number in range(3))
GROUPS = tuple(Named(f"g{number}") for number in range(2))
ODD_NAMES = ("", ".", "sl/ash", "x" * 250, Named("ü"), Named("y" * 200), Named(" "), Named("\x00"))
OFFSETS = (0, 1, 2, 3, 5, -1, -2, 1 << 40)
PRODUCERS = (4242, 4243)


def pick(draw: Draw[Any], *values: Any) -> Any:
    return draw(st.sampled_from(values))


def mostly(draw: Draw[Any], usual: Any, *odd: Any) -> Any:
    return draw(st.sampled_from((usual,) * (1 + 4 * len(odd)) + odd))


def a_topic(draw: Draw[Any]) -> Any:
    return mostly(draw, TOPICS[0], TOPICS[1], TOPICS[2])


def a_partition(draw: Draw[Any]) -> int:
    return int(mostly(draw, 0, 1, 2))


def a_group(draw: Draw[Any]) -> Any:
    return mostly(draw, GROUPS[0], GROUPS[1])


def create_topics(draw: Draw[Any]) -> Step:
    configs = draw(
        st.lists(
            st.sampled_from(
                [
                    ("max.message.bytes", "1000"),
                    ("cleanup.policy", "compact"),
                    ("cleanup.policy", "compact,delete"),
                    ("message.timestamp.type", "LogAppendTime"),
                    ("compression.type", "lz4"),
                    ("retention.ms", "-1"),
                    ("retention.ms", "many"),
                    ("min.insync.replicas", "2"),
                    ("message.timestamp.before.max.ms", "1000"),
                    ("segment.bytes", "1048576"),
                    ("no.such", "1"),
                ]
            ),
            max_size=2,
        )
    )
    fields = new_topic(
        "",
        name=pick(draw, *TOPICS[1:], TOPICS[0]),
        num_partitions=mostly(draw, 1, 2, -1, 0),
        replication_factor=mostly(draw, 1, -1, 2),
        configs=[{"name": name, "value": value} for name, value in configs],
    )
    return Step(Api.CREATE_TOPICS, 0, {**fields, "validate_only": mostly(draw, False, True)})


def delete_topics(draw: Draw[Any]) -> Step:
    name = a_topic(draw)
    by_id = pick(draw, False, True)
    topics = [{"name": None if by_id else name, "topic_id": TopicId(name) if by_id else None}]
    return Step(Api.DELETE_TOPICS, 0, {"topic_names": [name], "topics": topics, "timeout": 10_000})


def create_partitions(draw: Draw[Any]) -> Step:
    assignments = mostly(draw, None, [], [{"broker_ids": [1]}], [{"broker_ids": [9]}], [{"broker_ids": []}])
    topic = {"name": a_topic(draw), "count": pick(draw, 2, 3, 1, 0, -1), "assignments": assignments}
    validate_only = mostly(draw, False, True)
    return Step(
        Api.CREATE_PARTITIONS, 0, {"topics": [topic], "timeout": 10_000, "validate_only": validate_only}
    )


def produce(draw: Draw[Any]) -> Step:
    producer = None
    if pick(draw, False, True):
        producer = (
            pick(draw, *PRODUCERS),
            mostly(draw, 0, 1, 2, -1),
            mostly(draw, 0, 1, 2, 3, 4, 5, 6, -1, 2**31 - 1),
        )
    batch = Batch(
        count=mostly(draw, 1, 2, 3),
        size=mostly(draw, 5, 0, 900, 2000, 1_100_000),
        key=mostly(draw, None, b"k", b""),
        codec=mostly(draw, 0, *(int(codec) for codec in Codec)),
        producer=producer,
        after_ms=mostly(draw, 0, 1, 1000, -1000, 90_000_000),
        spoiled=mostly(draw, "", *SPOILED),
    )
    fields = produce_fields(
        a_topic(draw), batch, partition=a_partition(draw), acks=mostly(draw, -1, 1, 2, -2)
    )
    if draw(st.integers(0, 9)) == 9:
        again = produce_fields(a_topic(draw), replace(batch, size=6), partition=a_partition(draw))[
            "topic_data"
        ]
        if again[0]["name"] == fields["topic_data"][0]["name"]:
            fields["topic_data"][0]["partition_data"] += again[0]["partition_data"]
        else:
            fields["topic_data"] += again
    return Step(Api.PRODUCE, 0, {**fields, "transactional_id": mostly(draw, None, Named("x"))})


def fetch(draw: Draw[Any]) -> Step:
    life = mostly(draw, "none", "open", "go on", "close")
    session = f"session {pick(draw, 0, 1)}"
    options = {
        "none": {},
        "open": {"session_epoch": 0},
        "go on": {
            "session_id": Given(session, otherwise=77),
            "session_epoch": Given(f"{session} epoch", plus=mostly(draw, 0, 1, -1), otherwise=1),
        },
        "close": {"session_id": Given(session, otherwise=77), "session_epoch": -1},
    }[life]
    partition = {
        "current_leader_epoch": mostly(draw, -1, 0, 1),
        "last_fetched_epoch": mostly(draw, -1, 0, 1),
        "partition_max_bytes": mostly(draw, 1 << 20, 0, 1, 100, 1 << 16),
    }
    fields = fetch_fields(
        a_topic(draw),
        pick(draw, *OFFSETS),
        partition=a_partition(draw),
        isolation_level=pick(draw, 0, 1),
        **options,
        **partition,
    )
    fields["max_bytes"] = mostly(draw, 1 << 20, 0, 1, 200)
    if pick(draw, False, True):
        more = fetch_fields(a_topic(draw), pick(draw, *OFFSETS), partition=a_partition(draw))["topics"]
        fields["topics"] = [*fields["topics"], *more]
    if life == "go on":
        if pick(draw, False, True):
            fields["topics"] = []
        if pick(draw, False, True):
            name = a_topic(draw)
            forgotten = {"topic": name, "topic_id": TopicId(name), "partitions": [a_partition(draw)]}
            fields["forgotten_topics_data"] = [forgotten]
    fields["min_bytes"] = 0
    return Step(Api.FETCH, 0, fields, keeps=session if life in ("open", "go on") else "")


def list_offsets(draw: Draw[Any]) -> Step:
    timestamp = pick(
        draw, -1, -2, -3, -4, -5, -6, -7, 0, FIRST_MS, FIRST_MS + 1, FIRST_MS + 1000, FIRST_MS + 10**9
    )
    fields = list_offsets_fields(
        a_topic(draw),
        timestamp,
        partition_index=a_partition(draw),
        current_leader_epoch=mostly(draw, -1, 0, 1),
    )
    return Step(Api.LIST_OFFSETS, 0, {**fields, "isolation_level": pick(draw, 0, 1)})


def delete_records(draw: Draw[Any]) -> Step:
    partition = {"partition_index": a_partition(draw), "offset": pick(draw, *OFFSETS)}
    topics = [{"name": a_topic(draw), "partitions": [partition]}]
    return Step(Api.DELETE_RECORDS, 0, {"topics": topics, "timeout": 10_000})


def offset_for_leader_epoch(draw: Draw[Any]) -> Step:
    partition = {
        "partition": a_partition(draw),
        "current_leader_epoch": mostly(draw, -1, 0, 1),
        "leader_epoch": mostly(draw, 0, 1, -1, 99),
    }
    topics = [{"topic": a_topic(draw), "partitions": [partition]}]
    return Step(Api.OFFSET_FOR_LEADER_EPOCH, 0, {"replica_id": -1, "topics": topics})


def describe_producers(draw: Draw[Any]) -> Step:
    topics = [{"name": a_topic(draw), "partition_indexes": [a_partition(draw)]}]
    return Step(Api.DESCRIBE_PRODUCERS, 0, {"topics": topics})


def metadata(draw: Draw[Any]) -> Step:
    name = a_topic(draw)
    by_id = mostly(draw, False, True)
    topics = [{"name": None if by_id else name, "topic_id": TopicId(name) if by_id else None}]
    return Step(
        Api.METADATA,
        12 if by_id else 0,
        {
            "topics": topics,
            "allow_auto_topic_creation": False,
            "include_cluster_authorized_operations": False,
            "include_topic_authorized_operations": False,
        },
    )


def describe_topic_partitions(draw: Draw[Any]) -> Step:
    cursor = mostly(draw, None, {"topic_name": a_topic(draw), "partition_index": a_partition(draw)})
    return Step(
        Api.DESCRIBE_TOPIC_PARTITIONS,
        0,
        {
            "topics": [{"name": a_topic(draw)}],
            "response_partition_limit": mostly(draw, 100, 1, 0, -1),
            "cursor": cursor,
        },
    )


def init_producer_id(draw: Draw[Any]) -> Step:
    producer_id, epoch = mostly(
        draw,
        (-1, -1),
        (Given("producer", otherwise=7), Given("producer epoch", otherwise=0)),
        (Given("producer", otherwise=7), Given("producer epoch", plus=1, otherwise=0)),
        (7, -1),
        (-1, 0),
    )
    return Step(
        Api.INIT_PRODUCER_ID,
        0,
        {
            "transactional_id": None,
            "transaction_timeout": mostly(draw, 60_000, 0, -1),
            "producer_id": producer_id,
            "producer_epoch": epoch,
        },
        keeps="producer",
    )


# --- transactions ---

TRANSACTIONS = tuple(Named(f"x{number}") for number in range(2))


def a_transaction(draw: Draw[Any]) -> tuple[Named, dict[str, Any]]:
    """A transactional id, and the producer that it was given to."""
    name = mostly(draw, TRANSACTIONS[0], TRANSACTIONS[1])
    given = f"txn {name.text}"
    return name, {
        "transactional_id": name,
        "producer_id": mostly(draw, Given(given, otherwise=7), 7),
        "producer_epoch": Given(f"{given} epoch", plus=mostly(draw, 0, 1, -1), otherwise=0),
    }


def init_transactional(draw: Draw[Any]) -> Step:
    name, producer = a_transaction(draw)
    goes_on = draw(st.integers(0, 3)) == 3
    fields = {
        **(producer if goes_on else {"producer_id": -1, "producer_epoch": -1}),
        "transactional_id": name,
        "transaction_timeout": mostly(draw, 60_000, 0, -1, 900_001),
        "enable2_pc": False,
        "keep_prepared_txn": False,
    }
    return Step(Api.INIT_PRODUCER_ID, 3 if goes_on else 0, fields, keeps=f"txn {name.text}")


def add_partitions_to_txn(draw: Draw[Any]) -> Step:
    _, producer = a_transaction(draw)
    topics = [{"name": a_topic(draw), "partitions": [a_partition(draw)]}]
    fields = {f"v3_and_below_{name}": value for name, value in {**producer, "topics": topics}.items()}
    one = {**producer, "topics": topics, "verify_only": mostly(draw, False, True)}
    return Step(Api.ADD_PARTITIONS_TO_TXN, 0, {**fields, "transactions": [one]})


def add_offsets_to_txn(draw: Draw[Any]) -> Step:
    _, producer = a_transaction(draw)
    return Step(Api.ADD_OFFSETS_TO_TXN, 0, {**producer, "group_id": a_group(draw)})


def txn_offset_commit(draw: Draw[Any]) -> Step:
    _, producer = a_transaction(draw)
    partition = {
        "partition_index": a_partition(draw),
        "committed_offset": pick(draw, 0, 1, 2, -1),
        "committed_leader_epoch": mostly(draw, -1, 0, 5),
        "committed_metadata": mostly(draw, "noted", None, "", "x" * 4097),
    }
    fields = {
        **producer,
        "group_id": a_group(draw),
        "generation_id": mostly(draw, -1, 0, 3),
        "member_id": mostly(draw, "", "nobody"),
        "group_instance_id": None,
        "topics": [{"name": a_topic(draw), "partitions": [partition]}],
    }
    inside = fields["generation_id"] != -1 or fields["member_id"]
    return Step(Api.TXN_OFFSET_COMMIT, 3 if inside else 0, fields)


def produce_in_txn(draw: Draw[Any]) -> Step:
    name, producer = a_transaction(draw)
    batch = Batch(
        producer=(producer["producer_id"], producer["producer_epoch"], mostly(draw, 0, 1, 2)),
        transactional=mostly(draw, True, False),
    )
    fields = produce_fields(a_topic(draw), batch, partition=a_partition(draw), acks=mostly(draw, -1, 1))
    return Step(Api.PRODUCE, 0, {**fields, "transactional_id": mostly(draw, name, None)})


def end_txn(draw: Draw[Any]) -> Step:
    name, producer = a_transaction(draw)
    fields = {**producer, "committed": pick(draw, True, False)}
    return Step(Api.END_TXN, 0, fields, keeps=f"txn {name.text}")


def list_transactions(draw: Draw[Any]) -> Step:
    states = pick(draw, [], ["Ongoing"], ["Empty", "CompleteCommit"], ["no-such"], ["ongoing"])
    fields = {
        "state_filters": states,
        "producer_id_filters": mostly(draw, [], [4711]),
        "duration_filter": mostly(draw, -1, 86_400_000),
        "transactional_id_pattern": mostly(draw, None, "", "seq-.*x0", "(open"),
    }
    return Step(Api.LIST_TRANSACTIONS, 0, fields)


def describe_transactions(draw: Draw[Any]) -> Step:
    asked = pick(draw, list(TRANSACTIONS), [TRANSACTIONS[0]], ["nobody"], [""])
    return Step(Api.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": asked})


MEMBERS = 3


def a_member(draw: Draw[Any], group: Named) -> tuple[int, Given]:
    number = int(mostly(draw, 0, 1, 2))
    return number, Given(f"member {number} of {group.text}")


def an_instance(draw: Draw[Any], number: int) -> str | None:
    return mostly(draw, None, f"fixed-{number}", "fixed-0")  # type: ignore[no-any-return]


def a_generation(draw: Draw[Any], group: Named) -> Given:
    return Given(f"generation of {group.text}", plus=mostly(draw, 0, 1, -1), otherwise=1)


def join_group(draw: Draw[Any]) -> Step:
    group = a_group(draw)
    number, member = a_member(draw, group)
    protocol_names = mostly(draw, ("range",), ("range", "sticky"), ("sticky",), ())
    fields = join_fields(
        group,
        Given(member.what, otherwise="") if mostly(draw, True, False) else pick(draw, "", "nobody"),
        group_instance_id=an_instance(draw, number),
        protocol_type=mostly(draw, "consumer", "connect", ""),
        protocols=[{"name": name, "metadata": f"m{number}".encode()} for name in protocol_names],
        session_timeout=mostly(draw, 60_000, 1, 2_000_000),
        rebalance_timeout=60_000,
    )
    return Step(Api.JOIN_GROUP, 0, fields, line=member.what, keeps=member.what)


# --- groups that the broker assigns ---

ASSIGNED = tuple(Named(f"c{number}") for number in range(2))
"""Groups of their own, mostly: what a classic member and the broker make of each other is played by hand."""


def consumer_group_heartbeat(draw: Draw[Any]) -> Step:
    group = mostly(draw, ASSIGNED[0], ASSIGNED[1], GROUPS[0])
    number = int(mostly(draw, 0, 1, 2))
    what = f"consumer {number} of {group.text}"
    life = pick(draw, "join", "go on", "go on", "go on", "leave")
    joins, version = life == "join", 1
    fields = {
        "group_id": group,
        "member_id": Named(f"m{number}"),
        "member_epoch": {
            "join": 0,
            "go on": Given(f"{what} epoch", plus=mostly(draw, 0, 1, -1), otherwise=0),
            "leave": mostly(draw, -1, -2),
        }[life],
        "instance_id": an_instance(draw, number),
        "rack_id": mostly(draw, None, "here"),
        "rebalance_timeout": mostly(draw, 60_000 if joins else -1, 0, -1),
        "subscribed_topic_names": mostly(draw, [TOPICS[0]] if joins else None, [], [TOPICS[1]], ["no-such"]),
        "subscribed_topic_regex": mostly(draw, None, "(unclosed"),
        "server_assignor": mostly(draw, None, "uniform", "range", "no-such"),
        "topic_partitions": mostly(
            draw, [] if joins else Given(f"{what} owned", otherwise=[]), None, [], a_lie(draw)
        ),
    }
    return Step(Api.CONSUMER_GROUP_HEARTBEAT, version, fields, keeps=what)


def a_lie(draw: Draw[Any]) -> list[dict[str, Any]]:
    """What a member says it holds, and was never given."""
    return [{"topic_id": TopicId(a_topic(draw)), "partitions": [pick(draw, 0, 1, 9)]}]


def consumer_group_describe(draw: Draw[Any]) -> Step:
    asked = [mostly(draw, ASSIGNED[0], ASSIGNED[1], GROUPS[0])]
    return Step(Api.CONSUMER_GROUP_DESCRIBE, 0, {"group_ids": asked, "include_authorized_operations": False})


def sync_group(draw: Draw[Any]) -> Step:
    group = a_group(draw)
    number, member = a_member(draw, group)
    everyone = [Given(f"member {other} of {group.text}") for other in range(MEMBERS)]
    assigned = pick(draw, everyone[:1], everyone, [], ["nobody"])
    fields = {
        "group_id": group,
        "generation_id": a_generation(draw, group),
        "member_id": member,
        "group_instance_id": an_instance(draw, number),
        "protocol_type": mostly(draw, "consumer", None, "connect"),
        "protocol_name": mostly(draw, "range", None, "sticky"),
        "assignments": [{"member_id": one, "assignment": b"a%d" % at} for at, one in enumerate(assigned)],
    }
    return Step(Api.SYNC_GROUP, 0, fields, line=member.what)


def heartbeat(draw: Draw[Any]) -> Step:
    group = a_group(draw)
    number, member = a_member(draw, group)
    return Step(
        Api.HEARTBEAT,
        0,
        {
            "group_id": group,
            "generation_id": a_generation(draw, group),
            "member_id": member,
            "group_instance_id": an_instance(draw, number),
        },
    )


def leave_group(draw: Draw[Any]) -> Step:
    group = a_group(draw)
    leaving = []
    for _ in range(mostly(draw, 1, 2, 0)):
        number, member = a_member(draw, group)
        instance = an_instance(draw, number)
        member_id: Any = "" if instance and pick(draw, False, True) else member
        leaving.append({"member_id": member_id, "group_instance_id": instance, "reason": None})
    first = leaving[0]["member_id"] if leaving else "nobody"
    return Step(Api.LEAVE_GROUP, 0, {"group_id": group, "member_id": first, "members": leaving})


def offset_commit(draw: Draw[Any]) -> Step:
    group, name = a_group(draw), a_topic(draw)
    number, member = a_member(draw, group)
    inside = pick(draw, False, True)
    fields = commit_fields(
        group,
        name,
        offset=pick(draw, 0, 1, 2, -1, 1 << 40),
        generation_id_or_member_epoch=a_generation(draw, group) if inside else mostly(draw, -1, 0, 3),
        member_id=member if inside else mostly(draw, "", "nobody"),
        group_instance_id=an_instance(draw, number),
    )
    partition = fields["topics"][0]["partitions"][0]
    partition["partition_index"] = a_partition(draw)
    partition["committed_metadata"] = mostly(draw, "noted", None, "", "x" * 4096, "x" * 4097)
    partition["committed_leader_epoch"] = mostly(draw, -1, 0, 5)
    return Step(Api.OFFSET_COMMIT, 0, fields)


def offset_fetch(draw: Draw[Any]) -> Step:
    group = a_group(draw)
    fields = offset_fetch_fields(group, a_topic(draw))
    if mostly(draw, False, True):
        fields["topics"] = None
        fields["groups"][0]["topics"] = None
    if pick(draw, False, True):
        _number, member = a_member(draw, group)
        fields["groups"][0]["member_id"] = member
        fields["groups"][0]["member_epoch"] = a_generation(draw, group)
    return Step(Api.OFFSET_FETCH, 2 if fields["topics"] is None else 0, fields)


def offset_delete(draw: Draw[Any]) -> Step:
    topics = [{"name": a_topic(draw), "partitions": [{"partition_index": a_partition(draw)}]}]
    return Step(Api.OFFSET_DELETE, 0, {"group_id": a_group(draw), "topics": topics})


def describe_groups(draw: Draw[Any]) -> Step:
    return Step(Api.DESCRIBE_GROUPS, 0, {"groups": [a_group(draw)], "include_authorized_operations": False})


def list_groups(draw: Draw[Any]) -> Step:
    return Step(
        Api.LIST_GROUPS,
        0,
        {
            "states_filter": pick(draw, [], ["Empty"], ["stable"], ["Stable", "Dead"], ["no-such"]),
            "types_filter": mostly(draw, [], ["classic"], ["Consumer"], ["no-such"]),
        },
    )


def delete_groups(draw: Draw[Any]) -> Step:
    return Step(Api.DELETE_GROUPS, 0, {"groups_names": [a_group(draw)]})


def find_coordinator(draw: Draw[Any]) -> Step:
    group = a_group(draw)
    return Step(Api.FIND_COORDINATOR, 0, {"key": group, "key_type": 0, "coordinator_keys": [group]})


CONFIG_VALUES = (
    ("retention.ms", "3600000"),
    ("max.message.bytes", "1000"),
    ("cleanup.policy", "compact"),
    ("message.timestamp.type", "LogAppendTime"),
    ("compression.type", "gzip"),
    ("retention.ms", "soon"),
    ("retention.ms", None),
    ("retention.ms", " 1 "),
    ("retention.bytes", ""),
    ("unclean.leader.election.enable", "yes"),
    ("min.cleanable.dirty.ratio", "2"),
    ("segment.jitter.ms", "99999999999999999999"),
    ("cleanup.policy", "delete,compact"),
    ("no.such", "1"),
    ("", ""),
)
RESOURCE_KINDS = (4, 8, 16, 32, 1, 0, 77)


def a_resource(draw: Draw[Any]) -> dict[str, Any]:
    kind = mostly(draw, 2, *RESOURCE_KINDS)
    return {"resource_type": kind, "resource_name": a_topic(draw)}


def alter_configs(draw: Draw[Any]) -> Step:
    changes = draw(st.lists(st.sampled_from(CONFIG_VALUES), max_size=2))
    configs = [{"name": name, "value": value} for name, value in changes]
    resources = [{**a_resource(draw), "configs": configs}]
    return Step(Api.ALTER_CONFIGS, 0, {"resources": resources, "validate_only": mostly(draw, False, True)})


def incremental_alter_configs(draw: Draw[Any]) -> Step:
    changes = draw(
        st.lists(st.tuples(st.sampled_from(CONFIG_VALUES), st.integers(0, 3)), min_size=1, max_size=2)
    )
    configs = [
        {"name": name, "config_operation": operation, "value": value} for (name, value), operation in changes
    ]
    resources = [{**a_resource(draw), "configs": configs}]
    return Step(
        Api.INCREMENTAL_ALTER_CONFIGS, 0, {"resources": resources, "validate_only": mostly(draw, False, True)}
    )


def describe_configs(draw: Draw[Any]) -> Step:
    keys = pick(draw, ["retention.ms", "cleanup.policy", "no.such"], None, [])
    return Step(
        Api.DESCRIBE_CONFIGS,
        0,
        {
            "resources": [{**a_resource(draw), "configuration_keys": keys}],
            "include_synonyms": pick(draw, True, False),
            "include_documentation": False,
        },
    )


def describe_log_dirs(draw: Draw[Any]) -> Step:
    return Step(
        Api.DESCRIBE_LOG_DIRS, 0, {"topics": [{"topic": a_topic(draw), "partitions": [a_partition(draw)]}]}
    )


def list_config_resources(draw: Draw[Any]) -> Step:
    return Step(
        Api.LIST_CONFIG_RESOURCES, 0, {"resource_types": pick(draw, [2], [4], [16], [32], [77], [2, 2])}
    )


def describe_cluster(draw: Draw[Any]) -> Step:
    return Step(
        Api.DESCRIBE_CLUSTER,
        0,
        {
            "include_cluster_authorized_operations": False,
            "endpoint_type": mostly(draw, 1, 2, 3),
            "include_fenced_brokers": pick(draw, False, True),
        },
    )


def api_versions(draw: Draw[Any]) -> Step:
    return Step(
        Api.API_VERSIONS,
        0,
        {
            "client_software_name": mostly(draw, "twin", "", "-x", "a b"),
            "client_software_version": mostly(draw, "1", "", "1..", "x-"),
        },
    )


# Weighted by how much state an API has.
BUILDERS: Sequence[tuple[Callable[[Draw[Any]], Step], int]] = (
    (produce, 6),
    (fetch, 5),
    (join_group, 6),
    (sync_group, 5),
    (list_offsets, 3),
    (offset_commit, 3),
    (offset_fetch, 3),
    (heartbeat, 3),
    (leave_group, 2),
    (delete_records, 2),
    (create_topics, 2),
    (delete_topics, 1),
    (create_partitions, 2),
    (offset_for_leader_epoch, 1),
    (describe_producers, 2),
    (metadata, 1),
    (describe_topic_partitions, 1),
    (init_producer_id, 2),
    (offset_delete, 2),
    (describe_groups, 2),
    (list_groups, 1),
    (delete_groups, 1),
    (find_coordinator, 1),
    (alter_configs, 2),
    (incremental_alter_configs, 2),
    (describe_configs, 2),
    (describe_log_dirs, 1),
    (list_config_resources, 1),
    (describe_cluster, 1),
    (api_versions, 1),
    (init_transactional, 3),
    (add_partitions_to_txn, 3),
    (add_offsets_to_txn, 1),
    (txn_offset_commit, 2),
    (produce_in_txn, 4),
    (end_txn, 4),
    (list_transactions, 1),
    (describe_transactions, 1),
    (consumer_group_heartbeat, 6),
    (consumer_group_describe, 2),
)
_DECK = [build for build, weight in BUILDERS for _ in range(weight)]


# --- unusual values ---------------------------------------------------------------------------------------

_INTEGERS = {
    "int8": 8,
    "int16": 16,
    "int32": 32,
    "int64": 64,
    "timedelta_i32": 32,
    "timedelta_i64": 64,
    "datetime_i64": 64,
}


# Answered otherwise on purpose when they repeat themselves (tests/differences.tsv).
NEVER_TWICE = frozenset(
    {(Api.ALTER_CONFIGS, "resources"), (Api.DESCRIBE_GROUPS, "groups"), (Api.JOIN_GROUP, "protocols")}
)


def unusual(api: Api, field: Any, value: Any) -> list[Any]:
    """What a client might send in this field and hardly ever does."""
    if field.name == "config_operation":
        return []  # one that is unknown makes Kafka's controller resign
    odd: list[Any] = [None] if field.is_nullable else []
    if field.is_array:
        if isinstance(value, list) and value:
            odd += [[], value[1:]]
            if (api, field.name) not in NEVER_TWICE:
                odd.append([*value, deepcopy(value[0])])
        return odd
    if field.struct is not None:
        return odd
    kind = field.kafka_type
    if kind in _INTEGERS:
        bits = _INTEGERS[kind]
        return [0, 1, -1, 2, -2, 99, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))]
    if kind == "uint16":
        return [0, 1, 65535]
    if kind == "bool":
        return [False, True]
    if kind == "string":
        return [*odd, *ODD_NAMES, TOPICS[0], GROUPS[0]]
    if kind == "uuid":
        return [None, UUID(int=1), UUID(int=99), TopicId(TOPICS[0]), TopicId(TOPICS[1])]
    if kind == "bytes":
        return [*odd, b"", b"\x00\x01\x02"]
    return []  # records: batches have ways of their own to go wrong


Spot = tuple[tuple[Any, ...], Any, Any]
"""Where in the fields, the schema's field, the value it has."""


def spots(api: Api, schema: Any, fields: Mapping[str, Any], path: tuple[Any, ...] = ()) -> list[Spot]:
    from protocol.coding.schema import struct_schema

    found: list[Spot] = []
    for field in (*schema.fields, *schema.tagged):
        value = fields.get(field.name)
        here = (*path, field.name)
        if unusual(api, field, value):
            found.append((here, field, value))
        if field.struct is None or value is None:
            continue
        if isinstance(value, Mapping):
            found += spots(api, struct_schema(field.struct), value, here)
        elif isinstance(value, list):
            for at, item in enumerate(value):
                found += spots(api, struct_schema(field.struct), item, (*here, at))
    return found


def with_unusual(draw: Draw[Any], step: Step) -> Step:
    fields, said = deepcopy(dict(step.fields)), []
    for _ in range(draw(st.integers(0, UNUSUAL_MAX))):
        found = spots(step.api, codec(step.api, step.version, "request").schema, fields)
        if not found:
            break
        path, field, value = pick(draw, *found)
        odd = pick(draw, *unusual(step.api, field, value))
        inside: Any = fields
        for part in path[:-1]:
            inside = inside[part]
        inside[path[-1]] = odd
        said.append(f"{'.'.join(map(str, path))}={odd!r}")
    return replace(step, fields=fields, unusual=tuple(said))


def with_damage(draw: Draw[Any], step: Step) -> Step:
    kind = pick(draw, "cut", "append", "flip", "insert", "remove", "api key", "version", "size")
    value = draw(st.integers(0, 255))
    if kind in ("api key", "version"):
        value = pick(draw, -1, 0, 1, 3, 12, 13, 18, 99, 1000, 32767, -32768)
    elif kind == "size":
        value = pick(draw, 0, 1, 7, 8, 10, -1, 2**31 - 1, -(2**31))
    return replace(step, damage=Damage(kind, draw(st.integers(0, 300)), value))


# --- sequences ------------------------------------------------------------------------------------------


def versioned(draw: Draw[Any], step: Step) -> Step:
    """In a version that is served; the step's own is the lowest that can say what it says."""
    row = SERVED[step.api]
    lowest = max(step.version, row.served_from)
    return replace(step, version=draw(st.integers(lowest, row.max_version)))


@st.composite
def steps(draw: Draw[Any]) -> list[Step]:
    """One request, as it should be or not."""
    step = versioned(draw, pick(draw, *_DECK)(draw))
    manner = draw(st.integers(0, 11))
    if manner >= 10:
        return [with_damage(draw, step)]
    return [with_unusual(draw, step) if manner >= 5 else step]


@st.composite
def written(draw: Draw[Any]) -> list[Step]:
    """Batches that a log takes, so that there is something to read."""
    found = []
    for _ in range(draw(st.integers(1, 4))):
        batch = Batch(count=pick(draw, 1, 2, 3), codec=pick(draw, *(int(codec) for codec in Codec)))
        found.append(Step(Api.PRODUCE, 7, produce_fields(TOPICS[0], batch)))
    return found


@st.composite
def written_idempotently(draw: Draw[Any]) -> list[Step]:
    """Sequences in order, then two of any."""
    producer_id, epoch = pick(draw, *PRODUCERS), pick(draw, 0, 1)
    length = draw(st.integers(1, 6))
    numbers = [(epoch, sequence) for sequence in range(length)]
    numbers += draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, length + 1)), min_size=1, max_size=3)
    )
    return [
        Step(
            Api.PRODUCE,
            7,
            produce_fields(TOPICS[0], Batch(producer=(producer_id, each_epoch, sequence))),
        )
        for each_epoch, sequence in numbers
    ]


@st.composite
def committed(draw: Draw[Any]) -> list[Step]:
    """A transaction as a client makes it, of either kind, up to its end."""
    name = a_transaction(draw)[0]
    given = f"txn {name.text}"
    producer = {
        "transactional_id": name,
        "producer_id": Given(given, otherwise=7),
        "producer_epoch": Given(f"{given} epoch", otherwise=0),
    }
    implicit = pick(draw, False, True)
    partition = a_partition(draw) % 2
    init = {**producer, "producer_id": -1, "producer_epoch": -1, "transaction_timeout": 60_000}
    steps = [Step(Api.INIT_PRODUCER_ID, 4, init, keeps=given)]
    if not implicit:
        topics = [{"name": TOPICS[0], "partitions": [partition]}]
        added = {f"v3_and_below_{key}": value for key, value in {**producer, "topics": topics}.items()}
        steps.append(Step(Api.ADD_PARTITIONS_TO_TXN, 3, added))
    for sequence in range(draw(st.integers(1, 2))):
        batch = Batch(
            producer=(producer["producer_id"], producer["producer_epoch"], sequence), transactional=True
        )
        fields = {**produce_fields(TOPICS[0], batch, partition=partition), "transactional_id": name}
        steps.append(Step(Api.PRODUCE, 13 if implicit else 9, fields))
    if pick(draw, True, False):
        ends = {**producer, "committed": pick(draw, True, False)}
        steps.append(Step(Api.END_TXN, 5 if implicit else 3, ends, keeps=given))
    return steps


@st.composite
def joined(draw: Draw[Any]) -> list[Step]:
    """A member that gets as far as its assignment, if nobody is in its way."""
    group = a_group(draw)
    number, member = a_member(draw, group)
    instance = an_instance(draw, number)
    join = Step(
        Api.JOIN_GROUP,
        draw(st.integers(5, 9)),
        join_fields(
            group,
            Given(member.what, otherwise=""),
            group_instance_id=instance,
            protocols=[{"name": "range", "metadata": f"m{number}".encode()}],
            session_timeout=60_000,
            rebalance_timeout=60_000,
        ),
        line=member.what,
        keeps=member.what,
    )
    sync = Step(
        Api.SYNC_GROUP,
        draw(st.integers(3, 5)),
        {
            "group_id": group,
            "generation_id": Given(f"generation of {group.text}", otherwise=1),
            "member_id": member,
            "group_instance_id": instance,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [{"member_id": member, "assignment": b"a"}],
        },
        line=member.what,
    )
    return [join, sync] if instance is not None else [join, join, sync]


@st.composite
def fetched_in_a_session(draw: Draw[Any]) -> list[Step]:
    """A session that is opened and gone on with."""
    version = draw(st.integers(7, 18))
    session = f"session {pick(draw, 0, 1)}"
    topics = [
        fetch_fields(name, pick(draw, *OFFSETS), partition=partition)["topics"][0]
        for name, partition in draw(
            st.lists(
                st.tuples(st.sampled_from(TOPICS[:2]), st.integers(0, 1)), min_size=1, max_size=3, unique=True
            )
        )
    ]
    opened = {**fetch_fields(TOPICS[0], 0, session_epoch=0), "topics": topics, "min_bytes": 0}
    gone_on = {
        **opened,
        "topics": [],
        "session_id": Given(session, otherwise=77),
        "session_epoch": Given(f"{session} epoch", otherwise=1),
    }
    return [
        Step(Api.FETCH, version, opened, keeps=session),
        Step(Api.FETCH, version, gone_on, keeps=session),
    ]


@st.composite
def sequences(draw: Draw[Any]) -> list[Step]:
    """Begins with a topic to work on."""
    first = Step(Api.CREATE_TOPICS, 7, new_topic("", name=TOPICS[0], num_partitions=pick(draw, 1, 2)))
    scene = st.one_of(
        steps(),
        steps(),
        steps(),
        steps(),
        written(),
        written_idempotently(),
        joined(),
        fetched_in_a_session(),
        committed(),
    )
    scenes = draw(st.lists(scene, min_size=1, max_size=SCENES_MAX))
    return [first, *(step for scene in scenes for step in scene)]
