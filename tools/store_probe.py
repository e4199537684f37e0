"""`tidewal store probe`: whether a store keeps its promises, shown as a table.

Owns opening two connections to one store, showing the report and the exit code. Does not own the checks
(remote.probe).
Invariant: a store that breaks a promise never ends with exit code 0.
"""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import asdict

from broker.process import store_at
from remote.store.location import BadStoreUrl, StoreLocation, parse_store_url
from remote.store.metered import StoreStats
from remote.store.object_store import StoreError
from remote.store.probe import ProbeReport, probe
from tools.console import Failure, check_writable, emit, emit_table, write_json


def run(url: str, json_file: str | None) -> None:
    check_writable(json_file)
    try:
        location = parse_store_url(url, os.environ)
    except BadStoreUrl as error:
        raise Failure(str(error), exit_code=2) from None
    try:
        report = asyncio.run(_probe(location))
    except StoreError as error:
        raise Failure(str(error)) from None
    except OSError as error:
        raise Failure(f"{error.filename}: {error.strerror}") from None
    if json_file != "-":
        _show(report)
    if json_file is not None:
        write_json({"url": url, "fit": report.is_fit, **asdict(report)}, json_file)
    if not report.is_fit:
        raise Failure(f"{url} must not hold a cluster: {'; '.join(report.complaints)}")


async def _probe(location: StoreLocation) -> ProbeReport:
    store_a, store_b = store_at(location, StoreStats()), store_at(location, StoreStats())
    try:
        return await probe(store_a, store_b, random.Random())
    finally:
        await store_a.close()
        await store_b.close()


def _show(report: ProbeReport) -> None:
    checks = [
        {"check": check.name, "result": "broken" if check.complaint else "kept", "why": check.complaint or ""}
        for check in report.checks
    ]
    emit_table(("check", "result", "why"), checks)
    emit("")
    emit_table(
        ("operation", "samples", "p50_ms", "p99_ms"), [asdict(latency) for latency in report.latencies]
    )
    if report.is_fit:
        emit("")
        emit("fit for a cluster")
