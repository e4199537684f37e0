"""DescribeLogDirs: what lies in the log directories of this broker.

Owns: one result for each directory, and its error. Does not own: the logs and which directory is offline (log
manager). Invariant: an error of one directory is answered in its place and stops no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from broker.handlers.dispatch import Context, Handler
from protocol.apis import Api
from protocol.codec import Fields
from protocol.errors import ErrorCode
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

    def describe_log_dirs(self, ctx: Context, request: DescribeLogDirsRequest) -> Fields:
        wanted: set[tuple[str, int]] | None = None
        if request.topics is not None:
            wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
        results = [self._describe_dir(path, wanted) for path in self._log_dirs]
        return {"throttle_time": 0, "error_code": ErrorCode.none, "results": results}

    def _describe_dir(self, path: str, wanted: set[tuple[str, int]] | None) -> Fields:
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
        for (topic, index), held in sorted(logs.logs.items()):
            if held.log_dir != path or (wanted is not None and (topic, index) not in wanted):
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
