"""DescribeLogDirs: what lies in the log directories of this broker.

Owns: one result for each directory, and its error. Does not own: the logs and which directory is offline (log
manager). Invariant: an error of one directory is answered in its place and stops no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from broker.handlers.dispatch import Context, Handler
from broker.handlers.results import ROWS_AT_ONCE
from protocol.apis import Api
from protocol.codec import Fields
from protocol.errors import ErrorCode
from protocol.work import Work, in_order
from storage.files import Files
from storage.log_manager import LogManager

if TYPE_CHECKING:
    from protocol.requests.describe_log_dirs import DescribeLogDirsRequest


class LogDirHandlers:
    def __init__(
        self,
        *,
        logs: LogManager,
        files: Files,
        log_dirs: Sequence[str],
        absolute_path: Callable[[str], str],
    ) -> None:
        self._logs = logs
        self._files = files
        self._log_dirs = log_dirs
        self._absolute_path = absolute_path

    def routes(self) -> Mapping[int, Handler]:
        return {Api.DESCRIBE_LOG_DIRS: self.describe_log_dirs}

    def describe_log_dirs(self, ctx: Context, request: DescribeLogDirsRequest) -> Work[Fields]:
        wanted: set[tuple[str, int]] | None = None
        if request.topics is not None:
            wanted = set()
            for topic in request.topics:
                for at, index in enumerate(topic.partitions, 1):
                    wanted.add((topic.topic, index))
                    if at % ROWS_AT_ONCE == 0:
                        yield
                yield
        results: list[Fields] = []
        for path in self._log_dirs:
            result = yield from self._describe_dir(path, wanted)
            results.append(result)
        return {"throttle_time": 0, "error_code": ErrorCode.none, "results": results}

    def _describe_dir(self, path: str, wanted: set[tuple[str, int]] | None) -> Work[Fields]:
        logs = self._logs
        absolute = self._absolute_path(path)
        failed: Fields = {"log_dir": absolute, "error_code": ErrorCode.kafka_storage_error, "topics": []}
        if path in logs.offline_dirs:
            return failed
        try:
            total, usable = self._files.free_bytes(path)
        except OSError:
            return failed
        topics: dict[str, list[Fields]] = {}
        keys = yield from in_order([*logs.logs])
        for at, (topic, index) in enumerate(keys, 1):
            if at % ROWS_AT_ONCE == 0:
                yield
            held = logs.logs.get((topic, index))
            if held is None or held.log_dir != path:
                continue
            if wanted is not None and (topic, index) not in wanted:
                continue
            topics.setdefault(topic, []).append(
                {
                    "partition_index": index,
                    "partition_size": held.size,
                    "offset_lag": max(held.high_watermark - held.log_end_offset, 0),
                    "is_future_key": False,
                }
            )
        return {
            "log_dir": absolute,
            "error_code": ErrorCode.none,
            "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
            "total_bytes": total,
            "usable_bytes": usable,
        }
