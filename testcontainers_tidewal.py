"""Tidewal for testcontainers-python: a broker, or three brokers beside a MinIO, in containers.

Owns the addresses that clients are told, which are known only once a container runs, and when a container is
ready. Does not own images: the Dockerfile of the project makes `tidewal:latest`. Invariant: what a `with`
started is gone when it is left, also when the start failed; then the error holds what the containers logged.

    with TidewalContainer() as kafka:
        producer = Producer({"bootstrap.servers": kafka.get_bootstrap_server()})
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Final, Self

from testcontainers.core.container import DockerContainer
from testcontainers.core.exceptions import ContainerStartException
from testcontainers.core.network import Network
from testcontainers.core.wait_strategies import LogMessageWaitStrategy

IMAGE: Final = "tidewal:latest"
MINIO_IMAGE: Final = "minio/minio:RELEASE.2025-09-07T16-13-09Z"
PORT: Final = 9093
"""For clients outside, on a port of the host that is free."""
INSIDE_PORT: Final = 9092
"""For containers of the same network."""
QUICK: Final[Mapping[str, str]] = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "5",
}
"""What spares a test its time where Kafka's defaults are for production; whatever is set wins."""
ADVERTISED: Final = "advertised"
START: Final = (
    f"until [ -s /tmp/{ADVERTISED} ]; do sleep 0.05; done; "
    f'exec tidewal "$@" --set "advertised.listeners=$(cat /tmp/{ADVERTISED})"'
)
"""What a container runs: the port of the host is given to it when it runs, and a file says which it got."""
ENTRYPOINT: Final = ("sh", "-c", START, "tidewal")
READY: Final = r"^ready node="
POLL_S: Final = 0.05
STARTUP_S_MAX: Final = 60
LOG_BYTES_MAX: Final = 20_000
BUCKET: Final = "tidewal"


class TidewalContainer(DockerContainer):  # type: ignore[misc]
    """One broker, as KafkaContainer is one."""

    def __init__(self, image: str = IMAGE, **options: Any) -> None:
        """`options` are those of DockerContainer."""
        super().__init__(image, **{"entrypoint": ENTRYPOINT, **options})
        self.node_id = 1
        self.store: str | None = None
        self.properties: dict[str, str] = dict(QUICK)
        self.with_exposed_ports(PORT)

    def with_kwargs(self, **options: Any) -> Self:
        """Replace the options of the engine, but for the program that waits for the address."""
        super().with_kwargs(**{"entrypoint": ENTRYPOINT, **options})
        return self

    def with_property(self, name: str, value: str) -> Self:
        """Set a property of the broker, in Kafka's names."""
        self.properties[name] = value
        return self

    def with_store(self, url: str) -> Self:
        """Keep the objects there: s3://BUCKET/PREFIX?endpoint=URL, with AWS_ACCESS_KEY_ID and its secret by
        `with_env`. Without it they are in the container, with the logs."""
        self.store = url
        return self

    def with_node_id(self, node_id: int) -> Self:
        """One of several that share a store has an id of its own."""
        self.node_id = node_id
        return self

    def get_bootstrap_server(self) -> str:
        """Return HOST:PORT for clients outside."""
        return f"{self.get_container_host_ip()}:{self.get_exposed_port(PORT)}"

    def get_inside_bootstrap_server(self) -> str:
        """Return HOST:PORT for containers of the same network: its first alias there, or else its id."""
        aliases = self._network_aliases
        return f"{aliases[0] if aliases else self.get_container_id()[:12]}:{INSIDE_PORT}"

    def start(self, timeout: int = STARTUP_S_MAX) -> Self:
        """Start it; returns when clients may connect, or raises ContainerStartException with its log."""
        self.launch()
        self.begin()
        self.wait_ready(timeout)
        return self

    def launch(self) -> None:
        """Start the container; the broker in it waits for `begin`."""
        self.with_command(self._options())
        super().start()

    def begin(self) -> None:
        """Tell the broker its addresses, with which it begins."""
        outside, inside = self.get_bootstrap_server(), self.get_inside_bootstrap_server()
        self._put(ADVERTISED, f"OUTSIDE://{outside},INSIDE://{inside}\n".encode())

    def _options(self) -> list[str]:
        words = ["broker", "--from-env", "--node-id", str(self.node_id), "--data", "/var/lib/tidewal/data"]
        if self.store is not None:
            words += ["--store", self.store]
        listeners = {
            "listeners": f"OUTSIDE://0.0.0.0:{PORT},INSIDE://0.0.0.0:{INSIDE_PORT}",
            "listener.security.protocol.map": "OUTSIDE:PLAINTEXT,INSIDE:PLAINTEXT",
            "inter.broker.listener.name": "INSIDE",
        }
        for name, value in {**self.properties, **listeners}.items():
            words += ["--set", f"{name}={value}"]
        return words

    def _put(self, name: str, content: bytes) -> None:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
        self.get_wrapped_container().put_archive("/tmp", packed.getvalue())

    def wait_ready(self, timeout: int = STARTUP_S_MAX) -> None:
        """Return when clients may connect, or raise ContainerStartException with its log."""
        _wait(self, LogMessageWaitStrategy(READY), timeout)


