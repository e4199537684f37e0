"""Every command's options and help, with typer.

Owns how a command line is spelt. Each command's work is in the module it imports when it runs.
Invariant: what a command prints on its way is its answer; what is wrong with it is raised as a `Failure`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tools.asking import ask
from tools.broker_command import EXIT_WITH_STDIN, LISTEN, BrokerOptions, run_broker
from tools.console import Failure, check_address, check_writable, read_pairs, write_json
from tools.demo import command as demonstration
from tools.pipelines import commands as pipelines
from tools.verify import command as verification

if TYPE_CHECKING:
    from tools.bench import Load

INT16_MAX, INT32_MAX = 2**15 - 1, 2**31 - 1

app = typer.Typer(
    name="tidewal",
    help="A Kafka broker that needs nothing but a place to put objects, and what goes with it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
topics_app = typer.Typer(help="Create, delete, list, describe and alter topics.", no_args_is_help=True)
bench_app = typer.Typer(
    help="Measure any Kafka-compatible broker with confluent-kafka.", no_args_is_help=True
)
store_app = typer.Typer(help="Create and look at an object store.", no_args_is_help=True)
app.add_typer(topics_app, name="topics")
app.add_typer(bench_app, name="bench")
tier_app = typer.Typer(help="Look at what of a topic is in the cold tier.", no_args_is_help=True)
app.add_typer(store_app, name="store")
app.add_typer(tier_app, name="tier")

Bootstrap = Annotated[
    str, typer.Option("--bootstrap", "-b", metavar="HOST:PORT[,…]", help="Brokers to ask first.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Timeout = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="Deadline of each request.")
]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)]
Configs = Annotated[
    list[str] | None,
    typer.Option(
        "--config", "-c", metavar="KEY=VALUE", help="Set this topic configuration; may be repeated."
    ),
]


# --- broker ---


@app.command()
def broker(
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A server.properties file, in Kafka's property names.", show_default=False
        ),
    ] = None,
    node_id: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, help="This broker's id (node.id).  [default: 1]", show_default=False
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where clients connect; port 0 picks a free one.  [default: 127.0.0.1:9092]",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where the logs are kept (log.dirs).  [default: .tidewal]", show_default=False
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The object store: file:///DIR or s3://BUCKET/PREFIX?endpoint=URL&region=NAME, with "
            "credentials from the usual AWS_* variables.  [default: a folder under --data]",
            show_default=False,
        ),
    ] = None,
    admin: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Serve /metrics, /healthz and /readyz here.", show_default=False
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set a property, in Kafka's names; may be repeated and wins over --config.",
            show_default=False,
        ),
    ] = None,
    from_env: Annotated[
        bool,
        typer.Option(
            "--from-env",
            help="Read TIDEWAL_* and KAFKA_* variables too, as containers of Kafka do.",
        ),
    ] = False,
    exit_with_stdin: Annotated[
        bool,
        typer.Option(
            EXIT_WITH_STDIN,
            help="Also stop when standard input ends, as it does when the program that started this is gone.",
        ),
    ] = False,
) -> None:
    """Run a broker until SIGTERM or SIGINT.

    Prints one line when clients may connect: ready node=1 listen=HOST:PORT store=URL

    With --from-env, TIDEWAL_NODE_ID, _LISTEN, _DATA, _STORE, _ADMIN and _CONFIG stand for the options, and
    any other TIDEWAL_X_Y or KAFKA_X_Y for the property x.y; NAME_FILE names a file with the value. Options
    win over TIDEWAL_, that over KAFKA_, that over the file.
    """
    run_broker(
        BrokerOptions(
            config=config,
            node_id=node_id,
            listen=listen,
            data=data,
            store=store,
            admin=admin,
            from_env=from_env,
            settings=settings or [],
            exit_with_stdin=exit_with_stdin,
        )
    )


@app.command()
def cluster(
    brokers: Annotated[int, typer.Option(metavar="N", min=1, max=100, help="How many brokers.")] = 3,
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:FIRST_PORT",
            help="Where clients reach the first broker; the others take the ports that follow, with 0 any.",
        ),
    ] = LISTEN,
    data: Annotated[
        Path, typer.Option(metavar="DIR", help="Each broker's logs are in a folder of their own below it.")
    ] = Path(".tidewal-cluster"),
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="The object store they share.  [default: DIR/store]", show_default=False
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set a property of every broker, in Kafka's names; may be repeated.",
            show_default=False,
        ),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start a broker again that was killed or ended with an error.")
    ] = False,
    exit_with_stdin: Annotated[
        bool,
        typer.Option(
            EXIT_WITH_STDIN,
            help="Also stop when standard input ends, as it does when the program that started this is gone.",
        ),
    ] = False,
) -> None:
    """Run several brokers of one cluster on this machine until SIGTERM or SIGINT.

    Each is a process of its own. Prints the ready line of each broker, then: ready cluster

    When a broker ends, one line on stderr says how, and the others go on. The exit code is 0 only if every
    broker ended cleanly.
    """
    from tools.cluster_command import ClusterOptions, run_cluster

    run_cluster(
        ClusterOptions(
            brokers=brokers,
            listen=listen,
            data=data,
            store=store,
            restart=restart,
            settings=settings or [],
            exit_with_stdin=exit_with_stdin,
        )
    )


@app.command()
def health(
    bootstrap: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Ask the broker that listens here.", show_default=False),
    ] = None,
    admin: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Ask the admin page here.", show_default=False)
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="How long the answer may take.")
    ] = 5.0,
) -> None:
    """Ask whether a broker answers and is ready; the exit code is 1 when not.

    Without an address it is that of `tidewal broker --from-env` in the same environment.
    """
    from tools.health import HealthOptions, run_health

    run_health(HealthOptions(bootstrap=bootstrap, admin=admin, timeout_s=timeout))


# --- topics and offsets ---


@topics_app.command("create")
def topics_create(
    topic: Topic,
    bootstrap: Bootstrap = LISTEN,
    partitions: Annotated[
        int,
        typer.Option(
            "--partitions",
            "-p",
            min=-1,
            max=INT32_MAX,
            help="How many; -1 takes the broker's num.partitions.",
        ),
    ] = -1,
    replication: Annotated[
        int,
        typer.Option(
            "--replication",
            "-r",
            min=-1,
            max=INT16_MAX,
            help="Replicas of each; -1 takes the broker's default.",
        ),
    ] = -1,
    config: Configs = None,
    if_absent: Annotated[bool, typer.Option("--if-absent", help="It is no error when it is there.")] = False,
    timeout: Timeout = 30.0,
) -> None:
    """Create a topic."""
    from tools import topics

    configs = read_pairs(config or [], "--config")
    ask(
        bootstrap,
        timeout,
        lambda client: topics.create(
            client,
            topic,
            partitions=partitions,
            replication=replication,
            configs=configs,
            if_absent=if_absent,
        ),
    )


@topics_app.command("delete")
def topics_delete(
    topic: Annotated[list[str], typer.Argument(metavar="TOPIC…", show_default=False)],
    bootstrap: Bootstrap = LISTEN,
    timeout: Timeout = 30.0,
) -> None:
    """Delete topics with all their records."""
    from tools import topics

    ask(bootstrap, timeout, lambda client: topics.delete(client, topic))


@topics_app.command("list")
def topics_list(
    bootstrap: Bootstrap = LISTEN,
    internal: Annotated[bool, typer.Option("--internal", help="Internal topics too.")] = False,
    as_json: Json = False,
    timeout: Timeout = 30.0,
) -> None:
    """List topics."""
    from tools import topics

    ask(bootstrap, timeout, lambda client: topics.list_topics(client, internal=internal, as_json=as_json))


@topics_app.command("describe")
def topics_describe(
    topic: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC…]", help="Default: every topic that is not internal."),
    ] = None,
    bootstrap: Bootstrap = LISTEN,
    as_json: Json = False,
    timeout: Timeout = 30.0,
) -> None:
    """Show leaders, replicas and the topic's own configurations."""
    from tools import topics

    ask(bootstrap, timeout, lambda client: topics.describe(client, topic or [], as_json=as_json))


