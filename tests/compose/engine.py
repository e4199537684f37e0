"""A container engine: Docker where it answers, else what a script of the operator's brings up.

Owns how compose and docker are called. Does not own what is run.
Invariant: a machine without an engine is told so in one line, and nothing is installed on it by this file.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tools.console import Failure

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT_VARIABLE = "TIDEWAL_CONTAINERS"
SCRIPT_BESIDE = ROOT.parent / "shared" / "containers.sh"
BASE_IMAGE = "python:3.11-slim"
COMMAND_S_MAX = 600.0


class NoEngine(Failure):
    """There is nothing here that runs containers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    compose: tuple[str, ...]
    docker: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=dict)

    def run(self, *command: str | Path, environ: Mapping[str, str] | None = None, stdin: str = "") -> str:
        """Return what a command printed; Failure with what it said, if it failed."""
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            errors="backslashreplace",
            timeout=COMMAND_S_MAX,
            env={**os.environ, **self.environ, **(environ or {})},
            check=False,
        )
        if done.returncode:
            said = "\n".join((done.stdout + done.stderr).splitlines()[-40:])
            raise Failure(f"{shlex.join(map(str, command))} ended with {done.returncode}:\n{said}")
        return done.stdout


def find_engine(minio_image: str, minio: Path) -> Engine:
    """Return the engine of this machine, with the images that a compose file starts from."""
    if is_answered(["docker", "info"]):
        if is_answered(["docker", "compose", "version"]):
            return Engine(compose=("docker", "compose"), docker=("docker",))
        if shutil.which("docker-compose"):
            environ = {"DOCKER_BUILDKIT": "1", "COMPOSE_DOCKER_CLI_BUILD": "1"}
            return Engine(compose=("docker-compose",), docker=("docker",), environ=environ)
        raise NoEngine("docker answers, but has no compose")
    script = Path(os.environ.get(SCRIPT_VARIABLE) or SCRIPT_BESIDE)
    if not script.is_file():
        raise NoEngine(
            f"`docker info` does not answer, and {SCRIPT_VARIABLE} names no script that starts an engine"
        )
    return brought_up(script, minio_image, minio)


def brought_up(script: Path, minio_image: str, minio: Path) -> Engine:
    """Start an engine with a script: `up` prints exports, `image` makes an image, `compose` runs it."""
    plain = Engine(compose=(str(script), "compose"), docker=("docker",))
    try:
        exports = plain.run(script, "up")
    except Failure as error:
        raise NoEngine(f"{script} starts no engine here: {error}") from None
    shown = plain.run("bash", "-c", f"{exports}\nenv -0")
    environ = dict(each.partition("=")[::2] for each in shown.split("\0") if each)
    # The engine's own client, beside which there may be one that lacks what it builds with.
    environ["PATH"] = os.pathsep.join(("/usr/bin", os.environ["PATH"]))
    engine = Engine(compose=plain.compose, docker=plain.docker, environ=environ)
    engine.run(script, "image", "python", BASE_IMAGE)
    engine.run(script, "image", "minio", minio_image, *([minio] if minio.is_file() else []))
    return engine


def is_answered(command: list[str]) -> bool:
    try:
        done = subprocess.run(command, capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
