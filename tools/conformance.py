"""CONFORMANCE.md: what is asked of this broker, what proves it, and which API versions it serves.

Owns the page. Does not own the demands (tests/requirements.tsv), which tests prove them (the `requirement`
marks that pytest collects), the served versions (protocol.apis) nor what differs from Kafka
(tests/differences.tsv).
Invariant: the page says "covered" only where a test carries the mark, and test_tidy fails when the page is
stale.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from protocol import apis

ROOT = Path(__file__).resolve().parent.parent
DEMANDS = ROOT / "tests" / "requirements.tsv"
DIFFERENCES = ROOT / "tests" / "differences.tsv"
KAFKA_RANGES = ROOT / "protocol" / "data" / "kafka-4.3.1-api-versions.txt"
PAGE = ROOT / "CONFORMANCE.md"
COLLECT_S_MAX = 120

TITLES = {
    "1176": "KIP-1176: tiering of the active segment",
    "1023": "KIP-1023: a follower starts at the tiered offset",
    "956": "KIP-956: quotas for tiered storage",
    "1183": "KIP-1183: one log layer over local and shared storage",
    "1241": "KIP-1241: delayed copy",
    "X": "Where the KIPs meet",
}

_PARTS = {
    "Transactions": r"Txn|Transactions",
    "Security": r"Sasl|Acl|DelegationToken|Scram|ClientQuotas",
    "The new group protocol (KIP-848)": r"ConsumerGroup",
    "Share and streams groups": r"Share|Streams",
}
"""The parts of Kafka, by a pattern of the APIs that belong to them."""
_KAFKA_API = re.compile(r"^(\w+)\(\d+\): \d", re.MULTILINE)

Marks = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    id: str
    is_narrative: bool
    asks: str
    ours: str
    kafkas: str

    @property
    def family(self) -> str:
        return self.id.rsplit("-", 1)[0]


def read_demands(path: Path = DEMANDS) -> list[Demand]:
    demands = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("#") or not line:
            continue
        fields = line.split("\t")
        if len(fields) != 5 or fields[1] not in ("demand", "narrative"):
            raise ValueError(f"{path}:{number}: not id, demand or narrative, asks, ours, Kafka's")
        demand_id, kind, asks, ours, kafkas = fields
        demands.append(
            Demand(id=demand_id, is_narrative=kind == "narrative", asks=asks, ours=ours, kafkas=kafkas)
        )
    return demands


def collect_marks() -> dict[str, list[str]]:
    """Return {id: tests}, as pytest collects them, without running any."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "marks.json"
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, "--requirements-to", str(target)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=COLLECT_S_MAX,
            check=False,
        )
        if done.returncode not in (0, 5):  # 5: nothing was collected
            raise RuntimeError(
                f"pytest cannot collect the tests:\n{done.stdout[-4000:]}{done.stderr[-1000:]}"
            )
        marks: dict[str, list[str]] = json.loads(target.read_text())
    return marks


def unknown_marks(demands: Sequence[Demand], marks: Marks) -> list[str]:
    return sorted(set(marks) - {demand.id for demand in demands})


def render(demands: Sequence[Demand], marks: Marks) -> str:
    covered, provable = _count(demands, marks)
    narrative = len(demands) - provable
    families = {
        family: list(members) for family, members in groupby(demands, key=lambda demand: demand.family)
    }
    parts = [
        "# Conformance",
        "",
        *_part_section(families, marks),
        "",
        *_api_section(),
        "",
        *_difference_section(),
        "",
        "## Tiered storage, demand by demand",
        "",
        f"{covered} of {provable} demands are covered by a test. A demand without a test counts as not",
        f"done, whatever the code does. {narrative} more entries are narrative, with nothing to prove.",
    ]
    for family, members in families.items():
        parts += ["", *_family_section(TITLES[family], members, marks)]
    parts += [
        "",
        "Written by `make conformance` from `tests/requirements.tsv`, `tests/differences.tsv`, the",
        "`requirement` marks on the tests and the table of served APIs. `make test` fails when it is stale,",
        "and runs every test named here.",
    ]
    return "\n".join(parts) + "\n"


