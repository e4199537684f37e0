"""The rules that hold for every file: ruff, mypy --strict, import-linter, file heads, words, the conformance
page.

Owns what a reviewer should never have to say twice. Does not own behaviour.
Invariant: what is checked here is checked nowhere else, so `make test` is the only command.
"""

from __future__ import annotations

import ast
import builtins
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.conftest import has_collected_all, requirement_marks
from tools import conformance

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("protocol", "storage", "remote", "broker", "tools", "tidewal")
BIN = Path(sys.executable).parent

# Marks of unfinished work, paths of one machine, and notes that are not part of the project. The brackets
# keep this file from matching itself.
FORBIDDEN = re.compile(
    r"\b(?:T[O]DO|F[I]XME|X[X]X|H[A]CK)\b"
    r"|/(?:work|root|home)/\w"
    r"|\b(?:design|hotpath|style|reliability|requirements|spark|contract)\.[m]d\b"
    r"|\b[i]ssue #?\d"
)
TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".tsv", ".xml", ".yml", ".yaml", ""}
HEAD_CHARACTERS_MIN = 80


def python_files(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"


def test_ruff_finds_nothing() -> None:
    run(str(BIN / "ruff"), "check", "--quiet", "--output-format", "concise", ".")


def test_types_are_strict(tmp_path: Path) -> None:
    """A failure is confirmed without the cache, which may think a module missing that has come since."""
    check = (sys.executable, "-m", "mypy", "--no-error-summary")
    if subprocess.run(check, cwd=ROOT, capture_output=True, check=False).returncode:
        run(*check, "--cache-dir", str(tmp_path))


def test_imports_go_one_way_and_pure_modules_are_pure() -> None:
    run(str(BIN / "lint-imports"))


def test_every_file_says_what_it_owns() -> None:
    """A module starts with its docstring: what it owns, what it does not, the invariant it keeps."""
    headless = []
    for path in python_files(*PACKAGES, "tests"):
        tree = ast.parse(path.read_text(), filename=str(path))
        if not tree.body and path.name == "__init__.py":
            continue
        head = ast.get_docstring(tree) or ""
        wanted = HEAD_CHARACTERS_MIN if path.name != "__init__.py" and "tests" not in path.parts else 20
        if len(head) < wanted:
            headless.append(str(path.relative_to(ROOT)))
    assert not headless, f"no head that says what the file owns: {', '.join(headless)}"


def exception_classes(trees: Mapping[str, ast.Module]) -> set[str]:
    """The names of Python's exceptions and of all that derive from one of them in `trees`."""
    found = {name for name, value in vars(builtins).items() if is_exception(value)}
    classes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    while new := {
        each.name
        for each in classes
        if each.name not in found and found & {name_of(base) for base in each.bases}
    }:
        found |= new
    return found


def is_exception(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def run_at_import(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node that runs when the module is imported: all but what is inside a function."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield node
            yield from run_at_import(node)


def lasting_exceptions(trees: Mapping[str, ast.Module]) -> list[str]:
    """Where a module or a class makes an exception when it is imported and keeps it."""
    known = exception_classes(trees)
    return [
        f"{name}:{node.lineno}: {name_of(node.func)}"
        for name, tree in trees.items()
        for node in run_at_import(tree)
        if isinstance(node, ast.Call) and name_of(node.func) in known
    ]


def test_no_exception_lives_as_long_as_its_module() -> None:
    """Each raise adds its frames to the traceback of the object, which keeps them and all they refer to."""
    trees = {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in python_files(*PACKAGES)}
    assert not lasting_exceptions(trees)


@pytest.mark.parametrize(
    "source",
    [
        "GONE = ValueError('gone')",
        "class A(KeyError): ...\nclass B(A): ...\nB_ERROR: Final = B()",
        "import errors\nclass Mine(errors.Timeout): ...\nclass Timeout(OSError): ...\nERRORS = {1: Mine(2)}",
        "class Handler:\n    failed = RuntimeError()",
    ],
)
def test_an_exception_that_a_module_makes_is_found(source: str) -> None:
    assert lasting_exceptions({"m.py": ast.parse(source)})


@pytest.mark.parametrize(
    "source",
    ["def fail():\n    raise ValueError('new each time')", "fail = lambda: OSError()", "TYPE = OSError"],
)
def test_an_exception_made_for_each_raise_is_fine(source: str) -> None:
    assert not lasting_exceptions({"m.py": ast.parse(source)})


def tracked_files() -> list[Path]:
    """What git tracks or would track; without git, whatever lies in the source folders."""
    names: list[str] = []
    if shutil.which("git") is not None:
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        names = done.stdout.splitlines() if done.returncode == 0 else []
    found = [ROOT / name for name in names] or list(python_files(*PACKAGES, "tests"))
    return [path for path in found if path.is_file() and path.suffix in TEXT_SUFFIXES]


def test_no_forbidden_words() -> None:
    found = []
    for path in tracked_files():
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if match := FORBIDDEN.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {match.group()}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "words", [("TO", "DO: later"), ("/wo", "rk/x"), ("see design.", "md"), ("iss", "ue 3")]
)
def test_forbidden_words_are_found(words: tuple[str, str]) -> None:
    assert FORBIDDEN.search(f"a line with {''.join(words)} in it")


def test_conformance_page_is_current(request: pytest.FixtureRequest) -> None:
    """Only a run of less than all tests collects them once more."""
    is_known = has_collected_all(request.config)
    marks = requirement_marks(request.session) if is_known else conformance.collect_marks()
    demands = conformance.read_demands()
    assert not conformance.unknown_marks(demands, marks)
    assert conformance.PAGE.read_text() == conformance.render(demands, marks), "stale: make conformance"
