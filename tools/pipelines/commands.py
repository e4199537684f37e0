"""Options and help of `tidewal export` and `tidewal replay`, with typer.

Owns how their command lines are spelt, and what times may look like. The work is in export and replay.
Invariant: what is wrong with a command line is said in one line before anything is read or written.
"""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from tools.broker_command import LISTEN
from tools.console import Failure, check_writable

MIB = 1 << 20
Topic = Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)]
Bootstrap = Annotated[
    str, typer.Option("--bootstrap", "-b", metavar="HOST:PORT[,…]", help="Brokers to read from.")
]
Uncommitted = Annotated[
    bool,
    typer.Option("--read-uncommitted", help="Take what open and aborted transactions wrote as well."),
]
JsonFile = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Write the counts as JSON; - is stdout.", show_default=False),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(export)
    app.command()(replay)


def export(
    topic: Topic,
    to: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Where the files of this topic are kept: file:///DIR or s3://BUCKET/PREFIX?endpoint=URL, "
            "with credentials from the usual AWS_* variables.",
            show_default=False,
        ),
    ],
    bootstrap: Bootstrap = LISTEN,
    every: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0.1,
            help="Go on for good, adding what is new so often.  [default: once]",
            show_default=False,
        ),
    ] = None,
    file_size: Annotated[
        int,
        typer.Option(metavar="MIB", min=1, max=1024, help="Smaller files are merged up to about this size."),
    ] = 64,
    compression: Annotated[
        str, typer.Option(metavar="CODEC", help="zstd, snappy, lz4, gzip or none.")
    ] = "zstd",
    allow_loss: Annotated[
        bool, typer.Option("--allow-loss", help="Go on when retention was faster than the export.")
    ] = False,
    read_uncommitted: Uncommitted = False,
    json_file: JsonFile = None,
) -> None:
    """Keep a topic as Parquet files, each record in them once.

    The columns are those of Spark's Kafka source. A file is named after its partition and offsets and appears
    whole; a run that was killed, or runs beside another, puts no record twice. Run again to add what is new.
    """
    if find_spec("pyarrow") is None:
        raise Failure("tidewal export needs pyarrow: pip install 'tidewal[parquet]'")
    if compression not in ("zstd", "snappy", "lz4", "gzip", "none"):
        raise Failure(f"--compression {compression}: not one of zstd, snappy, lz4, gzip, none", exit_code=2)
    _check_addresses("--bootstrap", bootstrap)
    check_writable(json_file)
    from tools.pipelines import export as exporting

    exporting.run(
        exporting.ExportOptions(
            topic=topic,
            bootstrap=bootstrap,
            url=to,
            file_bytes=file_size * MIB,
            every_s=every,
            read_committed=not read_uncommitted,
            allow_loss=allow_loss,
            compression=compression,
            json_file=json_file,
        )
    )


def replay(
    topic: Topic,
    to: Annotated[
        str, typer.Option(metavar="HOST:PORT[,…]", help="Brokers to write to.", show_default=False)
    ],
    bootstrap: Bootstrap = LISTEN,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Read from this object store, while no broker runs: file:///DIR or "
            "s3://BUCKET/PREFIX?endpoint=URL.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Read from this data directory of a broker; may be repeated, and stand beside --store.",
            show_default=False,
        ),
    ] = None,
    to_topic: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The topic of the copy; made if it is not there.  [default: the same name]",
            show_default=False,
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Copy records of this time or later: 2026-05-01, 2026-05-01T12:30:00+02:00 (UTC without a "
            "zone), or milliseconds.",
            show_default=False,
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Copy records before this time.", show_default=False)
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(metavar="MB/S", min=0.001, help="Send no faster than this.", show_default=False),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What to resume from after a kill.  [default: TOPIC-to-NAME.replay]",
            show_default=False,
        ),
    ] = None,
    read_uncommitted: Uncommitted = False,
    json_file: JsonFile = None,
) -> None:
    """Copy a topic, or a time of it, to another cluster or topic, each record once.

    It is read from brokers, or with --store and --data from what they left. Partitions, keys, values, headers
    and timestamps stay, the order too; a topic that is made gets the same configuration, so that retention
    deletes no copy early. What the topic holds at the begin is copied; run the same command again after a
    failure or a kill, and it goes on where the copy ends.
    """
    since_ms, until_ms = _time("--since", since), _time("--until", until)
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise Failure("--since is not before --until", exit_code=2)
    _check_addresses("--bootstrap", bootstrap)
    _check_addresses("--to", to)
    check_writable(json_file)
    from tools.pipelines import replay as replaying

    name = to_topic or topic
    if store is not None and "://" not in store:
        raise Failure(f"--store {store}: give file:///DIR or s3://BUCKET/PREFIX", exit_code=2)
    replaying.run(
        replaying.ReplayOptions(
            topic=topic,
            bootstrap=bootstrap,
            places=(*([store] if store is not None else []), *map(str, data or ())),
            to=to,
            to_topic=name,
            since_ms=since_ms,
            until_ms=until_ms,
            bytes_per_s=None if rate is None else rate * 1e6,
            state=state or Path(f"{topic}-to-{name}.replay"),
            read_committed=not read_uncommitted,
            json_file=json_file,
        )
    )


def _check_addresses(option: str, text: str) -> None:
    from tools.client import Address

    try:
        for each in text.split(","):
            Address.parse(each)
    except ValueError as error:
        raise Failure(f"{option}: {error}", exit_code=2) from None


def _time(option: str, text: str | None) -> int | None:
    """Return milliseconds for a time as people write it."""
    if text is None:
        return None
    if text.isascii() and text.isdigit() and len(text) < 18:
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Failure(f"{option} {text}: not a time like 2026-05-01T12:30:00", exit_code=2) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return round(found.timestamp() * 1000)
