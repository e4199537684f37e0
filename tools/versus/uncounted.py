"""The broker without its request counters, for `make bench-features` alone: `python -m tools.versus.uncounted
broker …`.

Owns leaving out of the request path's modules, as they are imported, every statement that adds to a counter
that is read at scrape time, and what is summed up only for one. Does not own those modules: nothing in them
knows of this.
Invariant: a module that counts nothing any more is a failure, so that the comparison cannot become one of a
thing with itself; nothing compiled here is cached where a real broker would find it.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType
from typing import TypeVar

from tools.cli import main
from tools.console import Failure

MODULES = (
    "broker.handlers.dispatch",
    "broker.handlers.fetch",
    "broker.handlers.produce_append",
    "broker.handlers.produce_repeat",
)
COUNTERS = ("stats", "_counts", "_errors")

FunctionT = TypeVar("FunctionT", ast.FunctionDef, ast.AsyncFunctionDef)


def without_counting(source: str | bytes, path: str) -> tuple[ast.Module, int]:
    """Return the module, and how many statements it lost."""
    strip = _Strip()
    tree = strip.visit(ast.parse(source, path))
    return ast.fix_missing_locations(tree), strip.stripped


class _Strip(ast.NodeTransformer):
    def __init__(self) -> None:
        self.stripped = 0
        self._unread: set[str] = set()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def _function(self, node: FunctionT) -> FunctionT:
        """Strip first what adds to a counter, then the sums that nobody reads without it."""
        self._unread = set()
        self.generic_visit(node)
        names = [name for name in ast.walk(node) if isinstance(name, ast.Name)]
        read = {name.id for name in names if isinstance(name.ctx, ast.Load)}
        self._unread = {name.id for name in names} - read
        self.generic_visit(node)
        self._unread = set()
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        target: ast.expr = node.target
        is_sum = isinstance(target, ast.Name) and target.id in self._unread
        if isinstance(target, ast.Attribute | ast.Subscript):
            target = target.value
            name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
            is_sum = name in COUNTERS
        if not is_sum:
            return node
        self.stripped += 1
        return ast.copy_location(ast.Pass(), node)


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        tree, stripped = without_counting(self.get_data(self.path), self.path)
        if not stripped:
            raise Failure(f"{fullname} counts nothing")
        return compile(tree, self.path, "exec", dont_inherit=True)


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in MODULES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert spec is not None and spec.origin is not None
        spec.loader = _Loader(fullname, spec.origin)
        return spec


if __name__ == "__main__":
    sys.meta_path.insert(0, Finder())
    main()
