"""What importing the protocol costs: a broker is ready in well under a second only if nothing is loaded
early.
"""

from __future__ import annotations

import subprocess
import sys


def loaded_by(code: str) -> set[str]:
    code += "\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


EVERYTHING = (
    "import protocol.apis, protocol.fetch, protocol.messages, protocol.produce, protocol.records, "
    "protocol.wire, "
    "protocol.stored.consumer, protocol.stored.offsets, protocol.stored.slots"
)


def test_importing_everything_loads_no_schema_and_no_input_or_output() -> None:
    loaded = loaded_by(EVERYTHING)
    assert not loaded & {"asyncio", "socket", "random", "hypothesis", "importlib.metadata", "kio.index"}
    assert {name for name in loaded if name.startswith("kio.schema.")} == {"kio.schema.errors"}


def test_a_version_loads_its_own_schema_only() -> None:
    loaded = loaded_by(f"{EVERYTHING}\nprotocol.messages.load(3, 12)")
    schemas = {name for name in loaded if name.startswith("kio.schema.") and ".v" in name}
    assert {name.split(".v")[0] for name in schemas} == {
        "kio.schema.metadata",
        "kio.schema.request_header",
        "kio.schema.response_header",
    }
    assert {name for name in schemas if ".metadata." in name} == {
        "kio.schema.metadata.v12",
        "kio.schema.metadata.v12.request",
        "kio.schema.metadata.v12.response",
    }


def test_a_broker_imports_no_request_class() -> None:
    """They come with the codecs; a handler imports them for annotations only."""
    loaded = loaded_by("import broker.server")
    assert not {name for name in loaded if name.startswith("protocol.requests")}


def test_a_broker_does_not_load_what_comes_with_the_checksum() -> None:
    """crc32c's package brings its command line and importlib.metadata: 25 ms at every start."""
    loaded = loaded_by("import broker.server, remote.store.s3_store, tools.broker_command")
    assert not loaded & {"crc32c", "argparse", "importlib.metadata"}


def test_hypothesis_stays_importable() -> None:
    assert "hypothesis" in loaded_by("import protocol, hypothesis")
