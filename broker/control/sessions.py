"""Which nodes are alive, as far as silence tells: the controller's sessions with the brokers, and the time a
broker waits for the controller.

Owns: deadlines, and what a stall of one's own loop means for them. Does not own: heartbeats, fencing,
elections (cluster.py). Pure: `now_s` is a monotonic clock of this process.

Invariant: nothing here is needed for safety. A silence counts only while this process was awake to hear:
after a stall every node gets its whole time again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

STALL_S = 1.0
SILENT_AFTER_S = 2.5
"""A held heartbeat comes back at least once a second: a broker that was silent for so long is cut off or
gone, and must see from the store that the controller lives."""
ELECTION_AFTER_S = (6.0, 10.0)
"""How long a broker waits for a silent controller: a random time between these two."""
FENCED_TIMES = 3
"""How many times as long a fenced broker waits."""
KEEPS_STILL_S = ELECTION_AFTER_S[1] + 2.0


class Sessions:
    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._heard_s: dict[int, float] = {}
        self._ticked_s: float | None = None

    def __repr__(self) -> str:
        return f"Sessions({sorted(self._heard_s)})"

    def is_current(self, broker_id: int, now_s: float) -> bool:
        heard_s = self._heard_s.get(broker_id)
        return heard_s is not None and now_s - heard_s < self._timeout_s

    def begin(self, broker_ids: Iterable[int], now_s: float) -> None:
        """Give every broker its whole time: this node is the controller now."""
        self._heard_s = dict.fromkeys(broker_ids, now_s)
        self._ticked_s = now_s

    def heard(self, broker_id: int, now_s: float) -> None:
        self._heard_s[broker_id] = now_s

    def expect(self, broker_ids: Iterable[int], now_s: float) -> None:
        """Give those of these brokers that have no session one, with its whole time."""
        for broker_id in broker_ids:
            self._heard_s.setdefault(broker_id, now_s)

    def end(self, broker_id: int) -> None:
        self._heard_s.pop(broker_id, None)

    def tick(self, now_s: float) -> bool:
        """Note that the process runs; callers do so every fraction of a second. Return True if it stood still
        for so long that every session was begun anew."""
        stalled = self._ticked_s is not None and now_s - self._ticked_s > STALL_S
        self._ticked_s = now_s
        if stalled:
            self._heard_s = dict.fromkeys(self._heard_s, now_s)
        return stalled

    def expired(self, now_s: float) -> list[int]:
        return sorted(id_ for id_, at_s in self._heard_s.items() if now_s - at_s >= self._timeout_s)

    def are_all_silent(self, broker_ids: Sequence[int], now_s: float) -> bool:
        """Whether this controller, rather than all of these, may be the one that is cut off.

        Then it keeps still until each of them had the time to stand for election. Of two nodes neither can
        tell, and the controller goes on.
        """
        heard_s = self._heard_s
        return len(broker_ids) > 1 and all(
            SILENT_AFTER_S <= now_s - heard_s.get(id_, now_s) < KEEPS_STILL_S for id_ in broker_ids
        )

    def is_anyone_silent(self, broker_ids: Iterable[int], now_s: float) -> bool:
        """Whether one of these was not heard lately; one without a session was not heard at all."""
        heard_s = self._heard_s
        return any(now_s - heard_s.get(id_, -SILENT_AFTER_S) >= SILENT_AFTER_S for id_ in broker_ids)


class ElectionTimer:
    """The time this broker waits for a sign of the controller before it stands for election."""

    def __init__(self, uniform: Callable[[float, float], float]) -> None:
        self._uniform = uniform
        self._restarted_s = 0.0
        self._limit_s = ELECTION_AFTER_S[1]
        self._ticked_s: float | None = None

    def restart(self, now_s: float) -> None:
        """Begin anew: a heartbeat was answered, or a new slot appeared."""
        self._restarted_s = now_s
        self._limit_s = self._uniform(*ELECTION_AFTER_S)

    def tick(self, now_s: float) -> None:
        """Note that the process runs, as `Sessions.tick` does."""
        if self._ticked_s is None or now_s - self._ticked_s > STALL_S:
            self.restart(now_s)
        self._ticked_s = now_s

    def has_expired(self, now_s: float, *, fenced: bool = False) -> bool:
        """Whether the time is over. A fenced broker waits longer: for it the controller writes empty slots
        more rarely."""
        return now_s - self._restarted_s >= self._limit_s * (FENCED_TIMES if fenced else 1)
