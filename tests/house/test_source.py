"""What every file of src/ is read for: one meaning per class name, and no key of the report that nothing assigns."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from .load_script import ROOT

SOURCE = ROOT / "src" / "hotloop"


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))}


def classes_of(tree: ast.Module) -> Iterator[ast.ClassDef]:
    return (node for node in tree.body if isinstance(node, ast.ClassDef))


def test_a_public_class_name_has_one_meaning(trees: dict[Path, ast.Module]) -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path, tree in trees.items():
        for node in classes_of(tree):
            places[node.name].append(str(path.relative_to(SOURCE)))
    assert {name: found for name, found in places.items() if len(found) > 1 and name[0] != "_"} == {}


def test_every_optional_key_of_the_report_is_assigned(trees: dict[Path, ast.Module]) -> None:
    optional = {
        node.name: {one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and one.value is not None}
        for node in classes_of(trees[SOURCE / "core" / "report.py"])
    }
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                for name in optional if node.func.id == "replace" else optional.keys() & {node.func.id}:
                    optional[name] -= {key.arg for key in node.keywords}
    assert {name: fields for name, fields in optional.items() if fields} == {}
