"""`python -m tests.links.switch`: what carries packets between namespaces, by its owner's rules.

Owns: one network device for each end, and what comes out of them. Does not own which rules there are, nor
where the devices are (its owner moves them into namespaces). A line on stdin is the whole of the rules from
then on, and is answered by a line once they hold. Invariant: it ends with its owner, and the devices with it.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import selectors
import struct
import sys
import time
from collections.abc import Mapping
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from tests.links.rules import End, Pair, Rule
from tests.links.traffic import Traffic

DEVICES = Path("/dev/net/tun")
SET_DEVICE = 0x400454CA
LAYER_3, NO_HEAD = 0x0001, 0x1000
PACKET_BYTES_MAX = 1 << 16
AT_ONCE_MAX = 64
"""Packets of one end before the others have their turn."""
DESTINATION = slice(16, 20)
"""In the head of a packet of IPv4."""


def open_device(name: str) -> int:
    """A network device that is there as long as this descriptor is open."""
    descriptor = os.open(DEVICES, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, SET_DEVICE, struct.pack("16sH22x", name.encode(), LAYER_3 | NO_HEAD))
    return descriptor


def encode_rules(rules: Mapping[Pair, Rule]) -> bytes:
    rows = [[*pair, rule.is_cut, rule.delay_s, rule.loss, rule.bytes_per_s] for pair, rule in rules.items()]
    return json.dumps(rows).encode() + b"\n"


def decode_rules(line: bytes) -> dict[Pair, Rule]:
    rows: list[list[Any]] = json.loads(line)
    return {
        (by, to): Rule(is_cut=is_cut, delay_s=delay_s, loss=loss, bytes_per_s=rate)
        for by, to, is_cut, delay_s, loss, rate in rows
    }


class Switch:
    def __init__(self, addresses: Mapping[End, str], devices: Mapping[End, str], seed: int) -> None:
        self._traffic = Traffic(random.Random(seed))
        self._descriptors = {end: open_device(name) for end, name in devices.items()}
        self._ends = {IPv4Address(address).packed: end for end, address in addresses.items()}
        self._told = b""

    def run(self) -> None:
        stdin = sys.stdin.fileno()
        os.set_blocking(stdin, False)
        with selectors.DefaultSelector() as selector:
            selector.register(stdin, selectors.EVENT_READ, None)
            for end, descriptor in self._descriptors.items():
                selector.register(descriptor, selectors.EVENT_READ, end)
            say("ready")
            while True:
                due_s = self._traffic.next_s()
                wait_s = None if due_s is None else max(0.0, due_s - time.monotonic())
                for key, _ in selector.select(wait_s):
                    if key.data is not None:
                        self._carry(key.data, key.fd)
                    elif not self._obey(stdin):
                        return
                for (_, to), packet in self._traffic.arrived(time.monotonic()):
                    self._deliver(to, packet)

    def _obey(self, stdin: int) -> bool:
        """Whether there is still somebody to obey."""
        piece = os.read(stdin, 1 << 16)
        self._told += piece
        while b"\n" in self._told:
            line, _, self._told = self._told.partition(b"\n")
            self._traffic.rule(decode_rules(line))
            say("done")
        return bool(piece)

    def _carry(self, by: End, descriptor: int) -> None:
        now_s = time.monotonic()
        for _ in range(AT_ONCE_MAX):
            try:
                packet = os.read(descriptor, PACKET_BYTES_MAX)
            except BlockingIOError:
                return
            to = self._ends.get(packet[DESTINATION]) if packet[0] >> 4 == 4 else None
            if to is not None and self._traffic.take((by, to), packet, now_s):
                self._deliver(to, packet)

    def _deliver(self, to: End, packet: bytes) -> None:
        try:
            os.write(self._descriptors[to], packet)
        except OSError:
            return  # a device that is full or not up yet loses it


def say(word: str) -> None:
    os.write(sys.stdout.fileno(), f"{word}\n".encode())


def main() -> None:
    ends, seed = json.loads(sys.argv[1]), int(sys.argv[2])
    addresses = {end: address for end, address, _ in ends}
    devices = {end: device for end, _, device in ends}
    Switch(addresses, devices, seed).run()


if __name__ == "__main__":
    main()
