"""Kafka's tools for features and ACLs, and its compatibility test of clients, print the same of both brokers.

One broker of each kind; what a tool prints is compared line by line.
"""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.compat.differential import Twins
from tests.compat.peers import Java, unique

pytestmark = pytest.mark.kafka

TOOLS = "org.apache.kafka.tools"
FEATURES = f"{TOOLS}.FeatureCommand"
ACLS = f"{TOOLS}.AclCommand"
SERVED = ("group.version", "metadata.version", "transaction.version")


def said(java: Java, twins: Twins, main: str, *args: str) -> tuple[list[str], list[str]]:
    """What the tool printed of each broker, and how it ended."""
    ours, theirs = (java.attempt(main, "--bootstrap-server", side.bootstrap, *args) for side in twins.sides)
    return lines(ours), lines(theirs)


def lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    printed = re.sub(r"Epoch: \d+", "Epoch: N", done.stdout + done.stderr)
    printed = re.sub(r" +|\t", " ", printed)
    printed = re.sub(r"localhost:\d+|127\.0\.0\.1:\d+", "HOST", printed)
    # a stack trace tells the same again, with the addresses of the tool's own code
    kept = [line for line in printed.splitlines() if not re.match(r"\s+at |\s+\.\.\. ", line)]
    return [f"exit {done.returncode}", *kept]


def test_features_are_described_and_changed_alike(java: Java, twins: Twins) -> None:
    def described() -> list[str]:
        ours, theirs = said(java, twins, FEATURES, "describe")
        theirs = [line for line in theirs if line.startswith(("exit", *(f"Feature: {n} " for n in SERVED)))]
        assert ours == theirs
        return ours

    def changed(*args: str) -> list[str]:
        ours, theirs = said(java, twins, FEATURES, *args)
        assert ours == theirs
        return ours

    assert len(described()) == 1 + len(SERVED)
    assert "exit 0" in changed("downgrade", "--feature", "transaction.version=1", "--dry-run")
    assert "transaction.version was downgraded to 1." in changed(
        "downgrade", "--feature", "transaction.version=1"
    )
    assert any("transaction.version " in line and "Level: 1 " in line for line in described())
    assert "exit 1" in changed("upgrade", "--feature", "transaction.version=3")
    assert "exit 1" in changed("downgrade", "--metadata", "4.2-IV1")
    assert "exit 0" in changed("disable", "--feature", "group.version")
    assert any("group.version " in line and "Level: 0 " in line for line in described())
    assert "exit 0" in changed(
        "upgrade", "--feature", "transaction.version=2", "--feature", "group.version=1"
    )
    described()


def test_acls_are_refused_alike(java: Java, twins: Twins) -> None:
    rule = ("--allow-principal", "User:somebody", "--operation", "Read", "--topic", "t")
    for args in (("--list",), ("--add", *rule), ("--remove", "--force", *rule)):
        ours, theirs = said(java, twins, ACLS, *args)
        assert ours == theirs
        assert any("SecurityDisabledException" in line for line in ours)


def test_the_compatibility_test_of_clients_ends_well(java: Java, twins: Twins) -> None:
    supported = (
        "offsets-for-times", "cluster-id", "create-topics", "describe-acls", "describe-configs",
        "idempotent-producer",
    )  # fmt: skip
    flags = [word for name in supported for word in (f"--{name}-supported", "true")]
    for side in twins.sides:
        topic = unique("topic")
        java.run(f"{TOOLS}.TopicCommand", "--bootstrap-server", side.bootstrap, "--create", "--topic", topic)
        printed = java.run(
            f"{TOOLS}.ClientCompatibilityTest",
            *("--bootstrap-server", side.bootstrap, "--topic", topic, "--num-cluster-nodes", "1"),
            *("--expect-record-too-large-exception", "false", *flags),
        )
        assert printed.splitlines()[-1] == "SUCCESS."