def _wait(container: DockerContainer, strategy: LogMessageWaitStrategy, timeout: int) -> None:
    try:
        strategy.with_poll_interval(POLL_S).with_startup_timeout(timeout).wait_until_ready(container)
    except (RuntimeError, TimeoutError) as error:
        logged = b"".join(container.get_logs())[-LOG_BYTES_MAX:].decode(errors="replace")
        why = "is not ready in time" if isinstance(error, TimeoutError) else "ended before it was ready"
        raise ContainerStartException(f"{container.image} {why}; it logged:\n{logged}") from None


class TidewalCluster:
    """Three brokers, whose objects are in a MinIO of their own; containers of `network` reach them too."""

    def __init__(
        self,
        image: str = IMAGE,
        *,
        brokers: int = 3,
        minio_image: str = MINIO_IMAGE,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.network = Network()
        self.minio = DockerContainer(minio_image)
        self.brokers = tuple(TidewalContainer(image) for _ in range(brokers))
        self._prepare(properties or {})
        self._started = ExitStack()

    def _prepare(self, properties: Mapping[str, str]) -> None:
        credentials = {"AWS_ACCESS_KEY_ID": "tidewal", "AWS_SECRET_ACCESS_KEY": "tidewal-secret"}
        self.minio.with_network(self.network).with_network_aliases("minio")
        self.minio.with_envs(MINIO_ROOT_USER="tidewal", MINIO_ROOT_PASSWORD="tidewal-secret")
        # a folder that is there before the server is a bucket
        self.minio.with_kwargs(entrypoint=["sh", "-c", f"mkdir -p /data/{BUCKET} && exec minio server /data"])
        for number, broker in enumerate(self.brokers, 1):
            broker.with_network(self.network).with_network_aliases(f"tidewal-{number}").with_node_id(number)
            broker.with_store(f"s3://{BUCKET}?endpoint=http://minio:9000&region=us-east-1")
            broker.with_envs(**credentials)
            broker.properties.update(properties)

    def get_bootstrap_server(self) -> str:
        """Return the addresses of all brokers, with commas between them."""
        return ",".join(broker.get_bootstrap_server() for broker in self.brokers)

    def start(self, timeout: int = STARTUP_S_MAX) -> Self:
        """Start MinIO, then all brokers at once; returns when clients may connect to each."""
        with ExitStack() as started:
            started.enter_context(self.network)
            for container in (self.minio, *self.brokers):
                started.callback(container.stop)
            with ThreadPoolExecutor(1 + len(self.brokers)) as pool:
                launches = [
                    pool.submit(launch)
                    for launch in (self.minio.start, *(each.launch for each in self.brokers))
                ]
            for done in launches:
                done.result()
            _wait(self.minio, LogMessageWaitStrategy("API: http"), timeout)
            for broker in self.brokers:
                broker.begin()
            for broker in self.brokers:
                broker.wait_ready(timeout)
            self._started = started.pop_all()
        return self

    def stop(self) -> None:
        self._started.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
