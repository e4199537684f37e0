"""`format("tidewal")` for Spark, which finds this module by its name and imports it before any data source.

Owns the name, and what the application's packages are called in a process of Spark: `tools` may be the
user's own there, in a worker that runs their functions after our reads. So this module is a package as well,
with the application's folder as its path: what is imported below it has names that begin with
`pyspark_tidewal.`, and its own imports lead there. Does not own anything else: what a read needs is imported
when there is one. Invariant: nothing is imported here but what Spark itself has, for if this failed, no data
source in Python could be used; no name at the top is taken, nor is another's taken for ours.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

from pyspark.sql.datasource import DataSource

from tidewal import FOLDER, PACKAGES

__path__ = [FOLDER]


class _Loader(SourceFileLoader):
    """Runs a module of the application with an `import` of its own, in which `tools` is ours."""

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _import}
        super().exec_module(module)


class _Finder:
    """Finds the application below this module."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith(f"{__name__}."):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(name, spec.loader.path)
        return spec


def _import(
    name: str,
    globals: Mapping[str, object] | None = None,  # noqa: A002
    locals: Mapping[str, object] | None = None,  # noqa: A002
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> ModuleType:
    """Import as `__import__` does; the application's names are looked up below this module."""
    top = name.partition(".")[0]
    if level or top not in PACKAGES:
        return builtins.__import__(name, globals, locals, fromlist or (), level)
    own = f"{__name__}.{name}"
    if fromlist:
        return builtins.__import__(own, globals, locals, fromlist, 0)
    import_module(own)
    return sys.modules[f"{__name__}.{top}"]


sys.meta_path.insert(0, _Finder)


def _source() -> Any:
    return import_module(f"{__name__}.tools.spark.source")


class DefaultSource(DataSource):  # type: ignore[misc]
    """Topics of Tidewal, read from its object store and data directories, from its brokers, or from both."""

    @classmethod
    def name(cls) -> str:
        return "tidewal"

    def schema(self) -> str:
        source = _source()
        text: str = source.schema_of(source.checked(self.options, is_stream=None))
        return text

    def reader(self, schema: Any) -> Any:
        source = _source()
        return source.TopicReader(source.checked(self.options, is_stream=False))

    def streamReader(self, schema: Any) -> Any:
        source = _source()
        return source.TopicStreamReader(source.checked(self.options, is_stream=True))
