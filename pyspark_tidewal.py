"""`format("tidewal")` for Spark, which finds this module by its name and imports it before any data source.

Owns the name. Does not own anything else: what a read needs is imported when there is one. Invariant: nothing
is imported here but what Spark itself has, for if this failed, no data source in Python could be used.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource


class DefaultSource(DataSource):
    """Topics of Tidewal, read from its object store and data directories, from its brokers, or from both."""

    @classmethod
    def name(cls) -> str:
        return "tidewal"

    def schema(self) -> str:
        from tools.spark import source

        return source.schema_of(source.checked(self.options, is_stream=None))

    def reader(self, schema: Any) -> Any:
        from tools.spark import source

        return source.TopicReader(source.checked(self.options, is_stream=False))

    def streamReader(self, schema: Any) -> Any:
        from tools.spark import source

        return source.TopicStreamReader(source.checked(self.options, is_stream=True))
