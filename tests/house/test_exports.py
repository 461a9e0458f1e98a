"""hotloop.__all__ is the public face: what it lists exists, and what is declared for type checkers is listed."""

import ast
import pkgutil
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import pytest

import hotloop


def declared_names(source: str) -> set[str]:
    """The names that ``if TYPE_CHECKING`` re-exports from the package."""
    names: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for statement in node.body:
                if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("hotloop"):
                    names |= {alias.asname or alias.name for alias in statement.names}
    return names


def export_problems(package: ModuleType, declared: Iterable[str], subpackages: Iterable[str]) -> list[str]:
    listed = list(package.__all__)
    problems = [f"{name} is listed in __all__ but does not exist" for name in listed if not exists(package, name)]
    problems += [f"{name} is declared but not listed" for name in sorted(set(declared) - set(listed))]
    problems += [f"{name} is listed but not declared" for name in sorted(set(listed) - set(declared))]
    problems += [f"{name} is also the name of a subpackage" for name in sorted(set(listed) & set(subpackages))]
    problems += [f"{name} is listed twice" for name in sorted({name for name in listed if listed.count(name) > 1})]
    return problems


def exists(package: ModuleType, name: str) -> bool:
    try:
        getattr(package, name)
    except (AttributeError, ImportError):
        return False
    return True


def test_all_lists_exactly_what_exists() -> None:
    source = Path(hotloop.__file__).read_text()
    subpackages = {info.name for info in pkgutil.iter_modules(hotloop.__path__)}
    assert export_problems(hotloop, declared_names(source), subpackages) == []


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(AttributeError, match="read_report"):
        _ = hotloop.observe_everything


def test_this_check_can_fail() -> None:
    package = ModuleType("package")
    package.__all__ = ["there", "gone", "trace"]  # type: ignore[attr-defined]
    package.there = package.trace = 1  # type: ignore[attr-defined]
    problems = export_problems(package, {"there", "trace", "forgotten"}, {"trace"})
    assert problems == [
        "gone is listed in __all__ but does not exist",
        "forgotten is declared but not listed",
        "gone is listed but not declared",
        "trace is also the name of a subpackage",
    ]
    assert declared_names("if TYPE_CHECKING:\n    from hotloop.core import A as B\n    from typing import C\n") == {"B"}
