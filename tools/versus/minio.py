"""A real MinIO in a process of its own, and buckets in it: for measurements and for tests.

Owns the process, its data and its keys. Does not own the executable (`make minio`).
Invariant: it listens on a port nobody else has, on one address only, and dies with the one who started it.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from remote.store.sigv4 import Keys, Signer
from tools.console import Failure
from tools.ports import free_port
from tools.versus.brokers import ROOT
from tools.versus.caller import until, wall_ms

EXECUTABLE = ROOT / ".peers" / "minio" / "minio"
KEYS = Keys(access_key="tidewal-test", secret_key="tidewal-test-secret")
READY_S_MAX = 60.0


class MinioServer:
    def __init__(
        self,
        executable: Path,
        data: Path,
        *,
        port: int | None = None,
        host: str = "127.0.0.1",
        within: Sequence[str] = (),
    ) -> None:
        """`within` is what its command is put behind: that of a network namespace, where `host` is."""
        self.host, self.port = host, port or free_port()
        self.endpoint = f"http://{host}:{self.port}"
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        self.process = subprocess.Popen(
            [*within, executable, "server", "--quiet", "--address", f"{host}:{self.port}", data],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={
                "HOME": str(data),
                "PATH": os.environ["PATH"],
                "MINIO_ROOT_USER": KEYS.access_key,
                "MINIO_ROOT_PASSWORD": KEYS.secret_key,
                "MINIO_BROWSER": "off",
                "MINIO_UPDATE": "off",
            },
        )
        try:
            until(self._is_ready, "MinIO that is ready", READY_S_MAX)
        except BaseException:
            self.close()
            raise

    @property
    def environ(self) -> dict[str, str]:
        """What a client of this server finds in its environment."""
        return {"AWS_ACCESS_KEY_ID": KEYS.access_key, "AWS_SECRET_ACCESS_KEY": KEYS.secret_key}

    def url(self, bucket: str, prefix: str = "", *, port: int | None = None) -> str:
        return f"s3://{bucket}/{prefix}?endpoint=http://{self.host}:{port or self.port}&region=us-east-1"

    def make_bucket(self, name: str) -> None:
        headers = Signer("us-east-1").sign(
            "PUT",
            f"/{name}",
            "",
            {"host": f"{self.host}:{self.port}"},
            keys=KEYS,
            now_ms=wall_ms(),
        )
        request = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT", headers=headers)
        with urllib.request.urlopen(request, timeout=20):
            pass

    def close(self) -> None:
        self.process.kill()
        self.process.wait(timeout=10)
        self._output.close()

    def _is_ready(self) -> bool:
        if self.process.poll() is not None:
            self._output.seek(0)
            raise Failure(f"MinIO ended: {self._output.read().decode(errors='replace').strip()}")
        # Its own page says ready before it takes requests, which is what counts.
        try:
            self.make_bucket("ready")
        except urllib.error.HTTPError as error:
            return error.code == 409
        except OSError:
            return False
        return True
