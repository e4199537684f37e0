"""What hostile clients cost: the largest requests of every API, the named attacks (`--table`), a cluster
under attack (`--cluster`).

Owns the command and its journals, by which an interrupted run goes on. Does not own what is measured.
Invariant: the exit code is 1 when anything measured is past its limit.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict

from tests.hostile.attacks import ATTACKS
from tests.hostile.cluster import prove
from tests.hostile.coordinator_attacks import COORDINATOR_ATTACKS
from tests.hostile.sweep import Sent, Sweep, worst
from tests.hostile.sweep import markdown as sweep_markdown
from tests.hostile.table import Row, as_json, markdown, measured
from tests.processes import ROOT
from tools.versus.rows import report_file


def commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "none"


def table(given: argparse.Namespace) -> int:
    attacks = (*ATTACKS, *COORDINATOR_ATTACKS)
    wanted = [attack for attack in attacks if not given.only or attack.name in given.only]
    rows: list[Row] = []
    for attack in wanted:
        row = measured(attack, runs=given.runs)
        rows.append(row)
        sys.stdout.write(json.dumps(as_json(row)) + "\n")
        sys.stdout.flush()
        if given.json is not None:
            given.json.write_text(json.dumps([as_json(each) for each in rows], indent=1))
        if given.markdown is not None:
            given.markdown.write_text(markdown(rows))
    return 0 if all(row.is_within for row in rows) else 1


def every_request(given: argparse.Namespace) -> int:
    journal = ROOT / "build" / f"hostile-{commit()}.jsonl"
    if given.again:
        journal.unlink(missing_ok=True)
    sweep = Sweep(journal, newest_only=given.newest, only=given.only or ())
    for each in sweep.run():
        if isinstance(each, Sent) and each.is_within and not given.verbose:
            continue
        sys.stdout.write(f"{each}\n")
        sys.stdout.flush()
    rows = worst(sweep.sent, sweep.left)
    sys.stdout.write(sweep_markdown(rows))
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    if given.markdown is not None:
        given.markdown.write_text(sweep_markdown(rows))
    return 0 if all(row.is_within for row in rows) else 1


def cluster(given: argparse.Namespace) -> int:
    proof = prove(minutes=given.minutes)
    sys.stdout.write(f"{proof}\n")
    if given.json is not None:
        given.json.write_text(json.dumps(asdict(proof), indent=1))
    return 0 if proof.is_within else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true", help="the named attacks")
    parser.add_argument("--only", action="append", help="the attack, or API, of this name")
    parser.add_argument("--cluster", action="store_true", help="three brokers under attack")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long the cluster is attacked")
    parser.add_argument("--newest", action="store_true", help="the newest version of each API alone")
    parser.add_argument("--again", action="store_true", help="what was measured at this commit too")
    parser.add_argument("--verbose", action="store_true", help="print every request")
    parser.add_argument("--runs", type=int, default=3, help="how often each attack is measured")
    parser.add_argument("--markdown", type=report_file)
    parser.add_argument("--json", type=report_file)
    given = parser.parse_args()
    if given.cluster:
        return cluster(given)
    return table(given) if given.table else every_request(given)


if __name__ == "__main__":
    raise SystemExit(main())
