"""hotloop.__all__ is the public face: what it lists exists, and what is declared for type checkers is listed."""

import ast
import pkgutil
from pathlib import Path

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


def test_all_lists_exactly_what_is_declared_and_exists() -> None:
    listed = hotloop.__all__
    assert sorted(listed) == sorted(declared_names(Path(hotloop.__file__).read_text()))
    assert [name for name in listed if not hasattr(hotloop, name)] == []
    assert set(listed) & {info.name for info in pkgutil.iter_modules(hotloop.__path__)} == set()


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(AttributeError, match="read_report"):
        _ = hotloop.observe_everything
