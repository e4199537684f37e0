"""What clients leave behind is freed as they leave: nothing of it waits in a cycle for the garbage collector,
which this broker runs rarely, and which knows nothing of the size of a read buffer.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tests.soak.visits import VISITS, prepare

if TYPE_CHECKING:
    from tests.conftest import MakeBroker

OURS = ("broker.", "protocol.", "storage.", "remote.")
REST_S_MAX = 20.0


async def test_nothing_of_a_client_is_left_in_a_cycle(make_broker: MakeBroker) -> None:
    broker = await make_broker(
        connections_max_idle_ms="1000",
        group_initial_rebalance_delay_ms="50",
        group_min_session_timeout_ms="500",
        log_flush_single_replica="true",
        log_segment_delete_delay_ms="100",
        offsets_topic_num_partitions="1",
    )
    listening = next(iter(broker.listeners.values()))
    bootstrap = f"{listening.host}:{listening.port}"
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, prepare, bootstrap)
    gc.collect()
    gc.disable()
    try:
        with ThreadPoolExecutor(len(VISITS)) as guests:
            await asyncio.gather(*(loop.run_in_executor(guests, visit, bootstrap) for visit in VISITS))
        async with asyncio.timeout(REST_S_MAX):
            while broker.components.network.connection_count:  # noqa: ASYNC110 - the broker's own state
                await asyncio.sleep(0.01)
        found = ours_in_garbage()
    finally:
        gc.enable()
    assert not found


def ours_in_garbage() -> Counter[str]:
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        names = [f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    return Counter(name for name in names if name.startswith(OURS))