def _part_section(families: Mapping[str, Sequence[Demand]], marks: Marks) -> list[str]:
    """Answer what a reader asks first: what can be used today, and what is not there yet."""
    absent = {part for name in _unserved() if (part := _part_of(name))}
    rows = [
        "Stock clients find here what Apache Kafka 4.3.1 serves them, but for the parts that are not begun:",
        "those are not advertised, so that a client does not ask for them.",
        "",
        "| part | state |",
        "|---|---|",
        "| The core: producing, fetching, topics, groups, transactions, replication "
        f"| served: {len(apis.SERVED)} APIs, each in all versions of Kafka 4.3.1; checked with stock "
        "clients and, answer by answer, against Kafka itself |",
    ]
    for family, members in families.items():
        rows.append(f"| {TITLES[family]} | {_state(*_count(members, marks))} |")
    return rows + [f"| {part} | not begun |" for part in _PARTS if part in absent]


def _state(covered: int, provable: int) -> str:
    if not covered:
        return f"not begun ({provable} demands)"
    if covered < provable:
        return f"begun: {covered} of {provable} demands are covered by a test"
    return f"done: each of {provable} demands is covered by a test"


def _count(demands: Sequence[Demand], marks: Marks) -> tuple[int, int]:
    """Return how many demands a test covers, and how many one could cover."""
    provable = [demand for demand in demands if not demand.is_narrative]
    return sum(demand.id in marks for demand in provable), len(provable)


def _part_of(api: str) -> str:
    return next((part for part, pattern in _PARTS.items() if re.search(pattern, api)), "")


def _unserved() -> list[str]:
    names = {row.name for row in apis.SERVED.values()}
    return [name for name in _KAFKA_API.findall(KAFKA_RANGES.read_text()) if name not in names]


def _api_section() -> list[str]:
    served = sorted(apis.SERVED.items())
    rows = [
        "## APIs served",
        "",
        "The ranges are those that Apache Kafka 4.3.1 answers. What is not listed is not advertised.",
        "",
        "| key | API | versions | note |",
        "|---:|---|---|---|",
    ]
    for key, row in served:
        note = ""
        if row.served_from > row.min_version:
            note = f"below {row.served_from} listed for old clients' sake and closed on use, as in Kafka"
        rows.append(f"| {key} | {row.name} | {row.min_version} to {row.max_version} | {note} |")
    return [*rows, "", f"Served by Kafka and not here yet: {', '.join(_unserved())}."]


def _difference_section() -> list[str]:
    lines = [line for line in DIFFERENCES.read_text().splitlines() if line and not line.startswith("#")]
    return [
        "## Differences from Apache Kafka, and why",
        "",
        "`make differential` sends the same requests to both, picked by hand and in generated sequences, and",
        "compares the answers; these are the differences that are meant.",
        "",
        "| where | Kafka's | ours | why |",
        "|---|---|---|---|",
        *(f"| {' | '.join(line.split(chr(9)))} |" for line in lines),
    ]


def _family_section(title: str, demands: Sequence[Demand], marks: Marks) -> list[str]:
    rows = [
        f"### {title}",
        "",
        f"{_state(*_count(demands, marks)).capitalize()}.",
        "",
        "| id | what it asks | ours | Kafka's, where it differs | tests |",
        "|---|---|---|---|---|",
    ]
    for demand in demands:
        tests = marks.get(demand.id, ())
        if tests:
            proof = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in tests)
        else:
            proof = "narrative" if demand.is_narrative else "not yet"
        cells = (demand.id, demand.asks, demand.ours, demand.kafkas, proof)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return rows


def main() -> int:
    """Print the page; with --write put it where it belongs."""
    demands, marks = read_demands(), collect_marks()
    if unknown := unknown_marks(demands, marks):
        sys.stderr.write(f"no such requirement in {DEMANDS.name}: {', '.join(unknown)}\n")
        return 1
    page = render(demands, marks)
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page)
    else:
        sys.stdout.write(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
