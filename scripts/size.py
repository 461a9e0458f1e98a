"""How large the code is: statements (docstrings apart) and files by package, and the ten longest functions.

Fails where a package has more statements than its ceiling in pyproject.toml, ``[tool.hotloop-size]``; with ``--check``
nothing else is printed.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TREES = ("src", "tests", "benchmarks", "scripts")
LEFT_OUT = ("tests/zoo/scripts", "tests/zoo/scored", "tests/harm/scripts")
"""Trainings that are measured, not code that is maintained."""


def main(arguments: list[str]) -> int:
    statements: Counter[str] = Counter()
    files: Counter[str] = Counter()
    functions: list[tuple[int, str]] = []
    for tree in TREES:
        for path in sorted((ROOT / tree).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if name.startswith(LEFT_OUT):
                continue
            count, found = measure(ast.parse(path.read_text(encoding="utf-8")))
            functions += [(lines, f"{name}:{at}") for lines, at in found]
            depth = 3 if tree == "src" else 2
            for package in {tree, "/".join(name.split("/")[:-1][:depth])}:
                statements[package] += count
                files[package] += 1
    if "--check" not in arguments:
        for package in sorted(statements):
            print(f"{statements[package]:6} statements {files[package]:4} files  {package}")
        for lines, name in sorted(functions, reverse=True)[:10]:
            print(f"{lines:6} lines  {name}")
    ceilings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hotloop-size"]
    above = [package for package, ceiling in ceilings.items() if statements[package] > ceiling]
    for package in above:
        print(
            f"{package} has {statements[package]} statements, its ceiling is {ceilings[package]} (pyproject.toml): "
            "remove what is not needed before you raise it",
            file=sys.stderr,
        )
    return 1 if above else 0


def measure(module: ast.Module) -> tuple[int, list[tuple[int, str]]]:
    """Statements of a file, without docstrings; lines and place of each function."""
    count = -(ast.get_docstring(module, clean=False) is not None)
    functions = []
    for node in ast.walk(module):
        if isinstance(node, ast.stmt):
            count += 1
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            count -= ast.get_docstring(node, clean=False) is not None
            if not isinstance(node, ast.ClassDef) and node.end_lineno is not None:
                functions.append((node.end_lineno - node.lineno + 1, f"{node.lineno} {node.name}"))
    return count, functions


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
