"""Every optional key of the report is assigned somewhere: one that never is would say nothing in every report."""

import ast
from pathlib import Path

import hotloop.core.report as report_module

SOURCE = Path(report_module.__file__).parents[1]


def optional_fields(tree: ast.Module) -> dict[str, set[str]]:
    """By class, the fields that have a default: a caller can leave them out."""
    return {
        node.name: {one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and one.value is not None}
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }


def assigned_fields(trees: list[ast.Module], classes: set[str]) -> set[tuple[str, str]]:
    """(class, field) of every keyword that a call of the class, or of ``replace``, gives."""
    found: set[tuple[str, str]] = set()
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                names = classes if node.func.id == "replace" else classes & {node.func.id}
                found |= {(name, key.arg) for name in names for key in node.keywords if key.arg}
    return found


def never_assigned(definition: str, sources: list[str]) -> set[str]:
    fields = optional_fields(ast.parse(definition))
    assigned = assigned_fields([ast.parse(text) for text in sources], set(fields))
    return {f"{name}.{field}" for name, names in fields.items() for field in names if (name, field) not in assigned}


def test_every_optional_key_of_the_report_is_assigned() -> None:
    definition = SOURCE / "core" / "report.py"
    sources = [path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")]
    assert never_assigned(definition.read_text(encoding="utf-8"), sources) == set()
