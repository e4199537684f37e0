"""The demo's picture: a dozen lines that are drawn anew, and a line for each step that has ended.

Owns what is shown and how it fits the width of a terminal. Does not own when it is drawn (command) nor the
facts (state). Pure: facts to text.
Invariant: no line is wider than asked; what a colour says a character says too, so that nothing is lost
without colours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from tools.demo.state import BrokerState, Condition, DemoState, Outcome, PartitionState, Step

WIDTH_MIN: Final = 60
WIDTH_MAX: Final = 120
_NAME_WIDTH: Final = 14

COLD, COLD_AND_DISK, WAL_AND_DISK, DISK, NOTHING = range(5)
_MEANINGS: Final = {
    COLD: "cold tier",
    COLD_AND_DISK: "cold tier and disk",
    WAL_AND_DISK: "WAL tier and disk",
    DISK: "disk alone",
}
_STYLES: Final = {
    COLD: "blue",
    COLD_AND_DISK: "cyan",
    WAL_AND_DISK: "green",
    DISK: "yellow",
    NOTHING: "",
}
_OUTCOMES: Final = {Outcome.HELD: "green", Outcome.FAILED: "red", Outcome.LEFT_OUT: "yellow"}
_CONDITIONS: Final = {
    Condition.RUNS: "green",
    Condition.KILLED: "red",
    Condition.EMPTIED: "red",
    Condition.STARTING: "yellow",
    Condition.STOPPED: "",
}


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One character for each kind of place."""

    places: str
    gone: str


UNICODE: Final = Glyphs("░▒▓█ ", "…")
ASCII: Final = Glyphs(".:w# ", "~")


def glyphs_for(encoding: str | None) -> Glyphs:
    return UNICODE if (encoding or "").lower().replace("-", "").startswith("utf") else ASCII


def step_line(step: Step) -> str:
    """Return what is left of a step: a mark, its time, its name, what came of it."""
    seconds = "       " if step.seconds is None else f"{step.seconds:6.2f} s"
    return f"{step.outcome} {seconds:>8}  {step.name:<{_NAME_WIDTH}} {step.told}".rstrip()


def styled_step(step: Step) -> Text:
    line = Text(step_line(step))
    line.stylize(_OUTCOMES.get(step.outcome, ""), 0, 1)
    line.stylize("bold", 12, 12 + len(step.name))
    return line


def picture(state: DemoState, width: int, glyphs: Glyphs) -> Text:
    """Draw the moment: load, the step under way, brokers, partitions and what their bars mean."""
    width = max(WIDTH_MIN, min(width, WIDTH_MAX))
    lines = [
        _head(state),
        _under_way(state),
        *(_broker(broker, state) for broker in state.brokers),
        *(_partition(partition, width, glyphs) for partition in state.partitions),
    ]
    if state.partitions:
        lines.append(_legend(glyphs))
    return Text("\n").join(_fitted(line, width, glyphs) for line in lines)


def _head(state: DemoState) -> Text:
    rates = f"{state.records_per_s:7,.0f} records/s  {size_text(state.bytes_per_s):>8}/s"
    store = f"store: WAL {size_text(state.store.wal_bytes)}, cold {size_text(state.store.cold_bytes)}"
    return Text(f"{state.elapsed_s:6.1f} s {rates}   {store}", style="bold")


def _under_way(state: DemoState) -> Text:
    step = next((step for step in state.steps if step.outcome is Outcome.UNDER_WAY), None)
    if step is None:
        return Text("")
    number = state.steps.index(step) + 1
    return Text(f"step {number} of {len(state.steps)}: {step.name}  {step.told}")


def _broker(broker: BrokerState, state: DemoState) -> Text:
    led = sum(partition.leader == broker.node_id for partition in state.partitions)
    line = Text(f"broker {broker.node_id}  ")
    line.append(f"{broker.condition:<13}", _CONDITIONS[broker.condition])
    leads = f"leads {led}" if broker.condition is Condition.RUNS else ""
    line.append(f"{leads:<8}  logs on its disk {size_text(broker.disk_bytes):>8}")
    return line


def _partition(partition: PartitionState, width: int, glyphs: Glyphs) -> Text:
    leader = "-" if partition.leader is None else str(partition.leader)
    in_sync = ",".join(map(str, partition.in_sync))
    line = Text(f"{partition.name:<8} leader {leader}  in sync {in_sync:<6} ")
    sizes = f" disk {size_text(partition.disk_bytes):>8}"
    if partition.cold_bytes:
        sizes += f"  cold {size_text(partition.cold_bytes):>8}"
    elif partition.wal_end is not None:
        sizes += f"  to store {max(0, partition.log_end - partition.wal_end):>5,}"
    room = width - len(line) - 30
    for place in bar(partition, max(4, room)):
        line.append(glyphs.places[place], _STYLES[place])
    line.append(sizes)
    return line


def bar(partition: PartitionState, cells: int) -> list[int]:
    """Return for each cell in which places the offsets are that it stands for."""
    length = partition.log_end - partition.log_start
    if length <= 0:
        return [NOTHING] * cells
    return [
        place_of(partition, partition.log_start + (2 * cell + 1) * length // (2 * cells))
        for cell in range(cells)
    ]


def place_of(partition: PartitionState, offset: int) -> int:
    is_cold = partition.cold_end is not None and offset < partition.cold_end
    if offset < partition.local_start:
        return COLD if is_cold else NOTHING
    if is_cold:
        return COLD_AND_DISK
    return WAL_AND_DISK if partition.wal_end is not None and offset < partition.wal_end else DISK


def _legend(glyphs: Glyphs) -> Text:
    line = Text("")
    for place, meaning in _MEANINGS.items():
        line.append(glyphs.places[place], _STYLES[place])
        line.append(f" {meaning}   ", "dim")
    return line


def _fitted(line: Text, width: int, glyphs: Glyphs) -> Text:
    if cell_len(line.plain) > width:
        line = line.copy()
        line.plain = set_cell_size(line.plain, width - 1) + glyphs.gone
    return line


def size_text(size: float) -> str:
    """Return bytes in MB, of which there is one digit after the point, or in kB."""
    return f"{size / 1e6:,.1f} MB" if size >= 99_950 else f"{size / 1e3:,.1f} kB"
