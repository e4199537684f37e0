"""The bench of coordinators: its rows, what its clients send and read, and one small run of our own."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from protocol import messages
from protocol.apis import Api
from protocol.wire import parse_head
from tests.processes import BrokerProcess
from tools.console import Failure
from tools.versus import groups, rows
from tools.versus.caller import Caller, read_frame, until
from tools.versus.group_clients import PARTITIONS, RUNS, Classic, Consumer, GroupLoad, Producer, act

TOPIC_ID = UUID(int=77)


@pytest.fixture
def ends() -> Iterator[tuple[int, socket.socket]]:
    """A port that takes connections, and who listens there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1], server


def asked(server_side: socket.socket, api: Api) -> Any:
    """The request that was sent, decoded as the broker does."""
    frame = read_frame(server_side)
    head = parse_head(memoryview(frame))
    assert head.api_key == api
    return messages.decode_request(api, head.api_version, memoryview(frame)[head.body_at :])


def test_the_goals_are_those_that_were_set() -> None:
    goals = {
        row.row.name: [measure.target for measure in row.row.measures if measure.has_target]
        for row in groups.ROWS
    }
    assert goals == {
        "rebalance-classic": ["≤ 1", "≤ 1"],
        "rebalance-consumer": ["≤ 1", "≤ 1"],
        "transactions-1": ["≥ 1.5"],
        "transactions-20": ["≥ 1.5"],
        "commits-1": ["≥ 3"],
        "commits-50": ["≥ 3"],
    }
    (verdict,) = rows.verdicts(groups.ROWS[-1].row, {"per_s": 300.0}, {"per_s": 100.0})
    assert verdict.is_met


def test_an_unknown_row_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert groups.main(["--rows", "no-such"]) == 1
    assert "no row no-such" in capsys.readouterr().err


def test_a_member_says_back_what_the_broker_assigned(ends: tuple[int, socket.socket]) -> None:
    port, server = ends
    member = Consumer(port, "group", "topic")
    server_side, _ = server.accept()
    with server_side, member.line.socket:
        member.act()
        first = asked(server_side, Api.CONSUMER_GROUP_HEARTBEAT)
        assert (first.member_epoch, list(first.subscribed_topic_names)) == (0, ["topic"])

        def answer(assignment: Any) -> None:
            fields = {
                "throttle_time": 0,
                "error_code": 0,
                "error_message": None,
                "member_id": "member",
                "member_epoch": 7,
                "heartbeat_interval": 5000,
                "assignment": assignment,
            }
            member.answered(messages.encode_response(Api.CONSUMER_GROUP_HEARTBEAT, 1, 1, fields)[4:])

        answer({"topic_partitions": [{"topic_id": TOPIC_ID, "partitions": [3, 4, 5]}]})
        assert (member.epoch, member.share, member.knows) == (7, 3, False)
        member.act()
        second = asked(server_side, Api.CONSUMER_GROUP_HEARTBEAT)
        assert second.member_epoch == 7
        assert [(row.topic_id, list(row.partitions)) for row in second.topic_partitions] == [
            (TOPIC_ID, [3, 4, 5])
        ]
        answer(None)
        assert member.is_settled([member])
        assert not member.is_settled([member, SimpleNamespace(epoch=8)])


def test_a_leader_shares_out_all_partitions(ends: tuple[int, socket.socket]) -> None:
    port, server = ends
    member = Classic(port, "group", "topic")
    server_side, _ = server.accept()
    with server_side, member.line.socket:
        member.act()
        assert asked(server_side, Api.JOIN_GROUP).protocols[0].name == "range"
        others = [
            {"member_id": each, "group_instance_id": None, "metadata": b"told"} for each in ("a", "b", "c")
        ]
        fields = {
            "throttle_time": 0,
            "error_code": 0,
            "generation_id": 4,
            "protocol_name": "range",
            "leader": "b",
            "member_id": "b",
            "members": others,
        }
        member.answered(messages.encode_response(Api.JOIN_GROUP, 5, 1, fields)[4:])
        shared = asked(server_side, Api.SYNC_GROUP)
        assert (shared.generation_id, shared.member_id) == (4, "b")
        shares = {row.member_id: bytes(row.assignment) for row in shared.assignments}
        assert sorted(shares) == ["a", "b", "c"]
        for each in shares.values():
            synced = {"throttle_time": 0, "error_code": 0, "assignment": each}
            member.stage = "syncing"
            member.answered(messages.encode_response(Api.SYNC_GROUP, 3, 1, synced)[4:])
            assert member.share in (PARTITIONS // 3, PARTITIONS // 3 + 1)
        assert sum(int.from_bytes(each[13:17], "big") for each in shares.values()) == PARTITIONS


def test_an_error_ends_a_run(ends: tuple[int, socket.socket]) -> None:
    port, server = ends
    member = Consumer(port, "group", "topic")
    server_side, _ = server.accept()
    with server_side, member.line.socket:
        fields = {
            "throttle_time": 0,
            "error_code": 110,
            "error_message": "fenced",
            "member_id": None,
            "member_epoch": 0,
            "heartbeat_interval": 0,
            "assignment": None,
        }
        with pytest.raises(Failure, match="110"):
            member.answered(messages.encode_response(Api.CONSUMER_GROUP_HEARTBEAT, 1, 1, fields)[4:])


@pytest.mark.parametrize("kind", list(RUNS))
def test_one_small_run(tmp_path: Path, kind: str) -> None:
    with BrokerProcess(tmp_path, settings=groups.SETTINGS) as broker, Caller(broker.port) as caller:
        caller.create("topic", PARTITIONS if kind in ("classic", "consumer") else 3)
        load = GroupLoad(kind=kind, clients=3, seconds=0.1, rebalances=2)
        found = act(load, broker.port, broker.pid, "topic")
        assert all(value >= 0 for value in found.values())
        if kind == "transactions":
            read_back(caller, broker.port)


def read_back(caller: Caller, port: int) -> None:
    """Two transactions more: the second one's batch has the epoch that the first one's end gave."""
    producer = Producer(port, caller, "once-more", "topic", 0)
    before = caller.log_end("topic", 0)
    with producer.line.socket:
        for _ in range(2):
            producer.begin()
            while not producer.answered(read_frame(producer.line.socket)):
                continue
    until(lambda: caller.log_end("topic", 0) == before + 4, "two records and two markers")