@topics_app.command("alter")
def topics_alter(
    topic: Topic,
    bootstrap: Bootstrap = LISTEN,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", "-p", min=1, max=INT32_MAX, help="Grow to this many.", show_default=False
        ),
    ] = None,
    config: Configs = None,
    remove: Annotated[
        list[str] | None,
        typer.Option(
            "--remove", metavar="KEY", help="Back to the default; may be repeated.", show_default=False
        ),
    ] = None,
    timeout: Timeout = 30.0,
) -> None:
    """Change a topic's configurations, or add partitions to it."""
    from tools import topics

    configs = read_pairs(config or [], "--config")
    ask(
        bootstrap,
        timeout,
        lambda client: topics.alter(
            client, topic, partitions=partitions, configs=configs, remove=remove or []
        ),
    )


@app.command()
def offsets(
    topic: Annotated[list[str], typer.Argument(metavar="TOPIC…", show_default=False)],
    bootstrap: Bootstrap = LISTEN,
    as_json: Json = False,
    timeout: Timeout = 30.0,
) -> None:
    """Show each partition's offsets: log start, local start, last tiered, pending upload, high watermark,
    last stable, log end.

    `-` stands for an offset that does not exist, as the tiered ones of a topic without tiering.
    """
    from tools import topics

    ask(bootstrap, timeout, lambda client: topics.offsets(client, topic, as_json=as_json))


