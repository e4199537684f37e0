"""What a log directory says about itself: its node, its cluster, how its last owner left it.

Owns: `meta.properties`, directory ids, the epoch in the clean-shutdown marker, and what a node advertises.
Does not own: the logs inside, or whether the cluster takes this node in (joining.py).

Invariant: a directory of another node or another cluster is never used, and one is marked only after its
cluster was joined.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from uuid import UUID

from broker.config.broker import BrokerConfig
from broker.config.listeners import Listener
from broker.config.properties import parse_properties
from broker.control.image import BrokerImage
from broker.endpoint import Endpoint
from protocol.ids import decode_id, encode_id
from storage.files import Files, write_whole

META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"

logger = logging.getLogger(__name__)


class StartupError(Exception):
    """The broker must not start; one line for the operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """One log directory, as its meta.properties and clean-shutdown marker describe it."""

    path: str
    cluster_id: str | None = None
    directory_id: UUID | None = None
    clean_epoch: int = -1
    """The broker epoch in which its last owner stopped in order; -1 where nothing says so."""


def new_id(random: Random) -> UUID:
    """Return an id that does not begin with a dash: command lines would take it for an option (so Kafka)."""
    while True:
        made = UUID(bytes=random.randbytes(16), version=4)
        if not encode_id(made).startswith("-"):
            return made


def read_directory(path: str, text: str | None, marker: bytes | None, *, node_id: int) -> Directory:
    """StartupError unless a directory with these contents may be used by this node."""
    if text is None:
        return Directory(path=path)
    props = parse_properties(text)
    if props.get("version") != "1":
        raise StartupError(
            f"{path}: meta.properties has version {props.get('version')}, expected 1: another release or "
            "program wrote it, so use that one or an empty directory"
        )
    if props.get("node.id") != str(node_id):
        raise StartupError(
            f"{path} belongs to node {props.get('node.id')}, but this is node {node_id}: "
            "set the node.id that it has, or use another directory"
        )
    cluster_id, directory_id = props.get("cluster.id"), props.get("directory.id")
    if not cluster_id:
        raise StartupError(
            f"{path}: meta.properties does not say which cluster it belongs to: add cluster.id as the other "
            "directories of this node have it, or use an empty directory"
        )
    try:
        parsed_id = None if directory_id is None else decode_id(directory_id)
    except ValueError:
        raise StartupError(f"{path}: meta.properties has a bad directory.id {directory_id!r}") from None
    return Directory(
        path=path,
        cluster_id=cluster_id,
        directory_id=parsed_id,
        clean_epoch=_marker_epoch(marker),
    )


def _was_clean(directory: Directory, epoch: int) -> bool:
    """Whether a stop lost nothing. A directory that was never used holds nothing that could be lost."""
    if directory.cluster_id is None:
        return True
    return directory.clean_epoch == epoch


def _marker_epoch(marker: bytes | None) -> int:
    """Return the broker epoch in Kafka's marker, {"version": 0, "brokerEpoch": n}; -1 when it names none."""
    try:
        return int(json.loads(marker or b"{}").get("brokerEpoch", -1))
    except (ValueError, AttributeError, TypeError):
        return -1


def meta_properties(*, cluster_id: str, node_id: int, directory_id: UUID) -> bytes:
    lines = (
        f"cluster.id={cluster_id}",
        f"directory.id={encode_id(directory_id)}",
        f"node.id={node_id}",
        "version=1",
    )
    return "".join(f"{line}\n" for line in lines).encode()


def advertised_endpoints(
    config: BrokerConfig, *, host_name: str, ports: Mapping[str, int]
) -> tuple[Endpoint, ...]:
    """Return the addresses for clients, with the host's name for a wildcard and the real port for 0."""

    def endpoint(listener: Listener) -> Endpoint:
        return Endpoint(
            listener=listener.name,
            host=host_name if listener.is_wildcard else listener.host,
            port=listener.port or ports.get(listener.name, 0),
            protocol=listener.protocol,
        )

    return tuple(map(endpoint, config.advertised))


def read_directories(files: Files, paths: Sequence[str], *, node_id: int) -> list[Directory]:
    """Read those that can be read; one bad disk does not keep a broker with several from starting."""
    found = []
    problem = ""
    for path in paths:
        try:
            files.makedirs(path)
            text = _read_file(files, f"{path}/{META_PROPERTIES}")
            marker = _read_file(files, f"{path}/{CLEAN_SHUTDOWN}")
        except OSError as error:
            problem = f"log directory {path} cannot be used: {error}"
            logger.error("%s", problem)
            continue
        decoded = None if text is None else text.decode("utf-8", "replace")
        found.append(read_directory(path, decoded, marker, node_id=node_id))
    if not found:
        raise StartupError(problem)
    return found


def _read_file(files: Files, path: str) -> bytes | None:
    try:
        return files.read(path)
    except FileNotFoundError:
        return None


def mark_directories(
    files: Files, directories: Sequence[Directory], ids: Mapping[str, UUID], *, cluster_id: str, node_id: int
) -> None:
    """Mark new ones as this node's; one bad disk is left to what writes its logs."""
    problem = ""
    failed = 0
    for directory in directories:
        if directory.cluster_id is not None and directory.directory_id is not None:
            continue
        data = meta_properties(cluster_id=cluster_id, node_id=node_id, directory_id=ids[directory.path])
        path = f"{directory.path}/{META_PROPERTIES}"
        try:
            write_whole(files, path, data)
        except OSError as error:
            problem = f"{path} cannot be written: {error.strerror or error}"
            logger.error("%s", problem)
            failed += 1
    if failed == len(directories):
        raise StartupError(problem)


def claimed_cluster(directories: Sequence[Directory]) -> str | None:
    claims = {d.cluster_id: d.path for d in directories if d.cluster_id is not None}
    if len(claims) > 1:
        raise StartupError(
            "the log directories belong to different clusters: "
            + ", ".join(f"{path} to {cluster_id}" for cluster_id, path in claims.items())
            + "; leave those of one cluster in log.dirs"
        )
    return next(iter(claims), None)


def clean_epoch(before: BrokerImage | None, directories: Sequence[Directory], ids: Mapping[str, UUID]) -> int:
    """Return the epoch this node cleanly stopped in, as the markers say, or -1."""
    if before is None:
        return -1
    clean = all(_was_clean(d, before.epoch) for d in directories)
    # With a disk gone, what it held may be written a second time.
    complete = set(before.directories) <= set(ids.values())
    return before.epoch if clean and complete else -1


def missing_directories(before: BrokerImage | None, ids: Collection[UUID]) -> tuple[UUID, ...]:
    """Return those of this node that are registered and not here, while others are."""
    if before is None or set(before.directories).isdisjoint(ids):
        return ()
    return tuple(directory for directory in before.directories if directory not in ids)


def is_emptied(before: BrokerImage | None, directories: Sequence[Directory]) -> bool:
    """Return whether this node had log directories, and none of those that it has now was ever used."""
    return (
        before is not None
        and bool(before.directories)
        and all(directory.cluster_id is None for directory in directories)
    )