# --- tier ---


@tier_app.command("list")
def tier_list(
    topic: Topic,
    bootstrap: Bootstrap = LISTEN,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="One line, shown again and again: how far the copying is.")
    ] = False,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, max=3600, help="Between two lines of --watch.")
    ] = 1.0,
    times: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="End --watch after so many lines.", show_default=False),
    ] = None,
    as_json: Json = False,
    timeout: Timeout = 30.0,
) -> None:
    """Show a topic's segments in the cold tier, by what the brokers say of them.

    BASE and END are offsets, END exclusive. Only COPY_FINISHED segments are read. A topic that is not tiered
    and has none left is an error.
    """
    from tools.tier import listing

    if watch:
        ask(
            bootstrap,
            timeout,
            lambda client: listing.watch(client, topic, every_s=every, times=times, as_json=as_json),
        )
    else:
        ask(bootstrap, timeout, lambda client: listing.list_copies(client, topic, as_json=as_json))


@tier_app.command("check")
def tier_check(
    store: Annotated[
        str,
        typer.Option(metavar="URL", help="The brokers' object store, as for tidewal broker --store."),
    ],
    topic: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC…]", help="Default: every topic, and those that are gone."),
    ] = None,
    bootstrap: Bootstrap = LISTEN,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every object too, and compare its checksums.")
    ] = False,
    as_json: Json = False,
    timeout: Timeout = 30.0,
) -> None:
    """Compare what the brokers say of the cold tier with what the object store holds. Changes nothing.

    missing, wrong size, damaged: an object of a segment that is to be read · unreferenced: an object that
    nobody speaks of · hole: offsets that are neither in the tier nor with their leader. The exit code is 1
    when something is wrong, 2 when that could not be found out.
    """
    from tools.tier import check

    ask(
        bootstrap,
        timeout,
        lambda client: check.run(client, topic or [], store, is_deep=deep, as_json=as_json),
        exit_code=2,
    )


@tier_app.command("wal")
def tier_wal(
    store: Annotated[
        str,
        typer.Option(metavar="URL", help="The brokers' object store, as for tidewal broker --store."),
    ],
    bootstrap: Bootstrap = LISTEN,
    as_json: Json = False,
    timeout: Timeout = 30.0,
) -> None:
    """List the objects of the WAL tier: as the brokers tell them, and as the store has them.

    Problems are: missing: told to count and not in the store · untold: in the store and not told · other:
    another object than was told. What was stored within the last second may be untold yet. The exit code is 1
    when topic and store differ, 2 when that could not be found out.
    """
    from tools.tier import wal

    ask(bootstrap, timeout, lambda client: wal.run(client, store, as_json=as_json), exit_code=2)


# --- bench ---


class Compression(StrEnum):
    none = "none"
    gzip = "gzip"
    snappy = "snappy"
    lz4 = "lz4"
    zstd = "zstd"


class Acks(StrEnum):
    none = "0"
    leader = "1"
    all = "all"


BenchTopic = Annotated[
    str,
    typer.Option(
        "--topic", "-t", help="Written to and read from; produce and latency create it when it is absent."
    ),
]
# the upper bounds are librdkafka's, but for the records: a few of them must fit in memory
RecordSize = Annotated[
    int, typer.Option(metavar="BYTES", min=1, max=100_000_000, help="Bytes of each record's value.")
]
Partitions = Annotated[int, typer.Option(min=1, max=100_000, help="Partitions of a topic that is created.")]
LingerMs = Annotated[float, typer.Option(min=0, max=900_000, help="How long a batch waits for more records.")]
AcksOption = Annotated[Acks, typer.Option(help="Who must have a record before it counts.")]
CompressionOption = Annotated[Compression, typer.Option(help="Codec of the batches.")]
JsonFile = Annotated[
    str | None,
    typer.Option(
        "--json", metavar="FILE", help="Write the result as JSON too; - is stdout.", show_default=False
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]


def _need_bench_client() -> None:
    """Failure without the client. Called by each command, so that its help is there without one."""
    if find_spec("confluent_kafka") is None:
        raise Failure("bench needs a client, which is not installed: pip install 'tidewal[bench]'")


@bench_app.command("produce")
def bench_produce(
    bootstrap: Bootstrap = LISTEN,
    topic: BenchTopic = "bench",
    records: Annotated[int, typer.Option(min=1, help="How many records.")] = 1_000_000,
    record_size: RecordSize = 1000,
    batch_size: Annotated[
        int, typer.Option(metavar="BYTES", min=1, max=1_000_000_000, help="Largest batch.")
    ] = 1_000_000,
    linger_ms: LingerMs = 5.0,
    acks: AcksOption = Acks.leader,
    compression: CompressionOption = Compression.none,
    in_flight: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Requests in flight to one broker.")
    ] = 5,
    partitions: Partitions = 1,
    manifest: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Note here what became of each record, for tidewal verify --manifest.",
            show_default=False,
        ),
    ] = None,
    json_file: JsonFile = None,
    quiet: Quiet = False,
) -> None:
    """Write records as fast as the broker takes them; every one is waited for."""
    _need_bench_client()
    if manifest is not None and (find_spec("numpy") is None or find_spec("xxhash") is None):
        raise Failure("--manifest needs numpy and xxhash: pip install 'tidewal[verify]'")
    from tools import bench

    load = _load(bootstrap, topic, records, record_size)
    _measure(
        lambda progress: bench.produce(
            load,
            bench.Batching(
                batch_size_bytes=batch_size,
                linger_ms=linger_ms,
                acks=acks.value,
                compression=compression.value,
                in_flight=in_flight,
            ),
            partitions=partitions,
            progress=progress,
            manifest=manifest,
        ),
        json_file,
        quiet,
        records,
    )


@bench_app.command("consume")
def bench_consume(
    bootstrap: Bootstrap = LISTEN,
    topic: BenchTopic = "bench",
    records: Annotated[
        int | None, typer.Option(min=1, help="How many records; default: all there are.", show_default=False)
    ] = None,
    fetch_size: Annotated[
        int, typer.Option(metavar="BYTES", min=1, max=1_000_000_000, help="Largest fetch of one partition.")
    ] = 1 << 20,
    json_file: JsonFile = None,
    quiet: Quiet = False,
) -> None:
    """Read a topic from its start, outside any group."""
    _need_bench_client()
    from tools import bench

    load = _load(bootstrap, topic, records or 0, 0)
    _measure(
        lambda progress: bench.consume(load, fetch_size_bytes=fetch_size, progress=progress),
        json_file,
        quiet,
        records,
    )


@bench_app.command("latency")
def bench_latency(
    bootstrap: Bootstrap = LISTEN,
    topic: BenchTopic = "bench-latency",
    records: Annotated[int, typer.Option(min=1, help="How many records, one after the other.")] = 10_000,
    record_size: RecordSize = 1000,
    acks: AcksOption = Acks.leader,
    compression: CompressionOption = Compression.none,
    partitions: Partitions = 1,
    json_file: JsonFile = None,
    quiet: Quiet = False,
) -> None:
    """Send one record at a time: time to its acknowledgement, and until a waiting consumer has it."""
    _need_bench_client()
    from tools import bench

    load = _load(bootstrap, topic, records, record_size)
    _measure(
        lambda progress: bench.latency(
            load, acks=acks.value, compression=compression.value, partitions=partitions, progress=progress
        ),
        json_file,
        quiet,
        records,
    )


def _load(bootstrap: str, topic: str, records: int, record_size: int) -> Load:
    from tools.bench import Load

    for address in bootstrap.split(","):
        check_address(address, "--bootstrap", port_min=1)
    return Load(bootstrap=bootstrap, topic=topic, records=records, record_size_bytes=record_size)


def _measure(
    measure: Callable[[Callable[[int], None]], dict[str, object]],
    json_file: str | None,
    quiet: bool,
    total: int | None,
) -> None:
    from tools import bench

    check_writable(json_file)
    with bench.progress_bar(total, quiet=quiet) as progress, bench.refusals():
        result = measure(progress)
    if json_file != "-":
        bench.emit_result(result)
    if json_file is not None:
        write_json(result, json_file)


# --- store ---


StoreUrl = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="file:///DIR or s3://BUCKET/PREFIX?endpoint=URL&region=NAME, as for tidewal broker --store.",
        show_default=False,
    ),
]


@store_app.command("create")
def store_create(url: StoreUrl) -> None:
    """Create the bucket of a store, if it is not there.

    A new bucket is private and has the server's defaults; what it shall have beyond that is set with its own
    tools. A directory needs no creation: the first broker makes it.
    """
    from tools import store_create

    store_create.run(url)


@store_app.command("probe")
def store_probe(url: StoreUrl, json_file: JsonFile = None) -> None:
    """Find out whether a store may hold a cluster, and how fast it is.

    Two connections race for keys by conditional puts, then every other promise is tried. What is written
    lies under PREFIX/probe/ and is deleted at the end. The exit code is 1 when a promise is not kept.
    """
    from tools import store_probe

    store_probe.run(url, json_file)


# --- dump-log ---


class Decode(StrEnum):
    offsets = "offsets"


@app.command("dump-log")
def dump_log(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE…",
            help="*.log, *.index, *.timeindex, *.txnindex, *.snapshot or a checkpoint file.",
            show_default=False,
        ),
    ],
    records: Annotated[bool, typer.Option("--records", help="Every record of every batch.")] = False,
    decode: Annotated[
        Decode | None,
        typer.Option(help="Read the records as what __consumer_offsets holds.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> int:
    """Show what a partition's files hold, and check them.

    A corrupt file is reported with position, offset and reason, and the exit code is 1.
    """
    from tools import dump_log

    wanted = dump_log.RecordFilter(records=records, decode=decode.value if decode is not None else None)
    return dump_log.dump_files(files, wanted=wanted, as_json=as_json)


demonstration.register(app)
pipelines.register(app)
verification.register(app)
